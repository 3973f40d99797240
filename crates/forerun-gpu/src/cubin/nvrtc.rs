//! NVRTC, the toolkit's compiler as a library: it turns source into machine code.

use super::CubinError;
use cudarc::nvrtc::sys;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

/// The options besides the architecture.
pub(super) const OPTIONS: &[&str] = &["--std=c++17"];

/// The loaded library.
pub(super) struct Compiler(());

impl Compiler {
    /// Loads the library. Returns `None` if it does not exist.
    pub(super) fn load() -> Option<Compiler> {
        // SAFETY: this opens the library. Loading it runs only its own initialisers.
        unsafe { sys::is_culib_present() }.then_some(Compiler(()))
    }

    /// NVRTC's version, major and minor.
    pub(super) fn version(&self) -> Result<(i32, i32), CubinError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is loaded and writes two numbers to the given places.
        check("nvrtcVersion", unsafe {
            sys::nvrtcVersion(&mut major, &mut minor)
        })?;
        Ok((major, minor))
    }

    /// Compiles a cubin for devices of this compute capability.
    pub(super) fn compile(
        &self,
        source: &str,
        capability: (u32, u32),
    ) -> Result<Vec<u8>, CubinError> {
        let program = Program::new(source)?;
        let architecture = format!("--gpu-architecture=sm_{}{}", capability.0, capability.1);
        let options: Vec<CString> = OPTIONS
            .iter()
            .copied()
            .chain([architecture.as_str()])
            .map(text)
            .collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive; `options` holds as many strings as stated, and they outlive
        // the call.
        let result = unsafe {
            sys::nvrtcCompileProgram(program.0, options.len() as c_int, options.as_ptr())
        };
        if result != sys::nvrtcResult::NVRTC_SUCCESS {
            return Err(CubinError::Compile {
                version: self.version()?,
                capability,
                log: program.log().unwrap_or_else(|error| error.to_string()),
            });
        }
        let mut bytes = 0;
        // SAFETY: the program is compiled; the library writes one number.
        check("nvrtcGetCUBINSize", unsafe {
            sys::nvrtcGetCUBINSize(program.0, &mut bytes)
        })?;
        let mut image = vec![0u8; bytes];
        // SAFETY: the buffer has the size that the library has just returned.
        check("nvrtcGetCUBIN", unsafe {
            sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast())
        })?;
        Ok(image)
    }
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &str) -> Result<Program, CubinError> {
        let source = text(source);
        let mut program = ptr::null_mut();
        // SAFETY: the library is loaded, because a `Compiler` exists. It copies the source and the
        // name. No headers are passed, so their lists may be null.
        check("nvrtcCreateProgram", unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                source.as_ptr(),
                c"kernels.cu".as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        })?;
        Ok(Program(program))
    }

    /// The compiler's messages.
    fn log(&self) -> Result<String, CubinError> {
        let mut bytes = 0;
        // SAFETY: the program is alive; the library writes one number.
        check("nvrtcGetProgramLogSize", unsafe {
            sys::nvrtcGetProgramLogSize(self.0, &mut bytes)
        })?;
        let mut log = vec![0u8; bytes];
        // SAFETY: the buffer has the size that the library has just returned, including the
        // terminating zero.
        check("nvrtcGetProgramLog", unsafe {
            sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast())
        })?;
        let log = CStr::from_bytes_until_nul(&log).map_or(&log[..], CStr::to_bytes);
        Ok(String::from_utf8_lossy(log).trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the library made the program, and it is destroyed once. A failure here cannot be
        // handled.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// A C string for the library. Neither the source nor the options contain a zero byte, at which the
/// text would be truncated.
fn text(text: &str) -> CString {
    let before_zero = text.split('\0').next().unwrap_or_default();
    CString::new(before_zero).unwrap_or_default()
}

fn check(call: &'static str, result: sys::nvrtcResult) -> Result<(), CubinError> {
    if result == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(CubinError::Nvrtc {
        call,
        text: format!("{result:?}"),
    })
}
