//! Host memory that the device can read and write over the link. Its pages are locked, so that they
//! stay where they are.
//!
//! | kind                         | made by             | for                                               |
//! |------------------------------|---------------------|---------------------------------------------------|
//! | `PinnedBuffer::new`          | `cuMemHostAlloc`    | new memory                                        |
//! | `PinnedBuffer::with_pages`   | `cuMemHostRegister` | new memory, on huge pages if there are any        |
//! | `Registered`                 | `cuMemHostRegister` | memory that the caller has, such as a mapped file |
//!
//! Huge pages are granted when memory is first touched and stay after it is pinned, so a buffer of
//! huge pages is filled with zeros before it is registered. The CPU needs fewer entries of its TLB
//! for scattered rows, and the device fewer translations of host addresses.
//!
//! Neither is write-combined. The CPU writes write-combined memory quickly in sequential order, but
//! reads it very slowly, and it also reads the tables in host memory.
//!
//! The device's address comes from the driver (`cuMemHostGetDevicePointer`), because on some
//! machines it differs from the host's.

use super::api::check;
use super::stream::Stream;
use crate::{Gpu, GpuError};
use cudarc::driver::sys::{self, CUresult};
use forerun_core::{Pages, Region};
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Host memory that the device can reach.
///
/// # Safety
/// `address` and `len` must name bytes that are pinned, mapped for the device of `gpu`, and alive
/// as long as the value is borrowed. No other value may give out references to them.
pub unsafe trait HostMemory {
    /// The device for which it was made. With the flag `PORTABLE`, other devices reach it too.
    fn gpu(&self) -> &Gpu;
    /// The host address of the first byte.
    fn address(&self) -> u64;
    /// The device address of the first byte.
    fn device_address(&self) -> u64;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The device address of pinned host memory.
fn device_address(host: *mut c_void) -> Result<u64, GpuError> {
    let mut address = 0;
    // SAFETY: the caller has bound a context; the driver looks up one address and writes another.
    check("cuMemHostGetDevicePointer", unsafe {
        sys::cuMemHostGetDevicePointer_v2(&mut address, host, 0)
    })?;
    Ok(address)
}

/// Pins `len` bytes at `host` and returns the device's address. If it fails, they are not pinned.
///
/// # Safety
/// The bytes must be initialised, and mapped until they are unregistered.
unsafe fn register(gpu: &Gpu, host: NonNull<u8>, len: usize) -> Result<u64, GpuError> {
    let _current = gpu.bind()?;
    let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    let pointer: *mut c_void = host.as_ptr().cast();
    // SAFETY: the caller guarantees the range.
    check("cuMemHostRegister", unsafe {
        sys::cuMemHostRegister_v2(pointer, len, flags)
    })?;
    device_address(pointer).inspect_err(|_| {
        // SAFETY: the range has just been registered, and nothing knows its address yet.
        let _ = unsafe { sys::cuMemHostUnregister(pointer) };
    })
}

/// Newly allocated pinned host memory, initially zeroed, freed on drop.
pub struct PinnedBuffer {
    gpu: Gpu,
    host: NonNull<u8>,
    device_address: u64,
    len: usize,
    owner: Owner,
}

/// What frees the memory of a [`PinnedBuffer`].
enum Owner {
    /// `cuMemFreeHost`.
    Driver,
    /// The region, after it is no longer registered.
    Region(Region),
}

// SAFETY: it owns its bytes like a boxed slice, and the driver frees or unregisters them from any
// thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: a shared reference gives out only shared slices.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates `len` zeroed bytes. The address is a multiple of the page size.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] (pinned memory cannot be swapped out), or another error of the
    /// driver.
    pub fn new(gpu: &Gpu, len: usize) -> Result<PinnedBuffer, GpuError> {
        let _current = gpu.bind()?;
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
        // Constructed before anything can fail, so that the memory is freed.
        let mut buffer = PinnedBuffer {
            gpu: gpu.clone(),
            host: pointer,
            device_address: 0,
            len,
            owner: Owner::Driver,
        };
        // SAFETY: `len` bytes have just been allocated there.
        unsafe { pointer.as_ptr().write_bytes(0, len) };
        buffer.device_address = device_address(host)?;
        Ok(buffer)
    }

    /// Like [`PinnedBuffer::new`], on the requested pages. Whether the kernel grants huge pages
    /// depends on its settings and on free memory; [`huge_bytes`](PinnedBuffer::huge_bytes) counts
    /// them.
    ///
    /// # Errors
    /// Those of [`PinnedBuffer::new`]; or the memory exceeds the lock limit.
    pub fn with_pages(gpu: &Gpu, len: usize, pages: Pages) -> Result<PinnedBuffer, GpuError> {
        if pages == Pages::Small {
            return PinnedBuffer::new(gpu, len);
        }
        let out_of_memory = |_| GpuError::OutOfMemory {
            bytes: len,
            memory: "host memory on huge pages",
        };
        let region = Region::new(len.max(1), pages).map_err(out_of_memory)?;
        let host = NonNull::new(region.as_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: the region has `len` bytes, which nothing else uses.
        unsafe { host.as_ptr().write_bytes(0, len) };
        // SAFETY: the region is mapped and zeroed, and lives until it is unregistered.
        let device_address = unsafe { register(gpu, host, region.len()) }?;
        Ok(PinnedBuffer {
            gpu: gpu.clone(),
            host,
            device_address,
            len,
            owner: Owner::Region(region),
        })
    }

    /// How many bytes are on huge pages, or `None` if that is unknown: the driver allocated the
    /// memory, or the system does not report it. This reads a file of the system, so use it for
    /// reports.
    pub fn huge_bytes(&self) -> Option<usize> {
        match &self.owner {
            Owner::Driver => None,
            Owner::Region(region) => region.huge_bytes(),
        }
    }

    /// The bytes. They may also be read while a gather from them runs.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes, zeroed when they were allocated, owned by this value. A command that
        // makes the device write to them borrows this value mutably until the device has finished.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.len) }
    }

