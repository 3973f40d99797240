//! The threads that flush and compact, and the same work done by the caller.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Inner;
use crate::clock::Expiry;
use crate::{Background, Error, Result};

/// How often what has expired is looked for: a sixteenth of the time to live, within these bounds.
const SOONEST_LOOK: Duration = Duration::from_secs(1);
const LATEST_LOOK: Duration = Duration::from_secs(60);

/// The threads of an open store; they end with it.
#[derive(Debug, Default)]
pub(super) struct Workers(Vec<JoinHandle<()>>);

impl Workers {
    /// Starts them, if the options ask for threads.
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Workers> {
        if inner.options.background == Background::Caller {
            return Ok(Workers::default());
        }
        let store = Arc::downgrade(inner);
        inner.trash.gather(Arc::new(move || {
            if let Some(inner) = store.upgrade() {
                inner.work.nudge();
            }
        }));
        let mut workers = Workers::default();
        for (name, step) in [
            (
                "forerun-flush",
                Inner::flush_one as fn(&Inner) -> Result<bool>,
            ),
            ("forerun-compact", Inner::compact_one),
        ] {
            let worker = Arc::clone(inner);
            let started = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || worker.work_on(name, step));
            match started {
                Ok(thread) => workers.0.push(thread),
                Err(error) => {
                    inner.work.stop();
                    workers.join();
                    return Err(Error::io("start a thread for", &inner.path, error));
                }
            }
        }
        Ok(workers)
    }

    /// Waits for them to end. They were asked to.
    pub(super) fn join(&mut self) {
        for thread in self.0.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}

impl Inner {
    /// Does one kind of work whenever there is some, until the store is closed.
    fn work_on(&self, name: &str, step: fn(&Inner) -> Result<bool>) {
        while let Some(turn) = self.work.turn() {
            let worked = self.guard("working in the background", || {
                self.trash.collect();
                step(self)
            });
            match worked {
                Ok(true) => self.work.note(None),
                // Time passes without a turn.
                Ok(false) => self.work.wait(turn, self.expiry_looks()),
                Err(Error::Closed) => break,
                Err(error @ Error::Poisoned { .. }) => {
                    // It panicked, and would again.
                    tracing::error!(%error, path = %self.path.display(), "{name} ends");
                    self.work.note_panicked(error);
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, path = %self.path.display(), "{name} failed, and will try again");
                    self.work.note(Some(error));
                    if let Some(turn) = self.work.turn() {
                        self.work.wait(turn, None);
                    }
                }
            }
        }
    }

    /// How often what has expired is looked for, if anything does.
    fn expiry_looks(&self) -> Option<Duration> {
        let spaces = self.spaces.load();
        let ttl = spaces.iter().filter_map(|space| space.expiry.as_ref());
        let shortest = Duration::from_secs(ttl.map(Expiry::ttl).min()?);
        Some((shortest / 16).clamp(SOONEST_LOOK, LATEST_LOOK))
    }

    /// Does all the work there is, in this thread.
    pub(super) fn work_off(&self) -> Result<()> {
        self.guard("flushing and compacting", || {
            while self.flush_one()? || self.compact_one()? {}
            Ok(())
        })?;
        self.work.note(None);
        Ok(())
    }
}
