//! Tensors whose memory work on a stream still uses, although their owner may have dropped them.

use forerun::gpu::{Event, Gpu, GpuError, Stream};
use pyo3::prelude::*;

use crate::cuda::CallersStream;
use crate::errors::device_exception;

/// The tensors of one call.
pub(super) struct InFlight {
    /// `None` in a captured graph, whose replays need them as long as the table.
    event: Option<Event>,
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
        // SAFETY: the caller of the Python function guarantees a stream of the device's primary
        // context that outlives the call.
        let stream = unsafe { Stream::borrowed(gpu, stream.handle()) };
        let recorded = || -> Result<Option<Event>, GpuError> {
            // To ask for a captured event would end the capture.
            if stream.is_captured()? {
                return Ok(None);
            }
            let event = Event::new(gpu)?;
            stream.record(&event)?;
            Ok(Some(event))
        };
        let event = recorded().map_err(|error| {
            // The tensors are let go when this returns.
            let _ = stream.synchronize();
            device_exception(error)
        })?;
        Ok(InFlight {
            event,
            _capsules: capsules,
        })
    }

    /// Whether the device has done the call's work. Does not wait.
    pub(super) fn is_done(&self) -> bool {
        // After an error the tensors stay until the table is dropped.
        let event = self.event.as_ref();
        event.is_some_and(|event| event.is_complete().unwrap_or(false))
    }

    /// Waits for the call's work, unless it is in a graph.
    pub(super) fn finish(&self) {
        if let Some(event) = &self.event {
            // An error means that the device is lost with all its work.
            let _ = event.synchronize();
        }
    }
}
