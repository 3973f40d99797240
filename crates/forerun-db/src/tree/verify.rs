//! Verifies every byte of the runs.
//!
//! ```text
//!   manifest ──> levels: disjoint, in order; a damaged run does not stop the others
//!   file     ──> header, footer, meta, filter, index, root
//!   pages    ──> root, depth first, in file order: each page once, adjacent to the
//!                one before, between its separators, with its rows in order
//!   versions ──> counted, looked up in the filter and the index, compared with the metadata
//! ```

use forerun_core::sync::atomic::AtomicBool;
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use crate::cache::PageCache;
use crate::comparator::KeyOrder;
use crate::io::Io;
use crate::run::{
    Contents, Filter, INGESTED_SEQUENCE, Page, PageKind, PageLocation, RecordAddress, RecordIndex,
    Run, RunMeta, SearchKey,
};
use crate::tree::levels::{Levels, record};
use crate::tree::limiter;
use crate::tree::manifest::RunRecord;
use crate::tree::open_runs::open_run;
use crate::versions::{Kind, SEQUENCE_MAX};
use crate::{Error, Result};

/// The result of verifying a store's runs.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct VerifyReport {
    /// Runs verified.
    pub runs: u64,
    /// Pages read.
    pub pages: u64,
    /// Versions in these pages.
    pub entries: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// The first problem of each run, and problems between runs.
    pub problems: Vec<Error>,
}

/// Verifies the runs of open levels, for each keyspace, as their files are now, and the runs of
/// range deletions.
///
/// # Errors
/// [`Error::Closed`] if `stop` is set. Damage in the runs is not an error of this call.
pub(crate) fn verify_levels(
    io: &dyn Io,
    dir: &Path,
    levels: &[Arc<Levels>],
    ranges: &[(KeyOrder, Vec<Arc<Run>>)],
    cache: &Arc<PageCache>,
    stop: &AtomicBool,
) -> Result<VerifyReport> {
    let mut verified = VerifyReport::default();
    for (order, runs) in ranges {
        for run in runs {
            limiter::check(stop)?;
            verify_file(io, dir, &record(run), order, cache, stop, &mut verified)?;
        }
    }
    for levels in levels {
        for (_, run) in levels.runs() {
            limiter::check(stop)?;
            verify_file(
                io,
                dir,
                &record(run),
                levels.order(),
                cache,
                stop,
                &mut verified,
            )?;
        }
        verified.note_overlap(dir, levels);
    }
    Ok(verified)
}

/// Verifies a run's file, and returns the run if everything is right.
pub(crate) fn verify_file(
    io: &dyn Io,
    dir: &Path,
    named: &RunRecord,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
    stop: &AtomicBool,
    verified: &mut VerifyReport,
) -> Result<Option<Arc<Run>>> {
    verified.runs += 1;
    let checked = open_run(io, dir, named, order, cache).and_then(|run| {
        verified.bytes += run.meta().file_bytes;
        verify_run(&run, stop, verified)?;
        Ok(run)
    });
    match checked {
        Ok(run) => Ok(Some(run)),
        Err(Error::Closed) => Err(Error::Closed),
        Err(error) => {
            verified.problems.push(error);
            Ok(None)
        }
    }
}

/// Verifies all pages of an open run.
///
/// # Errors
/// [`Error::CorruptFile`] for the first problem, [`Error::Io`], [`Error::Closed`].
pub(crate) fn verify_run(run: &Run, stop: &AtomicBool, verified: &mut VerifyReport) -> Result<()> {
    // They may not be in memory.
    let (filter, index) = (run.read_filter()?, run.read_index()?);
    Walk::new(run, &filter, index.as_ref(), stop, verified).run()
}

impl VerifyReport {
    /// Records runs that overlap on one level.
    pub(crate) fn note_overlap(&mut self, dir: &Path, levels: &Levels) {
        if let Some((level, a, b)) = levels.overlap() {
            let reason = format!(
                "run {} of level {level} overlaps run {}",
                b.number(),
                a.number()
            );
            self.problems.push(Error::corrupt_file(
                &crate::run::path(dir, b.number()),
                0,
                reason,
            ));
        }
    }
}

/// Internal pages have at least two children, except the last one of a level. So 2^32 pages are not
/// deeper than this.
const DEPTH_LIMIT: usize = 40;

