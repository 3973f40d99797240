//! An iterator over a cache, which fetches a part of it at a time while other Python threads run.

use std::collections::VecDeque;
use std::sync::Arc;

use forerun::cache::{Cache, Cursor};
use pyo3::prelude::*;

use crate::errors::invalid;
use crate::items::Shown;

/// An iterator over the entries of a cache, in no order.
#[pyclass(module = "forerun")]
pub(crate) struct CacheItems {
    cache: Arc<Cache>,
    shown: Shown,
    /// Where the next part begins; `None` when all were fetched.
    next: Option<Cursor>,
    fetched: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl CacheItems {
    pub(crate) fn new(cache: Arc<Cache>, shown: Shown) -> CacheItems {
        CacheItems {
            cache,
            shown,
            next: Some(Cursor::default()),
            fetched: VecDeque::new(),
        }
    }

    /// Copies entries until there are some, or no more.
    fn fetch(&mut self) {
        let takes_values = !matches!(self.shown, Shown::Keys);
        while let (true, Some(from)) = (self.fetched.is_empty(), self.next) {
            let fetched = &mut self.fetched;
            self.next = self.cache.pin().scan(from, |item| {
                let value: &[u8] = if takes_values { item.value() } else { &[] };
                fetched.push_back((item.key().to_vec(), value.to_vec()));
            });
        }
    }
}

#[pymethods]
impl CacheItems {
    fn __iter__(slf: Bound<'_, CacheItems>) -> Bound<'_, CacheItems> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.fetched.is_empty() {
            py.detach(|| self.fetch());
        }
        let entry = self.fetched.pop_front();
        let shown = entry.map(|(key, value)| self.shown.of(py, &key, &value));
        shown.transpose()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "an iterator over a cache is of this process and cannot be pickled",
        ))
    }
}
