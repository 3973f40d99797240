//! Kernels of one compiled image, and their launch.

use super::api::check;
use super::stream::Stream;
use crate::{Gpu, GpuError, cubin};
use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute as Attribute, CUmodule};
use forerun_core::sync::{Mutex, PoisonError};
use std::collections::HashMap;
use std::ffi::CString;

/// This crate's kernels on one device, each looked up when it is first wanted.
pub(crate) struct Image {
    module: Module,
    found: Mutex<HashMap<&'static str, Kernel>>,
}

impl Image {
    /// Loads the machine code that fits the device; where the driver is too old for what was
    /// embedded, what a compiler of its own age makes of the source.
    pub(crate) fn load(gpu: &Gpu) -> Result<Image, GpuError> {
        let capability = gpu.info().compute_capability;
        let wrap = |error: cubin::CubinError| GpuError::Kernels(error.to_string());
        let code = cubin::image(capability).map_err(wrap)?;
        let module = match Module::load(gpu, &code) {
            Ok(module) => module,
            Err(refused) => {
                let code = cubin::recompiled(capability).map_err(|error| {
                    GpuError::Kernels(format!("{refused}; compiling them again: {error}"))
                })?;
                Module::load(gpu, &code)?
            }
        };
        Ok(Image {
            module,
            found: Mutex::default(),
        })
    }

    /// The kernel of that name.
    pub(crate) fn kernel(&self, name: &'static str) -> Result<Kernel, GpuError> {
        // A panic elsewhere leaves the map as good as it was.
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = found.get(name) {
            return Ok(*kernel);
        }
        let kernel = self.module.kernel(name)?;
        found.insert(name, kernel);
        Ok(kernel)
    }
}

/// One compiled image, loaded on one device.
pub(crate) struct Module {
    handle: CUmodule,
}

// SAFETY: a module's handle may be used from any thread, several at a time: the driver locks it.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a loaded image. The image is never unloaded before the device is given up, so it
/// stays good for as long as its `Gpu` does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    handle: CUfunction,
}

// SAFETY: as of a module's handle.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// How a kernel is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Blocks of the grid, along x.
    pub(crate) blocks: u32,
    /// Threads a block, along x.
    pub(crate) threads: u32,
    /// Dynamic shared memory a block.
    pub(crate) shared_bytes: u32,
}

impl Module {
    /// Loads an image (a cubin, or PTX with a zero behind it) on the device.
    pub(crate) fn load(gpu: &Gpu, image: &[u8]) -> Result<Module, GpuError> {
        gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; the image is an ELF file, whose header tells the driver how
        // long it is, or text that ends with a zero.
        check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut handle, image.as_ptr().cast())
        })?;
        Ok(Module { handle })
    }

    /// The kernel of that name.
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel, GpuError> {
        let missing = |_| GpuError::Kernels(format!("{name:?} is no name of a kernel"));
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
        // Drivers load a kernel when it is first needed, which a launch that is being captured must
        // not: this question makes them do it now.
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
    /// Lets a block have up to `bytes` of dynamic shared memory, which must be said beforehand
    /// above 48 KiB.
    pub(crate) fn allow_shared(&self, bytes: u32) -> Result<(), GpuError> {
        // SAFETY: the kernel is loaded, and its context is current, as the caller has seen to.
        check("cuFuncSetAttribute", unsafe {
            sys::cuFuncSetAttribute(
                self.handle,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                bytes as i32,
            )
        })
    }

    /// Puts a launch on a stream. It neither allocates nor waits, so it may be captured.
    ///
    /// # Safety
    /// `P` must be the type of the kernel's only argument, with the kernel's layout, and the
    /// launch must be one the kernel is made for. The memory that the argument names must be there
    /// until the launch is done, and be used by nobody else in a way that matters.
    pub(crate) unsafe fn launch<P: Copy>(
        &self,
        stream: &Stream,
        launch: Launch,
        params: &P,
    ) -> Result<(), GpuError> {
        stream.gpu().bind()?;
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast()];
        // SAFETY: kernel and stream are alive and of the current context; the driver copies the
        // argument before it returns; the rest is the caller's word.
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
