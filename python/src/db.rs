//! `Db`, its snapshots and its batches of writes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forerun::{Create, Durability, Options, WalMode};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::{exception, invalid, unknown};
use crate::keys::{Batch, Bytes};
use crate::reader::{Reader, Source};

/// An ordered, durable store of bytes under bytes in a directory.
#[pyclass(extends = Reader, frozen, module = "forerun")]
pub(crate) struct Db {
    path: PathBuf,
}

/// Sizes are in bytes; whatever is `None` has the engine's default.
#[pymethods]
impl Db {
    #[new]
    #[pyo3(signature = (
        path, *, create="if_missing", durability="buffered", wal=true, memory_limit_bytes=None,
        memtable_bytes=None, cache_bytes=None, ttl_seconds=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        create: &str,
        durability: &str,
        wal: bool,
        memory_limit_bytes: Option<usize>,
        memtable_bytes: Option<usize>,
        cache_bytes: Option<usize>,
        ttl_seconds: Option<f64>,
    ) -> PyResult<PyClassInitializer<Db>> {
        let default = Options::default();
        let options = Options {
            create: match create {
                "if_missing" => Create::IfMissing,
                "never" => Create::Never,
                "must_be_new" => Create::MustBeNew,
                other => return Err(unknown("create", other, "if_missing, never, must_be_new")),
            },
            durability: durability_of(durability)?,
            wal: if wal { WalMode::On } else { WalMode::Off },
            memory_limit_bytes: memory_limit_bytes.unwrap_or(default.memory_limit_bytes),
            memtable_bytes: memtable_bytes.unwrap_or(default.memtable_bytes),
            cache_bytes: cache_bytes.unwrap_or(default.cache_bytes),
            ttl: match ttl_seconds.map(Duration::try_from_secs_f64) {
                None => None,
                Some(Ok(ttl)) => Some(ttl),
                Some(Err(error)) => return Err(invalid(format!("`ttl_seconds`: {error}"))),
            },
            ..default
        };
        let db = py
            .detach(|| forerun::Db::open(&path, options))
            .map_err(exception)?;
        Ok(
            PyClassInitializer::from(Reader::new("store", Source::Db(db)))
                .add_subclass(Db { path }),
        )
    }

    /// Where it is.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Writes an entry.
    fn put(slf: &Bound<'_, Db>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let db = open(slf)?;
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        slf.py()
            .detach(|| db.put(key.as_ref(), value.as_ref()))
            .map_err(exception)
    }

    /// Writes many entries, all or none: keys and values as `multi_get` takes keys.
    #[pyo3(signature = (keys, values, *, durability="buffered"))]
    fn put_many(
        slf: &Bound<'_, Db>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        durability: &str,
    ) -> PyResult<()> {
        let (db, durability) = (open(slf)?, durability_of(durability)?);
        let (keys, values) = (Batch::new(keys, "key")?, Batch::new(values, "value")?);
        let pairs = Batch::pairs(&keys, &values)?;
        let write = || {
            let mut batch = forerun::WriteBatch::new();
            for (key, value) in &pairs {
                batch.put(key, value)?;
            }
            db.write(&batch, durability)
        };
        slf.py().detach(write).map(drop).map_err(exception)
    }

    /// Removes a key, whether it is there or not.
    fn delete(slf: &Bound<'_, Db>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let (db, key) = (open(slf)?, Bytes::new(key, "key")?);
        slf.py()
            .detach(|| db.delete(key.as_ref()))
            .map_err(exception)
    }

    /// Removes all keys from `start` on, up to but without `end`.
    fn delete_range(
        slf: &Bound<'_, Db>,
        start: &Bound<'_, PyAny>,
        end: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let db = open(slf)?;
        let (start, end) = (Bytes::new(start, "bound")?, Bytes::new(end, "bound")?);
        slf.py()
            .detach(|| db.delete_range(start.as_ref(), end.as_ref()))
            .map_err(exception)
    }

    /// A batch of writes, applied whole at the end of its `with` block, or not at all if the block fails.
    #[pyo3(signature = (*, durability="buffered"))]
    fn batch(slf: &Bound<'_, Db>, durability: &str) -> PyResult<WriteBatch> {
        Ok(WriteBatch {
            db: open(slf)?,
            durability: durability_of(durability)?,
            batch: forerun::WriteBatch::new(),
        })
    }

    /// The store as it is now, which stays so.
    fn snapshot(slf: &Bound<'_, Db>) -> PyResult<Py<SnapshotView>> {
        let snapshot = Arc::new(open(slf)?.snapshot());
        let reader = Reader::new("snapshot", Source::Snapshot(snapshot));
        Py::new(
            slf.py(),
            PyClassInitializer::from(reader).add_subclass(SnapshotView),
        )
    }

    /// Makes everything written so far durable.
    fn sync(slf: &Bound<'_, Db>) -> PyResult<()> {
        let db = open(slf)?;
        slf.py().detach(|| db.flush_wal()).map_err(exception)
    }

    /// Puts everything written so far into runs.
    fn flush(slf: &Bound<'_, Db>) -> PyResult<()> {
        let db = open(slf)?;
        slf.py().detach(|| db.flush()).map_err(exception)
    }

    /// Merges all runs into one level: for much reading, after much writing.
    fn compact(slf: &Bound<'_, Db>) -> PyResult<()> {
        let db = open(slf)?;
        slf.py().detach(|| db.compact()).map_err(exception)
    }

    /// Copies the store as it is now into a new directory: files are linked where that is possible.
    fn checkpoint(slf: &Bound<'_, Db>, into: PathBuf) -> PyResult<()> {
        let db = open(slf)?;
        slf.py().detach(|| db.checkpoint(into)).map_err(exception)
    }

    /// Figures, as a dict.
    fn stats<'py>(slf: &Bound<'py, Db>) -> PyResult<Bound<'py, PyDict>> {
        let stats = open(slf)?.stats();
        let figures = PyDict::new(slf.py());
        figures.set_item("last_sequence", stats.last_sequence)?;
        figures.set_item("memtables", stats.memtables)?;
        figures.set_item("memtables_used_bytes", stats.memtables_used_bytes)?;
        figures.set_item(
            "runs",
            stats.levels.iter().map(|level| level.runs).sum::<usize>(),
        )?;
        figures.set_item(
            "run_bytes",
            stats.levels.iter().map(|level| level.bytes).sum::<u64>(),
        )?;
        figures.set_item("cache_hits", stats.cache.hits)?;
        figures.set_item("cache_misses", stats.cache.misses)?;
        figures.set_item("cache_used_bytes", stats.cache.used_bytes)?;
        figures.set_item("lookup_batches", stats.lookup_batches)?;
        figures.set_item("lookup_keys", stats.lookup_keys)?;
        figures.set_item("write_batches", stats.write_batches)?;
        Ok(figures)
    }

    /// Closes it. What was written is durable after this.
    fn close(slf: &Bound<'_, Db>) -> PyResult<()> {
        match slf.as_super().get().take() {
            Some(Source::Db(db)) => slf.py().detach(|| db.close()).map_err(exception),
            _ => Ok(()),
        }
    }

    fn __setitem__(
        slf: &Bound<'_, Db>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        Db::put(slf, key, value)
    }

    fn __delitem__(slf: &Bound<'_, Db>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        Db::delete(slf, key)
    }

    fn __enter__(slf: Bound<'_, Db>) -> Bound<'_, Db> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(slf: &Bound<'_, Db>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        Db::close(slf)
    }

    fn __repr__(slf: &Bound<'_, Db>) -> String {
        let path = slf.get().path.display();
        let closed = slf.as_super().get().source().is_err();
        format!("forerun.Db({path}{})", if closed { ", closed" } else { "" })
    }
}

