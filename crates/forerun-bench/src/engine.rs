//! The interface through which the lookup benches use a store, Forerun's or a peer's.
//!
//! ```text
//!  Engine --open(StoreRequirements)--> Store --reader(strategy)--> Reader   one per reading thread
//!    name, strategies                    |  \--writer()----------> Writer   one per writing thread
//!                                        wait_idle, directory
//!
//!  Readers and writers are created on the threads that use them.
//!
//!  Engine --open_keyspaces--> Store, Store, ...   one per keyspace, for engines with Feature::Keyspaces
//! ```
//!
//! All stores run the same code around these traits: the same keys, batches, threads, clock and
//! checks. The calls are dynamic, and a batch takes one call, which costs a nanosecond or two for
//! every store.

use crate::workload::{Dataset, EntryBuffer};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The requirements for a store: the data that it must hold, and the resources that it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRequirements {
    /// Entries that are loaded first.
    pub keys: u64,
    /// The maximum number of entries, or versions of entries, that are written afterwards.
    pub spare_entries: u64,
    /// Bytes per key; those of the longest key if lengths differ.
    pub key_bytes: usize,
    /// Bytes per value.
    pub value_bytes: usize,
    /// For stores on disk.
    pub place: StoreLocation,
}

/// Where a store on disk is created, and how much of it may be cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreLocation {
    /// The directory in which each store creates its own; `None` for the system's temporary
    /// directory.
    pub parent: Option<PathBuf>,
    /// Bytes of cache, for engines that have one; `None` for the engine's default.
    pub cache_bytes: Option<u64>,
}

impl StoreRequirements {
    /// The needs of `data`, for a store in memory or for one on disk in the default location.
    pub fn of(data: &Dataset, spare_entries: u64) -> StoreRequirements {
        StoreRequirements {
            keys: data.keys(),
            spare_entries,
            key_bytes: data.key_bytes(),
            value_bytes: data.value_bytes(),
            place: StoreLocation::default(),
        }
    }

    /// The bytes of all entries ever written, if each takes `overhead_bytes` in addition to its key
    /// and value. Saturates at the maximum.
    pub fn total_bytes(&self, overhead_bytes: usize) -> usize {
        let entry_bytes = self.key_bytes + self.value_bytes + overhead_bytes;
        let entries = self.keys.saturating_add(self.spare_entries);
        usize::try_from(entries)
            .unwrap_or(usize::MAX)
            .saturating_mul(entry_bytes)
    }

    /// [`StoreLocation::directory`] of its place.
    ///
    /// # Errors
    /// An error of the file system, with the path.
    pub fn directory(&self) -> Result<TempDir> {
        self.place.directory()
    }
}

impl StoreLocation {
    /// Creates a directory for one store, which is removed when dropped.
    ///
    /// # Errors
    /// An error of the file system, with the path.
    pub fn directory(&self) -> Result<TempDir> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("forerun-bench-");
        match &self.parent {
            Some(parent) => builder
                .tempdir_in(parent)
                .with_context(|| format!("cannot make a directory in {}", parent.display())),
            None => builder.tempdir().context("cannot make a directory"),
        }
    }
}

/// What only some stores can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Several keyspaces in one store, which RocksDB calls column families.
    Keyspaces,
    /// [`Writer::delete_range`].
    RangeDeletes,
    /// [`Store::ingest`].
    Ingestion,
    /// [`KeyspaceSpec::ttl`].
    Ttl,
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Feature::Keyspaces => "keyspaces",
            Feature::RangeDeletes => "range deletes",
            Feature::Ingestion => "ingestion",
            Feature::Ttl => "TTLs",
        })
    }
}

/// A keyspace to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceSpec {
    /// Its name.
    pub name: String,
    /// How long its entries live, in whole seconds; `None` if they never expire. An engine may
    /// show expired entries until it drops them, but never drops one early.
    pub ttl: Option<Duration>,
}

