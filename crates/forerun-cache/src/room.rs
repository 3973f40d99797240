//! Making room: what a writer waits for, and what is done ahead so that it need not.

use crate::budget::Purpose;
use crate::cache::Cache;
use crate::evict::Evictor;
use crate::index::Unsplit;
use crate::limbo::Remains;
use crate::options::WhenFull;
use crate::stats::Count;
use crate::sync::unpoisoned;
use std::sync::TryLockError;
use std::time::Duration;

/// What a writer lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A block for small items.
    Block,
    /// So many bytes for something else.
    Bytes(usize),
}

/// Bytes of a block that a writer goes through at most after its own work, so that no store takes long.
const QUANTUM_BYTES: usize = 16 << 10;

/// How often a writer looks again whether readers are done, before it gives up: first at once, then after a while.
const LOOKS: u32 = 400;
const LOOKS_AT_ONCE: u32 = 64;
const PAUSE: Duration = Duration::from_micros(100);

impl Cache {
    /// Makes room for what a writer lacks. The caller has no pin. `false`: there is none to be had.
    pub(crate) fn make_room(&self, need: Need) -> bool {
        let mut looks = 0;
        // Each item is passed over at most as often as it is counted to have been asked for.
        for _ in 0..64 * (self.blocks.in_use_len() + 1) {
            self.collect();
            if self.has_room(need) {
                return true;
            }
            let enough_waits = self.limbo.waiting_bytes() >= self.bytes_of(need);
            if !enough_waits {
                let mut evictor = unpoisoned(self.evictor.lock());
                if self.evict(&mut evictor, self.blocks.len_bytes()) {
                    continue;
                }
            }
            if self.limbo.waiting_bytes() == 0 {
                self.collect();
                return self.has_room(need);
            }
            // Readers, perhaps one that lost its processor, are in what was removed.
            looks += 1;
            match looks {
                ..LOOKS_AT_ONCE => std::thread::yield_now(),
                LOOKS_AT_ONCE..LOOKS => std::thread::sleep(PAUSE),
                _ => return false,
            }
        }
        false
    }

    fn bytes_of(&self, need: Need) -> usize {
        match need {
            Need::Block => self.blocks.len_bytes(),
            // A part of a block is given back as a whole.
            Need::Bytes(bytes) => bytes + self.blocks.len_bytes(),
        }
    }

    fn has_room(&self, need: Need) -> bool {
        match need {
            Need::Block => self.blocks.at_hand() > 0 || self.blocks.can_charge_one(),
            Need::Bytes(bytes) => loop {
                if bytes <= self.left_bytes() {
                    break true;
                }
                if !self.blocks.release_one() {
                    break false;
                }
            },
        }
    }

    fn left_bytes(&self) -> usize {
        let used_bytes = self.budget.used_bytes();
        self.budget.limit_bytes().saturating_sub(used_bytes)
    }

    /// Frees what readers are done with.
    pub(crate) fn collect(&self) {
        self.limbo.collect(&self.epochs, &self.blocks, &self.index);
    }

    /// Does a little towards free blocks, if they get few. The caller has no pin.
    pub(crate) fn work_ahead(&self) {
        let ahead_bytes = self.blocks_ahead * self.blocks.len_bytes();
        let at_hand_bytes = self.blocks.at_hand() * self.blocks.len_bytes();
        if at_hand_bytes >= ahead_bytes || at_hand_bytes + self.left_bytes() >= ahead_bytes {
            return;
        }
        if at_hand_bytes + self.limbo.waiting_bytes() < ahead_bytes {
            match self.evictor.try_lock() {
                Ok(mut evictor) => self.work(&mut evictor),
                Err(TryLockError::Poisoned(poisoned)) => self.work(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.collect();
    }

    fn work(&self, evictor: &mut Evictor) {
        self.evict(evictor, QUANTUM_BYTES);
    }

    /// Splits the segment of a hash, which had no room for it and was `depth` deep, or else evicts an item that is in the
    /// way. The caller has no pin. `false`: nothing may be evicted.
    pub(crate) fn grow_index(&self, hash: u64, depth: u32) -> bool {
        // Two segments, and the directory twice as long.
        let bytes = self.budget.used_for(Purpose::Index) / 64 + (64 << 10);
        for is_last in [false, true] {
            let pinned = self.epochs.pin();
            let retire = |replaced| {
                let remains = Remains::Index(replaced);
                self.limbo
                    .push(&self.epochs, remains, self.blocks.len_bytes());
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
                Err(Unsplit::Crowded) if self.index.depth(&pinned, hash) > depth => return true,
                Err(Unsplit::NoMemory) if !is_last => {
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
