//! Counting entries without reading all of them.
//!
//! ```text
//!   above   memtables, level 0 .. n-1     every version is read; its key is looked up in the base
//!   base    level n, the deepest          counted by the metadata of its runs, without reading them
//! ```
//!
//! The number of entries is the number of values in the base, corrected by the versions above it: a
//! put above adds one entry, unless its key has a value in the base; a deletion above subtracts
//! one, if its key has a value in the base. The keys above come in order, so the lookups in the
//! base read each page at most once. The deepest level holds most of a store, since each level
//! above it has a tenth of the next one's size.

use std::sync::Arc;

use super::live_versions::LiveVersions;
use super::view::View;
use crate::run::lookup::Found;
use crate::run::{Run, SearchKey};
use crate::tree::levels::Levels;
use crate::tree::lookup;
use crate::tree::manifest::LEVELS;
use crate::versions::{Kind, VisibleEntries};
use crate::{Error, Result, panics};

/// Keys that are looked up in the base together.
const BATCH_KEYS: usize = 256;

/// A lookup takes about as long as reading this many entries in order.
const ENTRIES_PER_LOOKUP: u64 = 4;

/// Batches between two calls of the function that decides whether to continue.
const BATCHES_BETWEEN_QUESTIONS: usize = 16;

/// The runs that are counted from their metadata.
struct Base {
    runs: Levels,
    /// How many entries they hold.
    entries: u64,
    /// The level that they are on, and its other runs.
    level: usize,
    other_runs: Vec<Arc<Run>>,
}

/// Keys that are above the base.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl View<'_> {
    /// Counts the entries. Asks `go_on` from time to time, and stops if it returns `false`.
    pub(super) fn count(&self, go_on: &mut dyn FnMut() -> bool) -> Result<u64> {
        let may_panic = self.keyspace.order().may_panic();
        panics::catch_if(may_panic, "counting entries", || self.count_entries(go_on))
    }

    fn count_entries(&self, go_on: &mut dyn FnMut() -> bool) -> Result<u64> {
        let base = self.base();
        let (order, sequence) = (self.keyspace.order(), self.read_point.sequence);
        let versions = self.version.versions_but(order, |level, runs| {
            if level == base.level {
                &base.other_runs
            } else {
                runs
            }
        });
        let versions = LiveVersions::of(versions, &self.version, order, self.read_point);
        let mut above = VisibleEntries::new(versions, order.clone(), sequence);
        let (mut batch, mut values, mut in_base) = (Batch::default(), 0, 0);
        for number in 0_usize.. {
            if number.is_multiple_of(BATCHES_BETWEEN_QUESTIONS) && !go_on() {
                return Err(Error::Interrupted);
            }
            batch.clear();
            while batch.ends.len() < BATCH_KEYS
                && let Some(newest) = above.next_newest()?
            {
                values += u64::from(newest.kind == Kind::Value);
                batch.push(newest.key);
            }
            if base.entries > 0 {
                in_base += self.values_in(&base.runs, &batch)?;
            }
            if batch.ends.len() < BATCH_KEYS {
                break;
            }
        }
        // A key is looked up once, so the base holds at least what was found in it.
        Ok(values + base.entries.saturating_sub(in_base))
    }

    /// The runs of the deepest level of which everything is visible, unless reading them takes no
    /// longer than looking up all keys above them.
    fn base(&self) -> Base {
        let levels = &self.version.levels;
        let filled = |level: &usize| !levels.level(*level).runs().is_empty();
        let level = (0..LEVELS).rfind(filled).unwrap_or(0);
        let mut candidates = levels.level(level).runs();
        if level == 0 {
            // Only the oldest run is below all others.
            candidates = &candidates[candidates.len().saturating_sub(1)..];
        }
        let (mut counted, mut entries, mut other_runs) = (Vec::new(), 0, Vec::new());
        for run in levels.level(level).runs() {
            let is_candidate = candidates.iter().any(|other| Arc::ptr_eq(run, other));
            if is_candidate && self.is_visible_throughout(run) {
                entries += run.meta().entries.saturating_sub(run.meta().deletions);
                counted.push((level, Arc::clone(run)));
            } else {
                other_runs.push(Arc::clone(run))
            }
        }
        let in_tables = self.version.tables.iter();
        let in_tables = in_tables.map(|table| table.memtable.stats().entries as u64);
        let in_runs = levels.runs().map(|(_, run)| run.meta().entries);
        let in_base: u64 = counted.iter().map(|(_, run)| run.meta().entries).sum();
        let above = in_tables.sum::<u64>() + in_runs.sum::<u64>() - in_base;
        if above.saturating_mul(ENTRIES_PER_LOOKUP) > in_base {
            (entries, counted) = (0, Vec::new());
            other_runs = levels.level(level).runs().to_vec();
        }
        Base {
            runs: Levels::with_runs(self.keyspace.order().clone(), counted),
            entries,
            level,
            other_runs,
        }
    }

    /// Whether each version in a run is the only one of its key there, and is visible unless
    /// something newer hides it.
    fn is_visible_throughout(&self, run: &Run) -> bool {
        let meta = run.meta();
        let mut ranges = self.version.all_ranges();
        !meta.repeats_keys
            && meta.largest_sequence <= self.read_point.sequence
            && meta.smallest_sequence > self.read_point.expired_sequence
            && !ranges.any(|ranges| self.version.levels.run_needs_any(run, ranges))
    }

    /// How many keys of a batch have a value in these runs.
    fn values_in(&self, runs: &Levels, batch: &Batch) -> Result<u64> {
        let sequence = self.read_point.sequence;
        let keys: Vec<_> = batch
            .keys()
            .map(|key| SearchKey::new(key, sequence))
            .collect();
        let (mut values, mut failure) = (0, None);
        let reading = &self.version.reading;
        lookup::multi_get(runs, &keys, reading, |_, found| match found {
            Ok(Found::Value(_)) => values += 1,
            Ok(Found::Deleted | Found::Missing) => {}
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(values), Err)
    }
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.bytes[start..*end])
    }
}
