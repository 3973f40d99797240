//! For studies: files of another directory in place of the system's, and the process's groups.

use std::path::{Path, PathBuf};

use super::cgroup::Cgroup;
use crate::sync::OnceLock;

static ROOT: OnceLock<PathBuf> = OnceLock::new();

/// From now on, this process reads the limits and the use of memory from the files below `root` and
/// not from the system's. The first call counts.
pub fn read_below(root: PathBuf) {
    // A second root is left out.
    let _ = ROOT.set(root);
}

pub(super) fn root() -> Option<&'static Path> {
    ROOT.get().map(PathBuf::as_path)
}

/// The directories of the control groups that limit this process's memory, from its own outwards,
/// and whether they are version 2's. `None` if there are none.
pub fn cgroup_directories() -> Option<(bool, Vec<PathBuf>)> {
    Cgroup::of_this_process(super::root()).map(Cgroup::into_directories)
}
