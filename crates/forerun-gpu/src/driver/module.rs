//! One loaded image, its kernels, and their launch.

use super::api::check;
use super::stream::Stream;
use crate::{Gpu, GpuError};
use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute as Attribute, CUmodule};
use std::ffi::CString;

/// One compiled image, loaded on one device.
pub(crate) struct Module {
    handle: CUmodule,
}

// SAFETY: a module's handle may be used from any thread, and by several at a time, because the
// driver locks it.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a loaded image. The image stays loaded until the last handle of the device is
/// dropped, so the kernel is valid as long as its `Gpu`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    handle: CUfunction,
}

// SAFETY: as for a module's handle.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The configuration of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Number of blocks, along x.
    pub(crate) blocks: u32,
    /// Threads per block, along x.
    pub(crate) threads: u32,
    /// Dynamic shared memory per block.
    pub(crate) shared_bytes: u32,
}

impl Module {
    /// Loads an image (a cubin, or PTX with a terminating zero) on the device.
    pub(crate) fn load(gpu: &Gpu, image: &[u8]) -> Result<Module, GpuError> {
        let _current = gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current. The image is an ELF file, whose header gives the driver its
        // length, or text that ends with a zero.
        check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut handle, image.as_ptr().cast())
        })?;
        Ok(Module { handle })
    }

    /// Unloads the image, after the last use of its kernels.
    ///
    /// # Safety
    /// The context is current, no launch of a kernel is pending, and none follows.
    pub(crate) unsafe fn unload(&self) -> Result<(), GpuError> {
        // SAFETY: the module is loaded, and the caller guarantees the rest.
        check("cuModuleUnload", unsafe {
            sys::cuModuleUnload(self.handle)
        })
    }

    /// The kernel with this name.
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel, GpuError> {
        let missing = |_| GpuError::Kernels(format!("{name:?} is not a valid kernel name"));
        let c_name = CString::new(name).map_err(missing)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is loaded; the name ends with a zero; the driver writes one handle.
        let result = unsafe { sys::cuModuleGetFunction(&mut handle, self.handle, c_name.as_ptr()) };
        if result == sys::CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(GpuError::Kernels(format!(
                "the compiled image has no kernel {name}"
            )));
        }
        check("cuModuleGetFunction", result)?;
        let mut registers = 0;
        // Drivers load a kernel on first use, which must not happen during a capture. This query
        // makes them load it now.
        // SAFETY: the kernel has just been found; the driver writes one number.
        check("cuFuncGetAttribute", unsafe {
            sys::cuFuncGetAttribute(
                &mut registers,
                Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS,
                handle,
            )
        })?;
        Ok(Kernel { handle })
    }
}

impl Kernel {
    /// Allows a block the maximum dynamic shared memory: `device_bytes` minus the kernel's static
    /// shared memory. Above 48 KiB, this must be declared before the launch.
    ///
    /// The limit belongs to the kernel, which all copies share. So it is always the maximum:
    /// setting it to what one copy needs would break an earlier copy that needs more.
    pub(crate) fn allow_shared(&self, device_bytes: u32) -> Result<(), GpuError> {
        let mut own_bytes = 0;
        // SAFETY: the kernel is loaded, and the caller has made its context current. The driver
        // writes one number.
        check("cuFuncGetAttribute", unsafe {
            sys::cuFuncGetAttribute(
                &mut own_bytes,
                Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                self.handle,
            )
        })?;
        let bytes = i32::try_from(device_bytes).unwrap_or(i32::MAX) - own_bytes.max(0);
        // SAFETY: as above.
        check("cuFuncSetAttribute", unsafe {
            sys::cuFuncSetAttribute(
                self.handle,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                bytes,
            )
        })
    }

    /// Enqueues a launch on a stream. This neither allocates nor waits, so it may be captured.
    ///
    /// # Safety
    /// `P` must be the type of the kernel's only argument, with the kernel's layout, and the kernel
    /// must support the launch. The memory that the argument refers to must stay allocated until
    /// the launch is done, and nothing else may use it in a conflicting way.
    pub(crate) unsafe fn launch<P: Copy>(
        &self,
        stream: &Stream,
        launch: Launch,
        params: &P,
    ) -> Result<(), GpuError> {
        let _current = stream.gpu().bind()?;
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast()];
        // SAFETY: kernel and stream are alive and belong to the current context. The driver copies
        // the argument before it returns. The caller guarantees the rest.
        check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                self.handle,
                launch.blocks,
                1,
                1,
                launch.threads,
                1,
                1,
                launch.shared_bytes,
                stream.handle(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}
