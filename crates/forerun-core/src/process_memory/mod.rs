//! How much memory the process may use, and whether it is scarce.
//!
//! ```text
//!   /proc/meminfo ───────── MemTotal, MemAvailable ─┐
//!   cgroup.rs: v2 or v1, from the process's own     ├─> limit.rs: the smallest limit
//!     group to the root of the hierarchy ───────────┤
//!   RLIMIT_AS ──────────────────────────────────────┘
//!   /proc/pressure/memory, or the group's own ────────> pressure.rs: is memory scarce?
//! ```
//!
//! All of it is Linux's. Elsewhere there is no limit that is known, and no pressure.

mod cgroup;
mod limit;
mod pressure;
#[cfg(feature = "study")]
pub mod study;

pub use limit::{MemoryLimit, MemoryLimitSource, memory_limit};
pub use pressure::MemoryPressure;

use std::path::Path;

/// The machine's physical memory in bytes, or `None` if the system does not report it. Linux does.
pub fn physical_memory_bytes() -> Option<usize> {
    let meminfo = text(root(), "proc/meminfo")?;
    usize::try_from(meminfo_bytes(&meminfo, "MemTotal")?).ok()
}

/// The root of the file system, unless a study reads other files.
fn root() -> &'static Path {
    #[cfg(feature = "study")]
    if let Some(root) = study::root() {
        return root;
    }
    Path::new("/")
}

/// A number of kibibytes in the text of `/proc/meminfo`, in bytes.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The text of a file below the root of the file system, which is another directory in tests.
fn text(root: &Path, path: &str) -> Option<String> {
    std::fs::read_to_string(root.join(path.trim_start_matches('/'))).ok()
}

/// A directory with files for tests of what a system tells.
#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    pub(crate) struct Root(tempfile::TempDir);

    impl Root {
        pub(crate) fn new(files: &[(&str, &str)]) -> Root {
            let root = Root(tempfile::tempdir().expect("a directory"));
            for (path, text) in files {
                root.write(path, text);
            }
            root
        }

        pub(crate) fn path(&self) -> &Path {
            self.0.path()
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.path().join(path);
            std::fs::create_dir_all(path.parent().expect("it has a parent")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
    }
}
