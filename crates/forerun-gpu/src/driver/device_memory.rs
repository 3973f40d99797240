//! Device memory.

use super::api::check;
use super::stream::Stream;
use crate::{Gpu, GpuError};
use cudarc::driver::sys::{self, CUresult};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes in device memory, freed on drop.
///
/// Its methods wait until they are done. They do not wait for work on other streams: order that
/// with events or the end of a scope.
pub struct DeviceBuffer {
    gpu: Gpu,
    address: u64,
    len: usize,
}

impl DeviceBuffer {
    /// Allocates `len` bytes with unspecified content. The address is a multiple of 256.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or another error of the driver.
    pub fn new(gpu: &Gpu, len: usize) -> Result<DeviceBuffer, GpuError> {
        let _current = gpu.bind()?;
        let mut address = 0;
        // The driver rejects zero bytes.
        // SAFETY: the device's context is current; the driver writes one address.
        match unsafe { sys::cuMemAlloc_v2(&mut address, len.max(1)) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(GpuError::OutOfMemory {
                bytes: len,
                memory: "device memory",
            }),
            result => {
                check("cuMemAlloc", result)?;
                Ok(DeviceBuffer {
                    gpu: gpu.clone(),
                    address,
                    len,
                })
            }
        }
    }

    /// Allocates a buffer with a copy of `bytes`.
    ///
    /// # Errors
    /// Those of [`DeviceBuffer::new`] and [`DeviceBuffer::write`].
    pub fn from_slice(gpu: &Gpu, bytes: &[u8]) -> Result<DeviceBuffer, GpuError> {
        let buffer = DeviceBuffer::new(gpu, bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// The buffer's device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The device address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets all bytes to `byte`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn fill(&self, byte: u8) -> Result<(), GpuError> {
        if self.is_empty() {
            return Ok(());
        }
        let _current = self.gpu.bind()?;
        // SAFETY: the whole range belongs to this buffer.
        check("cuMemsetD8", unsafe {
            sys::cuMemsetD8_v2(self.address, byte, self.len)
        })?;
        self.wait()
    }

    /// Sets all bytes to `byte` on a stream, and waits for it.
    pub(crate) fn fill_on(&self, stream: &Stream, byte: u8) -> Result<(), GpuError> {
        // SAFETY: the whole range belongs to this buffer.
        unsafe { fill_device(stream, self.address, byte, self.len) }?;
        stream.synchronize()
    }

    /// Copies `bytes` into the buffer at byte `offset`.
    ///
    /// # Errors
    /// The range is outside the buffer, or the driver failed.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        let address = self.range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _current = self.gpu.bind()?;
        // SAFETY: the device's range was checked, and the slice has the same length.
        check("cuMemcpyHtoD", unsafe {
            sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len())
        })?;
        self.wait()
    }

    /// Copies bytes from byte `offset` of the buffer into `bytes`.
    ///
    /// # Errors
    /// The range is outside the buffer, or the driver failed.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        let address = self.range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _current = self.gpu.bind()?;
        // SAFETY: the device's range was checked, and the slice has the same length.
        check("cuMemcpyDtoH", unsafe {
            sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len())
        })?;
        self.wait()
    }

    /// Copies the whole buffer.
    ///
    /// # Errors
    /// The driver's error.
    pub fn to_vec(&self) -> Result<Vec<u8>, GpuError> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// A part of the buffer.
    ///
    /// # Errors
    /// The range is outside the buffer.
    pub fn slice(&self, range: Range<usize>) -> Result<DeviceSlice<'_>, GpuError> {
        let len = range.len();
        Ok(DeviceSlice {
            address: self.range(range.start as u64, len as u64)?,
            gpu: self.gpu.clone(),
            len,
            _memory: PhantomData,
        })
    }

    /// Checks that the buffer has at least this many bytes.
    pub(crate) fn expect_bytes(&self, len: u64) -> Result<(), GpuError> {
        inside(0, len, self.len)
    }

    /// The address of a range, which must be inside the buffer.
    pub(super) fn range(&self, offset: u64, len: u64) -> Result<u64, GpuError> {
        inside(offset, len, self.len)?;
        Ok(self.address + offset)
    }

    /// Waits for the work on the default stream. A copy from ordinary memory may return before the
    /// device has the bytes, and a fill always does.
    fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: every caller has made the device's context current; null is its default stream.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(std::ptr::null_mut())
        })
    }
}

