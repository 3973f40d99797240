//! The interface of a table to be measured, either ours or a peer's.
//!
//! ```text
//!  Contender   a design, with its strategies and instruction sets      open(slots)
//!     ContenderTable   one table of it, filled by the bench            finder(strategy), updater()
//!        Finder, Updater   the operations of one thread in one turn
//! ```

use super::keys::Word;
use anyhow::Result;
pub use forerun_core::arch::Isa;

/// The strategy that looks up one key at a time.
pub const GET: &str = "get";

/// The strategy that passes a whole batch to the table.
pub const FIND_BATCH: &str = "find";

/// A design of a hash table, from keys `K` to values `V`.
pub trait Contender<K: Word, V: Word>: Sync {
    /// The owner: `forerun`, or a peer's name.
    fn engine(&self) -> &str;

    /// Its name, also on the command line.
    fn design(&self) -> String;

    /// Its strategies for looking up a batch; a bench uses [`GET`] and [`FIND_BATCH`] by default.
    fn strategies(&self) -> Vec<String>;

    /// This machine's instruction sets for which it has its own code.
    fn isas(&self) -> Vec<Isa>;

    /// Whether it can be read while another thread updates it.
    fn is_shared(&self) -> bool;

    /// The approximate memory that a table of [`Contender::open`] takes when filled to
    /// `load_factor`.
    fn memory_bytes(&self, slots: usize, load_factor: f64) -> usize {
        let _ = load_factor;
        slots * (K::BYTES + V::BYTES) * 9 / 8
    }

    /// Opens an empty table with that many slots, or a few more if the design needs a rounder
    /// number. It must not grow while it is filled to `load_factor`.
    ///
    /// # Errors
    /// The table's error if there is not enough memory.
    fn open(&self, slots: usize, load_factor: f64) -> Result<Box<dyn ContenderTable<K, V>>>;
}

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertOutcome {
    /// All entries are in the table.
    All,
    /// There was no slot for one of them.
    Full,
}

/// A table to measure.
pub trait ContenderTable<K: Word, V: Word>: Send + Sync {
    /// Inserts entries with distinct keys until one finds no slot.
    ///
    /// # Errors
    /// The table's errors, except that it is full.
    fn insert(&mut self, keys: &[K], values: &[V]) -> Result<InsertOutcome>;

    /// Removes keys. Returns how many were present.
    fn remove(&mut self, keys: &[K]) -> usize;

    /// Selects one of the contender's instruction sets for later lookups. Called while there is no
    /// finder and no updater; a set that the contender does not list has no effect.
    fn set_isa(&self, isa: Isa) {
        let _ = isa;
    }

    /// A finder with one of the contender's strategies, for one thread.
    ///
    /// # Errors
    /// An unknown strategy.
    fn finder(&self, strategy: &str) -> Result<Box<dyn Finder<K, V> + '_>>;

    /// An updater that runs while other threads read, if the design allows that.
    fn updater(&self) -> Option<Box<dyn Updater<K, V> + '_>>;

    /// The number of entries.
    fn len(&self) -> usize;

    /// Whether there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of slots, if known.
    fn slots(&self) -> Option<usize>;

    /// The memory in use, if known.
    fn memory_bytes(&self) -> Option<usize>;

    /// How many cache lines of the table a lookup of `key` reads, if known.
    fn lines_touched(&self, key: K) -> Option<u32>;
}

/// Looks batches up.
pub trait Finder<K: Word, V: Word> {
    /// Looks up all keys; the slices have the same length. Where `found` is set, the value is in
    /// `values`; the other values are unspecified. Returns how many were found.
    fn find(&mut self, keys: &[K], values: &mut [V], found: &mut [bool]) -> usize;
}

/// Changes a table while others read it.
pub trait Updater<K: Word, V: Word> {
    /// Inserts an entry or changes its value.
    ///
    /// # Errors
    /// The table's errors, including a full table.
    fn upsert(&mut self, key: K, value: V) -> Result<()>;

