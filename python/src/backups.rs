//! `Backups`: several backups of stores in one directory.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forerun::{Create, Db as Store, ProcessBound};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::db::{self, Db};
use crate::errors::{closed, exception, forked, invalid, is_forked, table_exception};
use crate::long::run_long;
use crate::store_options::CreateStore;
use crate::table::Table;

/// The engine's handle; `None` once it is closed. A call that was interrupted may still use it.
type Shared = Arc<ProcessBound<Mutex<Option<forerun::Backups>>>>;

/// A directory of backups of stores and tables. Backups share what they have in common, so each
/// takes the time and space of what is new since the last.
///
/// `path`: the directory, which one process at a time can open. `create`: "if_missing" or True
/// creates a missing directory, "never" or False raises `NotFoundError` for one, "must_be_new"
/// raises `AlreadyExistsError` for an existing one.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Backups {
    path: PathBuf,
    backups: Shared,
}

/// A backup: its number, when it was made (seconds since 1970), the sequence number of its last
/// write, how many keyspaces and runs it has, its size, and the size of what it shares with no
/// other backup.
#[pyclass(frozen, get_all, eq, module = "forerun")]
#[derive(Clone, PartialEq)]
pub(crate) struct Backup {
    number: u64,
    created_unix: u64,
    last_sequence: u64,
    keyspaces: usize,
    runs: usize,
    bytes: u64,
    own_bytes: u64,
}

/// The backups in a directory, oldest first, and what is wrong with the unreadable ones, as pairs
/// of a number and a text.
#[pyclass(frozen, get_all, eq, module = "forerun")]
#[derive(PartialEq)]
pub(crate) struct BackupList {
    backups: Vec<Backup>,
    damaged: Vec<(u64, String)>,
}

/// The result of reading every byte of all backups: how many backups and runs there are, their
/// size, how many files no backup needs, and what is wrong.
#[pyclass(frozen, get_all, eq, module = "forerun")]
#[derive(PartialEq)]
pub(crate) struct CheckedBackups {
    backups: usize,
    runs: usize,
    bytes: u64,
    leftovers: usize,
    problems: Vec<String>,
}

/// What was removed: the numbers of the backups, and how many files of how many bytes.
#[pyclass(frozen, get_all, eq, module = "forerun")]
#[derive(PartialEq)]
pub(crate) struct RemovedBackups {
    backups: Vec<u64>,
    files: usize,
    bytes: u64,
}

impl From<forerun::Backup> for Backup {
    fn from(backup: forerun::Backup) -> Backup {
        Backup {
            number: backup.number,
            created_unix: backup.created_unix,
            last_sequence: backup.last_sequence,
            keyspaces: backup.keyspaces,
            runs: backup.runs,
            bytes: backup.bytes,
            own_bytes: backup.own_bytes,
        }
    }
}

impl From<forerun::RemovedBackups> for RemovedBackups {
    fn from(removed: forerun::RemovedBackups) -> RemovedBackups {
        RemovedBackups {
            backups: removed.backups,
            files: removed.files,
            bytes: removed.bytes,
        }
    }
}

/// Why the results cannot be pickled.
fn unpicklable() -> PyErr {
    invalid("what a call on backups returned cannot be pickled: pickle its figures")
}

#[pymethods]
impl Backup {
    fn __repr__(&self) -> String {
        format!(
            "Backup(number={}, created_unix={}, last_sequence={}, keyspaces={}, runs={}, bytes={}, \
             own_bytes={})",
            self.number,
            self.created_unix,
            self.last_sequence,
            self.keyspaces,
            self.runs,
            self.bytes,
            self.own_bytes
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable())
    }
}

#[pymethods]
impl BackupList {
    fn __repr__(&self) -> String {
        let backups: Vec<_> = self.backups.iter().map(Backup::__repr__).collect();
        format!(
            "BackupList(backups=[{}], damaged={:?})",
            backups.join(", "),
            self.damaged
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable())
    }
}

#[pymethods]
impl CheckedBackups {
    fn __repr__(&self) -> String {
        format!(
            "CheckedBackups(backups={}, runs={}, bytes={}, leftovers={}, problems={:?})",
            self.backups, self.runs, self.bytes, self.leftovers, self.problems
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable())
    }
}

#[pymethods]
impl RemovedBackups {
    fn __repr__(&self) -> String {
        format!(
            "RemovedBackups(backups={:?}, files={}, bytes={})",
            self.backups, self.files, self.bytes
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable())
    }
}

