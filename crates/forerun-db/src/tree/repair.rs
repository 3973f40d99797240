//! A store whose manifest or runs are damaged is made to open again.
//!
//! ```text
//!   MANIFEST good   each run verified:  good ──> stays where it is
//!                                       bad ───> what its good pages hold becomes a run in its place
//!
//!   MANIFEST lost   every run found, verified or salvaged; then levels, from what overlaps and what is newer:
//!
//!                     ├── @90..99 ──┤                       newer than what it overlaps with: a level above
//!                  ├────── @10..80 ──────┤ ├── @20..95 ──┤  with nothing below: the last level
//!
//!                   runs that overlap, and neither is the newer one in all: merged into one
//! ```
//!
//! Damaged files are kept under another name, `run-NNNNNN.run.bad`. The new runs are durable before the manifest that
//! names them, and that before anything is removed; so a repair that is cut short is begun again.
//!
//! What a lost manifest cannot tell: whether a run is one that a compaction had replaced and whose file was still
//! there. Its versions come back then; they are no newer than those in the run that replaced it, so what is read
//! changes only where a deletion was dropped meanwhile.

use std::path::PathBuf;
use std::sync::Arc;

use crate::comparator::KeyOrder;
use crate::io::{OpenMode, link_or_copy};
use crate::run::cursor::RunCursor;
use crate::run::{self, Run};
use crate::tree::build::{Build, RunNumbers, write_runs};
use crate::tree::catalog::{open_levels, open_run, run_files};
use crate::tree::levels::{Levels, largest, smallest};
use crate::tree::manifest::{LEVELS, Manifest, RunRecord};
use crate::tree::merge::Merge;
use crate::tree::retain::Retain;
use crate::tree::salvage::{KeyRange, Loss, Salvage};
use crate::tree::verify::{Verified, verify_run};
use crate::versions::Versions;
use crate::wal::segment::{self, Header};
use crate::{Error, Result};

/// What a repair did.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// Whether the manifest was lost or damaged, and was made from the runs.
    pub rebuilt_manifest: bool,
    /// Runs that were as they should be.
    pub good_runs: usize,
    /// Runs that were written anew, from damaged ones or because it could not be told which was newer.
    pub new_runs: usize,
    /// What could not be read.
    pub losses: Vec<Loss>,
    /// Damaged files, under the names they have now.
    pub set_aside: Vec<PathBuf>,
}

impl Repaired {
    /// Whether nothing was wrong.
    pub fn was_sound(&self) -> bool {
        !self.rebuilt_manifest && self.new_runs == 0 && self.losses.is_empty()
    }
}

/// Repairs the runs of a store that nobody has open. `build` tells how runs are written; its numbers are not used.
///
/// # Errors
/// [`Error::Io`], and what of a manifest or a run says that this release cannot read it: [`Error::NewerFormat`],
/// [`Error::ComparatorMismatch`]. What was there is there as before, then.
pub(crate) fn repair(build: &Build<'_>) -> Result<Repaired> {
    let found = run_files(build.io, build.dir)?;
    let (manifest, mut losses) = match Manifest::read(build.io, build.dir) {
        Ok(manifest) => (manifest, Vec::new()),
        Err(error @ Error::CorruptFile { .. }) => {
            tracing::warn!(%error, "the manifest is made from the runs");
            (None, Vec::new())
        }
        Err(other) => return Err(other),
    };
    if let Some(manifest) = &manifest {
        check_readable(build, manifest)?;
    }
    let greatest = found.last().copied().unwrap_or(0);
    let next_run = manifest.as_ref().map_or(1, |manifest| manifest.next_run);
    let numbers = RunNumbers::new(next_run.max(greatest + 1));
    let build = &Build {
        numbers: &numbers,
        ..*build
    };
    let mut repair = Repair {
        build,
        repaired: Repaired::default(),
        found: &found,
        written: Vec::new(),
        bad: Vec::new(),
        replaced: Vec::new(),
    };
    let made = repair.make(manifest, &mut losses);
    repair.repaired.losses = losses;
    match made.and_then(|manifest| repair.set_aside().map(|()| manifest)) {
        Ok(manifest) => repair.finish(manifest),
        Err(error) => {
            for run in &repair.written {
                // If that fails, it is one more run for the next repair.
                let _ = build.io.remove(run.path());
            }
            Err(error)
        }
    }
}

