//! One cache line of the hash index: a bucket, or the overflow of one.
//!
//! ```text
//!   byte  0           4      6          24                                   64
//!         │ control   │ tag 0 │ … tag 9 │ entry 0  │ entry 1  │ … │ entry 9  │
//!
//!   control   locked (1 bit) │ incomplete (1) │ line that overflows this one (30); 0: none
//!   tag       16 bits of the key's hash; 0: the slot is free
//!   entry     where the node is, and bits of the key's hash: see hash_addressing.rs
//! ```
//!
//! Control and tags are three words of 64 bits, so that one load shows a lock together with two
//! tags, and three loads show all tags.
//!
//! Writers hold the lock of the bucket, which also covers its overflow lines. Readers take no lock:
//! a tag is set after its entry, and a reader that follows an entry compares the key.

use forerun_core::arch::prefetch_read;
use forerun_core::sync::modelled::atomic::{AtomicU32, AtomicU64, Ordering};
use forerun_core::sync::modelled::{hint, thread};

/// Entries of a line.
pub(super) const SLOTS: usize = 10;

/// The least tag of an entry.
pub(super) const TAG_MIN: u16 = 2;

/// The slots whose tags the first word holds, beside the control; each other word holds four.
const FIRST_SLOTS: usize = 2;

const LOCKED: u64 = 1;
const INCOMPLETE: u64 = 2;
const OVERFLOW_SHIFT: u32 = 2;
const OVERFLOW_MASK: u64 = (1 << 30) - 1;

/// A lock is spun on this many times before the thread yields its CPU.
const SPINS: u32 = 64;

/// A line.
#[repr(C)]
#[cfg_attr(not(loom), repr(align(64)))]
pub(super) struct Line {
    words: [AtomicU64; 3],
    entries: [AtomicU32; SLOTS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

/// A set of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots(u32);

impl Slots {
    pub(super) fn one(slot: usize) -> Slots {
        Slots(1 << slot)
    }

    #[inline(always)]
    pub(super) fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }
}

impl Iterator for Slots {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.0 &= self.0 - 1;
        Some(first)
    }
}

/// The tags and control of a line, as they were read.
#[derive(Clone, Copy)]
pub(super) struct Tags([u64; 3]);

impl Tags {
    /// The slots that may hold this tag: all that do, and at times one whose tag differs in its
    /// lowest bit. It is never a free slot, for a tag in use is at least [`TAG_MIN`].
    #[inline(always)]
    pub(super) fn matching(self, tag: u16) -> Slots {
        let wanted = u64::from(tag) * LANES;
        let [first, second, third] = self.0.map(|word| zero_lanes(word ^ wanted));
        Slots((first >> 2 | second << FIRST_SLOTS | third << (FIRST_SLOTS + 4)) as u32)
    }

    /// The slots in use.
    #[inline(always)]
    pub(super) fn used(self) -> Slots {
        Slots(self.free().0 ^ ((1 << SLOTS) - 1))
    }

    /// A free slot.
    #[inline(always)]
    pub(super) fn free_slot(self) -> Option<usize> {
        self.free().first()
    }

    /// The free slots. This is exact, since no tag is 1.
    #[inline(always)]
    fn free(self) -> Slots {
        self.matching(0)
    }

    pub(super) fn tag(self, slot: usize) -> u16 {
        let (word, shift) = place(slot);
        (self.0[word] >> shift) as u16
    }

    /// The line that overflows this one, or 0.
    #[inline(always)]
    pub(super) fn overflow(self) -> u32 {
        (self.0[0] >> OVERFLOW_SHIFT & OVERFLOW_MASK) as u32
    }

    /// Whether a writer had the bucket; meaningful for its first line only.
    #[inline(always)]
    pub(super) fn is_locked(self) -> bool {
        self.0[0] & LOCKED != 0
    }

    /// Whether the bucket lacks entries for which there was no memory.
    #[inline(always)]
    pub(super) fn is_incomplete(self) -> bool {
        self.0[0] & INCOMPLETE != 0
    }
}

