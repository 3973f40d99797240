//! A UCP worker and its endpoints.
//!
//! ```text
//!   send ──> UCX takes the bytes at once ──> the message is reused
//!       └──> UCX needs the bytes for longer ──> the endpoint keeps the message until the request ends
//!   progress ──> UCX calls on_message ──> Receive::message(header, data)
//!            └──> UCX calls on_error  ──> ErrorMark
//!   close    ──> see closing.rs
//! ```
//!
//! A worker is created for threads that take turns (`UCS_THREAD_MODE_SERIALIZED`), and every method
//! that calls UCX takes `&mut self`. UCX calls back only from within such a call, so a callback
//! never runs beside another use of the worker.

#![allow(unsafe_code, reason = "calls UCX, which calls back")]

mod closing;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI8, Ordering};
use std::time::{Duration, Instant};

use forerun_core::sync::time;
use slab::Slab;

use crate::callbacks::{ErrorMark, Receive, on_error, on_message};
use crate::context::Context;
use crate::error::UcxError;
use crate::library::{self, Functions};
use crate::message::{HEADER_BYTES, Message};
use crate::sys::{
    self, EndpointHandle, EndpointParams, ErrorHandler, HandlerParam, RequestParam, SocketAddress,
    Status, StatusPointer, WorkerHandle, WorkerParams,
};

use closing::{Closed, Forced};

/// The active message's number. A worker has one handler.
const MESSAGE_ID: u32 = 0;
/// Messages that a worker keeps for reuse.
const SPARE_MESSAGES_MAX: usize = 64;
/// How long a dropped worker waits until closed endpoints have delivered what was sent, unless its
/// user chooses another time.
const DROP_TIME: Duration = Duration::from_secs(1);

pub(crate) use closing::IsGone;

/// A message that UCX still reads, with its request.
struct Sent {
    request: NonNull<c_void>,
    message: Box<Message>,
}

struct Endpoint {
    /// The number that its user gave it.
    tag: usize,
    handle: *mut EndpointHandle,
    mark: Arc<ErrorMark>,
    sent: VecDeque<Sent>,
    /// Set once its user has closed it.
    closed: Option<Closed>,
}

/// A UCP worker whose messages go to `R`.
pub(crate) struct Worker<R: Receive> {
    context: Context,
    functions: &'static Functions,
    handle: *mut WorkerHandle,
    /// From `Box::into_raw`: UCX's callback has the same pointer.
    receiver: *mut RefCell<R>,
    descriptor: RawFd,
    endpoints: Slab<Endpoint>,
    forced: Vec<Forced>,
    /// The endpoints with messages that UCX still reads.
    sending: Vec<usize>,
    /// The numbers of the endpoints whose messages UCX has sent since the last look.
    pub(crate) emptied: Vec<usize>,
    /// The endpoints that their users have closed, in that order.
    closed: Vec<usize>,
    /// When the worker last asked whether the peers of closed endpoints are gone.
    asked: Instant,
    /// How long dropping the worker may wait for closed endpoints.
    pub(crate) drop_time: Duration,
    /// Whether an endpoint may be forced to its end before UCX has sent everything.
    can_drop_unsent: bool,
    failures: Arc<AtomicBool>,
    #[expect(
        clippy::vec_box,
        reason = "UCX has a message's address until it is sent"
    )]
    spare: Vec<Box<Message>>,
}

// SAFETY: UCX created the worker for threads that take turns, and every call into UCX goes through
// `&mut self`. The pointers inside belong to the worker alone; `R` moves with it.
unsafe impl<R: Receive + Send> Send for Worker<R> {}

/// The result of a call that returns a `ucs_status_ptr_t`.
enum Outcome {
    Done,
    Failed(Status),
    Pending(NonNull<c_void>),
}

fn outcome(result: StatusPointer) -> Outcome {
    let number = result as isize;
    match NonNull::new(result) {
        None => Outcome::Done,
        // Errors are the highest addresses, from UCS_ERR_LAST to -1.
        Some(_) if (isize::from(sys::ERR_LAST)..0).contains(&number) => {
            Outcome::Failed(number as Status)
        }
        Some(request) => Outcome::Pending(request),
    }
}

