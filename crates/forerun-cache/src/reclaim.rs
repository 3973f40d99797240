//! Reclaims memory while a writer waits for it, and ahead of writers, so that they need not wait.

use crate::blocks::victim::Evacuation;
use crate::budget::Purpose;
use crate::cache::Cache;
use crate::index::SplitError;
use crate::limbo::Garbage;
use crate::options::WhenFull;
use crate::stats::Count;
use crate::sync::unpoisoned;
use std::time::Duration;

use forerun_core::sync::{MutexGuard, TryLockError, thread, time};

/// The memory that a writer lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// A block for small items.
    Block,
    /// This many bytes in any block, for an item that replaces one that is no shorter.
    Replacement(usize),
    /// This many bytes for something else.
    Bytes(usize),
    /// Pages for a value of this many bytes.
    Large(usize),
}

/// Number of bytes of blocks that a writer processes per byte that it has written: one block is
/// emptied while an eighth of another is filled. A larger factor would finish sooner, but delay the
/// writers that come in the meantime.
const WORK_FACTOR: usize = 8;
/// Bounds of one step: enough for a batch of items, and few enough that no store takes long.
const QUANTUM_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=16 << 10;

/// One byte in this many of the limit is prefaulted ahead of writers, up to a maximum. A large
/// cache that fills slowly would have no use for more, and its memory per item would be higher.
const PREFAULT_SHARE: usize = 32;
const PREFAULT_BYTES_MAX: usize = 16 << 20;

/// The number of blocks that a replacement compacts before it gives up.
const COMPACTIONS_MAX: usize = 64;

/// How long a writer waits for other threads' readers before it gives up, and how often it checks
/// before it sleeps between checks. A guard lives for microseconds, but the thread that holds it
/// may be descheduled for much longer.
const WAIT_MAX: Duration = Duration::from_secs(1);
const SPINS_MAX: u32 = 64;
const PAUSE: Duration = Duration::from_micros(100);

impl Cache {
    /// Frees the memory that a writer lacks. `false`: there is nothing to reclaim, or the calling
    /// thread holds a guard. Everything removed from now on would wait for that guard, so in that
    /// case this neither evicts nor waits. The item of the key that is being `edited` is evicted
    /// only when the eviction of others does not suffice.
    pub(crate) fn reclaim(&self, need: Shortage, edited: Option<(u64, &[u8])>) -> bool {
        let held = self.epochs.held_by_this_thread();
        let mut checks = 0;
        let mut waiting_since = None;
        let steps_max = match need {
            Shortage::Replacement(_) => COMPACTIONS_MAX,
            // Each item survives at most as many rounds as its frequency.
            _ => 64 * (self.budget.used_bytes() / self.blocks.len_bytes() + 1),
        };
        let mut steps_left = steps_max;
        loop {
            self.collect();
            if self.is_available(need) {
                return true;
            }
            let is_in_blocks = matches!(need, Shortage::Block | Shortage::Replacement(_));
            if !is_in_blocks && self.blocks.has_unreleasable() {
                // The system takes no memory back, so emptying blocks would not help.
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
                if steps_left == steps_max {
                    self.epochs.pin().counters().add(Count::DirectReclaims, 1);
                }
                // At each step, because the policy lowers the frequency of what it moves.
                if let Some((hash, key)) = edited.filter(|_| steps_left > steps_max / 2) {
                    self.raise_frequency(hash, key);
                }
                steps_left -= 1;
                let mut current = unpoisoned(self.evacuation.lock());
                let quantum_bytes = self.blocks.len_bytes();
                let is_some_emptied = match need {
                    Shortage::Replacement(_) => self.compact(&mut current, quantum_bytes),
                    _ => self.evict(&mut current, quantum_bytes),
                };
                if is_some_emptied {
                    continue;
                }
            }
            if self.limbo.waiting_bytes() == 0 {
                self.collect();
                return self.is_available(need);
            }
            // Readers still hold the removed memory. One of them may be descheduled.
            checks += 1;
            if checks < SPINS_MAX {
                thread::yield_now();
            } else if time::elapsed(*waiting_since.get_or_insert_with(time::now)) < WAIT_MAX {
                thread::sleep(PAUSE);
            } else {
                return false;
            }
        }
    }

