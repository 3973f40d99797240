//! Checks, repairs and describes a store that is not open.
//!
//! ```text
//!   check    LOCK ─> MANIFEST ─> every byte of every run ─> every record of the log       changes nothing
//!   repair   LOCK ─> tree/repair/ ─> the readable part of a damaged log, as runs       then it opens
//! ```
//!
//! describe.rs reads the contents of a store's files; description.rs holds the result, for people
//! and programs.

pub(crate) mod describe;
pub(crate) mod description;

use forerun_core::sync::atomic::AtomicBool;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::cache::{CacheOptions, PageCache};
use crate::comparator::KeyOrder;
use crate::io::guarded::GuardedIo;
use crate::io::open_files::{self, OpenFiles};
use crate::io::{Io, OsIo};
use crate::panics;
use crate::store_dir::StoreDir;
use crate::tree::build::{Build, RunNumbers};
use crate::tree::catalog::run_files;
use crate::tree::levels::Levels;
use crate::tree::limiter::{IoClass, RateLimiter};
use crate::tree::manifest::{self, Keyspace, Manifest};
use crate::tree::repair::{self, RepairReport};
use crate::tree::salvage::DataLoss;
use crate::tree::verify::{VerifyReport, verify_file};
use crate::wal::clean_shutdown::{self, CleanShutdown};
use crate::wal::record::Record;
use crate::wal::recovery::{Flushed, RecoveryContext, inspect};
use crate::{
    Access, Bytewise, Comparator, Create, Db, Error, Options, Recovery, RecoveryReport, Result,
};

/// Cache size for a check, which bypasses the cache.
const CHECK_CACHE_BYTES: usize = 1 << 20;

/// For a repair, whose new runs have dictionaries: training one is charged to the cache.
const REPAIR_CACHE_BYTES: usize = 32 << 20;

/// The result of [`check`].
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CheckReport {
    /// Result for the runs.
    pub runs: VerifyReport,
    /// Result for the log, if it can be read.
    pub log: RecoveryReport,
    /// Files left by a crash. The next opening removes them.
    pub leftovers: usize,
    /// Names of all keyspaces except the default one, in order of creation.
    pub keyspaces: Vec<String>,
    /// Everything that is wrong, in runs and log.
    pub problems: Vec<Error>,
}

/// Verifies every byte of a store that is not open: the manifest, the runs and the log. Changes
/// nothing.
///
/// A torn end of the log, as a crash leaves it, is not a problem; [`RecoveryReport::dropped_tail`]
/// reports it.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// use forerun_db::{Db, Options};
///
/// Db::open(&path, Options::default())?.put(b"key", b"value")?;
/// let checked = forerun_db::check(&path, &Options::default())?;
/// assert!(checked.problems.is_empty());
/// # Ok::<(), forerun_db::Error>(())
/// ```
///
/// # Errors
/// [`Error::NotAStore`], [`Error::Locked`], [`Error::NewerFormat`], [`Error::OlderFormat`],
/// [`Error::ComparatorMismatch`], [`Error::KeyspaceComparator`], [`Error::Io`] if the store cannot
/// be examined. Damage that is found is in the result.
pub fn check(path: impl AsRef<Path>, options: &Options) -> Result<CheckReport> {
    check_with_io(Arc::new(OsIo), path, options)
}

/// [`check`] on the given file system instead of the operating system's.
///
/// # Errors
/// As [`check`].
pub fn check_with_io(
    io: Arc<dyn Io>,
    path: impl AsRef<Path>,
    options: &Options,
) -> Result<CheckReport> {
    let io = guarded(io, options);
    panics::catch("checking a store", || check_on(io, path.as_ref(), options))
}

/// Turns panics of the file system into errors, and limits open files as the options say.
fn guarded(io: Arc<dyn Io>, options: &Options) -> Arc<dyn Io> {
    let max_open = options.max_open_files;
    let max_open = max_open.unwrap_or_else(open_files::default_limit);
    Arc::new(OpenFiles::new(Arc::new(GuardedIo(io)), max_open))
}

fn check_on(io: Arc<dyn Io>, path: &Path, options: &Options) -> Result<CheckReport> {
    let store = ClosedStore::open(&io, path, options, Access::ReadOnly)?;
    store.check(options)
}

