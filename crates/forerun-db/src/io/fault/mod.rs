//! A file system in memory that fails on demand and loses its power. It serves the store's own
//! tests and those of programs that use the store.
//!
//! ```text
//! names     durable ── sync_dir ──> [ unsynced: create, rename, remove, ... ] ──> as seen
//! a file    durable ── sync ──────> [ unsynced: write, write, set_len, ...  ] ──> as seen
//! ```
//!
//! Calls act on what is seen and are recorded as unsynced; a sync makes them durable.
//! [`FaultIo::crash`] returns the file system as it may be found after a loss of power: everything
//! that was durable, and the unsynced changes that the seed chooses. It may choose none, all, the
//! first ones with the last torn at some byte, or any subset of 512-byte sectors, with zeros for
//! what is missing. [`FaultIo::kill`] returns it as found after only the process died: as seen.
//!
//! Every call of [`Io`] and [`IoFile`] has a number, from 0, and [`FaultIo::fail_call`] plans a
//! [`Fault`] for one of them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

// A simulation's scheduler must not switch threads inside a call of the disk.
use forerun_core::sync::unscheduled::{Mutex, MutexGuard};
use forerun_core::sync::{PoisonError, time};

use super::{FileId, Io, IoFile, OpenMode};
use disk::{Change, Disk, Lock, NameChange, Node, StoppedClocks};
mod disk;

/// Error number of a failed device (`EIO`).
pub const EIO: i32 = 5;

/// Error number of a full device (`ENOSPC`).
pub const ENOSPC: i32 = 28;

/// A fault at a chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call does nothing and fails with this error number.
    Fail(i32),
    /// A write takes half of its bytes and returns that count. Any other call works as usual.
    ShortWrite,
    /// A write takes half of its bytes and fails with this error number nevertheless. Any other
    /// call fails.
    TornWrite(i32),
    /// The call, and every later one until the power returns, fails. A write takes half of its
    /// bytes first.
    PowerLoss,
}

/// A model file system. Clones share it.
///
/// ```
/// use std::sync::Arc;
/// use forerun_db::io::fault::{Fault, FaultIo, ENOSPC};
/// use forerun_db::io::{Io, OpenMode};
///
/// let io = FaultIo::new();
/// let file = io.open("/a".as_ref(), OpenMode::Create)?;
/// io.fail_call(io.calls(), Fault::Fail(ENOSPC));
/// assert_eq!(file.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(ENOSPC));
/// assert_eq!(file.write_at(b"x", 0)?, 1);
///
/// let after = io.crash(1);
/// assert!(after.open("/a".as_ref(), OpenMode::Read).is_err() || after.read("/a").is_some());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultIo {
    disk: Arc<Mutex<Disk>>,
}

impl FaultIo {
    /// An empty file system: the directories `/` and `.`.
    pub fn new() -> FaultIo {
        FaultIo::default()
    }

    /// Number of calls so far; the next call has this number.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Plans a fault for the call with this number. Several calls may have one each.
    pub fn fail_call(&self, call: u64, fault: Fault) {
        let mut disk = self.lock();
        disk.faults.insert(call, fault);
        disk.hit = None;
    }

    /// The call that a planned fault hit last, if it was reached: its operation and path.
    pub fn hit(&self) -> Option<String> {
        self.lock().hit.clone()
    }

    /// The total bytes of all files. As on a real disk, a file that was removed counts as long as
    /// it is open.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// Limits the [total bytes of all files](Self::used_bytes), like a full disk. `None` removes
    /// the limit.
    pub fn set_capacity_bytes(&self, capacity_bytes: Option<u64>) {
        self.lock().capacity_bytes = capacity_bytes;
    }

    /// Whether a file may have several names. The default is yes.
    pub fn set_links(&self, has_links: bool) {
        self.lock().has_links = has_links;
    }

    /// Whether a planned failure of a file's sync loses the changes that it should have made
    /// durable, as on Linux: they can still be read, but no later sync writes them. By default they
    /// are not lost, and the next sync makes them durable.
    pub fn set_forgetful(&self, is_forgetful: bool) {
        self.lock().is_forgetful = is_forgetful;
    }

