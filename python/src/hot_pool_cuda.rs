//! Hot pools on a GPU: each call puts one launch on the caller's stream and returns.
//!
//! ```text
//!   stream      given, or the current one of the library of `rows`
//!   positions, requests, out, batch    tensors on the device, exported with DLPack for that stream
//!   host        pinned memory, found by the driver
//! ```
//!
//! A call can be captured in a graph. The tensors must stay as they are until the launch has run,
//! in a graph as long as it is replayed, as with every kernel of PyTorch.

use std::ops::Range;

use forerun::gpu::gather::Locate as _;
use forerun::gpu::gather::MemoryType;
use forerun::gpu::hot_pool::{
    DeviceHotPlan, DeviceHotPool, DeviceHotPoolBatch, HotPoolCommand, HotPoolCounts, HotPoolError,
    HotPoolOptions,
};
use forerun::gpu::{Command, DeviceSlice, Gpu, GpuError, HostMemory, Stream};
use pyo3::prelude::*;

use crate::cuda::{CallersStream, Tensor, opened, stream_of};
use crate::dlpack::Exported;
use crate::errors::{device_exception, invalid};
use crate::hot_pool_arguments::{Arrays, batch_of, hot_pool_exception};
use crate::rows::readable_rows;

/// The device's number, the shape, and the bytes of an element of a tensor on a device.
pub(crate) fn shape_of(
    object: &Bound<'_, PyAny>,
    what: &str,
    stream: CallersStream,
) -> PyResult<(usize, Vec<u64>, u64)> {
    let device = Tensor::new(object, what, stream)?.device;
    let exported = Exported::new(object, what, Some(stream.number()))?;
    Ok((
        device,
        exported.shape.clone(),
        exported.element_bits.div_ceil(8),
    ))
}

/// Pinned memory that Python holds.
struct Pinned {
    gpu: Gpu,
    address: u64,
    device_address: u64,
    len: usize,
}

