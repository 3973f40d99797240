//! The graph that a stream is being captured into, and what it keeps.
//!
//! ```text
//!   stream ──captured into──> graph ──retains──> user object ──> value
//!                               └─> its instances, which retain it too
//!   the value is dropped when the graph and all its instances are destroyed
//! ```
//!
//! A captured launch reads its memory at every replay, so this memory belongs to the graph. CUDA's
//! user objects do that (`cuUserObjectCreate`, CUDA 11.3).

use super::api::{check, optional};
use super::stream::Stream;
use crate::GpuError;
use cudarc::driver::sys::{
    self, CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureStatus as Status,
};
use std::ffi::c_void;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: the only value that the driver accepts.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes over the creator's reference.
const MOVE: u32 = 1;

/// A graph that is being captured.
pub(crate) struct CapturedGraph(CUgraph);

impl Stream {
    /// Whether the stream is being captured into a graph: then an event that is recorded on it can
    /// be neither asked nor waited for.
    ///
    /// # Errors
    /// The capture has become invalid, or the driver failed.
    pub fn is_captured(&self) -> Result<bool, GpuError> {
        Ok(self.captured_into()?.is_some())
    }

    /// The graph that the stream is being captured into, or `None` if it is not being captured.
    ///
    /// # Errors
    /// The capture has become invalid, or the driver failed.
    pub(crate) fn captured_into(&self) -> Result<Option<CapturedGraph>, GpuError> {
        type CaptureInfo = unsafe extern "C" fn(
            CUstream,
            *mut Status,
            *mut u64,
            *mut CUgraph,
            *mut *const CUgraphNode,
            *mut usize,
        ) -> CUresult;
        let _current = self.gpu().bind()?;
        // The bindings of CUDA 13 have only a newer form, which drivers before 12.3 lack.
        // SAFETY: the type is that of the drivers since 11.3. A stream exists, so the driver is
        // loaded.
        let capture_info = unsafe { optional::<CaptureInfo>("cuStreamGetCaptureInfo_v2") }?;
        let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph) = (0, std::ptr::null_mut());
        let (mut nodes, mut count) = (std::ptr::null(), 0);
        // SAFETY: the stream is alive; the driver writes five values.
        check("cuStreamGetCaptureInfo", unsafe {
            capture_info(
                self.handle(),
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                &mut count,
            )
        })?;
        match status {
            Status::CU_STREAM_CAPTURE_STATUS_NONE => Ok(None),
            Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(Some(CapturedGraph(graph))),
            Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
                let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
                check("cuStreamGetCaptureInfo", invalidated).map(|()| None)
            }
        }
    }
}

impl CapturedGraph {
    /// Keeps a value until the graph and its instances are destroyed. A thread of the driver then
    /// drops it, and the drop must neither call the driver nor panic.
    ///
    /// # Errors
    /// The driver's error. The value is dropped.
    pub(crate) fn keep<T: Send + 'static>(&self, value: T) -> Result<(), GpuError> {
        /// # Safety
        /// `value` must come from `Box::<T>::into_raw`, and is given up.
        unsafe extern "C" fn destroy<T>(value: *mut c_void) {
            // SAFETY: as the caller guarantees.
            drop(unsafe { Box::from_raw(value.cast::<T>()) });
        }
        let value: *mut c_void = Box::into_raw(Box::new(value)).cast();
        let mut object = std::ptr::null_mut();
        // SAFETY: the driver writes one handle, and calls `destroy` once, with this value.
        let created = check("cuUserObjectCreate", unsafe {
            sys::cuUserObjectCreate(
                &mut object,
                value,
                Some(destroy::<T>),
                1,
                NO_DESTRUCTOR_SYNC,
            )
        });
        if let Err(error) = created {
            // SAFETY: the driver has not taken the value.
            unsafe { destroy::<T>(value) };
            return Err(error);
        }
        // SAFETY: the graph is being captured, and the object has just been created.
        check("cuGraphRetainUserObject", unsafe {
            sys::cuGraphRetainUserObject(self.0, object, 1, MOVE)
        })
        .inspect_err(|_| {
            // SAFETY: the only reference is still here. This drops the value.
            let _ = unsafe { sys::cuUserObjectRelease(object, 1) };
        })
    }
}
