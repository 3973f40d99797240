//! `Cache`: byte strings in bounded memory.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use forerun::cache::{
    Arithmetic, ArithmeticResult, CacheOptions, Clock, Crawler, Delete, DeleteResult, Expiry,
    Store, StoreMode, StoreResult,
};
use forerun::process::ProcessBound;
use numpy::PyArray1;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::cache_handle::{CacheInUse, SharedCache};
use crate::cache_items::{CacheItems, take_any};
use crate::cache_lookup::FoundValues;
use crate::cache_stores::{KEY_BYTES, store_all};
use crate::engine_handle::drop_detached;
use crate::errors::{cache_exception, closed, forked, invalid, is_forked, too_large};
use crate::items::{Shown, default_of, key_error};
use crate::keys::{Batch, Bytes, entries_of};
use crate::new_objects::{bytes, list_of_bytes, out_of_memory};
use crate::numeric_arguments;
use crate::rows::{Rows, expect_no_found};
use crate::stats;
use crate::store_options::{Size, bytes_of};
use crate::views;

/// The default memory limit.
const DEFAULT_LIMIT: Size = Size(64 << 20);

/// A cache of byte strings within a hard memory limit.
///
/// `memory_limit_bytes`: the maximum memory for entries and index together; a full cache evicts
/// entries that are seldom used. `max_item_bytes`: the maximum size of an entry: key, value and 32
/// bytes; by default 1 MiB, or half of the memory limit if that is less. A size is a number of
/// bytes, or a text such as "2GiB" or "512MB".
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Cache {
    /// `None` once it is closed. Running calls keep the memory until they return.
    cache: RwLock<Option<SharedCache>>,
    /// Where the next `popitem` continues. It holds keys of one part of the index, and no values.
    /// If each call began a new crawl, emptying a cache with `popitem` would take quadratic time.
    popping: Mutex<Crawler>,
}

impl Cache {
    /// The cache with its clock set to the current second, unless it is closed.
    fn open(&self) -> PyResult<CacheInUse> {
        let cache = self.cache.read();
        let cache = cache.unwrap_or_else(PoisonError::into_inner);
        let cache = cache.clone().ok_or_else(|| closed("cache"))?;
        CacheInUse::new(cache).map_err(forked)
    }

