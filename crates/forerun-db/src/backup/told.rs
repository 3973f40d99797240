//! What users are told of backups.

use std::fmt;

use crate::Error;

/// How far a backup, its restoration, or a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupProgress {
    /// Bytes that are done.
    pub done_bytes: u64,
    /// Bytes there are to do.
    pub total_bytes: u64,
}

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Backups of a directory are numbered in the order of their making.
    pub number: u64,
    /// When it was made, in seconds since 1970.
    pub created_unix: u64,
    /// Sequence number of the last write that is in it.
    pub last_sequence: u64,
    /// Keyspaces, the store's own among them.
    pub keyspaces: usize,
    /// Runs that it is made of.
    pub runs: usize,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes of those that no other backup shares: what its removal would give back, and what making it took.
    pub own_bytes: u64,
}

/// What backups there are.
#[derive(Clone, Debug, Default)]
pub struct BackupList {
    /// Those that can be read, in the order of their making.
    pub backups: Vec<Backup>,
    /// Numbers of the others, and what is wrong with each.
    pub damaged: Vec<(u64, Error)>,
}

/// What looking at every byte of all backups found.
#[derive(Clone, Debug, Default)]
pub struct CheckedBackups {
    /// Backups.
    pub backups: usize,
    /// Runs, each counted once.
    pub runs: usize,
    /// Bytes of these.
    pub bytes: u64,
    /// Files that no backup needs, as a crash leaves them; the next backup removes them.
    pub leftovers: usize,
    /// All that is wrong.
    pub problems: Vec<Error>,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedBackups {
    /// Numbers of the backups.
    pub backups: Vec<u64>,
    /// Files of runs that no backup needs any more.
    pub files: usize,
    /// Bytes of these.
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
