//! The runs of an open store, for all keyspaces, in memory and in the manifest on disk.
//!
//! ```text
//!   install(edits):  levels ──edits──> new levels ──> MANIFEST, durably ──> removed runs: marked obsolete
//!   create, drop                                          │ fails before its rename
//!                                                         ├──> levels stay; added runs: removed
//!                                                         │ fails later: either manifest may be on disk
//!                                                         └──> levels stay; added runs: kept until a manifest is written
//! ```
//!
//! A run's file is removed once a manifest without it is durable and the last reader has dropped
//! it. The manifest change marks the run; dropping a marked run removes its file.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::cache::PageCache;
use crate::clock::Mark;
use crate::comparator::KeyOrder;
use crate::io::replace::ReplaceError;
use crate::io::{Io, OpenMode};
use crate::ranges::{RangeTombstone, Ranges};
use crate::run::ObsoleteFiles;
use crate::run::{self, Run};
use crate::tree::build::RunNumbers;
use crate::tree::levels::{Edit, Levels, record};
use crate::tree::manifest::{self, Keyspace, Manifest};
use crate::tree::open_runs::open_runs;
use crate::tree::pending_edits::PendingEdits;
use crate::tree::pick::{Compaction, Existing, OlderKeys, Running, RunningCompactions};
use crate::tree::place::place;
use crate::{Access, Background, Error, KEYSPACES_MAX, Options, Result};

/// The current set of runs. One thread at a time changes it.
#[derive(Debug)]
pub(crate) struct Catalog {
    io: Arc<dyn Io>,
    dir: PathBuf,
    /// As on disk, unless the last write failed.
    manifest: Manifest,
    /// One for each keyspace of the manifest, in its order.
    runs: Vec<KeyspaceRuns>,
    numbers: Arc<RunNumbers>,
    obsolete_files: Arc<ObsoleteFiles>,
    /// Whether the last write of the manifest failed.
    has_failed: bool,
    /// Runs named by a manifest whose write failed in doubt or panicked: that manifest may still be
    /// on disk.
    in_doubt: Vec<Arc<Run>>,
    /// The compactions in progress. Ingested runs must not overlap what they write.
    running: RunningCompactions,
}

/// The runs of a keyspace, and the range deletions in them.
#[derive(Clone, Debug)]
pub(crate) struct KeyspaceRuns {
    pub(crate) levels: Arc<Levels>,
    /// The range deletions that still cover something in the runs.
    pub(crate) ranges: Arc<Ranges>,
    /// The runs that hold these range deletions. They may also hold range deletions that no
    /// longer cover anything.
    pub(crate) range_runs: Vec<Arc<Run>>,
    /// Everything up to this sequence number has expired.
    pub(crate) expired_sequence: u64,
    /// Bytes of runs removed since range deletions were last checked for whether they are still
    /// needed.
    gone_bytes: u64,
}

/// The manifest and its runs at one time.
#[derive(Debug)]
pub(crate) struct CatalogSnapshot {
    pub(crate) manifest: Manifest,
    /// The runs that the manifest names, in its order.
    pub(crate) runs: Vec<Arc<Run>>,
}

/// How much of the log has been flushed to runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Logged {
    /// Everything up to this sequence number has been flushed.
    pub(crate) flushed_sequence: u64,
    /// The first log segment with anything that has not been flushed.
    pub(crate) first_segment: u64,
    /// When the flushed entries were written, if entries of any keyspace expire.
    pub(crate) marks: Vec<Mark>,
}

/// Range deletions are checked once this many bytes of runs per deletion have been rewritten or
/// removed.
const FORGET_BYTES: u64 = 64;