    fn is_closed(&self) -> bool {
        let cache = self.cache.read();
        cache.unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn look_up(&self, py: Python<'_>, keys: &[&[u8]]) -> PyResult<FoundValues> {
        let cache = self.open()?;
        py.detach(|| FoundValues::of(&cache, keys))
            .map_err(out_of_memory)
    }

    fn store(
        &self,
        py: Python<'_>,
        entry: (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
        ttl_seconds: Option<u32>,
        mode: StoreMode,
        compare_cas: Option<u64>,
    ) -> PyResult<Option<u64>> {
        let (key, value) = (Bytes::new(entry.0, "key")?, Bytes::new(entry.1, "value")?);
        check_key(key.as_ref())?;
        let cache = self.open()?;
        let expiry = expiry(&cache, ttl_seconds);
        let stored = py.detach(|| {
            cache.store(Store {
                expiry,
                mode,
                compare_cas,
                ..Store::set(key.as_ref(), value.as_ref())
            })
        });
        match stored {
            StoreResult::Stored { cas } => Ok(Some(cas)),
            StoreResult::NotStored | StoreResult::Exists | StoreResult::NotFound => Ok(None),
            StoreResult::InvalidKey => Err(invalid_key(key.as_ref())),
            StoreResult::TooLarge => Err(invalid(format!(
                "the item is too large for this cache: it may have at most {} bytes (value: {}, \
                 key: {})",
                cache.options().max_item_bytes,
                value.as_ref().len(),
                key.as_ref().len(),
            ))),
            StoreResult::OutOfMemory | StoreResult::Forked => {
                Err(too_large("the cache is full and nothing may be evicted"))
            }
        }
    }

    fn count(&self, py: Python<'_>, arithmetic: Arithmetic<'_>) -> PyResult<Option<u64>> {
        check_key(arithmetic.key)?;
        let cache = self.open()?;
        let counted = py.detach(|| cache.arithmetic(arithmetic));
        match counted {
            ArithmeticResult::Changed { value, .. } => Ok(Some(value)),
            ArithmeticResult::NotFound | ArithmeticResult::Exists => Ok(None),
            ArithmeticResult::InvalidKey => Err(invalid_key(arithmetic.key)),
            ArithmeticResult::NotANumber => Err(invalid(
                "the value is not a decimal number that fits 64 bits",
            )),
            ArithmeticResult::OutOfMemory | ArithmeticResult::Forked => {
                Err(too_large("the cache is full and nothing may be evicted"))
            }
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let cache = self.cache.get_mut();
        drop_detached(cache.unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn check_key(key: &[u8]) -> PyResult<()> {
    let is_valid = KEY_BYTES.contains(&key.len());
    is_valid.then_some(()).ok_or_else(|| invalid_key(key))
}

fn invalid_key(key: &[u8]) -> PyErr {
    invalid(format!(
        "a key has {} to {} bytes, and this one has {}",
        KEY_BYTES.start(),
        KEY_BYTES.end(),
        key.len()
    ))
}

/// When an entry with this time to live expires.
fn expiry(cache: &forerun::cache::Cache, ttl_seconds: Option<u32>) -> Expiry {
    match ttl_seconds {
        None => Expiry::Never,
        Some(seconds) => Expiry::At(cache.now().saturating_add(seconds)),
    }
}

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(
        signature = (memory_limit_bytes=DEFAULT_LIMIT, *, max_item_bytes=None),
        text_signature = "(memory_limit_bytes=67108864, *, max_item_bytes=None)"
    )]
    fn new(
        py: Python<'_>,
        memory_limit_bytes: Size,
        max_item_bytes: Option<Size>,
    ) -> PyResult<Cache> {
        let default = CacheOptions::default();
        let options = CacheOptions::default()
            .memory_limit_bytes(memory_limit_bytes.0)
            // Each call advances it. A thread would make Python warn of every fork.
            .clock(Clock::Manual)
            .max_item_bytes(bytes_of(max_item_bytes).unwrap_or(default.max_item_bytes));
        let cache = py.detach(|| forerun::cache::Cache::new(options));
        let cache = Arc::new(ProcessBound::new(cache.map_err(cache_exception)?));
        Ok(Cache {
            cache: RwLock::new(Some(cache)),
            popping: Mutex::default(),
        })
    }

    /// Returns the value of a key, or `default` if the key is missing.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (cache, key) = (self.open()?, Bytes::new(key, "key")?);
        let guard = cache.pin();
        let item = guard.get(key.as_ref());
        match item {
            Some(item) => Ok(Some(bytes(py, item.value())?.into_any())),
            None => Ok(default),
        }
    }

    /// Returns the value of a key and its version, for `compare_and_set`; `None` if the key is
    /// missing.
    fn gets<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let (cache, key) = (self.open()?, Bytes::new(key, "key")?);
        let guard = cache.pin();
        let item = guard.get(key.as_ref());
        item.map(|item| Ok((bytes(py, item.value())?, item.cas())))
            .transpose()
    }

    /// Looks up a batch of keys: returns a list of their values, in order, with `None` for each
    /// missing key.
    ///
    /// With `out`, an array of any type whose rows have as many bytes as each value, it copies the
    /// values into the rows instead and returns which keys were found, as an array of bool
    /// (`found`, if that is given). Rows of missing keys keep their content.
    #[pyo3(signature = (keys, *, out=None, found=None))]
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        found: Option<Bound<'py, PyArray1<bool>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = Batch::keys(keys)?;
        let keys = keys.slices()?;
        if let Some(out) = out {
            let mut rows = Rows::new(keys.len(), out, found)?;
            rows.fill(py, 0, self.look_up(py, &keys)?.iter().map(Ok))?;
            return Ok(rows.into_found().into_any());
        }
        expect_no_found(found.as_ref())?;
        let values = self.look_up(py, &keys)?;
        Ok(list_of_bytes(py, keys.len(), values.iter())?.into_any())
    }

    /// Stores a value and returns its version. With `ttl_seconds` it expires after that time.
    #[pyo3(signature = (key, value, *, ttl_seconds=None))]
    fn set(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<Option<u64>> {
        self.store(py, (key, value), ttl_seconds, StoreMode::Set, None)
    }

    /// Stores a value if the key is missing. Returns the new version, or `None` if the key exists.
    #[pyo3(signature = (key, value, *, ttl_seconds=None))]
    fn add(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<Option<u64>> {
        self.store(py, (key, value), ttl_seconds, StoreMode::Add, None)
    }

    /// Stores a value if the key exists. Returns the new version, or `None` if the key is missing.
    #[pyo3(signature = (key, value, *, ttl_seconds=None))]
    fn replace(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<Option<u64>> {
        self.store(py, (key, value), ttl_seconds, StoreMode::Replace, None)
    }

    /// Stores a value if the key still has this version (from `gets`). Returns the new version, or
    /// `None` otherwise.
    #[pyo3(signature = (key, value, version, *, ttl_seconds=None))]
    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::version)] version: u64,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<Option<u64>> {
        self.store(py, (key, value), ttl_seconds, StoreMode::Set, Some(version))
    }

    /// Stores many values. `keys` and `values` have the same forms as in `Db.put_many`.
    #[pyo3(signature = (keys, values, *, ttl_seconds=None))]
    fn set_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<()> {
        let (keys, values) = (Batch::keys(keys)?, Batch::values(values)?);
        let pairs = Batch::pairs(&keys, &values)?;
        let cache = self.open()?;
        let expiry = expiry(&cache, ttl_seconds);
        let refused = py.detach(|| store_all(&cache, &pairs, expiry));
        match refused {
            None => Ok(()),
            Some(position) => Err(invalid(format!(
                "entry {position}, of {} and {} bytes, does not fit in this cache; those before it \
                 are stored",
                pairs[position].0.len(),
                pairs[position].1.len()
            ))),
        }
    }

    /// Deletes a key. Returns whether it existed.
    fn delete(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (cache, key) = (self.open()?, Bytes::new(key, "key")?);
        let deleted = py.detach(|| cache.delete(Delete::key(key.as_ref())));
        Ok(deleted == DeleteResult::Deleted)
    }

    /// Deletes a key and returns its value. If the key is missing, returns `default`, or raises
    /// `KeyError` if there is none.
    ///
    /// The lookup and the deletion are two operations: another thread may change the key in
    /// between.
    #[pyo3(signature = (key, /, *default), text_signature = "($self, key, default=..., /)")]
    fn pop<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let default = default_of(default)?;
        match self.get(py, key, None)? {
            Some(value) => {
                self.delete(py, key)?;
                Ok(value)
            }
            None => default.ok_or_else(|| key_error(key)),
        }
    }

    /// Deletes an entry and returns it; which one is not specified. Raises `KeyError` if there is
    /// none.
    ///
    /// The lookup and the deletion are two operations: another thread may change the key in
    /// between.
    fn popitem<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let cache = self.open()?;
        let take = || {
            let crawler = self.popping.lock();
            take_any(&mut crawler.unwrap_or_else(PoisonError::into_inner), &cache)
        };
        match py.detach(take)? {
            Some((key, value)) => Ok((bytes(py, &key)?, bytes(py, &value)?)),
            None => Err(PyKeyError::new_err("the cache is empty")),
        }
    }

