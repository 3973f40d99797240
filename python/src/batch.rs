//! `WriteBatch`: writes that take effect together.

use forerun::Durability;
use pyo3::prelude::*;

use crate::background_call::write_batch;
use crate::engine_handle::EngineHandle;
use crate::errors::{exception, invalid};
use crate::keys::Bytes;
use crate::keyspace::Keyspace;

/// Writes that take effect together at the end of the `with` block. If the block raises an
/// exception, none takes effect.
#[pyclass(module = "forerun")]
pub(crate) struct WriteBatch {
    db: EngineHandle<forerun::Db>,
    durability: Durability,
    batch: forerun::WriteBatch,
}

impl WriteBatch {
    pub(crate) fn new(db: forerun::Db, durability: Durability) -> WriteBatch {
        WriteBatch {
            db: EngineHandle::new(db),
            durability,
            batch: forerun::WriteBatch::new(),
        }
    }
}

#[pymethods]
impl WriteBatch {
    /// Adds an entry to the batch, in `keyspace` or by default in the store's own keyspace.
    #[pyo3(signature = (key, value, *, keyspace=None))]
    fn put(
        &mut self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        keyspace: Option<&Bound<'_, Keyspace>>,
    ) -> PyResult<()> {
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        let handles = keyspace.map(Keyspace::handles).transpose()?;
        match handles {
            Some((_, keyspace)) => self
                .batch
                .keyspace(&keyspace)
                .put(key.as_ref(), value.as_ref()),
            None => self.batch.put(key.as_ref(), value.as_ref()),
        }
        .map_err(exception)
    }

    /// Adds the deletion of a key.
    #[pyo3(signature = (key, *, keyspace=None))]
    fn delete(
        &mut self,
        key: &Bound<'_, PyAny>,
        keyspace: Option<&Bound<'_, Keyspace>>,
    ) -> PyResult<()> {
        let key = Bytes::new(key, "key")?;
        let handles = keyspace.map(Keyspace::handles).transpose()?;
        match handles {
            Some((_, keyspace)) => self.batch.keyspace(&keyspace).delete(key.as_ref()),
            None => self.batch.delete(key.as_ref()),
        }
        .map_err(exception)
    }

    /// Adds the deletion of all keys from `start` (inclusive) to `end` (exclusive).
    #[pyo3(signature = (start, end, *, keyspace=None))]
    fn delete_range(
        &mut self,
        start: &Bound<'_, PyAny>,
        end: &Bound<'_, PyAny>,
        keyspace: Option<&Bound<'_, Keyspace>>,
    ) -> PyResult<()> {
        let (start, end) = (Bytes::new(start, "bound")?, Bytes::new(end, "bound")?);
        let handles = keyspace.map(Keyspace::handles).transpose()?;
        match handles {
            Some((_, keyspace)) => self
                .batch
                .keyspace(&keyspace)
                .delete_range(start.as_ref(), end.as_ref()),
            None => self.batch.delete_range(start.as_ref(), end.as_ref()),
        }
        .map_err(exception)
    }

    /// The operations collected so far.
    fn __len__(&self) -> usize {
        self.batch.len()
    }

    fn __repr__(&self) -> String {
        format!(
            "forerun.WriteBatch({:?}, operations={}, bytes={})",
            self.db.path(),
            self.batch.len(),
            self.batch.encoded().len()
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a batch of writes belongs to a store of this process and cannot be pickled",
        ))
    }

    fn __setitem__(&mut self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(key, value, None)
    }

    fn __delitem__(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.delete(key, None)
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
        write_batch(py, forerun::Db::clone(&self.db), batch, self.durability)
    }
}
