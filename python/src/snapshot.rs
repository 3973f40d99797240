//! `Snapshot`: a store as of one moment.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::engine_handle::drop_detached;
use crate::errors::closed;
use crate::keyspace::Keyspace;
use crate::read_source::ReadSource;
use crate::reader::Reader;

/// A store as of the moment when the snapshot was taken. It does not change.
#[pyclass(extends = Reader, frozen, module = "forerun", name = "Snapshot")]
pub(crate) struct SnapshotView;

impl SnapshotView {
    pub(crate) fn new(
        py: Python<'_>,
        snapshot: Arc<forerun::Snapshot>,
        keyspace: forerun::Keyspace,
    ) -> PyResult<Py<SnapshotView>> {
        let reader = Reader::new("snapshot", ReadSource::Snapshot(snapshot, keyspace));
        let layers = PyClassInitializer::from(reader).add_subclass(SnapshotView);
        Py::new(py, layers)
    }
}

#[pymethods]
impl SnapshotView {
    /// The same moment in another keyspace.
    fn keyspace(
        slf: &Bound<'_, SnapshotView>,
        keyspace: &Bound<'_, Keyspace>,
    ) -> PyResult<Py<SnapshotView>> {
        let (_, keyspace) = Keyspace::handles(keyspace)?;
        let ReadSource::Snapshot(snapshot, _) = slf.as_super().get().source()?.snapshot() else {
            return Err(closed("snapshot"));
        };
        SnapshotView::new(slf.py(), snapshot, keyspace)
    }

    /// Releases the snapshot. Compactions may then drop the versions that only it could see.
    fn close(slf: &Bound<'_, SnapshotView>) {
        drop_detached(slf.as_super().get().take());
    }

    fn __repr__(slf: &Bound<'_, SnapshotView>) -> String {
        match slf.as_super().get().source() {
            Ok(ReadSource::Snapshot(snapshot, keyspace)) => {
                let sequence = snapshot.sequence();
                match keyspace.name() {
                    "" => format!("forerun.Snapshot(sequence={sequence})"),
                    name => format!("forerun.Snapshot({name:?}, sequence={sequence})"),
                }
            }
            _ => "forerun.Snapshot(closed)".to_owned(),
        }
    }

    fn __enter__(slf: Bound<'_, SnapshotView>) -> Bound<'_, SnapshotView> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(slf: &Bound<'_, SnapshotView>, _error: &Bound<'_, PyTuple>) {
        SnapshotView::close(slf);
    }
}