    /// In how many of 100 calls [`IoFile::read_cached_at`] finds the bytes in the system's memory,
    /// as chosen by the number of the call. The default is 0: files cannot tell.
    pub fn set_cached_percent(&self, percent: u64) {
        self.lock().cached_percent = percent;
    }

    /// Stops the clocks, and sets the one that can be set to a time in seconds since 1970; a crash
    /// changes neither. With `None`, the default, the clocks are the system's.
    pub fn set_unix_time_s(&self, unix_time_s: Option<u64>) {
        let mut disk = self.lock();
        let at = |stopped: Option<StoppedClocks>| stopped.map_or_else(time::now, |of| of.monotonic);
        disk.stopped_clocks = unix_time_s.map(|unix_time_s| StoppedClocks {
            unix_time_s,
            monotonic: at(disk.stopped_clocks),
        });
    }

    /// Lets seconds pass on the clocks, which stay stopped. Does nothing if they are the system's.
    pub fn pass_time_s(&self, seconds: u64) {
        if let Some(clocks) = &mut self.lock().stopped_clocks {
            clocks.unix_time_s += seconds;
            clocks.monotonic += Duration::from_secs(seconds);
        }
    }

    /// The file system after the power was lost and returned. This file system stays without power.
    ///
    /// `seed` chooses which unsynced changes were kept. Seeds 0 and 1 are the extremes: nothing and
    /// everything.
    ///
    /// ```
    /// use forerun_db::io::fault::FaultIo;
    /// use forerun_db::{Db, Durability, Options};
    /// use std::sync::Arc;
    ///
    /// let io = FaultIo::new();
    /// let db = Db::open_with_io(Arc::new(io.clone()), "/store", Options::default())?;
    /// db.put_with("paris", "48.85,2.35", Durability::Synced)?;
    /// db.put("oslo", "59.91,10.75")?; // buffered: may be lost
    /// let after = io.crash(0); // seed 0: nothing survives that was not synced
    /// drop(db);
    /// let db = Db::open_with_io(Arc::new(after), "/store", Options::default())?;
    /// assert!(db.get("paris")?.is_some());
    /// assert_eq!(db.get("oslo")?, None);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn crash(&self, seed: u64) -> FaultIo {
        let mut disk = self.lock();
        disk.powered_off = true;
        FaultIo {
            disk: Arc::new(Mutex::new(disk.after_power_loss(seed))),
        }
    }

    /// The file system after the process that used it died. This one fails every call from now on.
    pub fn kill(&self) -> FaultIo {
        let mut disk = self.lock();
        disk.powered_off = true;
        FaultIo {
            disk: Arc::new(Mutex::new(disk.after_kill())),
        }
    }

    /// The bytes of a file, as seen.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let disk = self.lock();
        match disk.names.get(path.as_ref())? {
            Node::File(inode) => Some(disk.inodes[*inode].bytes.clone()),
            Node::Dir => None,
        }
    }

    /// Stores a durable file, replacing any existing one. For planting damage.
    pub fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        self.lock().put_durable_file(path.as_ref(), bytes);
    }

    /// Overwrites bytes of a file in place, durably, for planting damage that is visible through
    /// open handles. The file keeps its length; a missing file is ignored.
    pub fn overwrite(&self, path: impl AsRef<Path>, offset: usize, bytes: &[u8]) {
        self.lock().overwrite(path.as_ref(), offset, bytes);
    }

    /// Removes a file, durably. For planting damage.
    pub fn take(&self, path: impl AsRef<Path>) {
        let mut disk = self.lock();
        disk.names.remove(path.as_ref());
        disk.durable_names.remove(path.as_ref());
    }

    /// Paths of all files, as seen, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        let disk = self.lock();
        disk.names
            .iter()
            .filter(|(_, node)| matches!(node, Node::File(_)))
            .map(|(path, _)| path.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        // After a panic of another thread, the model is as consistent as after a call.
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call that does not write, and fails it if that is planned.
    fn enter(&self, op: &str, path: &Path) -> io::Result<MutexGuard<'_, Disk>> {
        let mut disk = self.lock();
        match disk.count(op, path)? {
            None | Some(Fault::ShortWrite) => Ok(disk),
            Some(Fault::Fail(errno) | Fault::TornWrite(errno)) => {
                Err(io::Error::from_raw_os_error(errno))
            }
            Some(Fault::PowerLoss) => Err(disk.power_off()),
        }
    }
}

