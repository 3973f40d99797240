//! Loads `libucp.so.0` once and finds its functions.
//!
//! The library is never unloaded: its own threads and handlers at exit stay valid that way.

#![allow(
    unsafe_code,
    reason = "loads a C library and names the types of its functions"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use forerun_core::sync::OnceLock;
use forerun_core::{Owner, PerProcess};
use libloading::Library;

use crate::error::UcxError;
use crate::sys::{
    Address, Config, ContextHandle, EndpointHandle, EndpointParams, HandlerParam, Params,
    RequestParam, Status, StatusPointer, WorkerHandle, WorkerParams,
};
use crate::version::UcxVersion;

/// The file name: the version of the binary interface is part of it.
const NAME: &str = "libucp.so.0";

/// The oldest supported version. Older ones lack options that this crate sets.
const OLDEST: UcxVersion = UcxVersion {
    major: 1,
    minor: 13,
    release: 0,
};

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?,)*) => {
        /// The functions that this crate calls.
        #[allow(missing_docs, reason = "these are the names of the C interface")]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Functions, UcxError> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the type is that of the function in `ucp/api/ucp.h`. The test
                        // `layouts` compiles the same types against the header.
                        let found = unsafe { library.get(stringify!($name).as_bytes()) };
                        *found.map_err(|_| UcxError::MissingFunction {
                            name: stringify!($name),
                        })?
                    },)*
                })
            }
        }
    };
}

functions! {
    ucp_get_version: fn(*mut c_uint, *mut c_uint, *mut c_uint),
    ucp_config_read: fn(*const c_char, *const c_char, *mut *mut Config) -> Status,
    ucp_config_modify: fn(*mut Config, *const c_char, *const c_char) -> Status,
    ucp_config_release: fn(*mut Config),
    ucp_init_version: fn(
        c_uint,
        c_uint,
        *const Params,
        *const Config,
        *mut *mut ContextHandle,
    ) -> Status,
    ucp_cleanup: fn(*mut ContextHandle),
    ucp_worker_create: fn(
        *mut ContextHandle,
        *const WorkerParams,
        *mut *mut WorkerHandle,
    ) -> Status,
    ucp_worker_destroy: fn(*mut WorkerHandle),
    ucp_worker_get_address: fn(*mut WorkerHandle, *mut *mut Address, *mut usize) -> Status,
    ucp_worker_release_address: fn(*mut WorkerHandle, *mut Address),
    ucp_worker_progress: fn(*mut WorkerHandle) -> c_uint,
    ucp_worker_get_efd: fn(*mut WorkerHandle, *mut c_int) -> Status,
    ucp_worker_arm: fn(*mut WorkerHandle) -> Status,
    ucp_worker_set_am_recv_handler: fn(*mut WorkerHandle, *const HandlerParam) -> Status,
    ucp_ep_create: fn(
        *mut WorkerHandle,
        *const EndpointParams,
        *mut *mut EndpointHandle,
    ) -> Status,
    ucp_ep_flush_nbx: fn(*mut EndpointHandle, *const RequestParam) -> StatusPointer,
    ucp_ep_close_nbx: fn(*mut EndpointHandle, *const RequestParam) -> StatusPointer,
    ucp_am_send_nbx: fn(
        *mut EndpointHandle,
        c_uint,
        *const c_void,
        usize,
        *const c_void,
        usize,
        *const RequestParam,
    ) -> StatusPointer,
    ucp_request_check_status: fn(*mut c_void) -> Status,
    ucp_request_free: fn(*mut c_void),
    ucs_status_string: fn(Status) -> *const c_char,
}

/// The functions, loaded when they are first needed. The result stays the same afterwards.
///
/// # Errors
/// [`UcxError::NoLibrary`], [`UcxError::TooOld`], [`UcxError::MissingFunction`], and
/// [`UcxError::Forked`] in a fork of a process that has loaded UCX: its threads and its shared
/// memory belong to the parent.
pub(crate) fn functions() -> Result<&'static Functions, UcxError> {
    static LOADED: PerProcess<OnceLock<Result<&'static Functions, UcxError>>> = PerProcess::new();
    static LOADED_BY: OnceLock<Owner> = OnceLock::new();
    LOADED
        .get_or_init(OnceLock::new)
        .get_or_init(|| {
            LOADED_BY.get_or_init(Owner::this_process).check()?;
            load(NAME)
        })
        .clone()
}

/// The version of the installed library.
///
/// # Errors
/// [`UcxError::NoLibrary`], [`UcxError::TooOld`], [`UcxError::MissingFunction`],
/// [`UcxError::Forked`].
pub fn version() -> Result<UcxVersion, UcxError> {
    Ok(version_of(functions()?))
}

