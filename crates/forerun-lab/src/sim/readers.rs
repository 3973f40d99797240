//! Counts the readers of the store. Readers keep memtables in memory. Only then may a write be
//! refused for lack of memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::rt;
use super::simulation::lock;

/// Counts readers.
#[derive(Clone, Debug, Default)]
pub struct Readers(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    readers: usize,
    /// When the last one ended.
    ended: Duration,
}

/// A reader, until this is dropped.
#[derive(Debug)]
pub struct Reading(Readers);

impl Readers {
    /// Records that a reader begins.
    pub fn begin(&self) -> Reading {
        lock(&self.0).readers += 1;
        Reading(self.clone())
    }

    /// Whether anybody read at that time or later.
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