/// A kind of store that can be measured.
pub trait Engine {
    /// The name in its rows.
    fn name(&self) -> &str;

    /// Its strategies for looking up a batch. The first one looks up one key at a time. The
    /// speedups of the others are relative to it, so it is always measured.
    fn strategies(&self) -> Vec<String>;

    /// The default strategy for a batch: the last one, unless the engine overrides it.
    fn batched(&self) -> String {
        self.strategies().pop().unwrap_or_default()
    }

    /// Opens an empty store with the required capacity.
    ///
    /// # Errors
    /// Any reason why the store cannot be created.
    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>>;

    /// Opens a store that already holds all entries of `data`, for an engine that takes entries in
    /// key order only. Other engines return `None`; their stores are opened empty and written to.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    fn open_loaded(&self, data: &Dataset) -> Result<Option<Box<dyn Store>>> {
        let _ = data;
        Ok(None)
    }

    /// Whether its stores can do this.
    fn supports(&self, feature: Feature) -> bool {
        let _ = feature;
        false
    }

    /// Opens an empty store with these keyspaces and otherwise with the engine's default options.
    /// Returns each keyspace as a [`Store`], in the order given.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open), and an engine without keyspaces.
    fn open_keyspaces(
        &self,
        place: &StoreLocation,
        keyspaces: &[KeyspaceSpec],
    ) -> Result<Vec<Box<dyn Store>>> {
        let _ = (place, keyspaces);
        bail!("{} has no keyspaces", self.name())
    }
}

/// A store that several threads read and write at once.
pub trait Store: Sync {
    /// A reader that looks up with one of [`Engine::strategies`].
    ///
    /// # Errors
    /// Any reason why it cannot be created.
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>>;

    /// A writer.
    ///
    /// # Errors
    /// Any reason why it cannot be created.
    fn writer(&self) -> Result<Box<dyn Writer + '_>>;

    /// For a store on disk, writes out the data that is still in memory. Waits until no background
    /// work is left.
    ///
    /// # Errors
    /// A failed write.
    fn wait_idle(&self) -> Result<()> {
        Ok(())
    }

    /// Merges all of its files into as few as possible, if it has such an operation.
    ///
    /// # Errors
    /// A failed write.
    fn compact(&self) -> Result<()> {
        Ok(())
    }

    /// Adds entries in ascending key order, in bulk, past the memtables. `next` fills in the next
    /// entry, or returns false if there is none. The entries become visible when all are there.
    ///
    /// # Errors
    /// An error of `next`, a failed write, or a store that does not support this.
    fn ingest(&self, _next: &mut dyn FnMut(&mut EntryBuffer) -> Result<bool>) -> Result<()> {
        bail!("this store does not support ingestion here")
    }