/// Visits all pages of a run.
struct Walk<'a> {
    run: &'a Run,
    filter: &'a Filter,
    index: Option<&'a RecordIndex>,
    /// Keys found so far.
    keys: u64,
    stop: &'a AtomicBool,
    verified: &'a mut VerifyReport,
    /// Which pages have been read.
    seen: Vec<bool>,
    /// How many pages are above the current one.
    depth: usize,
    /// Where pages are stored, in the order of the visit.
    locations: Vec<PageLocation>,
    /// Totals over the versions.
    sum: RunMeta,
    last: Option<(Vec<u8>, u64)>,
    stored: Vec<u8>,
    key: Vec<u8>,
}

/// A separator's position: a key and a sequence number.
type Bound<'a> = (&'a [u8], u64);

impl<'a> Walk<'a> {
    fn new(
        run: &'a Run,
        filter: &'a Filter,
        index: Option<&'a RecordIndex>,
        stop: &'a AtomicBool,
        verified: &'a mut VerifyReport,
    ) -> Walk<'a> {
        Walk {
            run,
            filter,
            index,
            keys: 0,
            stop,
            verified,
            seen: vec![false; run.meta().pages() as usize],
            depth: 0,
            locations: Vec::new(),
            sum: RunMeta {
                smallest_sequence: SEQUENCE_MAX,
                ..RunMeta::default()
            },
            last: None,
            stored: Vec::new(),
            key: Vec::new(),
        }
    }

    fn run(mut self) -> Result<()> {
        let root_number = self.run.meta().pages() - 1;
        self.page(root_number, self.run.root_location(), None, None)?;
        if self.seen.contains(&false) {
            return Err(self.bad(
                self.run.root_location(),
                "no page points to some of the pages",
            ));
        }
        // In a depth-first visit, leaves come in file order, and each internal page comes after its
        // children. So the pages, sorted by offset, must be adjacent.
        self.locations.sort_by_key(|location| location.offset);
        let range = self.run.pages_range();
        let mut end = range.start;
        for location in &self.locations {
            if end != location.offset {
                return Err(self.bad(*location, "it does not directly follow the previous page"));
            }
            end = location.end();
        }
        if end != range.end {
            return Err(self.run.corrupt(end, "there are bytes after the last page"));
        }
        if self.index.is_some_and(|index| index.keys() != self.keys) {
            let reason = "the index has keys that the run does not have";
            return Err(self.run.corrupt(range.end, reason));
        }
        self.compare_meta()
    }

    /// Verifies a page that must hold exactly what is at or after `from` and before `to`.
    fn page(
        &mut self,
        number: u32,
        location: PageLocation,
        from: Option<Bound<'_>>,
        to: Option<Bound<'_>>,
    ) -> Result<()> {
        limiter::check(self.stop)?;
        match self.seen.get_mut(number as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => {
                return Err(self.bad(
                    location,
                    "its number is out of range, or another page has it",
                ));
            }
        }
        let mut bytes = Vec::new();
        self.run
            .read_page(number, location, &mut self.stored, &mut bytes)?;
        self.locations.push(location);
        self.verified.pages += 1;
        let page = Page::new(&bytes);
        let is_leaf = number < self.run.meta().leaf_pages;
        match (page.kind(), is_leaf) {
            (PageKind::Leaf, true) => self.leaf(page, number, location, from, to),
            (PageKind::Internal, false) => self.internal(page, number, location, from, to),
            _ => Err(self.bad(location, "its kind does not match its number")),
        }
    }

    fn internal(
        &mut self,
        page: Page<'_>,
        number: u32,
        location: PageLocation,
        from: Option<Bound<'_>>,
        to: Option<Bound<'_>>,
    ) -> Result<()> {
        // The first row's separator is the parent's. The very first row comes before everything.
        let (mut key, mut next_key) = (Vec::new(), Vec::new());
        let mut sequence = None;
        self.depth += 1;
        if self.depth > DEPTH_LIMIT {
            return Err(self.bad(location, "it is too deep below the root"));
        }
        for row in 0..page.rows() {
            let (child, child_place) = page.child(row);
            if child >= number {
                return Err(self.bad(location, "a child's number is not lower than its own"));
            }
            let next = if row + 1 < page.rows() {
                page.key_into(row + 1, &mut next_key);
                Some((&next_key[..], page.sequence(row + 1)))
            } else {
                to
            };
            let first = sequence.map_or(from, |sequence| Some((&key[..], sequence)));
            if let (Some(first), Some(next)) = (first, next)
                && self.order(first, next).is_ge()
            {
                return Err(self.bad(location, "its separators are out of order"));
            }
            self.page(child, child_place, first, next)?;
            if row + 1 < page.rows() {
                sequence = Some(page.sequence(row + 1));
                std::mem::swap(&mut key, &mut next_key);
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn leaf(
        &mut self,
        page: Page<'_>,
        number: u32,
        location: PageLocation,
        from: Option<Bound<'_>>,
        to: Option<Bound<'_>>,
    ) -> Result<()> {
        for row in 0..page.rows() {
            let mut key = std::mem::take(&mut self.key);
            page.key_into(row, &mut key);
            let sequence = page.sequence(row);
            let at = (&key[..], sequence);
            let mut is_newest = true;
            if let Some((last_key, last_sequence)) = &self.last {
                let by_key = self.run.order().compare(last_key, &key);
                if by_key.then(sequence.cmp(last_sequence)).is_ge() {
                    return Err(self.bad(location, "a version is out of order"));
                }
                is_newest = by_key.is_lt();
                self.sum.repeats_keys |= !is_newest;
            }
            if from.is_some_and(|from| self.order(at, from).is_lt())
                || to.is_some_and(|to| self.order(at, to).is_ge())
            {
                return Err(self.bad(location, "a version is outside its separators"));
            }
            let hash = SearchKey::new(&key, sequence).hash;
            if !self.filter.may_contain(hash) {
                return Err(self.bad(location, "the filter misses one of its keys"));
            }
            let place = RecordAddress {
                page: number,
                offset: page.record_offset(row),
            };
            if is_newest && self.index.is_some_and(|index| !index.has(hash, place)) {
                return Err(self.bad(location, "the index misses one of its keys"));
            }
            self.keys += u64::from(is_newest);
            self.sum.entries += 1;
            self.sum.deletions += u64::from(page.version_kind(row) == Kind::Deletion);
            self.sum.raw_bytes += (key.len() + page.value(row).len()) as u64;
            let counted = self.run.sequence(sequence);
            if counted != sequence && sequence != INGESTED_SEQUENCE {
                return Err(self.bad(
                    location,
                    "a version of an ingestion has its own sequence number",
                ));
            }
            self.sum.smallest_sequence = self.sum.smallest_sequence.min(counted);
            self.sum.largest_sequence = self.sum.largest_sequence.max(counted);
            if self.sum.entries == 1 {
                self.sum.smallest.clone_from(&key);
            }
            let last = self.last.get_or_insert_default();
            // Reuses the last key's buffer for the next one.
            self.key = std::mem::replace(&mut last.0, key);
            last.1 = sequence;
        }
        self.verified.entries += page.rows() as u64;
        Ok(())
    }

    fn compare_meta(&mut self) -> Result<()> {
        let meta = self.run.meta();
        if let Some((key, _)) = self.last.take() {
            self.sum.largest = key;
        }
        let sum = &self.sum;
        let differs = [
            (sum.entries == meta.entries, "the number of versions"),
            (sum.deletions == meta.deletions, "the number of deletions"),
            (
                sum.raw_bytes == meta.raw_bytes,
                "the size of keys and values",
            ),
            (
                meta.holds == Contents::Ranges || sum.repeats_keys == meta.repeats_keys,
                "whether a key occurs more than once",
            ),
            (sum.smallest == meta.smallest, "the smallest key"),
            (sum.largest == meta.largest, "the largest key"),
            (
                sum.smallest_sequence == meta.smallest_sequence,
                "the smallest sequence number",
            ),
            (
                sum.largest_sequence == meta.largest_sequence,
                "the largest sequence number",
            ),
        ]
        .into_iter()
        .find(|(is_same, _)| !is_same);
        match differs {
            Some((_, what)) => {
                let reason = format!("the run's metadata is wrong about {what}");
                Err(Error::corrupt_file(
                    self.run.path(),
                    meta.file_bytes,
                    reason,
                ))
            }
            None => Ok(()),
        }
    }

    fn order(&self, a: Bound<'_>, b: Bound<'_>) -> Ordering {
        self.run.order().compare(a.0, b.0).then(b.1.cmp(&a.1))
    }

    fn bad(&self, location: PageLocation, reason: &'static str) -> Error {
        self.run.corrupt(location.offset, reason)
    }
}