impl ClosedStore {
    fn check(&self, options: &Options) -> Result<CheckReport> {
        let (io, path) = self.place();
        let mut checked = CheckReport::default();
        let found = run_files(&**io, path)?;
        let manifest = match Manifest::read(&**io, path) {
            Ok(Some(manifest)) => manifest,
            Ok(None) => {
                if !found.is_empty() {
                    let reason = "it is missing, but there are runs";
                    checked.problems.push(Error::corrupt_file(
                        &path.join(manifest::NAME),
                        0,
                        reason,
                    ));
                }
                Manifest::new(options.comparator.name())
            }
            Err(error @ Error::CorruptFile { .. }) => {
                checked.problems.push(error);
                // Without a manifest, it is unknown which part of the log is needed.
                return Ok(checked);
            }
            Err(other) => return Err(other),
        };
        let is_named = |number: &u64| manifest.runs().any(|run| run.number == *number);
        checked.leftovers = found.iter().filter(|number| !is_named(number)).count();
        let names = manifest.keyspaces.iter().skip(1);
        checked.keyspaces = names.map(|keyspace| keyspace.name.clone()).collect();
        let stop = AtomicBool::new(false);
        for keyspace in &manifest.keyspaces {
            let order = options.order_of(path, &keyspace.name, &keyspace.comparator)?;
            let mut runs = Vec::new();
            let mut verify = |named| {
                let verified = &mut checked.runs;
                verify_file(&**io, path, named, &order, &self.cache, &stop, verified)
            };
            for (level, records) in keyspace.levels.iter().enumerate() {
                for named in records {
                    runs.extend(verify(named)?.map(|run| (level, run)));
                }
            }
            for named in &keyspace.range_runs {
                verify(named)?;
            }
            let levels = Levels::with_runs(order, runs);
            checked.runs.note_overlap(path, &levels);
        }
        checked
            .problems
            .extend(checked.runs.problems.iter().cloned());
        self.check_log(&manifest, &mut checked)?;
        Ok(checked)
    }
}

/// Repairs a damaged store that is not open, so that it opens again with everything that can still
/// be read.
///
/// Drops damaged pages from their runs, rebuilds a lost manifest from the runs, and flushes the
/// readable part of a damaged log to runs. [`RepairReport::losses`] lists what is lost; where a
/// lost version hid an older one, the older value is back. Damaged runs are kept as
/// `run-NNNNNN.run.bad`.
///
/// ```
/// use forerun_db::{Db, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(&path, Options::default())?;
/// db.put("paris", "48.85,2.35")?;
/// db.flush()?;
/// db.close()?;
/// std::fs::remove_file(path.join("MANIFEST")).unwrap();
/// assert!(Db::open(&path, Options::default()).is_err());
///
/// let report = forerun_db::repair(&path, &Options::default())?;
/// assert!(report.losses.is_empty());
/// let db = Db::open(&path, Options::default())?;
/// assert_eq!(db.get("paris")?.as_deref(), Some(&b"48.85,2.35"[..]));
/// # Ok::<(), forerun_db::Error>(())
/// ```
///
/// # Errors
/// As [`check`].
pub fn repair(path: impl AsRef<Path>, options: &Options) -> Result<RepairReport> {
    repair_with_io(Arc::new(OsIo), path, options)
}

/// [`repair`] on the given file system instead of the operating system's.
///
/// # Errors
/// As [`check`].
pub fn repair_with_io(
    io: Arc<dyn Io>,
    path: impl AsRef<Path>,
    options: &Options,
) -> Result<RepairReport> {
    let io = guarded(io, options);
    panics::catch("repairing a store", || {
        repair_on(io, path.as_ref(), options)
    })
}

fn repair_on(io: Arc<dyn Io>, path: &Path, options: &Options) -> Result<RepairReport> {
    let store = ClosedStore::open(&io, path, options, Access::ReadWrite)?;
    let (io, path) = store.place();
    let build = Build {
        io: &**io,
        dir: path,
        order: &KeyOrder::new(Arc::clone(&options.comparator)),
        comparator: options.comparator.name(),
        keyspace: (0, ""),
        cache: &store.cache,
        options: options.run,
        run_bytes: options.tree.run_bytes,
        numbers: &RunNumbers::new(1),
        limiter: &RateLimiter::new(options.tree.write_rate_bytes),
        class: IoClass::Compaction,
        stop: &Arc::default(),
    };
    let mut repaired = repair::repair(&build, options)?;
    if repaired.rebuilt_manifest {
        store.name_unknown_keyspaces(&mut repaired)?;
    }
    let checked = store.check(options)?;
    if !checked.problems.is_empty() {
        // The runs are sound now, so the damage is in the log. Flush its readable part to runs, and
        // start a new log.
        let options = Options {
            recovery: Recovery::SkipCorrupt,
            create: Create::Never,
            ..options.clone()
        };
        // The lock is held throughout, so no other process can write between two steps.
        let db = Db::open_in(options, store.dir)?;
        let skipped = db.recovery().skipped.iter();
        repaired.losses.extend(skipped.map(Into::into));
        db.flush()?;
        let last_sequence = db.stats().last_sequence;
        let mut dir = db.close_and_keep_lock()?;
        dir.look()?;
        start_new_log(&dir, last_sequence)?;
    }
    Ok(repaired)
}

/// Abandons the log: everything readable up to `last_sequence` is in runs.
fn start_new_log(dir: &StoreDir, last_sequence: u64) -> Result<()> {
    let (io, path) = (&*dir.io, &*dir.path);
    let (Some(last), Some(mut manifest)) = (dir.segments.last(), Manifest::read(io, path)?) else {
        return Ok(());
    };
    let flushed = &mut manifest.flushed_sequence;
    *flushed = last_sequence.max(*flushed);
    manifest.first_segment = last + 1;
    // The next opening removes the segments.
    Ok(manifest.write(io, path)?)
}