    /// Returns the value of a key. If the key is missing, stores `default` and returns that.
    /// `ttl_seconds` applies to the default.
    #[pyo3(signature = (key, default, /, *, ttl_seconds=None))]
    fn setdefault<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        loop {
            if let Some(value) = self.get(py, key, None)? {
                return Ok(value);
            }
            let stored = self.store(py, (key, default), ttl_seconds, StoreMode::Add, None)?;
            if stored.is_some() {
                let default = Bytes::new(default, "value")?;
                return Ok(bytes(py, default.as_ref())?.into_any());
            }
            // Another thread stored the key in between.
            py.check_signals()?;
        }
    }

    /// Stores all entries of a mapping, or of an iterable of pairs.
    #[pyo3(signature = (other, /, *, ttl_seconds=None))]
    fn update(
        &self,
        py: Python<'_>,
        other: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<()> {
        let (keys, values) = entries_of(other)?;
        self.set_many(py, keys.as_any(), values.as_any(), ttl_seconds)
    }

    /// Makes an entry expire after `ttl_seconds`, or never if it is `None`. Returns whether the key
    /// exists.
    #[pyo3(signature = (key, ttl_seconds=None))]
    fn touch(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<bool> {
        let (cache, key) = (self.open()?, Bytes::new(key, "key")?);
        let expiry = expiry(&cache, ttl_seconds);
        Ok(py.detach(|| cache.touch(key.as_ref(), expiry)))
    }

    /// Adds to a decimal number and returns the sum, modulo 2**64, or `None` if the key is missing.
    #[pyo3(signature = (key, delta=1))]
    fn increment(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::delta)] delta: u64,
    ) -> PyResult<Option<u64>> {
        let key = Bytes::new(key, "key")?;
        self.count(py, Arithmetic::increment(key.as_ref(), delta))
    }

    /// Subtracts from a decimal number, down to 0, and returns the difference, or `None` if the key
    /// is missing.
    #[pyo3(signature = (key, delta=1))]
    fn decrement(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::delta)] delta: u64,
    ) -> PyResult<Option<u64>> {
        let key = Bytes::new(key, "key")?;
        self.count(py, Arithmetic::decrement(key.as_ref(), delta))
    }

    /// Deletes all entries.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.open()?;
        py.detach(|| cache.flush_all(cache.now()));
        Ok(())
    }

    /// Frees the memory. Every later call raises `ClosedError`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed() {
            return Ok(());
        }
        self.open()?;
        let cache = self.cache.write();
        let cache = cache.unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(cache));
        Ok(())
    }

    /// Whether the cache is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// Returns a view of the keys, in no order. A key that is written while an iterator runs may
    /// appear twice.
    fn keys<'py>(slf: &Bound<'py, Cache>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().open()?;
        views::new(slf.as_any(), "KeysView", ())
    }

    /// Returns a view of the values, in no order. Like that of `keys`, it may show an entry twice.
    fn values<'py>(slf: &Bound<'py, Cache>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().open()?;
        views::new(slf.as_any(), "ValuesView", ())
    }

    /// Returns a view of the `(key, value)` pairs, in no order. Like that of `keys`, it may show an
    /// entry twice.
    fn items<'py>(slf: &Bound<'py, Cache>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().open()?;
        views::new(slf.as_any(), "ItemsView", ())
    }

    /// `reversed` would otherwise look up integers.
    #[classattr]
    fn __reversed__() -> Option<bool> {
        None
    }

    fn __iter__(&self) -> PyResult<CacheItems> {
        Ok(CacheItems::new(self.open()?.into_shared(), Shown::Keys))
    }

    /// Iterates over the entries of a view.
    fn _scan(&self, part: &str, range: views::Range) -> PyResult<CacheItems> {
        if range.3 {
            return Err(PyTypeError::new_err("a cache has no order to reverse"));
        }
        Ok(CacheItems::new(
            self.open()?.into_shared(),
            Shown::named(part)?,
        ))
    }

    /// Counts the entries of a view.
    fn _count(&self, _range: views::Range) -> PyResult<usize> {
        self.__len__()
    }

    /// Returns all metrics of the cache's statistics as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::dict(py, &self.open()?.stats())
    }

    /// The number of entries, including expired ones that are not reclaimed yet.
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.open()?.stats().items as usize)
    }

    /// An object that cannot be a key is not in the cache.
    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let cache = self.open()?;
        let Some(key) = Bytes::key_in_question(key)? else {
            return Ok(false);
        };
        Ok(cache.pin().peek(key.as_ref()).is_some())
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = self.get(py, key, None)?;
        value.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    fn __setitem__(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.set(py, key, value, None).map(drop)
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.delete(py, key)? {
            Ok(())
        } else {
            Err(PyKeyError::new_err(key.clone().unbind()))
        }
    }

    fn __enter__(slf: Bound<'_, Cache>) -> Bound<'_, Cache> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        // A fork that leaves the block leaves the cache to its parent.
        match self.close(py) {
            Err(error) if is_forked(py, &error) => Ok(()),
            closed => closed,
        }
    }

    fn __repr__(&self) -> String {
        match self.open() {
            Ok(cache) => {
                let stats = cache.stats();
                format!(
                    "forerun.Cache(memory_limit_bytes={}, memory_bytes={}, items={})",
                    stats.limit_bytes, stats.memory_bytes, stats.items
                )
            }
            Err(_) if self.is_closed() => "forerun.Cache(closed)".to_owned(),
            // A forked child cannot use its parent's cache.
            Err(_) => "forerun.Cache(of another process)".to_owned(),
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a cache is memory of this process and cannot be pickled: other processes reach one by \
             `forerun serve`",
        ))
    }
}
