//! The idea of DLHT: chains of whole cache lines, of bounded length, with the entries in them.
//!
//! ```text
//!   buckets       │ header │ 3 entries │ …             a line each; the header says which slots hold entries
//!                      │
//!   further lines      ├──▶ │ 4 entries │              up to four for a bucket, taken from a common stock
//!                      └──▶ │ 4 entries │
//! ```
//!
//! Katsarakis, Gavrielatos and Ntarmos, "DLHT: A Non-blocking Resizable Hashtable with Fast
//! Deletes and Memory-awareness" (HPDC 2024). An entry never moves, an insertion or a removal
//! changes one slot and a bit of the header, and a batch prefetches the buckets of all its keys.
//! The price is that a full bucket has nowhere else to go than a further line.
//!
//! It differs in what the studies do not need: the header has no versions, and the table does not
//! grow, so it is full when the stock is empty. The stock is five lines for eight buckets. Empty
//! lines at the end of a chain return to it. The paper's chain has 15 slots, of which some bucket
//! of a large, full table would have too few; here it has 19.

mod chain;
mod header;
mod lines;

use super::hasher::{Constants, scale};
use super::lookup::{self, Batch};
use super::slab::Slab;
use super::{BuildError, FixedTable, Full, Lookup, Word};
use forerun_core::arch::{Isa, Scalar};
use header::{CHAIN_SLOTS, LINE_MAX, LINK_SLOTS, LINKS, SLOTS};
use lines::{Bucket, Link};

/// Further lines for as many buckets as [`STOCK_BUCKETS`].
const STOCK_LINES: usize = 5;
const STOCK_BUCKETS: usize = 8;

/// A table of bounded chains.
#[derive(Debug)]
pub struct Dlht<K, V> {
    buckets: Slab<Bucket<K, V>>,
    links: Slab<Link<K, V>>,
    /// Further lines that were ever in use: the first ones.
    used_links: u32,
    /// Those that are not in use now.
    free_links: Vec<u32>,
    constants: Constants,
    len: usize,
    isa: Isa,
}

/// The bucket of a key, and the key's slot counted through the lines of its chain.
#[derive(Clone, Copy)]
struct Position {
    bucket: u32,
    slot: usize,
}

impl<K: Word, V: Word> Dlht<K, V> {
    /// Creates a table with at least `slots` slots, further lines included.
    ///
    /// # Errors
    /// Too many slots to address; the memory could not be allocated.
    pub fn new(slots: usize, isa: Isa, seed: u64) -> Result<Self, BuildError> {
        const UNIT: usize = STOCK_BUCKETS * SLOTS + STOCK_LINES * LINK_SLOTS;
        let units = BuildError::check_slots::<K>(slots)?.div_ceil(UNIT).max(1);
        let links = (units * STOCK_LINES).min(LINE_MAX as usize);
        Ok(Dlht {
            buckets: Slab::new((units * STOCK_BUCKETS) as u32)?,
            links: Slab::new(links as u32)?,
            used_links: 0,
            free_links: Vec::new(),
            constants: Constants::from_seed(seed),
            len: 0,
            isa,
        })
    }

    fn bucket(&self, key: K) -> u32 {
        scale(key.hash(&self.constants).first, self.buckets.len())
    }

    /// The position of a key, and the lines that were read to find it.
    fn search(&self, key: K) -> (Option<Position>, u32) {
        let bucket = self.bucket(key);
        let Bucket { header, entries } = self.buckets.get(bucket);
        let equal = K::eq_slots(Scalar::new(), &entries.keys, key) & header.here();
        if equal != 0 {
            let slot = equal.trailing_zeros() as usize;
            return (Some(Position { bucket, slot }), 1);
        }
        for (nth, link) in (0..LINKS).map_while(|nth| Some((nth, header.link(nth)?))) {
            let keys = &self.links.get(link).keys;
            let equal = K::eq_slots(Scalar::new(), keys, key) & header.in_link(nth);
            if equal != 0 {
                let slot = SLOTS + nth * LINK_SLOTS + equal.trailing_zeros() as usize;
                return (Some(Position { bucket, slot }), 2 + nth as u32);
            }
        }
        (None, 1 + header.links() as u32)
    }

