//! Loads the kernels: the embedded machine code, else the embedded PTX, else code from NVRTC.

use super::module::{Kernel, Module};
use crate::cubin::{self, Code, CubinError};
use crate::{CudaVersion, Gpu, GpuError};
use cudarc::driver::sys::CUresult;
use forerun_core::sync::{Mutex, PoisonError};
use std::collections::HashMap;

/// This crate's kernels on one device. Each is looked up on first use.
pub(crate) struct Image {
    module: Module,
    found: Mutex<HashMap<&'static str, Kernel>>,
}

impl Image {
    /// Loads the best code that the driver accepts.
    pub(crate) fn load(gpu: &Gpu) -> Result<Image, GpuError> {
        let capability = gpu.info().compute_capability;
        let module = load_first(gpu, &cubin::embedded(capability), || {
            cubin::compiled(capability)
        })?;
        Ok(Image {
            module,
            found: Mutex::default(),
        })
    }

    /// Unloads the kernels.
    ///
    /// # Safety
    /// As for [`Module::unload`].
    pub(crate) unsafe fn unload(&self) -> Result<(), GpuError> {
        // SAFETY: the caller guarantees it.
        unsafe { self.module.unload() }
    }

    /// The kernel with this name.
    pub(crate) fn kernel(&self, name: &'static str) -> Result<Kernel, GpuError> {
        // A panic elsewhere leaves the map consistent.
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = found.get(name) {
            return Ok(*kernel);
        }
        let kernel = self.module.kernel(name)?;
        found.insert(name, kernel);
        Ok(kernel)
    }
}

/// Whether the driver rejected an image, so that another one is worth a try.
fn is_refusal(error: &GpuError) -> bool {
    let refusals = [
        CUresult::CUDA_ERROR_INVALID_IMAGE,
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUresult::CUDA_ERROR_INVALID_PTX,
        CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED,
    ];
    let code_of = |error: &GpuError| match error {
        GpuError::Driver { code, .. } => Some(*code),
        _ => None,
    };
    refusals
        .iter()
        .any(|refusal| code_of(error) == Some(*refusal as u32))
}

