//! How endpoints end.
//!
//! ```text
//!   close ──> flush ──> wait until the peer is gone ──> force ──> free what is left of the requests
//!               │                   │                     ^
//!               └───── time is over, or too many ─────────┘
//! ```
//!
//! A transport may tell the peer at once that the endpoint is gone, and may drop what the peer has
//! not taken yet. So an endpoint stays for a while after its user has closed it.
//!
//! Before 1.14, UCX may end the process when it drops messages. With these versions, an endpoint
//! that has something to send is not forced: it stays until its peer has taken everything or is
//! lost, or until the worker is dropped. It is flushed again before it is forced, because UCX may
//! have created messages of its own in the meantime. A worker that keeps too much for such
//! endpoints is full, and its user creates another for new ones.

#![allow(unsafe_code, reason = "calls UCX, which calls back")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forerun_core::sync::time;
use slab::Slab;

use crate::callbacks::{ErrorMark, Receive};
use crate::library::Functions;
use crate::sys::{self, RequestParam};

use super::{Endpoint, Outcome, Sent, Worker, outcome, reuse};

/// How long a dropped worker lets UCX end the requests of endpoints that are gone.
const FORCE_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a dropped worker waits for peers that have been sent everything.
const PEER_TIME_MAX: Duration = Duration::from_millis(100);
/// How long UCX may take to send messages of its own that it has created after the flush. It may
/// wait for a peer that has closed its endpoint, and answers no more.
const AGAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a worker asks whether a peer is gone.
const ASK_INTERVAL: Duration = Duration::from_millis(5);
/// Closed endpoints of a worker that wait for something.
const CLOSED_MAX: usize = 1024;
/// Closed endpoints of a worker that only wait for their peer. Each also holds what says whether
/// the peer is gone, for example a socket.
const SENT_MAX: usize = 64;
/// The bytes that UCX may keep for a worker's closed endpoints.
const UNSENT_BYTES_MAX: usize = 32 << 20;

/// Says whether an endpoint's peer is gone, or has received everything.
pub(crate) type IsGone = Box<dyn FnMut() -> bool + Send>;

/// A closed endpoint that is still there.
pub(super) struct Closed {
    /// The flush, until it has ended.
    flush: Option<NonNull<c_void>>,
    /// Whether it is the second flush.
    is_again: bool,
    /// The endpoint is forced to its end at this time, if it may be.
    until: Instant,
    is_gone: Option<IsGone>,
    unsent_bytes: usize,
}

impl Closed {
    fn may_be_forced(&self, can_drop_unsent: bool) -> bool {
        can_drop_unsent || self.flush.is_none()
    }
}

/// What remains of an endpoint that was forced to its end, until UCX has ended its requests.
pub(super) struct Forced {
    requests: Vec<NonNull<c_void>>,
    sent: VecDeque<Sent>,
    /// UCX may set it until the endpoint is gone.
    _mark: Arc<ErrorMark>,
}

impl<R: Receive> Worker<R> {
    /// Closes an endpoint. What was sent may still be delivered until the time. After that, the
    /// endpoint stays until `is_gone` returns true.
    pub(crate) fn close(&mut self, at: usize, until: Instant, is_gone: Option<IsGone>) {
        if !self.is_owned() {
            return;
        }
        let has_failed = self.error(at).is_some();
        let is_over = time::now() >= until;
        let can_drop_unsent = self.can_drop_unsent;
        let Some(endpoint) = self.endpoints.get_mut(at) else {
            return;
        };
        if endpoint.closed.is_some() {
            return;
        }
        if has_failed || (is_over && can_drop_unsent) {
            return self.force(at);
        }
        let unsent_bytes = endpoint.sent.iter().map(|one| one.message.len()).sum();
        let flush = match flush(self.functions, endpoint) {
            Outcome::Pending(request) => Some(request),
            Outcome::Done if is_gone.is_some() && !is_over => None,
            Outcome::Done | Outcome::Failed(_) => return self.force(at),
        };
        endpoint.closed = Some(Closed {
            flush,
            is_again: false,
            until,
            is_gone: is_gone.filter(|_| !is_over),
            unsent_bytes,
        });
        self.closed.push(at);
        self.bound_closed();
    }