impl Io for FaultIo {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let mut disk = self.enter("open", path)?;
        let inode = match disk.names.get(path) {
            Some(Node::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(&Node::File(inode)) => {
                if mode == OpenMode::CreateEmpty {
                    disk.inodes[inode].change(Change::SetLen(0));
                }
                inode
            }
            None if matches!(mode, OpenMode::Create | OpenMode::CreateEmpty) => {
                disk.check_parent(path)?;
                let inode = disk.new_inode();
                disk.change_name(NameChange::Link {
                    path: path.to_owned(),
                    node: Node::File(inode),
                });
                inode
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        disk.inodes[inode].openings += 1;
        Ok(Box::new(FaultFile {
            io: self.clone(),
            path: path.to_owned(),
            inode,
            held: Mutex::new(Lock::Free),
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let disk = self.enter("list", dir)?;
        disk.check_dir(dir)?;
        let inside = disk.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside
            .filter_map(|path| Some(path.file_name()?.to_owned()))
            .collect())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.enter("create the directory", path)?;
        if disk.check_dir(path).is_ok() || disk.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        disk.check_parent(path)?;
        disk.change_name(NameChange::Link {
            path: path.to_owned(),
            node: Node::Dir,
        });
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.enter("rename", from)?;
        let Some(&node @ Node::File(_)) = disk.names.get(from) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if from.parent() != to.parent() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        disk.change_name(NameChange::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
            node,
        });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.enter("remove", path)?;
        if !disk.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.change_name(NameChange::Unlink {
            path: path.to_owned(),
        });
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.enter("link", from)?;
        let Some(&node @ Node::File(_)) = disk.names.get(from) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if !disk.has_links {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if disk.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        disk.check_parent(to)?;
        disk.change_name(NameChange::Link {
            path: to.to_owned(),
            node,
        });
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.enter("sync the directory", dir)?;
        disk.check_dir(dir)?;
        disk.sync_names(dir);
        Ok(())
    }

    // Has no number, as it neither reads nor changes bytes or names.
    fn free_bytes(&self, _: &Path) -> io::Result<Option<u64>> {
        let disk = self.lock();
        disk.check_power()?;
        let capacity = disk.capacity_bytes;
        Ok(capacity.map(|bytes| bytes.saturating_sub(disk.used_bytes())))
    }

    // As above.
    fn file_id(&self, path: &Path) -> io::Result<Option<FileId>> {
        let disk = self.lock();
        disk.check_power()?;
        match disk.names.get(path) {
            Some(Node::File(inode)) => Ok(Some(file_id(*inode))),
            Some(Node::Dir) => Ok(None),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn unix_time_s(&self) -> u64 {
        let stopped = self.lock().stopped_clocks;
        // Read through the facade, so that a simulation sees simulated time.
        stopped.map_or_else(
            || {
                let since = time::system_now().duration_since(UNIX_EPOCH);
                since.map_or(0, |since| since.as_secs())
            },
            |clocks| clocks.unix_time_s,
        )
    }

    fn monotonic(&self) -> Instant {
        let stopped = self.lock().stopped_clocks;
        stopped.map_or_else(time::now, |clocks| clocks.monotonic)
    }

    fn boot_id(&self) -> Option<u128> {
        Some(u128::from(self.lock().boots) + 1)
    }
}

#[derive(Debug)]
struct FaultFile {
    io: FaultIo,
    path: PathBuf,
    inode: usize,
    /// How this handle holds the lock of the file.
    held: Mutex<Lock>,
}

impl IoFile for FaultFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.io.enter("read", &self.path)?;
        Ok(disk.read(self.inode, buffer, offset))
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let percent = self.io.lock().cached_percent;
        if percent == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let disk = self.io.enter("read what is cached of", &self.path)?;
        // A multiplication spreads consecutive numbers.
        if (disk.calls.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 100 >= percent {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(disk.read(self.inode, buffer, offset))
    }

    fn invalidate_cache(&self) -> io::Result<()> {
        self.io
            .enter("drop what is cached of", &self.path)
            .map(drop)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.io.lock();
        let fault = disk.count("write", &self.path)?;
        let half = bytes.len() / 2;
        let (wanted, result) = match fault {
            None => (bytes.len(), Ok(bytes.len())),
            Some(Fault::Fail(errno)) => (0, Err(io::Error::from_raw_os_error(errno))),
            Some(Fault::ShortWrite) => (
                half.max(1).min(bytes.len()),
                Ok(half.max(1).min(bytes.len())),
            ),
            Some(Fault::TornWrite(errno)) => (half, Err(io::Error::from_raw_os_error(errno))),
            Some(Fault::PowerLoss) => (half, Err(disk.power_off())),
        };
        let writable_bytes = disk.writable_bytes(self.inode, offset);
        let taken = wanted.min(usize::try_from(writable_bytes).unwrap_or(usize::MAX));
        if taken > 0 {
            disk.inodes[self.inode].change(Change::Write {
                offset,
                bytes: bytes[..taken].to_vec(),
            });
        }
        match result {
            Ok(_) if taken == 0 && !bytes.is_empty() => Err(io::Error::from_raw_os_error(ENOSPC)),
            Ok(_) => Ok(taken),
            Err(error) => Err(error),
        }
    }

    // What is written out may be lost until a sync, like anything unsynced.
    fn start_write_out(&self, _: u64, _: u64) -> io::Result<()> {
        self.io.enter("write out", &self.path).map(drop)
    }

    fn len(&self) -> io::Result<u64> {
        let disk = self.io.enter("measure", &self.path)?;
        Ok(disk.inodes[self.inode].bytes.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.io.enter("cut", &self.path)?;
        if len > disk.len_limit_bytes(self.inode) {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        disk.inodes[self.inode].change(Change::SetLen(len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let failed = match self.io.enter("sync", &self.path) {
            Ok(mut disk) => {
                disk.inodes[self.inode].sync();
                return Ok(());
            }
            Err(failed) => failed,
        };
        let mut disk = self.io.lock();
        if disk.is_forgetful && !disk.powered_off {
            disk.inodes[self.inode].forget_unsynced();
        }
        Err(failed)
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        self.io.lock().check_power()?;
        Ok(Some(file_id(self.inode)))
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.try_lock_as(Lock::Exclusive)
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        self.try_lock_as(Lock::Shared(1))
    }
}

fn file_id(inode: usize) -> FileId {
    FileId {
        device: 0,
        number: inode as u64,
    }
}

impl FaultFile {
    fn try_lock_as(&self, wanted: Lock) -> io::Result<bool> {
        let mut disk = self.io.enter("lock", &self.path)?;
        let lock = &mut disk.inodes[self.inode].lock;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if *held != Lock::Free {
            return Ok(*held == wanted);
        }
        *lock = match (*lock, wanted) {
            (Lock::Free, wanted) => wanted,
            (Lock::Shared(others), Lock::Shared(more)) => Lock::Shared(others + more),
            _ => return Ok(false),
        };
        *held = wanted;
        Ok(true)
    }
}

impl Drop for FaultFile {
    fn drop(&mut self) {
        let held = *self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut disk = self.io.lock();
        disk.inodes[self.inode].openings -= 1;
        if held == Lock::Free {
            return;
        }
        let lock = &mut disk.inodes[self.inode].lock;
        *lock = match (held, *lock) {
            (Lock::Shared(_), Lock::Shared(others)) if others > 1 => Lock::Shared(others - 1),
            _ => Lock::Free,
        };
    }
}
