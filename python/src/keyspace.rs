//! `Keyspace`: what of a store is under one name, and what `Db` is for the part without a name.

use forerun::Durability;
use pyo3::prelude::*;

use crate::errors::{exception, invalid, unknown};
use crate::keys::{Batch, Bytes};
use crate::long::{run_in_pieces, run_long, write_batch};
use crate::reader::Reader;
use crate::source::Source;

/// Entries copied into a batch between two looks for signals.
const PIECE_ENTRIES: usize = 65_536;

/// A keyspace of a store: keys of its own, written in one log with all others.
#[pyclass(extends = Reader, subclass, frozen, module = "forerun")]
pub(crate) struct Keyspace {
    name: String,
}

impl Keyspace {
    /// The object's two layers.
    pub(crate) fn layers(
        what: &'static str,
        db: forerun::Db,
        space: forerun::Keyspace,
    ) -> PyClassInitializer<Keyspace> {
        let name = space.name().to_owned();
        let reader = Reader::new(what, Source::Keyspace(db, space));
        PyClassInitializer::from(reader).add_subclass(Keyspace { name })
    }

    /// The engine's handles on the store and on the keyspace, unless the object was closed.
    pub(crate) fn handles(slf: &Bound<'_, Keyspace>) -> PyResult<(forerun::Db, forerun::Keyspace)> {
        match slf.as_super().get().source()? {
            Source::Keyspace(db, space) => Ok((db, space)),
            Source::Snapshot(..) => Err(invalid("a snapshot takes no writes")),
        }
    }
}

#[pymethods]
impl Keyspace {
    /// Its name; that of the part without one is "default".
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Writes an entry.
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

    /// Writes many entries, all or none. Keys are as `multi_get` takes them. Values are bytes or str, or an array with a row a
    /// value, of any type, whose rows are stored as they lie in memory.
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

    /// Puts everything written to the store so far into runs.
    fn flush(slf: &Bound<'_, Keyspace>) -> PyResult<()> {
        let (_, space) = Keyspace::handles(slf)?;
        run_long(slf.py(), "flushing", move || space.flush())?.map_err(exception)
    }

    /// Merges its runs into one level: for much reading, after much writing.
    fn compact(slf: &Bound<'_, Keyspace>) -> PyResult<()> {
        let (_, space) = Keyspace::handles(slf)?;
        run_long(slf.py(), "compacting", move || space.compact())?.map_err(exception)
    }

    /// Removes a key, whether it is there or not.
    fn delete(slf: &Bound<'_, Keyspace>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let ((_, space), key) = (Keyspace::handles(slf)?, Bytes::new(key, "key")?);
        slf.py()
            .detach(|| space.delete(key.as_ref()))
            .map_err(exception)
    }

    /// Removes all keys from `start` on, up to but without `end`.
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

    fn __delitem__(slf: &Bound<'_, Keyspace>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        Keyspace::delete(slf, key)
    }
}

/// How durable, by its name.
pub(crate) fn durability_of(name: &str) -> PyResult<Durability> {
    match name {
        "buffered" => Ok(Durability::Buffered),
        "synced" => Ok(Durability::Synced),
        other => Err(unknown("durability", other, "buffered, synced")),
    }
}
