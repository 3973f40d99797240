//! The results of calls on backups.

use std::fmt;

use crate::Error;

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Backup {
    /// Its number. The backups in a directory are numbered in the order in which they were made.
    pub number: u64,
    /// When it was made, in seconds since 1970.
    pub created_unix: u64,
    /// The sequence number of the last write in it.
    pub last_sequence: u64,
    /// The number of keyspaces, including the store's own.
    pub keyspaces: usize,
    /// The number of its runs.
    pub runs: usize,
    /// The size of all its files, in bytes.
    pub bytes: u64,
    /// The size of the files that no other backup shares, in bytes: the space that making the
    /// backup took and that removing it would free.
    pub own_bytes: u64,
}

/// The backups in a directory.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BackupList {
    /// The readable ones, in the order in which they were made.
    pub backups: Vec<Backup>,
    /// The numbers of the damaged ones, each with its error.
    pub damaged: Vec<(u64, Error)>,
}

/// The result of reading every byte of all backups.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BackupVerifyReport {
    /// The number of backups.
    pub backups: usize,
    /// The number of runs, each counted once.
    pub runs: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// Files that no backup needs, as a crash leaves them. The next backup removes them.
    pub leftovers: usize,
    /// All problems found.
    pub problems: Vec<Error>,
}

/// The removed backups and files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RemovedBackups {
    /// The numbers of the removed backups.
    pub backups: Vec<u64>,
    /// Run files that no backup needs any more.
    pub files: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

/// Shows which backups are meant.
pub(super) struct Numbers<'a>(pub(super) &'a [u64]);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 {
            "backup"
        } else {
            "backups"
        })?;
        for (place, number) in self.0.iter().enumerate() {
            write!(f, "{} {number}", if place == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
