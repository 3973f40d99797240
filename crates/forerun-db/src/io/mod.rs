//! All file access goes through this module.
//!
//! [`Io`] is what a store needs of a file system: whole files by name, reads and writes at an
//! offset, locks, and syncs of files and directories. Each call may fail. [`OsIo`] is the operating
//! system's; [`fault::FaultIo`] is an in-memory model that fails on demand and loses power.
//!
//! Names and bytes are durable separately, as in POSIX: [`IoFile::sync`] makes a file's bytes and
//! length durable, [`Io::sync_dir`] the names in a directory. The code above relies on nothing
//! more.

pub(crate) mod direct;
pub mod fault;
mod forward;
pub(crate) mod guarded;
pub(crate) mod locked_dir;
mod open_dirs;
pub(crate) mod open_files;
mod os;
mod os_file;
pub(crate) mod reads;
pub(crate) mod reclaim;
pub(crate) mod replace;
pub(crate) mod write_out;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forerun_core::sync::time;

pub use os::OsIo;
pub use reads::{ReadBackend, UnknownReadBackend};

/// How [`Io::open`] treats existing and missing files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; the file must exist.
    Read,
    /// For reading; the file must exist. Its bytes never change, and its name leads to it as long
    /// as it is open, so a store may close it between two reads and reopen it.
    ReadImmutable,
    /// As with `ReadImmutable`, and reads bypass the memory of the system, which keeps nothing.
    /// `Unsupported` if the file system has no such reads. One that keeps nothing in memory anyway
    /// treats this as `ReadImmutable`.
    ReadDirect,
    /// For reading and writing; the file must exist.
    ReadWrite,
    /// For reading and writing. A missing file is created empty; an existing one is left as it is.
    Create,
    /// For reading and writing. The file is created, or truncated to zero bytes.
    CreateEmpty,
}

/// Distinguishes a file from all others that exist: the device and the number of the file on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The device.
    pub device: u64,
    /// The number of the file on the device.
    pub number: u64,
}

/// A file system. Any number of threads may call its methods at once. One that wraps another can
/// pass on calls with [`forward_io!`](crate::forward_io).
pub trait Io: Send + Sync + fmt::Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>>;

    /// Lists the names in a directory, in no order, without `.` and `..`.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;

    /// Creates a directory in an existing one.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Renames a file within its directory and replaces a file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Gives a file a second name, which must be free. `Unsupported`, `CrossesDevices` or
    /// `PermissionDenied`: the file cannot have one there, but a copy may be possible; see
    /// [`link_or_copy`].
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _ = (from, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// A number that identifies this boot of the machine, if the system has one.
    ///
    /// Two equal numbers mean that the process may have died, but the machine did not, so what was
    /// written in between should be there. Recovery reports what is not as damage, except for
    /// sectors that were never written.
    fn boot_id(&self) -> Option<u128>;

    /// Seconds since 1970; 0 if the clock is set to an earlier time. Entries expire by this time.
    /// It is called once per batch, so it must be cheap.
    fn unix_time_s(&self) -> u64 {
        system_time_s()
    }

    /// The time of a clock that is never set. It counts the seconds while `unix_time_s` shows less
    /// than before.
    fn monotonic(&self) -> Instant {
        time::now()
    }

    /// The absolute form of a path, which need not exist: it leads to the same place when the
    /// process changes its directory. By default the path as it is.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    /// Opens a directory. The returned file system finds the directory's files through the open
    /// directory and not by its name, so it still finds them after a rename, and never finds those
    /// of another directory that has the name now. It finds everything else as this one does.
    /// `None`, the default: this file system finds everything by name.
    fn open_dir(&self, dir: &Path) -> io::Result<Option<Arc<dyn Io>>> {
        let _ = dir;
        Ok(None)
    }

    /// How many bytes may still be written to the file system of a directory. `None`, the default:
    /// unknown.
    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        let _ = dir;
        Ok(None)
    }

    /// The identity of the file that has a name now. `None`, the default: files have none. A store
    /// on such a file system does not notice when its directory is replaced.
    fn file_id(&self, path: &Path) -> io::Result<Option<FileId>> {
        let _ = path;
        Ok(None)
    }

    /// The absolute path of an existing file or directory, without symbolic links. By default the
    /// path as it is.
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    /// The other processes that have a file open, if the system reports them.
    fn opened_by(&self, path: &Path) -> Vec<u32> {
        let _ = path;
        Vec::new()
    }
}

/// The system clock in seconds since 1970: the coarse one, which needs no system call.
pub(crate) fn system_time_s() -> u64 {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::RealtimeCoarse;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Realtime;
    u64::try_from(rustix::time::clock_gettime(clock).tv_sec).unwrap_or(0)
}

