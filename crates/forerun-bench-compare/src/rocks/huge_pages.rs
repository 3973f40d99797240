//! The huge pages of this process.
//!
//! RocksDB's arenas take huge pages that the system has reserved (`vm.nr_hugepages`), and silently
//! fall back to the C library's allocator if too few are free. That allocator can request
//! transparent huge pages for blocks of their size or more (`crate::pages`). The kernel counts both
//! kinds, so a bench can report which pages a store really has.

use std::fmt;

/// Bytes of a huge page on x86-64, and on aarch64 with small pages of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes of an arena's block, many huge pages: glibc advises only blocks of at least one.
pub const ARENA_BLOCK_BYTES: usize = 64 << 20;

/// Bytes in huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    reserved_bytes: u64,
    transparent_bytes: u64,
}

impl HugePages {
    /// This process's, or `None` if the system does not report them.
    pub fn of_process() -> Option<HugePages> {
        HugePages::parse(&std::fs::read_to_string("/proc/self/smaps_rollup").ok()?)
    }

    fn parse(smaps: &str) -> Option<HugePages> {
        let bytes = |name: &str| {
            let line = smaps.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
            Some(kib << 10)
        };
        Some(HugePages {
            reserved_bytes: bytes("Private_Hugetlb:")? + bytes("Shared_Hugetlb:")?,
            transparent_bytes: bytes("AnonHugePages:")?,
        })
    }

    /// What has been added since `before`.
    pub fn since(self, before: HugePages) -> HugePages {
        HugePages {
            reserved_bytes: self.reserved_bytes.saturating_sub(before.reserved_bytes),
            transparent_bytes: self
                .transparent_bytes
                .saturating_sub(before.transparent_bytes),
        }
    }
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reserved, transparent) = (self.reserved_bytes >> 20, self.transparent_bytes >> 20);
        write!(
            f,
            "{reserved} MiB in reserved huge pages, {transparent} MiB in transparent ones"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_counted_and_a_difference_says_what_came_since() {
        let smaps = "55d0-7ffd ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\n\
                     AnonHugePages:    6144 kB\n\
                     Shared_Hugetlb:       0 kB\nPrivate_Hugetlb:    4096 kB\n";
        let pages = HugePages::parse(smaps).unwrap();
        let text = "4 MiB in reserved huge pages, 6 MiB in transparent ones";
        assert_eq!(pages.to_string(), text);
        let before = HugePages {
            reserved_bytes: 1 << 20,
            transparent_bytes: 9 << 20,
        };
        let text = "3 MiB in reserved huge pages, 0 MiB in transparent ones";
        assert_eq!(pages.since(before).to_string(), text);
        assert_eq!(HugePages::parse("AnonHugePages: 6144 kB\n"), None);
        assert_eq!(HugePages::parse(&smaps.replace(" kB", " x")), None);
    }
}
