//! The key orders of simulated keyspaces, and comparators that panic when planned.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forerun_db::{Bytewise, Comparator, ReverseBytewise};

/// A key order. All of them keep keys with the same first byte together, so that each thread has
/// its own range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    Bytes,
    Reverse,
    /// By the first byte, the length, and the rest.
    Length,
    /// By bytes, ignoring case.
    Folding,
}

/// The message of a planned panic.
pub const PLANNED_PANIC: &str = "a panic that the simulation planned";

impl KeyOrder {
    /// Compares two keys.
    pub fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        let head = |key: &[u8]| (key.first().copied(), key.len());
        match self {
            KeyOrder::Bytes => a.cmp(b),
            KeyOrder::Reverse => b.cmp(a),
            KeyOrder::Length => head(a).cmp(&head(b)).then_with(|| a.cmp(b)),
            KeyOrder::Folding => {
                let folded = |key: &[u8]| key.to_ascii_lowercase();
                folded(a).cmp(&folded(b))
            }
        }
    }

    /// The one key that represents all keys equal to it.
    pub fn canonical(self, key: &[u8]) -> Vec<u8> {
        match self {
            KeyOrder::Folding => key.to_ascii_lowercase(),
            _ => key.to_vec(),
        }
    }

    /// The order in the store's form.
    pub fn comparator(self, panics: &Panics) -> Arc<dyn Comparator> {
        match self {
            KeyOrder::Bytes => Arc::new(Bytewise),
            KeyOrder::Reverse => Arc::new(ReverseBytewise),
            KeyOrder::Length | KeyOrder::Folding => Arc::new(Panicking {
                order: self,
                panics: panics.clone(),
            }),
        }
    }
}

/// When comparators panic: shared by all comparators of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Panics(Arc<Countdown>);

#[derive(Debug, Default)]
struct Countdown {
    calls: AtomicU64,
    from: AtomicU64,
    until: AtomicU64,
    happened: AtomicU64,
}

impl Panics {
    /// Makes `count` comparisons panic, after the next `after` comparisons.
    pub fn plan(&self, after: u64, count: u32) {
        let from = self.0.calls.load(Relaxed) + after;
        self.0.from.store(from, Relaxed);
        self.0.until.store(from + u64::from(count), Relaxed);
    }

    /// Cancels all planned panics.
    pub fn end_faults(&self) {
        self.0.until.store(0, Relaxed);
    }

    /// How many panics happened.
    pub fn happened(&self) -> u64 {
        self.0.happened.load(Relaxed)
    }

    fn count(&self) {
        let call = self.0.calls.fetch_add(1, Relaxed);
        if call >= self.0.from.load(Relaxed) && call < self.0.until.load(Relaxed) {
            self.0.happened.fetch_add(1, Relaxed);
            panic!("{PLANNED_PANIC}");
        }
    }
}

struct Panicking {
    order: KeyOrder,
    panics: Panics,
}

impl Comparator for Panicking {
    fn name(&self) -> &str {
        match self.order {
            KeyOrder::Length => "forerun-lab.length",
            _ => "forerun-lab.folding",
        }
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.panics.count();
        self.order.compare(a, b)
    }
}
