//! What functions return, and the message of a thread's last failure.
//!
//! ```text
//!   function ─ guarded ─┬─ Ok                       0
//!                       ├─ Err: its number  ─┐
//!                       └─ panic: PANIC     ─┴─▶   text ─▶ this thread's last message
//! ```

use forerun_core::panic_message;
use forerun_gpu::GpuError;
use forerun_gpu::table::TableError;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) const OK: i32 = 0;
pub(crate) const INVALID_ARGUMENT: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NO_DEVICE: i32 = 3;
pub(crate) const DEVICE_FAILED: i32 = 4;
pub(crate) const IO: i32 = 5;
pub(crate) const CORRUPT_FILE: i32 = 6;
pub(crate) const PINNED: i32 = 7;
pub(crate) const PANIC: i32 = 8;

/// Why a function failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) number: i32,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn invalid(text: impl Display) -> Failure {
        Failure {
            number: INVALID_ARGUMENT,
            text: text.to_string(),
        }
    }
}

fn number_of(error: &GpuError) -> i32 {
    match error {
        GpuError::NoDriver
        | GpuError::StubDriver
        | GpuError::NoDevice
        | GpuError::NoSuchDevice { .. } => NO_DEVICE,
        GpuError::OutOfMemory { .. } => OUT_OF_MEMORY,
        GpuError::OtherDevice { .. }
        | GpuError::NullAddress { .. }
        | GpuError::Misaligned { .. }
        | GpuError::WrongMemory { .. }
        | GpuError::PastMemory { .. }
        | GpuError::OutOfBounds { .. }
        | GpuError::Refused(_) => INVALID_ARGUMENT,
        _ => DEVICE_FAILED,
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Failure {
        Failure {
            number: number_of(&error),
            text: error.to_string(),
        }
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Failure {
        let number = match &error {
            TableError::Gpu(error) => number_of(error),
            TableError::OutOfMemory { .. } => OUT_OF_MEMORY,
            TableError::File { .. } => CORRUPT_FILE,
            TableError::Io { .. } => IO,
            TableError::Pinned { .. } => PINNED,
            _ => INVALID_ARGUMENT,
        };
        Failure {
            number,
            text: error.to_string(),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a function's body, and returns its result's number.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        Err(Failure {
            number: PANIC,
            text: format!("a defect of the library: {}", panic_message(&*payload)),
        })
    });
    match result {
        Ok(()) => OK,
        Err(failure) => {
            remember(failure.text);
            failure.number
        }
    }
}

fn remember(text: String) {
    // A file's name may have any bytes but zeros; a message that has one ends there.
    let text = CString::new(text).unwrap_or_else(|error| {
        let mut bytes = error.into_vec();
        bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(0));
        CString::new(bytes).unwrap_or_default()
    });
    // While the thread ends, nobody can ask.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub extern "C" fn forerun_gpu_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::thread;

    fn last() -> String {
        // SAFETY: it returns a text that ends with a zero and stays until the next failure.
        let text = unsafe { CStr::from_ptr(forerun_gpu_last_error()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_failure_has_a_number_and_a_message_of_its_thread() {
        assert_eq!(last(), "");
        let failure = || Err(Failure::invalid("no keys\0, no rows"));
        assert_eq!(guarded(failure), INVALID_ARGUMENT);
        assert_eq!(last(), "no keys");
        assert_eq!(guarded(|| Ok(())), OK);
        assert_eq!(last(), "no keys");
        assert_eq!(thread::spawn(last).join().unwrap(), "");
    }

    #[test]
    fn a_panic_ends_in_a_result() {
        assert_eq!(guarded(|| panic!("slot {} is gone", 7)), PANIC);
        assert_eq!(last(), "a defect of the library: slot 7 is gone");
    }
}
