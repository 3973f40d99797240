//! What UCX calls: for each message, and when an endpoint fails.

#![allow(unsafe_code, reason = "UCX passes pointers")]

use std::cell::RefCell;
use std::ffi::c_void;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI8, Ordering};

use crate::sys::{self, EndpointHandle, ReceiveParam, Status};

/// What receives a worker's messages.
pub(crate) trait Receive {
    /// A message has arrived. `data` is `None` if the sender wants a rendezvous, which is refused.
    fn message(&mut self, header: &[u8], data: Option<&[u8]>);
}

/// The error of an endpoint, which UCX's callback sets.
pub(crate) struct ErrorMark {
    pub(crate) status: AtomicI8,
    /// Whether any endpoint of the worker has failed since the last look.
    pub(crate) any: Arc<AtomicBool>,
}

/// UCX calls this for each message.
///
/// # Safety
/// Only as the handler that [`Worker::new`](crate::worker::Worker::new) installs.
pub(crate) unsafe extern "C" fn on_message<R: Receive>(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ReceiveParam,
) -> Status {
    // SAFETY: the argument is the worker's receiver, which is valid until the worker is destroyed.
    let receiver = unsafe { &*arg.cast::<RefCell<R>>() };
    // SAFETY: UCX passes its parameters, valid for the call.
    let attributes = unsafe { (*param).recv_attr };
    // SAFETY: UCX passes a header of this length, valid for the call.
    let header = unsafe { bytes_at(header, header_length) };
    let is_rendezvous = attributes & sys::AM_RECV_RNDV != 0;
    let data = if is_rendezvous {
        None
    } else {
        // SAFETY: without a rendezvous, UCX passes data of this length, valid for the call.
        Some(unsafe { bytes_at(data, length) })
    };
    // The receiver is never borrowed while UCX runs. If it were, the message would be lost, and
    // its channel would see that by the next message's number.
    if let Ok(mut receiver) = receiver.try_borrow_mut() {
        receiver.message(header, data);
    }
    sys::OK
}

/// UCX calls this when an endpoint fails.
///
/// # Safety
/// Only as the handler that [`Worker::connect`](crate::worker::Worker::connect) installs.
pub(crate) unsafe extern "C" fn on_error(arg: *mut c_void, _: *mut EndpointHandle, status: Status) {
    // SAFETY: the argument is the endpoint's mark, which lives until the endpoint is gone.
    let mark = unsafe { &*arg.cast::<ErrorMark>() };
    // Relaxed: the thread that reads them is this one.
    mark.status.store(status, Ordering::Relaxed);
    mark.any.store(true, Ordering::Relaxed);
}

/// The bytes at a pointer that UCX passed.
///
/// # Safety
/// If the length is not 0, the pointer is valid for reads of that length for as long as the slice
/// is used.
unsafe fn bytes_at<'a>(pointer: *const c_void, len_bytes: usize) -> &'a [u8] {
    match len_bytes {
        0 => &[],
        // SAFETY: the caller promises it.
        _ => unsafe { slice::from_raw_parts(pointer.cast(), len_bytes) },
    }
}
