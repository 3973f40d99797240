//! `Keyspace`: a named keyspace of a store, and the base class of `Db`, which is the default
//! keyspace.

use forerun::Durability;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::background_call::{run_in_pieces, run_long, write_batch};
use crate::errors::{exception, invalid, unknown};
use crate::items::{default_of, key_error};
use crate::keys::{Batch, Bytes, entries_of};
use crate::new_objects::bytes;
use crate::read_source::ReadSource;
use crate::reader::Reader;

/// Entries copied into a batch between two checks for signals.
const PIECE_ENTRIES: usize = 65_536;

/// A keyspace of a store: a separate set of keys. All keyspaces share one log.
#[pyclass(extends = Reader, subclass, frozen, module = "forerun")]
pub(crate) struct Keyspace {
    name: String,
    /// The store's default for writes.
    durability: Durability,
}

impl Keyspace {
    /// The object with its base class.
    pub(crate) fn layers(
        what: &'static str,
        db: forerun::Db,
        keyspace: forerun::Keyspace,
        durability: Durability,
    ) -> PyClassInitializer<Keyspace> {
        let name = keyspace.name().to_owned();
        let reader = Reader::new(what, ReadSource::Keyspace(db, keyspace));
        PyClassInitializer::from(reader).add_subclass(Keyspace { name, durability })
    }

    /// The named durability, or by default that of the store.
    pub(crate) fn durability_or(&self, name: Option<&str>) -> PyResult<Durability> {
        name.map_or(Ok(self.durability), durability_of)
    }

    /// Its size, tier by tier, for a `repr`.
    pub(crate) fn sizes(stats: &forerun::KeyspaceStats) -> String {
        let runs: usize = stats.levels.iter().map(|level| level.runs).sum();
        let bytes: u64 = stats.levels.iter().map(|level| level.bytes).sum();
        format!(
            "memtable_bytes={}, runs={runs}, run_bytes={bytes}",
            stats.memtable_bytes
        )
    }

    /// The parts of a `repr` after the name. `sizes` describes an open store. It takes the store's
    /// locks, so it runs while other Python threads run.
    pub(crate) fn shown(
        slf: &Bound<'_, Keyspace>,
        sizes: impl FnOnce(&forerun::Db, &forerun::Keyspace) -> String + Send,
    ) -> String {
        match Keyspace::handles(slf) {
            Ok((db, keyspace)) => slf.py().detach(|| sizes(&db, &keyspace)),
            Err(_) if slf.as_super().get().is_closed() => "closed".to_owned(),
            // A forked child cannot use its parent's store.
            Err(_) => "of another process".to_owned(),
        }
    }

    /// The engine's handles to the store and the keyspace, unless the object is closed.
    pub(crate) fn handles(slf: &Bound<'_, Keyspace>) -> PyResult<(forerun::Db, forerun::Keyspace)> {
        match slf.as_super().get().source()? {
            ReadSource::Keyspace(db, keyspace) => Ok((db, keyspace)),
            ReadSource::Snapshot(..) => Err(invalid("a snapshot is read-only")),
        }
    }
}

#[pymethods]
impl Keyspace {
    /// The name. A store's own keyspace has the empty name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Writes an entry, and replaces any former value of its key.
    fn put(
        slf: &Bound<'_, Keyspace>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (_, keyspace) = Keyspace::handles(slf)?;
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        slf.py()
            .detach(|| keyspace.put(key.as_ref(), value.as_ref()))
            .map_err(exception)
    }

    /// Writes many entries, all or none. `keys` are the same as for `multi_get`. `values` are bytes
    /// or str, or an array of any type with one row per value; the rows are stored as they are in
    /// memory. `durability` is "buffered" (survives the process) or "synced" (survives a power
    /// failure); the default is that of the store.
    #[pyo3(signature = (keys, values, *, durability=None))]
    fn put_many(
        slf: &Bound<'_, Keyspace>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        durability: Option<&str>,
    ) -> PyResult<()> {
        let (db, keyspace) = Keyspace::handles(slf)?;
        let durability = slf.get().durability_or(durability)?;
        let (keys, values) = (Batch::keys(keys)?, Batch::values(values)?);
        let pairs = Batch::pairs(&keys, &values)?;
        let py = slf.py();
        let mut batch = forerun::WriteBatch::new();
        run_in_pieces(py, pairs.chunks(PIECE_ENTRIES), |piece| {
            let mut put = || {
                let mut batch = batch.keyspace(&keyspace);
                piece
                    .iter()
                    .try_for_each(|(key, value)| batch.put(key, value))
            };
            py.detach(&mut put).map_err(exception)
        })?;
        write_batch(py, db, batch, durability)
    }

    /// Writes the memtables to disk.
    fn flush(slf: &Bound<'_, Keyspace>) -> PyResult<()> {
        let (_, keyspace) = Keyspace::handles(slf)?;
        run_long(slf.py(), "flushing", move || keyspace.flush())?.map_err(exception)
    }

    /// Merges the runs into one level. Useful after many writes and before many reads.
    fn compact(slf: &Bound<'_, Keyspace>) -> PyResult<()> {
        let (_, keyspace) = Keyspace::handles(slf)?;
        run_long(slf.py(), "compacting", move || keyspace.compact())?.map_err(exception)
    }

    /// Deletes a key. A missing key is not an error.
    fn delete(slf: &Bound<'_, Keyspace>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let ((_, keyspace), key) = (Keyspace::handles(slf)?, Bytes::new(key, "key")?);
        slf.py()
            .detach(|| keyspace.delete(key.as_ref()))
            .map_err(exception)
    }