fn load(name: &str) -> Result<&'static Functions, UcxError> {
    // SAFETY: a library of this name is UCX, whose initialisers may run in any process. They
    // install signal handlers, which `quieten` removes again.
    let library = unsafe { Library::new(name) }.map_err(|error| UcxError::NoLibrary {
        reason: error.to_string(),
    })?;
    quieten(&library);
    let functions = Functions::find(&library)?;
    let found = version_of(&functions);
    if found < OLDEST {
        return Err(UcxError::TooOld {
            found,
            needed: OLDEST,
        });
    }
    // The functions are valid for as long as the library is loaded: for ever.
    std::mem::forget(library);
    Ok(Box::leak(Box::new(functions)))
}

/// Whether an endpoint may be forced to its end while UCX has messages of it. Before 1.14, UCX ends
/// the process if some are messages of its own that connect the endpoint.
pub(crate) fn can_drop_unsent(functions: &Functions) -> bool {
    let fixed = UcxVersion {
        major: 1,
        minor: 14,
        release: 0,
    };
    version_of(functions) >= fixed
}

fn version_of(functions: &Functions) -> UcxVersion {
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: the function writes three numbers to the places it is given.
    unsafe { (functions.ucp_get_version)(&mut major, &mut minor, &mut release) };
    UcxVersion {
        major,
        minor,
        release,
    }
}

/// Undoes what loading UCX does to a process, and keeps it from writing to standard output.
///
/// UCX reads these settings from the environment when it is loaded, and changing the environment
/// of a process with threads is not safe. These functions of `libucs` do the same afterwards. A
/// later version may lack them; then UCX keeps its defaults.
fn quieten(library: &Library) {
    type SetValue = unsafe extern "C" fn(*const c_char, *const c_char) -> Status;
    type Disable = unsafe extern "C" fn();
    // SAFETY: the type is that of the function in `ucs/config/global_opts.h`. The library depends
    // on libucs, so the lookup also finds functions of libucs.
    if let Ok(set_value) = unsafe { library.get::<SetValue>(b"ucs_global_opts_set_value") } {
        let unless_set = |variable: &str, name: &CStr, value: &CStr| {
            if std::env::var_os(variable).is_none() {
                // SAFETY: both are C strings, which the function copies. No other thread uses UCX
                // yet. An unknown name changes nothing.
                unsafe { set_value(name.as_ptr(), value.as_ptr()) };
            }
        };
        // Forerun reports the errors of calls itself.
        unless_set("UCX_LOG_LEVEL", c"LOG_LEVEL", c"fatal");
        unless_set("UCX_WARN_UNUSED_ENV_VARS", c"WARN_UNUSED_ENV_VARS", c"n");
    }
    if std::env::var_os("UCX_ERROR_SIGNALS").is_none()
        && std::env::var_os("UCX_HANDLE_ERRORS").is_none()
    {
        // SAFETY: the type is that of the function in libucs. It restores the handlers that were
        // installed before UCX's.
        if let Ok(disable) = unsafe { library.get::<Disable>(b"ucs_debug_disable_signals") } {
            // SAFETY: as above; no other thread uses UCX yet.
            unsafe { disable() };
        }
    }
}

impl Functions {
    /// Turns a status into an error.
    pub(crate) fn check(&self, call: &'static str, status: Status) -> Result<(), UcxError> {
        match status {
            crate::sys::OK => Ok(()),
            status => Err(UcxError::Call {
                call,
                status,
                reason: self.reason(status),
            }),
        }
    }

    /// UCX's description of a status.
    pub(crate) fn reason(&self, status: Status) -> String {
        // SAFETY: the function returns a zero-terminated string: a constant, or a buffer of the
        // calling thread that is valid until its next call.
        let text = unsafe { CStr::from_ptr((self.ucs_status_string)(status)) };
        text.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_reported_with_its_name() {
        let error = load("libucp-absent.so.0").err().expect("no such library");
        assert!(matches!(error, UcxError::NoLibrary { .. }), "{error}");
        assert!(error.to_string().contains("libucp.so.0"), "{error}");
    }

    #[test]
    fn another_library_is_refused_by_the_function_it_lacks() {
        let error = load("libc.so.6").err().expect("the C library is not UCX");
        assert_eq!(
            error,
            UcxError::MissingFunction {
                name: "ucp_get_version"
            }
        );
    }

    #[test]
    fn loading_gives_the_same_answer_again() {
        assert_eq!(version(), version());
    }
}
