//! Host memory that the device can read and write over the link: its pages are locked, so that they
//! stay where they are.
//!
//! | kind            | made by             | for                                               |
//! |-----------------|---------------------|---------------------------------------------------|
//! | `PinnedBuffer`  | `cuMemHostAlloc`    | memory of our own                                 |
//! | `Registered`    | `cuMemHostRegister` | memory that the caller has, a file's mapping, say |
//!
//! Neither is write-combined: such memory is fast for the CPU to write in order and very slow
//! for it to read, and a table on the host is read by the CPU too.
//!
//! The device's address is asked of the driver (`cuMemHostGetDevicePointer`): on some machines it
//! differs from the host's.

use super::api::check;
use crate::{Gpu, GpuError};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Host memory that the device can reach.
///
/// # Safety
/// `address` and `len` must name bytes that are pinned, mapped for the device of `gpu` and alive as
/// long as the value is borrowed; no other value may give out references to them.
pub unsafe trait HostMemory {
    /// The device for which it was made; with the flag `PORTABLE`, others reach it too.
    fn gpu(&self) -> &Gpu;
    /// The host's address of the first byte.
    fn address(&self) -> u64;
    /// The device's address of the first byte.
    fn device_address(&self) -> u64;
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The device's address of pinned host memory.
fn device_address(host: *mut c_void) -> Result<u64, GpuError> {
    let mut address = 0;
    // SAFETY: the caller has a context bound; the driver looks the address up and writes another.
    check("cuMemHostGetDevicePointer", unsafe {
        sys::cuMemHostGetDevicePointer_v2(&mut address, host, 0)
    })?;
    Ok(address)
}

/// Pinned host memory of our own, zeroed at first; freed when dropped.
pub struct PinnedBuffer {
    gpu: Gpu,
    host: NonNull<u8>,
    device_address: u64,
    len: usize,
}

// SAFETY: it owns its bytes like a boxed slice, and the driver frees them from any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared, it gives out shared slices only.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// `len` zeroed bytes; the address is a multiple of the page.
    ///
    /// # Errors
    /// No room (pinned memory cannot be swapped out), or another refusal of the driver.
    pub fn new(gpu: &Gpu, len: usize) -> Result<PinnedBuffer, GpuError> {
        gpu.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let mut host = std::ptr::null_mut();
        // SAFETY: a context is current; the driver writes one address.
        match unsafe { sys::cuMemHostAlloc(&mut host, len.max(1), flags) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                return Err(GpuError::OutOfMemory {
                    bytes: len,
                    memory: "pinned host memory",
                });
            }
            result => check("cuMemHostAlloc", result)?,
        }
        let Some(pointer) = NonNull::new(host.cast::<u8>()) else {
            return Err(GpuError::OutOfMemory {
                bytes: len,
                memory: "pinned host memory",
            });
        };
        // Made before anything can fail, so that the memory is freed.
        let mut buffer = PinnedBuffer {
            gpu: gpu.clone(),
            host: pointer,
            device_address: 0,
            len,
        };
        // SAFETY: `len` bytes have just been allocated there.
        unsafe { pointer.as_ptr().write_bytes(0, len) };
        buffer.device_address = device_address(host)?;
        Ok(buffer)
    }

    /// Its bytes. While a gather from it runs, they can be read as well.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes, zeroed when they were allocated, owned by this value. What makes
        // the device write to them borrows this value mutably until the device is done.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.len) }
    }

    /// Its bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`. What makes the device use them borrows this value until the
        // device is done, so nothing does while it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr(), self.len) }
    }
}

// SAFETY: cuMemHostAlloc gave the memory pinned, portable and mapped; it is freed when the value is
// dropped, and its slices borrow the value.
unsafe impl HostMemory for PinnedBuffer {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
    fn address(&self) -> u64 {
        self.host.as_ptr() as u64
    }
    fn device_address(&self) -> u64 {
        self.device_address
    }
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: the address comes from cuMemHostAlloc and is freed once.
            let _ = unsafe { sys::cuMemFreeHost(self.host.as_ptr().cast()) };
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({:p}, {} bytes)", self.host, self.len)
    }
}

/// Memory of the caller's, pinned for as long as this value lives.
///
/// ```no_run
/// use forerun_gpu::{Gpu, GpuError, Registered};
///
/// let gpu = Gpu::open(0)?;
/// let mut rows = vec![0u8; 656 * 1000];
/// let registered = Registered::new(&gpu, &mut rows)?;
/// // ... gathers from `registered` ...
/// drop(registered); // no longer pinned; `rows` can be used again
/// rows.push(1);
/// # Ok::<(), GpuError>(())
/// ```
pub struct Registered<'a> {
    gpu: Gpu,
    host: NonNull<u8>,
    device_address: u64,
    len: usize,
    _borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is a mutable borrow of bytes, and the driver unregisters from any thread.
unsafe impl Send for Registered<'_> {}
// SAFETY: shared, it gives out shared slices only.
unsafe impl Sync for Registered<'_> {}

impl<'a> Registered<'a> {
    /// Pins `bytes`.
    ///
    /// The driver pins whole pages, so no other range on the same pages may be registered at the
    /// same time.
    ///
    /// # Errors
    /// Memory that is registered already, more than may be locked, or another refusal of the
    /// driver.
    pub fn new(gpu: &Gpu, bytes: &'a mut [u8]) -> Result<Registered<'a>, GpuError> {
        // SAFETY: the slice is borrowed mutably for as long as the value lives.
        unsafe { Registered::from_raw(gpu, NonNull::from(&mut *bytes).cast(), bytes.len()) }
    }

    /// Pins `len` bytes at `host`.
    ///
    /// # Safety
    /// They must be initialised and mapped, and nobody else may free, read or write them, while the
    /// value lives, save through it; but a read is allowed while no scatter to them is under way.
    ///
    /// # Errors
    /// As [`Registered::new`].
    pub unsafe fn from_raw(
        gpu: &Gpu,
        host: NonNull<u8>,
        len: usize,
    ) -> Result<Registered<'a>, GpuError> {
        gpu.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let pointer: *mut c_void = host.as_ptr().cast();
        // SAFETY: the caller vouches for the range.
        check("cuMemHostRegister", unsafe {
            sys::cuMemHostRegister_v2(pointer, len, flags)
        })?;
        let mut registered = Registered {
            gpu: gpu.clone(),
            host,
            device_address: 0,
            len,
            _borrow: PhantomData,
        };
        registered.device_address = device_address(pointer)?;
        Ok(registered)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are borrowed for as long as this value lives, or vouched for by
        // `from_raw`'s caller; see `PinnedBuffer::as_slice` for the device.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.len) }
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and see `PinnedBuffer::as_mut_slice`.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr(), self.len) }
    }
}

// SAFETY: cuMemHostRegister has pinned and mapped the memory, portably; it is unregistered when the
// value is dropped, and its slices borrow the value.
unsafe impl HostMemory for Registered<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
    fn address(&self) -> u64 {
        self.host.as_ptr() as u64
    }
    fn device_address(&self) -> u64 {
        self.device_address
    }
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: the address was registered by `from_raw` and is unregistered once.
            let _ = unsafe { sys::cuMemHostUnregister(self.host.as_ptr().cast()) };
        }
    }
}

impl fmt::Debug for Registered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({:p}, {} bytes)", self.host, self.len)
    }
}
