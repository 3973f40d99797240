//! The memory limits of the process's control groups.
//!
//! A container usually sees its own group as the root of the hierarchy, so the path in
//! `/proc/self/cgroup` may lie outside what is mounted. `/proc/self/mountinfo` tells which part of
//! the hierarchy is mounted where.

use std::path::{Component, Path, PathBuf};

use super::text;

/// Version 1 writes this and larger numbers where there is no limit: 2^63 rounded down to a page.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// The group that the process is in, as far as it is visible.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cgroup {
    is_v2: bool,
    /// Its directory, and those above it up to the mount point, from the innermost outwards.
    directories: Vec<PathBuf>,
}

impl Cgroup {
    /// The process's group that limits memory; `None` if there is none.
    pub(super) fn of_this_process(root: &Path) -> Option<Cgroup> {
        let groups = text(root, "proc/self/cgroup")?;
        let mounts = text(root, "proc/self/mountinfo")?;
        // Where both versions are mounted, the memory controller belongs to one of them. It is
        // version 1's if that lists it.
        let v1 = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers
                .split(',')
                .any(|controller| controller == "memory")
                .then_some(path)
        });
        if let Some(path) = v1 {
            let is_memory = |mount: &Mount<'_>| {
                mount.kind == "cgroup" && mount.options.split(',').any(|option| option == "memory")
            };
            return Cgroup::at(root, false, path, &mounts, is_memory);
        }
        let v2 = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        Cgroup::at(root, true, v2, &mounts, |mount| mount.kind == "cgroup2")
    }

    fn at(
        root: &Path,
        is_v2: bool,
        group: &str,
        mounts: &str,
        is_wanted: impl Fn(&Mount<'_>) -> bool,
    ) -> Option<Cgroup> {
        let mount = mounts.lines().filter_map(Mount::parse).find(is_wanted)?;
        let point = root.join(mount.point.trim_start_matches('/'));
        // A path that is not below the mounted part is above it, outside the container. Then the
        // mounted part is the process's own group.
        let group = Path::new(group);
        let is_outside = group.components().any(|part| part == Component::ParentDir);
        let below = group.strip_prefix(mount.root).ok();
        let below = below.filter(|_| !is_outside).unwrap_or(Path::new(""));
        let directories = below
            .ancestors()
            .map(|below| point.join(below))
            .filter(|directory| directory.is_dir());
        Some(Cgroup {
            is_v2,
            directories: directories.collect(),
        })
    }

    /// Whether it is version 2's, and the directories.
    #[cfg(feature = "study")]
    pub(super) fn into_directories(self) -> (bool, Vec<PathBuf>) {
        (self.is_v2, self.directories)
    }

    /// The smallest limit, and the file that states it.
    pub(super) fn limit(&self) -> Option<(u64, PathBuf)> {
        let limits = self
            .directories
            .iter()
            .filter_map(|directory| self.limit_of(directory));
        limits.min_by_key(|(bytes, _)| *bytes)
    }

    /// The limit of one group, and the file that states it.
    fn limit_of(&self, directory: &Path) -> Option<(u64, PathBuf)> {
        let names: &[&str] = if self.is_v2 {
            &["memory.max", "memory.high"]
        } else {
            &["memory.limit_in_bytes"]
        };
        let files = names.iter().map(|name| directory.join(name));
        files
            .filter_map(|file| Some((number(&file)?, file)))
            .filter(|(bytes, _)| *bytes < NO_LIMIT_BYTES)
            .min_by_key(|(bytes, _)| *bytes)
    }

    /// What the process could still take before one of the groups reaches its limit, if the system
    /// dropped all cached contents of files.
    pub(super) fn available_bytes(&self) -> Option<u64> {
        let available = |directory: &PathBuf| {
            let (usage, file, shmem) = if self.is_v2 {
                ("memory.current", "file ", "shmem ")
            } else {
                ("memory.usage_in_bytes", "total_cache ", "total_shmem ")
            };
            let (limit, _) = self.limit_of(directory)?;
            let used = number(&directory.join(usage))?;
            let stat = std::fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
            let bytes_of = |name: &str| -> u64 {
                stat.lines()
                    .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
                    .unwrap_or(0)
            };
            // Shared memory is counted as contents of files, and cannot be dropped.
            let droppable = bytes_of(file).saturating_sub(bytes_of(shmem));
            Some(limit.saturating_sub(used.saturating_sub(droppable)))
        };
        self.directories.iter().filter_map(available).min()
    }

    /// The file with the stall times of the group, if the kernel keeps them.
    pub(super) fn pressure_file(&self) -> Option<PathBuf> {
        let file = self.directories.first()?.join("memory.pressure");
        file.is_file().then_some(file)
    }
}

/// A number in a file; `None` if there is no such file, or the word `max`.
fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    /// The part of the file system that is mounted.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    /// The options of the file system, among them the controllers of a version 1 hierarchy.
    options: &'a str,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut system = system.split(' ');
        Some(Mount {
            root: mount.next()?,
            point: mount.next()?,
            kind: system.next()?,
            options: system.nth(1)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Root;
    use super::*;

    const V2: &str =
        "25 1 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn limit_of(root: &Root) -> Option<u64> {
        Cgroup::of_this_process(root.path())?
            .limit()
            .map(|(bytes, _)| bytes)
    }

    #[test]
    fn the_smallest_limit_between_the_group_and_the_root_counts() {
        let root = Root::new(&[
            ("proc/self/cgroup", "0::/system.slice/store.service\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
            (
                "sys/fs/cgroup/system.slice/store.service/memory.max",
                "max\n",
            ),
            (
                "sys/fs/cgroup/system.slice/store.service/memory.high",
                "2147483648\n",
            ),
        ]);
        assert_eq!(limit_of(&root), Some(1 << 30));
        root.write(
            "sys/fs/cgroup/system.slice/store.service/memory.high",
            "536870912\n",
        );
        assert_eq!(limit_of(&root), Some(512 << 20));
    }

    #[test]
    fn a_container_sees_its_group_as_the_root() {
        let root = Root::new(&[
            ("proc/self/cgroup", "0::/../../docker/0a1b2c\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
        ]);
        assert_eq!(limit_of(&root), Some(512 << 20));
    }

    #[test]
    fn version_1_has_its_own_files_and_writes_a_large_number_for_no_limit() {
        let mounts = "30 25 0:26 /docker/0a1b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
            31 25 0:27 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n";
        let limit = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        let root = Root::new(&[
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/x\n4:memory:/docker/0a1b\n0::/x\n",
            ),
            ("proc/self/mountinfo", mounts),
            (limit, "9223372036854771712\n"),
        ]);
        assert_eq!(limit_of(&root), None);
        root.write(limit, "268435456\n");
        assert_eq!(limit_of(&root), Some(256 << 20));
    }

    #[test]
    fn cached_contents_of_files_are_available_and_shared_memory_is_not() {
        let root = Root::new(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "1000\n"),
            ("sys/fs/cgroup/memory.current", "900\n"),
            (
                "sys/fs/cgroup/memory.stat",
                "anon 500\nfile 400\nshmem 150\n",
            ),
        ]);
        let group = Cgroup::of_this_process(root.path()).unwrap();
        assert_eq!(group.available_bytes(), Some(1000 - (900 - 250)));
    }

    #[test]
    fn without_groups_there_is_no_limit() {
        assert_eq!(Cgroup::of_this_process(Root::new(&[]).path()), None);
        let root = Root::new(&[("proc/self/cgroup", "0::/\n"), ("proc/self/mountinfo", "")]);
        assert_eq!(Cgroup::of_this_process(root.path()), None);
    }
}
