//! The index and the filter of an open run, in memory once they are loaded.
//!
//! ```text
//!   opened ── neither: lookups search the pages ──> index: until the run is closed
//!                                          │     ^ each is read once, if it fits the cache's budget
//!                                          └──> filter, if the index could not be loaded: until it is
//! ```
//!
//! Lookups use what is in memory and load nothing: the store decides when (`db/filter_loading.rs`).
//! A load that has failed is tried again later, each time after twice as long.

use std::ops::Range;
use std::time::{Duration, Instant};

use forerun_core::sync::{Arc, Mutex, OnceLock, PoisonError, time};

use super::ends::read_part;
use super::filter::Filter;
use super::meta::Footer;
use super::reader::Run;
use super::record_index::{RecordAddress, RecordIndex};
use super::stored::{TRAILER_BYTES, plain_bytes};
use crate::cache::{Charge, PageCache, Pin, PinnedCell, pin};
use crate::{Error, Result};

/// What an index or a filter says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// It is not in the run.
    Absent,
    /// It may be in the run.
    Anywhere,
    /// If it is in the run, its newest version is probably here.
    At(RecordAddress),
}

/// The index and the filter of a run.
#[derive(Debug)]
pub(super) struct IndexAndFilter {
    /// Where they are in the file.
    index_range: Range<u64>,
    filter_range: Range<u64>,
    /// Set once it is loaded: `None` if it is damaged. Without it, the run may hold any key.
    index: OnceLock<Option<(RecordIndex, Charge)>>,
    /// The same, while the index is not in memory.
    filter: PinnedCell<Option<(Filter, Charge)>>,
    /// Held while one of them is read.
    loading: Mutex<Option<Failing>>,
}

/// Loads that have failed, and none has succeeded since.
#[derive(Debug)]
struct Failing {
    attempts: u32,
    retry_at: Instant,
}

/// How long a load is not tried again after it failed first, and the most.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(600);

impl IndexAndFilter {
    /// Those of a run with this footer, not loaded.
    pub(super) fn new(footer: &Footer, cache: &Arc<PageCache>) -> IndexAndFilter {
        let index_range = footer.index_offset..footer.meta_offset;
        let filter_range = footer.filter_offset..footer.index_offset;
        let is_empty = plain_len(&index_range) == 0 && plain_len(&filter_range) == 0;
        let filter = PinnedCell::new();
        if is_empty {
            // A run with neither has nothing to load.
            let charge = cache.try_charge(0);
            filter.set(charge.map(|charge| (Filter::default(), charge)));
        }
        IndexAndFilter {
            filter,
            index: OnceLock::new(),
            index_range,
            filter_range,
            loading: Mutex::new(None),
        }
    }

    /// The index, if it is in memory.
    #[inline(always)]
    pub(super) fn index(&self) -> Option<&RecordIndex> {
        match self.index.get() {
            Some(Some((index, _))) => Some(index),
            _ => None,
        }
    }

    /// The filter, if it is in memory.
    #[inline(always)]
    fn filter<'p>(&'p self, pin: &'p Pin) -> Option<&'p Filter> {
        match self.filter.get(pin) {
            Some(Some((filter, _))) => Some(filter),
            _ => None,
        }
    }

    /// Whether there is nothing to load: one of them is in memory, or both are damaged.
    fn is_settled(&self) -> bool {
        self.index().is_some() || self.filter.is_set()
    }
}

impl Run {
    /// Whether and where a key with this hash may be in the run, by the index or else the filter.
    #[inline(always)]
    pub(crate) fn probe(&self, hash: u64, pin: &Pin) -> Probe {
        if let Some(index) = self.index() {
            return index.find(hash).map_or(Probe::Absent, Probe::At);
        }
        match self.index_and_filter().filter(pin) {
            Some(filter) if !filter.may_contain(hash) => Probe::Absent,
            _ => Probe::Anywhere,
        }
    }

    /// Prefetches the line that [`probe`](Self::probe) reads.
    #[inline(always)]
    pub(crate) fn prefetch_probe(&self, hash: u64, pin: &Pin) {
        if let Some(index) = self.index() {
            index.prefetch(hash);
        } else if let Some(filter) = self.index_and_filter().filter(pin) {
            filter.prefetch(hash);
        }
    }

