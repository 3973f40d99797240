//! Hash maps as contenders of `bench hash`: hashbrown's `HashMap`, and papaya's and scc's, which
//! support reads during writes.
//!
//! | peer | `get` | hash |
//! |---|---|---|
//! | hashbrown | `get` | foldhash, its default |
//! | papaya | `get` under one pin per batch | foldhash; its default is SipHash, which is slower |
//! | scc | `read_sync` | likewise |
//!
//! None of them has a batched lookup.

use anyhow::{Result, bail};
use forerun_bench::hash::contender::{
    Contender, ContenderTable, Finder, GET, InsertOutcome, Isa, Updater,
};
use hashbrown::DefaultHashBuilder;

/// The operations of a map of `u64` to `u64` that the bench uses.
trait Map: Send + Sync + Sized {
    /// Its crate.
    const NAME: &'static str;
    /// Whether it can be changed while others read.
    const IS_SHARED: bool;
    /// Approximate bytes per entry, to know how many maps fit in memory.
    const ENTRY_BYTES: usize;

    /// An empty map with capacity for `entries`.
    fn with_capacity(entries: usize) -> Self;

    /// The number of slots and the memory in use, if known.
    fn slots_and_bytes(&self) -> Option<(usize, usize)> {
        None
    }

    fn len(&self) -> usize;

    fn insert(&mut self, key: u64, value: u64);

    /// Removes an entry, and returns whether it existed.
    fn take(&mut self, key: u64) -> bool;

    /// Looks up keys one at a time, and reports each result.
    fn get_each(&self, keys: &[u64], answer: impl FnMut(usize, Option<u64>));

    /// `insert` while others read, if it is shared.
    fn upsert(&self, _key: u64, _value: u64) -> Result<()> {
        bail!("{} does not support updates while others read", Self::NAME)
    }

    /// Removes while others read, if it is shared.
    fn remove(&self, _key: u64) -> Result<bool> {
        bail!("{} does not support updates while others read", Self::NAME)
    }
}

/// hashbrown's map.
pub type Hashbrown = hashbrown::HashMap<u64, u64>;
/// papaya's map.
pub type Papaya = papaya::HashMap<u64, u64, DefaultHashBuilder>;
/// scc's map.
pub type Scc = scc::HashMap<u64, u64, DefaultHashBuilder>;

impl Map for Hashbrown {
    const NAME: &'static str = "hashbrown";
    const IS_SHARED: bool = false;
    // Space for at most twice the entries, and a byte for each.
    const ENTRY_BYTES: usize = 2 * 17;

    fn with_capacity(entries: usize) -> Hashbrown {
        Hashbrown::with_capacity(entries)
    }

    fn slots_and_bytes(&self) -> Option<(usize, usize)> {
        let bytes = self.allocation_size();
        // A slot is an entry and a byte.
        Some((bytes / (size_of::<(u64, u64)>() + 1), bytes))
    }

    fn len(&self) -> usize {
        Hashbrown::len(self)
    }

    fn insert(&mut self, key: u64, value: u64) {
        Hashbrown::insert(self, key, value);
    }

    fn take(&mut self, key: u64) -> bool {
        Hashbrown::remove(self, &key).is_some()
    }

    #[inline]
    fn get_each(&self, keys: &[u64], mut answer: impl FnMut(usize, Option<u64>)) {
        for (at, key) in keys.iter().enumerate() {
            answer(at, self.get(key).copied());
        }
    }
}

impl Map for Papaya {
    const NAME: &'static str = "papaya";
    const IS_SHARED: bool = true;
    // Each entry is a separate allocation, besides about two slots of a pointer and a byte.
    const ENTRY_BYTES: usize = 32 + 4 * 9;

    fn with_capacity(entries: usize) -> Papaya {
        Papaya::with_capacity_and_hasher(entries, DefaultHashBuilder::default())
    }

    fn len(&self) -> usize {
        Papaya::len(self)
    }

    fn insert(&mut self, key: u64, value: u64) {
        self.pin().insert(key, value);
    }

    fn take(&mut self, key: u64) -> bool {
        self.pin().remove(&key).is_some()
    }

    #[inline]
    fn get_each(&self, keys: &[u64], mut answer: impl FnMut(usize, Option<u64>)) {
        let map = self.pin();
        for (at, key) in keys.iter().enumerate() {
            answer(at, map.get(key).copied());
        }
    }

