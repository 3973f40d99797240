//! Files that a running server reads again.

use std::fs;
use std::io;
use std::path::Path;

/// Fails unless `path` is a regular file. Opening a pipe waits for its writer. At startup the
/// operator sees that, and a pipe may be intended; later a thread that serves clients would wait.
///
/// # Errors
/// The file does not exist, cannot be examined, or is not a regular one.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        return Ok(());
    }
    let kind = io::ErrorKind::InvalidInput;
    Err(io::Error::new(kind, "it is not a regular file"))
}