impl<R: Receive> Worker<R> {
    /// Creates a worker in this process.
    ///
    /// # Errors
    /// [`UcxError::Call`], [`UcxError::Forked`].
    pub(crate) fn new(context: &Context, receiver: R) -> Result<Worker<R>, UcxError> {
        let functions = context.functions();
        let params = WorkerParams {
            field_mask: sys::WORKER_PARAM_THREAD_MODE,
            thread_mode: sys::THREAD_MODE_SERIALIZED,
            cpu_mask: [0; 16],
            events: 0,
            user_data: ptr::null_mut(),
            event_fd: -1,
            flags: 0,
            name: ptr::null(),
            am_alignment: 0,
            client_id: 0,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the context is open in this process and stays so while the worker has its clone.
        // The parameters are valid for the call, and the mask names a field that is set.
        let status =
            unsafe { (functions.ucp_worker_create)(context.handle()?, &params, &mut handle) };
        functions.check("ucp_worker_create", status)?;
        // From here on, dropping the worker destroys it.
        let mut worker = Worker {
            context: context.clone(),
            functions,
            handle,
            receiver: Box::into_raw(Box::new(RefCell::new(receiver))),
            descriptor: -1,
            endpoints: Slab::new(),
            forced: Vec::new(),
            sending: Vec::new(),
            emptied: Vec::new(),
            closed: Vec::new(),
            asked: time::now(),
            drop_time: DROP_TIME,
            can_drop_unsent: library::can_drop_unsent(functions),
            failures: Arc::default(),
            spare: Vec::new(),
        };
        let handler = HandlerParam {
            field_mask: sys::AM_HANDLER_ID
                | sys::AM_HANDLER_FLAGS
                | sys::AM_HANDLER_CB
                | sys::AM_HANDLER_ARG,
            id: MESSAGE_ID,
            flags: sys::AM_FLAG_WHOLE_MSG,
            cb: Some(on_message::<R>),
            arg: worker.receiver.cast(),
        };
        // SAFETY: the worker is valid. The callback has the type that UCX calls, and its argument
        // is valid until the worker is destroyed.
        let status = unsafe { (functions.ucp_worker_set_am_recv_handler)(worker.handle, &handler) };
        functions.check("ucp_worker_set_am_recv_handler", status)?;
        // SAFETY: the worker is valid, and the function writes a number if it succeeds.
        let status =
            unsafe { (functions.ucp_worker_get_efd)(worker.handle, &mut worker.descriptor) };
        functions.check("ucp_worker_get_efd", status)?;
        Ok(worker)
    }

    /// What receives the messages.
    pub(crate) fn receiver(&mut self) -> &mut R {
        // SAFETY: the pointer is valid until the worker is dropped. `&mut self` shows that no call
        // into UCX is running, so no callback uses the receiver.
        unsafe { &mut *self.receiver }.get_mut()
    }

    /// Whether the calling process is the one that created the worker.
    pub(crate) fn is_owned(&self) -> bool {
        self.context.owner().is_this_process()
    }

    fn check_owner(&self) -> Result<(), UcxError> {
        Ok(self.context.owner().check()?)
    }

    /// The descriptor that becomes readable after [`arm`](Self::arm). The worker closes it.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: UCX keeps the descriptor open until the worker is destroyed.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }

    /// The address by which other workers reach this one.
    ///
    /// # Errors
    /// [`UcxError::Call`], [`UcxError::Forked`].
    pub(crate) fn address(&mut self) -> Result<Vec<u8>, UcxError> {
        self.check_owner()?;
        let (mut address, mut len_bytes) = (ptr::null_mut(), 0);
        // SAFETY: the worker is valid, and the function writes a pointer and a length.
        let status = unsafe {
            (self.functions.ucp_worker_get_address)(self.handle, &mut address, &mut len_bytes)
        };
        self.functions.check("ucp_worker_get_address", status)?;
        // SAFETY: UCX has written this many bytes there, and they are its own until they are
        // released below.
        let copy = unsafe { slice::from_raw_parts(address.cast::<u8>(), len_bytes) }.to_vec();
        // SAFETY: the address comes from this worker and is not used again.
        unsafe { (self.functions.ucp_worker_release_address)(self.handle, address) };
        Ok(copy)
    }

    /// Creates an endpoint to the worker with this address. UCX trusts the address to be well
    /// formed, so it must come from a peer that has shown its right to connect.
    ///
    /// # Errors
    /// [`UcxError::Call`], for example if no transport reaches the address;
    /// [`UcxError::Forked`].
    pub(crate) fn connect(&mut self, address: &[u8], tag: usize) -> Result<usize, UcxError> {
        self.check_owner()?;
        let mark = Arc::new(ErrorMark {
            status: AtomicI8::new(sys::OK),
            any: self.failures.clone(),
        });
        let no_address = || SocketAddress {
            addr: ptr::null(),
            addrlen: 0,
        };
        let params = EndpointParams {
            field_mask: sys::EP_PARAM_REMOTE_ADDRESS
                | sys::EP_PARAM_ERR_HANDLING_MODE
                | sys::EP_PARAM_ERR_HANDLER,
            address: address.as_ptr().cast(),
            err_mode: sys::ERR_HANDLING_MODE_PEER,
            err_handler: ErrorHandler {
                cb: Some(on_error),
                arg: Arc::as_ptr(&mark).cast_mut().cast(),
            },
            user_data: ptr::null_mut(),
            flags: 0,
            sockaddr: no_address(),
            conn_request: ptr::null_mut(),
            name: ptr::null(),
            local_sockaddr: no_address(),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the worker is valid, and so are the parameters for the call. The callback's
        // argument lives until the endpoint is gone: `Endpoint` and then `Forced` hold it.
        let status = unsafe { (self.functions.ucp_ep_create)(self.handle, &params, &mut handle) };
        self.functions.check("ucp_ep_create", status)?;
        Ok(self.endpoints.insert(Endpoint {
            tag,
            handle,
            mark,
            sent: VecDeque::new(),
            closed: None,
        }))
    }

    /// An empty message.
    pub(crate) fn message(&mut self) -> Box<Message> {
        self.spare.pop().unwrap_or_default()
    }

    /// Sends a message. Messages of one endpoint arrive in their order.
    ///
    /// # Errors
    /// [`UcxError::Closed`], [`UcxError::Call`], [`UcxError::Forked`].
    pub(crate) fn send(&mut self, at: usize, mut message: Box<Message>) -> Result<(), UcxError> {
        self.check_owner()?;
        let endpoint = self.endpoints.get_mut(at).ok_or(UcxError::Closed)?;
        // Relaxed: UCX sets it in this thread, within a call of the worker.
        if endpoint.mark.status.load(Ordering::Relaxed) != sys::OK {
            return Err(UcxError::Closed);
        }
        let (buffer, count, datatype) = message.payload();
        let param = RequestParam {
            op_attr_mask: sys::OP_DATATYPE | sys::OP_FLAGS | sys::OP_MEMORY_TYPE,
            flags: sys::AM_SEND_EAGER,
            datatype,
            memory_type: sys::MEMORY_TYPE_HOST,
            ..RequestParam::new()
        };
        // SAFETY: the endpoint is open. The header and the payload belong to the boxed message,
        // which is not changed until UCX has ended the request: it is reused here if there is no
        // request, and kept in `Sent` otherwise.
        let result = unsafe {
            (self.functions.ucp_am_send_nbx)(
                endpoint.handle,
                MESSAGE_ID,
                message.header.as_ptr().cast(),
                HEADER_BYTES,
                buffer,
                count,
                &param,
            )
        };
        match outcome(result) {
            Outcome::Done => {
                reuse(&mut self.spare, message);
                Ok(())
            }
            Outcome::Failed(status) => {
                reuse(&mut self.spare, message);
                self.functions.check("ucp_am_send_nbx", status)
            }
            Outcome::Pending(request) => {
                if endpoint.sent.is_empty() {
                    self.sending.push(at);
                }
                endpoint.sent.push_back(Sent { request, message });
                Ok(())
            }
        }
    }

    /// Whether UCX has messages of an endpoint that it has not sent yet.
    pub(crate) fn is_sending(&self, at: usize) -> bool {
        let endpoint = self.endpoints.get(at);
        endpoint.is_some_and(|endpoint| !endpoint.sent.is_empty())
    }

    /// How many messages of an endpoint UCX has not sent yet.
    #[cfg(test)]
    pub(crate) fn unsent_count(&self, at: usize) -> usize {
        let endpoint = self.endpoints.get(at);
        endpoint.map_or(0, |endpoint| endpoint.sent.len())
    }

    /// Memory of the messages that UCX has not sent yet, without shared bytes.
    pub(crate) fn unsent_bytes(&self, at: usize) -> usize {
        let sent = self.endpoints.get(at).map(|endpoint| &endpoint.sent);
        sent.map_or(0, |sent| {
            sent.iter().map(|one| one.message.memory_bytes()).sum()
        })
    }

    /// The error of an endpoint, if it has failed.
    pub(crate) fn error(&self, at: usize) -> Option<UcxError> {
        let endpoint = self.endpoints.get(at)?;
        // Relaxed: as in `send`.
        let status = endpoint.mark.status.load(Ordering::Relaxed);
        self.functions
            .check("the connection over UCX", status)
            .err()
    }

    /// Whether any endpoint has failed since the last call.
    pub(crate) fn take_failures(&mut self) -> bool {
        // Relaxed: as in `send`.
        self.failures.load(Ordering::Relaxed) && self.failures.swap(false, Ordering::Relaxed)
    }

    /// Lets UCX send and receive. Returns whether it had something to do.
    pub(crate) fn progress(&mut self) -> bool {
        if !self.is_owned() {
            return false;
        }
        // SAFETY: the worker is valid, and the receiver is not borrowed.
        let worked = unsafe { (self.functions.ucp_worker_progress)(self.handle) } != 0;
        if !self.sending.is_empty() {
            self.end_sent();
        }
        if !self.closed.is_empty() {
            self.end_closed();
        }
        if !self.forced.is_empty() {
            self.end_forced();
        }
        worked
    }

    /// Prepares to wait for the descriptor. False means that there is something to do first, or
    /// that UCX can send no more until a peer takes what it was sent.
    ///
    /// # Errors
    /// [`UcxError::Call`], [`UcxError::Forked`].
    pub(crate) fn arm(&mut self) -> Result<bool, UcxError> {
        self.check_owner()?;
        // SAFETY: the worker is valid.
        match unsafe { (self.functions.ucp_worker_arm)(self.handle) } {
            sys::ERR_BUSY => Ok(false),
            status => self
                .functions
                .check("ucp_worker_arm", status)
                .map(|()| true),
        }
    }

    /// Whether a request has ended; it is freed then.
    fn has_ended(functions: &Functions, request: NonNull<c_void>) -> bool {
        // SAFETY: the request comes from UCX and was not freed: each is in one place only, which
        // is emptied when this returns true.
        if unsafe { (functions.ucp_request_check_status)(request.as_ptr()) } == sys::IN_PROGRESS {
            return false;
        }
        // SAFETY: as above; it is not used again.
        unsafe { (functions.ucp_request_free)(request.as_ptr()) };
        true
    }

    fn end_sent(&mut self) {
        let (endpoints, functions) = (&mut self.endpoints, self.functions);
        let (spare, emptied) = (&mut self.spare, &mut self.emptied);
        self.sending.retain(|at| {
            let Some(endpoint) = endpoints.get_mut(*at) else {
                return false;
            };
            while let Some(first) = endpoint.sent.front() {
                if !Self::has_ended(functions, first.request) {
                    return true;
                }
                if let Some(sent) = endpoint.sent.pop_front() {
                    reuse(spare, sent.message);
                }
            }
            emptied.push(endpoint.tag);
            false
        });
    }
}

#[expect(
    clippy::vec_box,
    reason = "UCX has a message's address until it is sent"
)]
fn reuse(spare: &mut Vec<Box<Message>>, mut message: Box<Message>) {
    if spare.len() < SPARE_MESSAGES_MAX {
        message.clear();
        spare.push(message);
    }
}