    /// Makes an item look as if it was read often, to the eviction policy.
    fn raise_frequency(&self, hash: u64, key: &[u8]) {
        let pinned = self.epochs.pin();
        if let Some((_, record)) = self.find(&pinned, hash, key) {
            record.set_frequency_max();
        }
    }

    fn bytes_of(&self, need: Shortage) -> usize {
        match need {
            Shortage::Block | Shortage::Replacement(_) => self.blocks.len_bytes(),
            // Blocks are returned to the system as a whole.
            Shortage::Bytes(bytes) => bytes + self.blocks.len_bytes(),
            Shortage::Large(len_bytes) => {
                self.runs.charge_bytes(len_bytes) + self.blocks.len_bytes()
            }
        }
    }

    fn is_available(&self, need: Shortage) -> bool {
        let fits = || match need {
            Shortage::Block => self.blocks.available() > 0 || self.blocks.can_charge_one(),
            Shortage::Replacement(bytes) => self.blocks.has_room_for_replacement(bytes),
            Shortage::Bytes(bytes) => bytes <= self.budget.left_bytes(),
            Shortage::Large(len_bytes) => self.runs.fits(len_bytes),
        };
        loop {
            if fits() {
                break true;
            }
            let is_in_blocks = matches!(need, Shortage::Block | Shortage::Replacement(_));
            if is_in_blocks || !(self.blocks.release_one() || self.runs.release_retained()) {
                break false;
            }
        }
    }

    /// Takes memory from the system before a writer needs it: one block (at most 1 MiB) per call,
    /// until a 32nd of the limit is ready. `false`: there is nothing to do now. The caller pays for
    /// the first touch of the pages instead of a store, so call this regularly from a background
    /// thread.
    pub fn prefault(&self) -> bool {
        if self.is_forked() {
            return false;
        }
        let ahead_bytes = (self.budget.limit_bytes() / PREFAULT_SHARE).min(PREFAULT_BYTES_MAX);
        self.blocks
            .prefault_one(ahead_bytes / self.blocks.len_bytes())
    }

    /// Empties a part of a block if free blocks run low. Called by a writer after it has written
    /// `written_bytes`, without a pin.
    #[inline(always)]
    pub(crate) fn reclaim_ahead(&self, written_bytes: usize) {
        let ahead_bytes = self.blocks_ahead * self.blocks.len_bytes();
        let available_bytes = self.blocks.available() * self.blocks.len_bytes();
        if available_bytes >= ahead_bytes
            || available_bytes + self.budget.left_bytes() >= ahead_bytes
        {
            return;
        }
        self.reclaim_until(ahead_bytes, available_bytes, written_bytes);
    }

    fn reclaim_until(&self, ahead_bytes: usize, available_bytes: usize, written_bytes: usize) {
        if available_bytes + self.limbo.waiting_bytes() < ahead_bytes {
            let quantum_bytes =
                (WORK_FACTOR * written_bytes).clamp(*QUANTUM_BYTES.start(), *QUANTUM_BYTES.end());
            if let Some(mut current) = self.try_lock_evacuation() {
                self.evict(&mut current, quantum_bytes);
            }
        }
        self.collect();
    }

    /// Finishes the evacuation of the block that is being emptied. None begins until the result is
    /// dropped.
    pub(crate) fn finish_evacuation(&self) -> MutexGuard<'_, Option<Evacuation>> {
        let mut current = unpoisoned(self.evacuation.lock());
        while current.is_some() && self.evict(&mut current, usize::MAX) {}
        current
    }

    /// The block that is being emptied, unless another thread is emptying it.
    pub(crate) fn try_lock_evacuation(&self) -> Option<MutexGuard<'_, Option<Evacuation>>> {
        match self.evacuation.try_lock() {
            Ok(current) => Some(current),
            // An evacuation is whole after each item, so a panic leaves nothing half done.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Splits the segment of a hash, which was full and `depth` deep, or else evicts an item from
    /// the hash's bucket. The caller is not pinned. `false`: nothing may be evicted.
    pub(crate) fn grow_index(&self, hash: u64, depth: u32) -> bool {
        // Two segments, and a directory of twice the length.
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
                // Another thread has split the segment, so there is space, and nothing has to be
                // evicted.
                Err(SplitError::Crowded) if self.index.depth(&pinned, hash) > depth => return true,
                Err(SplitError::NoMemory) if !is_last => {
                    drop(pinned);
                    if self.reclaim(Shortage::Bytes(bytes), None) {
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
