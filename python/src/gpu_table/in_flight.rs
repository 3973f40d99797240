//! Tensors whose memory work on a stream still uses, although their owner may have dropped them.

use forerun::gpu::{Event, Gpu, Stream};
use pyo3::prelude::*;

use crate::cuda::CallersStream;
use crate::errors::device_exception;

/// The tensors of one call.
pub(super) struct InFlight {
    event: Event,
    /// What keeps their memory.
    _capsules: Vec<Py<PyAny>>,
}

impl InFlight {
    /// Keeps them until the device has passed the current end of the stream.
    pub(super) fn new(
        gpu: &Gpu,
        stream: CallersStream,
        capsules: Vec<Py<PyAny>>,
    ) -> PyResult<InFlight> {
        let event = Event::new(gpu).map_err(device_exception)?;
        // SAFETY: the caller of the Python function guarantees a stream of the device's primary
        // context that outlives the call.
        let stream = unsafe { Stream::borrowed(gpu, stream.handle()) };
        stream.record(&event).map_err(device_exception)?;
        Ok(InFlight {
            event,
            _capsules: capsules,
        })
    }

    /// Whether the device has done the call's work. Does not wait.
    pub(super) fn is_done(&self) -> bool {
        // After an error the tensors stay until the table is dropped.
        self.event.is_complete().unwrap_or(false)
    }

    /// Waits for the call's work, and lets the tensors go.
    pub(super) fn finish(self) {
        // An error means that the device is lost with all its work.
        let _ = self.event.synchronize();
    }
}
