//! The word of an item that changes after publication.
//!
//! ```text
//!   63..47      46..45   44..42   41..32   31..0
//! | value len | kind   | marks  | ms     | second |
//! ```
//!
//! `second` and `ms` are the item's deadline. One load reads both and one read-modify-write changes
//! both, so no reader combines the second of one deadline with the milliseconds of another, which
//! could end an item before either. The length and the kind never change.

use crate::expiry::Deadline;
use crate::item_kind::ItemKind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MS_SHIFT: u32 = 32;
const MS_BITS: u32 = 10;
const MARKS_SHIFT: u32 = MS_SHIFT + MS_BITS;
const MARKS_BITS: u32 = 3;
const KIND_SHIFT: u32 = MARKS_SHIFT + MARKS_BITS;
const KIND_BITS: u32 = 2;
const LEN_SHIFT: u32 = KIND_SHIFT + KIND_BITS;

/// The longest value that fits the word.
pub(crate) const VALUE_LEN_MAX: usize = (1 << (u64::BITS - LEN_SHIFT)) - 1;

/// The bits of the deadline.
const DEADLINE: u64 = (1 << MARKS_SHIFT) - 1;

/// The item has been read since it was stored.
pub(crate) const FETCHED: u8 = 1;
/// The item was invalidated. Readers may use it until it is stored again.
pub(crate) const STALE: u8 = 2;
/// A reader has claimed the item in order to store it again.
pub(crate) const CLAIMED: u8 = 4;

const _: () = assert!(CLAIMED < 1 << MARKS_BITS && 1000 < 1 << MS_BITS);

/// The contents of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemWord(u64);

impl ItemWord {
    /// The value has at most [`VALUE_LEN_MAX`] bytes.
    pub(crate) fn new(deadline: Deadline, marks: u8, kind: ItemKind, value_len: usize) -> ItemWord {
        debug_assert!(value_len <= VALUE_LEN_MAX, "{value_len}");
        ItemWord(
            (value_len as u64) << LEN_SHIFT
                | u64::from(kind as u8) << KIND_SHIFT
                | u64::from(marks) << MARKS_SHIFT
                | bits(deadline),
        )
    }

