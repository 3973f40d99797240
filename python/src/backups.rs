//! `Backups`: several backups of stores in one directory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forerun::backup::FileCopyOptions;
use forerun::io::OsIo;
use forerun::{Db as Store, process::ProcessBound};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::background_call::run_long;
use crate::backup_results::{Backup, BackupList, BackupVerifyReport, RemovedBackups};
use crate::copy_progress;
use crate::db::{self, Db};
use crate::engine_handle::EngineHandle;
use crate::errors::{closed, exception, forked, invalid, is_forked, table_exception};
use crate::numeric_arguments;
use crate::store_options::{CreateStore, Rate};
use crate::table::Table;

/// The engine's handle, which one call uses at a time.
struct Handle {
    /// `None` once it is closed. A call that was interrupted may still use it.
    backups: Mutex<Option<forerun::backup::Backups>>,
    /// Whether it is closed. This can be read without waiting for a running call.
    is_closed: AtomicBool,
}

/// A directory of backups of stores and tables. Backups share files, so a backup takes time and
/// space only for data that is new since the last one.
///
/// `path`: the directory, which one process at a time can open. `create`: "if_missing" or True
/// creates a missing directory, "never" or False raises `NotFoundError` for one, "must_be_new"
/// raises `AlreadyExistsError` for an existing one.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Backups {
    path: PathBuf,
    handle: EngineHandle<Arc<ProcessBound<Handle>>>,
}

/// The store or table that is backed up.
enum Backed<'py> {
    Db(Bound<'py, Db>),
    Table(Bound<'py, Table>),
}

impl<'py> FromPyObject<'_, 'py> for Backed<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Backed<'py>> {
        if let Ok(db) = object.cast::<Db>() {
            return Ok(Backed::Db(db.to_owned()));
        }
        match object.cast::<Table>() {
            Ok(table) => Ok(Backed::Table(table.to_owned())),
            Err(_) => Err(PyTypeError::new_err(format!(
                "`store` must be an open Db or Table, not {}",
                object.get_type().name()?
            ))),
        }
    }
}

/// The engine's handle to it.
enum Copied {
    Db(Store),
    Table(forerun::table::Table),
}

