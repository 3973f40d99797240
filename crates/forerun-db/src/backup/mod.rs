//! Backups of stores: several in one directory, which share the runs that they have in common.
//!
//! ```text
//!   store -flush-> manifest and runs of one moment
//!                    │ copy each run that no backup here has, and verify every page of the copy
//!                    v
//!   directory   BACKUPS  LOCK  run-9f3c….run  run-07aa….run …     runs are named by their contents
//!                    │ synced, names and all                      and never change
//!                    v
//!             backup-000007     its manifest and a checksum of each run's bytes: written last,
//!                    │ restore  removed first
//!                    v
//!   store       run-000041.run …  MANIFEST  FORMAT                as tree/checkpoint.rs makes it
//! ```
//!
//! So a backup exists completely or not at all, and a run file that no backup names is garbage.
//! Leftovers of a crash are removed before the next backup is made and when old backups are
//! removed. `docs/internals/format-other.md` defines the files.
//!
//! ```text
//!   make.rs           a store -> a backup
//!   copy.rs           its run files
//!   listing.rs        the contents of the directory
//!   backup_record.rs  the file that makes a backup
//!   info.rs           the results of the calls
//! ```

pub(crate) mod backup_record;
mod copy;
mod info;
mod listing;
mod make;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::io::guarded::GuardedIo;
use crate::io::{Io, OsIo};
use crate::sealed::Kind;
use crate::store_dir::{self, Lock, Mark};
use crate::tree::checkpoint::make_store;
use crate::tree::file_copy::{self, CopyPages, FileCopyOptions, Meter};
use crate::tree::manifest::RunRecord;
use crate::{Create, Error, Result};

use info::Numbers;
use listing::{Listing, record_name, run_name};

pub use info::{Backup, BackupList, BackupVerifyReport, RemovedBackups};

const KIND: Kind = Kind {
    magic: *b"FORE-BKS",
    version: 1,
};

const MARK: Mark = Mark {
    name: "BACKUPS",
    stranger: |path, reason| Error::NotBackups { path, reason },
};

/// A directory of backups, opened by this process alone.
///
/// A backup is a copy: nothing that happens to the store or its disk changes it. Runs that an
/// earlier backup already has are not copied again, so a backup takes only the time and space of
/// what is new since.
///
/// ```
/// use forerun_db::{Backups, Db, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let [path, backups, restored] =
/// #     ["store", "backups", "restored"].map(|name| directory.path().join(name));
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
/// backups.purge_old(1)?;
/// assert_eq!(backups.list()?.backups.len(), 1);
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub struct Backups {
    io: Arc<dyn Io>,
    dir: PathBuf,
    copying: FileCopyOptions,
    lock: Lock,
}