/// A store's directory, locked.
struct ClosedStore {
    dir: StoreDir,
    cache: Arc<PageCache>,
}

impl ClosedStore {
    fn open(
        io: &Arc<dyn Io>,
        path: &Path,
        options: &Options,
        access: Access,
    ) -> Result<ClosedStore> {
        let comparator = options.comparator.name();
        let (dir, capacity_bytes) = match access {
            Access::ReadWrite => (
                StoreDir::open(io, path, Create::Never, comparator)?,
                REPAIR_CACHE_BYTES,
            ),
            Access::ReadOnly => (
                StoreDir::open_read_only(io, path, comparator)?,
                CHECK_CACHE_BYTES,
            ),
        };
        Ok(ClosedStore {
            dir,
            cache: PageCache::new(CacheOptions {
                capacity_bytes,
                page_bytes: options.run.page_limit_bytes(),
                pages: forerun_core::Pages::Small,
            })?,
        })
    }

    /// The file system that finds the store's files, and their directory.
    fn place(&self) -> (&Arc<dyn Io>, &Path) {
        (&self.dir.io, &self.dir.path)
    }

    fn check_log(&self, manifest: &Manifest, checked: &mut CheckReport) -> Result<()> {
        let path = &self.dir.path;
        let clean_shutdown = match &self.dir.clean_shutdown {
            Some(Ok(shutdown)) => Some(*shutdown),
            Some(Err(reason)) => {
                checked.problems.push(Error::corrupt_file(
                    &path.join(clean_shutdown::NAME),
                    0,
                    *reason,
                ));
                None
            }
            None => None,
        };
        let mut apply = |_: &Record<'_>| Ok(());
        match self.inspect_log(manifest, clean_shutdown, manifest.next_keyspace, &mut apply) {
            Ok(report) => {
                let skipped = report.skipped.iter();
                let skipped = skipped
                    .map(|bad| Error::corrupt_file(&bad.path, bad.offset, bad.reason.clone()));
                checked.problems.extend(skipped);
                checked.log = report;
                Ok(())
            }
            Err(error @ Error::CorruptFile { .. }) => {
                checked.problems.push(error);
                Ok(())
            }
            Err(other) => Err(other),
        }
    }
    /// Reads the log that a manifest needs. Changes nothing.
    fn inspect_log(
        &self,
        manifest: &Manifest,
        clean_shutdown: Option<CleanShutdown>,
        next_keyspace: u32,
        apply: &mut dyn FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<RecoveryReport> {
        let is_needed = |number: &&u64| **number >= manifest.first_segment;
        let numbers: Vec<u64> = self
            .dir
            .segments
            .iter()
            .filter(is_needed)
            .copied()
            .collect();
        let circumstances = RecoveryContext {
            recovery: Recovery::SkipCorrupt,
            clean_shutdown,
            power_lost: self.dir.power_lost(),
            flushed: Flushed {
                sequence: manifest.flushed_sequence,
                first_segment: manifest.first_segment,
            },
            next_keyspace,
        };
        let (io, path) = self.place();
        inspect(io, path, &numbers, &circumstances, apply)
    }

    /// Names keyspaces that were in a lost manifest but are in no run, so that their names are
    /// unknown.
    fn name_unknown_keyspaces(&self, repaired: &mut RepairReport) -> Result<()> {
        let (io, path) = self.place();
        let Some(mut manifest) = Manifest::read(&**io, path)? else {
            return Ok(());
        };
        let mut unknown = BTreeSet::new();
        let mut note = |record: &Record<'_>| {
            unknown.extend(record.ops.clone().with_keyspaces().map(|(id, _)| id));
            Ok(())
        };
        match self.inspect_log(&manifest, None, u32::MAX, &mut note) {
            // Checking the log reports what is wrong with it.
            Ok(_) | Err(Error::CorruptFile { .. }) => {}
            Err(other) => return Err(other),
        }
        let known: BTreeSet<u32> = manifest.keyspaces.iter().map(|of| of.id).collect();
        for id in unknown.difference(&known) {
            let name = repair::recovered_name(*id);
            repaired.losses.push(DataLoss {
                path: path.join(manifest::NAME),
                reason: format!(
                    "keyspace {id} was found only in the log: it is now named {name:?} and ordered \
                     bytewise"
                ),
                keys: None,
            });
            manifest
                .keyspaces
                .push(Keyspace::new(*id, &name, Bytewise.name()));
            manifest.next_keyspace = manifest.next_keyspace.max(id.saturating_add(1));
        }
        if unknown.is_subset(&known) {
            return Ok(());
        }
        manifest.keyspaces.sort_by_key(|of| of.id);
        Ok(manifest.write(&**io, path)?)
    }
}