impl Catalog {
    /// Opens the runs of a store, and removes files of runs that the manifest does not name, or has
    /// the background thread remove them.
    /// Creates a manifest for a store that has neither.
    ///
    /// # Errors
    /// [`Error::CorruptFile`] if the manifest is damaged or missing, or if a run is damaged,
    /// missing or not the one named. [`Error::ComparatorMismatch`] or [`Error::KeyspaceComparator`]
    /// if the options lack the comparator of a keyspace. On an error, nothing is removed or
    /// changed.
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        dir: &Path,
        options: &Options,
        cache: &Arc<PageCache>,
    ) -> Result<Catalog> {
        let found = run_files(&**io, dir)?;
        let manifest = match Manifest::read(&**io, dir)? {
            Some(manifest) => manifest,
            None if found.is_empty() => {
                let mut manifest = Manifest::new(options.comparator.name());
                manifest.keyspaces[0].ttl = options.ttl.map_or(0, |ttl| ttl.as_secs());
                if options.access == Access::ReadWrite {
                    manifest.write(&**io, dir)?;
                }
                manifest
            }
            None => {
                let reason = "it is missing, but there are runs: repair the store";
                return Err(Error::corrupt_file(&dir.join(manifest::NAME), 0, reason));
            }
        };
        let mut keyspaces = Vec::new();
        for keyspace in &manifest.keyspaces {
            let order = options.order_of(dir, &keyspace.name, &keyspace.comparator)?;
            keyspaces.push((keyspace, order));
        }
        let opened = open_runs(&**io, dir, &keyspaces, cache, options)?;
        let runs = opened.into_iter().zip(&manifest.keyspaces);
        let runs = runs.map(|(opened, keyspace)| KeyspaceRuns {
            levels: Arc::new(opened.levels),
            ranges: Arc::new(opened.ranges),
            range_runs: opened.range_runs,
            expired_sequence: keyspace.expired_sequence,
            gone_bytes: 0,
        });
        let runs = runs.collect();
        let named: HashSet<u64> = manifest.runs().map(|run| run.number).collect();
        let leftovers = found.iter().filter(|number| !named.contains(number));
        let obsolete_files = ObsoleteFiles::new(Arc::clone(io));
        for number in leftovers.filter(|_| options.access == Access::ReadWrite) {
            let path = run::path(dir, *number);
            // Later numbers are given again, to other runs.
            if *number < manifest.next_run && options.background == Background::Threads {
                let file = io.open(&path, OpenMode::Read);
                let bytes = file.and_then(|file| file.len()).unwrap_or_default();
                obsolete_files.add_found(path, bytes);
            } else {
                io.remove(&path)
                    .map_err(|error| Error::io("remove", &path, error))?;
            }
        }
        obsolete_files.set_live_bytes(run_bytes(&manifest));
        Ok(Catalog {
            io: Arc::clone(io),
            dir: dir.to_owned(),
            numbers: Arc::new(RunNumbers::new(manifest.next_run)),
            runs,
            manifest,
            obsolete_files: Arc::new(obsolete_files),
            has_failed: false,
            in_doubt: Vec::new(),
            running: RunningCompactions::default(),
        })
    }

    /// The keyspaces: ids, names and comparators.
    pub(crate) fn keyspaces(&self) -> &[Keyspace] {
        &self.manifest.keyspaces
    }

    /// A number above those of all keyspaces that have ever existed.
    pub(crate) fn next_keyspace(&self) -> u32 {
        self.manifest.next_keyspace
    }

    /// The runs of a keyspace; `None` if the keyspace does not exist any more.
    pub(crate) fn runs_of(&self, keyspace: u32) -> Option<&KeyspaceRuns> {
        self.runs.get(self.index(keyspace)?)
    }

    /// Removes the files of obsolete runs.
    pub(crate) fn obsolete_files(&self) -> &Arc<ObsoleteFiles> {
        &self.obsolete_files
    }

    /// Numbers for new runs.
    pub(crate) fn numbers(&self) -> &Arc<RunNumbers> {
        &self.numbers
    }

    /// Everything up to this sequence number has been flushed to runs.
    pub(crate) fn flushed_sequence(&self) -> u64 {
        self.manifest.flushed_sequence
    }

    /// What is in runs now.
    pub(crate) fn existing(&self) -> Existing {
        Existing {
            flushed_sequence: self.flushed_sequence(),
            next_run: self.numbers.next(),
        }
    }

    /// The first log segment with anything that has not been flushed.
    pub(crate) fn first_segment(&self) -> u64 {
        self.manifest.first_segment
    }

    /// When the entries in runs were written.
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.manifest.marks
    }

    fn index(&self, keyspace: u32) -> Option<usize> {
        index(&self.manifest, keyspace)
    }

    /// Makes changes to the runs of some keyspaces durable, all or none. The caller publishes them
    /// to readers. With `logged`, it also records how much of the log has been flushed. Runs
    /// written for a keyspace that has since been dropped are removed.
    ///
    /// # Errors
    /// [`Error::Io`]: for this process nothing has changed, and the store continues without the
    /// change. If the write failed before the manifest was renamed, the added runs are removed, as
    /// they are if a comparator panics. Otherwise either manifest may be on disk until the next
    /// change, so the files of both are kept.
    pub(crate) fn install(&mut self, edits: PendingEdits, logged: Option<&Logged>) -> Result<()> {
        let mut manifest = self.manifest.clone();
        let mut runs = self.runs.clone();
        if let Some(logged) = logged {
            manifest.flushed_sequence = logged.flushed_sequence;
            manifest.first_segment = logged.first_segment;
            manifest.marks.clone_from(&logged.marks);
        }
        for (keyspace, edit) in edits.iter() {
            let Some(index) = index(&manifest, keyspace) else {
                continue;
            };
            // Expired versions that are still in memtables are dropped when they are flushed, or
            // later.
            let expired_sequence = edit.expired_sequence.min(manifest.flushed_sequence);
            let running = self.running.in_keyspace(keyspace);
            let edit = &placed(edit, &runs[index].levels, &running);
            runs[index].edit(edit, expired_sequence, &mut manifest.keyspaces[index]);
        }
        self.replace(manifest, runs, edits)
    }

    /// The compactions in progress.
    pub(crate) fn running(&self) -> &RunningCompactions {
        &self.running
    }

    /// Takes the runs of a compaction that was picked under the same lock. Returns its number and
    /// what it must know of the other runs; `None` if the keyspace does not exist any more. The
    /// other arguments are those of [`RunningCompactions::begin`].
    pub(crate) fn begin(
        &mut self,
        keyspace: u32,
        compaction: &Compaction,
        is_background: bool,
        threads: usize,
        begun: Instant,
    ) -> Option<(u64, OlderKeys)> {
        let older = compaction.older_keys(&self.runs_of(keyspace)?.levels);
        let id = self
            .running
            .begin(keyspace, compaction, is_background, threads, begun);
        Some((id, older))
    }

    pub(crate) fn running_mut(&mut self) -> &mut RunningCompactions {
        &mut self.running
    }

    /// Adds a keyspace durably and returns its number. Its entries live for `ttl` seconds; 0 means
    /// that they never expire.
    ///
    /// # Errors
    /// [`Error::KeyspaceExists`]; [`Error::TooManyKeyspaces`]; [`Error::Io`], as
    /// [`install`](Self::install).
    pub(crate) fn create(
        &mut self,
        name: &str,
        comparator: &str,
        order: &KeyOrder,
        ttl: u64,
    ) -> Result<u32> {
        let mut manifest = self.manifest.clone();
        // A manifest with the name twice could not be read.
        if manifest.keyspaces.iter().any(|of| of.name == name) {
            return Err(Error::KeyspaceExists {
                name: name.to_owned(),
            });
        }
        let id = manifest.next_keyspace;
        if manifest.keyspaces.len() >= KEYSPACES_MAX || id == u32::MAX {
            return Err(Error::TooManyKeyspaces {
                name: name.to_owned(),
                limit: KEYSPACES_MAX,
            });
        }
        manifest.next_keyspace = id + 1;
        manifest.keyspaces.push(Keyspace {
            ttl,
            ..Keyspace::new(id, name, comparator)
        });
        let mut runs = self.runs.clone();
        runs.push(KeyspaceRuns {
            levels: Arc::new(Levels::with_runs(order.clone(), [])),
            ranges: Arc::new(Ranges::new(order.clone())),
            range_runs: Vec::new(),
            expired_sequence: 0,
            gone_bytes: 0,
        });
        self.replace(manifest, runs, self.no_edits()).map(|()| id)
    }

    /// Drops a keyspace durably, with all of its runs. Their files are removed with their last
    /// readers.
    ///
    /// # Errors
    /// As [`install`](Self::install).
    pub(crate) fn drop_keyspace(&mut self, keyspace: u32) -> Result<()> {
        let (mut manifest, mut runs) = (self.manifest.clone(), self.runs.clone());
        if let Some(index) = self.index(keyspace).filter(|index| *index > 0) {
            manifest.keyspaces.remove(index);
            runs.remove(index);
        }
        self.replace(manifest, runs, self.no_edits())
    }

    /// Writes the manifest again if its last write failed. This avoids work for changes that cannot
    /// be installed while manifests cannot be written, and ensures which manifest is on disk.
    ///
    /// # Errors
    /// [`Error::Io`] if it still cannot be written.
    pub(crate) fn write_again(&mut self) -> Result<()> {
        if !self.has_failed {
            return Ok(());
        }
        let manifest = self.manifest.clone();
        self.replace(manifest, self.runs.clone(), self.no_edits())
    }

    fn no_edits(&self) -> PendingEdits {
        PendingEdits::new(&self.obsolete_files)
    }

    /// Replaces the manifest and the runs. `edits` are the changes that led to them.
    fn replace(
        &mut self,
        mut manifest: Manifest,
        runs: Vec<KeyspaceRuns>,
        edits: PendingEdits,
    ) -> Result<()> {
        manifest.next_run = self.numbers.next();
        // From here on the new manifest may be on disk, even if writing it panics. So no added run
        // is removed unless the old manifest is known to be in place.
        let in_doubt_before = self.in_doubt.len();
        self.in_doubt.extend(edits.new_runs().cloned());
        edits.installed();
        self.has_failed = true;
        if let Err(error) = manifest.write(&*self.io, &self.dir) {
            if matches!(error, ReplaceError::Unchanged(_)) {
                for run in self.in_doubt.drain(in_doubt_before..) {
                    run.remove_when_dropped(&self.obsolete_files);
                }
            }
            return Err(error.into());
        }
        self.has_failed = false;
        self.obsolete_files.set_live_bytes(run_bytes(&manifest));
        let named: HashSet<u64> = manifest.runs().map(|run| run.number).collect();
        let before = self.runs.iter().flat_map(KeyspaceRuns::all);
        // The store does not need the added runs of a dropped keyspace, nor runs of range
        // deletions that cover nothing.
        let before = before.chain(&self.in_doubt);
        for run in before.filter(|run| !named.contains(&run.number())) {
            run.remove_when_dropped(&self.obsolete_files);
        }
        self.manifest = manifest;
        self.runs = runs;
        self.in_doubt.clear();
        Ok(())
    }

    /// The current manifest and the runs that it names, in its order. Their files can be read while
    /// the caller holds them.
    pub(crate) fn snapshot(&self) -> CatalogSnapshot {
        let runs = self.runs.iter().flat_map(KeyspaceRuns::all);
        CatalogSnapshot {
            manifest: self.manifest.clone(),
            runs: runs.cloned().collect(),
        }
    }
}

