//! Repairs a store whose manifest or runs are damaged.
//!
//! ```text
//!   MANIFEST good   each run verified:  good ──> stays
//!                                       bad ───> a new run holds what its good pages hold
//!
//!   MANIFEST lost   finds, verifies or salvages every run, then places them by overlap and age:
//!
//!                     ├── @90..99 ──┤                       newer than what it overlaps: a level above
//!                  ├────── @10..80 ──────┤ ├── @20..95 ──┤  nothing below: the last level
//!
//!                   merges runs that overlap while neither is entirely newer: merge_rounds.rs
//! ```
//!
//! Damaged files are kept under another name, `run-NNNNNN.run.bad`. New runs become durable before
//! the manifest that names them, and the manifest before anything is removed. An interrupted repair
//! therefore simply starts over.
//!
//! Without a manifest, a repair cannot tell whether a compaction had already replaced a run whose
//! file was still there. The versions of such a run come back. They are no newer than those in the
//! run that replaced it, so reads change only where a deletion has been dropped since. A file of
//! this kind can also bring back a dropped keyspace. A keyspace that was only in the log has lost
//! its name. If a crash also interrupted a flush, some keyspaces have its run and others do not;
//! the repair assumes that the log's entries for the others are in runs.

mod group;
mod merge_rounds;

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use crate::clock::Mark;
use crate::comparator::KeyOrder;
use crate::io::reads::read_exact_at;
use crate::io::replace::ReplaceError;
use crate::io::{OpenMode, link_or_copy};
use crate::ranges::RangeTombstone;
use crate::run::{self, Contents, Run};
use crate::tree::build::{Build, RunNumbers, write_runs};
use crate::tree::catalog::run_files;
use crate::tree::levels::{Levels, record};
use crate::tree::manifest::{Keyspace, LEVELS, Manifest, RunRecord, is_keyspace_name};
use crate::tree::open_runs::as_named;
use crate::tree::range_run::{collect_ranges, write_range_run};
use crate::tree::retain::Retain;
use crate::tree::salvage::{DataLoss, KeyRange, Salvage};
use crate::tree::verify::{VerifyReport, verify_run};
use crate::versions::VersionCursor;
use crate::wal::log_file::{self, Header};
use crate::{Error, Options, Result};

use group::Group;

/// The result of a repair.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RepairReport {
    /// Whether the manifest was lost or damaged, and has been rebuilt from the runs.
    pub rebuilt_manifest: bool,
    /// Runs that were sound.
    pub good_runs: usize,
    /// Runs that were rewritten, because they were damaged or because the repair could not tell
    /// which one was newer.
    pub new_runs: usize,
    /// The parts that could not be read.
    pub losses: Vec<DataLoss>,
    /// Damaged files, under their new names.
    pub set_aside: Vec<PathBuf>,
}

impl RepairReport {
    /// Whether the store was undamaged.
    pub fn was_sound(&self) -> bool {
        !self.rebuilt_manifest && self.new_runs == 0 && self.losses.is_empty()
    }
}

/// Repairs the runs of a store that is not open. `base` says how to write runs. Its numbers are not
/// used, and each keyspace's settings come from `options`.
///
/// # Errors
/// [`Error::Io`]; or, if this release or these options cannot read a manifest or a run,
/// [`Error::NewerFormat`], [`Error::OlderFormat`], [`Error::ComparatorMismatch`],
/// [`Error::KeyspaceComparator`]. Then nothing has changed.
pub(crate) fn repair(base: &Build<'_>, options: &Options) -> Result<RepairReport> {
    let found = run_files(base.io, base.dir)?;
    let (manifest, mut losses) = match Manifest::read(base.io, base.dir) {
        Ok(manifest) => (manifest, Vec::new()),
        Err(error @ Error::CorruptFile { .. }) => {
            tracing::warn!(%error, "rebuilding the manifest from the runs");
            (None, Vec::new())
        }
        Err(other) => return Err(other),
    };
    let greatest = found.last().copied().unwrap_or(0);
    let next_run = manifest.as_ref().map_or(1, |manifest| manifest.next_run);
    let numbers = RunNumbers::new(next_run.max(greatest + 1));
    let base = &Build {
        numbers: &numbers,
        ..*base
    };
    let mut repair = Repair {
        base,
        options,
        repaired: RepairReport::default(),
        found: &found,
        written: Vec::new(),
        bad: Vec::new(),
        replaced: Vec::new(),
        newest: 0,
        last_created: 0,
    };
    let made = match manifest {
        Some(manifest) => repair.repair_runs(manifest, &mut losses),
        None => repair.rebuild(&mut losses),
    };
    repair.repaired.losses = losses;
    let manifest = made?;
    repair.set_aside()?;
    repair.finish(manifest)
}

