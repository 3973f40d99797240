//! Tensors whose memory work on a stream still uses, although their owner may have dropped them.

use std::sync::{Mutex, PoisonError};

use forerun::gpu::{Event, Gpu, GpuError, Stream};
use pyo3::prelude::*;

use crate::cuda::CallersStream;
use crate::errors::device_exception;

/// The tensors of calls whose work the device may not have done, of one table or pool.
#[derive(Default)]
pub(crate) struct TensorsInFlight(Mutex<Vec<OfCall>>);

/// The tensors of one call.
struct OfCall {
    /// `None` in a captured graph, whose replays need them as long as the table or pool.
    event: Option<Event>,
    /// What keeps their memory.
    _capsules: Vec<Py<PyAny>>,
}

impl TensorsInFlight {
    /// Keeps tensors until the device has passed the current end of the stream, and lets those go
    /// whose work it has done.
    pub(crate) fn keep(
        &self,
        gpu: &Gpu,
        stream: CallersStream,
        capsules: Vec<Py<PyAny>>,
    ) -> PyResult<()> {
        if capsules.is_empty() {
            return Ok(());
        }
        let kept = OfCall::new(gpu, stream, capsules)?;
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *held).into_iter();
        let (done, mut going): (Vec<_>, Vec<_>) = all.partition(OfCall::is_done);
        going.push(kept);
        *held = going;
        drop(held);
        // Not under the lock: what is let go may run Python code.
        drop(done);
        Ok(())
    }

    /// Waits for the work of all calls, except those in graphs.
    pub(crate) fn finish(&mut self) {
        let held = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for event in held.iter().filter_map(|of_call| of_call.event.as_ref()) {
            // An error means that the device is lost with all its work.
            let _ = event.synchronize();
        }
    }
}

impl OfCall {
    fn new(gpu: &Gpu, stream: CallersStream, capsules: Vec<Py<PyAny>>) -> PyResult<OfCall> {
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
        Ok(OfCall {
            event,
            _capsules: capsules,
        })
    }

    /// Whether the device has done the call's work. Does not wait.
    fn is_done(&self) -> bool {
        // After an error the tensors stay until the table or pool is dropped.
        let event = self.event.as_ref();
        event.is_some_and(|event| event.is_complete().unwrap_or(false))
    }
}
