//! The operating system's open files, through the standard library.

use std::fs::{File, TryLockError};
use std::io;
#[cfg(target_os = "linux")]
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forerun_core::Owner;
use forerun_core::sync::OnceLock;
#[cfg(target_os = "linux")]
use forerun_core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(target_os = "linux")]
use rustix::fs::{Advice, OFlags};
use rustix::fs::{Stat, fstat};
#[cfg(target_os = "linux")]
use rustix::io::{Errno, ReadWriteFlags};

use super::{FileId, IoFile, direct};

/// An open file.
#[derive(Debug)]
pub(super) struct OsFile {
    file: Arc<File>,
    /// Whether it is open for direct reads only.
    is_direct: bool,
    /// The process that has locked the file, if any.
    locked_by: OnceLock<Owner>,
    /// Whether the kernel or the file system has no `DONTCACHE`. Relaxed throughout: a hint.
    #[cfg(target_os = "linux")]
    lacks_dontcache: AtomicBool,
    /// How many pieces in a row were not in memory, without `DONTCACHE`. Relaxed throughout: a
    /// hint.
    #[cfg(target_os = "linux")]
    missed_pieces: AtomicUsize,
}

/// `RWF_DONTCACHE`, from Linux 6.14: a read that leaves nothing in memory but what was there.
#[cfg(target_os = "linux")]
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// How much is read at a time without `DONTCACHE`. Twice as much after every four pieces that were
/// not in memory: small pieces find out what is there, and large ones are read faster.
#[cfg(target_os = "linux")]
const ONCE_BYTES: usize = 16 << 10;
#[cfg(target_os = "linux")]
const ONCE_BYTES_MAX: usize = 256 << 10;
#[cfg(target_os = "linux")]
const MISSES_TO_DOUBLE: usize = 4;

impl OsFile {
    pub(super) fn new(file: File) -> OsFile {
        OsFile {
            file: Arc::new(file),
            is_direct: false,
            locked_by: OnceLock::new(),
            #[cfg(target_os = "linux")]
            lacks_dontcache: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            missed_pieces: AtomicUsize::new(0),
        }
    }

    /// A file that is open for direct reads.
    #[cfg(target_os = "linux")]
    pub(super) fn direct(file: File) -> OsFile {
        let mut opened = OsFile::new(file);
        opened.is_direct = true;
        opened
    }

    /// Reads, and has the system drop what it did not have in memory.
    #[cfg(target_os = "linux")]
    fn read_and_drop(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.is_writable() {
            // The log, whose end is in memory. Its handle is not ours to give advice on.
            return FileExt::read_at(&*self.file, buffer, offset);
        }
        // Otherwise read-ahead would bring in what then looks as if it had been there. If this
        // fails, more stays in memory.
        let _ = self.advise(0, None, Advice::Random);
        let mut filled = 0;
        while filled < buffer.len() {
            let wanted = self.piece_bytes().min(buffer.len() - filled);
            let piece = &mut buffer[filled..filled + wanted];
            let got = self.read_piece_and_drop(piece, offset + filled as u64)?;
            filled += got;
            if got < wanted {
                break;
            }
        }
        Ok(filled)
    }

    #[cfg(target_os = "linux")]
    fn is_writable(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.file);
        flags.is_ok_and(|flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR))
    }

    /// How much to read next.
    #[cfg(target_os = "linux")]
    fn piece_bytes(&self) -> usize {
        let doublings = self.missed_pieces.load(Ordering::Relaxed) / MISSES_TO_DOUBLE;
        let max_doublings = (ONCE_BYTES_MAX / ONCE_BYTES).ilog2() as usize;
        ONCE_BYTES << doublings.min(max_doublings)
    }

    /// The same for a little. What follows the first page that was not there counts as new, as the
    /// system begins to read all of it then.
    #[cfg(target_os = "linux")]
    fn read_piece_and_drop(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let cached = self.read_cached_at(buffer, offset).unwrap_or(0);
        if cached > 0 {
            self.missed_pieces.store(0, Ordering::Relaxed);
        } else {
            self.missed_pieces.fetch_add(1, Ordering::Relaxed);
        }
        if cached == buffer.len() {
            return Ok(cached);
        }
        let (rest, from) = (&mut buffer[cached..], offset + cached as u64);
        let new = FileExt::read_at(&*self.file, rest, from)?;
        if let Some(new) = NonZero::new(new as u64) {
            let _ = self.advise(from, Some(new), Advice::DontNeed);
        }
        Ok(cached + new)
    }

    /// `len`: `None` for the rest of the file.
    #[cfg(target_os = "linux")]
    fn advise(&self, offset: u64, len: Option<NonZero<u64>>, advice: Advice) -> io::Result<()> {
        Ok(rustix::fs::fadvise(&self.file, offset, len, advice)?)
    }
}

