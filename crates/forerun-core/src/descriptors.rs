//! File descriptors that no standard stream can have.
//!
//! The system gives a new file the lowest free descriptor. In a process that was started without
//! standard streams, or that closed them, this is 0, 1 or 2, and whatever anyone prints would be
//! written into the file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

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

/// Calls `open` while the descriptors of the standard streams are in use. For what cannot be moved
/// to another descriptor, such as an io_uring ring.
///
/// # Errors
/// That of `open`, or the process has no descriptor left.
pub fn open_above_standard_streams<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mut below = Vec::new();
    loop {
        // A socket needs no file: the process may be unable to read even its root directory.
        let any = UnixDatagram::unbound()?;
        if any.as_raw_fd() >= FIRST {
            break;
        }
        below.push(any);
    }
    open()
}