/// What a backup is made of.
#[derive(FromPyObject)]
enum Backed<'py> {
    Db(Bound<'py, Db>),
    Table(Bound<'py, Table>),
}

/// The same, as the engine has it.
enum Handle {
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
        let opened = path.clone();
        let open = move || match create.0 {
            Create::IfMissing => forerun::Backups::open_or_create(opened),
            Create::Never => forerun::Backups::open(opened),
            Create::MustBeNew => forerun::Backups::create_new(opened),
        };
        let backups = run_long(py, "opening a directory of backups", open)?.map_err(exception)?;
        Ok(Backups {
            path,
            backups: Arc::new(ProcessBound::new(Mutex::new(Some(backups)))),
        })
    }

    /// The directory.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Backs up a store or a table as it is now. Reads and writes go on meanwhile. One opened with
    /// `read_only` raises `ReadOnlyError`.
    fn create(&self, py: Python<'_>, store: Backed<'_>) -> PyResult<Backup> {
        let handle = match &store {
            Backed::Db(db) => Handle::Db(db::open(db)?),
            Backed::Table(table) => Handle::Table(table.get().open()?),
        };
        let backup = self.run(py, "making a backup", move |backups| match &handle {
            Handle::Db(db) => backups.create(db).map_err(forerun::table::Error::Store),
            Handle::Table(table) => table.backup(backups),
        })?;
        backup.map(Backup::from).map_err(table_exception)
    }

    /// Lists the backups.
    fn list(&self, py: Python<'_>) -> PyResult<BackupList> {
        let list = self.run(py, "listing backups", |backups| backups.list())?;
        let list = list.map_err(exception)?;
        let damaged = list.damaged.into_iter();
        Ok(BackupList {
            backups: list.backups.into_iter().map(Backup::from).collect(),
            damaged: damaged
                .map(|(number, error)| (number, error.to_string()))
                .collect(),
        })
    }

    /// Reads every byte of all backups and compares it with what was written.
    fn verify(&self, py: Python<'_>) -> PyResult<CheckedBackups> {
        let checked = self.run(py, "verifying backups", |backups| backups.verify())?;
        let checked = checked.map_err(exception)?;
        Ok(CheckedBackups {
            backups: checked.backups,
            runs: checked.runs,
            bytes: checked.bytes,
            leftovers: checked.leftovers,
            problems: checked.problems.iter().map(ToString::to_string).collect(),
        })
    }

    /// Restores a backup, by default the newest, as a store in the directory `into`, which must be
    /// empty or missing. Everything copied is checked on the way. Returns the backup.
    #[pyo3(signature = (into, *, number=None))]
    fn restore(&self, py: Python<'_>, into: PathBuf, number: Option<u64>) -> PyResult<Backup> {
        let restore = move |backups: &mut forerun::Backups| backups.restore(number, into);
        let backup = self.run(py, "restoring a backup", restore)?;
        backup.map(Backup::from).map_err(exception)
    }

    /// Removes all backups but the newest ones, as many as `newest` says, and the files that none
    /// of those needs.
    fn keep(&self, py: Python<'_>, newest: usize) -> PyResult<RemovedBackups> {
        let removed = self.run(py, "removing backups", move |backups| backups.keep(newest))?;
        removed.map(RemovedBackups::from).map_err(exception)
    }

    /// Removes a backup, and the files that no other needs.
    fn delete(&self, py: Python<'_>, number: u64) -> PyResult<RemovedBackups> {
        let delete = move |backups: &mut forerun::Backups| backups.delete(number);
        let removed = self.run(py, "removing a backup", delete)?;
        removed.map(RemovedBackups::from).map_err(exception)
    }

    /// Closes the directory, so that others can open it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let backups = Arc::clone(&self.backups);
        backups.get().map_err(forked)?;
        let close = move || drop(backups.get().map(|backups| lock(backups).take()));
        run_long(py, "closing a directory of backups", close)
    }

    /// Whether the directory is closed here.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        let backups = self.backups.get().map_err(forked)?;
        Ok(py.detach(|| lock(backups).is_none()))
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
        format!("forerun.Backups({})", self.path.display())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a directory of backups is a handle of this process and cannot be pickled: pickle its \
             path",
        ))
    }
}

fn lock(backups: &Mutex<Option<forerun::Backups>>) -> MutexGuard<'_, Option<forerun::Backups>> {
    // A call that panicked has left the directory as a crash would, which is repaired later.
    backups.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backups {
    /// Runs a call while other Python threads run; Ctrl-C interrupts the wait for it.
    fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        what: &'static str,
        call: impl FnOnce(&mut forerun::Backups) -> T + Send + 'static,
    ) -> PyResult<T> {
        let shared = Arc::clone(&self.backups);
        let work = move || {
            let backups = shared.get()?;
            Ok(lock(backups).as_mut().map(call))
        };
        let result: Result<Option<T>, forerun::Forked> = run_long(py, what, work)?;
        result
            .map_err(forked)?
            .ok_or_else(|| closed("directory of backups"))
    }
}
