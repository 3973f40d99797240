//! The index and the filter of an open run, in memory once lookups need them.
//!
//! ```text
//!   opened ── neither: lookups search the pages ──> index, or else filter: until the run is closed
//!                │                                    ^ read once, if it fits the cache's budget
//!                └─ these have read as many bytes ────┘
//!                   as the index has
//! ```
//!
//! A lookup of one key reads a page, and an index may have megabytes. So the first lookups do not
//! load it. Each counts the leaf that it may read in vain, and the one with which the count reaches
//! the size of the index or filter loads it. Whatever lookups follow, this reads at most twice the
//! bytes of the better choice: to load at once, or never.
//!
//! Only one thread loads at a time. Lookups do not wait for it. If there is no space or the read
//! fails, lookups try again when they have searched as much again as before.

use std::ops::Range;

use forerun_core::sync::atomic::{AtomicU64, Ordering};
use forerun_core::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};

use super::ends::read_part;
use super::filter::Filter;
use super::meta::Footer;
use super::reader::Run;
use super::record_index::{RecordAddress, RecordIndex};
use super::stored::{TRAILER_BYTES, plain_bytes};
use crate::cache::{Charge, PageCache};
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
    /// The same, if the index is not in memory.
    filter: OnceLock<Option<(Filter, Charge)>>,
    /// Held while one of them is read.
    loading: Mutex<()>,
    /// Bytes of pages that lookups may have read for lack of both. Relaxed, as the next: a lookup
    /// that is not counted only delays the load.
    searched_bytes: AtomicU64,
    /// At how many a lookup loads them.
    due_bytes: AtomicU64,
}

impl IndexAndFilter {
    /// Those of a run with this footer, not loaded.
    pub(super) fn new(footer: &Footer, cache: &Arc<PageCache>) -> IndexAndFilter {
        let index_range = footer.index_offset..footer.meta_offset;
        let filter_range = footer.filter_offset..footer.index_offset;
        let due_bytes = plain_len(&index_range).max(plain_len(&filter_range));
        // A run with neither has nothing to load.
        let none = || {
            cache
                .try_charge(0)
                .map(|charge| (Filter::default(), charge))
        };
        IndexAndFilter {
            filter: match due_bytes {
                0 => OnceLock::from(none()),
                _ => OnceLock::new(),
            },
            index: OnceLock::new(),
            index_range,
            filter_range,
            loading: Mutex::new(()),
            searched_bytes: AtomicU64::new(0),
            due_bytes: AtomicU64::new(due_bytes as u64),
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
    fn filter(&self) -> Option<&Filter> {
        match self.filter.get() {
            Some(Some((filter, _))) => Some(filter),
            _ => None,
        }
    }

    /// Whether there is nothing to load: one of them is in memory, or both are damaged.
    fn is_settled(&self) -> bool {
        self.index().is_some() || self.filter.get().is_some()
    }

    /// Counts a lookup that searches the pages for lack of both. Returns whether it should load
    /// them.
    #[cold]
    fn note_search(&self, page_bytes: u32) -> bool {
        let searched = self.searched_bytes.load(Ordering::Relaxed);
        let searched = searched.saturating_add(u64::from(page_bytes));
        self.searched_bytes.store(searched, Ordering::Relaxed);
        searched >= self.due_bytes.load(Ordering::Relaxed)
    }

    /// Notes the result of a load: until when lookups do not try again.
    fn note_attempt(&self) {
        let due = if self.is_settled() {
            u64::MAX
        } else {
            let searched = self.searched_bytes.load(Ordering::Relaxed);
            searched.saturating_mul(2)
        };
        self.due_bytes.store(due, Ordering::Relaxed);
    }
}

impl Run {
    /// Whether and where a key with this hash may be in the run, by the index or else the filter.
    #[inline(always)]
    pub(crate) fn probe(&self, hash: u64) -> Probe {
        if let Some(index) = self.index() {
            return index.find(hash).map_or(Probe::Absent, Probe::At);
        }
        match self.index_and_filter().filter() {
            Some(filter) if !filter.may_contain(hash) => Probe::Absent,
            _ => Probe::Anywhere,
        }
    }

    /// Prefetches the line that [`probe`](Self::probe) reads. Returns whether neither index nor
    /// filter is in memory and the caller should [load](Self::load_for_lookups) one of them.
    #[inline(always)]
    pub(crate) fn prefetch_probe(&self, hash: u64) -> bool {
        if let Some(index) = self.index() {
            index.prefetch(hash);
        } else if let Some(filter) = self.index_and_filter().filter() {
            filter.prefetch(hash);
        } else {
            return self.index_and_filter().note_search(self.meta().page_bytes);
        }
        false
    }

    /// The index, if it is in memory.
    #[inline(always)]
    pub(crate) fn index(&self) -> Option<&RecordIndex> {
        self.index_and_filter().index()
    }

    /// Whether the filter is in memory, or the index, which does the same.
    pub(crate) fn has_filter(&self) -> bool {
        self.index().is_some() || self.index_and_filter().filter().is_some()
    }

    /// Whether [`load_filter`](Self::load_filter) has anything to load.
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
            // No other thread has the run yet.
            let _ = self.index_and_filter().filter.set(Some((filter, charge)));
        }
        Ok(())
    }

    /// Loads the index, or else the filter, if neither is in memory and the cache's budget has
    /// space for it. What is damaged is reported and not used. Waits for another thread that loads
    /// them.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::OutOfMemory`]. The run remains usable.
    pub(crate) fn load_filter(&self) -> Result<()> {
        let loading = &self.index_and_filter().loading;
        // The lock guards no data.
        let _loading = loading.lock().unwrap_or_else(PoisonError::into_inner);
        self.load_either()
    }

    /// [`load_filter`](Self::load_filter) for lookups that have searched without them for long
    /// enough. Does nothing while another thread loads them. Do not call this while pinned.
    #[cold]
    pub(crate) fn load_for_lookups(&self) {
        let state = self.index_and_filter();
        let _loading = match state.loading.try_lock() {
            Ok(loading) => loading,
            // As above.
            Err(TryLockError::Poisoned(loading)) => loading.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Err(error) = self.load_either() {
            tracing::warn!(%error, "a run stays without index and filter for now");
        }
        state.note_attempt();
    }

    /// Under the lock.
    fn load_either(&self) -> Result<()> {
        self.load_index()?;
        let state = self.index_and_filter();
        if state.is_settled() {
            return Ok(());
        }
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
        // No other thread loads it.
        let _ = state.filter.set(filter);
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
        // No other thread loads it.
        let _ = cell.set(index);
        Ok(())
    }
}

/// Bytes of what is stored here, without the trailer.
fn plain_len(range: &Range<u64>) -> usize {
    ((range.end - range.start) as usize).saturating_sub(TRAILER_BYTES)
}