/// An open file. Any number of threads may call its methods at once.
pub trait IoFile: Send + Sync + fmt::Debug {
    /// Reads at `offset` into `buffer` and returns the number of bytes read: 0 at the end of the
    /// file, otherwise possibly fewer than requested.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// [`read_at`](Self::read_at) that reads only what the system has in memory. It may read fewer
    /// bytes, or fail with `WouldBlock` where it would wait for a device. `Unsupported`, the
    /// default: this file cannot tell.
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let _ = (buffer, offset);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// [`read_at`](Self::read_at) for a reader that needs the bytes once: what the system did not
    /// have in memory before, it does not keep. Such a reader reads in order, and uses the handle
    /// for nothing else. By default the same as `read_at`.
    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buffer, offset)
    }

    /// Asks the system not to keep the file's bytes in memory, except those that are not on stable
    /// storage yet. By default this does nothing.
    fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    /// Whether reads bypass the memory of the system: see [`OpenMode::ReadDirect`]. Then reads of
    /// [`shared`](Self::shared) begin and end at multiples of 4,096 bytes, in the file and in
    /// memory; those of [`read_at`](Self::read_at) need not. By default not.
    fn is_direct(&self) -> bool {
        false
    }

    /// How often the file behind this handle has been opened: by default once, 0 if that is
    /// unknown. Asked after reads; once the number differs, what was verified before is verified
    /// again.
    fn openings(&self) -> u64 {
        1
    }

    /// Writes `bytes` at `offset` and returns the number of bytes written, possibly fewer than
    /// requested.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Asks the system to begin to write `len` bytes at `offset` to stable storage, so that a later
    /// [`sync`](Self::sync) has less to wait for. It makes nothing durable: if writing fails, that
    /// sync is what reports it. By default this does nothing.
    fn start_write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether there are no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes the bytes and the length durable.
    fn sync(&self) -> io::Result<()>;

    /// Locks the file against every other opening of it, until the process that locked it drops
    /// this handle, whatever child processes exist. `false`: another opening holds the lock.
    fn try_lock(&self) -> io::Result<bool>;

    /// Takes a shared lock, until this handle is dropped: it excludes [`try_lock`](Self::try_lock)
    /// of other openings but not other shared locks. The file may be open for reading only.
    /// `false`: another opening holds an exclusive lock.
    fn try_lock_shared(&self) -> io::Result<bool> {
        self.try_lock()
    }

    /// The identity of this file, if files have one: see [`Io::file_id`].
    fn id(&self) -> io::Result<Option<FileId>> {
        Ok(None)
    }

    /// The operating system's file behind this one, if reads may bypass [`IoFile::read_at`]. Other
    /// threads or the kernel then read it, several at once, and it stays open for them when this
    /// handle is dropped. A wrapper that passes this on passes on [`is_direct`](Self::is_direct).
    fn shared(&self) -> Option<Arc<File>> {
        None
    }
}

/// Whether a name still leads to a file with this identity. Yes if files have none.
pub(crate) fn leads_to(io: &dyn Io, path: &Path, id: Option<FileId>) -> io::Result<bool> {
    match io.file_id(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => Ok(found?.zip(id).is_none_or(|(found, id)| found == id)),
    }
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// The error of the failed call; `WriteZero` if the file takes no more bytes without an error. Some
/// of `bytes` may have been written.
pub fn write_all_at(file: &dyn IoFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => {
                bytes = bytes.get(taken..).ok_or(io::ErrorKind::InvalidData)?;
                offset += taken as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Gives an immutable file a second name, or, if that is impossible, makes a copy under that name
/// with durable bytes. The name itself is not durable: see [`Io::sync_dir`].
///
/// # Errors
/// The error of the failed call. A partial copy may remain.
pub fn link_or_copy(io: &dyn Io, from: &Path, to: &Path) -> io::Result<()> {
    if link(io, from, to)? == Linked::Yes {
        return Ok(());
    }
    let source = io.open(from, OpenMode::Read)?;
    let len = source.len()?;
    let copy = io.open(to, OpenMode::CreateEmpty)?;
    copy_bytes(&*source, &*copy, len)?;
    copy.sync()
}

/// Whether a file was given a second name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linked {
    Yes,
    /// It cannot have one there; a copy may be possible.
    Unsupported,
}

/// Gives an immutable file a second name, if possible. The name is not durable.
///
/// # Errors
/// The error of the failed call.
pub(crate) fn link(io: &dyn Io, from: &Path, to: &Path) -> io::Result<Linked> {
    match io.link(from, to) {
        Ok(()) => Ok(Linked::Yes),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::Unsupported
                    | io::ErrorKind::CrossesDevices
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::TooManyLinks
            ) =>
        {
            Ok(Linked::Unsupported)
        }
        Err(error) => Err(error),
    }
}

/// Copies the first `len` bytes of a file to the start of another one.
///
/// # Errors
/// The error of the failed call; `UnexpectedEof` if there are fewer bytes.
pub fn copy_bytes(from: &dyn IoFile, to: &dyn IoFile, len: u64) -> io::Result<()> {
    read_pieces(
        |buffer, offset| from.read_at(buffer, offset),
        len,
        |error| error,
        |piece, offset| write_all_at(to, piece, offset),
    )
}

/// Hands out the first `len` bytes of a file in order, piece by piece, each with its offset. `read`
/// reads them.
///
/// # Errors
/// The error of a failed read, or `UnexpectedEof` for a short file, converted by `fail`; or the
/// error of `take`.
pub(crate) fn read_pieces<E>(
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    len: u64,
    fail: impl Fn(io::Error) -> E,
    mut take: impl FnMut(&[u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; len.min(256 << 10) as usize];
    let mut offset = 0;
    while offset < len {
        let wanted = (len - offset).min(buffer.len() as u64) as usize;
        match read(&mut buffer[..wanted], offset) {
            Ok(0) => return Err(fail(io::ErrorKind::UnexpectedEof.into())),
            Ok(got) => {
                take(&buffer[..got], offset)?;
                offset += got as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Ok(())
}

/// Reads a whole file.
///
/// # Errors
/// The error of the failed call; `OutOfMemory` if the file does not fit into memory.
pub fn read_all(file: &dyn IoFile) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(len, 0);
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
