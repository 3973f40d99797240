//! File descriptors that no standard stream can have.
//!
//! The system gives a new file the lowest free descriptor. In a process that was started without
//! standard streams, or that closed them, this is 0, 1 or 2, and whatever anyone prints would be
//! written into the file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The first descriptor that is not a standard stream's.
const FIRST: i32 = 3;

/// Moves an open file or socket to a descriptor above the standard streams, if it is below.
///
/// ```
/// use std::fs::File;
/// use std::os::fd::AsRawFd;
///
/// let file: File = forerun_core::above_standard_streams(File::open("/dev/null")?)?;
/// assert!(file.as_raw_fd() > 2);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The process has no descriptor left.
pub fn above_standard_streams<F>(file: F) -> io::Result<F>
where
    F: AsFd + From<OwnedFd>,
{
    if file.as_fd().as_raw_fd() >= FIRST {
        return Ok(file);
    }
    Ok(F::from(rustix::io::fcntl_dupfd_cloexec(&file, FIRST)?))
}
