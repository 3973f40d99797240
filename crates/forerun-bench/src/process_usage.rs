//! This process's use of the machine: memory, and bytes written to files.

use std::io;
use std::path::Path;

/// Bytes of this process's memory that are resident in RAM, including mapped files, if the system
/// reports them.
pub fn resident_bytes() -> Option<u64> {
    resident_bytes_of(std::process::id())
}

/// The same for another process.
pub fn resident_bytes_of(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(1024 * number_behind(&status, "VmRSS:")?)
}

/// The part of [`resident_bytes_of`] that the process may share with others: segments of shared
/// memory, such as those of UCX.
pub fn shared_bytes_of(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(1024 * number_behind(&status, "RssShmem:")?)
}

/// Bytes that this process has passed to the system for writing, if the system reports them. Writes
/// through a mapping or a ring do not count.
pub fn written_bytes() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    number_behind(&io, "wchar:")
}

fn number_behind(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The files in a directory and its subdirectories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryUsage {
    /// How many there are.
    pub files: u64,
    /// Their disk space.
    pub bytes: u64,
}

/// Counts the files in a directory and its subdirectories. A file that disappears during the scan
/// does not count.
///
/// # Errors
/// Errors of the file system.
pub fn directory_usage(path: &Path) -> io::Result<DirectoryUsage> {
    let mut total = DirectoryUsage::default();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let found = entry.metadata().and_then(|metadata| {
            if metadata.is_dir() {
                directory_usage(&entry.path())
            } else {
                Ok(DirectoryUsage {
                    files: 1,
                    bytes: allocated_bytes(&metadata),
                })
            }
        });
        match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => {
                let found = found?;
                total.files += found.files;
                total.bytes += found.bytes;
            }
        }
    }
    Ok(total)
}

/// A sparse file may be longer than its allocated space.
#[cfg(unix)]
fn allocated_bytes(metadata: &std::fs::Metadata) -> u64 {
    512 * std::os::unix::fs::MetadataExt::blocks(metadata)
}

#[cfg(not(unix))]
fn allocated_bytes(metadata: &std::fs::Metadata) -> u64 {
    metadata.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_counted_for_files_and_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let before = written_bytes();
        let empty = directory_usage(folder.path()).unwrap();
        assert_eq!(empty, DirectoryUsage::default());
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        for name in ["a", "inner/b"] {
            std::fs::write(folder.path().join(name), vec![7; 100_000]).unwrap();
        }
        // Some file systems allocate blocks only when files are written back.
        std::fs::File::open(folder.path().join("a"))
            .unwrap()
            .sync_all()
            .unwrap();
        let DirectoryUsage { files, bytes } = directory_usage(folder.path()).unwrap();
        assert_eq!(files, 2);
        assert!((100_000..400_000).contains(&bytes), "{bytes}");
        if let (Some(before), Some(after)) = (before, written_bytes()) {
            assert!(after >= before + 200_000);
        }
        assert!(directory_usage(&folder.path().join("none")).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_touched_is_resident() {
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(resident_bytes().unwrap() >= block.len() as u64);
    }

    #[test]
    fn numbers_are_found_by_their_names() {
        assert_eq!(number_behind("a: 1\nab:  23 kB\n", "ab:"), Some(23));
        assert_eq!(number_behind("a: x", "a:"), None);
        assert_eq!(number_behind("", "a:"), None);
    }
}