    /// The index, if it is in memory.
    #[inline(always)]
    pub(crate) fn index(&self) -> Option<&RecordIndex> {
        self.index_and_filter().index()
    }

    /// Whether the filter is in memory, or the index, which does the same.
    pub(crate) fn has_filter(&self) -> bool {
        self.index().is_some() || self.index_and_filter().filter(&pin()).is_some()
    }

    /// Whether [`load_filter_if_due`](Self::load_filter_if_due) has anything to load.
    pub(crate) fn may_load(&self) -> bool {
        let state = self.index_and_filter();
        let may_load_index = self.index_bytes() > 0 && state.index.get().is_none();
        may_load_index || !state.is_settled()
    }

    /// The index's size in the file without its trailer; 0 if the run has none.
    pub(crate) fn index_bytes(&self) -> usize {
        plain_len(&self.index_and_filter().index_range)
    }

    /// The filter's size in memory, whether it is loaded or not.
    pub(crate) fn filter_bytes(&self) -> usize {
        plain_len(&self.index_and_filter().filter_range)
    }

    /// Where the index is in the file.
    #[cfg(test)]
    pub(crate) fn index_range(&self) -> Range<u64> {
        self.index_and_filter().index_range.clone()
    }

    /// Where the filter is in the file.
    #[cfg(test)]
    pub(crate) fn filter_range(&self) -> Range<u64> {
        self.index_and_filter().filter_range.clone()
    }

    /// Reads the index from the file, whether it is in memory or not.
    ///
    /// # Errors
    /// [`Error::CorruptFile`] if it is damaged, [`Error::OutOfMemory`], [`Error::Io`].
    pub(crate) fn read_index(&self) -> Result<Option<RecordIndex>> {
        let at = self.index_and_filter().index_range.clone();
        self.read_plain(at, |bytes| match bytes {
            [] => Ok(None),
            bytes => RecordIndex::decode(bytes, self.meta().location_bits()).map(Some),
        })
    }

    /// Reads the filter from the file, whether it is in memory or not.
    ///
    /// # Errors
    /// As [`read_index`](Self::read_index).
    pub(crate) fn read_filter(&self) -> Result<Filter> {
        self.read_plain(self.index_and_filter().filter_range.clone(), Filter::decode)
    }

    fn read_plain<T>(
        &self,
        at: Range<u64>,
        decode: impl FnOnce(&[u8]) -> Result<T, &'static str>,
    ) -> Result<T> {
        let bytes = read_part(self.file(), self.path(), at.clone())?;
        let decoded = plain_bytes(self.salt(), at.start, &bytes).and_then(decode);
        decoded.map_err(|reason| self.corrupt(at.start, reason))
    }

    /// Reads and checks both, and keeps the index, or else the filter, if the cache's budget has
    /// space for it. A damaged index is reported and not used.
    ///
    /// # Errors
    /// [`Error::CorruptFile`] if the filter is damaged, [`Error::OutOfMemory`], [`Error::Io`].
    pub(super) fn read_both(&self) -> Result<()> {
        self.load_index()?;
        let filter = self.read_filter()?;
        if self.index().is_none()
            && let Some(charge) = self.slots().cache().try_charge(filter.bytes())
        {
            self.index_and_filter().filter.set(Some((filter, charge)));
        }
        Ok(())
    }

    /// Loads the index, or else the filter, if it is not in memory and the cache's budget has space
    /// for it. What is damaged is reported and not used. After a failure, tries again only once
    /// some time has passed, or if `retries_now`. The first of several failures is logged. Waits
    /// for another thread that loads them. Returns when to try again.
    pub(crate) fn load_filter_if_due(&self, retries_now: bool) -> Option<Instant> {
        let loading = &self.index_and_filter().loading;
        // A panic leaves what was noted before.
        let mut failing = loading.lock().unwrap_or_else(PoisonError::into_inner);
        let now = time::now();
        let retry_at = failing.as_ref().map(|of| of.retry_at);
        if !retries_now && retry_at.is_some_and(|at| now < at) {
            return retry_at;
        }
        *failing = self.load_filter().err().map(|error| {
            let attempts = failing.as_ref().map_or(0, |of| of.attempts);
            if attempts == 0 {
                tracing::warn!(%error, "a run stays without its index or filter for now");
            }
            let delay = FIRST_DELAY.saturating_mul(1 << attempts.min(20));
            Failing {
                attempts: attempts.saturating_add(1),
                retry_at: now + delay.min(DELAY_MAX),
            }
        });
        failing.as_ref().map(|of| of.retry_at)
    }

