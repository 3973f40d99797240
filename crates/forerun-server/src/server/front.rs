//! The front: accepts connections and hands them out, keeps the cache's clock, and sees to the server's end.
//!
//! ```text
//!   listeners ──> accept ──> a ticket, or "too many" ──> the workers in turn
//!   each second ──> the cache's clock; memory given back, where the limit was lowered
//!   now and then ──> memory taken from the system before the workers need it
//!   asked to drain ──> close listeners ──> workers finish ──> snapshot ──> end
//! ```

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

use forerun_cache::Cache;
use forerun_core::sync::{thread::JoinHandle, time};
use mio::{Events, Poll, Token};

use crate::auth::UserFile;
use crate::net::Listener;

use super::connections::{Connections, Ticket};
use super::control::Control;
use super::keeper::Keeper;
use super::worker::{Handle, Message};

/// The token of what wakes the front; listeners have their number.
pub(crate) const WAKE: Token = Token(usize::MAX);
/// The cache's clock has this step.
const TICK: Duration = Duration::from_secs(1);
/// What is given back to the system between two looks at the listeners.
const SHRINK_BYTES: usize = 8 << 20;
/// How long to wait between two pieces of memory that are taken ahead, and at most where there was nothing to take.
const AHEAD: Duration = Duration::from_millis(2);
const AHEAD_MOST: Duration = Duration::from_millis(500);
/// How long accepting pauses when the system has no descriptor left.
const PAUSE: Duration = Duration::from_millis(20);
/// Connections accepted from one listener before the next has its turn.
const ACCEPTS_A_TURN: usize = 64;
/// What a connection too many is told, as by memcached.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// The front's state; [`Front::run`] is its thread.
pub(crate) struct Front {
    pub(crate) poll: Poll,
    pub(crate) listeners: Vec<Waiting>,
    pub(crate) workers: Vec<Handle>,
    pub(crate) threads: Vec<JoinHandle<io::Result<()>>>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) control: Control,
    pub(crate) cache: Arc<Cache>,
    pub(crate) keeper: Option<Keeper>,
    pub(crate) users: Option<Arc<UserFile>>,
    pub(crate) drain_timeout: Duration,
    pub(crate) next_worker: usize,
}

/// A listener, its address in words, and whether connections may wait there.
pub(crate) struct Waiting {
    pub(crate) listener: Listener,
    pub(crate) name: Arc<str>,
    pub(crate) ready: bool,
}

impl Front {
    /// Accepts until a drain is asked for, then sees the server to its end.
    ///
    /// # Errors
    /// The poll's, a worker's, or the snapshot's at the end.
    pub(crate) fn run(mut self) -> Result<(), super::Ended> {
        let served = self.serve();
        self.listeners.clear();
        self.connections.closed();
        let deadline = time::now() + self.drain_timeout;
        for worker in &self.workers {
            worker.send(Message::Drain(deadline));
        }
        let open = self.connections.count();
        tracing::info!(connections = open, "draining");
        let mut ended = served.map_err(super::Ended::Io);
        for thread in self.threads {
            ended = match thread.join() {
                Ok(done) => ended.and(done.map_err(super::Ended::Io)),
                Err(_) => Err(super::Ended::Panic),
            };
        }
        let kept = match &self.keeper {
            Some(keeper) => keeper.keep(&self.cache).map_err(super::Ended::Snapshot),
            None => Ok(()),
        };
        tracing::info!("ended");
        ended.and(kept)
    }

    /// Ends the workers of a server that does not start.
    pub(crate) fn abandon(self) {
        for worker in &self.workers {
            worker.send(Message::Drain(time::now()));
        }
        for thread in self.threads {
            // No worker has done anything that could have failed.
            let _ = thread.join();
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        let mut next_tick = time::now() + TICK;
        let mut paused = false;
        let mut shrinks = false;
        let mut ahead = AHEAD_MOST;
        while !self.control.drain_asked() {
            let busy = self.listeners.iter().any(|waiting| waiting.ready);
            let until_tick = next_tick.saturating_duration_since(time::now());
            let wait = match (busy, paused) {
                (true, false) => Duration::ZERO,
                _ if paused || shrinks => PAUSE.min(until_tick),
                _ => ahead.min(until_tick),
            };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                if let Some(waiting) = self.listeners.get_mut(event.token().0) {
                    waiting.ready = true;
                }
            }
            paused = self.accept();
            let ticks = time::now() >= next_tick;
            if ticks {
                self.cache.tick();
                next_tick = time::now() + TICK;
            }
            if ticks || shrinks {
                shrinks = self.cache.shrink(SHRINK_BYTES);
            }
            ahead = match !shrinks && self.cache.touch_ahead() {
                true => AHEAD,
                false => (2 * ahead).min(AHEAD_MOST),
            };
            if self.control.take_snapshot()
                && let Some(keeper) = &self.keeper
            {
                keeper.keep_beside(&self.cache);
            }
            if self.control.take_reload_users()
                && let Some(users) = &self.users
            {
                match users.reload() {
                    Ok(()) => tracing::info!("the file of users was read again"),
                    Err(error) => tracing::error!(%error, "the users stay as they were"),
                }
            }
        }
        Ok(())
    }

    /// Accepts from each listener that may have connections. True where the system refuses more for now.
    fn accept(&mut self) -> bool {
        let mut refused = false;
        for waiting in &mut self.listeners {
            for _ in 0..ACCEPTS_A_TURN {
                if !waiting.ready {
                    break;
                }
                match waiting.listener.accept() {
                    Ok((mut socket, peer)) => match self.connections.admit(peer, &waiting.name) {
                        Some(ticket) => {
                            let worker = self.next_worker % self.workers.len();
                            self.next_worker = worker + 1;
                            let tls = waiting.listener.tls;
                            hand_over(&self.workers[worker], socket, ticket, tls);
                        }
                        None => {
                            // It is told if it can be without waiting.
                            let _ = socket.write(TOO_MANY);
                        }
                    },
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => waiting.ready = false,
                        // The client left before it was let in.
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                        _ => {
                            self.connections.paused();
                            tracing::warn!(listener = %waiting.name, %error, "cannot accept");
                            refused = true;
                            break;
                        }
                    },
                }
            }
        }
        refused
    }
}

fn hand_over(worker: &Handle, socket: crate::net::Socket, ticket: Ticket, tls: bool) {
    worker.send(Message::Take {
        socket,
        ticket,
        tls,
    });
}
