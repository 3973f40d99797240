//! `LOCK` admits one process at a time, and records the boot in which that process ran.
//!
//! ```text
//! forerun lock
//! process 0000004711
//! boot 2f1c7d0a5b1e4c1f9a3e6f0d8b7c6a59
//! ```
//!
//! The text always has the same length, so one write replaces it. It names the boot in which the
//! log was last known to be complete. In any other boot, recovery decides whether it is.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use forerun_core::Owner;

use crate::io::{FileId, Io, IoFile, OpenMode, leads_to, read_all, write_all_at};
use crate::{Error, Result};

const TEXT_BYTES: usize = 70;

/// A held lock. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    owner: Owner,
    /// `None` if a shared lock was requested and there was no file to lock.
    file: Option<Box<dyn IoFile>>,
    path: PathBuf,
    /// The boot in which the store was last open, if known.
    last_boot: Option<u128>,
    boot: Option<u128>,
}

impl Lock {
    /// Takes the lock in a directory, or reports which process holds it.
    pub(super) fn take(io: &dyn Io, dir: &Path, name: &str) -> Result<Lock> {
        let path = dir.join(name);
        let file = io
            .open(&path, OpenMode::Create)
            .map_err(|error| Error::io("open", &path, error))?;
        let is_ours = file
            .try_lock()
            .map_err(|error| Error::io("lock", &path, error))?;
        // Its holder may have removed it since it was opened: see `store_dir::empty`.
        let is_there = file
            .id()
            .and_then(|id| leads_to(io, &path, id))
            .map_err(|error| Error::io("find", &path, error))?;
        let is_ours = is_ours && is_there;
        let text = read_all(&*file).map_err(|error| Error::io("read", &path, error))?;
        let (process, last_boot) = parse(&text).unwrap_or_default();
        if !is_ours {
            return Err(Error::Locked {
                path: dir.to_owned(),
                holder: holder(process, &io.opened_by(&path)),
            });
        }
        let lock = Lock {
            owner: Owner::this_process(),
            file: Some(file),
            path,
            last_boot,
            boot: io.boot_id(),
        };
        if !text.is_empty() {
            lock.write(last_boot);
        }
        Ok(lock)
    }

    /// Takes a shared lock for reading and writes nothing. Without a lock file, no process has
    /// the directory open for writing, and nothing prevents a later process from opening it.
    pub(super) fn share(io: &dyn Io, dir: &Path, name: &str) -> Result<Lock> {
        let path = dir.join(name);
        let file = match io.open(&path, OpenMode::Read) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io("open", &path, error)),
        };
        let mut last_boot = None;
        if let Some(file) = &file {
            let is_shared = file
                .try_lock_shared()
                .map_err(|error| Error::io("lock", &path, error))?;
            let text = read_all(&**file).map_err(|error| Error::io("read", &path, error))?;
            let (process, boot) = parse(&text).unwrap_or_default();
            if !is_shared {
                return Err(Error::Locked {
                    path: dir.to_owned(),
                    holder: holder(process, &io.opened_by(&path)),
                });
            }
            last_boot = boot;
        }
        Ok(Lock {
            owner: Owner::this_process(),
            file,
            path,
            last_boot,
            boot: io.boot_id(),
        })
    }

    /// The path of the lock file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the lock file, if files have one.
    pub(super) fn file_id(&self) -> Result<Option<FileId>> {
        let id = self.file.as_ref().map_or(Ok(None), |file| file.id());
        id.map_err(|error| Error::io("find", &self.path, error))
    }

    /// Returns an error in any process but the one that took the lock.
    pub(crate) fn check_process(&self) -> Result<()> {
        Ok(self.owner.check()?)
    }

    /// Whether the power may have been lost since the store was last open.
    pub(super) fn power_lost(&self) -> bool {
        self.last_boot.is_none() || self.last_boot != self.boot
    }

    /// Records the current boot.
    pub(crate) fn note_boot(&mut self) {
        self.write(self.boot);
        self.last_boot = self.boot;
    }

    fn write(&self, boot: Option<u128>) {
        let text = format!(
            "forerun lock\nprocess {:010}\nboot {:032x}\n",
            std::process::id(),
            boot.unwrap_or(0)
        );
        debug_assert_eq!(text.len(), TEXT_BYTES);
        // The store works without it: the next opener assumes a power loss, and sees another
        // process ID or none.
        let Some(file) = &self.file else { return };
        if let Err(error) = write_all_at(&**file, text.as_bytes(), 0) {
            tracing::warn!(path =
                %self.path.display(), %error, "cannot note who has the store open");
        }
    }
}

