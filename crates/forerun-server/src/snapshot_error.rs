//! Why a snapshot cannot be used. The version of the format is here because the error names it.

use std::io;
use std::path::PathBuf;

/// Version of the format that is written.
pub(crate) const VERSION: u32 = 4;
/// The oldest version that is read.
pub(crate) const VERSION_3: u32 = 3;

/// Why a snapshot cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A system call failed.
    #[error("snapshot: cannot {doing} {}", path.display())]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another server has the file: it reads it at its start and writes it at its end.
    #[error("snapshot: another server uses {}", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file does not start with the snapshot's magic bytes.
    #[error("snapshot: {} is not a cache snapshot", path.display())]
    NotASnapshot {
        /// The file.
        path: PathBuf,
    },
    /// The file has another version of the format.
    #[error(
        "snapshot: {} has format version {version}; this program reads versions {VERSION_3} to \
         {VERSION}",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The file is older than [`max_age`](crate::SnapshotOptions::max_age).
    #[error("snapshot: {} is {age_s} s old, and the limit is {max_age_s} s", path.display())]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its age, in seconds.
        age_s: u64,
        /// The limit, in seconds.
        max_age_s: u64,
    },
    /// Reading the file was interrupted. The file is unchanged.
    #[error("snapshot: reading {} was interrupted", path.display())]
    Interrupted {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error("snapshot: {} is damaged: {what} near byte {offset}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
        /// The offset of the damage.
        offset: u64,
    },
}