/// Bytes in device memory that something else owns: a part of a [`DeviceBuffer`], or an allocation
/// of another library.
///
/// ```no_run
/// use forerun_gpu::{DeviceBuffer, DeviceSlice, Gpu, GpuError};
///
/// let buffer = DeviceBuffer::new(&Gpu::open(0)?, 4096)?;
/// let (all, part) = (DeviceSlice::from(&buffer), buffer.slice(256..512)?);
/// assert_eq!((all.len(), part.address() - all.address()), (4096, 256));
/// # Ok::<(), GpuError>(())
/// ```
#[derive(Clone)]
pub struct DeviceSlice<'a> {
    gpu: Gpu,
    address: u64,
    len: usize,
    _memory: PhantomData<&'a ()>,
}

impl DeviceSlice<'_> {
    /// A slice of `len` bytes at a given address.
    ///
    /// # Safety
    /// They must be memory of this device and stay allocated for as long as the value lives.
    pub unsafe fn from_raw(gpu: &Gpu, address: u64, len: usize) -> DeviceSlice<'static> {
        DeviceSlice {
            gpu: gpu.clone(),
            address,
            len,
            _memory: PhantomData,
        }
    }

    /// The slice's device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The device address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<'a> From<&'a DeviceBuffer> for DeviceSlice<'a> {
    fn from(buffer: &'a DeviceBuffer) -> DeviceSlice<'a> {
        DeviceSlice {
            gpu: buffer.gpu.clone(),
            address: buffer.address,
            len: buffer.len,
            _memory: PhantomData,
        }
    }
}

impl fmt::Debug for DeviceSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceSlice({:#x}, {} bytes)", self.address, self.len)
    }
}

/// Sets bytes of a device's memory to `byte`, on a stream.
///
/// # Safety
/// As many bytes must be allocated there until the stream has done it, and nothing else may use
/// them.
pub(crate) unsafe fn fill_device(
    stream: &Stream,
    address: u64,
    byte: u8,
    len: usize,
) -> Result<(), GpuError> {
    if len == 0 {
        return Ok(());
    }
    let _current = stream.gpu().bind()?;
    // SAFETY: the caller guarantees the device's bytes.
    check("cuMemsetD8Async", unsafe {
        sys::cuMemsetD8Async(address, byte, len, stream.handle())
    })
}

/// Copies to memory that a device reaches by this address, on a stream, and waits for it.
///
/// # Safety
/// As many bytes must be allocated there until this returns, and nothing else may use them.
pub(crate) unsafe fn copy_to_device(
    stream: &Stream,
    address: u64,
    bytes: &[u8],
) -> Result<(), GpuError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let _current = stream.gpu().bind()?;
    // SAFETY: the caller guarantees the device's bytes. The slice is borrowed until the wait below.
    let copied = check("cuMemcpyHtoDAsync", unsafe {
        sys::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), stream.handle())
    });
    // Even after a failure: part of the copy may be in progress.
    let waited = stream.synchronize();
    copied.and(waited)
}

/// Copies from memory that a device reaches by this address, on a stream, and waits for it.
///
/// # Safety
/// As for [`copy_to_device`].
pub(crate) unsafe fn copy_from_device(
    stream: &Stream,
    address: u64,
    bytes: &mut [u8],
) -> Result<(), GpuError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let _current = stream.gpu().bind()?;
    // SAFETY: as in `copy_to_device`; the slice is borrowed mutably.
    let copied = check("cuMemcpyDtoHAsync", unsafe {
        sys::cuMemcpyDtoHAsync_v2(
            bytes.as_mut_ptr().cast(),
            address,
            bytes.len(),
            stream.handle(),
        )
    });
    let waited = stream.synchronize();
    copied.and(waited)
}

/// Checks that a range is inside a buffer.
pub(super) fn inside(offset: u64, len: u64, buffer_len: usize) -> Result<(), GpuError> {
    let buffer_len = buffer_len as u64;
    match offset.checked_add(len) {
        Some(end) if end <= buffer_len => Ok(()),
        _ => Err(GpuError::OutOfBounds {
            offset,
            len,
            buffer_len,
        }),
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.bind() {
            // The driver first waits for all work on the device.
            // SAFETY: the address comes from cuMemAlloc and is freed once.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:#x}, {} bytes)", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_lie_inside_even_where_its_end_overflows() {
        assert!(inside(0, 0, 0).is_ok() && inside(3, 5, 8).is_ok());
        for (offset, len) in [(0, 9), (9, 0), (8, 1), (u64::MAX, 2), (1, u64::MAX)] {
            let error = inside(offset, len, 8).unwrap_err().to_string();
            assert!(error.contains("buffer of 8 bytes"), "{error}");
        }
    }
}