/// Which process holds a lock. The text names the process that took it. If that process has ended,
/// a child may still hold the lock through the inherited file.
fn holder(noted: Option<u32>, opened_by: &[u32]) -> Option<u32> {
    let is_noted = |process: &&u32| noted.is_none_or(|noted| noted == **process);
    if noted == Some(std::process::id()) {
        noted
    } else {
        opened_by
            .iter()
            .find(is_noted)
            .or(opened_by.first())
            .copied()
            .or(noted)
    }
}

/// The process and the boot in a text. A boot of zeros means none.
fn parse(text: &[u8]) -> Option<(Option<u32>, Option<u128>)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut lines = text.lines();
    if text.len() != TEXT_BYTES || lines.next() != Some("forerun lock") {
        return None;
    }
    let process = lines.next()?.strip_prefix("process ")?.parse().ok();
    let boot = u128::from_str_radix(lines.next()?.strip_prefix("boot ")?, 16).ok();
    Some((process, boot.filter(|boot| *boot != 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultIo;

    #[test]
    fn the_second_opener_learns_who_holds_the_lock() {
        let io = FaultIo::new();
        let mut lock = Lock::take(&io, "/".as_ref(), "LOCK").unwrap();
        assert!(lock.power_lost(), "nothing was reported yet");
        lock.note_boot();
        assert!(!lock.power_lost());
        let holder = Some(std::process::id());
        match Lock::take(&io, "/".as_ref(), "LOCK") {
            Err(Error::Locked {
                holder: reported, ..
            }) => assert_eq!(reported, holder),
            other => panic!("{other:?}"),
        }
        drop(lock);
        assert!(
            !Lock::take(&io, "/".as_ref(), "LOCK").unwrap().power_lost(),
            "same boot"
        );
    }

    #[test]
    fn the_recorded_process_holds_the_lock_if_it_has_the_file_open() {
        assert_eq!(holder(Some(7), &[5, 7]), Some(7));
        assert_eq!(holder(Some(7), &[5, 6]), Some(5));
        assert_eq!(
            holder(Some(7), &[]),
            Some(7),
            "it may be on another machine"
        );
        assert_eq!(holder(None, &[5]), Some(5));
        let here = Some(std::process::id());
        assert_eq!(holder(here, &[5]), here);
    }

    #[test]
    fn another_boot_or_unreadable_text_counts_as_power_loss() {
        let io = FaultIo::new();
        Lock::take(&io, "/".as_ref(), "LOCK").unwrap().note_boot();
        let text = io.read("/LOCK").unwrap();
        assert!(parse(&text).is_some());
        assert!(
            !Lock::take(&io.kill(), "/".as_ref(), "LOCK")
                .unwrap()
                .power_lost()
        );
        // Seed 1 keeps every byte, but the machine has booted again.
        let after = io.crash(1);
        after.write("/LOCK", &text);
        let lock = Lock::take(&after, "/".as_ref(), "LOCK").unwrap();
        assert!(lock.power_lost());
        drop(lock);
        assert!(
            Lock::take(&after, "/".as_ref(), "LOCK")
                .unwrap()
                .power_lost(),
            "only recovery notes the new boot"
        );
        after.write("/LOCK", b"forerun lock\n");
        assert!(
            Lock::take(&after, "/".as_ref(), "LOCK")
                .unwrap()
                .power_lost()
        );
    }
}
