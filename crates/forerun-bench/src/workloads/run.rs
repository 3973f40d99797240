//! One run: clients on threads of their own, until the time is over.
//!
//! The threads are not pinned to cores: there are more of them than cores, and the engine's
//! background threads need cores, too.

use super::latencies::{Call, Latencies};
use super::pace::Pace;
use crate::threads::Cores;
use anyhow::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest sleep before a client looks whether the run is over.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// The latencies of each class, by its name.
pub(super) type Classes = Vec<(&'static str, Latencies)>;

/// A client, which runs until [`Run::is_over`].
pub(super) type Client<'a> = Box<dyn Fn(&Run) -> Result<Classes> + Sync + 'a>;

/// The time of a run.
pub(super) struct Run {
    /// The start of the plot over time.
    pub origin: Instant,
    pub begin: Instant,
    /// When it is over; `None` if a client decides.
    pub end: Option<Instant>,
    stopped: AtomicBool,
}

impl Run {
    /// A run that begins now and ends after `duration`, or when a client stops it.
    pub(super) fn new(origin: Instant, duration: Option<Duration>) -> Run {
        let begin = Instant::now();
        Run {
            origin,
            begin,
            end: duration.map(|duration| begin + duration),
            stopped: AtomicBool::new(false),
        }
    }

    /// Whether clients should return.
    pub(super) fn is_over(&self) -> bool {
        // Relaxed: nothing else is read because of it.
        self.stopped.load(Ordering::Relaxed) || self.end.is_some_and(|end| end <= Instant::now())
    }

    /// Ends the run early.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Waits until `at`, if that is not past. Returns false if the run is over before.
    pub(super) fn wait_until(&self, at: Instant) -> bool {
        loop {
            if self.is_over() {
                return false;
            }
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let until_end = self
                .end
                .map(|end| end.saturating_duration_since(Instant::now()));
            std::thread::sleep(left.min(SLEEP_MAX).min(until_end.unwrap_or(left)));
        }
    }

    /// Runs the clients, each on its own thread, and returns their classes; those of one name are
    /// added up. They ran for as long as the run, unless they say otherwise. The first error ends
    /// the run.
    pub(super) fn clients(&self, clients: &[Client<'_>]) -> Result<Classes> {
        let results = Cores::any().run(clients.len(), |client, ready| {
            ready.wait();
            wake_up_on_time();
            let result = clients[client](self);
            if result.is_err() {
                self.stop();
            }
            result
        })?;
        let elapsed = self.begin.elapsed();
        let mut classes = Classes::new();
        for (name, mut latencies) in results.into_iter().flatten() {
            if latencies.elapsed.is_zero() {
                latencies.elapsed = elapsed;
            }
            match classes.iter_mut().find(|(other, _)| *other == name) {
                Some((_, all)) => {
                    all.add(&latencies)?;
                    all.clients += 1;
                }
                None => classes.push((name, latencies)),
            }
        }
        Ok(classes)
    }

    /// Makes a client's calls until the run is over, `per_second` of them if it is paced.
    pub(super) fn repeat<T>(
        &self,
        per_second: Option<f64>,
        latencies: &mut Latencies,
        mut client: impl Operations<Operation = T>,
    ) -> Result<()> {
        let mut pace = per_second.map(|per_second| Pace::new(self.begin, per_second));
        while !self.is_over() {
            let operation = client.prepare()?;
            let due = pace.as_mut().map(Pace::next);
            if let Some(due) = due
                && !self.wait_until(due)
            {
                return self.count_unbegun(due, pace, latencies);
            }
            let began = Instant::now();
            client.call(&operation)?;
            let call = Call {
                intended: due.unwrap_or(began),
                began,
                ended: Instant::now(),
            };
            latencies.record(call)?;
            client.finish(operation, call, latencies)?;
        }
        match &mut pace {
            None => Ok(()),
            Some(next) => self.count_unbegun(next.next(), pace, latencies),
        }
    }

    /// Counts the calls that were due before the end, from `due` on. A client that a stall kept
    /// until the end has some.
    fn count_unbegun(
        &self,
        mut due: Instant,
        pace: Option<Pace>,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let now = Instant::now();
        let end = self.end.map_or(now, |end| end.min(now));
        let Some(mut pace) = pace else {
            return Ok(());
        };
        while due < end {
            latencies.record_unbegun(due, now)?;
            due = pace.next();
        }
        Ok(())
    }
}

/// The operations of one client.
pub(super) trait Operations {
    /// An operation, with what it needs.
    type Operation;

    /// Draws the next operation, before it is due.
    fn prepare(&mut self) -> Result<Self::Operation>;

    /// Calls the store. Only this is timed.
    fn call(&mut self, operation: &Self::Operation) -> Result<()>;

    /// Checks the answer, and counts keys and bytes.
    fn finish(
        &mut self,
        operation: Self::Operation,
        call: Call,
        latencies: &mut Latencies,
    ) -> Result<()>;
}

/// Lets the current thread's sleeps end when they should, not up to 50 us later, which is Linux's
/// default.
fn wake_up_on_time() {
    #[cfg(target_os = "linux")]
    {
        // If it is refused, latencies of paced clients are up to 50 us longer.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

#[cfg(test)]
mod tests {
    use super::super::latencies::Kind;
    use super::*;

    /// Its first call takes a while.
    struct SlowOnce {
        calls: u64,
        slow: Duration,
    }

    impl Operations for &mut SlowOnce {
        type Operation = ();

        fn prepare(&mut self) -> Result<()> {
            Ok(())
        }

        fn call(&mut self, (): &()) -> Result<()> {
            if self.calls == 0 {
                std::thread::sleep(self.slow);
            }
            self.calls += 1;
            Ok(())
        }

        fn finish(&mut self, (): (), _: Call, latencies: &mut Latencies) -> Result<()> {
            latencies.keys += 1;
            Ok(())
        }
    }

    fn measured(slow: Duration, per_second: Option<f64>, end: Duration) -> (u64, Latencies) {
        let run = Run::new(Instant::now(), Some(end));
        let mut client = SlowOnce { calls: 0, slow };
        let mut latencies = Latencies::new(Kind::Write, run.origin).unwrap();
        run.repeat(per_second, &mut latencies, &mut client).unwrap();
        (client.calls, latencies)
    }

    #[test]
    fn a_stall_delays_the_operations_that_were_due_meanwhile() {
        let (slow, end) = (Duration::from_millis(200), Duration::from_millis(400));
        let (calls, latencies) = measured(slow, Some(100.0), end);
        assert_eq!(calls + latencies.unbegun, 40);
        assert_eq!(latencies.calls(), 40);
        assert!(latencies.longest_call >= slow);
        // Twenty operations were due during the call, the tenth of them after 100 ms.
        assert!(latencies.quantile_us(0.76) >= 95e3);
        // An unpaced client waits once.
        let (calls, latencies) = measured(slow, None, end);
        assert!(calls > 40 && latencies.unbegun == 0);
        assert!(latencies.quantile_us(0.76) < 95e3);
    }

    #[test]
    fn operations_that_a_stall_kept_from_beginning_count_with_their_wait() {
        let (slow, end) = (Duration::from_millis(300), Duration::from_millis(200));
        let (calls, latencies) = measured(slow, Some(100.0), end);
        assert_eq!((calls, latencies.unbegun, latencies.calls()), (1, 19, 20));
        assert!(latencies.quantile_us(0.01) >= 100e3);
    }

    #[test]
    fn an_error_ends_the_run_and_classes_of_one_name_are_added_up() {
        let run = Run::new(Instant::now(), None);
        let waits: Client<'_> = Box::new(|run: &Run| {
            while !run.is_over() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(vec![("puts", Latencies::new(Kind::Write, run.origin)?)])
        });
        let fails: Client<'_> = Box::new(|_: &Run| anyhow::bail!("a full disk"));
        let error = run.clients(&[waits, fails]).err().unwrap();
        assert!(error.to_string().contains("a full disk"));
        let run = Run::new(Instant::now(), Some(Duration::ZERO));
        let client = || -> Client<'_> {
            Box::new(|run: &Run| {
                let mut latencies = Latencies::new(Kind::Write, run.origin)?;
                latencies.keys = 3;
                Ok(vec![("puts", latencies)])
            })
        };
        let classes = run.clients(&[client(), client()]).unwrap();
        assert_eq!(classes.len(), 1);
        let (name, latencies) = &classes[0];
        assert_eq!((*name, latencies.keys, latencies.clients), ("puts", 6, 2));
    }
}
