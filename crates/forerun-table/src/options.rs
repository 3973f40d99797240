//! Which rows stay, which come up, and what becomes of those that leave.

use std::fmt;
use std::sync::Arc;

/// How many rows the host tier holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCapacity {
    /// So many rows. Beside them it keeps a few more, at most a 16th or some hundred, in which rows are made before they
    /// replace others.
    Rows(usize),
    /// As many rows as fit into these bytes, with their index and all else that is kept a row.
    Bytes(usize),
    /// As many rows as the machine has memory for. The table grows as rows come, as a hash map does.
    Memory,
}

/// What the device tier lies on, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU; where there is none, the CPU, which does the same in ordinary memory.
    #[default]
    Any,
    /// The GPU of that number, counted from 0 in the driver's order, or nothing.
    Gpu(usize),
    /// The CPU.
    Cpu,
}

/// Which rows leave a tier first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Score {
    /// Those whose last use is longest ago, in the host tier told apart by 16ths of a turnover.
    Lru,
    /// Those used least often of late: counts are halved as rows are passed over, and on the device rank below all
    /// counts of a later turnover.
    #[default]
    Lfu,
    /// Those of the lowest score, which the caller gives with each row and the store keeps. Rows that are inserted without
    /// one have 0.
    Custom,
}

/// Which rows come up when they are looked up: from the store into the host tier, and from there into the device's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// All.
    Always,
    /// Those that were looked up before, as far as is remembered: as many keys as the tier has rows, or more.
    #[default]
    SecondTouch,
    /// Those whose score is above that of the rows that would have to leave. With [`Score::Lru`] every row in use is newer
    /// than one at rest, so that is [`Admission::Always`]. (A device's table lets no row in whose score is below all of
    /// those that its buckets have, whatever the admission.)
    ByScore,
}

/// What brings a row up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promotion {
    /// Lookups, of what admission lets in, and [`prefetch`](crate::Table::prefetch).
    #[default]
    OnFind,
    /// Only [`prefetch`](crate::Table::prefetch).
    OnPrefetch,
}

/// When a row that is written reaches the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// Before the call that writes it returns: what has returned survives the end of the process.
    #[default]
    Through,
    /// When it leaves the host tier, or at [`flush`](crate::Table::flush).
    Back,
}

/// Who moves rows between the tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moves {
    /// A thread of the table's own, off the answers' path.
    #[default]
    Background,
    /// The calling thread, when its answer is complete. Everything then happens in an order that depends on the calls
    /// alone.
    Caller,
}

/// What takes rows that leave the last tier: keys, and their rows one after the other.
///
/// It is called before the rows leave, with writers of these keys waiting: it must not use the table.
pub type EvictionCallback = Arc<dyn Fn(&[u64], &[u8]) + Send + Sync>;

/// What a table without a store does when its host tier is full.
#[derive(Clone, Default)]
pub enum Overflow {
    /// It keeps all rows and refuses new ones with [`Error::Full`](crate::Error::Full).
    #[default]
    Refuse,
    /// It evicts rows, as a cache does: those of the lowest [`Score`].
    Evict,
    /// It evicts rows and hands them to the caller.
    Callback(EvictionCallback),
}

impl fmt::Debug for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Overflow::Refuse => "Refuse",
            Overflow::Evict => "Evict",
            Overflow::Callback(_) => "Callback",
        })
    }
}

/// What [`update`](crate::Table::update) makes of a row that is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The row that is given.
    Assign,
    /// The sum of the two, element by element.
    Add,
}
