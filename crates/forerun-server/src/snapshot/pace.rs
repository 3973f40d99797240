//! How fast a snapshot is written while the server goes on.
//!
//! ```text
//!   at once      copy, write ▏rest ▏copy, write ▏rest ▏ …      half of a core at most, in bursts shorter than a worker notices
//!   at a rate    copy, write ▏rest …            ▏copy, write ▏ so many bytes a second
//!   sync, uncache    each 2 MiB                                so that no sync takes the core for long, nor the file's removal
//! ```
//!
//! A thread that copies and writes without a pause competes with the workers: on a core that both
//! use, a worker that has a request waits until the scheduler takes the core away, which is
//! milliseconds. A file whose pages are in memory takes the core for 0.2 ms a MiB when it is
//! removed, in one go; so a file leaves memory as it is written, before the next one replaces it.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forerun_core::sync::thread;

use crate::system::System;

/// Bytes between two syncs: one of so many takes the core for 0.3 ms.
const SYNC_BYTES: u64 = 2 << 20;
/// The longest rest after a burst. A burst takes longer than this only where the disk was waited
/// for, and that is a rest, too.
const REST_MAX: Duration = Duration::from_millis(2);
/// How often a writer that waits for its rate looks whether to hurry.
const LOOK: Duration = Duration::from_millis(20);

/// How fast to write.
#[derive(Clone, Debug)]
pub(crate) enum Pace {
    /// As fast as the disk allows: nobody is served meanwhile.
    Unlimited,
    /// Beside workers.
    Beside {
        /// Bytes a second at most.
        rate: Option<NonZeroU64>,
        /// Once set, the rest is written as fast as possible: somebody waits for it.
        hurry: Arc<AtomicBool>,
    },
}

/// Rests between bursts.
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

    /// Rests after a burst, with `written_bytes` in the file so far.
    ///
    /// # Errors
    /// That of a sync.
    pub(super) fn rest(&mut self, file: &S::File, written_bytes: u64) -> io::Result<()> {
        let Pace::Beside { rate, hurry } = &self.pace else {
            return Ok(());
        };
        // Relaxed, here and below: a flag that carries nothing with it.
        if hurry.load(Ordering::Relaxed) {
            return Ok(());
        }
        if written_bytes - self.synced_bytes >= SYNC_BYTES {
            self.system.sync(file)?;
            self.system.uncache(file);
            self.synced_bytes = written_bytes;
        }
        let now = self.system.now();
        let burst = now.duration_since(self.resumed).min(REST_MAX);
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