    /// Whether closed endpoints still wait for something.
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether closed endpoints that may not be forced to their end keep too much.
    pub(crate) fn is_full(&self) -> bool {
        let closed_at = |at: &usize| self.endpoints.get(*at)?.closed.as_ref();
        let closed = self.closed.iter().filter_map(closed_at);
        let unsent = closed.filter(|closed| !closed.may_be_forced(self.can_drop_unsent));
        let (count, bytes) = unsent.fold((0, 0), |(count, bytes), closed| {
            (count + 1, bytes + closed.unsent_bytes)
        });
        count > CLOSED_MAX || bytes > UNSENT_BYTES_MAX
    }

    /// Forces the oldest closed endpoints to their end if they are too many.
    fn bound_closed(&mut self) {
        let closed_at = |at: &usize| self.endpoints.get(*at)?.closed.as_ref().map(|c| (*at, c));
        let (mut count, mut sent, mut unsent_bytes) = (0, 0, 0);
        let mut excess = Vec::new();
        for (at, closed) in self.closed.iter().rev().filter_map(closed_at) {
            count += 1;
            sent += usize::from(closed.flush.is_none());
            unsent_bytes += closed.unsent_bytes;
            let is_excess_sent = closed.flush.is_none() && sent > SENT_MAX;
            let is_excess = count > CLOSED_MAX || unsent_bytes > UNSENT_BYTES_MAX;
            if is_excess_sent || (is_excess && closed.may_be_forced(self.can_drop_unsent)) {
                excess.push(at);
            }
        }
        for at in excess {
            self.end(at);
        }
    }

    /// Ends an endpoint that has been flushed, if it may be forced to its end.
    fn end(&mut self, at: usize) {
        let Some(endpoint) = self.endpoints.get_mut(at) else {
            return;
        };
        // UCX may have had messages of its own to send since then.
        // Relaxed: UCX sets it in this thread, within a call of the worker.
        if !self.can_drop_unsent
            && endpoint.mark.status.load(Ordering::Relaxed) == sys::OK
            && endpoint
                .closed
                .as_ref()
                .is_some_and(|closed| !closed.is_again)
            && let Outcome::Pending(request) = flush(self.functions, endpoint)
            && let Some(closed) = &mut endpoint.closed
        {
            closed.flush = Some(request);
            closed.is_again = true;
            closed.until = time::now() + AGAIN_TIME_MAX;
            return;
        }
        self.force(at);
    }

    /// Ends an endpoint now. What is not delivered yet is lost.
    pub(super) fn force(&mut self, at: usize) {
        let Some(endpoint) = self.endpoints.try_remove(at) else {
            return;
        };
        self.sending.retain(|sending| *sending != at);
        self.closed.retain(|closed| *closed != at);
        let mut requests = Vec::new();
        requests.extend(endpoint.closed.and_then(|closed| closed.flush));
        let param = RequestParam {
            op_attr_mask: sys::OP_FLAGS,
            flags: sys::EP_CLOSE_FORCE,
            ..RequestParam::new()
        };
        // SAFETY: the endpoint was in the slab, so it is not closed yet. It was created for error
        // handling by peer, which forced closing requires.
        let result = unsafe { (self.functions.ucp_ep_close_nbx)(endpoint.handle, &param) };
        match outcome(result) {
            Outcome::Done => {}
            Outcome::Pending(request) => requests.push(request),
            // UCX may keep the endpoint and call back, so the mark must stay valid for ever.
            Outcome::Failed(_) => std::mem::forget(endpoint.mark.clone()),
        }
        self.forced.push(Forced {
            requests,
            sent: endpoint.sent,
            _mark: endpoint.mark,
        });
        self.end_forced();
    }

    /// Ends closed endpoints that have nothing to wait for.
    pub(super) fn end_closed(&mut self) {
        let now = time::now();
        let asks = now.saturating_duration_since(self.asked) >= ASK_INTERVAL;
        if asks {
            self.asked = now;
        }
        let mut ended = Vec::new();
        let mut is_any_sent = false;
        for at in &self.closed {
            let Some(Endpoint { mark, closed, .. }) = self.endpoints.get_mut(*at) else {
                continue;
            };
            let Some(closed) = closed else { continue };
            if let Some(request) = closed.flush
                && Self::has_ended(self.functions, request)
            {
                closed.flush = None;
                closed.unsent_bytes = 0;
                is_any_sent = true;
            }
            if now >= closed.until {
                // It may hold the control socket, which tells the peer that this side has left.
                closed.is_gone = None;
            }
            let is_gone = closed.flush.is_none()
                && match &mut closed.is_gone {
                    None => true,
                    Some(is_gone) => asks && is_gone(),
                };
            // Relaxed: UCX sets it in this thread, within a call of the worker.
            let has_failed = mark.status.load(Ordering::Relaxed) != sys::OK;
            let may_end = closed.is_again || closed.may_be_forced(self.can_drop_unsent);
            let is_over = now >= closed.until && may_end;
            if is_gone || is_over || has_failed {
                ended.push(*at);
            }
        }
        for at in ended {
            self.end(at);
        }
        if is_any_sent {
            self.bound_closed();
        }
    }

