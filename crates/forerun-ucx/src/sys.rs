//! The part of UCX's C interface that this crate uses, as `ucp/api/ucp.h` of version 1.13 has it.
//!
//! UCX extends its structures at their ends. A field mask names the fields that the caller has set,
//! so a structure of 1.13 is valid for every later version with the same library name. The test
//! `layouts` compares these definitions with the header where one is installed.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `ucs_status_t`: a packed enumeration of one byte.
pub(crate) type Status = i8;

pub(crate) const OK: Status = 0;
pub(crate) const IN_PROGRESS: Status = 1;
pub(crate) const ERR_BUSY: Status = -15;
/// `UCS_ERR_LAST`: pointers from this value on are errors.
pub(crate) const ERR_LAST: Status = -100;

/// `ucs_status_ptr_t`: null, an error number, or a request.
pub(crate) type StatusPointer = *mut c_void;

/// `UCP_PARAM_FIELD_FEATURES`, `UCP_PARAM_FIELD_MT_WORKERS_SHARED`.
pub(crate) const PARAM_FEATURES: u64 = 1 << 0;
pub(crate) const PARAM_MT_WORKERS_SHARED: u64 = 1 << 5;
/// `UCP_FEATURE_WAKEUP`, `UCP_FEATURE_AM`.
pub(crate) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(crate) const FEATURE_AM: u64 = 1 << 6;
/// `UCP_WORKER_PARAM_FIELD_THREAD_MODE`, `UCS_THREAD_MODE_SERIALIZED`.
pub(crate) const WORKER_PARAM_THREAD_MODE: u64 = 1 << 0;
pub(crate) const THREAD_MODE_SERIALIZED: c_uint = 1;
/// `UCP_EP_PARAM_FIELD_*`.
pub(crate) const EP_PARAM_REMOTE_ADDRESS: u64 = 1 << 0;
pub(crate) const EP_PARAM_ERR_HANDLING_MODE: u64 = 1 << 1;
pub(crate) const EP_PARAM_ERR_HANDLER: u64 = 1 << 2;
/// `UCP_ERR_HANDLING_MODE_PEER`.
pub(crate) const ERR_HANDLING_MODE_PEER: c_uint = 1;
/// `UCP_AM_HANDLER_PARAM_FIELD_*`.
pub(crate) const AM_HANDLER_ID: u64 = 1 << 0;
pub(crate) const AM_HANDLER_FLAGS: u64 = 1 << 1;
pub(crate) const AM_HANDLER_CB: u64 = 1 << 2;
pub(crate) const AM_HANDLER_ARG: u64 = 1 << 3;
/// `UCP_AM_FLAG_WHOLE_MSG`.
pub(crate) const AM_FLAG_WHOLE_MSG: u32 = 1 << 0;
/// `UCP_AM_RECV_ATTR_FLAG_RNDV`.
pub(crate) const AM_RECV_RNDV: u64 = 1 << 17;
/// `UCP_OP_ATTR_FIELD_DATATYPE`, `UCP_OP_ATTR_FIELD_FLAGS`, `UCP_OP_ATTR_FIELD_MEMORY_TYPE`.
pub(crate) const OP_DATATYPE: u32 = 1 << 3;
pub(crate) const OP_FLAGS: u32 = 1 << 4;
pub(crate) const OP_MEMORY_TYPE: u32 = 1 << 6;
/// `UCP_AM_SEND_FLAG_EAGER`.
pub(crate) const AM_SEND_EAGER: u32 = 1 << 1;
/// `UCP_DATATYPE_IOV`, and `ucp_dt_make_contig(1)`.
pub(crate) const DATATYPE_IOV: u64 = 2;
pub(crate) const DATATYPE_BYTES: u64 = 1 << 3;
/// `UCS_MEMORY_TYPE_HOST`.
pub(crate) const MEMORY_TYPE_HOST: c_uint = 0;
/// `UCP_EP_CLOSE_FLAG_FORCE`.
pub(crate) const EP_CLOSE_FORCE: u32 = 1 << 0;

/// `ucp_context`, `ucp_worker`, `ucp_ep`, `ucp_config`, `ucp_address`: opaque.
#[repr(C)]
pub(crate) struct ContextHandle([u8; 0]);
#[repr(C)]
pub(crate) struct WorkerHandle([u8; 0]);
#[repr(C)]
pub(crate) struct EndpointHandle([u8; 0]);
#[repr(C)]
pub(crate) struct Config([u8; 0]);
#[repr(C)]
pub(crate) struct Address([u8; 0]);