/// Loads the first code that the driver accepts. `compile` runs only if it accepts none of
/// `embedded`.
fn load_first(
    gpu: &Gpu,
    embedded: &[Code<&[u8]>],
    compile: impl FnOnce() -> Result<Code<Vec<u8>>, CubinError>,
) -> Result<Module, GpuError> {
    let mut refused = None;
    // The oldest driver version that would have loaded one of the images.
    let mut needed: Option<CudaVersion> = None;
    let mut needs = |version| needed = Some(needed.map_or(version, |least| least.min(version)));
    for code in embedded {
        match Module::load(gpu, code.image) {
            Err(error) if is_refusal(&error) => {
                needs(code.needed);
                refused.get_or_insert(error);
            }
            result => return result,
        }
    }
    let nvrtc = match compile() {
        Ok(code) => match Module::load(gpu, &code.image) {
            Err(error) if is_refusal(&error) => {
                needs(code.needed);
                let version = code.needed;
                refused.get_or_insert(error);
                format!("NVRTC of this machine makes code for CUDA {version} or later")
            }
            result => return result,
        },
        Err(error) => error.to_string(),
    };
    let found = gpu.info().driver;
    match (refused, needed) {
        (Some(_), Some(needed)) if found < needed => Err(GpuError::KernelsTooNew {
            found,
            needed,
            nvrtc,
        }),
        (Some(refused), _) => Err(GpuError::Kernels(format!("{refused}; {nvrtc}"))),
        (None, _) => Err(GpuError::Kernels(nvrtc)),
    }
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/testing/fake_driver.rs"]
mod fake_driver;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::fake_driver::has_fake_driver;
    use super::*;
    use crate::driver::api;
    use std::ffi::{CStr, c_char};

    /// An image from a compiler of this version. The fake driver reads the version from it.
    fn made_by(version: u32) -> (Vec<u8>, Vec<u8>) {
        let machine = format!("\x7fELFcuda={version}\0");
        let ptx = format!("//  cuda={version}\0");
        (machine.into_bytes(), ptx.into_bytes())
    }

    /// Loads machine code and PTX from a compiler of this version, or NVRTC's output.
    fn load(
        compiler: u32,
        nvrtc: impl FnOnce() -> Result<Code<Vec<u8>>, CubinError>,
    ) -> Result<Module, GpuError> {
        let version = CudaVersion(compiler);
        let (machine, ptx) = made_by(compiler);
        let embedded = [
            Code::machine(&machine[..], version),
            Code::ptx(&ptx[..], version),
        ];
        load_first(&Gpu::open(0).unwrap(), &embedded, nvrtc)
    }

    /// NVRTC of this version.
    fn nvrtc(version: u32) -> Result<Code<Vec<u8>>, CubinError> {
        Ok(Code::machine(made_by(version).0, CudaVersion(version)))
    }

    /// The images that the driver has received so far, in order.
    fn tried() -> String {
        // SAFETY: the fake driver is loaded, and this is the function's type.
        let function = unsafe { api::optional::<extern "C" fn() -> *const c_char>("fakeLoads") };
        // SAFETY: the fake driver returns a string that ends with a zero.
        let text = unsafe { CStr::from_ptr(function.unwrap()()) };
        text.to_str().unwrap().trim_end().to_owned()
    }

    const NO_NVRTC: CubinError = CubinError::NoCompiler { capability: (9, 0) };

    #[test]
    fn the_driver_gets_machine_code_then_ptx_then_what_nvrtc_makes() {
        let name =
            "driver::image::tests::the_driver_gets_machine_code_then_ptx_then_what_nvrtc_makes";
        if !has_fake_driver(name, &[("FAKE_DRIVER_VERSION", "12020")]) {
            return;
        }
        // Code of the oldest compiler, and machine code of a newer one of the same major version.
        load(12_000, || panic!("not needed")).unwrap();
        load(12_090, || panic!("not needed")).unwrap();
        assert_eq!(tried(), "elf elf");
        // Code of a newer major version.
        load(13_000, || nvrtc(12_020)).unwrap();
        assert_eq!(tried(), "elf elf elf ptx elf");
    }

    #[test]
    fn ptx_serves_a_device_for_which_the_machine_code_was_not_made() {
        let name =
            "driver::image::tests::ptx_serves_a_device_for_which_the_machine_code_was_not_made";
        if !has_fake_driver(name, &[("FAKE_DRIVER_REFUSES", "elf")]) {
            return;
        }
        load(12_000, || panic!("not needed")).unwrap();
        assert_eq!(tried(), "elf ptx");
    }

    #[test]
    fn an_old_driver_is_named_with_the_version_that_is_needed() {
        let name = "driver::image::tests::an_old_driver_is_named_with_the_version_that_is_needed";
        if !has_fake_driver(name, &[("FAKE_DRIVER_VERSION", "12020")]) {
            return;
        }
        let (found, needed) = (CudaVersion(12_020), CudaVersion(13_000));
        for (error, why) in [
            (load(13_010, || Err(NO_NVRTC)), "NVRTC"),
            (load(13_010, || nvrtc(13_000)), "makes code for CUDA 13.0"),
        ] {
            let error = error.map(|_| ()).unwrap_err();
            let GpuError::KernelsTooNew {
                found: f,
                needed: n,
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!((f, n), (found, needed));
            let text = error.to_string();
            for part in ["CUDA 12.2", "CUDA 13.0", why] {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn a_failure_that_is_not_about_the_image_is_returned() {
        let name = "driver::image::tests::a_failure_that_is_not_about_the_image_is_returned";
        if !has_fake_driver(name, &[("FAKE_DRIVER_OUT_OF_MEMORY", "1")]) {
            return;
        }
        let error = load(12_000, || panic!("not needed"))
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, GpuError::Driver { code: 2, .. }), "{error}");
        assert_eq!(tried(), "elf");
    }

    #[test]
    fn a_new_driver_that_accepts_nothing_is_not_called_old() {
        let name = "driver::image::tests::a_new_driver_that_accepts_nothing_is_not_called_old";
        if !has_fake_driver(name, &[("FAKE_DRIVER_REFUSES", "elf,ptx")]) {
            return;
        }
        let error = load(12_000, || Err(NO_NVRTC)).map(|_| ()).unwrap_err();
        assert!(matches!(error, GpuError::Kernels(_)), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("cuModuleLoadData") && text.contains("NVRTC"),
            "{text}"
        );
    }
}
