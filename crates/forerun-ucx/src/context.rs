//! A UCP context: UCX with the configuration that Forerun needs.
//!
//! UCX reads its variables `UCX_*` from the environment. A variable that is set there always wins;
//! the values here replace UCX's own defaults only.

#![allow(unsafe_code, reason = "calls UCX")]

use std::ffi::CString;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use forerun_core::Owner;

use crate::error::UcxError;
use crate::library::{Functions, functions};
use crate::sys::{self, ContextHandle, Params};

/// Which transports UCX may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transports {
    /// Shared memory in POSIX segments, which only processes of the same user can open.
    #[default]
    SharedMemory,
    /// All, except those of shared memory that open more to a peer than its user's segments: System
    /// V segments, which UCX creates for the whole group, and the transports that read the memory
    /// of the other process.
    Network,
}

/// Which network devices UCX may use. UCX listens on each device it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Devices {
    /// The loopback device.
    #[default]
    Loopback,
    /// Those that UCX's variable `UCX_NET_DEVICES` names; without it, all.
    Environment,
    /// These, in the form of `UCX_NET_DEVICES`.
    Named(String),
}

/// Options of a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Transports.
    pub transports: Transports,
    /// Network devices.
    pub devices: Devices,
}

/// UCX with one configuration. Clones share it.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    functions: &'static Functions,
    handle: *mut ContextHandle,
    owner: Owner,
}

// SAFETY: the context is created with `mt_workers_shared`, so workers of several threads may use
// it. The handle is only read until the last clone destroys the context.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Context {
    /// Loads UCX if no context has done so before, and creates a context.
    ///
    /// # Errors
    /// Any [`UcxError`].
    pub fn open(options: &ContextOptions) -> Result<Context, UcxError> {
        let functions = functions()?;
        let config = Config::read(functions)?;
        let transports = match options.transports {
            Transports::SharedMemory => "posix,self",
            Transports::Network => "^sysv,cma,knem,xpmem",
        };
        config.set_default("TLS", transports)?;
        match &options.devices {
            Devices::Loopback => config.set_default("NET_DEVICES", "lo")?,
            Devices::Environment => {}
            Devices::Named(devices) => config.set("NET_DEVICES", devices)?,
        }
        // A message is at most one fragment of shared memory, so a rendezvous never pays, and the
        // receiver could not bound it.
        config.set_default("RNDV_THRESH", "inf")?;
        // Without it, shared memory cannot end the sends to a peer that is gone.
        config.set_default("MM_ERROR_HANDLING", "y")?;
        // The control sockets show when a peer is gone. UCX's keepalive exchanges the numbers of
        // endpoints first; 1.13 ends the process if an endpoint is closed before it has sent the
        // answer (openucx/ucx#8175), and without the numbers it reports live peers as dead.
        config.set_default("RESOLVE_REMOTE_EP_ID", "n")?;
        config.set_default("KEEPALIVE_INTERVAL", "inf")?;
        // A worker's receive buffers, 8 KiB each; they are allocated in steps of this number.
        config.set_default("MM_RX_BUFS_GROW", "128")?;
        let params = Params {
            field_mask: sys::PARAM_FEATURES | sys::PARAM_MT_WORKERS_SHARED,
            features: sys::FEATURE_AM | sys::FEATURE_WAKEUP,
            request_size: 0,
            request_init: ptr::null(),
            request_cleanup: ptr::null(),
            tag_sender_mask: 0,
            mt_workers_shared: 1,
            estimated_num_eps: 0,
            estimated_num_ppn: 0,
            name: ptr::null(),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the parameters and the configuration are valid for the call, and the mask names
        // fields that are set. The version is that of the structures in `sys`.
        let status =
            unsafe { (functions.ucp_init_version)(1, 13, &params, config.handle, &mut handle) };
        functions.check("ucp_init", status)?;
        Ok(Context {
            inner: Arc::new(Inner {
                functions,
                handle,
                owner: Owner::this_process(),
            }),
        })
    }

    /// Whether both are clones of one context.
    pub fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.inner.functions
    }

    /// The handle, for the owner's process only.
    pub(crate) fn handle(&self) -> Result<*mut ContextHandle, UcxError> {
        self.inner.owner.check()?;
        Ok(self.inner.handle)
    }

    pub(crate) fn owner(&self) -> Owner {
        self.inner.owner
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a fork, the context belongs to the parent.
        if self.owner.is_this_process() {
            // SAFETY: workers hold clones of the context, so none is left, and the handle is used
            // for the last time.
            unsafe { (self.functions.ucp_cleanup)(self.handle) };
        }
    }
}

/// UCX's configuration, before it is used.
struct Config {
    functions: &'static Functions,
    handle: *mut sys::Config,
}

impl Config {
    /// Reads the environment.
    fn read(functions: &'static Functions) -> Result<Config, UcxError> {
        let mut handle = ptr::null_mut();
        // SAFETY: null pointers stand for the prefix `UCX_` and for no file. The function writes a
        // handle if it succeeds.
        let status = unsafe { (functions.ucp_config_read)(ptr::null(), ptr::null(), &mut handle) };
        functions.check("ucp_config_read", status)?;
        Ok(Config { functions, handle })
    }

    /// Sets a value, unless the environment has one.
    fn set_default(&self, name: &'static str, value: &str) -> Result<(), UcxError> {
        match std::env::var_os(format!("UCX_{name}")) {
            Some(_) => Ok(()),
            None => self.set(name, value),
        }
    }

    fn set(&self, name: &'static str, value: &str) -> Result<(), UcxError> {
        let refused = |reason: String| UcxError::Config {
            name,
            value: value.to_owned(),
            reason,
        };
        let has_nul = |_| refused("it contains a zero byte".to_owned());
        let name = CString::new(name).map_err(has_nul)?;
        let text = CString::new(value).map_err(has_nul)?;
        // SAFETY: the handle is valid until `self` is dropped, and UCX copies both strings.
        let status = unsafe {
            (self.functions.ucp_config_modify)(self.handle, name.as_ptr(), text.as_ptr())
        };
        match status {
            sys::OK => Ok(()),
            status => Err(refused(self.functions.reason(status))),
        }
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: the handle is used for the last time.
        unsafe { (self.functions.ucp_config_release)(self.handle) };
    }
}
