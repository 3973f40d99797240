//! The operating system's files, found through open directories or by name.
//!
//! ```text
//!   /data/store/MANIFEST ─┬─ /data/store is open as 7 ──> openat(7, "MANIFEST")
//!                         └─ otherwise ──────────────────> openat(AT_FDCWD, "/data/store/MANIFEST")
//! ```
//!
//! A path in an open directory leads to that directory's file even if the directory was renamed,
//! and to nothing if it was removed, whatever has its name now.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::above_standard_streams;
use rustix::fs::{self, AtFlags, CWD, Dir, Mode, OFlags};
#[cfg(target_os = "linux")]
use rustix::io::Errno;
use rustix::io::retry_on_intr;

use super::os_file::{OsFile, file_id};
use super::{FileId, Io, IoFile, OpenMode};

/// Permission bits of new files and directories, less those of the process's mask.
const FILE_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o777;

/// The open directories; often one, and two while a store is copied to another directory.
#[derive(Clone, Debug)]
pub(super) struct OpenDirs(Vec<Arc<OpenDir>>);

#[derive(Debug)]
struct OpenDir {
    /// Its name when it was opened.
    path: PathBuf,
    descriptor: OwnedFd,
}

impl OpenDirs {
    /// Everything is found by name.
    pub(super) const NONE: OpenDirs = OpenDirs(Vec::new());

    /// The directory where to look for a path, and the rest of the path.
    fn find<'p>(&'p self, path: &'p Path) -> (BorrowedFd<'p>, &'p Path) {
        for dir in &self.0 {
            if path == dir.path {
                return (dir.descriptor.as_fd(), Path::new("."));
            }
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
                && parent == dir.path
            {
                return (dir.descriptor.as_fd(), Path::new(name));
            }
        }
        (CWD, path)
    }

    fn open_at(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let (dir, name) = self.find(path);
        let (flags, mode) = (flags | OFlags::CLOEXEC, Mode::from_raw_mode(FILE_MODE));
        above_standard_streams(retry_on_intr(|| fs::openat(dir, name, flags, mode))?)
    }

    #[cfg(target_os = "linux")]
    fn open_direct(&self, path: &Path) -> io::Result<Box<dyn IoFile>> {
        match self.open_at(path, OFlags::RDONLY | OFlags::DIRECT) {
            Ok(file) => Ok(Box::new(OsFile::direct(File::from(file)))),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                let reason = "the file system has no direct reads";
                Err(io::Error::new(io::ErrorKind::Unsupported, reason))
            }
            Err(error) => Err(error),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn open_direct(&self, _: &Path) -> io::Result<Box<dyn IoFile>> {
        let reason = "this system has no direct reads";
        Err(io::Error::new(io::ErrorKind::Unsupported, reason))
    }

    fn open_directory(&self, dir: &Path) -> io::Result<OwnedFd> {
        self.open_at(dir, OFlags::RDONLY | OFlags::DIRECTORY)
    }
}

impl Io for OpenDirs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let flags = match mode {
            OpenMode::Read | OpenMode::ReadImmutable => OFlags::RDONLY,
            OpenMode::ReadDirect => return self.open_direct(path),
            OpenMode::ReadWrite => OFlags::RDWR,
            OpenMode::Create => OFlags::RDWR | OFlags::CREATE,
            OpenMode::CreateEmpty => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        };
        let file = File::from(self.open_at(path, flags)?);
        Ok(Box::new(OsFile::new(file)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.open_directory(dir)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.find(path);
        Ok(fs::mkdirat(dir, name, Mode::from_raw_mode(DIR_MODE))?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((dir, name), (to_dir, to_name)) = (self.find(from), self.find(to));
        Ok(fs::renameat(dir, name, to_dir, to_name)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.find(path);
        Ok(fs::unlinkat(dir, name, AtFlags::empty())?)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((dir, name), (to_dir, to_name)) = (self.find(from), self.find(to));
        Ok(fs::linkat(dir, name, to_dir, to_name, AtFlags::empty())?)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::from(self.open_directory(dir)?).sync_all()
    }

    fn boot_id(&self) -> Option<u128> {
        // Linux has this file. Elsewhere it is missing, and recovery assumes that the power may
        // have been lost.
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        u128::from_str_radix(&digits, 16).ok().filter(|id| *id != 0)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        std::path::absolute(path)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Option<Arc<dyn Io>>> {
        let opened = OpenDir {
            path: dir.to_owned(),
            descriptor: self.open_directory(dir)?,
        };
        let mut dirs = self.0.clone();
        dirs.push(Arc::new(opened));
        Ok(Some(Arc::new(OpenDirs(dirs))))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        let (at, name) = self.find(dir);
        let found = if name == Path::new(".") {
            fs::fstatvfs(at)?
        } else {
            fs::statvfs(name)?
        };
        Ok(Some(found.f_bavail.saturating_mul(found.f_frsize)))
    }

    fn file_id(&self, path: &Path) -> io::Result<Option<FileId>> {
        let (dir, name) = self.find(path);
        Ok(Some(file_id(&fs::statat(dir, name, AtFlags::empty())?)))
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    fn opened_by(&self, path: &Path) -> Vec<u32> {
        let Ok(Some(wanted)) = self.file_id(path) else {
            return Vec::new();
        };
        let is_it = |descriptor: &Path| {
            OpenDirs::NONE
                .file_id(descriptor)
                .is_ok_and(|found| found == Some(wanted))
        };
        // Linux only. It does not show other users' processes.
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut found = Vec::new();
        for entry in processes {
            let name = entry.file_name();
            let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let descriptors = std::fs::read_dir(entry.path().join("fd"));
            let mut descriptors = descriptors.into_iter().flatten().flatten();
            if process != std::process::id() && descriptors.any(|entry| is_it(&entry.path())) {
                found.push(process);
            }
        }
        found
    }
}
