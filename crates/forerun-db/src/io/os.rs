//! The operating system's file system.

use super::Io;
use super::open_dirs::OpenDirs;

/// The operating system's file system (Unix).
#[derive(Clone, Copy, Debug, Default)]
pub struct OsIo;

impl Io for OsIo {
    crate::forward_io!(
        _this => OpenDirs::NONE;
        open, list, create_dir, rename, remove, link, sync_dir, boot_id, absolute, open_dir,
        free_bytes, file_id, canonicalize, opened_by
    );
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::io::{OpenMode, link_or_copy, read_all, write_all_at};

    #[test]
    fn a_file_is_written_read_cut_and_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(
            OsIo.open(&path, OpenMode::ReadWrite).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let file = OsIo.open(&path, OpenMode::Create).unwrap();
        write_all_at(&*file, b"hello world", 0).unwrap();
        file.set_len(5).unwrap();
        file.sync().unwrap();
        assert!(file.try_lock().unwrap());
        let again = OsIo.open(&path, OpenMode::Create).unwrap();
        assert_eq!(read_all(&*again).unwrap(), b"hello");
        assert!(!again.try_lock().unwrap(), "two openings hold the lock");
        drop(file);
        assert!(again.try_lock().unwrap());
        OsIo.rename(&path, &dir.path().join("b")).unwrap();
        OsIo.sync_dir(dir.path()).unwrap();
        assert_eq!(OsIo.list(dir.path()).unwrap(), ["b"]);
        assert!(
            OsIo.open(&dir.path().join("b"), OpenMode::CreateEmpty)
                .unwrap()
                .is_empty()
                .unwrap()
        );
    }

    #[test]
    fn a_second_name_refers_to_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let file = OsIo.open(&a, OpenMode::Create).unwrap();
        write_all_at(&*file, b"hello", 0).unwrap();
        link_or_copy(&OsIo, &a, &b).unwrap();
        OsIo.remove(&a).unwrap();
        let read = OsIo.open(&b, OpenMode::Read).unwrap();
        assert_eq!(read_all(&*read).unwrap(), b"hello");
        let taken = link_or_copy(&OsIo, &b, &b).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn the_boot_has_a_number_that_stays() {
        if cfg!(target_os = "linux") {
            assert!(OsIo.boot_id().is_some());
        }
        assert_eq!(OsIo.boot_id(), OsIo.boot_id());
    }
}
