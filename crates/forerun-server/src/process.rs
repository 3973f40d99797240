//! The memory and CPU time of the process, as reported by the system.
//!
//! ```text
//!   resident  =  the cache  +  connections' buffers  +  connections  +  the program  +  other
//!   from /proc   ───────── counted by the server ───────────────────    from /proc      the rest
//! ```

use std::fs;

use forerun_cache::CacheStats;

use crate::shared::ConnectionStats;

/// The resident memory of the process. All zero if the system does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResidentMemory {
    /// All resident memory.
    pub(crate) resident_bytes: u64,
    /// Pages of mapped files: the program and its libraries.
    pub(crate) program_bytes: u64,
}

impl ResidentMemory {
    /// Reads `/proc/self/status`.
    pub(crate) fn now() -> ResidentMemory {
        Self::of(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Parses the text of `/proc/self/status`.
    fn of(status: &str) -> ResidentMemory {
        let bytes_of = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kibibytes = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
            kibibytes.map_or(0, |number| number.trim().parse().unwrap_or(0) << 10)
        };
        ResidentMemory {
            resident_bytes: bytes_of("VmRSS:"),
            program_bytes: bytes_of("RssFile:"),
        }
    }

    /// Memory that the server does not count: the stacks and buffers of threads, and memory that
    /// the allocator keeps.
    pub(crate) fn other_bytes(&self, cache: &CacheStats, connections: &ConnectionStats) -> u64 {
        let counted = [
            self.program_bytes,
            cache.memory_bytes,
            connections.read_buf_bytes,
            connections.response_obj_bytes,
            connections.connection_bytes,
        ];
        self.resident_bytes
            .saturating_sub(counted.iter().sum::<u64>())
    }
}

/// The CPU time of the process in user and system mode, in seconds; 0 if the system does not report
/// it.
pub(crate) fn cpu_time() -> (String, String) {
    /// Linux reports ticks in this unit on every machine.
    const TICKS_PER_SECOND: u64 = 100;
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 12 and 13 after the name. The name may contain any character.
    let mut fields = text
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .skip(11);
    let mut next = || {
        let ticks: u64 = fields
            .next()
            .and_then(|field| field.parse().ok())
            .unwrap_or(0);
        format!(
            "{}.{:02}0000",
            ticks / TICKS_PER_SECOND,
            ticks % TICKS_PER_SECOND
        )
    };
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_text_is_read_in_bytes() {
        let status = "Name:\tVmRSS: 1 kB\nVmHWM:\t  9000 kB\nVmRSS:\t    8952 kB\n\
                      RssAnon:\t    3356 kB\nRssFile:\t    5596 kB\n";
        let expected = ResidentMemory {
            resident_bytes: 8952 << 10,
            program_bytes: 5596 << 10,
        };
        assert_eq!(ResidentMemory::of(status), expected);
        for other in ["", "VmRSS:\n", "VmRSS:\t12 pages\nRssFile:\tx kB\n"] {
            assert_eq!(ResidentMemory::of(other), ResidentMemory::default());
        }
    }
}
