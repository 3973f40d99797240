//! Flushing everything in constant time: a count of flushes, and in each item the count as of when it was stored.
//!
//! ```text
//!   flushes   … 6 ─────────────┬─ 7 ──────────── …      flush_all counts one more
//!   items       a: 6   b: 6    │    c: 7                 a and b are gone from then on, c is not
//! ```
//!
//! An item keeps [`Generation::BITS`] bits of the count, so an old one must have left before the count comes round to it. A sweep
//! over the index sees to that: once [`LAG_MAX`] flushes may have left something behind, each further flush sweeps a small part.
//! Mostly nothing is left to it: blocks whose items were all flushed are the first to be emptied when room is made.
//!
//! A writer takes the count before it looks at what is there, stamps its item with it, and under the segment's lock publishes
//! the item only if the count is still the same. So an item is as old as what it was decided by, and one that was stored after
//! a flush is never replaced by one that a flush has hidden.

use crate::cache::Cache;
use crate::stats::{Count, sum};
use crate::sync::{AtomicU64, Ordering, unpoisoned};
use forerun_core::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// What an item keeps of the count of flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(pub(crate) u16);

impl Generation {
    pub(crate) const BITS: u32 = 11;

    fn of(flushes: u64) -> Generation {
        Generation((flushes & ((1 << Generation::BITS) - 1)) as u16)
    }
}

/// Flushes after which a sweep begins, half of those that items can tell apart.
const LAG_MAX: u64 = 1 << (Generation::BITS - 1);
/// A flush sweeps one part of this many, so that a sweep is over when a quarter is left.
const PARTS: u64 = 1 << (Generation::BITS - 2);

/// Bytes of blocks that a flush goes through.
const QUANTUM_BYTES: usize = 16 << 10;

/// When something is looked at: it decides which items are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The second.
    pub(crate) now: u32,
    /// The flushes so far.
    pub(crate) flushes: u64,
}

impl Moment {
    #[inline(always)]
    pub(crate) fn generation(self) -> Generation {
        Generation::of(self.flushes)
    }
}

/// How often all was flushed.
#[derive(Debug)]
pub(crate) struct Flushes {
    count: AtomicU64,
    sweep: Mutex<Sweep>,
}

/// How far old items are known to be gone.
#[derive(Debug)]
struct Sweep {
    /// Stores that were counted before the last flush.
    stored: u64,
    /// No item of a lower count is in the index.
    none_below: u64,
    /// The count when the sweep that is under way began, and the hash where it goes on.
    in_progress: Option<(u64, u64)>,
}

impl Flushes {
    pub(crate) fn new() -> Flushes {
        Flushes {
            count: AtomicU64::new(1),
            sweep: Mutex::new(Sweep {
                stored: 0,
                none_below: 1,
                in_progress: None,
            }),
        }
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> u64 {
        // Relaxed: whoever was told of a flush reads its count or a later one. Two writers of a key are ordered by its segment's
        // lock, so that the second reads the count that the first read, or a later one.
        self.count.load(Ordering::Relaxed)
    }

    /// Everything stored so far is gone.
    pub(crate) fn add(&self) {
        // Relaxed, as above: nothing is published by it.
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Cache {
    /// Removes all items there are at second `at` of the clock: at once if it has come, else when it comes. A later call
    /// replaces one that is still to come.
    ///
    /// It takes the same time however many items there are. None of them is found or counted any more; their memory is used
    /// again as it is needed, and [`Cache::remove_expired`] gives it back at once.
    pub fn flush_all(&self, at: u32) {
        if self.is_forked() {
            return;
        }
        // Relaxed: a number that the next tick reads.
        if at > self.now() {
            self.flush_at.store(at, Relaxed);
            return;
        }
        self.flush_at.store(0, Relaxed);
        self.flush_now();
    }

    /// Removes all items there are.
    fn flush_now(&self) {
        let mut sweep = unpoisoned(self.flushes.sweep.lock());
        let stored = sum(self.epochs.pins().map(|pin| &pin.counters), Count::Stored);
        if stored == sweep.stored {
            // Nothing came since the last flush. A store that is not counted yet was found by nobody, and comes after this one.
            return;
        }
        sweep.stored = stored;
        self.sweep_ahead(&mut sweep);
        self.flushes.add();
        // What is stored from now on goes to other blocks, so that the ones until now can be emptied as a whole.
        self.blocks.close_open();
        // Who flushes again and again after a few items gets the same blocks again.
        self.reclaim_some(QUANTUM_BYTES);
        self.collect();
    }

    /// Flushes, if the time has come for which somebody asked.
    pub(crate) fn flush_if_due(&self) {
        let at = self.flush_at.load(Relaxed);
        // Somebody may ask for another one meanwhile, which stays to come.
        let is_due = at != 0 && at <= self.now();
        if is_due && (self.flush_at.compare_exchange(at, 0, Relaxed, Relaxed)).is_ok() {
            self.flush_now();
        }
    }

    /// The second and the flushes of this moment.
    #[inline(always)]
    pub(crate) fn moment(&self) -> Moment {
        Moment {
            now: self.now(),
            flushes: self.flushes.count(),
        }
    }

    /// Sees to it that no item is taken for a new one when the count goes on by one.
    fn sweep_ahead(&self, sweep: &mut Sweep) {
        let flushes = self.flushes.count();
        let lag = |sweep: &Sweep| flushes - sweep.none_below;
        if lag(sweep) < LAG_MAX {
            return;
        }
        loop {
            let (began, from) = sweep.in_progress.unwrap_or((flushes, 0));
            let until = from.saturating_add(u64::MAX / PARTS);
            let mut next = Some(from);
            while let Some(hash) = next.filter(|&hash| hash < until) {
                next = self
                    .sweep_segment(hash, |item, moment| item.is_gone(moment))
                    .1;
            }
            sweep.in_progress = next.map(|hash| (began, hash));
            if next.is_none() {
                // A writer with an older count finds a later one under its segment's lock, and begins again.
                sweep.none_below = began;
            }
            if lag(sweep) < 2 * LAG_MAX - 1 {
                break;
            }
        }
        self.collect();
    }
}