/// The records of the runs of all levels.
type RunRecords = [Vec<RunRecord>; LEVELS];

/// The name for a keyspace that has lost its own.
pub(crate) fn recovered_name(id: u32) -> String {
    format!("recovered-{id}")
}

struct Repair<'b> {
    base: &'b Build<'b>,
    options: &'b Options,
    repaired: RepairReport,
    /// Numbers of the runs that have files, ascending.
    found: &'b [u64],
    /// New runs. Their files are removed when this is dropped, after an error or while a comparator
    /// panics, unless the manifest decides about them.
    written: Vec<Arc<Run>>,
    /// Numbers of damaged runs.
    bad: Vec<u64>,
    /// Numbers of runs whose versions are in the new runs.
    replaced: Vec<u64>,
    /// The largest sequence number in the runs placed on levels.
    newest: u64,
    /// When the last of the runs that were found was made, in seconds since 1970.
    last_created: u64,
}

impl Repair<'_> {
    /// Repairs the runs that the manifest names, keyspace by keyspace.
    fn repair_runs(
        &mut self,
        mut manifest: Manifest,
        losses: &mut Vec<DataLoss>,
    ) -> Result<Manifest> {
        // Checks all of them first, so that it starts nothing it cannot finish.
        for keyspace in &manifest.keyspaces {
            self.with_build(keyspace, |_, _| Ok(()))?;
        }
        for keyspace in &mut manifest.keyspaces {
            let before = (self.repaired.clone(), losses.len(), self.bad.len());
            let mended = self.with_build(keyspace, |repair, build| {
                repair.repair_keyspace(build, keyspace, losses)
            })?;
            if let Some((levels, range_runs)) = mended {
                (keyspace.levels, keyspace.range_runs) = (levels, range_runs);
                continue;
            }
            losses.truncate(before.1);
            self.bad.truncate(before.2);
            self.repaired = RepairReport {
                rebuilt_manifest: true,
                ..before.0
            };
            let named = keyspace.levels.iter().flatten();
            let named = named.chain(&keyspace.range_runs);
            let mut numbers: Vec<u64> = named.map(|run| run.number).collect();
            numbers.sort_unstable();
            // A missing run is lost.
            let (numbers, missing): (Vec<u64>, Vec<u64>) = numbers
                .into_iter()
                .partition(|number| self.found.contains(number));
            for number in missing {
                losses.push(DataLoss {
                    path: run::path(self.base.dir, number),
                    reason: "it is missing".into(),
                    keys: None,
                });
            }
            *keyspace = self.with_build(&keyspace.clone(), |repair, build| {
                repair.rebuild_keyspace(build, keyspace, &numbers, losses)
            })?;
        }
        Ok(manifest)
    }

    /// Calls `work` with the settings for writing a keyspace's runs.
    fn with_build<T>(
        &mut self,
        keyspace: &Keyspace,
        work: impl FnOnce(&mut Self, &Build<'_>) -> Result<T>,
    ) -> Result<T> {
        let Keyspace {
            id,
            name,
            comparator,
            ..
        } = keyspace;
        let options = self
            .options
            .of_stored_keyspace(self.base.dir, name, comparator)?;
        let build = Build {
            order: &KeyOrder::new(options.comparator),
            comparator,
            keyspace: (*id, name),
            options: options.run,
            run_bytes: options.tree.run_bytes,
            ..*self.base
        };
        work(self, &build)
    }

    /// Replaces each run that the manifest names with what can be read of it. `None` if the levels
    /// are not disjoint.
    fn repair_keyspace(
        &mut self,
        build: &Build<'_>,
        keyspace: &Keyspace,
        losses: &mut Vec<DataLoss>,
    ) -> Result<Option<(RunRecords, Vec<RunRecord>)>> {
        let mut runs = Vec::new();
        for (level, records) in keyspace.levels.iter().enumerate() {
            for named in records {
                let run = self.read(build, named.number, Some(named), losses)?;
                runs.extend(run.map(|run| (level, run)));
            }
        }
        let levels = Levels::with_runs(build.order.clone(), runs);
        if levels.overlap().is_some() {
            return Ok(None);
        }
        let mut range_runs = Vec::new();
        for named in &keyspace.range_runs {
            let run = self.read(build, named.number, Some(named), losses)?;
            range_runs.extend(run.map(|run| record(&run)));
        }
        Ok(Some((levels.records(), range_runs)))
    }

    /// Builds a manifest from the existing runs. Each run stores the keyspace it was written for.
    fn rebuild(&mut self, losses: &mut Vec<DataLoss>) -> Result<Manifest> {
        self.repaired.rebuilt_manifest = true;
        let own = self.options.comparator.name();
        let mut found = BTreeMap::from([(0, (Keyspace::new(0, "", own), Vec::new()))]);
        for number in self.found {
            let path = run::path(self.base.dir, *number);
            match Run::read_meta(self.base.io, &path) {
                Ok(meta) => {
                    let (id, name) = (meta.keyspace, &meta.keyspace_name);
                    let keyspace = || {
                        let of = Keyspace::new(id, name, &meta.comparator);
                        (of, Vec::new())
                    };
                    found.entry(id).or_insert_with(keyspace).1.push(*number);
                }
                Err(error) => self.record_loss(*number, error, losses)?,
            }
        }
        // If two keyspaces share a name, the older one was dropped and its files remained.
        let mut names = HashSet::new();
        for (id, (keyspace, _)) in found.iter_mut().rev().filter(|(id, _)| **id > 0) {
            if !is_keyspace_name(&keyspace.name) || !names.insert(keyspace.name.clone()) {
                keyspace.name = recovered_name(*id);
            }
        }
        for (keyspace, _) in found.values_mut() {
            keyspace.ttl = self.options.of_keyspace(&keyspace.name).ttl_s();
            self.with_build(keyspace, |_, _| Ok(()))?;
        }
        let mut manifest = Manifest::new(own);
        manifest.keyspaces.clear();
        for (keyspace, numbers) in found.into_values() {
            manifest.next_keyspace = keyspace.id.saturating_add(1);
            let made = self.with_build(&keyspace, |repair, build| {
                repair.rebuild_keyspace(build, &keyspace, &numbers, losses)
            })?;
            manifest.keyspaces.push(made);
        }
        manifest.flushed_sequence = self.newest;
        if manifest.keyspaces.iter().any(|of| of.ttl > 0) && self.newest > 0 {
            // The time of writing is lost, but it was not later than now, or than a run was made
            // before the clock was set back.
            manifest.marks = vec![Mark {
                second: self.base.io.unix_time_s().max(self.last_created),
                first_sequence: 1,
            }];
        }
        self.find_log(&mut manifest, losses)?;
        Ok(manifest)
    }

    /// Records that a run cannot be read.
    fn record_loss(&mut self, number: u64, error: Error, losses: &mut Vec<DataLoss>) -> Result<()> {
        if !matches!(error, Error::CorruptFile { .. }) {
            return Err(error);
        }
        if self.found.contains(&number) {
            self.bad.push(number);
        }
        losses.push(DataLoss {
            path: run::path(self.base.dir, number),
            reason: error.to_string(),
            keys: None,
        });
        Ok(())
    }

    /// The run with this number, or a new run of what can be read of it. If the file holds a
    /// different run than the one named, the named run counts as lost.
    fn read(
        &mut self,
        build: &Build<'_>,
        number: u64,
        named: Option<&RunRecord>,
        losses: &mut Vec<DataLoss>,
    ) -> Result<Option<Arc<Run>>> {
        let path = run::path(build.dir, number);
        // A damaged filter costs nothing: the run is written again.
        let order = build.order.clone();
        let opened = Run::open_without_filter(build.io, &path, number, order, build.cache);
        let opened = match named {
            Some(named) => as_named(&path, opened, named),
            None => opened.map(Arc::new),
        };
        let run = match opened {
            Ok(run) => run,
            Err(error) => return self.record_loss(number, error, losses).map(|()| None),
        };
        match verify_run(&run, build.stop, &mut VerifyReport::default()) {
            Ok(()) => {
                self.repaired.good_runs += 1;
                return Ok(Some(run));
            }
            Err(Error::CorruptFile { .. }) => self.bad.push(number),
            Err(other) => return Err(other),
        }
        let mut salvage = Salvage::new(&run)?;
        let whole = Build {
            run_bytes: u64::MAX,
            ..*build
        };
        let written = match run.meta().holds {
            Contents::Keys => self.write(&whole, &mut salvage)?.pop(),
            Contents::Ranges => {
                let tombstones = collect_ranges(&mut salvage)?;
                let tombstones = tombstones.iter().map(RangeTombstone::as_ref).collect();
                let written = write_range_run(tombstones, &whole)?;
                self.repaired.new_runs += usize::from(written.is_some());
                self.written.extend(written.clone());
                written
            }
        };
        losses.extend(salvage.into_losses());
        Ok(written)
    }

    /// Writes versions to new runs: the newest of each key. There are no snapshots. Deletions are
    /// kept, because the versions that they hide may be anywhere.
    fn write(
        &mut self,
        build: &Build<'_>,
        versions: &mut dyn VersionCursor,
    ) -> Result<Vec<Arc<Run>>> {
        let mut retain = Retain::new(build.order.clone(), Vec::new());
        let runs = write_runs(versions, &mut retain, |_| true, build)?;
        self.repaired.new_runs += runs.len();
        self.written.extend(runs.iter().cloned());
        Ok(runs)
    }

    /// Places a keyspace's runs on levels, by overlap and age.
    fn rebuild_keyspace(
        &mut self,
        build: &Build<'_>,
        keyspace: &Keyspace,
        numbers: &[u64],
        losses: &mut Vec<DataLoss>,
    ) -> Result<Keyspace> {
        // Range deletions remain in force: each run of them came from a flush, and everything in
        // that flush is in runs.
        let (mut groups, mut range_runs) = (Vec::new(), Vec::new());
        for number in numbers {
            match self.read(build, *number, None, losses)? {
                Some(run) if run.meta().holds == Contents::Ranges => range_runs.push(run),
                run => groups.extend(run.map(Group::of)),
            }
        }
        let found = groups.iter().flat_map(|group| &group.runs);
        let created = found.map(|run| run.meta().created_unix).max();
        self.last_created = created.unwrap_or(0).max(self.last_created);
        let order = build.order.clone();
        while let Some((a, b)) = Group::unclear_pair(&groups, &order) {
            let other = groups.swap_remove(b);
            groups[a].runs.extend(other.runs);
        }
        let mut runs = Vec::new();
        for group in &groups {
            runs.push(match &group.runs[..] {
                [run] => vec![Arc::clone(run)],
                several => {
                    let merged = self.merge(build, several)?;
                    self.replaced.extend(several.iter().map(|run| run.number()));
                    merged
                }
            });
        }
        let levels = Group::assign_levels(&groups, &order);
        let placed = levels.into_iter().zip(runs);
        let placed = placed.flat_map(|(level, runs)| runs.into_iter().map(move |run| (level, run)));
        let levels = Levels::with_runs(order, placed);
        let mut keyspace = keyspace.clone();
        keyspace.levels = levels.records();
        keyspace.range_runs = range_runs.iter().map(|run| record(run)).collect();
        let all = levels.runs().map(|(_, run)| run).chain(&range_runs);
        let newest = all.map(|run| run.meta().largest_sequence).max();
        self.newest = newest.unwrap_or(0).max(self.newest);
        Ok(keyspace)
    }

    /// Finds where the remaining log begins.
    fn find_log(&self, manifest: &mut Manifest, losses: &mut Vec<DataLoss>) -> Result<()> {
        let (io, dir) = (self.base.io, self.base.dir);
        let names = io
            .list(dir)
            .map_err(|error| Error::io("list", dir, error))?;
        let Some(first) = names
            .iter()
            .filter_map(|name| log_file::number(name.to_str()?))
            .min()
        else {
            return Ok(());
        };
        manifest.first_segment = first;
        let path = log_file::path(dir, first);
        let file = io
            .open(&path, OpenMode::Read)
            .map_err(|error| Error::io("open", &path, error))?;
        let mut bytes = [0; log_file::HEADER_BYTES];
        // Recovery decides about a header that is bad or incomplete.
        match read_exact_at(&*file, &mut bytes, 0) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read.map_err(|error| Error::io("read", &path, error))?,
        }
        let Ok(header) = Header::decode(&bytes) else {
            return Ok(());
        };
        let flushed = &mut manifest.flushed_sequence;
        if header.first_sequence > *flushed + 1 {
            losses.push(DataLoss {
                path,
                reason: format!(
                    "the log begins with operation {}, but the runs end with {}",
                    header.first_sequence, *flushed
                ),
                keys: Some(KeyRange::all()),
            });
            *flushed = header.first_sequence - 1;
        }
        Ok(())
    }

    /// Gives damaged files a second name.
    fn set_aside(&mut self) -> Result<()> {
        let build = self.base;
        for number in &self.bad {
            let path = run::path(build.dir, *number);
            let aside = path.with_extension("run.bad");
            // A file with that name is left over from an interrupted repair, and is the same file.
            let _ = build.io.remove(&aside);
            link_or_copy(build.io, &path, &aside)
                .map_err(|error| Error::io("link", &path, error))?;
            self.repaired.set_aside.push(aside);
        }
        build
            .io
            .sync_dir(build.dir)
            .map_err(|error| Error::io("sync", build.dir, error))
    }

    /// Makes the repair durable.
    fn finish(mut self, mut manifest: Manifest) -> Result<RepairReport> {
        let build = self.base;
        let repaired = std::mem::take(&mut self.repaired);
        if self.bad.is_empty() && repaired.was_sound() {
            return Ok(repaired);
        }
        manifest.next_run = build.numbers.next();
        // Once the write has begun, either manifest may be on disk, even if it panics. So the new
        // runs stay, unless the old manifest is known to be in place.
        let written = std::mem::take(&mut self.written);
        if let Err(error) = manifest.write(build.io, build.dir) {
            if matches!(error, ReplaceError::Unchanged(_)) {
                self.written = written;
            }
            return Err(error.into());
        }
        let replaced = self.bad.iter().chain(&self.replaced).copied();
        let written = written.iter().map(|run| run.number());
        let is_named = |number: &u64| manifest.runs().any(|run| run.number == *number);
        for number in replaced.chain(written).filter(|number| !is_named(number)) {
            // If this fails, the next opening does it.
            let _ = build.io.remove(&run::path(build.dir, number));
        }
        Ok(repaired)
    }
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        for run in &self.written {
            // If that fails, the next repair finds one more run.
            let _ = self.base.io.remove(run.path());
        }
    }
}
