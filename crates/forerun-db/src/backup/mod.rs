//! Backups of stores: several in one directory, which share the runs that they have in common.
//!
//! ```text
//!   store ──flush──> manifest and runs of one moment
//!                      │ each run that no backup here has: copied, and every page of the copy looked at
//!                      v
//!   directory   BACKUPS  LOCK  run-9f3c….run  run-07aa….run …     runs are named by what is in them, and do not change
//!                      │ synced, names and all
//!                      v
//!               backup-000007      its manifest, and a checksum of each run's bytes: written last, removed first
//!                      │ restore
//!                      v
//!   store       run-000041.run …  MANIFEST  FORMAT                as tree/checkpoint.rs makes it
//! ```
//!
//! So a backup is there wholly or not at all, and a file of a run that no backup names is of no use to anybody: what a
//! crash left is removed before the next backup is made, and with the next removal of old ones. `docs/internals/format.md` defines
//! the files.
//!
//! ```text
//!   make.rs    a store -> a backup             found.rs   what is in the directory      told.rs   what users are told
//!   copy.rs    files there and back again      record.rs  the file that makes a backup
//! ```

mod copy;
mod found;
mod make;
mod record;
mod told;

use forerun_core::sync::atomic::AtomicBool;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::io::{Io, OsIo};
use crate::sealed::Kind;
use crate::store_dir::{self, Lock, Mark};
use crate::tree::checkpoint::make_store;
use crate::{Create, Error, Result};

use copy::Meter;
use found::{Found, record_name, run_name};
use told::Numbers;

#[doc(hidden)]
pub use record::fuzz_record;
pub use told::{Backup, BackupList, BackupProgress, CheckedBackups, RemovedBackups};

const KIND: Kind = Kind {
    magic: *b"FORE-BKS",
    version: 1,
};

const MARK: Mark = Mark {
    name: "BACKUPS",
    stranger: |path, reason| Error::NotBackups { path, reason },
};

/// A directory of backups, which this process alone has open.
///
/// A backup is a copy: nothing that happens to the store, or to its disk, changes it. What is in a store's runs and in
/// an earlier backup already is not copied again, so a backup takes the time and space of what is new since.
///
/// ```
/// use forerun_db::{Backups, Db, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let [path, backups, restored] = ["store", "backups", "restored"].map(|name| directory.path().join(name));
/// let db = Db::open(path, Options::default())?;
/// db.put(b"key", b"value")?;
/// let mut backups = Backups::open_or_create(backups)?;
/// let first = backups.create(&db)?;
///
/// db.delete(b"key")?;
/// backups.create(&db)?;
/// assert!(backups.verify()?.problems.is_empty());
///
/// backups.restore(Some(first.number), &restored)?;
/// let restored = Db::open(restored, Options::default())?;
/// assert_eq!(restored.get(b"key")?.as_deref(), Some(&b"value"[..]));
///
/// backups.keep(1)?;
/// assert_eq!(backups.list()?.backups.len(), 1);
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub struct Backups {
    io: Arc<dyn Io>,
    dir: PathBuf,
    watch: Option<Watch>,
    lock: Lock,
}

/// Is told how far long work is.
type Watch = Box<dyn Fn(BackupProgress) + Send + Sync>;

