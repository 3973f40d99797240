//! A limit on the memory of some processes: a control group, or files that simulate one.
//!
//! ```text
//!  version 2   GROUP/memory.max             memory.current          memory.events: oom_kill
//!  version 1   GROUP/memory.limit_in_bytes  memory.usage_in_bytes   memory.oom_control: oom_kill
//!  simulated   DIR/proc/self/…, DIR/sys/fs/cgroup/memory.…          written by this process
//! ```

use anyhow::{Context, Result, ensure};
use forerun_core::memory_study::cgroup_directories;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// A group. Dropping it removes it, if its processes have ended.
pub(super) struct MemoryGroup {
    limit_bytes: u64,
    kind: Kind,
}

enum Kind {
    Cgroup {
        directory: PathBuf,
        files: &'static Files,
    },
    Simulated {
        root: TempDir,
        used_bytes: AtomicU64,
    },
}

/// The names of a version's files.
struct Files {
    limit: &'static str,
    usage: &'static str,
    kills: &'static str,
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    kills: "memory.oom_control",
};
const VERSION_2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    kills: "memory.events",
};

/// The line of a simulated `/proc/self/mountinfo`.
const MOUNT: &str = "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

impl MemoryGroup {
    /// A group with this limit, simulated if no control group can be made.
    ///
    /// # Errors
    /// The files of a simulation cannot be written.
    pub(super) fn new(limit_bytes: u64, simulate: bool) -> Result<MemoryGroup> {
        let cgroup = if simulate { None } else { cgroup(limit_bytes) };
        let kind = match cgroup {
            Some(cgroup) => cgroup,
            None => simulated(limit_bytes)?,
        };
        Ok(MemoryGroup { limit_bytes, kind })
    }

    pub(super) fn is_simulated(&self) -> bool {
        matches!(self.kind, Kind::Simulated { .. })
    }

    /// A description for people.
    pub(super) fn describe(&self) -> String {
        let how = match &self.kind {
            Kind::Cgroup { .. } => "a control group",
            Kind::Simulated { .. } => "simulated: nothing enforces it",
        };
        format!("{} bytes, {how}", self.limit_bytes)
    }

    /// The directory that simulates the system's files.
    pub(super) fn simulated_root(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Cgroup { .. } => None,
            Kind::Simulated { root, .. } => Some(root.path()),
        }
    }

    /// Makes a process a member.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn admit(&self, process: u32) -> Result<()> {
        if let Kind::Cgroup { directory, .. } = &self.kind {
            let file = directory.join("cgroup.procs");
            fs::write(&file, process.to_string())
                .with_context(|| format!("cannot add a process to {}", directory.display()))?;
        }
        Ok(())
    }

    /// Writes down what the members use. For a simulated group: the kernel counts by itself.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn update(&self, resident_bytes: u64) -> Result<()> {
        if let Kind::Simulated { root, used_bytes } = &self.kind {
            // Relaxed: only this thread uses it.
            used_bytes.store(resident_bytes, Ordering::Relaxed);
            let directory = root.path().join("sys/fs/cgroup");
            // Renamed, so that no reader finds half of it.
            let new = directory.join("new");
            fs::write(&new, format!("{resident_bytes}\n"))?;
            fs::rename(&new, directory.join(VERSION_2.usage))?;
        }
        Ok(())
    }

    /// What the members use, cached files included.
    pub(super) fn used_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Cgroup { directory, files } => {
                let used = fs::read_to_string(directory.join(files.usage)).unwrap_or_default();
                used.trim().parse().unwrap_or(0)
            }
            Kind::Simulated { used_bytes, .. } => used_bytes.load(Ordering::Relaxed),
        }
    }

    /// Checks that the limit was kept, and that nothing was killed for it.
    ///
    /// # Errors
    /// Something was killed, or would have been.
    pub(super) fn check(&self) -> Result<()> {
        match &self.kind {
            Kind::Cgroup { directory, files } => {
                let events = fs::read_to_string(directory.join(files.kills)).unwrap_or_default();
                let kills = number_behind(&events, "oom_kill");
                ensure!(kills == 0, "the kernel has killed {kills} processes");
            }
            Kind::Simulated { .. } => {
                let (used, limit) = (self.used_bytes(), self.limit_bytes);
                ensure!(
                    used <= limit,
                    "both use {used} bytes, more than {limit}: one of them would be killed"
                );
            }
        }
        Ok(())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Kind::Cgroup { directory, .. } = &self.kind
            && let Err(error) = fs::remove_dir(directory)
        {
            eprintln!("cannot remove {}: {error}", directory.display());
        }
    }
}

/// Makes a control group with this limit, below this process's own or beside it: version 2 allows
/// no group with a limit below one with processes.
fn cgroup(limit_bytes: u64) -> Option<Kind> {
    let (is_v2, directories) = cgroup_directories()?;
    let files = if is_v2 { &VERSION_2 } else { &VERSION_1 };
    let name = format!("forerun-pressure-{}", std::process::id());
    directories.iter().find_map(|parent| {
        let directory = parent.join(&name);
        fs::create_dir(&directory).ok()?;
        if fs::write(directory.join(files.limit), limit_bytes.to_string()).is_err() {
            // It has no processes.
            let _ = fs::remove_dir(&directory);
            return None;
        }
        // Memory on a swap device would not count. Without this file there is no swap to limit.
        let _ = fs::write(directory.join("memory.swap.max"), "0");
        Some(Kind::Cgroup { directory, files })
    })
}

fn simulated(limit_bytes: u64) -> Result<Kind> {
    let root = tempfile::tempdir().context("cannot make a directory")?;
    for (path, text) in [
        ("proc/self/cgroup", "0::/\n".to_owned()),
        ("proc/self/mountinfo", MOUNT.to_owned()),
        ("sys/fs/cgroup/memory.max", format!("{limit_bytes}\n")),
        ("sys/fs/cgroup/memory.current", "0\n".to_owned()),
        ("sys/fs/cgroup/memory.stat", "file 0\nshmem 0\n".to_owned()),
    ] {
        let path = root.path().join(path);
        let parent = path.parent().context("it is in a directory")?;
        fs::create_dir_all(parent)?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Kind::Simulated {
        root,
        used_bytes: AtomicU64::new(0),
    })
}

/// The number in the line that begins with a name; 0 if there is none.
fn number_behind(text: &str, name: &str) -> u64 {
    let number = text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?.strip_prefix(' ')?;
        rest.trim().parse().ok()
    });
    number.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_group_is_told_what_is_used_and_notices_what_is_too_much() {
        let group = MemoryGroup::new(1000, true).unwrap();
        assert!(group.is_simulated());
        group.admit(std::process::id()).unwrap();
        group.update(1000).unwrap();
        group.check().unwrap();
        let root = group.simulated_root().unwrap();
        let used = fs::read_to_string(root.join("sys/fs/cgroup/memory.current")).unwrap();
        assert_eq!((used.trim(), group.used_bytes()), ("1000", 1000));
        group.update(1001).unwrap();
        assert!(group.check().unwrap_err().to_string().contains("1001"));
    }

    #[test]
    fn kills_are_counted_by_either_version() {
        let version_1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n";
        let version_2 = "low 0\nhigh 0\nmax 17\noom 1\noom_kill 3\noom_group_kill 0\n";
        assert_eq!(number_behind(version_1, "oom_kill"), 2);
        assert_eq!(number_behind(version_2, "oom_kill"), 3);
        assert_eq!(number_behind("", "oom_kill"), 0);
    }
}