    fn upsert(&self, key: u64, value: u64) -> Result<()> {
        self.pin().insert(key, value);
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<bool> {
        Ok(self.pin().remove(&key).is_some())
    }
}

impl Map for Scc {
    const NAME: &'static str = "scc";
    const IS_SHARED: bool = true;
    const ENTRY_BYTES: usize = 2 * 24;

    fn with_capacity(entries: usize) -> Scc {
        Scc::with_capacity_and_hasher(entries, DefaultHashBuilder::default())
    }

    fn len(&self) -> usize {
        Scc::len(self)
    }

    fn insert(&mut self, key: u64, value: u64) {
        self.upsert_sync(key, value);
    }

    fn take(&mut self, key: u64) -> bool {
        self.remove_sync(&key).is_some()
    }

    #[inline]
    fn get_each(&self, keys: &[u64], mut answer: impl FnMut(usize, Option<u64>)) {
        for (at, key) in keys.iter().enumerate() {
            answer(at, self.read_sync(key, |_, value| *value));
        }
    }

    fn upsert(&self, key: u64, value: u64) -> Result<()> {
        self.upsert_sync(key, value);
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<bool> {
        Ok(self.remove_sync(&key).is_some())
    }
}

/// A peer: the map of a crate.
pub struct Peer<M>(std::marker::PhantomData<fn() -> M>);

impl<M> Peer<M> {
    /// The peer.
    pub fn new() -> Peer<M> {
        Peer(std::marker::PhantomData)
    }
}

impl<M: Map + 'static> Contender<u64, u64> for Peer<M> {
    fn engine(&self) -> &str {
        M::NAME
    }

    fn design(&self) -> String {
        M::NAME.to_owned()
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned()]
    }

    fn isas(&self) -> Vec<Isa> {
        vec![Isa::Scalar]
    }

    fn is_shared(&self) -> bool {
        M::IS_SHARED
    }

    fn memory_bytes(&self, slots: usize, load_factor: f64) -> usize {
        (slots as f64 * load_factor) as usize * M::ENTRY_BYTES
    }

    fn open(&self, slots: usize, load_factor: f64) -> Result<Box<dyn ContenderTable<u64, u64>>> {
        let entries = (slots as f64 * load_factor) as usize;
        Ok(Box::new(Filled(M::with_capacity(entries))))
    }
}

struct Filled<M>(M);

impl<M: Map> ContenderTable<u64, u64> for Filled<M> {
    fn insert(&mut self, keys: &[u64], values: &[u64]) -> Result<InsertOutcome> {
        for (key, value) in keys.iter().zip(values) {
            self.0.insert(*key, *value);
        }
        Ok(InsertOutcome::All)
    }

    fn remove(&mut self, keys: &[u64]) -> usize {
        keys.iter().filter(|&&key| self.0.take(key)).count()
    }

    fn finder(&self, strategy: &str) -> Result<Box<dyn Finder<u64, u64> + '_>> {
        if strategy != GET {
            bail!("{} has no strategy {strategy:?}", M::NAME);
        }
        Ok(Box::new(Of(&self.0)))
    }

    fn updater(&self) -> Option<Box<dyn Updater<u64, u64> + '_>> {
        M::IS_SHARED.then(|| Box::new(Of(&self.0)) as Box<dyn Updater<u64, u64>>)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn slots(&self) -> Option<usize> {
        Some(self.0.slots_and_bytes()?.0)
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.0.slots_and_bytes()?.1)
    }

    fn lines_touched(&self, _key: u64) -> Option<u32> {
        None
    }
}

struct Of<'a, M>(&'a M);

impl<M: Map> Finder<u64, u64> for Of<'_, M> {
    fn find(&mut self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        let mut found_count = 0;
        self.0.get_each(keys, |at, value| {
            found[at] = value.is_some();
            values[at] = value.unwrap_or_default();
            found_count += usize::from(value.is_some());
        });
        found_count
    }
}

impl<M: Map> Updater<u64, u64> for Of<'_, M> {
    fn upsert(&mut self, key: u64, value: u64) -> Result<()> {
        self.0.upsert(key, value)
    }

    fn remove(&mut self, key: u64) -> Result<bool> {
        self.0.remove(key)
    }
}
