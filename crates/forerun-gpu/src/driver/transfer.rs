//! Contiguous copies between host and device, and the driver's batch of many copies. They are the
//! baselines for gathers.

use super::DeviceBuffer;
use super::api::{self, check, optional};
use super::device_memory::inside;
use super::pinned::HostMemory;
use super::scope::{Command, sealed};
use super::stream::Stream;
use crate::{Gpu, GpuError};
use cudarc::driver::sys::{self, CUmemcpyAttributes, CUresult, CUstream};
use std::marker::PhantomData;

/// A piece of a copy between a host buffer and a device buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte in the host buffer.
    pub host_offset: u64,
    /// Its first byte in the device buffer.
    pub device_offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Piece {
    fn check(&self, host: &dyn HostMemory, device: &DeviceBuffer) -> Result<(), GpuError> {
        inside(self.host_offset, self.len, host.len())?;
        inside(self.device_offset, self.len, device.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferDirection {
    ToDevice,
    ToHost,
}

/// One contiguous copy by a copy engine (`cuMemcpyHtoDAsync`, `cuMemcpyDtoHAsync`).
#[derive(Clone, Debug)]
pub struct Transfer<'a> {
    gpu: Gpu,
    direction: TransferDirection,
    host: u64,
    device: u64,
    len: usize,
    _memory: PhantomData<&'a ()>,
}

impl<'a> Transfer<'a> {
    /// Copies from host to device.
    ///
    /// # Errors
    /// A piece is outside a buffer.
    pub fn to_device(
        host: &'a dyn HostMemory,
        device: &'a DeviceBuffer,
        piece: Piece,
    ) -> Result<Transfer<'a>, GpuError> {
        Transfer::new(TransferDirection::ToDevice, host, device, piece)
    }

    /// Copies from device to host.
    ///
    /// # Errors
    /// A piece is outside a buffer.
    pub fn to_host(
        device: &'a DeviceBuffer,
        host: &'a mut dyn HostMemory,
        piece: Piece,
    ) -> Result<Transfer<'a>, GpuError> {
        Transfer::new(TransferDirection::ToHost, host, device, piece)
    }

    fn new(
        direction: TransferDirection,
        host: &dyn HostMemory,
        device: &DeviceBuffer,
        piece: Piece,
    ) -> Result<Transfer<'a>, GpuError> {
        piece.check(host, device)?;
        Ok(Transfer {
            gpu: device.gpu().clone(),
            direction,
            host: host.address() + piece.host_offset,
            device: device.address() + piece.device_offset,
            len: piece.len as usize,
            _memory: PhantomData,
        })
    }
}

impl sealed::Sealed for Transfer<'_> {}

impl Command for Transfer<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the transfer's device buffer")?;
        let _current = self.gpu.bind()?;
        let host = self.host as *mut std::ffi::c_void;
        match self.direction {
            // SAFETY: both ranges are inside their buffers, which the caller keeps alive.
            TransferDirection::ToDevice => check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(self.device, host, self.len, stream.handle())
            }),
            // SAFETY: as above.
            TransferDirection::ToHost => check("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(host, self.device, self.len, stream.handle())
            }),
        }
    }
}

/// Many copies in one call of `cuMemcpyBatchAsync`. It cannot be captured or put on the default
/// stream.
pub struct BatchTransfer<'a> {
    gpu: Gpu,
    destinations: Vec<u64>,
    sources: Vec<u64>,
    sizes: Vec<usize>,
    call: BatchCall,
    _memory: PhantomData<&'a ()>,
}

/// The function as CUDA 12.8 introduced it and as 13.0 changed it.
type BatchV1 = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut CUmemcpyAttributes,
    *mut usize,
    usize,
    *mut usize,
    CUstream,
) -> CUresult;
type BatchV2 = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut CUmemcpyAttributes,
    *mut usize,
    usize,
    CUstream,
) -> CUresult;

/// The driver's function for many copies.
#[derive(Clone, Copy)]
pub(crate) enum BatchCall {
    V1(BatchV1),
    V2(BatchV2),
}

impl BatchCall {
    pub(crate) fn find() -> Result<BatchCall, GpuError> {
        api::load()?;
        // SAFETY: this is the type in the driver's headers since 13.0.
        if let Ok(call) = unsafe { optional::<BatchV2>("cuMemcpyBatchAsync_v2") } {
            return Ok(BatchCall::V2(call));
        }
        // SAFETY: this is the type in the driver's headers since 12.8.
        unsafe { optional::<BatchV1>("cuMemcpyBatchAsync") }.map(BatchCall::V1)
    }

