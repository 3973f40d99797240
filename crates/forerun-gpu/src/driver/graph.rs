//! Commands that are captured once and replayed often.

use super::api::check;
use super::scope::{Command, sealed};
use super::stream::Stream;
use crate::{Gpu, GpuError};
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use std::fmt;
use std::marker::PhantomData;

/// A CUDA graph of commands. It borrows what they borrow. A replay costs one call of the driver and
/// reads the indices and counts that are on the device at that time. The graph is a [`Command`]
/// itself.
///
/// ```no_run
/// use forerun_gpu::{Command, Gpu, GpuError, Graph, Stream};
///
/// fn replay(gpu: &Gpu, stream: &Stream, step: &[&dyn Command]) -> Result<(), GpuError> {
///     let graph = Graph::capture(stream, step)?;
///     gpu.scope(|scope| scope.enqueue(stream, &graph))?; // again and again, with other indices
///     Ok(())
/// }
/// ```
pub struct Graph<'a> {
    gpu: Gpu,
    graph: CUgraph,
    exec: CUgraphExec,
    _commands: PhantomData<&'a ()>,
}

impl<'a> Graph<'a> {
    /// Captures the commands in order, as one chain. Nothing runs yet.
    ///
    /// The capture affects only this thread: other threads may continue to use the device.
    ///
    /// # Errors
    /// The error of a command or of the driver.
    pub fn capture<'c: 'a>(
        stream: &Stream,
        commands: &[&'a (dyn Command + 'c)],
    ) -> Result<Graph<'a>, GpuError> {
        let gpu = stream.gpu().clone();
        let _current = gpu.bind()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and belongs to the current context.
        check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(stream.handle(), mode)
        })?;
        let enqueued = commands.iter().try_for_each(|command| {
            // SAFETY: a captured command does not run. When the graph runs, by a scope or by its
            // own `enqueue`, the graph borrows what the commands borrow.
            unsafe { command.enqueue(stream) }
        });
        let mut captured = Graph {
            gpu,
            graph: std::ptr::null_mut(),
            exec: std::ptr::null_mut(),
            _commands: PhantomData,
        };
        // The capture must end even if a command failed.
        // SAFETY: the stream is alive; the driver writes one handle.
        let ended = check("cuStreamEndCapture", unsafe {
            sys::cuStreamEndCapture(stream.handle(), &mut captured.graph)
        });
        // A command's own error is more specific than the error of the capture that it broke.
        enqueued?;
        ended?;
        // SAFETY: the graph has just been captured; the driver writes one handle.
        check("cuGraphInstantiate", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut captured.exec, captured.graph, 0)
        })?;
        Ok(captured)
    }
}

impl sealed::Sealed for Graph<'_> {}

impl Command for Graph<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the graph")?;
        let _current = self.gpu.bind()?;
        // SAFETY: graph and stream are alive and belong to the current context. The caller
        // guarantees the memory.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(self.exec, stream.handle())
        })
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.bind() else {
            return;
        };
        if !self.exec.is_null() {
            // SAFETY: instantiated by `capture`, destroyed once.
            let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
        }
        if !self.graph.is_null() {
            // SAFETY: captured by `capture`, destroyed once.
            let _ = unsafe { sys::cuGraphDestroy(self.graph) };
        }
    }
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Graph").field(&self.exec).finish()
    }
}
