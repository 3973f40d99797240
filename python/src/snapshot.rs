//! `Snapshot`: a store as it was.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::closed;
use crate::keyspace::Keyspace;
use crate::reader::Reader;
use crate::source::Source;

/// A store as it was when the snapshot was taken.
#[pyclass(extends = Reader, frozen, module = "forerun", name = "Snapshot")]
pub(crate) struct SnapshotView;

impl SnapshotView {
    pub(crate) fn new(
        py: Python<'_>,
        snapshot: Arc<forerun::Snapshot>,
        space: forerun::Keyspace,
    ) -> PyResult<Py<SnapshotView>> {
        let reader = Reader::new("snapshot", Source::Snapshot(snapshot, space));
        let layers = PyClassInitializer::from(reader).add_subclass(SnapshotView);
        Py::new(py, layers)
    }
}

#[pymethods]
impl SnapshotView {
    /// What it shows of another keyspace.
    fn keyspace(
        slf: &Bound<'_, SnapshotView>,
        keyspace: &Bound<'_, Keyspace>,
    ) -> PyResult<Py<SnapshotView>> {
        let (_, space) = Keyspace::handles(keyspace)?;
        let Source::Snapshot(snapshot, _) = slf.as_super().get().source()?.snapshot() else {
            return Err(closed("snapshot"));
        };
        SnapshotView::new(slf.py(), snapshot, space)
    }

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