    /// Removes an entry, and returns whether it existed.
    ///
    /// # Errors
    /// The table's errors.
    fn remove(&mut self, key: K) -> Result<bool>;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use anyhow::bail;
    use std::collections::HashMap;
    use std::sync::RwLock;

    /// A map behind a lock, to test the bench with.
    pub(crate) struct Map {
        /// Its name.
        pub(crate) name: &'static str,
        /// The share of the slots that it can fill.
        pub(crate) limit: f64,
        /// An error that it adds to every returned value.
        pub(crate) error: u64,
    }

    impl Map {
        pub(crate) fn new(name: &'static str) -> Map {
            Map {
                name,
                limit: 1.0,
                error: 0,
            }
        }
    }

    impl<K: Word, V: Word> Contender<K, V> for Map {
        fn engine(&self) -> &str {
            "test"
        }

        fn design(&self) -> String {
            self.name.to_owned()
        }

        fn strategies(&self) -> Vec<String> {
            vec![GET.to_owned(), FIND_BATCH.to_owned()]
        }

        fn isas(&self) -> Vec<Isa> {
            vec![Isa::Scalar]
        }

        fn is_shared(&self) -> bool {
            true
        }

        fn open(&self, slots: usize, _load_factor: f64) -> Result<Box<dyn ContenderTable<K, V>>> {
            Ok(Box::new(MapSubject {
                map: RwLock::new(HashMap::new()),
                slots,
                limit: (slots as f64 * self.limit) as usize,
                error: self.error,
            }))
        }
    }

    struct MapSubject<K, V> {
        map: RwLock<HashMap<K, V>>,
        slots: usize,
        limit: usize,
        error: u64,
    }

    impl<K: Word, V: Word> ContenderTable<K, V> for MapSubject<K, V> {
        fn insert(&mut self, keys: &[K], values: &[V]) -> Result<InsertOutcome> {
            let map = self.map.get_mut().unwrap();
            for (key, value) in keys.iter().zip(values) {
                if map.len() >= self.limit {
                    return Ok(InsertOutcome::Full);
                }
                map.insert(*key, *value);
            }
            Ok(InsertOutcome::All)
        }

        fn remove(&mut self, keys: &[K]) -> usize {
            let map = self.map.get_mut().unwrap();
            keys.iter().filter(|key| map.remove(key).is_some()).count()
        }

        fn finder(&self, strategy: &str) -> Result<Box<dyn Finder<K, V> + '_>> {
            if ![GET, FIND_BATCH].contains(&strategy) {
                bail!("no strategy {strategy:?}");
            }
            Ok(Box::new(self))
        }

        fn updater(&self) -> Option<Box<dyn Updater<K, V> + '_>> {
            Some(Box::new(self))
        }

        fn len(&self) -> usize {
            self.map.read().unwrap().len()
        }

        fn slots(&self) -> Option<usize> {
            Some(self.slots)
        }

        fn memory_bytes(&self) -> Option<usize> {
            Some(self.slots * (K::BYTES + V::BYTES))
        }

        fn lines_touched(&self, _key: K) -> Option<u32> {
            Some(1)
        }
    }

    impl<K: Word, V: Word> Finder<K, V> for &MapSubject<K, V> {
        fn find(&mut self, keys: &[K], values: &mut [V], found: &mut [bool]) -> usize {
            let map = self.map.read().unwrap();
            for (at, key) in keys.iter().enumerate() {
                let value = map.get(key);
                found[at] = value.is_some();
                if let Some(value) = value {
                    values[at] = V::from_u64(value.to_u64().wrapping_add(self.error));
                }
            }
            found.iter().filter(|found| **found).count()
        }
    }

    impl<K: Word, V: Word> Updater<K, V> for &MapSubject<K, V> {
        fn upsert(&mut self, key: K, value: V) -> Result<()> {
            self.map.write().unwrap().insert(key, value);
            Ok(())
        }

        fn remove(&mut self, key: K) -> Result<bool> {
            Ok(self.map.write().unwrap().remove(&key).is_some())
        }
    }
}