    /// Enqueues the copies, of which none may be empty, on a stream that is neither the default
    /// stream nor being captured. The lists may be dropped when it returns.
    ///
    /// # Safety
    /// Each source and destination must be memory of so many bytes that the device reaches, and
    /// obey the rules of [`Command::enqueue`]. The lists must be equally long.
    pub(crate) unsafe fn enqueue(
        self,
        stream: &Stream,
        destinations: &[u64],
        sources: &[u64],
        sizes: &[usize],
    ) -> Result<(), GpuError> {
        let _current = stream.gpu().bind()?;
        let nowhere = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        let mut attributes = CUmemcpyAttributes {
            // Sources are read in stream order, as in any other copy.
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        // The single set of attributes applies from copy 0 on.
        let mut first = 0usize;
        let count = sizes.len();
        // The driver only reads the lists; its C interface takes them as mutable.
        let destinations = destinations.as_ptr().cast_mut();
        let sources = sources.as_ptr().cast_mut();
        let sizes = sizes.as_ptr().cast_mut();
        let result = match self {
            // SAFETY: three lists of `count` entries, and one set of attributes with its one start.
            // The caller guarantees the ranges.
            BatchCall::V2(call) => unsafe {
                call(
                    destinations,
                    sources,
                    sizes,
                    count,
                    &mut attributes,
                    &mut first,
                    1,
                    stream.handle(),
                )
            },
            BatchCall::V1(call) => {
                let mut failed = 0usize;
                // SAFETY: as above, with a place for the number of the copy that failed.
                unsafe {
                    call(
                        destinations,
                        sources,
                        sizes,
                        count,
                        &mut attributes,
                        &mut first,
                        1,
                        &mut failed,
                        stream.handle(),
                    )
                }
            }
        };
        check("cuMemcpyBatchAsync", result)
    }
}

impl<'a> BatchTransfer<'a> {
    /// Copies from host to device.
    ///
    /// # Errors
    /// The driver lacks the function (before CUDA 12.8), or a piece is outside a buffer.
    pub fn to_device(
        host: &'a dyn HostMemory,
        device: &'a DeviceBuffer,
        pieces: &[Piece],
    ) -> Result<BatchTransfer<'a>, GpuError> {
        BatchTransfer::new(TransferDirection::ToDevice, host, device, pieces)
    }

    /// Copies from device to host.
    ///
    /// # Errors
    /// Those of [`BatchTransfer::to_device`].
    pub fn to_host(
        device: &'a DeviceBuffer,
        host: &'a mut dyn HostMemory,
        pieces: &[Piece],
    ) -> Result<BatchTransfer<'a>, GpuError> {
        BatchTransfer::new(TransferDirection::ToHost, host, device, pieces)
    }

    fn new(
        direction: TransferDirection,
        host: &dyn HostMemory,
        device: &DeviceBuffer,
        pieces: &[Piece],
    ) -> Result<BatchTransfer<'a>, GpuError> {
        let call = BatchCall::find()?;
        pieces
            .iter()
            .try_for_each(|piece| piece.check(host, device))?;
        // The function rejects empty pieces.
        let pieces = || pieces.iter().filter(|piece| piece.len > 0);
        let on_host = pieces().map(|piece| host.address() + piece.host_offset);
        let on_device = pieces().map(|piece| device.address() + piece.device_offset);
        let (sources, destinations) = match direction {
            TransferDirection::ToDevice => (on_host.collect(), on_device.collect()),
            TransferDirection::ToHost => (on_device.collect(), on_host.collect()),
        };
        Ok(BatchTransfer {
            gpu: device.gpu().clone(),
            destinations,
            sources,
            sizes: pieces().map(|piece| piece.len as usize).collect(),
            call,
            _memory: PhantomData,
        })
    }
}

impl sealed::Sealed for BatchTransfer<'_> {}

impl Command for BatchTransfer<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the transfer's device buffer")?;
        if self.sizes.is_empty() {
            return Ok(());
        }
        // SAFETY: all ranges are inside buffers that the caller keeps alive, and the lists were
        // made together.
        unsafe {
            self.call
                .enqueue(stream, &self.destinations, &self.sources, &self.sizes)
        }
    }
}