    pub(super) fn end_forced(&mut self) {
        let (functions, spare) = (self.functions, &mut self.spare);
        self.forced.retain_mut(|forced| {
            forced
                .requests
                .retain(|request| !Self::has_ended(functions, *request));
            let sent = std::mem::take(&mut forced.sent);
            for one in sent {
                if Self::has_ended(functions, one.request) {
                    reuse(spare, one.message);
                } else {
                    forced.sent.push_back(one);
                }
            }
            !forced.requests.is_empty() || !forced.sent.is_empty()
        });
    }

    /// Leaves the worker and all that UCX has of it in memory. Nothing calls UCX for it any more.
    fn leak(&mut self) {
        for closed in self
            .endpoints
            .iter_mut()
            .filter_map(|(_, e)| e.closed.as_mut())
        {
            // As in `end_closed`.
            closed.is_gone = None;
        }
        std::mem::forget(self.context.clone());
        std::mem::forget(std::mem::replace(&mut self.endpoints, Slab::new()));
        std::mem::forget(std::mem::take(&mut self.forced));
    }

    /// The closed endpoints that have something to deliver.
    fn unsent(&self) -> impl Iterator<Item = &Closed> {
        let closed_at = |at: &usize| self.endpoints.get(*at)?.closed.as_ref();
        let closed = self.closed.iter().filter_map(closed_at);
        closed.filter(|closed| closed.flush.is_some() && !closed.is_again)
    }

    /// Whether a closed endpoint has something to deliver, and time to do so.
    fn may_deliver(&self) -> bool {
        let now = time::now();
        self.unsent().any(|closed| now < closed.until)
    }
}

/// Asks UCX to tell when it has sent all that it has for an endpoint.
fn flush(functions: &Functions, endpoint: &Endpoint) -> Outcome {
    // SAFETY: the endpoint is in the slab, so it is open. The parameters are valid for the call.
    outcome(unsafe { (functions.ucp_ep_flush_nbx)(endpoint.handle, &RequestParam::new()) })
}

impl<R: Receive> Drop for Worker<R> {
    fn drop(&mut self) {
        // In a fork, the worker and its memory belong to the parent.
        if !self.is_owned() {
            return;
        }
        let begin = time::now();
        let elapsed = || time::now().saturating_duration_since(begin);
        if !self.can_drop_unsent {
            let open: Vec<usize> = self.endpoints.iter().map(|(at, _)| at).collect();
            for at in open {
                if self.endpoints[at].closed.is_none() {
                    self.close(at, begin, None);
                }
            }
        }
        while self.may_deliver() && elapsed() < self.drop_time {
            self.progress();
        }
        while self.closed.len() > self.unsent().count()
            && elapsed() < self.drop_time.min(PEER_TIME_MAX)
        {
            if !self.progress() {
                forerun_core::sync::thread::sleep(ASK_INTERVAL);
            }
        }
        if !self.can_drop_unsent && self.unsent().next().is_some() {
            return self.leak();
        }
        let open: Vec<usize> = self.endpoints.iter().map(|(at, _)| at).collect();
        for at in open {
            self.force(at);
        }
        // Nothing here waits for a peer.
        while !self.forced.is_empty() && elapsed() < self.drop_time.saturating_add(FORCE_TIME_MAX) {
            self.progress();
        }
        // SAFETY: the worker is used for the last time, and all its endpoints are closed. It may
        // still read messages whose requests have not ended: they are dropped after it.
        unsafe { (self.functions.ucp_worker_destroy)(self.handle) };
        // SAFETY: the pointer comes from `Box::into_raw`, and the callback that has it is gone.
        drop(unsafe { Box::from_raw(self.receiver) });
    }
}