#[pymethods]
impl Backups {
    #[new]
    #[pyo3(
        signature = (path, *, create=CreateStore::DEFAULT),
        text_signature = "(path, *, create='if_missing')"
    )]
    fn new(py: Python<'_>, path: PathBuf, create: CreateStore) -> PyResult<Backups> {
        let open = move || forerun::backup::Backups::open_with_io(Arc::new(OsIo), path, create.0);
        let backups = run_long(py, "opening a directory of backups", open)?.map_err(exception)?;
        let path = backups.path().to_owned();
        let handle = Handle {
            backups: Mutex::new(Some(backups)),
            is_closed: AtomicBool::new(false),
        };
        Ok(Backups {
            path,
            handle: EngineHandle::new(Arc::new(ProcessBound::new(handle))),
        })
    }

    /// The directory, as an absolute path.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Backs up a store or a table as it is now. Reads and writes continue during the backup. One
    /// opened with `read_only` raises `ReadOnlyError`.
    ///
    /// `rate_bytes`: how many bytes per second to copy at most. `progress`: called now and then
    /// with the bytes done and the bytes in total; what it raises ends the call.
    #[pyo3(signature = (store, *, rate_bytes=None, progress=None))]
    fn create(
        &self,
        py: Python<'_>,
        store: Backed<'_>,
        rate_bytes: Option<Rate>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Backup> {
        let copied = match &store {
            Backed::Db(db) => Copied::Db(db::open(db)?),
            Backed::Table(table) => Copied::Table(table.get().open()?),
        };
        let create = move |backups: &mut forerun::backup::Backups| match &copied {
            Copied::Db(db) => backups.create(db).map_err(forerun::table::Error::Store),
            Copied::Table(table) => table.backup(backups),
        };
        let backup = self.copy(py, "making a backup", rate_bytes, progress, create)?;
        backup.map(Backup::from).map_err(table_exception)
    }

    /// Lists the backups.
    fn list(&self, py: Python<'_>) -> PyResult<BackupList> {
        let list = self.run(py, "listing backups", |backups| backups.list())?;
        list.map(BackupList::from).map_err(exception)
    }

    /// Reads every byte of all backups and compares it with what was written. `rate_bytes` and
    /// `progress`: as for `create`.
    #[pyo3(signature = (*, rate_bytes=None, progress=None))]
    fn verify(
        &self,
        py: Python<'_>,
        rate_bytes: Option<Rate>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<BackupVerifyReport> {
        let verify = |backups: &mut forerun::backup::Backups| backups.verify();
        let checked = self.copy(py, "verifying backups", rate_bytes, progress, verify)?;
        checked.map(BackupVerifyReport::from).map_err(exception)
    }

    /// Restores a backup, by default the newest, as a store in the directory `into`, which must be
    /// empty or missing. All data is checked while it is copied. Returns the backup. `rate_bytes`
    /// and `progress`: as for `create`.
    #[pyo3(signature = (into, *, number=None, rate_bytes=None, progress=None))]
    fn restore(
        &self,
        py: Python<'_>,
        into: PathBuf,
        #[pyo3(from_py_with = numeric_arguments::number)] number: Option<u64>,
        rate_bytes: Option<Rate>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Backup> {
        let restore = move |backups: &mut forerun::backup::Backups| backups.restore(number, into);
        let backup = self.copy(py, "restoring a backup", rate_bytes, progress, restore)?;
        backup.map(Backup::from).map_err(exception)
    }

    /// Keeps the `newest` newest backups. Removes all others, and the files that no remaining
    /// backup needs.
    fn purge_old(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numeric_arguments::newest)] newest: usize,
    ) -> PyResult<RemovedBackups> {
        let removed = self.run(py, "removing backups", move |backups| {
            backups.purge_old(newest)
        })?;
        removed.map(RemovedBackups::from).map_err(exception)
    }

    /// Removes a backup, and the files that no other backup needs.
    fn delete(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numeric_arguments::backup::number)] number: u64,
    ) -> PyResult<RemovedBackups> {
        let delete = move |backups: &mut forerun::backup::Backups| backups.delete(number);
        let removed = self.run(py, "removing a backup", delete)?;
        removed.map(RemovedBackups::from).map_err(exception)
    }

    /// Closes the directory, so that others can open it. Waits for calls of other threads.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let handle = Arc::clone(&self.handle);
        handle.get().map_err(forked)?;
        let close = move || handle.get().map(Handle::close);
        run_long(py, "closing a directory of backups", close)?.map_err(forked)
    }

    /// Whether the directory is closed here. Does not wait for calls of other threads.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        let handle = self.handle.get().map_err(forked)?;
        // Relaxed: no other data depends on the flag.
        Ok(handle.is_closed.load(Ordering::Relaxed))
    }

    fn __enter__(slf: Bound<'_, Backups>) -> Bound<'_, Backups> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        // A fork that leaves the block leaves the directory to its parent.
        match self.close(py) {
            Err(error) if is_forked(py, &error) => Ok(()),
            closed => closed,
        }
    }

    fn __repr__(&self) -> String {
        format!("forerun.Backups({:?})", self.path)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a directory of backups is a handle of this process and cannot be pickled: pickle its \
             path",
        ))
    }
}

impl Handle {
    fn lock(&self) -> MutexGuard<'_, Option<forerun::backup::Backups>> {
        // A call that panicked left the directory as a crash would. The next backup removes its
        // leftovers.
        self.backups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let mut backups = self.lock();
        drop(backups.take());
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

impl Backups {
    /// Runs a call while other Python threads run. Ctrl-C ends it.
    fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        what: &'static str,
        call: impl FnOnce(&mut forerun::backup::Backups) -> T + Send + 'static,
    ) -> PyResult<T> {
        self.copy(py, what, None, None, call)
    }

    /// [`run`](Self::run) at a rate, with progress.
    fn copy<T: Send + 'static>(
        &self,
        py: Python<'_>,
        what: &'static str,
        rate_bytes: Option<Rate>,
        progress: Option<Bound<'_, PyAny>>,
        call: impl FnOnce(&mut forerun::backup::Backups) -> T + Send + 'static,
    ) -> PyResult<T> {
        let handle = Arc::clone(&self.handle);
        let work = move |options: &FileCopyOptions| {
            let mut backups = handle.get()?.lock();
            Ok(backups.as_mut().map(|backups| {
                backups.set_copy_options(options.clone());
                call(backups)
            }))
        };
        let result: Result<Option<T>, forerun::process::Forked> =
            copy_progress::run(py, what, rate_bytes, progress, work)?;
        result
            .map_err(forked)?
            .ok_or_else(|| closed("directory of backups"))
    }
}