    /// The key and the value of a slot, whose line is in the chain.
    fn entry_mut(&mut self, at: Position) -> (&mut K, &mut V) {
        let header = self.buckets.get(at.bucket).header;
        match at.slot.checked_sub(SLOTS) {
            None => {
                let line = &mut self.buckets.get_mut(at.bucket).entries;
                (&mut line.keys[at.slot], &mut line.values[at.slot])
            }
            Some(beyond) => {
                let (nth, slot) = (beyond / LINK_SLOTS, beyond % LINK_SLOTS);
                // Past the last link there is no line, and `get_mut` panics.
                let line = self.links.get_mut(header.link(nth).unwrap_or(u32::MAX));
                (&mut line.keys[slot], &mut line.values[slot])
            }
        }
    }

    /// A free slot of a bucket's chain. Takes a further line if necessary and if there is one.
    fn free_slot(&mut self, bucket: u32) -> Option<Position> {
        let header = &mut self.buckets.get_mut(bucket).header;
        let (slot, links) = (header.free_slot(), header.links());
        if slot == CHAIN_SLOTS {
            return None;
        }
        if slot == SLOTS + links * LINK_SLOTS {
            let link = match self.free_links.pop() {
                Some(link) => link,
                None if self.used_links < self.links.len() => {
                    self.used_links += 1;
                    self.used_links - 1
                }
                None => return None,
            };
            header.set_link(links, link);
        }
        Some(Position { bucket, slot })
    }
}

impl<K: Word, V: Word> FixedTable<K, V> for Dlht<K, V> {
    fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full> {
        if let (Some(at), _) = self.search(key) {
            return Ok(Some(std::mem::replace(self.entry_mut(at).1, value)));
        }
        let bucket = self.bucket(key);
        let Some(at) = self.free_slot(bucket) else {
            return Err(Full {
                entries: self.len,
                slots: self.slots(),
            });
        };
        let (new_key, new_value) = self.entry_mut(at);
        (*new_key, *new_value) = (key, value);
        let header = &mut self.buckets.get_mut(bucket).header;
        header.set_occupied(at.slot, true);
        self.len += 1;
        Ok(None)
    }

    fn remove(&mut self, key: K) -> Option<V> {
        let at = self.search(key).0?;
        let value = *self.entry_mut(at).1;
        let header = &mut self.buckets.get_mut(at.bucket).header;
        header.set_occupied(at.slot, false);
        self.free_links
            .extend(std::iter::from_fn(|| header.unlink_empty()));
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
        self.buckets.len() as usize * SLOTS + self.links.len() as usize * LINK_SLOTS
    }

    fn memory_bytes(&self) -> usize {
        self.buckets.memory_bytes() + self.links.memory_bytes()
    }

    fn lines_touched(&self, key: K) -> u32 {
        self.search(key).1
    }

    fn prefetch(&self, key: K) {
        self.buckets.prefetch(self.bucket(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_slots_that_were_freed_are_taken_before_others() {
        let mut table = Dlht::<u64, u64>::new(1000, Isa::Scalar, 7).unwrap();
        let mut keys = 0..;
        while table.used_links < 100 {
            let key = keys.next().unwrap();
            table.insert(key, key).unwrap();
        }
        let count = table.len();
        for key in 0..keys.start {
            assert_eq!(table.remove(key), Some(key));
        }
        assert_eq!(table.free_links.len(), 100);
        for key in 0..keys.start {
            assert_eq!(table.insert(key, !key), Ok(None));
        }
        assert_eq!((table.used_links, table.len()), (100, count));
    }
}