/// `ucp_params_t`.
#[repr(C)]
pub(crate) struct Params {
    pub(crate) field_mask: u64,
    pub(crate) features: u64,
    pub(crate) request_size: usize,
    pub(crate) request_init: *const c_void,
    pub(crate) request_cleanup: *const c_void,
    pub(crate) tag_sender_mask: u64,
    pub(crate) mt_workers_shared: c_int,
    pub(crate) estimated_num_eps: usize,
    pub(crate) estimated_num_ppn: usize,
    pub(crate) name: *const c_char,
}

/// `ucp_worker_params_t`.
#[repr(C)]
pub(crate) struct WorkerParams {
    pub(crate) field_mask: u64,
    pub(crate) thread_mode: c_uint,
    pub(crate) cpu_mask: [u64; 16],
    pub(crate) events: c_uint,
    pub(crate) user_data: *mut c_void,
    pub(crate) event_fd: c_int,
    pub(crate) flags: u64,
    pub(crate) name: *const c_char,
    pub(crate) am_alignment: usize,
    pub(crate) client_id: u64,
}

/// `ucp_err_handler_cb_t`.
pub(crate) type ErrorCallback =
    unsafe extern "C" fn(arg: *mut c_void, endpoint: *mut EndpointHandle, status: Status);

/// `ucp_err_handler_t`.
#[repr(C)]
pub(crate) struct ErrorHandler {
    pub(crate) cb: Option<ErrorCallback>,
    pub(crate) arg: *mut c_void,
}

/// `ucs_sock_addr_t`.
#[repr(C)]
pub(crate) struct SocketAddress {
    pub(crate) addr: *const c_void,
    pub(crate) addrlen: u32,
}

/// `ucp_ep_params_t`.
#[repr(C)]
pub(crate) struct EndpointParams {
    pub(crate) field_mask: u64,
    pub(crate) address: *const Address,
    pub(crate) err_mode: c_uint,
    pub(crate) err_handler: ErrorHandler,
    pub(crate) user_data: *mut c_void,
    pub(crate) flags: c_uint,
    pub(crate) sockaddr: SocketAddress,
    pub(crate) conn_request: *mut c_void,
    pub(crate) name: *const c_char,
    pub(crate) local_sockaddr: SocketAddress,
}

/// `ucp_am_recv_param_t`.
#[repr(C)]
pub(crate) struct ReceiveParam {
    pub(crate) recv_attr: u64,
    pub(crate) reply_ep: *mut EndpointHandle,
}

/// `ucp_am_recv_callback_t`.
pub(crate) type ReceiveCallback = unsafe extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ReceiveParam,
) -> Status;

/// `ucp_am_handler_param_t`.
#[repr(C)]
pub(crate) struct HandlerParam {
    pub(crate) field_mask: u64,
    pub(crate) id: c_uint,
    pub(crate) flags: u32,
    pub(crate) cb: Option<ReceiveCallback>,
    pub(crate) arg: *mut c_void,
}

/// `ucp_request_param_t`.
#[repr(C)]
pub(crate) struct RequestParam {
    pub(crate) op_attr_mask: u32,
    pub(crate) flags: u32,
    pub(crate) request: *mut c_void,
    pub(crate) cb: *const c_void,
    pub(crate) datatype: u64,
    pub(crate) user_data: *mut c_void,
    pub(crate) reply_buffer: *mut c_void,
    pub(crate) memory_type: c_uint,
    pub(crate) recv_info: *mut c_void,
    pub(crate) memh: *mut c_void,
}

/// `ucp_dt_iov_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct IoVec {
    pub(crate) buffer: *const c_void,
    pub(crate) length: usize,
}

impl RequestParam {
    /// No options.
    pub(crate) const fn new() -> RequestParam {
        RequestParam {
            op_attr_mask: 0,
            flags: 0,
            request: std::ptr::null_mut(),
            cb: std::ptr::null(),
            datatype: 0,
            user_data: std::ptr::null_mut(),
            reply_buffer: std::ptr::null_mut(),
            memory_type: MEMORY_TYPE_HOST,
            recv_info: std::ptr::null_mut(),
            memh: std::ptr::null_mut(),
        }
    }
}

#[cfg(test)]
#[path = "sys_tests.rs"]
mod tests;
