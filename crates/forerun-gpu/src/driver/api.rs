//! Whether there is a driver, and its answers as errors.

use crate::{CudaVersion, GpuError};
use cudarc::driver::sys::{self, CUresult};
use forerun_core::sync::OnceLock;
use forerun_core::{Owner, PerProcess};
use std::ffi::{CStr, c_char};

/// The oldest driver that is served: the first of CUDA 12, which has every function used here but
/// those that [`optional`] asks for.
pub(crate) const OLDEST_DRIVER: CudaVersion = CudaVersion(12_000);

/// Loads and initialises the driver once, and tells the CUDA version it serves. Every other call
/// into the driver stands behind it: the bindings end the program where the library is missing.
pub(crate) fn load() -> Result<CudaVersion, GpuError> {
    static LOADED: PerProcess<OnceLock<Result<CudaVersion, GpuError>>> = PerProcess::new();
    /// Who initialised the driver. A child inherits it, and with it a driver that refuses every
    /// call.
    static INITIALISED_BY: OnceLock<Owner> = OnceLock::new();
    LOADED
        .get_or_init(OnceLock::new)
        .get_or_init(|| {
            // SAFETY: it tries to load libraries by name; those with such names are the driver's,
            // whose initialisers are made to be run in any process.
            if !unsafe { sys::is_culib_present() } {
                return Err(GpuError::NoDriver);
            }
            INITIALISED_BY.get_or_init(Owner::this_process).check()?;
            // SAFETY: the library is there; zero is the only flag there is.
            match unsafe { sys::cuInit(0) } {
                CUresult::CUDA_ERROR_STUB_LIBRARY => return Err(GpuError::StubDriver),
                CUresult::CUDA_ERROR_NO_DEVICE => return Err(GpuError::NoDevice),
                result => check("cuInit", result)?,
            }
            let mut version = 0;
            // SAFETY: the driver writes one int to the place it is given.
            check("cuDriverGetVersion", unsafe {
                sys::cuDriverGetVersion(&mut version)
            })?;
            let found = CudaVersion(version.max(0) as u32);
            if found < OLDEST_DRIVER {
                return Err(GpuError::DriverTooOld {
                    found,
                    needed: OLDEST_DRIVER,
                });
            }
            Ok(found)
        })
        .clone()
}

/// The driver's answer to a call.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), GpuError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text_by = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: an answer has just come from the driver, so it is loaded; it writes the address
        // of a constant string, or null for a number it does not know.
        let found = unsafe { get(result, &mut text) } == CUresult::CUDA_SUCCESS;
        if !found || text.is_null() {
            return "not explained by the driver".to_owned();
        }
        // SAFETY: it is the driver's constant string, not null as was just seen, with a zero at its
        // end.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    };
    Err(GpuError::Driver {
        call,
        code: result as u32,
        name: text_by(sys::cuGetErrorName),
        text: text_by(sys::cuGetErrorString),
    })
}

/// A function that not every driver served here has.
///
/// # Safety
/// `F` must be the type of the function of that name, and [`load`] must have succeeded.
pub(crate) unsafe fn optional<F: Copy>(name: &'static str) -> Result<F, GpuError> {
    // SAFETY: the driver is loaded, as the caller promises, so this finds it and does not end the
    // program.
    let library = unsafe { sys::culib() };
    // SAFETY: the caller promises the type. The library is never unloaded, so a copy of the address
    // stays good.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(function) => Ok(*function),
        Err(_) => Err(GpuError::MissingFunction { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_gives_the_same_answer_again() {
        assert_eq!(load(), load());
        if let Ok(version) = load() {
            assert!(version >= OLDEST_DRIVER);
        }
    }
}