impl KeyspaceRuns {
    /// All runs, in the order of the manifest.
    fn all(&self) -> impl Iterator<Item = &Arc<Run>> {
        let of_keys = self.levels.runs().map(|(_, run)| run);
        of_keys.chain(&self.range_runs)
    }

    /// Applies a change, here and to the manifest.
    fn edit(&mut self, edit: &Edit, expired_sequence: u64, keyspace: &mut Keyspace) {
        let levels = self.levels.edit(edit);
        debug_assert!(levels.overlap().is_none(), "{:?}", levels.overlap());
        keyspace.levels = levels.records();
        keyspace.expired_sequence = keyspace.expired_sequence.max(expired_sequence);
        self.edit_ranges(edit, &levels);
        keyspace.range_runs = self.range_runs.iter().map(|run| record(run)).collect();
        self.levels = Arc::new(levels);
        self.expired_sequence = keyspace.expired_sequence;
    }

    /// Adds range deletions, and drops those that no longer cover anything.
    fn edit_ranges(&mut self, edit: &Edit, levels: &Levels) {
        let is_gone = |run: &&Arc<Run>| edit.removed.contains(&run.number());
        let gone = self.levels.runs().map(|(_, run)| run).filter(is_gone);
        self.gone_bytes += gone.map(|run| run.meta().file_bytes).sum::<u64>();
        self.range_runs.retain(|run| !is_gone(&run));
        self.range_runs.extend(edit.range_runs.iter().cloned());
        let added = || edit.ranges.iter().map(RangeTombstone::as_ref);
        if edit.replaces_ranges {
            self.ranges = Arc::new(Ranges::of(levels.order().clone(), added()));
        } else if !edit.ranges.is_empty() {
            self.ranges = Arc::new(self.ranges.with(added()));
        }
        let has_changed = !edit.removed.is_empty() || !edit.ranges.is_empty();
        if !has_changed || self.ranges.is_empty() {
            return;
        }
        // Checking all of them takes time, so wait until enough bytes of runs have changed.
        let due_bytes = FORGET_BYTES.saturating_mul(self.ranges.len() as u64);
        if self.gone_bytes >= due_bytes || levels.need_none(&self.ranges) {
            self.gone_bytes = 0;
            self.ranges = Arc::new(levels.needed_of(self.ranges.list().iter()));
        }
        if self.ranges.is_empty() {
            self.range_runs.clear();
        }
    }
}

