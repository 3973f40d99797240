//! An iterator over a cache, and the removal of any entry. Both run while other Python threads do.

use std::collections::VecDeque;

use forerun::cache::{Cache, Crawler, Delete, DeleteResult};
use pyo3::prelude::*;

use crate::cache_handle::SharedCache;
use crate::engine_handle::EngineHandle;
use crate::errors::{forked, invalid};
use crate::items::Shown;
use crate::new_objects::copy_of;

/// Bytes of entries fetched at a time.
const STEP_BYTES: usize = 256 << 10;

/// An iterator over the entries of a cache, in no order.
#[pyclass(module = "forerun")]
pub(crate) struct CacheItems {
    cache: EngineHandle<SharedCache>,
    shown: Shown,
    /// `None` when all entries were fetched.
    crawler: Option<Crawler>,
    fetched: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl CacheItems {
    pub(crate) fn new(cache: SharedCache, shown: Shown) -> CacheItems {
        CacheItems {
            cache: EngineHandle::new(cache),
            shown,
            crawler: Some(Crawler::default()),
            fetched: VecDeque::new(),
        }
    }

    /// The next entry. Without a value if only keys are shown.
    fn next_entry(&mut self, py: Python<'_>) -> PyResult<Option<(Vec<u8>, Vec<u8>)>> {
        if self.fetched.is_empty() {
            py.detach(|| self.fetch())?;
        }
        Ok(self.fetched.pop_front())
    }

    /// Copies entries until it has some or none are left.
    fn fetch(&mut self) -> PyResult<()> {
        let cache = self.cache.get().map_err(forked)?;
        let takes_values = !matches!(self.shown, Shown::Keys);
        while self.fetched.is_empty()
            && let Some(crawler) = &mut self.crawler
        {
            let (fetched, mut copied) = (&mut self.fetched, Ok(()));
            let is_more = crawler.step(cache, STEP_BYTES, |item| {
                let value: &[u8] = if takes_values { item.value() } else { &[] };
                match (copy_of(item.key()), copy_of(value)) {
                    (Ok(key), Ok(value)) => fetched.push_back((key, value)),
                    (Err(error), _) | (_, Err(error)) => copied = Err(error),
                }
            });
            copied?;
            if !is_more {
                self.crawler = None;
            }
        }
        Ok(())
    }
}

/// Deletes the next entry that a crawl meets, and copies only that one.
pub(crate) fn take_any(
    crawler: &mut Crawler,
    cache: &Cache,
) -> PyResult<Option<(Vec<u8>, Vec<u8>)>> {
    // The crawl of earlier calls has passed entries that were stored since. Only a crawl that began
    // in this call shows that the cache is empty.
    let mut is_whole_crawl = false;
    loop {
        let mut met = None;
        // One byte, so the step ends with the first entry.
        let is_more = crawler.step(cache, 1, |item| {
            let key = copy_of(item.key());
            met = Some(key.and_then(|key| Ok((key, copy_of(item.value())?))));
        });
        if !is_more {
            *crawler = Crawler::default();
        }
        // Another thread may have deleted the entry since.
        let is_deleted = |key: &[u8]| cache.delete(Delete::key(key)) == DeleteResult::Deleted;
        if let Some(entry) = met.transpose()?.filter(|(key, _)| is_deleted(key)) {
            return Ok(Some(entry));
        }
        if !is_more {
            if is_whole_crawl {
                return Ok(None);
            }
            is_whole_crawl = true;
        }
    }
}

#[pymethods]
impl CacheItems {
    fn __iter__(slf: Bound<'_, CacheItems>) -> Bound<'_, CacheItems> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let entry = self.next_entry(py)?;
        let shown = entry.map(|(key, value)| self.shown.of(py, &key, &value));
        shown.transpose()
    }

    fn __repr__(&self) -> String {
        format!(
            "forerun.CacheItems(of=\"cache\", part={:?})",
            self.shown.name()
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "an iterator over a cache belongs to this process and cannot be pickled",
        ))
    }
}
