//! Reads all runs in rounds, slowly, to find damage before a lookup needs what it hit.
//!
//! ```text
//!   round   run ─ run ─ run ─ …    of every keyspace; pause until the next round is due
//!            └ part, page, page, … at the scrub's rate, and after what else the limiter lets write
//!            └ damage ──> event, statistics; lookups trust the page no more
//! ```
//!
//! The scrub holds no run: its own open file stays readable, and a run that is gone is left in the
//! middle.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forerun_core::metrics;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};

use super::Inner;
use crate::comparator::KeyOrder;
use crate::events::{BackgroundTask, DbEvent};
use crate::panics;
use crate::run::Run;
use crate::tree::levels::record;
use crate::tree::limiter::{self, IoClass, RateLimiter};
use crate::tree::scrub::{Scrubber, scrub_run};
use crate::{Error, Result};

/// A round begins at most this often. What storage loses, it loses slowly.
const ROUND_INTERVAL: Duration = Duration::from_secs(3600);

metrics! {
    /// What scrubs have read and found since the store was opened: see
    /// [`Options::scrub_rate_bytes`](crate::Options::scrub_rate_bytes).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct ScrubStats {
        /// Bytes of runs read.
        counter read_bytes: u64,
        /// Pages and other parts of runs that were damaged or could not be read; each counts once
        /// in a round.
        counter damaged_pages: u64,
        /// Rounds that have read all runs.
        counter rounds: u64,
        /// When the last of them ended, in seconds since 1970; 0 if there was none.
        gauge last_round_unix_s: u64,
    }
}

#[derive(Debug, Default)]
pub(super) struct Scrubbing {
    stats: Mutex<ScrubStats>,
}

impl Scrubbing {
    pub(super) fn stats(&self) -> ScrubStats {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, ScrubStats> {
        // Nothing panics while the lock is held.
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The scrub of one run.
struct RunScrubber<'a> {
    inner: &'a Inner,
    rate: &'a RateLimiter,
    run: &'a Weak<Run>,
}

impl RunScrubber<'_> {
    fn is_gone(&self) -> bool {
        self.run.strong_count() == 0
    }

    /// Fails if the run is gone or the store is closing.
    fn check(&self) -> Result<()> {
        if self.is_gone() {
            return Err(Error::Closed);
        }
        limiter::check(self.inner.work.stop_flag())
    }
}

impl Scrubber for RunScrubber<'_> {
    fn pay(&mut self, bytes: u64) -> Result<()> {
        self.check()?;
        for limiter in [self.rate, &self.inner.tree.limiter] {
            limiter.take_while(bytes, IoClass::Scrub, || self.check())?;
        }
        self.inner.scrubbing.lock().read_bytes += bytes;
        Ok(())
    }

    fn note_damage(&mut self, page_no: Option<u32>, error: Error) {
        let Some(run) = self.run.upgrade() else {
            return;
        };
        if let Some(page_no) = page_no {
            run.slots().verified().remove(page_no);
        }
        drop(run);
        tracing::error!(%error, "a scrub has found damage");
        self.inner.scrubbing.lock().damaged_pages += 1;
        self.inner.events.send(|| DbEvent::DamageFound { error });
    }
}

impl Inner {
    /// Scrubs all runs, again and again, until the store is closed.
    pub(super) fn run_scrubber(&self) {
        let rate = RateLimiter::new(Some(self.options.scrub_rate_bytes));
        loop {
            let begun = time::now();
            match panics::catch("scrubbing", || self.scrub_round(&rate)) {
                Ok(()) => {}
                Err(Error::Closed) => return,
                Err(error) => {
                    let path = self.path.display();
                    tracing::warn!(%error, %path, "a scrub is not complete");
                    self.notify_of_error(BackgroundTask::Scrub, &error);
                }
            }
            while let Some(left) = left_of_interval(begun) {
                let Some(events) = self.work.event_count() else {
                    return;
                };
                self.work.wait_timeout(events, left);
            }
        }
    }

