//! The idea of NeighborHash: chains within the table, whose links need no bytes of their own and
//! seldom leave a line.
//!
//! ```text
//!   home of a, c, d          home of b
//!   │ a* │ c  │ b* │ d  │ …                 a line; * marks the head, which is in its own home
//!     └───▶└───────▶┘
//!     ◀─────────────┘                       the ring of a's home
//! ```
//!
//! Wang, Mao, Zhang, Jiang, Deng and Ouyang, "NeighborHash: An Enhanced Batch Query Architecture
//! for Real-time Recommendation Systems" (CIKM 2024). A slot is an entry. The entries of a home are
//! linked through offsets in unused bits of their slots; new ones go into the home's line if there
//! is room, and otherwise into the nearest line, before or after it. An entry that is in the way of
//! a new head moves ("lodger relocation"), so no two homes share a chain, and a lookup ends at a
//! home that has no head of its own.
//!
//! It differs in two ways. The paper takes the link's 12 bits from the value, which then has 52;
//! here they come from the key, as its home implies 12 bits of its hash (quotienting). And chains
//! are rings, so that an entry's predecessor, whose link changes when the entry moves, is found
//! without knowing its key.

mod cell;
mod gathers;
mod walk;

use super::hasher::{Constants, scale};
use super::lookup::{self, Batch, by_lane};
use super::slab::Slab;
use super::{BuildError, FixedTable, Full, Lookup, Word};
use cell::{Cell, REACH, Rest, SLOTS_MIN, Slot};
use forerun_core::CACHE_LINE_BYTES;
use forerun_core::arch::Isa;

/// A table of linked slots.
#[derive(Debug)]
pub struct NeighborHash<K: Word, V> {
    slots: Slab<Slot<K::HashWord, V>>,
    constants: Constants,
    len: usize,
    isa: Isa,
}

impl<K: Word, V: Word> NeighborHash<K, V> {
    /// Slots in a line.
    const PER_LINE: u32 = (CACHE_LINE_BYTES / Slab::<Slot<K::HashWord, V>>::STRIDE_BYTES) as u32;

    /// Creates a table with at least `slots` slots, and at least 4,096.
    ///
    /// # Errors
    /// Too many slots to address; the memory could not be allocated.
    pub fn new(slots: usize, isa: Isa, seed: u64) -> Result<Self, BuildError> {
        let slots = BuildError::check_slots::<K>(slots)?.max(SLOTS_MIN);
        Ok(NeighborHash {
            slots: Slab::new(slots as u32)?,
            constants: Constants::from_seed(seed),
            len: 0,
            isa,
        })
    }

    /// A key's home, and what is left of its hash.
    #[inline(always)]
    fn locate(&self, key: K) -> (u32, Rest) {
        let key = K::HashWord::from_u64(key.to_u64());
        let hash = key.hash(&self.constants);
        let whole = match K::HashWord::BYTES {
            8 => u64::from(hash.first) << 32 | u64::from(hash.step),
            _ => u64::from(hash.first),
        };
        let home = scale(hash.first, self.slots.len());
        (home, Rest::of(K::HashWord::from_u64(whole)))
    }

    #[inline(always)]
    fn cell(&self, at: u32) -> Cell {
        self.slots.get(at).cell()
    }

    #[inline(always)]
    fn next(&self, at: u32) -> u32 {
        self.cell(at).next(at)
    }

    /// The entries of a ring, from one of them on.
    fn ring(&self, first: u32) -> impl Iterator<Item = u32> {
        let following = move |&at: &u32| Some(self.next(at)).filter(|&next| next != first);
        std::iter::successors(Some(first), following)
    }

    /// The entry before one in its ring; itself if it is alone.
    fn before(&self, at: u32) -> u32 {
        self.ring(at).last().unwrap_or(at)
    }

    /// The slot of a key.
    fn position(&self, key: K) -> Option<u32> {
        let (home, rest) = self.locate(key);
        if !self.cell(home).is_head() {
            return None;
        }
        self.ring(home).find(|&at| self.cell(at).rest() == rest)
    }

    /// The free slot that is nearest to a home by lines, if one is within reach.
    fn free_near(&self, home: u32) -> Option<u32> {
        let line = home / Self::PER_LINE;
        let is_free = |&at: &u32| {
            at < self.slots.len() && at.abs_diff(home) <= REACH && self.cell(at).is_empty()
        };
        let free_in = |line: u32| {
            let first = line * Self::PER_LINE;
            (first..first + Self::PER_LINE).find(is_free)
        };
        (0..=REACH / Self::PER_LINE + 1).find_map(|distance| {
            free_in(line + distance).or_else(|| free_in(line.checked_sub(distance)?))
        })
    }

    fn set_link(&mut self, at: u32, to: u32) {
        let cell = self.cell(at).linked(at, to);
        self.slots.get_mut(at).set_cell(cell);
    }

    fn put(&mut self, at: u32, cell: Cell, value: V) {
        let slot = self.slots.get_mut(at);
        slot.set_cell(cell);
        slot.value = value;
    }

    /// Takes an entry that is not a head out of its ring, and frees its slot.
    fn unlink(&mut self, at: u32) {
        let (before, next) = (self.before(at), self.next(at));
        self.set_link(before, next);
        self.slots.get_mut(at).clear();
    }

