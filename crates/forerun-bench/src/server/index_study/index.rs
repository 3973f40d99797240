//! The indexes under study, behind one trait. All except the cache find items in the same arena.
//!
//! ```text
//!   key ── hash ──> 64 bits ── probe ──> location ──> item: is this its key? ──> value
//!                              MemC3 reads the items that its tags match, within the probe
//! ```

use super::index_name::{IndexDesign, IndexName};
use crate::item_arena::ItemArena;
use crate::memc3_index::{MemC3Index, slots_for};
use crate::server::data::{Items, KEY_BYTES};
use anyhow::{Context, Result, bail, ensure};
use foldhash::quality::FixedState;
use forerun_cache::{Cache, CacheOptions, Item, Store, StoreResult};
use forerun_hash::{HashTable, HashTableOptions};
use forerun_studies::designs::{FixedTable, Lookup, build};
use std::hash::{BuildHasher, Hasher};

/// A fixed seed, so that keys go to the same places in every run.
const SEED: u64 = 0x5eed;
/// The load factor of a production table that holds as many entries as its capacity.
const PLANNED_LOAD: f64 = 0.95;
/// The memory of a cache for each item, in addition to its key and value.
const CACHE_OVERHEAD_BYTES: usize = 100;

/// Takes the values of a batch's keys, those that are present.
pub(super) type Answer<'a> = dyn FnMut(&[Option<&[u8]>]) + 'a;

/// Maps keys to values. It is filled and then read by one thread.
pub(super) trait Index {
    /// Hashes the keys, in place of the content of `hashes`.
    fn hash(&self, keys: &[&[u8]], hashes: &mut Vec<u64>);

    /// Looks the keys up, and passes the value of each key that is present to `answer`, which is
    /// called once.
    fn probe(&mut self, keys: &[&[u8]], hashes: &[u64], answer: &mut Answer<'_>);

    /// Bytes of the index, without the items.
    fn index_bytes(&self) -> usize;
}

/// Builds the index of that name and fills it with the items.
///
/// # Errors
/// The items do not fit.
pub(super) fn filled(name: IndexName, items: Items) -> Result<Box<dyn Index>> {
    let slots = slots_for(items.count as usize);
    Ok(match name.design {
        IndexDesign::MemC3 => Box::new(Tagged::filled(items)?),
        IndexDesign::Cache => Box::new(Cached::filled(items, name.lookup)?),
        IndexDesign::Table => {
            let capacity = (slots as f64 * PLANNED_LOAD) as usize;
            let options = HashTableOptions::default().capacity(capacity).seed(SEED);
            let table = Production(HashTable::with_options(options)?);
            Box::new(Hashed::filled(table, items, name.lookup)?)
        }
        IndexDesign::Studied(design) => {
            let table = Studied(build::<u64, u64>(design, slots, name.isa, SEED)?);
            Box::new(Hashed::filled(table, items, name.lookup)?)
        }
    })
}

/// Hashes byte strings to 64 bits.
struct KeyHasher(FixedState);

impl KeyHasher {
    fn new() -> KeyHasher {
        KeyHasher(FixedState::with_seed(SEED))
    }

    #[inline(always)]
    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    fn hash_all(&self, keys: &[&[u8]], hashes: &mut Vec<u64>) {
        hashes.clear();
        hashes.extend(keys.iter().map(|key| self.hash(key)));
    }
}

/// Appends each item to the arena, and passes its hash and location to `insert`.
fn fill(
    items: Items,
    hasher: &KeyHasher,
    mut insert: impl FnMut(u64, u64) -> Result<()>,
) -> Result<ItemArena> {
    let mut arena = ItemArena::new(items.count as usize, KEY_BYTES, items.value_bytes)?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for number in 0..items.count {
        key.clear();
        value.clear();
        items.push_key(number, &mut key);
        items.push_value(number, &mut value);
        let location = arena.push(&key, &value);
        let location = location.context("the memory for items is full")?;
        insert(hasher.hash(&key), location).with_context(|| format!("item {number}"))?;
    }
    Ok(arena)
}

/// MemC3's index, one key after the other, as in its paper.
struct Tagged {
    hasher: KeyHasher,
    index: MemC3Index,
    arena: ItemArena,
}

impl Tagged {
    fn filled(items: Items) -> Result<Tagged> {
        let hasher = KeyHasher::new();
        let mut index = MemC3Index::new(items.count as usize)?;
        let arena = fill(items, &hasher, |hash, location| {
            ensure!(index.insert(hash, location), "MemC3's index is full");
            Ok(())
        })?;
        Ok(Tagged {
            hasher,
            index,
            arena,
        })
    }
}

impl Index for Tagged {
    fn hash(&self, keys: &[&[u8]], hashes: &mut Vec<u64>) {
        self.hasher.hash_all(keys, hashes);
    }