    /// The directory of its files, if it has any.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// Facts to report about a loaded store, such as `("memory", "310 MB, huge pages")`.
    fn facts(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// One thread's lookups.
pub trait Reader {
    /// Looks up all keys, copies the values' bytes as for a user, and returns how many were found.
    ///
    /// # Errors
    /// A failed lookup.
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize>;

    /// The value that the last [`Reader::read`] found for its key number `at`.
    fn value(&self, at: usize) -> Option<&[u8]>;

    /// Passes on the first `limit` entries in key order, from the first key that is not below
    /// `from`, and returns how many there were.
    ///
    /// # Errors
    /// A failed scan, or a store that does not support scans.
    fn scan(
        &mut self,
        _from: &[u8],
        _limit: usize,
        _each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        bail!("this store does not support scans here")
    }

    /// [`scan`](Self::scan) against the key order, from the last key that is not above `from`.
    ///
    /// # Errors
    /// The same as for [`scan`](Self::scan).
    fn scan_back(
        &mut self,
        _from: &[u8],
        _limit: usize,
        _each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        bail!("this store does not support backward scans here")
    }
}

/// One thread's writes.
pub trait Writer {
    /// Sets a key to a value, in its own write.
    ///
    /// # Errors
    /// A failed write.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Sets several keys, in one write if the store supports that.
    ///
    /// # Errors
    /// A failed write.
    fn write_many(&mut self, entries: &[EntryBuffer]) -> Result<()> {
        entries
            .iter()
            .try_for_each(|entry| self.write(&entry.key, &entry.value))
    }

    /// Removes a key.
    ///
    /// # Errors
    /// A failed write, or a store that does not support this.
    fn delete(&mut self, _key: &[u8]) -> Result<()> {
        bail!("this store does not support deletes here")
    }

    /// Removes all keys from `from` (included) to `to` (excluded), in one write.
    ///
    /// # Errors
    /// A failed write, or a store that does not support this.
    fn delete_range(&mut self, _from: &[u8], _to: &[u8]) -> Result<()> {
        bail!("this store does not support range deletes here")
    }
}

/// Writes the entries at positions `turns` of the load order, `batch` per write.
///
/// # Errors
/// A failed write.
pub fn load(
    writer: &mut dyn Writer,
    data: &Dataset,
    turns: std::ops::Range<u64>,
    batch: usize,
    mut tell: impl FnMut(u64),
) -> Result<()> {
    let mut entries = vec![EntryBuffer::default(); batch];
    let mut filled = 0;
    for (done, index) in (0u64..).zip(data.load_order(turns)) {
        data.entry(index, &mut entries[filled]);
        filled += 1;
        if filled == batch {
            writer.write_many(&entries)?;
            filled = 0;
        }
        if done % 65_536 == 0 {
            tell(done);
        }
    }
    writer.write_many(&entries[..filled])
}

/// Looks up present, absent and repeated keys in batches of several sizes, and checks every answer.
///
/// # Errors
/// A failed lookup or a wrong answer: a benchmark of a store that answers wrongly is worthless.
pub fn verify(reader: &mut dyn Reader, data: &Dataset) -> Result<()> {
    let mut value = Vec::new();
    let mut index = 0;
    for batch in [1usize, 2, 7, 64, 0, 200] {
        let picks: Vec<(u64, bool)> = (0..batch)
            .map(|at| {
                index = (index + 7919) % data.keys();
                // Every eleventh key is the first entry's, so that a batch has duplicates.
                (if at % 11 == 0 { 0 } else { index }, at % 3 != 1)
            })
            .collect();
        let keys: Vec<Vec<u8>> = picks
            .iter()
            .map(|&(index, present)| {
                if present {
                    data.present(index)
                } else {
                    data.absent(index)
                }
            })
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = reader.read(&keys)?;
        let expected = picks.iter().filter(|(_, present)| *present).count();
        ensure!(
            found == expected,
            "a batch of {batch} found {found} keys instead of {expected}"
        );
        for (at, &(index, present)) in picks.iter().enumerate() {
            data.value(index, &mut value);
            let expected = present.then_some(value.as_slice());
            ensure!(
                reader.value(at) == expected,
                "key {at} of a batch of {batch} ({:02x?}) got a wrong answer",
                keys[at]
            );
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::RwLock;

    type Map = BTreeMap<Vec<u8>, Vec<u8>>;

    /// An ordered map behind a lock, as a peer for tests; the strategy "wrong" gives wrong answers
    /// if `wrong` is set.
    pub(crate) struct MapEngine;

    pub(crate) struct MapStore(RwLock<Map>);

    struct MapReader<'a> {
        map: &'a RwLock<Map>,
        lies: bool,
        values: Vec<Option<Vec<u8>>>,
    }

    impl Engine for MapEngine {
        fn name(&self) -> &str {
            "map"
        }

        fn strategies(&self) -> Vec<String> {
            vec!["single".into(), "batch".into()]
        }

        fn open(&self, _need: &StoreRequirements) -> Result<Box<dyn Store>> {
            Ok(Box::new(MapStore(RwLock::default())))
        }

        fn supports(&self, feature: Feature) -> bool {
            feature != Feature::Ttl
        }

        fn open_keyspaces(
            &self,
            _place: &StoreLocation,
            keyspaces: &[KeyspaceSpec],
        ) -> Result<Vec<Box<dyn Store>>> {
            let store = |_: &KeyspaceSpec| Box::new(MapStore(RwLock::default())) as Box<dyn Store>;
            Ok(keyspaces.iter().map(store).collect())
        }
    }

    impl Store for MapStore {
        fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
            Ok(Box::new(MapReader {
                map: &self.0,
                lies: strategy == "wrong",
                values: Vec::new(),
            }))
        }

        fn writer(&self) -> Result<Box<dyn Writer + '_>> {
            Ok(Box::new(&self.0))
        }

        fn ingest(&self, next: &mut dyn FnMut(&mut EntryBuffer) -> Result<bool>) -> Result<()> {
            let mut entry = EntryBuffer::default();
            let mut all = Map::new();
            while next(&mut entry)? {
                all.insert(entry.key.clone(), entry.value.clone());
            }
            self.0.write().unwrap().extend(all);
            Ok(())
        }
    }

    impl Reader for MapReader<'_> {
        fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
            let map = self.map.read().unwrap();
            self.values = keys.iter().map(|&key| map.get(key).cloned()).collect();
            if self.lies
                && let Some(Some(value)) = self.values.last_mut()
                && let Some(byte) = value.last_mut()
            {
                *byte ^= 1;
            }
            Ok(self.values.iter().flatten().count())
        }

