//! Tagged groups: one comparison of sixteen short tags selects the entries to read, group after
//! group.
//!
//! ```text
//!   tags      │ t0 t1 … t15 │ t16 … t31 │ …      16 or 32 bytes per group, apart from the entries
//!   entries   │ k0 v0 │ k1 v1 │ … │ k15 v15 │ k16 v16 │ …
//!
//!   key ─ hash ─┬─ first ─▶ group g, then g + 1, … while the group was ever full
//!               └─ step ──▶ tag
//! ```
//!
//! The design follows Swiss tables (Kulukundis, "Designing a Fast, Efficient, Cache-friendly Hash
//! Table, Step by Step", CppCon 2017), with groups at fixed positions and linear probing over them.
//! Tags are stored apart from entries. One line holds the tags of four groups, so the tags of
//! tables of a few hundred MiB stay in the last-level cache, and a missing key costs one line of
//! tags. A found key costs two dependent lines. Tags in the same line as their entries would need
//! either lines of three entries (`u64` to `u64`) or, for most entries, a second line anyway.
//!
//! A lookup visits at most [`GROUPS_MAX`] groups. An insertion that would need a later group is
//! refused.

mod probe;
mod tags;

use super::hasher::{Constants, scale};
use super::lookup::{self, Batch};
use super::slab::{Slab, Zeroed};
use super::{BuildError, FixedTable, Full, Lookup, Word};
use forerun_core::arch::Isa;
use tags::{GROUP, Tags};

pub use tags::Tag;

/// Groups that a key may be in.
pub const GROUPS_MAX: u32 = 64;

/// A key and its value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Entry<K, V> {
    key: K,
    value: V,
}

// SAFETY: words are numbers, for which zeroed bytes are zero; they are aligned to at most 8 bytes.
unsafe impl<K: Word, V: Word> Zeroed for Entry<K, V> {}

/// A table whose groups have tags of type `T`.
#[derive(Debug)]
pub struct Tagged<K, V, T> {
    tags: Slab<Tags<T>>,
    entries: Slab<Entry<K, V>>,
    constants: Constants,
    len: usize,
    isa: Isa,
}

/// A slot of a group.
#[derive(Clone, Copy)]
struct Slot {
    group: u32,
    slot: usize,
}

impl Slot {
    /// The entry's index.
    #[inline(always)]
    fn entry(self) -> u32 {
        self.group * GROUP as u32 + self.slot as u32
    }
}

impl<K: Word, V: Word, T: Tag> Tagged<K, V, T> {
    /// Creates a table with at least `slots` slots.
    ///
    /// # Errors
    /// Too many slots to address; the memory could not be allocated.
    pub fn new(slots: usize, isa: Isa, seed: u64) -> Result<Self, BuildError> {
        let groups = BuildError::check_slots::<K>(slots)?.div_ceil(GROUP).max(1) as u32;
        Ok(Tagged {
            tags: Slab::new(groups)?,
            entries: Slab::new(groups * GROUP as u32)?,
            constants: Constants::from_seed(seed),
            len: 0,
            isa,
        })
    }

    /// The group after this one.
    #[inline(always)]
    fn after(&self, group: u32) -> u32 {
        if group + 1 < self.tags.len() {
            group + 1
        } else {
            0
        }
    }

    /// The groups that a key may be in, in order and without repetition.
    fn groups(&self, first: u32) -> impl Iterator<Item = u32> + use<K, V, T> {
        let len = self.tags.len();
        let start = scale(first, len);
        (0..GROUPS_MAX.min(len)).map(move |turn| (start + turn) % len)
    }

    /// The position of a key, and the cache lines that were read to find it: of tags and of
    /// entries.
    fn search(&self, key: K) -> (Option<Slot>, u32) {
        let hash = key.hash(&self.constants);
        let tag = T::of(hash.step);
        let mut lines = 0;
        for group in self.groups(hash.first) {
            lines += 1;
            let tags = self.tags.get(group);
            for slot in (0..GROUP).filter(|&slot| tags.0[slot] == tag) {
                lines += 1;
                let at = Slot { group, slot };
                if self.entries.get(at.entry()).key == key {
                    return (Some(at), lines);
                }
            }
            if !tags.was_full() {
                break;
            }
        }
        (None, lines)
    }
}

impl<K: Word, V: Word, T: Tag> FixedTable<K, V> for Tagged<K, V, T> {
    fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full> {
        if let (Some(at), _) = self.search(key) {
            let old = &mut self.entries.get_mut(at.entry()).value;
            return Ok(Some(std::mem::replace(old, value)));
        }
        let hash = key.hash(&self.constants);
        for group in self.groups(hash.first) {
            if let Some(slot) = self.tags.get(group).vacancy() {
                self.tags.get_mut(group).0[slot] = T::of(hash.step);
                *self.entries.get_mut(Slot { group, slot }.entry()) = Entry { key, value };
                self.len += 1;
                return Ok(None);
            }
        }
        Err(Full {
            entries: self.len,
            slots: self.slots(),
        })
    }

    fn remove(&mut self, key: K) -> Option<V> {
        let at = self.search(key).0?;
        let value = self.entries.get(at.entry()).value;
        let tags = self.tags.get(at.group);
        match tags.last_used() {
            Some(last) if !tags.was_full() => {
                let (moved, tag) = (Slot { slot: last, ..at }, tags.0[last]);
                *self.entries.get_mut(at.entry()) = *self.entries.get(moved.entry());
                let tags = self.tags.get_mut(at.group);
                tags.0[at.slot] = tag;
                tags.0[last] = T::EMPTY;
            }
            _ => self.tags.get_mut(at.group).0[at.slot] = T::TOMBSTONE,
        }
        self.len -= 1;
        Some(value)
    }

    fn get(&self, key: K) -> Option<V> {
        lookup::get(self.isa, self, key)
    }

    fn find(&self, keys: &[K], values: &mut [V], found: &mut [bool], lookup: Lookup) -> usize {
        let lookup = lookup.resolve(self.memory_bytes(), keys.len());
        lookup::find(self.isa, self, Batch::new(keys, values, found), lookup)
    }

    fn set_isa(&mut self, isa: Isa) {
        self.isa = isa;
    }

    fn len(&self) -> usize {
        self.len
    }

    fn slots(&self) -> usize {
        self.entries.len() as usize
    }

    fn memory_bytes(&self) -> usize {
        self.tags.memory_bytes() + self.entries.memory_bytes()
    }

    fn lines_touched(&self, key: K) -> u32 {
        self.search(key).1
    }

    fn prefetch(&self, key: K) {
        let first = key.hash(&self.constants).first;
        self.tags.prefetch(scale(first, self.tags.len()));
    }
}