    /// The second of the deadline; 0 means never.
    #[inline(always)]
    pub(crate) fn second(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(crate) fn deadline(self) -> Deadline {
        Deadline {
            second: self.second(),
            ms: (self.0 >> MS_SHIFT) as u16 & ((1 << MS_BITS) - 1),
        }
    }

    #[inline(always)]
    pub(crate) fn marks(self) -> u8 {
        (self.0 >> MARKS_SHIFT) as u8 & ((1 << MARKS_BITS) - 1)
    }

    #[inline(always)]
    pub(crate) fn has_mark(self, mark: u8) -> bool {
        self.0 & u64::from(mark) << MARKS_SHIFT != 0
    }

    /// The same without a mark.
    pub(crate) fn without_mark(self, mark: u8) -> ItemWord {
        ItemWord(self.0 & !(u64::from(mark) << MARKS_SHIFT))
    }

    pub(crate) fn kind(self) -> ItemKind {
        // Only kinds are written.
        ItemKind::from_number((self.0 >> KIND_SHIFT) as u8 & ((1 << KIND_BITS) - 1))
            .unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn value_len(self) -> usize {
        (self.0 >> LEN_SHIFT) as usize
    }
}

fn bits(deadline: Deadline) -> u64 {
    u64::from(deadline.ms) << MS_SHIFT | u64::from(deadline.second)
}

/// A word in an item. Any thread marks it; only the holder of the segment's lock changes its
/// deadline.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct SharedWord<W = AtomicU64>(W);

// Relaxed, throughout: the word stands alone, and the item as a whole was published with its slot.
// What must not come apart, the two parts of the deadline, is in one word.
impl<W: Word> SharedWord<W> {
    pub(crate) fn new(word: ItemWord) -> SharedWord<W> {
        SharedWord(W::new(word.0))
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> ItemWord {
        ItemWord(self.0.load())
    }

    /// Sets marks and returns the word before.
    #[inline(always)]
    pub(crate) fn mark(&self, marks: u8) -> ItemWord {
        ItemWord(self.0.fetch_or(u64::from(marks) << MARKS_SHIFT))
    }

    /// Changes the deadline. The caller has locked the item's segment.
    pub(crate) fn set_deadline(&self, deadline: Deadline) {
        // No other thread changes these bits, so flipping those that differ writes the new ones.
        // A store of the whole word could lose a mark.
        let old = self.0.load() & DEADLINE;
        self.0.fetch_xor(old ^ bits(deadline));
    }
}

/// An atomic word, the CPU's or loom's.
pub(crate) trait Word {
    fn new(word: u64) -> Self;
    fn load(&self) -> u64;
    fn fetch_or(&self, bits: u64) -> u64;
    fn fetch_xor(&self, bits: u64) -> u64;
}

macro_rules! implement_word {
    ($word:ty) => {
        impl Word for $word {
            fn new(word: u64) -> Self {
                <$word>::new(word)
            }

            #[inline(always)]
            fn load(&self) -> u64 {
                self.load(Relaxed)
            }

            #[inline(always)]
            fn fetch_or(&self, bits: u64) -> u64 {
                self.fetch_or(bits, Relaxed)
            }

            #[inline(always)]
            fn fetch_xor(&self, bits: u64) -> u64 {
                self.fetch_xor(bits, Relaxed)
            }
        }
    };
}

implement_word!(AtomicU64);
#[cfg(all(loom, test))]
implement_word!(loom::sync::atomic::AtomicU64);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_field_changes_another() {
        let lens = [0, 1, 77, VALUE_LEN_MAX];
        let seconds = [0, 1, u32::MAX];
        for (len, second) in lens.into_iter().flat_map(|len| seconds.map(|at| (len, at))) {
            for kind in [ItemKind::String, ItemKind::Hash] {
                for ms in [0, 1, 999, 1000] {
                    let deadline = Deadline { second, ms };
                    let word = SharedWord::<AtomicU64>::new(ItemWord::new(
                        Deadline {
                            second: 12,
                            ms: 345,
                        },
                        STALE,
                        kind,
                        len,
                    ));
                    assert!(!word.mark(FETCHED).has_mark(FETCHED));
                    word.set_deadline(deadline);
                    let is = word.load();
                    assert_eq!(is, ItemWord::new(deadline, FETCHED | STALE, kind, len));
                    assert_eq!((is.deadline(), is.second()), (deadline, second));
                    assert_eq!((is.kind(), is.value_len()), (kind, len));
                    assert_eq!(is.without_mark(FETCHED).marks(), STALE);
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use forerun_core::sync::loom_model;
    use loom::sync::Arc;
    use loom::thread;

    /// With two words, a reader could find second 10 with the milliseconds of second 20.
    #[test]
    fn a_reader_finds_a_whole_deadline_and_no_mark_is_lost() {
        let deadlines = [(10, 900), (20, 100), (10, 400)];
        let deadlines = deadlines.map(|(second, ms)| Deadline { second, ms });
        loom_model::check(3, move || {
            let word = ItemWord::new(deadlines[0], 0, ItemKind::String, 7);
            let word = Arc::new(SharedWord::<loom::sync::atomic::AtomicU64>::new(word));
            let shared = Arc::clone(&word);
            let reader = thread::spawn(move || {
                let found = shared.load().deadline();
                shared.mark(FETCHED);
                found
            });
            word.set_deadline(deadlines[1]);
            word.set_deadline(deadlines[2]);
            let found = reader.join().unwrap();
            assert!(deadlines.contains(&found), "{found:?}");
            let last = ItemWord::new(deadlines[2], FETCHED, ItemKind::String, 7);
            assert_eq!(word.load(), last);
        });
    }
}
