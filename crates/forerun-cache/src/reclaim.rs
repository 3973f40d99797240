//! Making room: what a writer waits for, and what is done ahead so that it need not.

use crate::budget::Purpose;
use crate::cache::Cache;
use crate::index::SplitError;
use crate::limbo::Garbage;
use crate::options::WhenFull;
use crate::stats::Count;
use crate::sync::unpoisoned;
use std::time::Duration;

use forerun_core::sync::{TryLockError, thread, time};

/// What a writer lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A block for small items.
    Block,
    /// So many bytes for something else.
    Bytes(usize),
    /// Pages for a value of so many bytes.
    Large(usize),
}

/// Bytes of blocks that a writer goes through for each that it has written: a block is emptied while an eighth of another one
/// fills. More at once would be over sooner, and hold up those who come meanwhile.
const WORK_FACTOR: usize = 8;
/// And at least and at most, so that there is a batch of items to look at, and no store takes long.
const QUANTUM_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=16 << 10;

/// Memory that is touched ahead of the writers: a share of the limit, and at most.
const TOUCHED_SHARE: usize = 32;
const TOUCHED_BYTES_MAX: usize = 64 << 20;

/// How long a writer waits for other threads' readers before it gives up, and how often it attempts at once before it pauses
/// between attempts. A guard lives for microseconds, but the thread that has it may lose its processor for much longer.
const WAIT_MAX: Duration = Duration::from_secs(1);
const SPINS_MAX: u32 = 64;
const PAUSE: Duration = Duration::from_micros(100);

impl Cache {
    /// Makes room for what a writer lacks. `false`: there is none to be had, or none while the calling thread itself holds a
    /// guard: what is removed from now on would wait for that guard, so this neither evicts nor waits then.
    pub(crate) fn make_room(&self, need: Need) -> bool {
        let held = self.epochs.held_by_this_thread();
        let mut attempts = 0;
        let mut waiting_since = None;
        // Each item is passed over at most as often as it is counted to have been asked for.
        let mut steps_left = 64 * (self.blocks.in_use_len() + 1);
        loop {
            self.collect();
            if self.is_available(need) {
                return true;
            }
            if need != Need::Block && self.blocks.has_unreleasable() {
                // The system takes no memory back: emptying blocks is in vain.
                return false;
            }
            if held.is_some() && self.limbo.oldest() >= held {
                return false;
            }
            let enough_waits = self.limbo.waiting_bytes() >= self.bytes_of(need);
            if !enough_waits && held.is_none() {
                if steps_left == 0 {
                    return false;
                }
                steps_left -= 1;
                let mut evictor = unpoisoned(self.evictor.lock());
                if self.evict(&mut evictor, self.blocks.len_bytes()) {
                    continue;
                }
            }
            if self.limbo.waiting_bytes() == 0 {
                self.collect();
                return self.is_available(need);
            }
            // Readers, perhaps one that lost its processor, are in what was removed.
            attempts += 1;
            if attempts < SPINS_MAX {
                thread::yield_now();
            } else if time::elapsed(*waiting_since.get_or_insert_with(time::now)) < WAIT_MAX {
                thread::sleep(PAUSE);
            } else {
                return false;
            }
        }
    }

    fn bytes_of(&self, need: Need) -> usize {
        match need {
            Need::Block => self.blocks.len_bytes(),
            // A part of a block is given back as a whole.
            Need::Bytes(bytes) => bytes + self.blocks.len_bytes(),
            Need::Large(len_bytes) => self.runs.charge_bytes(len_bytes) + self.blocks.len_bytes(),
        }
    }

    fn is_available(&self, need: Need) -> bool {
        let fits = || match need {
            Need::Block => self.blocks.available() > 0 || self.blocks.can_charge_one(),
            Need::Bytes(bytes) => bytes <= self.budget.left_bytes(),
            Need::Large(len_bytes) => self.runs.fits(len_bytes),
        };
        loop {
            if fits() {
                break true;
            }
            if need == Need::Block || !(self.blocks.release_one() || self.runs.release_retained()) {
                break false;
            }
        }
    }

    /// Takes a little of the memory that is still to be had from the system before a writer needs it, a block (1 MiB or less)
    /// a call, until a 32nd of the limit lies ready. `false`: there is nothing to do now. What a page costs when it is touched
    /// first is then paid by the caller and not by a store: call it now and then from a thread that nobody waits for.
    pub fn prefault(&self) -> bool {
        if self.is_forked() {
            return false;
        }
        let ahead_bytes = (self.budget.limit_bytes() / TOUCHED_SHARE).min(TOUCHED_BYTES_MAX);
        self.blocks
            .touch_one_ahead(ahead_bytes / self.blocks.len_bytes())
    }

    /// Frees what readers are done with.
    pub(crate) fn collect(&self) {
        self.limbo.collect(&self.epochs, &self.blocks, &self.index);
    }

    /// Does a little towards free blocks, if they get few, by a writer of so many bytes. The caller has no pin.
    pub(crate) fn reclaim_ahead(&self, written_bytes: usize) {
        let ahead_bytes = self.blocks_ahead * self.blocks.len_bytes();
        let at_hand_bytes = self.blocks.available() * self.blocks.len_bytes();
        if at_hand_bytes >= ahead_bytes || at_hand_bytes + self.budget.left_bytes() >= ahead_bytes {
            return;
        }
        if at_hand_bytes + self.limbo.waiting_bytes() < ahead_bytes {
            let quantum_bytes =
                (WORK_FACTOR * written_bytes).clamp(*QUANTUM_BYTES.start(), *QUANTUM_BYTES.end());
            let mut evictor = match self.evictor.try_lock() {
                Ok(evictor) => Some(evictor),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(evictor) = &mut evictor {
                self.evict(evictor, quantum_bytes);
            }
        }
        self.collect();
    }

    /// Splits the segment of a hash, which had no room for it and was `depth` deep, or else evicts an item that is in the
    /// way. The caller has no pin. `false`: nothing may be evicted.
    pub(crate) fn grow_index(&self, hash: u64, depth: u32) -> bool {
        // Two segments, and the directory twice as long.
        let bytes = self.budget.used_for(Purpose::Index) / 64 + (64 << 10);
        for is_last in [false, true] {
            let pinned = self.epochs.pin();
            let retire = |replaced| {
                let garbage = Garbage::Index(replaced);
                self.limbo
                    .push(&self.epochs, garbage, self.blocks.len_bytes());
            };
            let split = self.index.split(
                &pinned,
                hash,
                |item| self.blocks.prefetch(item),
                |item| self.hasher.hash(self.record(&pinned, item).key()),
                retire,
            );
            match split {
                Ok(()) => {
                    pinned.counters().add(Count::Splits, 1);
                    drop(pinned);
                    self.collect();
                    return true;
                }
                // It was split meanwhile, so that there is room: nobody has to go.
                Err(SplitError::Crowded) if self.index.depth(&pinned, hash) > depth => return true,
                Err(SplitError::NoMemory) if !is_last => {
                    drop(pinned);
                    if self.make_room(Need::Bytes(bytes)) {
                        continue;
                    }
                }
                Err(_) => drop(pinned),
            }
            break;
        }
        let may_evict = self.options().when_full == WhenFull::Evict;
        if may_evict {
            self.evict_resident(hash);
        }
        may_evict
    }
}
