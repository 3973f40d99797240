//! A table's options: capacities, and the policies of promotion, eviction and writing.

use std::fmt;
use std::sync::Arc;

use forerun_db::Background;

use crate::evict_strategy::EvictStrategy;

/// The capacity of the host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum HostCapacity {
    /// This many rows. Spare slots, a 16th of the rows but at least 256 and at most 65,536, hold
    /// new rows until they replace old ones.
    Rows(usize),
    /// As many rows as fit in these bytes, together with their index and metadata.
    Bytes(usize),
    /// As many rows as the machine has memory for. The table grows with its rows, as a hash map
    /// does.
    Memory,
}

/// The device of the device tier.
#[cfg(feature = "gpu")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The first GPU; without one, the CPU, which does the same in ordinary memory.
    #[default]
    Any,
    /// The GPU with this number, counted from 0 in the driver's order; an error if there is none.
    Gpu(usize),
    /// The CPU.
    Cpu,
}

/// Which rows a lookup promotes: from the store to the host tier, and from there to the device
/// tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Admission {
    /// All rows.
    Always,
    /// Rows that were looked up before. The filter remembers at least as many keys as the tier has
    /// rows.
    #[default]
    SecondTouch,
    /// Rows whose score is above that of the rows they would evict. With [`EvictStrategy::Lru`] the
    /// row in use is always the newest, so this equals [`Admission::Always`]. (Under every
    /// admission policy, the device's table refuses a row whose score is below all scores in its
    /// buckets.)
    ByScore,
}

/// The calls that promote a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Promotion {
    /// Lookups, subject to [`Admission`], and [`prefetch`](crate::Table::prefetch).
    #[default]
    OnFind,
    /// Only [`prefetch`](crate::Table::prefetch).
    OnPrefetch,
}

/// When a written row reaches the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum WritePolicy {
    /// Before the call returns: the row then survives the end of the process.
    #[default]
    #[cfg_attr(feature = "serde", serde(rename = "Through"))]
    WriteThrough,
    /// When the row leaves the host tier, or at [`flush`](crate::Table::flush).
    #[cfg_attr(feature = "serde", serde(rename = "Back"))]
    WriteBack,
}

/// Receives rows that are evicted from the last tier: keys, and their concatenated rows.
///
/// It runs before the rows are removed and under the locks of their keys, so it must not use the
/// table. If it panics, the rows stay, and the table counts a failed move. Once all spare memory is
/// in use, writes of new rows fail with an [`Error::Keys`](crate::Error::Keys) of
/// [`Error::CallbackPanicked`](crate::Error::CallbackPanicked).
pub type EvictionCallback = Arc<dyn Fn(&[u64], &[u8]) + Send + Sync>;

/// The behavior of a table without a store when the host tier is full.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum WhenHostFull {
    /// Keep all rows and refuse new ones with [`Error::Full`](crate::Error::Full).
    #[default]
    Refuse,
    /// Evict the rows with the lowest [`EvictStrategy`], as a cache does.
    Evict,
    /// Evict rows and pass them to the caller.
    Callback(EvictionCallback),
}

impl fmt::Debug for WhenHostFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhenHostFull::Refuse => "Refuse",
            WhenHostFull::Evict => "Evict",
            WhenHostFull::Callback(_) => "Callback",
        })
    }
}

/// How [`update`](crate::Table::update) changes a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Replace it with the new row.
    Assign,
    /// Add the new row to it, element by element.
    Add,
}

/// The policies by which rows move.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    pub(crate) evict_strategy: EvictStrategy,
    pub(crate) admission: Admission,
    pub(crate) promotion: Promotion,
    pub(crate) writes: WritePolicy,
    pub(crate) background: Background,
    pub(crate) when_full: WhenHostFull,
}
