//! A slot: what is left of a key's hash, the link to the next entry of its ring, and the value.
//!
//! ```text
//!   63                             12    11     10          0
//!   | rest: the low bits of the hash | head | link, signed    |  value |      u64 keys; a cell of 32 bits keeps 20 of the hash
//!
//!   0: an empty slot.   head: the slot is the home of its own entry.   link: slots to the next entry of the ring
//! ```
//!
//! A ring of one entry links to itself, so its link is 0. Only a head can: an entry in the home of
//! other keys has at least its head beside it. So no cell of an entry is 0.

use super::super::Word;
use super::super::slab::Zeroed;

pub(super) const LINK_BITS: i32 = 11;
/// The bits below the rest of the hash: the link and the head's mark.
pub(super) const REST_SHIFT: i32 = 12;
/// The sign of a link.
pub(super) const LINK_SIGN: u64 = 1 << (LINK_BITS - 1);
const LINK: u64 = (1 << LINK_BITS) - 1;
const HEAD: u64 = 1 << LINK_BITS;

/// How far an entry may be from its home, in slots. Two of a ring are then less than twice as far
/// from each other, which a link can express.
pub(super) const REACH: u32 = (LINK_SIGN as u32 - 1) / 2;

/// The fewest slots from which a position implies the 12 bits of a hash that a cell lacks.
pub(super) const SLOTS_MIN: usize = 1 << REST_SHIFT;

/// A cell, in 64 bits whatever its width in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell(u64);

impl Cell {
    /// The entry of a hash, in its home or elsewhere, linked to itself.
    pub(super) fn new(rest: Rest, is_head: bool) -> Cell {
        Cell(rest.0 << REST_SHIFT | if is_head { HEAD } else { 0 })
    }

    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(super) fn is_head(self) -> bool {
        self.0 & HEAD != 0
    }

    /// What is left of the hash.
    #[inline(always)]
    pub(super) fn rest(self) -> Rest {
        Rest(self.0 >> REST_SHIFT)
    }

    /// The slot that follows in the ring of the entry in slot `at`.
    #[inline(always)]
    pub(super) fn next(self, at: u32) -> u32 {
        // Sign extension of the link.
        let link = ((self.0 & LINK) ^ LINK_SIGN).wrapping_sub(LINK_SIGN);
        at.wrapping_add(link as u32)
    }

    /// The cell in slot `at`, linked to another slot.
    pub(super) fn linked(self, at: u32, to: u32) -> Cell {
        debug_assert!(at.abs_diff(to) <= 2 * REACH);
        Cell(self.0 & !LINK | u64::from(to.wrapping_sub(at)) & LINK)
    }
}

/// The bits of a hash that the home does not imply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest(u64);

impl Rest {
    /// The rest of a hash that fills a word of type `C`.
    #[inline(always)]
    pub(super) fn of<C: Word>(hash: C) -> Rest {
        let unused = 64 - 8 * C::BYTES as i32 + REST_SHIFT;
        Rest(hash.to_u64() << unused >> unused)
    }
}

/// A cell of type `C` and its value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Slot<C, V> {
    cell: C,
    pub(super) value: V,
}

// SAFETY: words are numbers, for which zeroed bytes are zero; they are aligned to at most 8 bytes.
unsafe impl<C: Word, V: Word> Zeroed for Slot<C, V> {}

impl<C: Word, V: Word> Slot<C, V> {
    #[inline(always)]
    pub(super) fn cell(&self) -> Cell {
        Cell(self.cell.to_u64())
    }

    pub(super) fn set_cell(&mut self, cell: Cell) {
        self.cell = C::from_u64(cell.0);
    }

    pub(super) fn clear(&mut self) {
        self.cell = C::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_reaches_every_slot_of_a_ring_and_leaves_the_rest_and_the_mark() {
        let rest = Rest::of(u64::MAX - 5);
        for is_head in [false, true] {
            for to in 5000 - 2 * REACH..=5000 + 2 * REACH {
                let cell = Cell::new(rest, is_head).linked(5000, to);
                assert_eq!((cell.next(5000), cell.rest()), (to, rest));
                assert_eq!(cell.is_head(), is_head);
                assert_eq!(cell.linked(5000, 5000), Cell::new(rest, is_head));
            }
        }
        assert!(Cell::new(Rest::of(0u32), false).is_empty());
        assert!(!Cell::new(Rest::of(0u32), true).is_empty());
    }

    #[test]
    fn hashes_with_one_home_have_different_rests() {
        use super::super::super::hasher::scale;
        for len in [SLOTS_MIN as u32, 4097, 1 << 20] {
            for home in [0, 1, len / 3, len - 1] {
                // The hashes of a home are a range, whose ends are the closest to each other.
                let least = (u64::from(home) << 32).div_ceil(u64::from(len)) as u32;
                let count = (1u64 << 32).div_ceil(u64::from(len)) as u32 - 1;
                assert_eq!(scale(least, len), home);
                assert_eq!(scale(least.wrapping_add(count - 1), len), home);
                let last = least.wrapping_add(count - 1);
                assert!(count < 1 << 20 && Rest::of(least) != Rest::of(last));
            }
        }
    }
}
