//! Polls connections over UCX before a call sleeps.

use std::time::{Duration, Instant};

use forerun_core::sync::time;

use super::connection::Connection;
use crate::wait::Readiness;

/// How long a call polls UCX before it sleeps. A message arrives in less time than the system needs
/// to wake a thread.
const POLL_TIME: Duration = Duration::from_micros(20);
/// How long a call sleeps while UCX cannot report what it waits for.
const BUSY_INTERVAL: Duration = Duration::from_millis(1);

/// What polling has found.
pub(crate) enum Polled {
    /// What each connection is ready for.
    Ready(Vec<Readiness>),
    /// Wait, until this time at most.
    Wait(Instant),
}

/// Polls the connections over UCX for a while. Without such connections, or if none is ready, the
/// caller waits for the descriptors.
pub(crate) fn poll<'a>(
    connections: impl Iterator<Item = &'a Connection> + Clone,
    until: Instant,
) -> Polled {
    let with_ucx = || connections.clone().filter_map(Connection::ucx);
    if with_ucx().next().is_none() {
        return Polled::Wait(until);
    }
    let begin = time::now();
    loop {
        let mut is_any_ready = false;
        let ready_of = |connection: &Connection| {
            let is_ready = connection
                .ucx()
                .is_some_and(|ucx| ucx.poll(connection.has_output()));
            is_any_ready |= is_ready;
            Readiness {
                read: is_ready,
                write: false,
            }
        };
        let ready: Vec<Readiness> = connections.clone().map(ready_of).collect();
        if is_any_ready {
            return Polled::Ready(ready);
        }
        if time::now().saturating_duration_since(begin) >= POLL_TIME {
            break;
        }
    }
    let mut is_armed = true;
    for ucx in with_ucx() {
        is_armed &= ucx.arm();
    }
    Polled::Wait(if is_armed {
        until
    } else {
        until.min(time::now() + BUSY_INTERVAL)
    })
}
