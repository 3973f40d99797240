//! Limits how fast a snapshot is written while the server is running.
//!
//! ```text
//!   at once      copy, write ▏pause ▏copy, write ▏pause ▏ …      at most half a core, in bursts too short for a worker to notice
//!   at a rate    copy, write ▏pause …            ▏copy, write ▏ at most this many bytes per second
//!   sync, uncache    each 2 MiB                                so neither a sync nor the removal takes the core for long
//! ```
//!
//! A thread that copies and writes without a pause competes with the workers. If the thread shares
//! a core with a worker, the worker waits until the scheduler preempts the thread, which takes
//! milliseconds. Removing a file whose pages are in memory occupies the core for 0.2 ms per MiB
//! without a break. The writer therefore drops the pages while it writes the file, before the next
//! file replaces it.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forerun_core::sync::thread;

use crate::system::System;

/// Bytes between two syncs. A sync of this size occupies the core for 0.3 ms.
const SYNC_BYTES: u64 = 2 << 20;
/// The longest pause after a burst. A burst takes longer than this only if it waited for the disk,
/// and such a wait counts as a pause too.
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// How often a writer that is limited by its rate checks whether to hurry.
const LOOK: Duration = Duration::from_millis(20);

/// The pace of a writer.
#[derive(Clone, Debug)]
pub(crate) enum Pace {
    /// As fast as the disk allows. The server has no clients at that time.
    Unlimited,
    /// While workers serve clients.
    Live {
        /// Maximum bytes per second.
        rate: Option<NonZeroU64>,
        /// Once this is set, the rest is written as fast as possible, because the server is waiting
        /// for it.
        hurry: Arc<AtomicBool>,
    },
}

/// Makes the writer pause between bursts.
pub(super) struct Pacer<'s, S> {
    system: &'s S,
    pace: Pace,
    began: Instant,
    resumed: Instant,
    synced_bytes: u64,
}

impl<'s, S: System> Pacer<'s, S> {
    pub(super) fn new(system: &'s S, pace: Pace) -> Pacer<'s, S> {
        let now = system.now();
        Pacer {
            system,
            pace,
            began: now,
            resumed: now,
            synced_bytes: 0,
        }
    }

    /// Pauses after a burst. The file has `written_bytes` so far.
    ///
    /// # Errors
    /// The error of a sync.
    pub(super) fn throttle(&mut self, file: &S::File, written_bytes: u64) -> io::Result<()> {
        let Pace::Live { rate, hurry } = &self.pace else {
            return Ok(());
        };
        // Relaxed, here and below: a flag without data.
        if hurry.load(Ordering::Relaxed) {
            return Ok(());
        }
        if written_bytes - self.synced_bytes >= SYNC_BYTES {
            self.system.sync(file)?;
            self.system.uncache(file);
            self.synced_bytes = written_bytes;
        }
        let now = self.system.now();
        let burst = now.duration_since(self.resumed).min(PAUSE_MAX);
        if !burst.is_zero() {
            thread::sleep(burst);
        }
        if let Some(rate) = rate {
            let took = Duration::from_secs_f64(written_bytes as f64 / rate.get() as f64);
            loop {
                let early = took.saturating_sub(self.system.now().duration_since(self.began));
                if early.is_zero() || hurry.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(early.min(LOOK));
            }
        }
        self.resumed = self.system.now();
        Ok(())
    }
}