impl Backups {
    /// Opens a directory of backups.
    ///
    /// # Errors
    /// [`Error::NotBackups`]: it is none. [`Error::Locked`]: another process, or another of these, has it open.
    /// [`Error::NewerFormat`], [`Error::CorruptFile`], [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Backups> {
        Backups::open_with_io(Arc::new(OsIo), path, Create::Never)
    }

    /// Opens a directory of backups, or makes one where there is nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Backups> {
        Backups::open_with_io(Arc::new(OsIo), path, Create::IfMissing)
    }

    /// Opens a directory of backups on a file system of one's own. Stores that are backed up may be on another one; they
    /// are restored to this one.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::AlreadyExists`].
    pub fn open_with_io(
        io: Arc<dyn Io>,
        path: impl AsRef<Path>,
        create: Create,
    ) -> Result<Backups> {
        let dir = path.as_ref().to_owned();
        let check = |dir: &Path| {
            let path = dir.join(MARK.name);
            let bytes = store_dir::read(&*io, &path)?;
            let unsealed = KIND.unseal(&bytes, |_| Ok(()));
            unsealed.map_err(|bad| bad.of(&KIND, &path, dir))
        };
        let mut lock = store_dir::take(&*io, &dir, create, &MARK, &KIND.seal(|_| ()), &check)?;
        lock.note_boot();
        Ok(Backups {
            io,
            dir,
            watch: None,
            lock,
        })
    }

    /// Has long work tell how far it is, every few hundred kilobytes.
    pub fn on_progress(&mut self, watch: impl Fn(BackupProgress) + Send + Sync + 'static) {
        self.watch = Some(Box::new(watch));
    }

    /// The backups that there are.
    ///
    /// # Errors
    /// [`Error::NewerFormat`], [`Error::Io`].
    pub fn list(&self) -> Result<BackupList> {
        Ok(self.look()?.list())
    }

    /// Reads every byte of all backups and compares it with what was written. What is wrong is in the answer, and which
    /// backups it concerns.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn verify(&self) -> Result<CheckedBackups> {
        let found = self.look()?;
        let list = found.list();
        let mut checked = CheckedBackups {
            backups: list.backups.len() + list.damaged.len(),
            leftovers: found.unused().count(),
            problems: list.damaged.into_iter().map(|(_, error)| error).collect(),
            ..CheckedBackups::default()
        };
        // Each file once, with who needs it.
        let mut files: BTreeMap<(String, u64), (u64, Vec<u64>)> = BTreeMap::new();
        for record in found.sound() {
            for (run, checksum) in record.runs() {
                let file = files.entry((run_name(run), checksum));
                let (_, needed_by) = file.or_insert((run.bytes, Vec::new()));
                needed_by.push(record.number);
            }
        }
        let total_bytes = files.values().map(|(bytes, _)| bytes).sum();
        let stop = AtomicBool::new(false);
        let mut meter = Meter::new(self.watch.as_ref(), &stop, total_bytes);
        for ((name, expected), (bytes, needed_by)) in files {
            let path = self.dir.join(name);
            checked.runs += 1;
            checked.bytes += bytes;
            let problem = match copy::checksum(&*self.io, &path, bytes, &mut meter) {
                Ok(checksum) if checksum == expected => continue,
                Ok(_) => changed(&path),
                Err(error) => error,
            };
            checked.problems.push(match problem {
                Error::CorruptFile {
                    path,
                    offset,
                    reason,
                } => {
                    let reason = format!("{reason}; needed by {}", Numbers(&needed_by));
                    Error::CorruptFile {
                        path,
                        offset,
                        reason,
                    }
                }
                other => other,
            });
        }
        Ok(checked)
    }

    /// Makes a store of a backup, the newest unless told, in a directory that is not there yet, or empty. All that it
    /// takes from here is checked on the way.
    ///
    /// # Errors
    /// [`Error::NoBackup`]. [`Error::CorruptFile`]: the backup is damaged. [`Error::AlreadyExists`]: there is something in
    /// `into`. [`Error::Io`]. No store is left there then.
    pub fn restore(&self, number: Option<u64>, into: impl AsRef<Path>) -> Result<Backup> {
        let (into, found) = (into.as_ref(), self.look()?);
        let wanted = number.unwrap_or(found.last_number());
        let record = found.records.get(&wanted);
        let record = record.ok_or_else(|| self.no_backup(number))?;
        let record = record.as_ref().map_err(Error::clone)?;
        let backup = found.backup(wanted).ok_or_else(|| self.no_backup(number))?;
        let total_bytes = record.runs().map(|(run, _)| run.bytes).sum();
        let stop = AtomicBool::new(false);
        let mut meter = Meter::new(self.watch.as_ref(), &stop, total_bytes);
        let mut checksums = record.checksums.iter();
        let put_run = |run: &_| {
            let path = self.dir.join(run_name(run));
            let file = copy::open(&*self.io, &path, run.bytes)?;
            let to = crate::run::path(into, run.number);
            let from = (&*file, &*path);
            let checksum = copy::copy(from, &*self.io, &to, run.bytes, &mut meter)?;
            match checksums.next() == Some(&checksum) {
                true => Ok(()),
                false => Err(changed(&path)),
            }
        };
        make_store(&*self.io, into, &record.manifest, put_run, || Ok(()))?;
        Ok(backup)
    }

    /// Removes all but the newest so many backups, and the files that none of those needs. A damaged one is not counted,
    /// and goes only if so many newer ones are whole.
    ///
    /// # Errors
    /// [`Error::BadOption`]: `newest` is 0. [`Error::NewerFormat`], [`Error::Io`]: some may be removed, each wholly.
    pub fn keep(&mut self, newest: usize) -> Result<RemovedBackups> {
        let Some(place) = newest.checked_sub(1) else {
            return Err(Error::BadOption {
                option: "newest",
                reason: "at least one backup is kept".into(),
            });
        };
        let found = self.look()?;
        let Some(oldest) = found.sound().rev().nth(place).map(|record| record.number) else {
            return self.remove(found, &[]);
        };
        let older: Vec<u64> = found
            .records
            .range(..oldest)
            .map(|(number, _)| *number)
            .collect();
        self.remove(found, &older)
    }

    /// Removes a backup, damaged or not, and the files that no other needs.
    ///
    /// # Errors
    /// [`Error::NoBackup`], [`Error::NewerFormat`], [`Error::Io`].
    pub fn delete(&mut self, number: u64) -> Result<RemovedBackups> {
        let found = self.look()?;
        match found.records.contains_key(&number) {
            true => self.remove(found, &[number]),
            false => Err(self.no_backup(Some(number))),
        }
    }

    fn remove(&self, mut found: Found, numbers: &[u64]) -> Result<RemovedBackups> {
        for number in numbers {
            self.remove_file(&record_name(*number))?;
            found.records.remove(number);
        }
        // First what makes them backups, durably: one that comes back must find its runs.
        self.sync()?;
        let (files, bytes) = self.remove_unused(&found)?;
        Ok(RemovedBackups {
            backups: numbers.to_vec(),
            files,
            bytes,
        })
    }

    /// Removes the files that no backup needs. Tells how many there were, and their bytes.
    fn remove_unused(&self, found: &Found) -> Result<(usize, u64)> {
        let (mut files, mut removed_bytes) = (0, 0);
        for (name, bytes) in found.unused() {
            self.remove_file(name)?;
            files += 1;
            removed_bytes += bytes;
        }
        Ok((files, removed_bytes))
    }

    fn remove_file(&self, name: &str) -> Result<()> {
        let path = self.dir.join(name);
        let removed = self.io.remove(&path);
        removed.map_err(|error| Error::io("remove", &path, error))
    }

    fn look(&self) -> Result<Found> {
        self.lock.check_process()?;
        Found::look(&*self.io, &self.dir)
    }

    fn sync(&self) -> Result<()> {
        let synced = self.io.sync_dir(&self.dir);
        synced.map_err(|error| Error::io("sync", &self.dir, error))
    }

    fn no_backup(&self, number: Option<u64>) -> Error {
        Error::NoBackup {
            path: self.dir.clone(),
            number,
        }
    }
}

impl fmt::Debug for Backups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backups")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// The error for a file of a run whose bytes are others than were backed up.
fn changed(path: &Path) -> Error {
    Error::corrupt_file(path, 0, "its checksum is not that of what was backed up")
}