/// An edit whose ingested runs have levels.
fn placed<'e>(edit: &'e Edit, levels: &Levels, running: &Running<'_>) -> Cow<'e, Edit> {
    if edit.ingested.is_empty() {
        return Cow::Borrowed(edit);
    }
    let mut edit = edit.clone();
    for ingested in std::mem::take(&mut edit.ingested) {
        let level = place(&ingested, levels, running);
        edit.added.push((level, ingested.run));
    }
    Cow::Owned(edit)
}

/// Bytes of all runs that a manifest names.
fn run_bytes(manifest: &Manifest) -> u64 {
    manifest.runs().map(|run| run.bytes).sum()
}

/// The index of a keyspace in a manifest.
fn index(manifest: &Manifest, keyspace: u32) -> Option<usize> {
    let by_id = |of: &Keyspace| of.id.cmp(&keyspace);
    manifest.keyspaces.binary_search_by(by_id).ok()
}

/// Numbers of the runs with files in a directory, ascending.
pub(crate) fn run_files(io: &dyn Io, dir: &Path) -> Result<Vec<u64>> {
    let names = io
        .list(dir)
        .map_err(|error| Error::io("list", dir, error))?;
    let mut numbers: Vec<u64> = names
        .iter()
        .filter_map(|name| run::number(name.to_str()?))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}
