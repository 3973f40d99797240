//! Slows writes down while level 0 is long.

use forerun_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The write rate while writes are slowed down.
const SLOW_BYTES_PER_SECOND: u64 = 16 << 20;

/// Shorter pauses are accumulated first, because each sleep costs a context switch.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// Whether writes are slowed down, and how much they owe.
#[derive(Debug, Default)]
pub(super) struct WriteController {
    is_slow: AtomicBool,
    /// Bytes written since the last pause.
    debt_bytes: AtomicU64,
}

impl WriteController {
    /// Slows writes down, or no longer.
    pub(super) fn set_slow(&self, is_slow: bool) {
        // Relaxed, here and below: a hint, and a sum that one thread takes as a whole.
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }

    /// How long a write of `bytes` is to pause first, if at all.
    #[inline]
    pub(super) fn pause(&self, bytes: usize) -> Option<Duration> {
        if self.is_slow.load(Ordering::Relaxed) {
            self.pause_while_slow(bytes as u64)
        } else {
            None
        }
    }

    #[cold]
    fn pause_while_slow(&self, bytes: u64) -> Option<Duration> {
        let owed = self.debt_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if pause_for(owed) < SHORTEST_PAUSE {
            return None;
        }
        Some(pause_for(self.debt_bytes.swap(0, Ordering::Relaxed)))
    }
}

fn pause_for(bytes: u64) -> Duration {
    Duration::from_micros(bytes * 1_000_000 / SLOW_BYTES_PER_SECOND)
}