    /// Deletes all keys from `start` (inclusive) to `end` (exclusive).
    fn delete_range(
        slf: &Bound<'_, Keyspace>,
        start: &Bound<'_, PyAny>,
        end: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (_, keyspace) = Keyspace::handles(slf)?;
        let (start, end) = (Bytes::new(start, "bound")?, Bytes::new(end, "bound")?);
        slf.py()
            .detach(|| keyspace.delete_range(start.as_ref(), end.as_ref()))
            .map_err(exception)
    }

    fn __setitem__(
        slf: &Bound<'_, Keyspace>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        Keyspace::put(slf, key, value)
    }

    /// Deletes a key. A missing key raises `KeyError`, unlike in `delete`.
    fn __delitem__(slf: &Bound<'_, Keyspace>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        Keyspace::pop(slf, key, &PyTuple::empty(slf.py())).map(drop)
    }

    /// Deletes a key and returns its value. If the key is missing, returns `default`, or raises
    /// `KeyError` if there is none.
    ///
    /// The lookup and the deletion are two operations: another writer may change the key in
    /// between.
    #[pyo3(signature = (key, /, *default), text_signature = "($self, key, default=..., /)")]
    fn pop<'py>(
        slf: &Bound<'py, Keyspace>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let default = default_of(default)?;
        let (py, (_, keyspace)) = (slf.py(), Keyspace::handles(slf)?);
        let removed = Bytes::new(key, "key")?;
        let value = py.detach(|| match keyspace.get(removed.as_ref())? {
            Some(value) => keyspace.delete(removed.as_ref()).map(|()| Some(value)),
            None => Ok(None),
        });
        match value.map_err(exception)? {
            Some(value) => Ok(bytes(py, &value)?.into_any()),
            None => default.ok_or_else(|| key_error(key)),
        }
    }

    /// Deletes the entry with the last key and returns it. Raises `KeyError` if there is none.
    ///
    /// The lookup and the deletion are two operations: another writer may change the entry in
    /// between.
    fn popitem<'py>(
        slf: &Bound<'py, Keyspace>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (py, (_, keyspace)) = (slf.py(), Keyspace::handles(slf)?);
        let last = py.detach(|| match keyspace.iter().next_back().transpose()? {
            Some(last) => keyspace.delete(&last.0).map(|()| Some(last)),
            None => Ok(None),
        });
        match last.map_err(exception)? {
            Some((key, value)) => Ok((bytes(py, &key)?, bytes(py, &value)?)),
            None => Err(PyKeyError::new_err("the keyspace is empty")),
        }
    }

    /// Returns the value of a key. If the key is missing, writes `default` and returns that.
    ///
    /// The lookup and the write are two operations: another writer may write the key in between.
    #[pyo3(signature = (key, default, /))]
    fn setdefault<'py>(
        slf: &Bound<'py, Keyspace>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (py, (_, keyspace)) = (slf.py(), Keyspace::handles(slf)?);
        let (key, default) = (Bytes::new(key, "key")?, Bytes::new(default, "value")?);
        let (key, default) = (key.as_ref(), default.as_ref());
        let value = py.detach(|| match keyspace.get(key)? {
            Some(value) => Ok(Some(value)),
            None => keyspace.put(key, default).map(|()| None),
        });
        let value = value.map_err(exception)?;
        bytes(py, value.as_deref().unwrap_or(default))
    }

    /// Deletes all entries: reads the first and the last key, and deletes that range in one batch.
    ///
    /// The lookup of the two keys and the deletion are two operations: a key that another writer
    /// adds in between stays if it sorts before the first key or after the last one.
    fn clear(slf: &Bound<'_, Keyspace>) -> PyResult<()> {
        let (py, (db, keyspace)) = (slf.py(), Keyspace::handles(slf)?);
        let durability = slf.get().durability;
        let clear = || -> Result<(), forerun::DbError> {
            let mut entries = keyspace.iter();
            let Some((first, _)) = entries.next().transpose()? else {
                return Ok(());
            };
            let last = entries.next_back().transpose()?.map(|(last, _)| last);
            let mut batch = forerun::WriteBatch::new();
            let mut of_keyspace = batch.keyspace(&keyspace);
            if let Some(last) = &last {
                of_keyspace.delete_range(&first, last)?;
            }
            // The end of a range is exclusive.
            of_keyspace.delete(last.as_ref().unwrap_or(&first))?;
            db.write(&batch, durability).map(drop)
        };
        py.detach(clear).map_err(exception)
    }

    /// Writes all entries of a mapping, or of an iterable of pairs, in one batch. `durability` as
    /// for `put_many`.
    #[pyo3(signature = (other, /, *, durability=None))]
    fn update(
        slf: &Bound<'_, Keyspace>,
        other: &Bound<'_, PyAny>,
        durability: Option<&str>,
    ) -> PyResult<()> {
        let (keys, values) = entries_of(other)?;
        Keyspace::put_many(slf, keys.as_any(), values.as_any(), durability)
    }

    fn __repr__(slf: &Bound<'_, Keyspace>) -> String {
        let name = &slf.get().name;
        let shown = Keyspace::shown(slf, |_, keyspace| Keyspace::sizes(&keyspace.stats()));
        format!("forerun.Keyspace({name:?}, {shown})")
    }
}

/// Parses a durability.
pub(crate) fn durability_of(name: &str) -> PyResult<Durability> {
    match name {
        "buffered" => Ok(Durability::Buffered),
        "synced" => Ok(Durability::Synced),
        other => Err(unknown("durability", other, "buffered, synced")),
    }
}
