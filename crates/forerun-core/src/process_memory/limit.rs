//! The smallest of the limits on the process's memory.

use std::fmt;
use std::path::{Path, PathBuf};

use super::cgroup::Cgroup;
use super::{meminfo_bytes, root, text};

/// How much memory the process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// What sets it.
    pub source: MemoryLimitSource,
}

/// What limits the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryLimitSource {
    /// The machine has no more.
    PhysicalMemory,
    /// A control group of the process, or one above it; this file states the limit.
    Cgroup(PathBuf),
    /// The limit of the address space, `RLIMIT_AS` (`ulimit -v`).
    AddressSpace,
}

impl fmt::Display for MemoryLimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimitSource::PhysicalMemory => f.write_str("physical memory"),
            MemoryLimitSource::Cgroup(file) => write!(f, "{}", file.display()),
            MemoryLimitSource::AddressSpace => f.write_str("RLIMIT_AS"),
        }
    }
}

/// The smallest of the physical memory, the limits of the process's control groups (version 1 or 2)
/// up to the root, and the limit of its address space. `None` if the system tells none of them.
///
/// ```
/// if let Some(limit) = forerun_core::memory_limit() {
///     println!("{} bytes ({})", limit.bytes, limit.source);
/// }
/// ```
pub fn memory_limit() -> Option<MemoryLimit> {
    let address_space = rustix::process::getrlimit(rustix::process::Resource::As).current;
    limit_of(root(), address_space)
}

fn limit_of(root: &Path, address_space_bytes: Option<u64>) -> Option<MemoryLimit> {
    let physical = text(root, "proc/meminfo")
        .and_then(|meminfo| meminfo_bytes(&meminfo, "MemTotal"))
        .map(|bytes| (bytes, MemoryLimitSource::PhysicalMemory));
    let cgroup = Cgroup::of_this_process(root)
        .and_then(|group| group.limit())
        .map(|(bytes, file)| (bytes, MemoryLimitSource::Cgroup(file)));
    let address_space = address_space_bytes.map(|bytes| (bytes, MemoryLimitSource::AddressSpace));
    [physical, cgroup, address_space]
        .into_iter()
        .flatten()
        .min_by_key(|(bytes, _)| *bytes)
        .map(|(bytes, source)| MemoryLimit { bytes, source })
}

#[cfg(test)]
mod tests {
    use super::super::testing::Root;
    use super::*;

    #[test]
    fn the_smallest_limit_is_named_with_its_source() {
        let root = Root::new(&[(
            "proc/meminfo",
            "MemFree: 1 kB\nMemTotal:       1048576 kB\n",
        )]);
        let limit = limit_of(root.path(), None).unwrap();
        assert_eq!(limit.bytes, 1 << 30);
        assert_eq!(limit.source.to_string(), "physical memory");

        let limit = limit_of(root.path(), Some(1 << 20)).unwrap();
        assert_eq!(limit.bytes, 1 << 20);
        assert_eq!(limit.source.to_string(), "RLIMIT_AS");

        root.write("proc/self/cgroup", "0::/\n");
        root.write(
            "proc/self/mountinfo",
            "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        );
        root.write("sys/fs/cgroup/memory.max", "4096\n");
        let limit = limit_of(root.path(), Some(1 << 20)).unwrap();
        assert_eq!(limit.bytes, 4096);
        assert!(
            limit
                .source
                .to_string()
                .ends_with("sys/fs/cgroup/memory.max")
        );
    }

    #[test]
    fn a_system_that_tells_nothing_has_no_known_limit() {
        assert_eq!(limit_of(Root::new(&[]).path(), None), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_a_limit() {
        assert!(memory_limit().is_some_and(|limit| limit.bytes > 1 << 20));
    }
}
