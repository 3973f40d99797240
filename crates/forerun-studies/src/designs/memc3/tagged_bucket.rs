//! A bucket of four slots. Its tags and its entries are stored apart.
//!
//! ```text
//!   tags      │ t0 t1 t2 t3 │            one word of 32 bits, read at once; 0 is an empty slot
//!   entries   │ k0 k1 k2 k3 │ v0 v1 v2 v3 │    a line, of u64 to u64
//! ```
//!
//! In the paper, a slot is a tag and a pointer to an item. Entries of fixed width need no pointer,
//! which saves a dependent miss; the baseline gets this advantage. Tags keep their purpose: they
//! save reads of entries.

use super::super::Word;
#[cfg(not(loom))]
use super::super::slab::Zeroed;
use super::super::sync::{AtomicU32, AtomicWord, Ordering};

/// Slots in a bucket.
pub(super) const SLOTS: usize = 4;

/// The tags of a bucket.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct Tags(AtomicU32);

// SAFETY: an atomic number has the layout of the number, for which zeroed bytes are zero.
#[cfg(not(loom))]
unsafe impl Zeroed for Tags {}

impl Tags {
    /// All tags, as one word.
    #[inline(always)]
    pub(super) fn load(&self) -> [u8; SLOTS] {
        // Acquire: a reader reads an entry after its tag; the writer wrote it before the tag.
        self.0.load(Ordering::Acquire).to_le_bytes()
    }

    /// Sets the tag of a free slot.
    pub(super) fn set(&self, slot: usize, tag: u8) {
        let mut tags = [0; SLOTS];
        tags[slot] = tag;
        // Release: a reader that sees the tag also sees the entry, which was written before.
        self.0.fetch_or(u32::from_le_bytes(tags), Ordering::Release);
    }

    /// Frees a slot.
    pub(super) fn clear(&self, slot: usize) {
        let mut tags = [u8::MAX; SLOTS];
        tags[slot] = 0;
        // Release: a reader that sees the slot free also sees that a write of its key is in
        // progress.
        self.0
            .fetch_and(u32::from_le_bytes(tags), Ordering::Release);
    }
}

/// The entries of a bucket.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Entries<K: Word, V: Word> {
    keys: [K::Atomic; SLOTS],
    values: [V::Atomic; SLOTS],
}

// SAFETY: atomic numbers have the layout of the numbers, for which zeroed bytes are zero; they are
// aligned to at most 8 bytes.
#[cfg(not(loom))]
unsafe impl<K: Word, V: Word> Zeroed for Entries<K, V> {}

impl<K: Word, V: Word> Entries<K, V> {
    #[inline(always)]
    pub(super) fn key(&self, slot: usize) -> K {
        K::from_u64(self.keys[slot].load())
    }

    #[inline(always)]
    pub(super) fn value(&self, slot: usize) -> V {
        V::from_u64(self.values[slot].load())
    }

    pub(super) fn store(&self, slot: usize, key: K, value: V) {
        self.keys[slot].store(key.to_u64());
        self.values[slot].store(value.to_u64());
    }

    pub(super) fn store_value(&self, slot: usize, value: V) {
        self.values[slot].store(value.to_u64());
    }
}