    /// Puts an entry into a ring, after another.
    fn link_after(&mut self, at: u32, before: u32, rest: Rest, value: V) {
        let next = self.next(before);
        self.put(at, Cell::new(rest, false).linked(at, next), value);
        self.set_link(before, at);
    }

    /// Moves the entry that is in the way of a new head.
    fn relocate(&mut self, lodger: u32, to: u32) {
        let (before, rest) = (self.before(lodger), self.cell(lodger).rest());
        let value = self.slots.get(lodger).value;
        self.unlink(lodger);
        self.link_after(to, before, rest, value);
    }
}

impl<K: Word, V: Word> FixedTable<K, V> for NeighborHash<K, V> {
    fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full> {
        if let Some(at) = self.position(key) {
            let old = &mut self.slots.get_mut(at).value;
            return Ok(Some(std::mem::replace(old, value)));
        }
        let (home, rest) = self.locate(key);
        let here = self.cell(home);
        let full = Full {
            entries: self.len,
            slots: self.slots(),
        };
        if here.is_head() {
            let free = self.free_near(home).ok_or(full)?;
            let is_near = free / Self::PER_LINE == home / Self::PER_LINE;
            // Entries of the home's line come first.
            let before = if is_near { home } else { self.before(home) };
            self.link_after(free, before, rest, value);
        } else {
            if !here.is_empty() {
                let owner = self.ring(home).find(|&at| self.cell(at).is_head());
                let owner = owner.unwrap_or(home);
                let free = self.free_near(owner).ok_or(full)?;
                self.relocate(home, free);
            }
            self.put(home, Cell::new(rest, true), value);
        }
        self.len += 1;
        Ok(None)
    }

    fn remove(&mut self, key: K) -> Option<V> {
        let at = self.position(key)?;
        let value = self.slots.get(at).value;
        if self.cell(at).is_head() {
            // The last entry of the ring takes the head's place.
            let last = self.before(at);
            let Slot { value, .. } = *self.slots.get(last);
            let rest = self.cell(last).rest();
            if last == at {
                self.slots.get_mut(at).clear();
            } else {
                self.unlink(last);
                let next = self.next(at);
                self.put(at, Cell::new(rest, true).linked(at, next), value);
            }
        } else {
            self.unlink(at);
        }
        self.len -= 1;
        Some(value)
    }

    fn get(&self, key: K) -> Option<V> {
        lookup::get(self.isa, self, key)
    }

    fn find(&self, keys: &[K], values: &mut [V], found: &mut [bool], lookup: Lookup) -> usize {
        let lookup = lookup.resolve(self.memory_bytes(), keys.len());
        match by_lane::find(self.isa, self, Batch::new(keys, values, found), lookup) {
            Ok(hits) => hits,
            Err(batch) => lookup::find(self.isa, self, batch, lookup),
        }
    }

    fn set_isa(&mut self, isa: Isa) {
        self.isa = isa;
    }

    fn len(&self) -> usize {
        self.len
    }

    fn slots(&self) -> usize {
        self.slots.len() as usize
    }

    fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
    }

    fn lines_touched(&self, key: K) -> u32 {
        let (home, _) = self.locate(key);
        let line = |at: u32| at / Self::PER_LINE;
        if !self.cell(home).is_head() {
            return 1;
        }
        let found = self.position(key);
        let mut lines = vec![line(home)];
        for at in self.ring(home) {
            if !lines.contains(&line(at)) {
                lines.push(line(at));
            }
            if found == Some(at) {
                break;
            }
        }
        lines.len() as u32
    }

    fn prefetch(&self, key: K) {
        self.slots.prefetch(self.locate(key).0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_lookups_of_a_table_that_is_three_quarters_full_read_one_line() {
        let mut table = NeighborHash::<u64, u64>::new(1 << 16, Isa::Scalar, 7).unwrap();
        let count = (table.slots() * 3 / 4) as u64;
        for key in 0..count {
            table.insert(key, key).unwrap();
        }
        let lines: u32 = (0..count).map(|key| table.lines_touched(key)).sum();
        let per_key = f64::from(lines) / count as f64;
        assert!((1.0..1.25).contains(&per_key), "{per_key}");
    }

    #[test]
    fn every_ring_has_one_head_whose_home_is_that_of_all_its_entries() {
        let mut table = NeighborHash::<u32, u32>::new(1 << 12, Isa::Scalar, 3).unwrap();
        let mut numbers: Vec<u32> = (0..3000).collect();
        for &key in &numbers {
            table.insert(key, !key).unwrap();
        }
        numbers.retain(|key| key % 3 != 0);
        for key in (0..3000).step_by(3) {
            assert_eq!(table.remove(key), Some(!key));
        }
        for &key in &numbers {
            let (home, at) = (table.locate(key).0, table.position(key).unwrap());
            let heads = table.ring(at).filter(|&at| table.cell(at).is_head());
            assert_eq!(heads.collect::<Vec<_>>(), [home], "key {key}");
            assert!(at.abs_diff(home) <= REACH);
        }
        let used = (0..table.slots.len()).filter(|&at| !table.cell(at).is_empty());
        assert_eq!(used.count(), numbers.len());
    }
}
