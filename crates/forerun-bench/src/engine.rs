//! What the lookup benches ask of a store, be it Forerun's or a peer's.
//!
//! ```text
//!  Engine --open--> Store --reader(strategy)--> Reader   one a reading thread, made on it
//!    |                 \----writer()----------> Writer   one a writing thread, made on it
//!    name, strategies
//! ```
//!
//! All stores run the same code around these traits: the same keys, batches, threads, clock and
//! checks. The calls are dynamic and a batch costs one, a nanosecond or two, the same for all.

use crate::workload::{Dataset, EntryBuffer};
use anyhow::{Result, ensure};

/// A kind of store that can be measured.
pub trait Engine {
    /// The name that its rows carry.
    fn name(&self) -> &str;

    /// The ways of looking a batch up. The first one takes one key after the other; the others'
    /// speedups are relative to it, so it is measured whatever is asked for.
    fn strategies(&self) -> Vec<String>;

    /// An empty store, in memory, without a log, that can take all entries of `data` and
    /// `spare_entries` more versions of them.
    ///
    /// # Errors
    /// Whatever keeps the store from being made.
    fn open(&self, data: &Dataset, spare_entries: u64) -> Result<Box<dyn Store>>;

    /// A store that holds all entries of `data` already, if that is how such a store is made: the
    /// one of an engine that takes entries in key order only. Else it is opened empty and written.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    fn open_loaded(&self, data: &Dataset) -> Result<Option<Box<dyn Store>>> {
        let _ = data;
        Ok(None)
    }
}

/// A store that several threads read and write at once.
pub trait Store: Sync {
    /// A reader that looks up by one of [`Engine::strategies`].
    ///
    /// # Errors
    /// Whatever keeps it from being made.
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>>;

    /// A writer.
    ///
    /// # Errors
    /// Whatever keeps it from being made.
    fn writer(&self) -> Result<Box<dyn Writer + '_>>;

    /// What there is to tell of a loaded store, such as `("memory", "310 MB, huge pages")`.
    fn facts(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// One thread's lookups.
pub trait Reader {
    /// Looks all keys up, the values' bytes being copied out as for a user, and tells how many were
    /// found.
    ///
    /// # Errors
    /// A failed lookup.
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize>;

    /// The value that the last [`Reader::read`] found for its `at`-th key.
    fn value(&self, at: usize) -> Option<&[u8]>;
}

/// One thread's writes.
pub trait Writer {
    /// Sets a key to a value, in a write of its own.
    ///
    /// # Errors
    /// A failed write.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
}

/// Writes the entries that come at `turns` of the load order.
///
/// # Errors
/// A failed write.
pub fn load(
    writer: &mut dyn Writer,
    data: &Dataset,
    turns: std::ops::Range<u64>,
    mut tell: impl FnMut(u64),
) -> Result<()> {
    let mut entry = EntryBuffer::default();
    for (done, index) in (0u64..).zip(data.load_order(turns)) {
        data.entry(index, &mut entry);
        writer.write(&entry.key, &entry.value)?;
        if done % 65_536 == 0 {
            tell(done);
        }
    }
    Ok(())
}

/// Looks up present, absent and repeated keys in batches of several sizes and checks every answer.
///
/// # Errors
/// A failed lookup, or a wrong answer: a benchmark of a store that answers wrongly is worth
/// nothing.
pub fn verify(reader: &mut dyn Reader, data: &Dataset) -> Result<()> {
    let mut value = Vec::new();
    let mut index = 0;
    for batch in [1usize, 2, 7, 64, 0, 200] {
        let picks: Vec<(u64, bool)> = (0..batch)
            .map(|at| {
                index = (index + 7919) % data.keys();
                // Every eleventh asks for the first entry, so that a batch holds duplicates.
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

    /// An ordered map behind a lock, as a peer to test with; `wrong` makes the strategy "wrong"
    /// lie.
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

        fn open(&self, _data: &Dataset, _spare_entries: u64) -> Result<Box<dyn Store>> {
            Ok(Box::new(MapStore(RwLock::default())))
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
    }

    impl Writer for &RwLock<Map> {
        fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            RwLock::write(self)
                .unwrap()
                .insert(key.into(), value.into());
            Ok(())
        }
    }

    #[test]
    fn a_right_store_passes_and_a_lying_or_incomplete_one_does_not() {
        let data = Dataset::new(300, 16, 0, 20).unwrap();
        let store = MapEngine.open(&data, 0).unwrap();
        load(&mut *store.writer().unwrap(), &data, 0..150, |_| ()).unwrap();
        let verdict = |strategy| verify(&mut *store.reader(strategy).unwrap(), &data);
        let missing = verdict("single").unwrap_err().to_string();
        assert!(missing.contains("instead of"), "{missing}");
        load(&mut *store.writer().unwrap(), &data, 150..300, |_| ()).unwrap();
        verdict("single").unwrap();
        let lie = verdict("wrong").unwrap_err().to_string();
        assert!(lie.contains("wrong answer"), "{lie}");
    }
}