/// A one in each lane of 16 bits.
const LANES: u64 = 0x0001_0001_0001_0001;

/// Bit `i` is set where lane `i` is zero, and may be set where a lane above a zero lane is one.
#[inline(always)]
fn zero_lanes(word: u64) -> u64 {
    let high_bits = word.wrapping_sub(LANES) & !word & (LANES << 15);
    // Gathers the bits 15, 31, 47 and 63: the factor moves each to its place from bit 48 on.
    const GATHER: u64 = 1 << 48 | 1 << 33 | 1 << 18 | 1 << 3;
    (high_bits >> 15).wrapping_mul(GATHER) >> 48 & 0xf
}

/// The word and the bit at which a slot's tag starts.
#[inline(always)]
fn place(slot: usize) -> (usize, u32) {
    let lane = slot + FIRST_SLOTS;
    (lane / 4, (lane % 4 * 16) as u32)
}

impl Line {
    pub(super) fn new() -> Line {
        Line {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            entries: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch_read(std::ptr::from_ref(self));
    }

    #[inline(always)]
    pub(super) fn tags(&self) -> Tags {
        // Acquire: pairs with the releases below. Whoever sees a tag sees its entry and the node;
        // whoever sees that an entry was moved away sees the bucket to which it was moved.
        Tags([
            self.words[0].load(Ordering::Acquire),
            self.words[1].load(Ordering::Acquire),
            self.words[2].load(Ordering::Acquire),
        ])
    }

    #[inline(always)]
    pub(super) fn entry(&self, slot: usize) -> u32 {
        // Acquire: pairs with the release in `replace`, so that the newer node is visible.
        self.entries[slot].load(Ordering::Acquire)
    }

    /// Locks the bucket for a writer. This line must be a bucket's first.
    pub(super) fn lock(&self) {
        let mut spins = 0;
        loop {
            // Relaxed: the exchange confirms it.
            let word = self.words[0].load(Ordering::Relaxed) & !LOCKED;
            // Acquire: the writer sees what the one before it did. Relaxed on failure: it tries
            // again.
            let locked = self.words[0].compare_exchange_weak(
                word,
                word | LOCKED,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if locked.is_ok() {
                return;
            }
            spins += 1;
            if spins < SPINS {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Unlocks it.
    pub(super) fn unlock(&self) {
        self.change(0, |word| word & !LOCKED);
    }

    /// Changes a word. The caller holds the lock, so that nobody else does.
    #[inline(always)]
    fn change(&self, word: usize, changed: impl FnOnce(u64) -> u64) {
        // Relaxed: the lock's holder sees the latest.
        let before = self.words[word].load(Ordering::Relaxed);
        // Release: publishes everything before it, as `tags` needs it.
        self.words[word].store(changed(before), Ordering::Release);
    }

    /// Puts an entry into a free slot, if there is one. The caller holds the lock.
    #[inline(always)]
    pub(super) fn add(&self, tag: u16, entry: u32) -> bool {
        let slot = self.tags().free_slot();
        if let Some(slot) = slot {
            self.fill(slot, tag, entry);
        }
        slot.is_some()
    }

    /// Puts an entry into a slot that is free. The caller holds the lock.
    #[inline(always)]
    pub(super) fn fill(&self, slot: usize, tag: u16, entry: u32) {
        // Release: a reader may have seen an earlier tag of this slot, and follow this entry.
        self.entries[slot].store(entry, Ordering::Release);
        let (word, shift) = place(slot);
        self.change(word, |word| word | u64::from(tag) << shift);
    }

    /// Replaces the node of an entry by a newer one of the same key, or the bits of its
    /// hash. The caller holds the lock.
    pub(super) fn replace(&self, slot: usize, entry: u32) {
        // Release: publishes the node.
        self.entries[slot].store(entry, Ordering::Release);
    }

    /// The slots in use whose entries have this bit.
    #[inline(always)]
    pub(super) fn used_with_bit(&self, bit: u32) -> Slots {
        let mut with_bit = 0;
        for (slot, entry) in self.entries.iter().enumerate() {
            // Relaxed: the bit does not change while the caller holds the lock.
            with_bit |= (entry.load(Ordering::Relaxed) >> bit & 1) << slot;
        }
        Slots(with_bit & self.tags().used().0)
    }

    /// Frees slots whose entries were moved to another bucket. The caller holds the lock.
    #[inline(always)]
    pub(super) fn remove(&self, slots: Slots) {
        let mut kept = [u64::MAX; 3];
        for slot in slots {
            let (word, shift) = place(slot);
            kept[word] &= !(0xffff << shift);
        }
        for (word, kept) in kept.into_iter().enumerate() {
            if kept != u64::MAX {
                self.change(word, |word| word & kept);
            }
        }
    }

    /// Makes `line` follow this one, or none if it is 0. The caller holds the lock.
    pub(super) fn set_overflow(&self, line: u32) {
        debug_assert!(u64::from(line) <= OVERFLOW_MASK);
        let kept = !(OVERFLOW_MASK << OVERFLOW_SHIFT);
        self.change(0, |word| word & kept | u64::from(line) << OVERFLOW_SHIFT);
    }

    /// Empties a line that is in no bucket.
    pub(super) fn clear(&self) {
        for word in 0..self.words.len() {
            self.change(word, |_| 0);
        }
    }

    /// Notes that the bucket lacks an entry. The caller holds the lock; this line is the bucket's
    /// first.
    pub(super) fn set_incomplete(&self) {
        self.change(0, |word| word | INCOMPLETE);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_line_holds_what_was_added_and_not_removed(
            tags in prop::collection::vec(TAG_MIN.., 0..14),
            removed in prop::collection::vec(any::<bool>(), SLOTS),
            overflow in 0_u32..1 << 30,
        ) {
            let line = Line::new();
            line.lock();
            let mut held = Vec::new();
            for (i, &tag) in tags.iter().enumerate() {
                let fits = line.add(tag, i as u32);
                prop_assert_eq!(fits, i < SLOTS);
                if fits {
                    held.push(Some((tag, i as u32)));
                }
            }
            line.set_overflow(overflow);
            line.unlock();
            let mut freed = 0;
            for (slot, held) in held.iter_mut().enumerate() {
                if removed[slot] {
                    freed |= 1 << slot;
                    *held = None;
                }
            }
            line.remove(Slots(freed));
            for bit in 0..4 {
                let has_bit =
                    |slot: &usize| held[*slot].is_some_and(|(_, entry)| entry >> bit & 1 == 1);
                let expected: Vec<_> = (0..held.len()).filter(has_bit).collect();
                prop_assert_eq!(line.used_with_bit(bit).collect::<Vec<_>>(), expected);
            }
            let seen = line.tags();
            prop_assert_eq!(seen.overflow(), overflow);
            prop_assert!(!seen.is_incomplete());
            for (slot, held) in held.iter().enumerate() {
                let tag = held.map_or(0, |(tag, _)| tag);
                prop_assert_eq!(seen.tag(slot), tag);
                if let Some((tag, offset)) = held {
                    prop_assert_eq!(line.entry(slot), *offset);
                    prop_assert!(seen.matching(*tag).any(|found| found == slot));
                }
            }
            let used: Vec<_> = (0..held.len()).filter(|&slot| held[slot].is_some()).collect();
            prop_assert_eq!(seen.used().collect::<Vec<_>>(), used);
            // A tag that nothing resembles matches nothing.
            let absent = (TAG_MIN..).find(|tag| tags.iter().all(|held| held >> 1 != tag >> 1));
            prop_assert_eq!(absent.and_then(|tag| seen.matching(tag).first()), None);
        }
    }

    #[test]
    fn an_incomplete_bucket_stays_so() {
        let line = Line::new();
        line.lock();
        line.set_incomplete();
        assert!(line.add(7, 1));
        line.unlock();
        assert!(line.tags().is_incomplete());
        line.lock();
    }
}
