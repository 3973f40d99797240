//! Every access to files goes through here.
//!
//! [`Io`] is what a store needs of a file system: whole files by name, reads and writes at an
//! offset, locks, and syncs of files and directories, each of which may fail. [`OsIo`] is the
//! operating system's; [`fault::FaultIo`] is a model in memory that fails on demand and loses its
//! power.
//!
//! Names and bytes are durable separately, as POSIX has it: [`IoFile::sync`] makes a file's bytes
//! and length durable, and [`Io::sync_dir`] the names in a directory. Code above assumes no more
//! than that.

pub mod fault;
pub(crate) mod guarded;
pub(crate) mod open_files;
mod os;
mod pool;
pub(crate) mod reads;
pub(crate) mod replace;
#[cfg(target_os = "linux")]
mod uring;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use os::OsIo;
pub use reads::{ReadBackend, UnknownReadBackend};

/// How [`Io::open`] treats a file that is there, and one that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; it must be there.
    Read,
    /// For reading; it must be there. Its bytes never change, and its name stays its own as long as it is open: a store may
    /// close it between two reads, and open it again.
    ReadImmutable,
    /// For reading and writing; it must be there.
    ReadWrite,
    /// For reading and writing; it is created empty if it is not there, and left as it is if it is.
    Create,
    /// For reading and writing; it is created, or cut to no bytes.
    CreateEmpty,
}

/// A file system. All methods may be called from many threads at once.
pub trait Io: Send + Sync + fmt::Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>>;

    /// Names in a directory, in no order, without `.` and `..`.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;

    /// Creates a directory in one that is there.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Puts a file under a new name in the same directory; a file of that name goes away.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Gives a file a second name, which must be free. `Unsupported`, `CrossesDevices` or `PermissionDenied`: it cannot
    /// have one there, and a copy may do; see [`link_or_copy`].
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _ = (from, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// A number that is another after each start of the machine, if there is one.
    ///
    /// Two equal numbers mean that everything written in between was kept: the process may have
    /// died, the machine has not.
    fn boot_id(&self) -> Option<u128>;

    /// Seconds since 1970, by which entries expire; 0 for a clock that stands before. It is asked once a batch, so it must
    /// be cheap.
    fn unix_time_s(&self) -> u64 {
        system_time_s()
    }

    /// The other processes that have a file open, as far as the system tells.
    fn opened_by(&self, path: &Path) -> Vec<u32> {
        let _ = path;
        Vec::new()
    }
}

/// The system's clock, in seconds since 1970: the coarse one, which is read without a call to the system.
pub(crate) fn system_time_s() -> u64 {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::RealtimeCoarse;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Realtime;
    u64::try_from(rustix::time::clock_gettime(clock).tv_sec).unwrap_or(0)
}

/// An open file. All methods may be called from many threads at once.
pub trait IoFile: Send + Sync + fmt::Debug {
    /// Reads at `offset` into `buffer` and returns how many bytes that gave: 0 at the end of the
    /// file, else perhaps fewer than asked for.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes `bytes` at `offset` and returns how many it took, perhaps fewer than asked for.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether there are no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes the bytes and the length durable.
    fn sync(&self) -> io::Result<()>;

    /// Locks the file against every other opening of it, until the process that locked it drops this one, whatever
    /// children it has. `false`:
    /// another one holds the lock.
    fn try_lock(&self) -> io::Result<bool>;

    /// Locks the file against [`try_lock`](Self::try_lock) of every other opening of it, until this one is dropped, and
    /// leaves it to others that do the same. The file may be open for reading only. `false`: another one holds the lock.
    fn try_lock_shared(&self) -> io::Result<bool> {
        self.try_lock()
    }

    /// The operating system's file behind this one, if reads may go to it past [`IoFile::read_at`]: by other threads, or
    /// by the kernel, several together. It stays open for them when this one is dropped.
    fn shared(&self) -> Option<Arc<File>> {
        None
    }
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// That of the call that failed; `WriteZero` if the file takes no more bytes and says nothing. Some
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

/// Gives a file that does not change a second name, or where it cannot have one, a copy under that name, whose bytes
/// are durable. The name is not: see [`Io::sync_dir`].
///
/// # Errors
/// That of the call that failed. A part of a copy may be there.
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
    /// It cannot have one there; a copy may do.
    Unsupported,
}

/// Gives a file that does not change a second name, if it can have one there. The name is not durable.
///
/// # Errors
/// That of the call that failed.
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
/// That of the call that failed; `UnexpectedEof` if there are fewer.
pub fn copy_bytes(from: &dyn IoFile, to: &dyn IoFile, len: u64) -> io::Result<()> {
    read_pieces(
        from,
        len,
        |error| error,
        |piece, offset| write_all_at(to, piece, offset),
    )
}

/// Hands out the first `len` bytes of a file in order, piece by piece, each with its offset.
///
/// # Errors
/// What `fail` makes of that of the call that failed, `UnexpectedEof` if there are fewer; or what `take` says.
pub(crate) fn read_pieces<E>(
    file: &dyn IoFile,
    len: u64,
    fail: impl Fn(io::Error) -> E,
    mut take: impl FnMut(&[u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; len.min(256 << 10) as usize];
    let mut offset = 0;
    while offset < len {
        let wanted = (len - offset).min(buffer.len() as u64) as usize;
        match file.read_at(&mut buffer[..wanted], offset) {
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
/// That of the call that failed; `OutOfMemory` if the file is larger than memory can be had for.
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
