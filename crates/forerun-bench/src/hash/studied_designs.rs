//! The studied designs, as contenders.

use super::contender::{
    Contender, ContenderTable, FIND_BATCH, Finder, GET, InsertOutcome, Updater,
};
use super::keys::Word;
use anyhow::{Context, Result};
use forerun_core::arch::Isa;
use forerun_studies::designs::{Design, FixedTable, Lookup, SharedTable, build};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// A fixed seed, so that keys go to the same places in every run.
pub(super) const SEED: u64 = 0x5eed;

/// A design that is studied.
pub(super) struct StudiedDesign(Design);

/// All designs that are studied.
pub(super) fn designs() -> Vec<StudiedDesign> {
    Design::ALL
        .iter()
        .map(|design| StudiedDesign(*design))
        .collect()
}

impl StudiedDesign {
    /// The strategy with a bench's name or the design's own name.
    fn lookup(strategy: &str) -> Result<Lookup> {
        Ok(match strategy {
            GET => Lookup::Single,
            FIND_BATCH => Lookup::Auto,
            own => own.parse()?,
        })
    }
}

impl<K: Word, V: Word> Contender<K, V> for StudiedDesign {
    fn engine(&self) -> &str {
        "forerun"
    }

    fn design(&self) -> String {
        self.0.to_string()
    }

    fn strategies(&self) -> Vec<String> {
        let own = self.0.lookups().iter();
        let own = own.filter(|lookup| ![Lookup::Single, Lookup::Auto].contains(lookup));
        let names = [GET, FIND_BATCH].map(str::to_owned).into_iter();
        names.chain(own.map(Lookup::to_string)).collect()
    }

    fn isas(&self) -> Vec<Isa> {
        if self.0.name() == super::measure::MEMC3 {
            return vec![Isa::Scalar];
        }
        let available = Isa::ALL.into_iter().rev();
        available.filter(|isa| isa.is_available()).collect()
    }

    fn is_shared(&self) -> bool {
        self.0.name() == super::measure::MEMC3
    }

    fn open(&self, slots: usize, _load_factor: f64) -> Result<Box<dyn ContenderTable<K, V>>> {
        let table = build::<K, V>(self.0, slots, Isa::Scalar, SEED)?;
        Ok(Box::new(StudiedTable(RwLock::new(table))))
    }
}

/// A table of a studied design. The lock only protects the choice of the instruction set; it is
/// taken once per turn.
struct StudiedTable<K, V>(RwLock<Box<dyn FixedTable<K, V>>>);

/// A lock on a table, held for a turn.
type TableReadGuard<'a, K, V> = RwLockReadGuard<'a, Box<dyn FixedTable<K, V>>>;

impl<K: Word, V: Word> StudiedTable<K, V> {
    fn read_lock(&self) -> TableReadGuard<'_, K, V> {
        // A thread that panicked while it was reading left the table unchanged.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Word, V: Word> ContenderTable<K, V> for StudiedTable<K, V> {
    fn insert(&mut self, keys: &[K], values: &[V]) -> Result<InsertOutcome> {
        let table = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        Ok(match table.insert_batch(keys, values) {
            Ok(()) => InsertOutcome::All,
            Err(_full) => InsertOutcome::Full,
        })
    }

    fn remove(&mut self, keys: &[K]) -> usize {
        let table = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        table.remove_batch(keys)
    }

    fn set_isa(&self, isa: Isa) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.set_isa(isa);
    }

    fn finder(&self, strategy: &str) -> Result<Box<dyn Finder<K, V> + '_>> {
        Ok(Box::new(StudiedFinder {
            table: self.read_lock(),
            lookup: StudiedDesign::lookup(strategy)?,
        }))
    }

    fn updater(&self) -> Option<Box<dyn Updater<K, V> + '_>> {
        let table = self.read_lock();
        table.as_shared()?;
        Some(Box::new(StudiedUpdater(table)))
    }

    fn len(&self) -> usize {
        self.read_lock().len()
    }

    fn slots(&self) -> Option<usize> {
        Some(self.read_lock().slots())
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.read_lock().memory_bytes())
    }

    fn lines_touched(&self, key: K) -> Option<u32> {
        Some(self.read_lock().lines_touched(key))
    }
}

struct StudiedFinder<'a, K, V> {
    table: TableReadGuard<'a, K, V>,
    lookup: Lookup,
}

impl<K: Word, V: Word> Finder<K, V> for StudiedFinder<'_, K, V> {
    fn find(&mut self, keys: &[K], values: &mut [V], found: &mut [bool]) -> usize {
        self.table.find(keys, values, found, self.lookup)
    }
}

struct StudiedUpdater<'a, K, V>(TableReadGuard<'a, K, V>);

impl<K: Word, V: Word> StudiedUpdater<'_, K, V> {
    fn shared(&self) -> Result<&dyn SharedTable<K, V>> {
        self.0.as_shared().context("this design has no updates")
    }
}

impl<K: Word, V: Word> Updater<K, V> for StudiedUpdater<'_, K, V> {
    fn upsert(&mut self, key: K, value: V) -> Result<()> {
        self.shared()?.insert_shared(key, value)?;
        Ok(())
    }

    fn remove(&mut self, key: K) -> Result<bool> {
        Ok(self.shared()?.remove_shared(key).is_some())
    }
}