// SAFETY: the driver has located the memory as pinned and mapped. The pool's arrays keep it, and
// nothing here gives out references to it.
unsafe impl HostMemory for Pinned {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
    fn address(&self) -> u64 {
        self.address
    }
    fn device_address(&self) -> u64 {
        self.device_address
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// A pool on a device.
pub(crate) struct DevicePool {
    gpu: Gpu,
    pool: DeviceHotPool,
}

impl DevicePool {
    pub(crate) fn new(
        py: Python<'_>,
        device: usize,
        options: HotPoolOptions,
    ) -> PyResult<DevicePool> {
        py.detach(|| {
            let gpu = opened(device).map_err(device_exception)?;
            let pool = DeviceHotPool::new(&gpu, options).map_err(hot_pool_exception)?;
            Ok(DevicePool { gpu, pool })
        })
    }

    pub(crate) fn new_plan(&self, py: Python<'_>) -> Result<DeviceHotPlan, HotPoolError> {
        py.detach(|| self.pool.new_plan())
    }

    #[expect(clippy::too_many_arguments, reason = "those of `HotPool.resolve`")]
    pub(crate) fn resolve(
        &self,
        py: Python<'_>,
        arrays: &Arrays,
        layer: u32,
        positions: &Bound<'_, PyAny>,
        requests: Option<&Bound<'_, PyAny>>,
        batch: Option<&Bound<'_, PyAny>>,
        out: &Bound<'_, PyAny>,
        plan: Option<&DeviceHotPlan>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let rows = arrays.rows.bind(py);
        let stream = stream_of(stream, rows)?;
        let (_, shape, _) = shape_of(positions, "positions", stream)?;
        let (requests_given, count) = batch_of(&shape)?;
        let tensor = |object: &Bound<'_, PyAny>, what| self.integers(object, what, stream);
        let mut call = {
            let (positions, _) = tensor(positions, "positions")?;
            let number = |number: u64| {
                u32::try_from(number).map_err(|_| invalid("`positions` has too many positions"))
            };
            DeviceHotPoolBatch::new(layer, (number(requests_given)?, number(count)?), positions)
        };
        if let Some(requests) = requests {
            call = call.requests(self.requests(requests, stream)?);
        }
        if let Some(batch) = batch {
            call = call.batch_at(tensor(batch, "batch")?.0);
        }
        if let Some(host_rows) = &arrays.host_rows {
            call = call.host_rows(self.slice(host_rows.bind(py), "host_rows", stream)?);
        }
        let (out, is_writable) = tensor(out, "out")?;
        if !is_writable {
            return Err(invalid("`out` cannot be written: it is read-only"));
        }
        let (host, device) = (self.pinned(py, arrays)?, self.slice(rows, "rows", stream)?);
        let command = self.pool.resolve(&call, &host, &device, &out, plan);
        self.enqueue(stream, command)
    }

    pub(crate) fn replay(
        &self,
        py: Python<'_>,
        arrays: &Arrays,
        plan: &DeviceHotPlan,
        layers: Range<u32>,
        batch: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let rows = arrays.rows.bind(py);
        let stream = stream_of(stream, rows)?;
        let batch_at = match batch {
            None => None,
            Some(batch) => Some(self.integers(batch, "batch", stream)?.0),
        };
        let batch = (self.pool.options().requests, batch_at.as_ref());
        let (host, device) = (self.pinned(py, arrays)?, self.slice(rows, "rows", stream)?);
        let command = self.pool.replay(plan, layers, batch, &host, &device);
        self.enqueue(stream, command)
    }

    pub(crate) fn clear(
        &self,
        py: Python<'_>,
        arrays: &Arrays,
        requests: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stream = stream_of(stream, arrays.rows.bind(py))?;
        let (slice, integer) = self.requests(requests, stream)?;
        let batch = (slice.len() as u64 / integer.bytes()) as u32;
        self.enqueue(stream, self.pool.clear(batch, &slice, integer))
    }

    pub(crate) fn counts(
        &self,
        py: Python<'_>,
        arrays: &Arrays,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<HotPoolCounts> {
        let handle = stream_of(stream, arrays.rows.bind(py))?.handle() as usize;
        py.detach(|| {
            // SAFETY: the caller guarantees a stream of the device that outlives the call.
            let stream = unsafe { Stream::borrowed(&self.gpu, handle as *mut _) };
            self.pool.counts(&stream).map_err(hot_pool_exception)
        })
    }

    /// The memory of a tensor on the device.
    fn slice(
        &self,
        object: &Bound<'_, PyAny>,
        what: &str,
        stream: CallersStream,
    ) -> PyResult<DeviceSlice<'static>> {
        let tensor = Tensor::new(object, what, stream)?;
        self.expect_here(tensor.device, what)?;
        let bytes = tensor.bytes(what)?;
        // SAFETY: the tensor states its size. Its object keeps the memory, and the caller
        // guarantees that it stays as it is until the launch has run.
        Ok(unsafe { DeviceSlice::from_raw(&self.gpu, tensor.address, bytes) })
    }

    /// The memory of a tensor of int32, and whether it may be written.
    fn integers(
        &self,
        object: &Bound<'_, PyAny>,
        what: &'static str,
        stream: CallersStream,
    ) -> PyResult<(DeviceSlice<'static>, bool)> {
        let tensor = Tensor::new(object, what, stream)?;
        let bits = tensor.integer()?.bytes() * 8;
        if bits != 32 {
            return Err(invalid(format!("`{what}` must be int32, not int{bits}")));
        }
        let is_writable = tensor.expect_writable(what).is_ok();
        Ok((self.slice(object, what, stream)?, is_writable))
    }

    fn requests(
        &self,
        object: &Bound<'_, PyAny>,
        stream: CallersStream,
    ) -> PyResult<(DeviceSlice<'static>, forerun::gpu::gather::IndexType)> {
        let integer = Tensor::new(object, "requests", stream)?.integer()?;
        Ok((self.slice(object, "requests", stream)?, integer))
    }

    fn expect_here(&self, device: usize, what: &str) -> PyResult<()> {
        let here = self.gpu.info().ordinal;
        if device == here {
            return Ok(());
        }
        Err(invalid(format!(
            "`{what}` is on CUDA device {device}, but the pool is on CUDA device {here}"
        )))
    }

    fn pinned(&self, py: Python<'_>, arrays: &Arrays) -> PyResult<Pinned> {
        let host = readable_rows(arrays.host.bind(py), "host")?;
        let bytes = host.as_slice()?;
        let address = bytes.as_ptr() as u64;
        let found = self
            .gpu
            .locate(address)
            .map_err(crate::errors::gather_exception)?;
        if found.memory != MemoryType::Pinned {
            return Err(invalid(
                "`host` must be pinned memory, which the GPU can reach: use `pin_memory()`",
            ));
        }
        Ok(Pinned {
            gpu: self.gpu.clone(),
            address,
            device_address: found.device_address,
            len: bytes.len(),
        })
    }

    fn enqueue(
        &self,
        stream: CallersStream,
        command: Result<HotPoolCommand<'_>, HotPoolError>,
    ) -> PyResult<()> {
        let command = command.map_err(hot_pool_exception)?;
        enqueue(&self.gpu, stream, &command).map_err(device_exception)
    }
}

/// Puts a command on the caller's stream.
pub(crate) fn enqueue(
    gpu: &Gpu,
    stream: CallersStream,
    command: &HotPoolCommand<'_>,
) -> Result<(), GpuError> {
    // SAFETY: the caller guarantees a stream of the device's primary context that outlives the
    // call.
    let stream = unsafe { Stream::borrowed(gpu, stream.handle()) };
    // SAFETY: the caller keeps the tensors until the launch has run, and the pool keeps its own
    // memory, whose release waits for the device.
    unsafe { command.enqueue(&stream) }
}
