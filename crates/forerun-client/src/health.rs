//! Which servers are ejected, and until when.
//!
//! ```text
//!            failures_to_eject failed calls              retry_interval
//!   healthy ────────────────────────────────> ejected ────────────────────> one call tries it
//!      ^                                          ^                             │        │
//!      │                                          └──────── it fails ───────────┘        │
//!      └───────────────────────────────────────────────────────── it answers ────────────┘
//! ```
//!
//! Calls that run at the same time fail together. Only a call that began after the last failure was
//! counted is another one.

use std::time::{Duration, Instant};

/// The state of all servers.
#[derive(Debug)]
pub(crate) struct Health {
    servers: Vec<ServerHealth>,
    failures_to_eject: u32,
    retry_interval: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct ServerHealth {
    /// Failed calls, each of which began after the one before had failed.
    failures: u32,
    /// When the last one had failed.
    failed_at: Option<Instant>,
    /// When a call may try an ejected server.
    retry_at: Option<Instant>,
}

impl Health {
    pub(crate) fn new(servers: usize, failures_to_eject: u32, retry_interval: Duration) -> Health {
        Health {
            servers: vec![ServerHealth::default(); servers],
            failures_to_eject,
            retry_interval,
        }
    }

    /// Whether a call may ask the server now. A call that may try an ejected server must report the
    /// result, because no other call tries the server for another interval.
    ///
    /// # Errors
    /// The time until the next try.
    pub(crate) fn admit(&mut self, server: usize, now: Instant) -> Result<(), Duration> {
        let retry_interval = self.retry_interval;
        match &mut self.servers[server].retry_at {
            None => Ok(()),
            Some(at) if now >= *at => {
                *at = now + retry_interval;
                Ok(())
            }
            Some(at) => Err(*at - now),
        }
    }

    /// Whether a server is ejected, and no call may try it now.
    pub(crate) fn is_ejected(&self, server: usize, now: Instant) -> bool {
        self.servers[server].retry_at.is_some_and(|at| now < at)
    }

    /// Records the result of a call that began at `start`.
    pub(crate) fn record(&mut self, server: usize, is_alive: bool, start: Instant, now: Instant) {
        let health = &mut self.servers[server];
        if is_alive {
            *health = ServerHealth::default();
            return;
        }
        if health.failed_at.is_some_and(|at| start < at) {
            return;
        }
        health.failed_at = Some(now);
        health.failures = health.failures.saturating_add(1);
        if health.failures >= self.failures_to_eject && health.retry_at.is_none_or(|at| at <= now) {
            health.retry_at = Some(now + self.retry_interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_ejected_tried_by_one_call_and_let_in() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = Health::new(2, 2, Duration::from_secs(10));
        health.record(0, false, at(0), at(0));
        assert_eq!(health.admit(0, at(0)), Ok(()));
        health.record(0, true, at(0), at(0));
        health.record(0, false, at(0), at(0));
        assert!(!health.is_ejected(0, at(0)), "an answer came between");
        health.record(0, false, at(1), at(1));
        assert_eq!(health.admit(0, at(3)), Err(Duration::from_secs(8)));
        assert_eq!(health.admit(1, at(3)), Ok(()));
        assert!(health.is_ejected(0, at(3)) && !health.is_ejected(0, at(11)));
        assert_eq!(health.admit(0, at(11)), Ok(()), "the one that tries");
        assert_eq!(health.admit(0, at(11)), Err(Duration::from_secs(10)));
        health.record(0, false, at(12), at(12));
        assert_eq!(health.admit(0, at(12)), Err(Duration::from_secs(9)));
        assert_eq!(health.admit(0, at(21)), Ok(()));
        health.record(0, true, at(21), at(21));
        assert_eq!(health.admit(0, at(21)), Ok(()));
    }

    #[test]
    fn calls_that_fail_together_count_once() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut health = Health::new(1, 2, Duration::from_secs(2));
        for end in 10..20 {
            health.record(0, false, at(0), at(end));
        }
        assert!(!health.is_ejected(0, at(20)), "it is one incident");
        // A call that began before the failure was counted, and ended after all others.
        health.record(0, false, at(9), at(500));
        assert!(!health.is_ejected(0, at(500)));
        health.record(0, false, at(10), at(501));
        assert!(health.is_ejected(0, at(501)));
        // The call that tries the ejected server is not one of those that failed before.
        assert_eq!(health.admit(0, at(2501)), Ok(()));
        health.record(0, false, at(2501), at(2502));
        assert!(health.is_ejected(0, at(2503)));
    }
}
