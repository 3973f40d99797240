//! Counts the readers of the store. Readers keep memtables in memory. A write may be refused for
//! lack of memory only while they do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::runtime;
use super::simulation::lock;

/// Counts readers.
#[derive(Clone, Debug, Default)]
pub struct ActiveReaders(Arc<Mutex<ReaderCount>>);

#[derive(Debug, Default)]
struct ReaderCount {
    readers: usize,
    /// When the last reader ended.
    last_end: Duration,
}

/// Counts one reader until it is dropped.
#[derive(Debug)]
pub struct ReaderGuard(ActiveReaders);

impl ActiveReaders {
    /// Records that a reader begins.
    pub fn begin(&self) -> ReaderGuard {
        lock(&self.0).readers += 1;
        ReaderGuard(self.clone())
    }

    /// Whether any reader was active at that time or later.
    pub fn any_since(&self, start: Duration) -> bool {
        let count = lock(&self.0);
        count.readers > 0 || count.last_end >= start
    }
}

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        let mut count = lock(&self.0.0);
        count.readers -= 1;
        count.last_end = runtime::last_elapsed();
    }
}