    /// Scrubs all runs that there are now.
    ///
    /// # Errors
    /// [`Error::Closed`]; the first of those for which a run could not be scrubbed.
    fn scrub_round(&self, rate: &RateLimiter) -> Result<()> {
        let (begun, before) = (time::now(), self.scrubbing.stats());
        let mut failed = Ok(());
        for (order, run) in self.all_runs() {
            match self.scrub_one(&order, &run, rate) {
                Err(Error::Closed) => return Err(Error::Closed),
                scrubbed => failed = failed.and(scrubbed),
            }
        }
        failed?;
        let unix_s = self.io.unix_time_s();
        let after = {
            let mut stats = self.scrubbing.lock();
            stats.rounds += 1;
            stats.last_round_unix_s = unix_s;
            *stats
        };
        self.events.send(|| DbEvent::ScrubEnded {
            read_bytes: after.read_bytes - before.read_bytes,
            damaged_pages: after.damaged_pages - before.damaged_pages,
            duration: time::elapsed(begun),
        });
        Ok(())
    }

    /// Scrubs a run, unless it is gone.
    fn scrub_one(&self, order: &KeyOrder, run: &Weak<Run>, rate: &RateLimiter) -> Result<()> {
        let Some(named) = run.upgrade().map(|run| record(&run)) else {
            return Ok(());
        };
        // Otherwise another process might give the file's name to another run.
        let _guard = self.directory.enter_for_reading()?;
        let mut scrubber = RunScrubber {
            inner: self,
            rate,
            run,
        };
        let (io, cache) = (&*self.io, &self.tree.cache);
        let scrubbed = scrub_run(io, &self.path, &named, order, cache, &mut scrubber);
        if scrubbed.is_err() && scrubber.is_gone() {
            // What replaces it was verified when it was written.
            return limiter::check(self.work.stop_flag());
        }
        scrubbed
    }

    /// All runs, with the order of their keys.
    fn all_runs(&self) -> Vec<(KeyOrder, Weak<Run>)> {
        let keyspaces = self.keyspaces.load();
        let mut runs = Vec::new();
        for keyspace in keyspaces.iter() {
            let levels = Arc::clone(&keyspace.version.load().levels);
            let of_ranges = {
                let catalog = self.tree.catalog();
                let runs = catalog.runs_of(keyspace.id());
                runs.map_or_else(Vec::new, |of| of.range_runs.clone())
            };
            let all = levels.runs().map(|(_, run)| run).chain(&of_ranges);
            runs.extend(all.map(|run| (keyspace.order().clone(), Arc::downgrade(run))));
        }
        runs
    }
}

/// What is left of the time until the next round may begin.
fn left_of_interval(begun: Instant) -> Option<Duration> {
    let left = ROUND_INTERVAL.saturating_sub(time::elapsed(begun));
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use forerun_core::Pages;

    use super::*;
    use crate::io::fault::FaultIo;
    use crate::{Background, Compression, Db, Options, RunOptions};

    const KEYS: u32 = 3_000;

    fn value(n: u32) -> Vec<u8> {
        format!("value of {n:06}").into_bytes()
    }

    /// How many lookups find what was never written.
    fn wrong_answers(db: &Db) -> usize {
        let is_wrong = |n: &u32| match db.get(n.to_be_bytes()) {
            Ok(found) => found != Some(value(*n)),
            Err(error) => !matches!(error, Error::CorruptFile { .. }),
        };
        (0..KEYS).filter(is_wrong).count()
    }

    #[test]
    fn lookups_trust_no_page_that_a_scrub_has_found_damaged() {
        let io = FaultIo::new();
        io.set_cached_percent(100);
        let run = RunOptions::default()
            .page_bytes(1 << 10)
            .compression(Compression::None);
        let options = Options::default()
            .pages(Pages::Small)
            .background(Background::Caller)
            .cache_bytes(64 << 10)
            .run(run);
        let db = Db::open_with_io(Arc::new(io.clone()), "/store", options).unwrap();
        for n in 0..KEYS {
            db.put(n.to_be_bytes(), value(n)).unwrap();
        }
        db.flush().unwrap();
        for _ in 0..2 {
            assert_eq!(wrong_answers(&db), 0);
        }
        let is_run = |path: &std::path::PathBuf| path.extension().is_some_and(|of| of == "run");
        let file = io.files().into_iter().find(is_run).unwrap();
        let bytes = io.read(&file).unwrap();
        let values = bytes.windows(5).enumerate();
        for (at, _) in values.filter(|(_, bytes)| *bytes == b"value") {
            io.overwrite(&file, at, b"V");
        }
        assert!(
            wrong_answers(&db) > 0,
            "lookups trust what they have verified"
        );
        let inner = db.inner().unwrap();
        inner.scrub_round(&RateLimiter::new(None)).unwrap();
        assert!(inner.stats().scrub.damaged_pages > 10);
        assert_eq!(wrong_answers(&db), 0);
    }
}
