//! Who reads the store now: readers keep memtables in memory, and only they may be the reason that
//! a write gets none.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::rt;
use super::world::lock;

/// The readers there are.
#[derive(Clone, Debug, Default)]
pub struct Readers(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    readers: usize,
    /// When the last one ended.
    ended: Duration,
}

/// A reader. It ends with this.
#[derive(Debug)]
pub struct Reading(Readers);

impl Readers {
    /// One more.
    pub fn begin(&self) -> Reading {
        lock(&self.0).readers += 1;
        Reading(self.clone())
    }

    /// Whether there was one at a time or later.
    pub fn were_there_since(&self, begun: Duration) -> bool {
        let known = lock(&self.0);
        known.readers > 0 || known.ended >= begun
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut known = lock(&self.0.0);
        known.readers -= 1;
        known.ended = rt::last_elapsed();
    }
}
