//! Hot pools on a GPU: each call puts one launch on the caller's stream and returns.
//!
//! ```text
//!   stream      given, or the current one of the library of `rows`
//!   positions, requests, out, batch    tensors on the device, exported with DLPack for that stream
//!   host        pinned memory, found by the driver
//! ```
//!
//! A call can be captured in a graph. Tensors of PyTorch and CuPy on their current stream need no
//! more, because their memory is reused in its order; the pool keeps others until the launch has
//! run. Nobody may write them until then, nor free them while a graph is replayed.

use std::ops::Range;

use forerun::gpu::gather::{IndexType, Locate as _, MemoryType};
use forerun::gpu::hot_pool::{
    DeviceHotPlan, DeviceHotPool, DeviceHotPoolBatch, HotPoolCommand, HotPoolCounts, HotPoolError,
    HotPoolOptions,
};
use forerun::gpu::{Command, DeviceSlice, Gpu, GpuError, HostMemory, Stream};
use pyo3::prelude::*;

use crate::cuda::{CallersStream, Tensor, is_in_stream_order, library_of, opened, stream_of};
use crate::dlpack::Exported;
use crate::errors::{device_exception, invalid};
use crate::hot_pool_arguments::{Arrays, batch_of, hot_pool_exception};
use crate::in_flight::TensorsInFlight;
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
    /// Dropped before the tensors: to free its memory waits for the device, and thereby for graphs.
    pool: DeviceHotPool,
    in_flight: TensorsInFlight,
}

impl Drop for DevicePool {
    fn drop(&mut self) {
        self.in_flight.finish();
    }
}

/// The tensors of a call.
struct CallTensors {
    gpu: Gpu,
    stream: CallersStream,
    /// The library whose current stream it is. `None` if the caller named it.
    library: Option<String>,
    /// What keeps the memory that could be reused before the launch has run.
    kept: Vec<Py<PyAny>>,
}

impl CallTensors {
    /// A tensor on the device that the pool holds, and its memory.
    fn held<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        what: &str,
    ) -> PyResult<(Tensor<'py>, DeviceSlice<'static>)> {
        let tensor = Tensor::new(object, what, self.stream)?;
        let here = self.gpu.info().ordinal;
        if tensor.device != here {
            return Err(invalid(format!(
                "`{what}` is on CUDA device {}, but the pool is on CUDA device {here}",
                tensor.device
            )));
        }
        let bytes = tensor.bytes(what)?;
        // SAFETY: the tensor states its size. Its memory stays allocated until the launch has run:
        // the pool holds the tensor, or keeps its capsule, or its library reuses memory in the
        // order of the stream.
        let slice = unsafe { DeviceSlice::from_raw(&self.gpu, tensor.address, bytes) };
        Ok((tensor, slice))
    }

    /// A tensor on the device that is used for this call, and its memory.
    fn used<'py>(
        &mut self,
        object: &Bound<'py, PyAny>,
        what: &str,
    ) -> PyResult<(Tensor<'py>, DeviceSlice<'static>)> {
        let (tensor, slice) = self.held(object, what)?;
        let is_of_stream = self.library == Some(library_of(object)?);
        if !(is_of_stream && is_in_stream_order(object)?) {
            self.kept.push(tensor.keep());
        }
        Ok((tensor, slice))
    }

    /// A tensor of int32 that is used for this call, and its memory.
    fn integers<'py>(
        &mut self,
        object: &Bound<'py, PyAny>,
        what: &'static str,
    ) -> PyResult<(Tensor<'py>, DeviceSlice<'static>)> {
        let (tensor, slice) = self.used(object, what)?;
        match tensor.integer()?.bytes() * 8 {
            32 => Ok((tensor, slice)),
            bits => Err(invalid(format!("`{what}` must be int32, not int{bits}"))),
        }
    }

    fn requests(
        &mut self,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<(DeviceSlice<'static>, IndexType)> {
        let (tensor, slice) = self.used(object, "requests")?;
        Ok((slice, tensor.integer()?))
    }
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
            Ok(DevicePool {
                gpu,
                pool,
                in_flight: TensorsInFlight::default(),
            })
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
        let mut tensors = self.tensors(stream, rows)?;
        let mut call = {
            let (tensor, positions) = tensors.integers(positions, "positions")?;
            let (requests, count) = batch_of(tensor.shape())?;
            let number = |number: u64| {
                u32::try_from(number).map_err(|_| invalid("`positions` has too many positions"))
            };
            DeviceHotPoolBatch::new(layer, (number(requests)?, number(count)?), positions)
        };
        if let Some(requests) = requests {
            call = call.requests(tensors.requests(requests)?);
        }
        if let Some(batch) = batch {
            call = call.batch_at(tensors.integers(batch, "batch")?.1);
        }
        if let Some(host_rows) = &arrays.host_rows {
            call = call.host_rows(tensors.held(host_rows.bind(py), "host_rows")?.1);
        }
        let (tensor, out) = tensors.integers(out, "out")?;
        tensor.expect_writable("out")?;
        let (host, (_, device)) = (self.pinned(py, arrays)?, tensors.held(rows, "rows")?);
        let command = self.pool.resolve(&call, &host, &device, &out, plan);
        self.enqueue(tensors, command)
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
        let mut tensors = self.tensors(stream, rows)?;
        let batch_at = match batch {
            None => None,
            Some(batch) => Some(tensors.integers(batch, "batch")?.1),
        };
        let batch = (self.pool.options().requests, batch_at.as_ref());
        let (host, (_, device)) = (self.pinned(py, arrays)?, tensors.held(rows, "rows")?);
        let command = self.pool.replay(plan, layers, batch, &host, &device);
        self.enqueue(tensors, command)
    }

    pub(crate) fn clear(
        &self,
        py: Python<'_>,
        arrays: &Arrays,
        requests: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let mut tensors = self.tensors(stream, arrays.rows.bind(py))?;
        let (slice, integer) = tensors.requests(requests)?;
        let batch = (slice.len() as u64 / integer.bytes()) as u32;
        self.enqueue(tensors, self.pool.clear(batch, &slice, integer))
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

    /// The tensors of a call on the stream that was named, or on the current one of the rows'
    /// library.
    fn tensors(
        &self,
        stream: Option<&Bound<'_, PyAny>>,
        rows: &Bound<'_, PyAny>,
    ) -> PyResult<CallTensors> {
        let library = match stream {
            Some(_) => None,
            None => Some(library_of(rows)?),
        };
        Ok(CallTensors {
            gpu: self.gpu.clone(),
            stream: stream_of(stream, rows)?,
            library,
            kept: Vec::new(),
        })
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

    /// Puts a command on the stream, and keeps what its launch needs.
    fn enqueue(
        &self,
        tensors: CallTensors,
        command: Result<HotPoolCommand<'_>, HotPoolError>,
    ) -> PyResult<()> {
        let command = command.map_err(hot_pool_exception)?;
        enqueue(&self.gpu, tensors.stream, &command).map_err(device_exception)?;
        self.in_flight.keep(&self.gpu, tensors.stream, tensors.kept)
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