        fn value(&self, at: usize) -> Option<&[u8]> {
            self.values.get(at)?.as_deref()
        }

        fn scan(
            &mut self,
            from: &[u8],
            limit: usize,
            each: &mut dyn FnMut(&[u8], &[u8]),
        ) -> Result<usize> {
            let map = self.map.read().unwrap();
            let entries = map.range(from.to_vec()..).take(limit);
            Ok(entries.map(|(key, value)| each(key, value)).count())
        }

        fn scan_back(
            &mut self,
            from: &[u8],
            limit: usize,
            each: &mut dyn FnMut(&[u8], &[u8]),
        ) -> Result<usize> {
            let map = self.map.read().unwrap();
            let entries = map.range(..=from.to_vec()).rev().take(limit);
            Ok(entries.map(|(key, value)| each(key, value)).count())
        }
    }

    impl Writer for &RwLock<Map> {
        fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            RwLock::write(self)
                .unwrap()
                .insert(key.into(), value.into());
            Ok(())
        }

        fn delete(&mut self, key: &[u8]) -> Result<()> {
            RwLock::write(self).unwrap().remove(key);
            Ok(())
        }

        fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
            let mut map = RwLock::write(self).unwrap();
            map.retain(|key, _| !(from..to).contains(&key.as_slice()));
            Ok(())
        }
    }

    #[test]
    fn a_correct_store_passes_and_a_wrong_or_incomplete_one_fails() {
        let data = Dataset::new(300, 16, 0, 20).unwrap();
        let store = MapEngine.open(&StoreRequirements::of(&data, 0)).unwrap();
        load(&mut *store.writer().unwrap(), &data, 0..150, 1, |_| ()).unwrap();
        let verdict = |strategy| verify(&mut *store.reader(strategy).unwrap(), &data);
        let missing = verdict("single").unwrap_err().to_string();
        assert!(missing.contains("instead of"), "{missing}");
        load(&mut *store.writer().unwrap(), &data, 150..300, 7, |_| ()).unwrap();
        verdict("single").unwrap();
        let lie = verdict("wrong").unwrap_err().to_string();
        assert!(lie.contains("wrong answer"), "{lie}");
    }
}