/// The open store behind an object.
fn open(slf: &Bound<'_, Db>) -> PyResult<forerun::Db> {
    match slf.as_super().get().source()? {
        Source::Db(db) => Ok(db),
        Source::Snapshot(_) => Err(invalid("a snapshot takes no writes")),
    }
}

fn durability_of(name: &str) -> PyResult<Durability> {
    match name {
        "buffered" => Ok(Durability::Buffered),
        "synced" => Ok(Durability::Synced),
        other => Err(unknown("durability", other, "buffered, synced")),
    }
}

/// A store as it was when the snapshot was taken.
#[pyclass(extends = Reader, frozen, module = "forerun", name = "Snapshot")]
pub(crate) struct SnapshotView;

#[pymethods]
impl SnapshotView {
    /// Lets go of it. Versions that only it could see may then be dropped.
    fn close(slf: &Bound<'_, SnapshotView>) {
        drop(slf.as_super().get().take());
    }

    fn __enter__(slf: Bound<'_, SnapshotView>) -> Bound<'_, SnapshotView> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(slf: &Bound<'_, SnapshotView>, _error: &Bound<'_, PyTuple>) {
        SnapshotView::close(slf);
    }
}

/// Writes that are applied together.
#[pyclass(module = "forerun")]
pub(crate) struct WriteBatch {
    db: forerun::Db,
    durability: Durability,
    batch: forerun::WriteBatch,
}

#[pymethods]
impl WriteBatch {
    /// Adds an entry.
    fn put(&mut self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        self.batch
            .put(key.as_ref(), value.as_ref())
            .map_err(exception)
    }

    /// Adds the removal of a key.
    fn delete(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = Bytes::new(key, "key")?;
        self.batch.delete(key.as_ref()).map_err(exception)
    }

    /// Adds the removal of all keys from `start` on, up to but without `end`.
    fn delete_range(&mut self, start: &Bound<'_, PyAny>, end: &Bound<'_, PyAny>) -> PyResult<()> {
        let (start, end) = (Bytes::new(start, "bound")?, Bytes::new(end, "bound")?);
        self.batch
            .delete_range(start.as_ref(), end.as_ref())
            .map_err(exception)
    }

    fn __len__(&self) -> usize {
        self.batch.len()
    }

    fn __setitem__(&mut self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(key, value)
    }

    fn __delitem__(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.delete(key)
    }

    fn __enter__(slf: Bound<'_, WriteBatch>) -> Bound<'_, WriteBatch> {
        slf
    }

    fn __exit__(
        &mut self,
        py: Python<'_>,
        error: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let batch = std::mem::replace(&mut self.batch, forerun::WriteBatch::new());
        if !error.is_none() {
            return Ok(());
        }
        py.detach(|| self.db.write(&batch, self.durability))
            .map(drop)
            .map_err(exception)
    }
}