/// A store of several keyspaces, or in another order, is not for this release or this call to repair.
fn check_readable(build: &Build<'_>, manifest: &Manifest) -> Result<()> {
    let mut without_runs = manifest.clone();
    for keyspace in &mut without_runs.keyspaces {
        keyspace.levels = Default::default();
    }
    open_levels(
        build.io,
        build.dir,
        &without_runs,
        build.order,
        build.comparator,
        build.cache,
    )
    .map(drop)
}

struct Repair<'b> {
    build: &'b Build<'b>,
    /// Numbers of the runs whose files are there, ascending.
    found: &'b [u64],
    repaired: Repaired,
    /// New runs.
    written: Vec<Arc<Run>>,
    /// Numbers of damaged runs.
    bad: Vec<u64>,
    /// Numbers of runs whose versions are in new ones.
    replaced: Vec<u64>,
}

impl Repair<'_> {
    /// The manifest of what can be read.
    fn make(&mut self, found: Option<Manifest>, losses: &mut Vec<Loss>) -> Result<Manifest> {
        if let Some(found) = &found
            && let Some(mended) = self.mend(found, losses)?
        {
            return Ok(mended);
        }
        self.rebuild(found, losses)
    }

    /// Puts, of each run that the manifest names, what can be read in its place. `None` if the levels are not disjoint.
    fn mend(&mut self, manifest: &Manifest, losses: &mut Vec<Loss>) -> Result<Option<Manifest>> {
        let mut runs = Vec::new();
        for (level, records) in manifest.keyspaces[0].levels.iter().enumerate() {
            for named in records {
                let run = self.read(named.number, Some(named), losses)?;
                runs.extend(run.map(|run| (level, run)));
            }
        }
        let levels = Levels::with_runs(self.build.order.clone(), runs);
        if levels.overlap().is_some() {
            return Ok(None);
        }
        let mut mended = manifest.clone();
        mended.keyspaces[0].levels = levels.records();
        Ok(Some(mended))
    }

    /// The run of this number, or a new one of what can be read of it. One that is not the one that was named counts as
    /// lost.
    fn read(
        &mut self,
        number: u64,
        named: Option<&RunRecord>,
        losses: &mut Vec<Loss>,
    ) -> Result<Option<Arc<Run>>> {
        let build = self.build;
        let path = run::path(build.dir, number);
        let opened = match named {
            Some(named) => open_run(build.io, build.dir, named, build.order, build.cache),
            None => {
                let order = build.order.clone();
                Run::open(build.io, &path, number, order, build.cache).map(Arc::new)
            }
        };
        let run = match opened {
            Ok(run) => run,
            Err(error) => {
                if !matches!(error, Error::CorruptFile { .. }) {
                    return Err(error);
                }
                if self.found.contains(&number) {
                    self.bad.push(number);
                }
                losses.push(Loss {
                    path,
                    reason: error.to_string(),
                    keys: None,
                });
                return Ok(None);
            }
        };
        match verify_run(&run, build.stop, &mut Verified::default()) {
            Ok(()) => {
                self.repaired.good_runs += 1;
                return Ok(Some(run));
            }
            Err(Error::CorruptFile { .. }) => self.bad.push(number),
            Err(other) => return Err(other),
        }
        let mut salvage = Salvage::new(&run)?;
        let mut runs = self.write(&mut salvage, u64::MAX)?;
        losses.extend(salvage.into_losses());
        Ok(runs.pop())
    }

    /// Writes versions to new runs: the newest of each key, deletions included, since nobody holds a snapshot, and what
    /// deletions hide may be anywhere.
    fn write(&mut self, versions: &mut dyn Versions, run_bytes: u64) -> Result<Vec<Arc<Run>>> {
        let build = Build {
            run_bytes,
            ..*self.build
        };
        let mut retain = Retain::new(build.order.clone(), Vec::new());
        let runs = write_runs(versions, &mut retain, |_| true, &build)?;
        self.repaired.new_runs += runs.len();
        self.written.extend(runs.iter().cloned());
        Ok(runs)
    }

    /// Makes a manifest of the runs that are there.
    fn rebuild(&mut self, named: Option<Manifest>, losses: &mut Vec<Loss>) -> Result<Manifest> {
        self.repaired = Repaired {
            rebuilt_manifest: true,
            ..Repaired::default()
        };
        losses.clear();
        self.bad.clear();
        let mut groups = Vec::new();
        for number in self.found {
            // With a manifest that contradicts itself, what it does not name is still what was left over.
            let is_named = named
                .as_ref()
                .is_none_or(|named| named.runs().any(|run| run.number == *number));
            if is_named && let Some(run) = self.read(*number, None, losses)? {
                groups.push(Group::of(run));
            }
        }
        let order = self.build.order.clone();
        while let Some((a, b)) = Group::unclear_pair(&groups, &order) {
            let other = groups.swap_remove(b);
            groups[a].runs.extend(other.runs);
        }
        let mut runs = Vec::new();
        for group in &groups {
            runs.push(match &group.runs[..] {
                [run] => vec![Arc::clone(run)],
                several => {
                    let cursors = several
                        .iter()
                        .map(|run| Box::new(RunCursor::past_cache(run)) as Box<dyn Versions + '_>);
                    let mut merge = Merge::new(order.clone(), cursors.collect());
                    let merged = self.write(&mut merge, self.build.run_bytes)?;
                    self.replaced.extend(several.iter().map(|run| run.number()));
                    merged
                }
            });
        }
        let mut manifest = Manifest::new(self.build.comparator);
        let levels = Group::place(&groups, &order);
        let placed = levels.into_iter().zip(runs);
        let placed = placed.flat_map(|(level, runs)| runs.into_iter().map(move |run| (level, run)));
        let levels = Levels::with_runs(order, placed);
        let keyspace = &mut manifest.keyspaces[0];
        keyspace.levels = levels.records();
        let newest = levels
            .runs()
            .map(|(_, run)| run.meta().largest_sequence)
            .max();
        // A run tells which deletions of ranges were in force when it was made. They still are: what they covered then is
        // older. Each came with its memtable, and all of that is in runs.
        for run in groups.iter().flat_map(|group| &group.runs) {
            for range in &run.meta().range_tombstones {
                if !keyspace.ranges.contains(range) {
                    keyspace.ranges.push(range.clone());
                }
            }
        }
        let deleted = keyspace.ranges.iter().map(|range| range.sequence).max();
        manifest.flushed_sequence = newest.max(deleted).unwrap_or(0);
        self.find_log(&mut manifest, losses)?;
        Ok(manifest)
    }

    /// Where the log begins, of what is left of it.
    fn find_log(&self, manifest: &mut Manifest, losses: &mut Vec<Loss>) -> Result<()> {
        let (io, dir) = (self.build.io, self.build.dir);
        let names = io
            .list(dir)
            .map_err(|error| Error::io("list", dir, error))?;
        let Some(first) = names
            .iter()
            .filter_map(|name| segment::number(name.to_str()?))
            .min()
        else {
            return Ok(());
        };
        manifest.first_segment = first;
        let path = segment::path(dir, first);
        let file = io
            .open(&path, OpenMode::Read)
            .map_err(|error| Error::io("open", &path, error))?;
        let mut bytes = [0; segment::HEADER_BYTES];
        let got = file
            .read_at(&mut bytes, 0)
            .map_err(|error| Error::io("read", &path, error))?;
        // A bad header is recovery's to judge.
        let Ok(header) = Header::decode(&bytes[..got]) else {
            return Ok(());
        };
        let flushed = &mut manifest.flushed_sequence;
        if header.first_sequence > *flushed + 1 {
            losses.push(Loss {
                path,
                reason: format!(
                    "the log begins with operation {}, and the runs end with {}",
                    header.first_sequence, *flushed
                ),
                keys: Some(KeyRange::all()),
            });
            *flushed = header.first_sequence - 1;
        }
        Ok(())
    }

    /// Gives damaged files another name, besides the one they have.
    fn set_aside(&mut self) -> Result<()> {
        let build = self.build;
        for number in &self.bad {
            let path = run::path(build.dir, *number);
            let aside = path.with_extension("run.bad");
            // One of an earlier repair that was cut short is of the same file.
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

    /// Makes it so, durably.
    fn finish(self, mut manifest: Manifest) -> Result<Repaired> {
        let build = self.build;
        if self.bad.is_empty() && self.repaired.was_sound() {
            return Ok(self.repaired);
        }
        manifest.next_run = build.numbers.next();
        // If that fails, which manifest there is is open, and so all files stay.
        manifest.write(build.io, build.dir)?;
        let replaced = self.bad.iter().chain(&self.replaced).copied();
        let written = self.written.iter().map(|run| run.number());
        let is_named = |number: &u64| manifest.runs().any(|run| run.number == *number);
        for number in replaced.chain(written).filter(|number| !is_named(number)) {
            // If this fails, the next opening does it.
            let _ = build.io.remove(&run::path(build.dir, number));
        }
        Ok(self.repaired)
    }
}

/// Runs to be merged, because it cannot be told which of them is newer where they overlap.
struct Group {
    runs: Vec<Arc<Run>>,
}

impl Group {
    fn of(run: Arc<Run>) -> Group {
        Group { runs: vec![run] }
    }

    fn sequences(&self) -> (u64, u64) {
        let metas = || self.runs.iter().map(|run| run.meta());
        let from = metas()
            .map(|meta| meta.smallest_sequence)
            .min()
            .unwrap_or(0);
        let to = metas().map(|meta| meta.largest_sequence).max().unwrap_or(0);
        (from, to)
    }

    fn keys(&self, order: &KeyOrder) -> Option<(&[u8], &[u8])> {
        let from = self
            .runs
            .iter()
            .map(|run| smallest(run))
            .min_by(|a, b| order.compare(a, b))?;
        let to = self
            .runs
            .iter()
            .map(|run| largest(run))
            .max_by(|a, b| order.compare(a, b))?;
        Some((from, to))
    }

    /// Whether their keys overlap, in between too, since a merge may write them to one run.
    fn overlaps(&self, other: &Group, order: &KeyOrder) -> bool {
        match (self.keys(order), other.keys(order)) {
            (Some((from, to)), Some((other_from, other_to))) => {
                order.compare(from, other_to).is_le() && order.compare(other_from, to).is_le()
            }
            _ => false,
        }
    }

    /// Two groups that overlap, and neither is newer than the other in all; the first place is the smaller one.
    fn unclear_pair(groups: &[Group], order: &KeyOrder) -> Option<(usize, usize)> {
        for (b, other) in groups.iter().enumerate() {
            for (a, group) in groups[..b].iter().enumerate() {
                let ((from, to), (other_from, other_to)) = (group.sequences(), other.sequences());
                let is_clear = to < other_from || other_to < from;
                if !is_clear && group.overlaps(other, order) {
                    return Some((a, b));
                }
            }
        }
        None
    }

    /// A level for each group: above all that it overlaps with and that are older, and as deep as can be.
    fn place(groups: &[Group], order: &KeyOrder) -> Vec<usize> {
        let mut by_age: Vec<usize> = (0..groups.len()).collect();
        by_age.sort_by_key(|group| groups[*group].sequences().1);
        let mut levels = vec![LEVELS - 1; groups.len()];
        for (i, group) in by_age.iter().enumerate() {
            let below = by_age[..i]
                .iter()
                .filter(|older| groups[*group].overlaps(&groups[**older], order));
            let highest = below.map(|older| levels[*older]).min();
            // Level 0 takes all that have no level left; there they stand by age.
            levels[*group] = highest.map_or(LEVELS - 1, |level| level.saturating_sub(1));
        }
        levels
    }
}
