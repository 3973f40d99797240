//! The production table, as a contender: while others may write it, and frozen.

use super::contender::{
    Contender, ContenderTable, FIND_BATCH, Finder, GET, InsertOutcome, Isa, Updater,
};
use anyhow::{Context, Result, bail};
use forerun_core::arch;
use forerun_hash::{FrozenHashTable, HashTable, HashTableOptions};

/// [`HashTable`] under the name `table`, and [`FrozenHashTable`] under the name `frozen`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Production {
    Shared,
    Frozen,
}

impl Production {
    pub(super) const ALL: [Production; 2] = [Production::Shared, Production::Frozen];
}

/// Looks up one key after the other, the whole batch with one handle.
const PINNED_GET: &str = "pinned-get";

/// The load factor of a table that holds exactly the entries its capacity was chosen for.
const PLANNED_LOAD: f64 = 0.95;

impl Contender<u64, u64> for Production {
    fn engine(&self) -> &str {
        "forerun"
    }

    fn design(&self) -> String {
        match self {
            Production::Shared => "table".to_owned(),
            Production::Frozen => "frozen".to_owned(),
        }
    }

    fn strategies(&self) -> Vec<String> {
        let all = [GET, FIND_BATCH, PINNED_GET].map(str::to_owned);
        match self {
            Production::Shared => all.to_vec(),
            Production::Frozen => all[..2].to_vec(),
        }
    }

    fn isas(&self) -> Vec<Isa> {
        // It chooses its instruction set itself; FORERUN_ISA forces another one for the whole run.
        vec![arch::isa()]
    }

    fn is_shared(&self) -> bool {
        *self == Production::Shared
    }

    fn open(&self, slots: usize, _load_factor: f64) -> Result<Box<dyn ContenderTable<u64, u64>>> {
        let table = HashTable::with_options(
            HashTableOptions::default()
                .capacity((slots as f64 * PLANNED_LOAD) as usize)
                .seed(super::studied_designs::SEED),
        )?;
        Ok(match self {
            Production::Shared => Box::new(SharedTable(table)),
            Production::Frozen => Box::new(FrozenTable(Some(table.freeze()))),
        })
    }
}

/// A finder by a closure.
struct By<F>(F);

impl<F: FnMut(&[u64], &mut [u64], &mut [bool]) -> usize> Finder<u64, u64> for By<F> {
    fn find(&mut self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        (self.0)(keys, values, found)
    }
}

/// A finder that passes on whole batches.
fn by<'a, F>(find: F) -> Box<dyn Finder<u64, u64> + 'a>
where
    F: FnMut(&[u64], &mut [u64], &mut [bool]) -> usize + 'a,
{
    Box::new(By(find))
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

struct SharedTable(HashTable);

impl ContenderTable<u64, u64> for SharedTable {
    fn insert(&mut self, keys: &[u64], values: &[u64]) -> Result<InsertOutcome> {
        self.0.insert_batch(keys, values)?;
        Ok(InsertOutcome::All)
    }

    fn remove(&mut self, keys: &[u64]) -> usize {
        self.0.remove_batch(keys)
    }

    fn finder(&self, strategy: &str) -> Result<Box<dyn Finder<u64, u64> + '_>> {
        let table = &self.0;
        Ok(match strategy {
            GET => by(|keys, values, found| answer_each(keys, values, found, |key| table.get(key))),
            PINNED_GET => by(|keys, values, found| {
                let pinned = table.pin();
                answer_each(keys, values, found, |key| pinned.get(key))
            }),
            FIND_BATCH => by(|keys, values, found| table.find(keys, values, found)),
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

/// A table that thaws for each batch of writes. `None` only after an error.
struct FrozenTable(Option<FrozenHashTable>);

impl FrozenTable {
    fn write<T>(&mut self, write: impl FnOnce(&HashTable) -> T) -> Option<T> {
        let table = self.0.take()?.thaw();
        let result = write(&table);
        self.0 = Some(table.freeze());
        Some(result)
    }
}

impl ContenderTable<u64, u64> for FrozenTable {
    fn insert(&mut self, keys: &[u64], values: &[u64]) -> Result<InsertOutcome> {
        let inserted = self.write(|table| table.insert_batch(keys, values));
        inserted.context("the table is gone")??;
        Ok(InsertOutcome::All)
    }

    fn remove(&mut self, keys: &[u64]) -> usize {
        let removed = self.write(|table| table.remove_batch(keys));
        removed.unwrap_or(0)
    }

    fn finder(&self, strategy: &str) -> Result<Box<dyn Finder<u64, u64> + '_>> {
        let table = self.0.as_ref().context("the table is gone")?;
        Ok(match strategy {
            GET => by(|keys, values, found| answer_each(keys, values, found, |key| table.get(key))),
            FIND_BATCH => by(|keys, values, found| table.find(keys, values, found)),
            other => bail!("the frozen table has no strategy {other:?}"),
        })
    }

    fn updater(&self) -> Option<Box<dyn Updater<u64, u64> + '_>> {
        None
    }

    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, FrozenHashTable::len)
    }

    fn slots(&self) -> Option<usize> {
        self.0.as_ref().map(FrozenHashTable::slots)
    }

    fn memory_bytes(&self) -> Option<usize> {
        self.0.as_ref().map(FrozenHashTable::memory_bytes)
    }

    fn lines_touched(&self, _key: u64) -> Option<u32> {
        None
    }
}
