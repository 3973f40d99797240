//! The tags of a group. A tag is a short piece of a key's hash, or a mark.
//!
//! ```text
//!   0: never used      1: used and removed      2 …: the low bits of the hash's second word, moved out of the marks' way
//! ```
//!
//! Slots are filled from the front and stay packed until the last one has been used. The buckets of
//! [`cuckoo`](super::super::cuckoo) do the same with whole keys.

use super::super::slab::Zeroed;
use forerun_core::arch::Simd;
use std::fmt::Debug;

/// Slots in a group.
pub(super) const GROUP: usize = 16;

/// The type of a tag: one byte or two.
pub trait Tag: Copy + Eq + Debug + Send + Sync + 'static {
    /// A slot that was never used.
    #[doc(hidden)]
    const EMPTY: Self;
    /// A slot whose entry was removed while its group was full.
    #[doc(hidden)]
    const TOMBSTONE: Self;

    /// The tag for a hash's second word.
    #[doc(hidden)]
    fn of(step: u32) -> Self;

    /// Which slots have this tag.
    #[doc(hidden)]
    fn eq_group<S: Simd>(simd: S, tags: &[Self; GROUP], tag: Self) -> u32;
}

impl Tag for u8 {
    const EMPTY: u8 = 0;
    const TOMBSTONE: u8 = 1;

    #[inline(always)]
    fn of(step: u32) -> u8 {
        let tag = step as u8;
        if tag < 2 { tag + 2 } else { tag }
    }

    #[inline(always)]
    fn eq_group<S: Simd>(simd: S, tags: &[u8; GROUP], tag: u8) -> u32 {
        simd.eq_u8(tags, tag)
    }
}

impl Tag for u16 {
    const EMPTY: u16 = 0;
    const TOMBSTONE: u16 = 1;

    #[inline(always)]
    fn of(step: u32) -> u16 {
        let tag = step as u16;
        if tag < 2 { tag + 2 } else { tag }
    }

    #[inline(always)]
    fn eq_group<S: Simd>(simd: S, tags: &[u16; GROUP], tag: u16) -> u32 {
        simd.eq_u16(tags, tag)
    }
}

/// The tags of a group's slots.
#[derive(Debug)]
pub(super) struct Tags<T>(pub(super) [T; GROUP]);

// SAFETY: tags are numbers, for which zeroed bytes are zero; they are aligned to at most 2 bytes.
unsafe impl<T: Tag> Zeroed for Tags<T> {}

impl<T: Tag> Tags<T> {
    /// Whether every slot holds an entry or a tombstone. Only then may keys of this group be in the
    /// next one.
    #[inline(always)]
    pub(super) fn was_full(&self) -> bool {
        self.0[GROUP - 1] != T::EMPTY
    }

    /// A slot that can take an entry.
    pub(super) fn vacancy(&self) -> Option<usize> {
        let free = |&tag: &T| tag == T::EMPTY || tag == T::TOMBSTONE;
        self.0.iter().position(free)
    }

    /// The last slot that was ever used, in a group that was not full.
    pub(super) fn last_used(&self) -> Option<usize> {
        self.0.iter().rposition(|&tag| tag != T::EMPTY)
    }
}