impl Backups {
    /// Opens a directory of backups.
    ///
    /// # Errors
    /// [`Error::NotBackups`]: it is not one. [`Error::Locked`]: it is already open, here or in
    /// another process. [`Error::NewerFormat`], [`Error::CorruptFile`], [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Backups> {
        Backups::open_with_io(Arc::new(OsIo), path, Create::Never)
    }

    /// Opens a directory of backups, or creates one.
    ///
    /// # Errors
    /// [`Error::InsideStore`]: it is inside a store's directory. Otherwise the same as for
    /// [`open`](Self::open).
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Backups> {
        Backups::open_with_io(Arc::new(OsIo), path, Create::IfMissing)
    }

    /// Creates a directory of backups.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`]: there is one. Otherwise the same as for
    /// [`open_or_create`](Self::open_or_create).
    pub fn create_new(path: impl AsRef<Path>) -> Result<Backups> {
        Backups::open_with_io(Arc::new(OsIo), path, Create::MustBeNew)
    }

    /// Opens a directory of backups on the given file system. The stores to back up may be on
    /// another one; backups are restored to this one.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and those of [`create_new`](Self::create_new).
    pub fn open_with_io(
        io: Arc<dyn Io>,
        path: impl AsRef<Path>,
        create: Create,
    ) -> Result<Backups> {
        let io: Arc<dyn Io> = Arc::new(GuardedIo(io));
        let dir = store_dir::absolute(&*io, path.as_ref())?;
        // `open` takes such a directory too, so that its backups can be restored.
        let is_created = create != Create::Never;
        if let Some(store) = is_created
            .then(|| store_dir::enclosing_store(&*io, &dir))
            .flatten()
        {
            return Err(Error::InsideStore { path: dir, store });
        }
        let check = |io: &dyn Io, dir: &Path| {
            let path = dir.join(MARK.name);
            let bytes = store_dir::read(io, &path)?;
            let unsealed = KIND.unseal(&bytes, |_| Ok(()));
            unsealed.map_err(|bad| bad.of(&KIND, &path, dir))
        };
        let mark = KIND.seal(|_| ());
        let (io, mut lock) = store_dir::take(&io, &dir, create, &MARK, &mark, &check)?;
        lock.note_boot();
        Ok(Backups {
            io,
            dir,
            copying: FileCopyOptions::default(),
            lock,
        })
    }

    /// Returns the directory, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Sets how fast later calls copy and [`verify`](Self::verify) reads, who is told of their
    /// progress, and who may stop them. A backup also keeps to
    /// [`TreeOptions::write_rate_bytes`](crate::TreeOptions::write_rate_bytes) of the store.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// use forerun_db::{Backups, Create, Db, Error, FileCopyOptions, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let directory = directory.path();
    /// # let (path, restored) = (directory.join("store"), directory.join("restored"));
    /// let db = Db::open(path, Options::default())?;
    /// db.put(b"key", b"value")?;
    /// # let backups = directory.join("backups");
    /// let mut backups = Backups::open_or_create(backups)?;
    /// let cancelled = Arc::new(AtomicBool::new(false));
    /// let asked = Arc::clone(&cancelled);
    /// backups.set_copy_options(
    ///     FileCopyOptions::default()
    ///         .rate_bytes(50 << 20) // 50 MiB/s
    ///         .on_progress(|of| println!("{} of {} bytes", of.done_bytes, of.total_bytes))
    ///         .interrupt_if(move || asked.load(Ordering::Relaxed)),
    /// );
    /// backups.create(&db)?;
    ///
    /// cancelled.store(true, Ordering::Relaxed); // from another thread, or in a signal handler
    /// assert!(matches!(backups.restore(None, &restored), Err(Error::Interrupted)));
    /// // No store was made.
    /// let never = Options::default().create(Create::Never);
    /// assert!(matches!(Db::open(&restored, never), Err(Error::NotAStore { .. })));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn set_copy_options(&mut self, options: FileCopyOptions) {
        self.copying = options;
    }

    /// Lists the backups.
    ///
    /// ```
    /// use forerun_db::{Backups, Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// # let backups = directory.path().join("backups");
    /// let mut backups = Backups::open_or_create(backups)?;
    /// let made = backups.create(&db)?;
    /// for backup in backups.list()?.backups {
    ///     println!("{}: {} bytes", backup.number, backup.bytes);
    ///     assert_eq!(backup.number, made.number);
    /// }
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NewerFormat`], [`Error::Io`].
    pub fn list(&self) -> Result<BackupList> {
        Ok(self.look()?.list())
    }

    /// Reads every byte of all backups and compares it with what was written. The result lists all
    /// problems and the backups that they affect.
    ///
    /// # Errors
    /// The same as for [`list`](Self::list), [`Error::Interrupted`], and [`Error::Panicked`] if a
    /// function of the caller panicked.
    pub fn verify(&self) -> Result<BackupVerifyReport> {
        let found = self.look()?;
        let list = found.list();
        let mut checked = BackupVerifyReport {
            backups: list.backups.len() + list.damaged.len(),
            leftovers: found.unused().count(),
            problems: list.damaged.into_iter().map(|(_, error)| error).collect(),
            ..BackupVerifyReport::default()
        };
        // Each file once, with the backups that need it.
        let mut files: BTreeMap<(String, u64), (u64, Vec<u64>)> = BTreeMap::new();
        for record in found.sound() {
            for (run, checksum) in record.runs() {
                let file = files.entry((run_name(run), checksum));
                let (_, needed_by) = file.or_insert((run.bytes, Vec::new()));
                needed_by.push(record.number);
            }
        }
        let total_bytes = files.values().map(|(bytes, _)| bytes).sum();
        let mut meter = Meter::new(&self.copying, None, total_bytes);
        for ((name, expected), (bytes, needed_by)) in files {
            let path = self.dir.join(name);
            checked.runs += 1;
            checked.bytes += bytes;
            let problem = match copy::checksum(&*self.io, &path, bytes, &mut meter) {
                Ok(checksum) if checksum == expected => continue,
                Ok(_) => changed(&path),
                Err(error @ (Error::Interrupted | Error::Panicked { .. })) => return Err(error),
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

    /// Restores a backup, by default the newest, as a store in a directory that is empty or does
    /// not exist. Everything copied is checked on the way.
    ///
    /// # Errors
    /// [`Error::NoBackup`]. [`Error::CorruptFile`]: the backup is damaged.
    /// [`Error::AlreadyExists`]: `into` is not empty. [`Error::Io`], [`Error::Interrupted`].
    /// [`Error::Panicked`]: a function of the caller panicked. In all cases, no store is left in
    /// `into`.
    pub fn restore(&self, number: Option<u64>, into: impl AsRef<Path>) -> Result<Backup> {
        let into = &store_dir::absolute(&*self.io, into.as_ref())?;
        let found = self.look()?;
        let wanted = number.unwrap_or(found.last_number());
        let record = found.records.get(&wanted);
        let record = record.ok_or_else(|| self.no_backup(number))?;
        let record = record.as_ref().map_err(Error::clone)?;
        let backup = found.backup(wanted).ok_or_else(|| self.no_backup(number))?;
        let total_bytes = record.runs().map(|(run, _)| run.bytes).sum();
        let mut meter = Meter::new(&self.copying, None, total_bytes);
        let mut checksums = record.checksums.iter();
        let put_run = |io: &dyn Io, run: &RunRecord| {
            let path = self.dir.join(run_name(run));
            let file = copy::open(io, &path, run.bytes)?;
            let to = crate::run::path(into, run.number);
            let from = (&*file, &*path);
            let pages = CopyPages::Drop;
            let checksum = file_copy::copy(from, io, &to, pages, run.bytes, &mut meter)?;
            if checksums.next() == Some(&checksum) {
                Ok(())
            } else {
                Err(changed(&path))
            }
        };
        make_store(&self.io, into, &record.manifest, put_run, |_| Ok(()))?;
        Ok(backup)
    }

    /// Removes all backups except the `newest` newest ones, and the files that none of those needs.
    /// A damaged backup does not count, and is removed only if that many newer ones are readable.
    ///
    /// # Errors
    /// [`Error::BadOption`]: `newest` is 0. [`Error::NewerFormat`], [`Error::Io`]: some backups may
    /// be removed, each as a whole.
    pub fn purge_old(&mut self, newest: usize) -> Result<RemovedBackups> {
        let Some(place) = newest.checked_sub(1) else {
            return Err(Error::BadOption {
                option: "newest",
                reason: "keep at least one backup".into(),
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

    /// Removes a backup, damaged or not, and the files that no other backup needs.
    ///
    /// # Errors
    /// [`Error::NoBackup`], [`Error::NewerFormat`], [`Error::Io`].
    pub fn delete(&mut self, number: u64) -> Result<RemovedBackups> {
        let found = self.look()?;
        if found.records.contains_key(&number) {
            self.remove(found, &[number])
        } else {
            Err(self.no_backup(Some(number)))
        }
    }

    fn remove(&self, mut found: Listing, numbers: &[u64]) -> Result<RemovedBackups> {
        for number in numbers {
            self.remove_file(&record_name(*number))?;
            found.records.remove(number);
        }
        // First remove the records, durably: a backup that reappears must find its runs.
        self.sync()?;
        let (files, bytes) = self.remove_unused(&found)?;
        Ok(RemovedBackups {
            backups: numbers.to_vec(),
            files,
            bytes,
        })
    }

    /// Removes the files that no backup needs. Returns how many there were, and their bytes.
    fn remove_unused(&self, found: &Listing) -> Result<(usize, u64)> {
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

    fn look(&self) -> Result<Listing> {
        self.lock.check_process()?;
        Listing::look(&*self.io, &self.dir)
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

/// The error for a run file whose bytes differ from those backed up.
fn changed(path: &Path) -> Error {
    Error::corrupt_file(
        path,
        0,
        "its checksum differs from the one recorded in the backup",
    )
}
