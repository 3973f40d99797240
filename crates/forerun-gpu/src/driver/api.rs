//! Loads the driver, and converts its results to errors.

use crate::{CudaVersion, GpuError};
use cudarc::driver::sys::{self, CUresult};
use forerun_core::sync::OnceLock;
use forerun_core::{Owner, PerProcess};
use std::ffi::{CStr, c_char};

/// The oldest supported driver: the first of CUDA 12. It has every function used here except those
/// that [`optional`] looks up.
pub(crate) const OLDEST_DRIVER: CudaVersion = CudaVersion(12_000);

/// Loads and initialises the driver once, and returns the CUDA version that it supports. Every
/// other call into the driver comes after this one, because the bindings end the program if the
/// library is missing.
pub(crate) fn load() -> Result<CudaVersion, GpuError> {
    static LOADED: PerProcess<OnceLock<Result<CudaVersion, GpuError>>> = PerProcess::new();
    /// The process that initialised the driver. A child inherits the driver, which then fails every
    /// call.
    static INITIALISED_BY: OnceLock<Owner> = OnceLock::new();
    LOADED
        .get_or_init(OnceLock::new)
        .get_or_init(|| {
            // SAFETY: this tries to load libraries by name. Libraries with these names are the
            // driver's, and their initialisers may run in any process.
            if !unsafe { sys::is_culib_present() } {
                return Err(GpuError::NoDriver);
            }
            INITIALISED_BY.get_or_init(Owner::this_process).check()?;
            // SAFETY: the library is loaded; zero is the only valid flag.
            match unsafe { sys::cuInit(0) } {
                CUresult::CUDA_ERROR_STUB_LIBRARY => return Err(GpuError::StubDriver),
                CUresult::CUDA_ERROR_NO_DEVICE => return Err(GpuError::NoDevice),
                result => check("cuInit", result)?,
            }
            let mut version = 0;
            // SAFETY: the driver writes one int to the given place.
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

/// Turns a result of the driver into an error.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), GpuError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text_by = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver has just returned a result, so it is loaded. It writes the address of
        // a constant string, or null for an unknown number.
        let found = unsafe { get(result, &mut text) } == CUresult::CUDA_SUCCESS;
        if !found || text.is_null() {
            return "no explanation by the driver".to_owned();
        }
        // SAFETY: this is a constant string of the driver, checked above not to be null, and it is
        // zero-terminated.
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

/// Looks up a function that some supported drivers lack.
///
/// # Safety
/// `F` must be the type of the function of that name, and [`load`] must have succeeded.
pub(crate) unsafe fn optional<F: Copy>(name: &'static str) -> Result<F, GpuError> {
    // SAFETY: the caller promises that the driver is loaded, so this finds it and does not end the
    // program.
    let library = unsafe { sys::culib() };
    // SAFETY: the caller promises the type. The library is never unloaded, so a copy of the address
    // stays valid.
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
