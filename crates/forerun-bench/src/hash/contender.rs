//! What is asked of a table to be measured: ours or a peer's.
//!
//! ```text
//!  Contender   a design, with the strategies and instruction sets it has          open(slots)
//!     Subject  one table of it, filled by the bench                               finder(strategy), updater()
//!        Finder, Updater   what one thread does with it in one turn
//! ```

use super::keys::Word;
use anyhow::Result;
pub use forerun_core::arch::Isa;

/// The strategy that looks up one key after the other.
pub const GET: &str = "get";

/// The strategy that hands the table a whole batch.
pub const FIND_BATCH: &str = "find_batch";

/// A design of a hash table, from keys `K` to values `V`.
pub trait Contender<K: Word, V: Word>: Sync {
    /// Whose it is: `forerun`, or a peer's name.
    fn engine(&self) -> &str;

    /// What it is called, also on the command line.
    fn design(&self) -> String;

    /// The ways of looking a batch up; those a bench takes unless told otherwise are [`GET`] and
    /// [`FIND_BATCH`].
    fn strategies(&self) -> Vec<String>;

    /// The instruction sets of this machine for which it has code of its own.
    fn isas(&self) -> Vec<Isa>;

    /// Whether it can be read while another thread updates it.
    fn is_shared(&self) -> bool;

    /// About how much memory [`Contender::open`] will take, filled to `load_factor`.
    fn memory_bytes(&self, slots: usize, load_factor: f64) -> usize {
        let _ = load_factor;
        slots * (K::BYTES + V::BYTES) * 9 / 8
    }

    /// An empty table of that many slots, or a few more where the design wants a rounder number. It
    /// shall not grow while it is filled to `load_factor`.
    ///
    /// # Errors
    /// The table's, when there is no memory for it.
    fn open(&self, slots: usize, load_factor: f64) -> Result<Box<dyn Subject<K, V>>>;
}

/// What became of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// All entries are in the table.
    All,
    /// No place could be made for one of them.
    Full,
}

/// A table to measure.
pub trait Subject<K: Word, V: Word>: Send + Sync {
    /// Inserts entries, whose keys are all different, until one finds no place.
    ///
    /// # Errors
    /// The table's, other than being full.
    fn insert(&mut self, keys: &[K], values: &[V]) -> Result<Placed>;

    /// Looks up by one of the contender's instruction sets from now on. Called while there is no
    /// finder and no updater; one that the contender does not list changes nothing.
    fn set_isa(&self, isa: Isa) {
        let _ = isa;
    }

    /// What looks up, by one of the contender's strategies, for one thread.
    ///
    /// # Errors
    /// An unknown strategy.
    fn finder(&self, strategy: &str) -> Result<Box<dyn Finder<K, V> + '_>>;

    /// What updates the table while others read it, where the design allows that.
    fn updater(&self) -> Option<Box<dyn Updater<K, V> + '_>>;

    /// Entries.
    fn len(&self) -> usize;

    /// Whether there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Places for entries, where that is told.
    fn slots(&self) -> Option<usize>;

    /// Memory taken, where that is told.
    fn memory_bytes(&self) -> Option<usize>;

    /// How many cache lines of the table a lookup of `key` reads, where that can be told.
    fn lines_touched(&self, key: K) -> Option<u32>;
}

/// Looks batches up.
pub trait Finder<K: Word, V: Word> {
    /// Looks all keys up; the slices have the same length. Where `found` is set the value is in
    /// `values`; what else is in there does not matter. Gives how many were found.
    fn find(&mut self, keys: &[K], values: &mut [V], found: &mut [bool]) -> usize;
}

/// Changes a table beside its readers.
pub trait Updater<K: Word, V: Word> {
    /// Inserts an entry or changes its value.
    ///
    /// # Errors
    /// The table's, also when it is full.
    fn upsert(&mut self, key: K, value: V) -> Result<()>;

    /// Removes an entry, and tells whether it was there.
    ///
    /// # Errors
    /// The table's.
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
        /// What it is called.
        pub(crate) name: &'static str,
        /// How many entries it takes at most, as a share of the slots.
        pub(crate) limit: f64,
        /// What it adds to every value that it gives.
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

        fn open(&self, slots: usize, _load_factor: f64) -> Result<Box<dyn Subject<K, V>>> {
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

    impl<K: Word, V: Word> Subject<K, V> for MapSubject<K, V> {
        fn insert(&mut self, keys: &[K], values: &[V]) -> Result<Placed> {
            let map = self.map.get_mut().unwrap();
            for (key, value) in keys.iter().zip(values) {
                if map.len() >= self.limit {
                    return Ok(Placed::Full);
                }
                map.insert(*key, *value);
            }
            Ok(Placed::All)
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
