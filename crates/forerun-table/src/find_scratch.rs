//! Memory that lookups reuse.

use std::cell::Cell;

use forerun_db::Values;

use crate::disk_tier::StoreKey;
use crate::host::Slots;
use crate::key_locks::Version;
use crate::misses::Misses;

/// Memory that lookups reuse. Each thread keeps one set.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) slots: Slots,
    pub(crate) misses: Misses,
    /// Which of the misses a tier found.
    pub(crate) flags: Vec<bool>,
    pub(crate) keys: Vec<StoreKey>,
    pub(crate) versions: Vec<Version>,
    pub(crate) values: Values,
}

/// A thread drops its memory if the answers exceed this many bytes.
const KEPT_BYTES: usize = 16 << 20;

thread_local!(static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) });

impl Scratch {
    /// The thread's memory, or new memory if a caller further up the stack is using it.
    pub(crate) fn take() -> Box<Scratch> {
        SCRATCH.take().unwrap_or_default()
    }

    pub(crate) fn keep(self: Box<Scratch>) {
        if self.values.capacity_bytes() <= KEPT_BYTES {
            SCRATCH.set(Some(self));
        }
    }
}
