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
use forerun_core::sync::atomic::{AtomicBool, Ordering};
#[cfg(target_os = "linux")]
use rustix::fs::Advice;
use rustix::fs::{Stat, fstat};
#[cfg(target_os = "linux")]
use rustix::io::{Errno, ReadWriteFlags};

use super::{FileId, IoFile};

/// An open file.
#[derive(Debug)]
pub(super) struct OsFile {
    file: Arc<File>,
    /// The process that has locked the file, if any.
    locked_by: OnceLock<Owner>,
    /// Whether the kernel or the file system has no `DONTCACHE`. Relaxed throughout: a hint.
    #[cfg(target_os = "linux")]
    lacks_dontcache: AtomicBool,
}

/// `RWF_DONTCACHE`, from Linux 6.14: a read that leaves nothing in memory but what was there.
#[cfg(target_os = "linux")]
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// How much is read at a time without `DONTCACHE`.
#[cfg(target_os = "linux")]
const ONCE_BYTES: usize = 16 << 10;

impl OsFile {
    pub(super) fn new(file: File) -> OsFile {
        OsFile {
            file: Arc::new(file),
            locked_by: OnceLock::new(),
            #[cfg(target_os = "linux")]
            lacks_dontcache: AtomicBool::new(false),
        }
    }

    /// Reads, and has the system drop what it did not have in memory.
    #[cfg(target_os = "linux")]
    fn read_and_drop(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // Otherwise read-ahead would bring in what then looks as if it had been there. If this
        // fails, more stays in memory.
        let _ = self.advise(0, None, Advice::Random);
        let mut filled = 0;
        for piece in buffer.chunks_mut(ONCE_BYTES) {
            let got = self.read_piece_and_drop(piece, offset + filled as u64)?;
            filled += got;
            if got < piece.len() {
                break;
            }
        }
        Ok(filled)
    }

    /// The same for a little. What follows the first page that was not there counts as new, as the
    /// system begins to read all of it then.
    #[cfg(target_os = "linux")]
    fn read_piece_and_drop(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let cached = self.read_cached_at(buffer, offset).unwrap_or(0);
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
        FileExt::read_at(&*self.file, buffer, offset)
    }

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let buffers = &mut [io::IoSliceMut::new(buffer)];
        let read = rustix::io::preadv2(&self.file, buffers, offset, ReadWriteFlags::NOWAIT);
        Ok(read?)
    }

    #[cfg(target_os = "linux")]
    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
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

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(&*self.file, bytes, offset)
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
mod tests {
    use std::time::{Duration, Instant};

    use forerun_core::sync::thread;

    use super::*;
    use crate::io::write_all_at;

    const BYTES: usize = 256 << 10;

    #[test]
    fn without_dontcache_a_read_drops_what_it_brought_in_and_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let options = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let file = OsFile::new(options.unwrap());
        let bytes = vec![7; BYTES];
        write_all_at(&file, &bytes, 0).unwrap();
        file.sync().unwrap();
        let open = || OsFile::new(File::open(&path).unwrap());
        // Asking begins to read the page, and without the advice more than that.
        let resident = |at: usize| {
            let file = open();
            file.advise(0, None, Advice::Random).unwrap();
            file.read_cached_at(&mut [0], at as u64).is_ok()
        };
        let is_cached = || resident(0);
        let read = |file: &OsFile| {
            let (mut buffer, mut filled) = (vec![0; BYTES], 0);
            while filled < BYTES {
                filled += file
                    .read_and_drop(&mut buffer[filled..], filled as u64)
                    .unwrap();
            }
            assert_eq!(buffer, bytes);
        };
        read(&open());
        assert!(is_cached(), "it was in memory");
        file.invalidate_cache().unwrap();
        if is_cached() {
            return; // A file system in memory.
        }
        // That has begun to read the page, which is dropped only once it is there.
        let begun = Instant::now();
        while !is_cached() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
        file.invalidate_cache().unwrap();
        read(&open());
        assert!(!is_cached());
        // Every second piece of 32 KiB is in memory.
        const PIECE: usize = 32 << 10;
        let pieces = || (0..BYTES).step_by(2 * PIECE);
        let touched = open();
        touched.advise(0, None, Advice::Random).unwrap();
        let mut buffer = vec![0; PIECE];
        for at in pieces() {
            assert_eq!(touched.read_at(&mut buffer, at as u64).unwrap(), PIECE);
        }
        read(&open());
        let kept = pieces().flat_map(|at| (at..at + PIECE).step_by(4096));
        assert_eq!(kept.filter(|at| resident(*at)).count(), BYTES / 2 / 4096);
        let dropped = pieces().map(|at| at + PIECE + PIECE / 2);
        assert_eq!(dropped.filter(|at| resident(*at)).count(), 0);
        let other = open();
        other.lacks_dontcache.store(true, Ordering::Relaxed);
        let mut buffer = [0; 10];
        assert_eq!(other.read_once_at(&mut buffer, 5).unwrap(), 10);
        assert_eq!(buffer, [7; 10]);
    }
}
