//! The write-out of a file's bytes, which the system would otherwise put off.

use std::io;
use std::os::fd::AsFd;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;

/// Has Linux begin to write `len` bytes at `offset` to the device, if they are not there yet. It
/// waits for the device only if that has too many requests already, and proves nothing: if a write
/// fails, the next sync of the file returns the error. Other systems do nothing.
///
/// ```
/// use std::io::Write;
///
/// let mut file = tempfile::tempfile()?;
/// file.write_all(&[7; 1 << 20])?;
/// forerun_core::start_write_out(&file, 0, 1 << 20)?;
/// file.sync_data()?; // has less to wait for
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The file cannot be written out in part, as a pipe cannot; or the range ends beyond 2^63 bytes.
pub fn start_write_out(file: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let beyond = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = i64::try_from(offset).map_err(beyond)?;
    let len = i64::try_from(len).map_err(beyond)?;
    if len == 0 {
        // To the system, this would be the rest of the file.
        return Ok(());
    }
    start(file, offset, len)
}

#[cfg(target_os = "linux")]
fn start(file: impl AsFd, offset: i64, len: i64) -> io::Result<()> {
    let fd = file.as_fd().as_raw_fd();
    // Without the flags that wait, the call reports no failed write, so the sync still does.
    // SAFETY: the call takes numbers and an open descriptor, and no memory.
    let result = unsafe { libc::sync_file_range(fd, offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(not(target_os = "linux"))]
fn start(_: impl AsFd, _: i64, _: i64) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_file_is_written_out_and_still_has_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        start_write_out(&file, 0, 4096).unwrap();
        start_write_out(&file, 4096, 0).unwrap();
        start_write_out(&file, 4096, 1 << 40).unwrap();
        file.sync_data().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [7; 10_000]);
    }

    #[test]
    fn what_cannot_be_written_out_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        for (offset, len) in [(u64::MAX, 1), (0, u64::MAX)] {
            let error = start_write_out(&file, offset, len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let socket = UnixDatagram::unbound().unwrap();
        assert_eq!(
            start_write_out(&socket, 0, 1).is_err(),
            cfg!(target_os = "linux")
        );
    }
}
