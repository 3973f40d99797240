//! Streams, which run work in order, and events, which mark a point in that order.

use super::api::{check, optional};
use crate::{Gpu, GpuError};
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};
use std::fmt;
use std::time::Duration;

/// A queue of work on a device. Work on one stream runs in order; work on two streams may run at
/// the same time.
pub struct Stream {
    gpu: Gpu,
    handle: CUstream,
    owned: bool,
}

// SAFETY: a stream's handle may be used from any thread, and by several at a time, because the
// driver locks it.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream that neither waits for the default stream nor makes it wait.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Gpu) -> Result<Stream, GpuError> {
        Stream::with_priority(gpu, 0)
    }

    /// Like [`Stream::new`], with the highest priority: if blocks of several streams wait for a
    /// multiprocessor, the blocks of this stream go first. A copy that runs next to a long kernel
    /// thus starts sooner.
    ///
    /// # Errors
    /// The driver's error.
    pub fn high_priority(gpu: &Gpu) -> Result<Stream, GpuError> {
        let _current = gpu.bind()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the driver writes two numbers to the given places.
        check("cuCtxGetStreamPriorityRange", unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        Stream::with_priority(gpu, greatest)
    }

    fn with_priority(gpu: &Gpu, priority: i32) -> Result<Stream, GpuError> {
        let _current = gpu.bind()?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the device's context is current; the driver writes one handle.
        check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(&mut handle, flags, priority)
        })?;
        Ok(Stream {
            gpu: gpu.clone(),
            handle,
            owned: true,
        })
    }

    /// Wraps a stream that something else made, such as PyTorch's current one. It is not destroyed
    /// on drop. Null is the default stream.
    ///
    /// # Safety
    /// `handle` must be a stream of the device's primary context and outlive the returned value.
    /// While it is being captured, put commands on it only with
    /// [`Command::enqueue`](super::Command), not in a scope: a scope cannot wait for a replay.
    pub unsafe fn borrowed(gpu: &Gpu, handle: *mut std::ffi::c_void) -> Stream {
        Stream {
            gpu: gpu.clone(),
            handle: handle.cast(),
            owned: false,
        }
    }

    /// The stream's device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Waits until all work on the stream is done.
    ///
    /// # Errors
    /// The device's error if any of the work failed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _current = self.gpu.bind()?;
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.handle)
        })
    }

    /// Records the event at the current end of the stream.
    ///
    /// # Errors
    /// The event belongs to another device, or the driver failed.
    pub fn record(&self, event: &Event) -> Result<(), GpuError> {
        self.expect(&event.gpu, "the event")?;
        let _current = self.gpu.bind()?;
        // SAFETY: stream and event are alive and belong to the same context.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(event.handle, self.handle)
        })
    }

    /// Makes later work on the stream wait for the event.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait(&self, event: &Event) -> Result<(), GpuError> {
        let _current = self.gpu.bind()?;
        // SAFETY: stream and event are alive; zero is the flag for an ordinary wait.
        check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(self.handle, event.handle, 0)
        })
    }

    /// The driver's handle.
    pub(super) fn handle(&self) -> CUstream {
        self.handle
    }

    /// What tells it apart from the device's other streams.
    pub(crate) fn id(&self) -> usize {
        self.handle.addr()
    }

    /// Whether it is the device's legacy default stream, on which some calls are not possible.
    pub(crate) fn is_default(&self) -> bool {
        /// `CU_STREAM_LEGACY`, another name of the default stream.
        const LEGACY: usize = 1;
        self.handle.is_null() || self.handle.addr() == LEGACY
    }

    /// Whether its handle names another stream in each thread.
    pub(crate) fn is_per_thread(&self) -> bool {
        /// `CU_STREAM_PER_THREAD`.
        const PER_THREAD: usize = 2;
        self.handle.addr() == PER_THREAD
    }

    /// Checks that `gpu` is the stream's device.
    pub(crate) fn expect(&self, gpu: &Gpu, what: &'static str) -> Result<(), GpuError> {
        self.gpu.expect(gpu, what)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_current) = self.gpu.bind()
        {
            // Work that is still on the stream continues: the driver frees the stream afterwards.
            // SAFETY: the stream was made by `with_priority` and is destroyed once.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.handle).finish()
    }
}

/// A point in the order of a stream's work, and the time at which the stream passed it.
pub struct Event {
    gpu: Gpu,
    handle: CUevent,
}

// SAFETY: an event's handle may be used from any thread, and by several at a time, because the
// driver locks it.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that records the time.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Gpu) -> Result<Event, GpuError> {
        Event::with_flags(gpu, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Creates an event without a time, which costs the device less.
    pub(crate) fn untimed(gpu: &Gpu) -> Result<Event, GpuError> {
        Event::with_flags(gpu, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with_flags(gpu: &Gpu, flags: sys::CUevent_flags) -> Result<Event, GpuError> {
        let _current = gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the device's context is current; the driver writes one handle.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut handle, flags as u32)
        })?;
        Ok(Event {
            gpu: gpu.clone(),
            handle,
        })
    }

    /// Waits until the stream has passed the event. The host then sees all earlier writes.
    ///
    /// # Errors
    /// The device's error if any of the earlier work failed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _current = self.gpu.bind()?;
        // SAFETY: the event is alive.
        check("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(self.handle)
        })
    }

    /// Whether all work before the event is complete. Does not wait.
    ///
    /// # Errors
    /// The device's error if any of the earlier work failed.
    pub fn is_complete(&self) -> Result<bool, GpuError> {
        let _current = self.gpu.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.handle) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    /// The device time from `start` to this event, to about half a microsecond. Waits for both.
    ///
    /// # Errors
    /// The device's error if any of the earlier work failed, or if one of the events was never
    /// recorded.
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration, GpuError> {
        start.synchronize()?;
        self.synchronize()?;
        type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
        // The bindings use a second name of this function, which only newer drivers have.
        // SAFETY: the type is the driver's. An event exists, so the driver is loaded.
        let elapsed = unsafe { optional::<Elapsed>("cuEventElapsedTime") }?;
        let mut ms = 0f32;
        // SAFETY: both events are alive; the driver writes one number.
        check("cuEventElapsedTime", unsafe {
            elapsed(&mut ms, start.handle, self.handle)
        })?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: the event was made by `new` and is destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.handle).finish()
    }
}
