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

pub use limit::{MemoryLimit, MemoryLimitSource, memory_limit};
pub use pressure::MemoryPressure;

use std::path::Path;

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
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};

    pub(crate) struct Root(PathBuf);

    impl Root {
        pub(crate) fn new(files: &[(&str, &str)]) -> Root {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("forerun-process-memory-{}-{number}", std::process::id());
            let root = Root(std::env::temp_dir().join(name));
            for (path, text) in files {
                root.write(path, text);
            }
            root
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().expect("it has a parent")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            // A directory that stays in the temporary one harms nothing.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