impl Drop for OsFile {
    /// Releases the lock. Closing the file is not enough, because a child of this process shares
    /// the open file and would keep the lock. The child itself only closes its descriptor.
    fn drop(&mut self) {
        if self.locked_by.get().is_some_and(Owner::is_this_process) {
            // If this fails, the lock is released with the last descriptor, as every lock is.
            let _ = self.file.unlock();
        }
    }
}

impl IoFile for OsFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.is_direct {
            return direct::read_at(&self.file, buffer, offset);
        }
        FileExt::read_at(&*self.file, buffer, offset)
    }

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.is_direct {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let buffers = &mut [io::IoSliceMut::new(buffer)];
        let read = rustix::io::preadv2(&self.file, buffers, offset, ReadWriteFlags::NOWAIT);
        Ok(read?)
    }

    #[cfg(target_os = "linux")]
    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.is_direct {
            return self.read_at(buffer, offset);
        }
        if !self.lacks_dontcache.load(Ordering::Relaxed) {
            let buffers = &mut [io::IoSliceMut::new(buffer)];
            match rustix::io::preadv2(&self.file, buffers, offset, DONTCACHE) {
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    self.lacks_dontcache.store(true, Ordering::Relaxed);
                }
                read => return Ok(read?),
            }
        }
        self.read_and_drop(buffer, offset)
    }

    #[cfg(target_os = "linux")]
    fn invalidate_cache(&self) -> io::Result<()> {
        self.advise(0, None, Advice::DontNeed)
    }

    fn is_direct(&self) -> bool {
        self.is_direct
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(&*self.file, bytes, offset)
    }

    fn start_write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        forerun_core::start_write_out(&*self.file, offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        // `fdatasync` also makes the length durable, because reading the bytes back needs it.
        self.file.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => {
                // It may be locked twice, but the owner is the same.
                let _ = self.locked_by.set(Owner::this_process());
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        match self.file.try_lock_shared() {
            Ok(()) => {
                // As in `try_lock`.
                let _ = self.locked_by.set(Owner::this_process());
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        Ok(Some(file_id(&fstat(&self.file)?)))
    }

    fn shared(&self) -> Option<Arc<File>> {
        Some(Arc::clone(&self.file))
    }
}

/// The identity of the file that the system describes so.
#[allow(
    clippy::unnecessary_cast,
    reason = "the types of these fields differ between systems"
)]
pub(super) fn file_id(stat: &Stat) -> FileId {
    FileId {
        device: stat.st_dev as u64,
        number: stat.st_ino as u64,
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(unsafe_code, reason = "asks the system which pages are in memory")]
mod tests {
    use std::os::fd::AsRawFd;
    use std::path::Path;

    use super::*;
    use crate::io::write_all_at;

    const BYTES: usize = 1 << 20;
    const PAGE: usize = 4096;
    /// What the tests bring into memory: every second piece of this size.
    const PIECE: usize = 32 << 10;

    /// Which pages of a file of `BYTES` are in memory. Asking changes nothing.
    fn resident(path: &Path) -> Vec<bool> {
        let file = File::open(path).unwrap();
        let mut pages = vec![0_u8; BYTES / PAGE];
        // SAFETY: a new mapping of a file that stays as it is, unmapped below and never read.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mincore(at, BYTES, pages.as_mut_ptr().cast()), 0);
            libc::munmap(at, BYTES);
        }
        pages.into_iter().map(|page| page & 1 == 1).collect()
    }

    /// A file, all of it in memory; `None` where it cannot be anywhere else.
    fn file(path: &Path) -> Option<OsFile> {
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true);
        let file = OsFile::new(options.open(path).unwrap());
        write_all_at(&file, &vec![7; BYTES], 0).unwrap();
        file.sync().unwrap();
        file.invalidate_cache().unwrap();
        let is_dropped = !resident(path).contains(&true);
        read(&file);
        is_dropped.then_some(file)
    }

    /// Reads all of a file once.
    fn read(file: &OsFile) {
        let (mut buffer, mut filled) = (vec![0; BYTES], 0);
        while filled < BYTES {
            let end = (filled + (256 << 10)).min(BYTES);
            let piece = &mut buffer[filled..end];
            filled += file.read_and_drop(piece, filled as u64).unwrap();
        }
        assert_eq!(buffer, vec![7; BYTES]);
    }

    /// Other processes may need the memory, so what should stay in it does so in one round of
    /// these.
    fn in_any_round(is_kept: impl Fn() -> bool) {
        assert!((0..5).any(|_| is_kept()));
    }

    #[test]
    fn without_dontcache_a_read_drops_what_it_brought_in_and_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let Some(written) = file(&path) else {
            return; // A file system in memory.
        };
        let open = || OsFile::new(File::open(&path).unwrap());
        in_any_round(|| {
            read(&written);
            read(&open());
            !resident(&path).contains(&false)
        });
        written.invalidate_cache().unwrap();
        read(&open());
        assert!(!resident(&path).contains(&true));
        in_any_round(|| {
            written.invalidate_cache().unwrap();
            let touched = open();
            touched.advise(0, None, Advice::Random).unwrap();
            let is_kept = |page: usize| (page * PAGE / PIECE).is_multiple_of(2);
            for page in (0..BYTES / PAGE).filter(|page| is_kept(*page)) {
                let read = touched.read_at(&mut [0], (page * PAGE) as u64);
                assert_eq!(read.unwrap(), 1);
            }
            read(&open());
            let pages = resident(&path);
            let dropped = (0..pages.len()).filter(|page| !is_kept(*page));
            assert_eq!(dropped.filter(|page| pages[*page]).count(), 0);
            (0..pages.len())
                .filter(|page| is_kept(*page))
                .all(|page| pages[page])
        });
        let other = open();
        other.lacks_dontcache.store(true, Ordering::Relaxed);
        let mut buffer = [0; 10];
        assert_eq!(other.read_once_at(&mut buffer, 5).unwrap(), 10);
        assert_eq!(buffer, [7; 10]);
    }

    #[test]
    fn pieces_grow_while_nothing_is_in_memory_and_shrink_once_something_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let Some(written) = file(&path) else {
            return; // A file system in memory.
        };
        written.invalidate_cache().unwrap();
        let cold = OsFile::new(File::open(&path).unwrap());
        assert_eq!(cold.piece_bytes(), ONCE_BYTES);
        read(&cold);
        assert!(
            cold.piece_bytes() > 2 * ONCE_BYTES,
            "{}",
            cold.piece_bytes()
        );
        cold.missed_pieces.store(usize::MAX / 2, Ordering::Relaxed);
        assert_eq!(cold.piece_bytes(), ONCE_BYTES_MAX);
        in_any_round(|| {
            written.read_at(&mut [0], 0).unwrap();
            cold.read_and_drop(&mut [0; 10], 0).unwrap();
            cold.piece_bytes() == ONCE_BYTES
        });
    }

    #[test]
    fn a_file_that_is_open_for_writing_stays_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let Some(written) = file(&path) else {
            return; // A file system in memory.
        };
        assert!(written.is_writable());
        assert!(!OsFile::new(File::open(&path).unwrap()).is_writable());
        in_any_round(|| {
            written.invalidate_cache().unwrap();
            read(&written);
            !resident(&path).contains(&false)
        });
    }
}