    fn probe(&mut self, keys: &[&[u8]], hashes: &[u64], answer: &mut Answer<'_>) {
        let values = keys.iter().zip(hashes).map(|(key, &hash)| {
            let value_of = |location| self.arena.value_of(location, key);
            self.index.find(hash, value_of)
        });
        answer(&values.collect::<Vec<_>>());
    }

    fn index_bytes(&self) -> usize {
        self.index.memory_bytes()
    }
}

/// A table from hashes to locations.
trait Locations {
    fn insert(&mut self, hash: u64, location: u64) -> Result<Option<u64>>;
    fn get(&self, hash: u64) -> Option<u64>;
    fn find(&self, hashes: &[u64], locations: &mut [u64], found: &mut [bool], lookup: Lookup);
    fn memory_bytes(&self) -> usize;
}

struct Studied(Box<dyn FixedTable<u64, u64>>);

impl Locations for Studied {
    fn insert(&mut self, hash: u64, location: u64) -> Result<Option<u64>> {
        Ok(self.0.insert(hash, location)?)
    }

    fn get(&self, hash: u64) -> Option<u64> {
        self.0.get(hash)
    }

    fn find(&self, hashes: &[u64], locations: &mut [u64], found: &mut [bool], lookup: Lookup) {
        self.0.find(hashes, locations, found, lookup);
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

struct Production(HashTable);

impl Locations for Production {
    fn insert(&mut self, hash: u64, location: u64) -> Result<Option<u64>> {
        Ok(self.0.insert(hash, location)?)
    }

    fn get(&self, hash: u64) -> Option<u64> {
        self.0.get(hash)
    }

    fn find(&self, hashes: &[u64], locations: &mut [u64], found: &mut [bool], _: Lookup) {
        self.0.find(hashes, locations, found);
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

/// A table of hashes, whose answers are compared with the keys of the items.
struct Hashed<T> {
    hasher: KeyHasher,
    table: T,
    lookup: Lookup,
    arena: ItemArena,
    locations: Vec<u64>,
    found: Vec<bool>,
}

impl<T: Locations> Hashed<T> {
    fn filled(mut table: T, items: Items, lookup: Lookup) -> Result<Hashed<T>> {
        let hasher = KeyHasher::new();
        let arena = fill(items, &hasher, |hash, location| {
            match table.insert(hash, location)? {
                None => Ok(()),
                Some(_) => bail!("another key has the hash {hash:#x}"),
            }
        })?;
        Ok(Hashed {
            hasher,
            table,
            lookup,
            arena,
            locations: Vec::new(),
            found: Vec::new(),
        })
    }
}

impl<T: Locations> Index for Hashed<T> {
    fn hash(&self, keys: &[&[u8]], hashes: &mut Vec<u64>) {
        self.hasher.hash_all(keys, hashes);
    }

    fn probe(&mut self, keys: &[&[u8]], hashes: &[u64], answer: &mut Answer<'_>) {
        let Hashed {
            table,
            arena,
            locations,
            found,
            ..
        } = self;
        if self.lookup == Lookup::Single {
            let values = keys.iter().zip(hashes).map(|(key, &hash)| {
                let location = table.get(hash);
                location.and_then(|location| arena.value_of(location, key))
            });
            return answer(&values.collect::<Vec<_>>());
        }
        locations.resize(hashes.len(), 0);
        found.resize(hashes.len(), false);
        table.find(hashes, locations, found, self.lookup);
        let hits = locations.iter().zip(&*found).filter(|(_, found)| **found);
        hits.for_each(|(&location, _)| arena.prefetch(location));
        let hits = keys.iter().zip(&*locations).zip(&*found);
        let values = hits.map(|((key, &location), &found)| {
            found.then(|| arena.value_of(location, key)).flatten()
        });
        answer(&values.collect::<Vec<_>>());
    }

    fn index_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}

/// The production cache. It hashes keys as a part of its lookup.
struct Cached {
    cache: Cache,
    lookup: Lookup,
}

impl Cached {
    fn filled(items: Items, lookup: Lookup) -> Result<Cached> {
        let item_bytes = KEY_BYTES + items.value_bytes + CACHE_OVERHEAD_BYTES;
        let cache = Cache::new(
            CacheOptions::default()
                .memory_limit_bytes(items.count as usize * item_bytes * 3 / 2 + (64 << 20))
                .max_item_bytes(items.value_bytes.max(1 << 20) + 1024),
        )?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for number in 0..items.count {
            key.clear();
            value.clear();
            items.push_key(number, &mut key);
            items.push_value(number, &mut value);
            let stored = cache.store(Store::set(&key, &value[..]));
            ensure!(
                matches!(stored, StoreResult::Stored { .. }),
                "the cache does not take item {number}: {stored:?}"
            );
        }
        ensure!(cache.stats().evictions == 0, "the cache is too small");
        Ok(Cached { cache, lookup })
    }
}

impl Index for Cached {
    fn hash(&self, _: &[&[u8]], hashes: &mut Vec<u64>) {
        hashes.clear();
    }

    fn probe(&mut self, keys: &[&[u8]], _: &[u64], answer: &mut Answer<'_>) {
        /// The server looks up at most so many keys together.
        const CHUNK_KEYS: usize = 128;
        fn value_of<'g>(item: &Option<Item<'g>>) -> Option<&'g [u8]> {
            item.as_ref().map(Item::value)
        }
        if self.lookup == Lookup::Single {
            let guard = self.cache.pin();
            let values = keys.iter().map(|key| value_of(&guard.get(key)));
            return answer(&values.collect::<Vec<_>>());
        }
        let guard = self.cache.pin();
        let mut found = vec![None; keys.len()];
        for (keys, found) in keys.chunks(CHUNK_KEYS).zip(found.chunks_mut(CHUNK_KEYS)) {
            let looked_up = guard.multi_get_slices(keys, found);
            debug_assert!(looked_up.is_ok(), "both chunks have the same length");
        }
        answer(&found.iter().map(value_of).collect::<Vec<_>>());
    }

    fn index_bytes(&self) -> usize {
        self.cache.stats().index_bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::arch::Isa;
    use forerun_studies::designs::Design;

    #[test]
    fn every_index_finds_every_item_and_no_other() {
        let items = Items {
            count: 3000,
            value_bytes: 37,
        };
        let mut names = IndexName::defaults();
        for &design in Design::ALL {
            let reaches_load = !matches!(design, Design::MemC3 | Design::Cuckoo2 | Design::Dlht);
            let lookups = design.lookups().iter().filter(|_| reaches_load);
            names.extend(lookups.flat_map(|&lookup| {
                let isas = Isa::ALL.into_iter().filter(|isa| isa.is_available());
                isas.map(move |isa| IndexName {
                    design: IndexDesign::Studied(design),
                    lookup,
                    isa,
                })
            }));
        }
        for design in ["table/get", "cache/get"] {
            names.push(design.parse().unwrap());
        }
        for name in names {
            let mut index = filled(name, items).unwrap();
            // Present keys, absent ones and repetitions.
            let numbers: Vec<u64> = (0..700).map(|n| n * 7919 % 4000).chain([5, 5]).collect();
            let keys: Vec<Vec<u8>> = numbers
                .iter()
                .map(|&n| text(|out| items.push_key(n, out)))
                .collect();
            let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let mut hashes = Vec::new();
            let mut calls = 0;
            index.hash(&slices, &mut hashes);
            index.probe(&slices, &hashes, &mut |values| {
                calls += 1;
                assert_eq!(values.len(), numbers.len());
                for (&number, value) in numbers.iter().zip(values) {
                    let expected = text(|out| items.push_value(number, out));
                    let expected = (number < items.count).then_some(&expected[..]);
                    assert_eq!(*value, expected, "{name}: item {number}");
                }
            });
            assert_eq!(calls, 1, "{name}");
            assert!(index.index_bytes() >= 4096 * 4, "{name}");
        }
    }

    fn text(push: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        push(&mut out);
        out
    }
}
