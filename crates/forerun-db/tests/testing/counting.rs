//! A comparator that counts.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forerun_db::Comparator;

/// Orders by bytes and counts its comparisons.
#[derive(Clone, Default)]
pub struct Counting(pub Arc<AtomicU64>);

impl Comparator for Counting {
    fn name(&self) -> &str {
        "test.counting"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.0.fetch_add(1, Relaxed);
        a.cmp(b)
    }
}