    /// Enqueues a copy of these bytes to device memory on a stream.
    ///
    /// # Safety
    /// The device memory must have as many bytes as the range. It and this buffer must stay
    /// allocated, and nothing else may use them, until the stream has finished.
    pub(crate) unsafe fn copy_to(
        &self,
        stream: &Stream,
        device: u64,
        bytes: Range<usize>,
    ) -> Result<(), GpuError> {
        let from = &self.as_slice()[bytes];
        let _current = self.gpu.bind()?;
        // SAFETY: the host's bytes are inside the buffer. The caller guarantees the rest.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(device, from.as_ptr().cast(), from.len(), stream.handle())
        })
    }

    /// Enqueues a copy from device memory to these bytes on a stream.
    ///
    /// # Safety
    /// As for [`PinnedBuffer::copy_to`].
    pub(crate) unsafe fn copy_from(
        &mut self,
        stream: &Stream,
        device: u64,
        bytes: Range<usize>,
    ) -> Result<(), GpuError> {
        let to = &mut self.as_mut_slice()[bytes];
        let (to, len) = (to.as_mut_ptr().cast(), to.len());
        let _current = self.gpu.bind()?;
        // SAFETY: the host's bytes are inside the buffer. The caller guarantees the rest.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to, device, len, stream.handle())
        })
    }

    /// The bytes, mutably.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`. A command that makes the device use them borrows this value
        // until the device has finished, so no such command is running while it is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr(), self.len) }
    }
}

// SAFETY: cuMemHostAlloc returned the memory pinned, portable and mapped. It is freed when the
// value is dropped, and its slices borrow the value.
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
        let Ok(_current) = self.gpu.bind() else {
            if let Owner::Region(region) = std::mem::replace(&mut self.owner, Owner::Driver) {
                // It could not be unregistered, and pinned memory must not be unmapped.
                std::mem::forget(region);
            }
            return;
        };
        let host: *mut c_void = self.host.as_ptr().cast();
        match &self.owner {
            Owner::Driver => {
                // SAFETY: the address comes from cuMemHostAlloc and is freed once.
                let _ = unsafe { sys::cuMemFreeHost(host) };
            }
            Owner::Region(_) => {
                // SAFETY: the address was registered and is unregistered once. The region is
                // unmapped afterwards.
                let _ = unsafe { sys::cuMemHostUnregister(host) };
            }
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({:p}, {} bytes)", self.host, self.len)
    }
}

/// The caller's memory, pinned for as long as this value lives.
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

// SAFETY: it is a mutable borrow of bytes, and the driver unregisters them from any thread.
unsafe impl Send for Registered<'_> {}
// SAFETY: a shared reference gives out only shared slices.
unsafe impl Sync for Registered<'_> {}

impl<'a> Registered<'a> {
    /// Pins `bytes`.
    ///
    /// The driver pins whole pages, so no other range on the same pages may be registered at the
    /// same time.
    ///
    /// # Errors
    /// The memory is already registered, it exceeds the lock limit, or the driver failed.
    pub fn new(gpu: &Gpu, bytes: &'a mut [u8]) -> Result<Registered<'a>, GpuError> {
        // SAFETY: the slice is borrowed mutably for as long as the value lives.
        unsafe { Registered::from_raw(gpu, NonNull::from(&mut *bytes).cast(), bytes.len()) }
    }

    /// Pins `len` bytes at `host`.
    ///
    /// # Safety
    /// They must be initialised and mapped. While the value lives, they must not be freed, and must
    /// be read and written only through it. Reads are also allowed while no scatter to them is
    /// running.
    ///
    /// # Errors
    /// Those of [`Registered::new`].
    pub unsafe fn from_raw(
        gpu: &Gpu,
        host: NonNull<u8>,
        len: usize,
    ) -> Result<Registered<'a>, GpuError> {
        Ok(Registered {
            gpu: gpu.clone(),
            host,
            // SAFETY: the caller guarantees the range.
            device_address: unsafe { register(gpu, host, len) }?,
            len,
            _borrow: PhantomData,
        })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are borrowed for as long as this value lives, or guaranteed by
        // `from_raw`'s caller; see `PinnedBuffer::as_slice` for the device.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.len) }
    }

    /// The bytes, mutably.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and see `PinnedBuffer::as_mut_slice`.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr(), self.len) }
    }
}

// SAFETY: cuMemHostRegister has pinned and mapped the memory, portably. It is unregistered when the
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
        if let Ok(_current) = self.gpu.bind() {
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
