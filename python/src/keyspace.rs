//! `Keyspace`: a named keyspace of a store, and the base class of `Db`, which is the default
//! keyspace.

use forerun::Durability;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::errors::{exception, invalid, unknown};
use crate::items::{default_of, key_error};
use crate::keys::{Batch, Bytes, entries_of};
use crate::long::{run_in_pieces, run_long, write_batch};
use crate::reader::Reader;
use crate::source::Source;

/// Entries copied into a batch between two checks for signals.
const PIECE_ENTRIES: usize = 65_536;

/// A keyspace of a store: a separate set of keys. All keyspaces share one log.
#[pyclass(extends = Reader, subclass, frozen, module = "forerun")]
pub(crate) struct Keyspace {
    name: String,
}

impl Keyspace {
    /// The object with its base class.
    pub(crate) fn layers(
        what: &'static str,
        db: forerun::Db,
        space: forerun::Keyspace,
    ) -> PyClassInitializer<Keyspace> {
        let name = space.name().to_owned();
        let reader = Reader::new(what, Source::Keyspace(db, space));
        PyClassInitializer::from(reader).add_subclass(Keyspace { name })
    }

    /// The engine's handles to the store and the keyspace, unless the object is closed.
    pub(crate) fn handles(slf: &Bound<'_, Keyspace>) -> PyResult<(forerun::Db, forerun::Keyspace)> {
        match slf.as_super().get().source()? {
            Source::Keyspace(db, space) => Ok((db, space)),
            Source::Snapshot(..) => Err(invalid("a snapshot is read-only")),
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

    /// Writes an entry, in place of any former value of its key.
    fn put(
        slf: &Bound<'_, Keyspace>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (_, space) = Keyspace::handles(slf)?;
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        slf.py()
            .detach(|| space.put(key.as_ref(), value.as_ref()))
            .map_err(exception)
    }

    /// Writes many entries, all or none. `keys` are the same as for `get_many`. `values` are bytes
    /// or str, or an array of any type with one row per value; the rows are stored as they are in
    /// memory. `durability` is "buffered" (survives the process) or "synced" (survives the loss of
    /// power).
    #[pyo3(signature = (keys, values, *, durability="buffered"))]
    fn put_many(
        slf: &Bound<'_, Keyspace>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        durability: &str,
    ) -> PyResult<()> {
        let (db, space) = Keyspace::handles(slf)?;
        let durability = durability_of(durability)?;
        let (keys, values) = (Batch::keys(keys)?, Batch::values(values)?);
        let pairs = Batch::pairs(&keys, &values)?;
        let py = slf.py();
        let mut batch = forerun::WriteBatch::new();
        run_in_pieces(py, pairs.chunks(PIECE_ENTRIES), |piece| {
            let mut put = || {
                let mut batch = batch.keyspace(&space);
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
        let (_, space) = Keyspace::handles(slf)?;
        run_long(slf.py(), "flushing", move || space.flush())?.map_err(exception)
    }

    /// Merges the runs into one level. Useful after many writes and before many reads.
    fn compact(slf: &Bound<'_, Keyspace>) -> PyResult<()> {
        let (_, space) = Keyspace::handles(slf)?;
        run_long(slf.py(), "compacting", move || space.compact())?.map_err(exception)
    }

    /// Deletes a key. A missing key is not an error.
    fn delete(slf: &Bound<'_, Keyspace>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let ((_, space), key) = (Keyspace::handles(slf)?, Bytes::new(key, "key")?);
        slf.py()
            .detach(|| space.delete(key.as_ref()))
            .map_err(exception)
    }

    /// Deletes all keys from `start` (inclusive) to `end` (exclusive).
    fn delete_range(
        slf: &Bound<'_, Keyspace>,
        start: &Bound<'_, PyAny>,
        end: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (_, space) = Keyspace::handles(slf)?;
        let (start, end) = (Bytes::new(start, "bound")?, Bytes::new(end, "bound")?);
        slf.py()
            .detach(|| space.delete_range(start.as_ref(), end.as_ref()))
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
        let bytes = Bytes::new(key, "key")?;
        let value = py.detach(|| match keyspace.get(bytes.as_ref())? {
            Some(value) => keyspace.delete(bytes.as_ref()).map(|()| Some(value)),
            None => Ok(None),
        });
        match value.map_err(exception)? {
            Some(value) => Ok(PyBytes::new(py, &value).into_any()),
            None => default.ok_or_else(|| key_error(key)),
        }
    }

    /// Writes all entries of a mapping, or of an iterable of pairs, in one batch.
    #[pyo3(signature = (other, /))]
    fn update(slf: &Bound<'_, Keyspace>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let (keys, values) = entries_of(other)?;
        Keyspace::put_many(slf, keys.as_any(), values.as_any(), "buffered")
    }

    fn __repr__(slf: &Bound<'_, Keyspace>) -> String {
        let name = &slf.get().name;
        let closed = if slf.as_super().get().is_closed() {
            ", closed"
        } else {
            ""
        };
        format!("forerun.Keyspace({name:?}{closed})")
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
