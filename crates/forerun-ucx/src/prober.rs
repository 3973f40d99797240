//! Finds out whether a worker still receives messages.
//!
//! ```text
//!   queue of a worker in shared memory    │ filled │ filled │ reserved │ filled │ filled │ …
//!                                                               ^ UCX waits here, for ever
//! ```
//!
//! A peer in shared memory reserves a place in the worker's queue, fills it, and marks it as
//! filled. If its process is killed in between, the worker receives nothing from then on, from no
//! peer. Neither UCX nor the other peers notice. So after a peer has ended without a word, the hub
//! sends itself a message through the same queue, from another worker of this process.

use std::time::{Duration, Instant};

use forerun_core::sync::time;

use crate::callbacks::Receive;
use crate::channel::Header;
use crate::context::Context;
use crate::error::UcxError;
use crate::worker::Worker;

/// How long the message may take. A peer that is alive may have lost its core while it fills its
/// place.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// After that time, the worker must have had nothing to do for this many calls.
const IDLE_CALLS: u32 = 16;

/// Receives nothing: nobody knows its address.
struct Nothing;

impl Receive for Nothing {
    fn message(&mut self, _: &[u8], _: Option<&[u8]>) {}
}

/// What is known about a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probed {
    /// The message is on its way.
    Waiting,
    /// The worker receives nothing.
    Stuck,
}

/// Sends messages to a worker of this process.
pub(crate) struct Prober {
    worker: Worker<Nothing>,
    endpoint: usize,
    until: Instant,
    idle_calls: u32,
}

impl Prober {
    /// Prepares to send messages to the worker with this address.
    ///
    /// # Errors
    /// [`UcxError::Call`], [`UcxError::Forked`].
    pub(crate) fn new(context: &Context, address: &[u8]) -> Result<Prober, UcxError> {
        let mut worker = Worker::new(context, Nothing)?;
        worker.drop_time = Duration::ZERO;
        let endpoint = worker.connect(address, 0)?;
        Ok(Prober {
            worker,
            endpoint,
            until: time::now(),
            idle_calls: 0,
        })
    }

    /// Sends a message with this key.
    ///
    /// # Errors
    /// As [`Worker::send`].
    pub(crate) fn send(&mut self, key: u64) -> Result<(), UcxError> {
        self.until = time::now() + ANSWER_TIME;
        self.idle_calls = 0;
        let mut message = self.worker.message();
        message.header = Header {
            key,
            number: 0,
            consumed: 0,
        }
        .to_bytes();
        self.worker.send(self.endpoint, message)
    }

    /// Lets UCX send the message, which has not arrived yet. `has_worked` says whether the other
    /// worker had something to do.
    pub(crate) fn progress(&mut self, has_worked: bool) -> Probed {
        self.worker.progress();
        if has_worked || time::now() < self.until {
            self.idle_calls = 0;
            return Probed::Waiting;
        }
        self.idle_calls += 1;
        if self.idle_calls > IDLE_CALLS {
            Probed::Stuck
        } else {
            Probed::Waiting
        }
    }
}