    /// [`load_filter_if_due`](Self::load_filter_if_due) without its pauses. One thread at a time
    /// calls this.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::OutOfMemory`]. The run remains usable.
    pub(crate) fn load_filter(&self) -> Result<()> {
        // Without the index, lookups need the filter, whatever the reason.
        let index = self.load_index();
        let filter = if self.index_and_filter().is_settled() {
            Ok(())
        } else {
            self.load_only_filter()
        };
        index.and(filter)
    }

    fn load_only_filter(&self) -> Result<()> {
        let Some(charge) = self.slots().cache().try_charge(self.filter_bytes()) else {
            return Ok(());
        };
        let filter = match self.read_filter() {
            Ok(filter) => Some((filter, charge)),
            Err(error @ Error::CorruptFile { .. }) => {
                tracing::warn!(%error, "a run's filter is damaged; lookups search its pages");
                None
            }
            Err(error) => return Err(error),
        };
        self.index_and_filter().filter.set(filter);
        Ok(())
    }

    /// Loads the index if it is not in memory and its share of the cache's budget has space for it.
    fn load_index(&self) -> Result<()> {
        let cell = &self.index_and_filter().index;
        if self.index_bytes() == 0 || cell.get().is_some() {
            return Ok(());
        }
        let memory_bytes = RecordIndex::memory_bytes(self.index_bytes());
        let Some(charge) = self.slots().cache().try_charge_index(memory_bytes) else {
            return Ok(());
        };
        let index = match self.read_index() {
            Ok(index) => index.map(|index| (index, charge)),
            Err(error @ Error::CorruptFile { .. }) => {
                tracing::warn!(%error, "a run's index is damaged; lookups search its pages");
                None
            }
            Err(error) => return Err(error),
        };
        let is_loaded = index.is_some();
        // No other thread loads it.
        let _ = cell.set(index);
        if is_loaded {
            // Lookups need it no more.
            self.index_and_filter().filter.clear();
        }
        Ok(())
    }
}

/// Bytes of what is stored here, without the trailer.
fn plain_len(range: &Range<u64>) -> usize {
    ((range.end - range.start) as usize).saturating_sub(TRAILER_BYTES)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cache::reclaim;
    use crate::comparator::KeyOrder;
    use crate::io::fault::FaultIo;
    use crate::run::RunOptions;
    use crate::run::file_tests::{PATH, numbered, write};
    use crate::run::filter::hash;
    use crate::testing::small_cache::small_cache;

    #[test]
    fn a_filter_goes_once_its_index_is_loaded() {
        let (io, order) = (FaultIo::new(), KeyOrder::Bytewise);
        let entries = numbered(20_000, |_| vec![7; 10]);
        write(&io, &order, RunOptions::default(), &entries).unwrap();
        let cache = small_cache();
        let used_bytes = || cache.stats().used_bytes;
        let run = Run::open_without_filter(&io, Path::new(PATH), 7, order, &cache).unwrap();
        let before = used_bytes();
        // Others have the share of indexes at first.
        let others = || cache.try_charge_index(1 << 10);
        let others: Vec<_> = std::iter::from_fn(others).collect();
        run.load_filter().unwrap();
        assert!(run.index().is_none() && run.has_filter());
        assert!(run.filter_bytes() > 20 << 10);
        drop(others);
        let reading = pin();
        let filter = run.index_and_filter().filter(&reading).unwrap();
        run.load_filter().unwrap();
        assert!(run.index().is_some() && !run.may_load());
        // A lookup that has begun goes on with it.
        assert!(filter.may_contain(hash(&entries[7].key)));
        drop(reading);
        let left = before + RecordIndex::memory_bytes(run.index_bytes());
        let begun = Instant::now();
        while used_bytes() > left {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{}",
                used_bytes()
            );
            // Threads of other tests pin too.
            reclaim();
        }
        assert!(run.has_filter(), "the index does the same");
    }
}
