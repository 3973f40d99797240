//! Whether memory is scarce: by the time that tasks wait for it, and by what is left.
//!
//! The kernel counts the microseconds in which at least one task waited for memory ("pressure stall
//! information", <https://docs.kernel.org/accounting/psi.html>), for a control group or for the
//! whole machine. Not every kernel does, and stalls come late, so what is available counts too.

use std::path::{Path, PathBuf};

use super::cgroup::Cgroup;
use super::{meminfo_bytes, root, text};

/// Memory is scarce if tasks waited for it in one of this many microseconds. It is the ratio of
/// systemd's default, 100 ms a second.
const STALLED_SHARE: u64 = 10;

/// Memory is scarce if less than one of this many bytes of it is available, within these bounds.
const RESERVE_SHARE: u64 = 32;
const RESERVE_BYTES_MIN: u64 = 32 << 20;
const RESERVE_BYTES_MAX: u64 = 1 << 30;

/// Watches whether memory is scarce.
#[derive(Debug)]
pub struct MemoryPressure {
    root: PathBuf,
    cgroup: Option<Cgroup>,
    /// The stalls at the last look.
    stalled_us: Option<u64>,
}

impl MemoryPressure {
    /// Begins to watch this process's control group and machine.
    pub fn new() -> MemoryPressure {
        MemoryPressure::below(root())
    }

    fn below(root: &Path) -> MemoryPressure {
        let mut pressure = MemoryPressure {
            root: root.to_owned(),
            cgroup: Cgroup::of_this_process(root),
            stalled_us: None,
        };
        pressure.stalled_us = pressure.total_stalled_us();
        pressure
    }

    /// Whether memory is scarce now, or was in the `elapsed_us` since the last call.
    pub fn is_scarce(&mut self, elapsed_us: u64) -> bool {
        let before = self.stalled_us;
        self.stalled_us = self.total_stalled_us();
        let stalled_us = match (before, self.stalled_us) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => 0,
        };
        stalled_us > elapsed_us / STALLED_SHARE || self.is_nearly_used_up()
    }

    /// How long tasks have waited for memory so far.
    fn total_stalled_us(&self) -> Option<u64> {
        let of_group = self.cgroup.as_ref().and_then(Cgroup::pressure_file);
        let file = of_group.unwrap_or_else(|| self.root.join("proc/pressure/memory"));
        let pressure = std::fs::read_to_string(file).ok()?;
        let some = pressure
            .lines()
            .find_map(|line| line.strip_prefix("some "))?;
        let total = some
            .split(' ')
            .find_map(|field| field.strip_prefix("total="))?;
        total.trim().parse().ok()
    }

    fn is_nearly_used_up(&self) -> bool {
        let is_low = |limit: u64, available: u64| {
            let reserve = (limit / RESERVE_SHARE).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX);
            available < reserve
        };
        let machine = || {
            let meminfo = text(&self.root, "proc/meminfo")?;
            let total = meminfo_bytes(&meminfo, "MemTotal")?;
            let available = meminfo_bytes(&meminfo, "MemAvailable")?;
            Some(is_low(total, available))
        };
        let group = || {
            let group = self.cgroup.as_ref()?;
            Some(is_low(group.limit()?.0, group.available_bytes()?))
        };
        machine().unwrap_or(false) || group().unwrap_or(false)
    }
}

impl Default for MemoryPressure {
    fn default() -> MemoryPressure {
        MemoryPressure::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Root;
    use super::*;

    const STALLS: &str = "proc/pressure/memory";

    fn stalls(total_us: u64) -> String {
        format!(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        )
    }

    #[test]
    fn memory_is_scarce_while_tasks_wait_for_it() {
        let root = Root::new(&[(STALLS, &stalls(5_000_000))]);
        let mut pressure = MemoryPressure::below(root.path());
        assert!(!pressure.is_scarce(1_000_000));
        root.write(STALLS, &stalls(5_100_000));
        assert!(!pressure.is_scarce(1_000_000), "a tenth is not too much");
        root.write(STALLS, &stalls(5_300_000));
        assert!(pressure.is_scarce(1_000_000));
        assert!(!pressure.is_scarce(1_000_000), "the stalls are over");
    }

    #[test]
    fn the_stalls_of_the_group_count_where_the_kernel_keeps_them() {
        let group = "sys/fs/cgroup/memory.pressure";
        let mounts = "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let root = Root::new(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", mounts),
            (STALLS, &stalls(0)),
            (group, &stalls(0)),
        ]);
        let mut pressure = MemoryPressure::below(root.path());
        root.write(STALLS, &stalls(900_000));
        assert!(
            !pressure.is_scarce(1_000_000),
            "others wait, not this group"
        );
        root.write(group, &stalls(900_000));
        assert!(pressure.is_scarce(1_000_000));
    }

    #[test]
    fn memory_is_scarce_when_little_is_available() {
        let meminfo = |available: u64| {
            format!("MemTotal: 8388608 kB\nMemFree: 1000 kB\nMemAvailable: {available} kB\n")
        };
        let root = Root::new(&[("proc/meminfo", &meminfo(4 << 20))]);
        let mut pressure = MemoryPressure::below(root.path());
        assert!(!pressure.is_scarce(1_000_000));
        root.write("proc/meminfo", &meminfo(100 << 10));
        assert!(pressure.is_scarce(1_000_000));
    }

    #[test]
    fn a_system_that_tells_nothing_has_no_pressure() {
        let root = Root::new(&[]);
        assert!(!MemoryPressure::below(root.path()).is_scarce(1_000_000));
    }
}
