//! The production table, as a contender.

use super::contender::{
    Contender, ContenderTable, FIND_BATCH, Finder, GET, InsertOutcome, Isa, Updater,
};
use anyhow::{Result, bail};
use forerun_core::arch;
use forerun_hash::{HashTable, HashTableOptions};

/// [`HashTable`], under the name `table`.
pub(super) struct Production;

/// Looks up one key after the other, the whole batch with one handle.
const PINNED_GET: &str = "pinned-get";

/// The load factor of a table that holds exactly the entries its capacity was chosen for.
const PLANNED_LOAD: f64 = 0.95;

impl Contender<u64, u64> for Production {
    fn engine(&self) -> &str {
        "forerun"
    }

    fn design(&self) -> String {
        "table".to_owned()
    }

    fn strategies(&self) -> Vec<String> {
        [GET, FIND_BATCH, PINNED_GET].map(str::to_owned).to_vec()
    }

    fn isas(&self) -> Vec<Isa> {
        // It chooses its instruction set itself; FORERUN_ISA forces another one for the whole run.
        vec![arch::isa()]
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn open(&self, slots: usize, _load_factor: f64) -> Result<Box<dyn ContenderTable<u64, u64>>> {
        let table = HashTable::with_options(
            HashTableOptions::default()
                .capacity((slots as f64 * PLANNED_LOAD) as usize)
                .seed(super::studied_designs::SEED),
        )?;
        Ok(Box::new(Filled(table)))
    }
}

struct Filled(HashTable);

impl ContenderTable<u64, u64> for Filled {
    fn insert(&mut self, keys: &[u64], values: &[u64]) -> Result<InsertOutcome> {
        self.0.insert_batch(keys, values)?;
        Ok(InsertOutcome::All)
    }

    fn finder(&self, strategy: &str) -> Result<Box<dyn Finder<u64, u64> + '_>> {
        Ok(match strategy {
            GET => Box::new(Get(&self.0)),
            PINNED_GET => Box::new(PinnedGet(&self.0)),
            FIND_BATCH => Box::new(FindBatch(&self.0)),
            other => bail!("the table has no strategy {other:?}"),
        })
    }

    fn updater(&self) -> Option<Box<dyn Updater<u64, u64> + '_>> {
        Some(Box::new(Writer(&self.0)))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn slots(&self) -> Option<usize> {
        Some(self.0.slots())
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.0.memory_bytes())
    }

    fn lines_touched(&self, _key: u64) -> Option<u32> {
        None
    }
}

struct Get<'a>(&'a HashTable);

impl Finder<u64, u64> for Get<'_> {
    fn find(&mut self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        answer_each(keys, values, found, |key| self.0.get(key))
    }
}

struct PinnedGet<'a>(&'a HashTable);

impl Finder<u64, u64> for PinnedGet<'_> {
    fn find(&mut self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        let pinned = self.0.pin();
        answer_each(keys, values, found, |key| pinned.get(key))
    }
}

struct FindBatch<'a>(&'a HashTable);

impl Finder<u64, u64> for FindBatch<'_> {
    fn find(&mut self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        self.0.find(keys, values, found)
    }
}

/// Looks up keys one at a time.
#[inline]
fn answer_each(
    keys: &[u64],
    values: &mut [u64],
    found: &mut [bool],
    get: impl Fn(u64) -> Option<u64>,
) -> usize {
    let mut found_count = 0;
    for ((key, value), found) in keys.iter().zip(values).zip(found) {
        let answer = get(*key);
        *found = answer.is_some();
        *value = answer.unwrap_or_default();
        found_count += usize::from(answer.is_some());
    }
    found_count
}

struct Writer<'a>(&'a HashTable);

impl Updater<u64, u64> for Writer<'_> {
    fn upsert(&mut self, key: u64, value: u64) -> Result<()> {
        self.0.insert(key, value)?;
        Ok(())
    }

    fn remove(&mut self, key: u64) -> Result<bool> {
        Ok(self.0.remove(key).is_some())
    }
}
