//! Errors: one enum for the whole crate.
//!
//! Every message names the object and the place: the file and offset, the key, or the limit and the
//! amount requested. [`Error`] is [`Clone`] because every writer of a group commit gets the group's
//! error, and because the results of a batch of lookups hold an error per key.

use forerun_core::size::counted;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The result of the crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// An error owns all that it names, so it can be sent to another thread and kept. Its message
/// contains the cause, and [`source`](std::error::Error::source) returns nothing, so a report that
/// walks the chain of sources prints each cause once. The fields give the details, and
/// [`io_kind`](Error::io_kind) the kind of a failed system call:
///
/// ```
/// use forerun_db::{Create, Db, Error, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let options = Options::default().create(Create::Never);
/// match Db::open(path, options) {
///     Err(Error::NotAStore { path, reason }) => println!("{}: {reason}", path.display()),
///     Err(error) => return Err(error),
///     Ok(_) => println!("opened"),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX).
    #[error("the key has {len_bytes} bytes; a key may have at most {limit_bytes}")]
    KeyTooLong {
        /// Length of the key, in bytes.
        len_bytes: usize,
        /// Length of the longest key that is accepted, in bytes.
        limit_bytes: usize,
    },
    /// The value is longer than [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX).
    #[error("the value has {len_bytes} bytes; a value may have at most {limit_bytes}")]
    ValueTooLong {
        /// Length of the value, in bytes.
        len_bytes: usize,
        /// Length of the longest value that is accepted, in bytes.
        limit_bytes: usize,
    },
    /// The batch would grow beyond [`BATCH_BYTES_MAX`](crate::BATCH_BYTES_MAX).
    #[error("the batch would have {len_bytes} bytes; a batch may have at most {limit_bytes}")]
    BatchTooLong {
        /// Length that the encoded batch would have had, in bytes.
        len_bytes: usize,
        /// Length of the longest encoded batch that is accepted, in bytes.
        limit_bytes: usize,
    },
    /// A range to delete ends at or before its start.
    #[error("the range from {} up to {} is empty in the store's order", Key(.start), Key(.end))]
    EmptyRange {
        /// The given start of the range.
        start: Vec<u8>,
        /// The given end of the range.
        end: Vec<u8>,
    },
    /// The write does not fit under the memory limit. Nothing of it was applied or logged.
    #[error(
        "the write needs {needed_bytes} bytes of memory, and {used_bytes} of at most {limit_bytes} \
         are in use; raise `memory_limit_bytes`, or drop iterators, which keep old memtables in \
         memory"
    )]
    MemoryLimit {
        /// Bytes that the write would have taken.
        needed_bytes: usize,
        /// Bytes in use when it was tried.
        used_bytes: usize,
        /// The configured limit, in bytes.
        limit_bytes: usize,
    },
    /// An iterator over a batch's operations returned other operations than its clone. Nothing was
    /// applied.
    #[error(
        "the operations of the batch changed while they were copied: the iterator and its clone \
         differ"
    )]
    BatchChanged,
    /// The system refused to provide memory for the memtable.
    #[error("the system refused {needed_bytes} bytes of memory: {reason}")]
    OutOfMemory {
        /// Bytes that were requested.
        needed_bytes: usize,
        /// The system's error message.
        reason: String,
    },
    /// An entry in memory does not match its checksum, or is out of order.
    #[error("the entry of key {} is corrupt in memory: {reason}", Key(.key))]
    CorruptEntry {
        /// The key whose entry was found corrupt.
        key: Vec<u8>,
        /// What was wrong with it.
        reason: &'static str,
    },
    /// Bytes on disk are not what was written.
    #[error("{} is corrupt at offset {offset}: {reason}", .path.display())]
    CorruptFile {
        /// The file.
        path: PathBuf,
        /// Offset of the bad bytes from the start of the file, in bytes.
        offset: u64,
        /// What was wrong with them.
        reason: String,
    },
    /// There is no answer at this position of [`Values`](crate::Values), because the batch had
    /// fewer keys.
    #[error("there is no answer at position {position}: the batch had {}", counted(.len, "key"))]
    NoSuchPosition {
        /// The requested position.
        position: usize,
        /// The number of keys in the batch.
        len: usize,
    },
    /// An encoded batch could not be decoded.
    #[error("the batch is malformed at byte {offset}: {reason}")]
    MalformedBatch {
        /// Offset of the bad operation in the encoded batch, in bytes.
        offset: usize,
        /// What was wrong with it.
        reason: &'static str,
    },
    /// The path holds something other than a store, or nothing. It was left untouched.
    #[error("{} is not a Forerun store: {reason}", .path.display())]
    NotAStore {
        /// The path that was opened.
        path: PathBuf,
        /// What is there instead.
        reason: String,
    },
    /// The path holds something other than a directory of backups, or nothing. It was left
    /// untouched.
    #[error("{} is not a directory of backups: {reason}", .path.display())]
    NotBackups {
        /// The path that was opened.
        path: PathBuf,
        /// What is there instead.
        reason: String,
    },
    /// There is no backup with this number, or none at all.
    #[error("{} holds no backup{}", .path.display(), Number(.number))]
    NoBackup {
        /// The directory of backups.
        path: PathBuf,
        /// The number of the requested backup; `None` for the newest.
        number: Option<u64>,
    },
    /// A new store was requested in a directory that already has one.
    #[error("{} already holds a store", .path.display())]
    AlreadyExists {
        /// The path that was opened.
        path: PathBuf,
    },
    /// A copy of a store was requested inside the store's own directory.
    #[error(
        "{} is inside the store {}; choose a directory outside it",
        .path.display(),
        .store.display()
    )]
    InsideStore {
        /// The directory of the copy.
        path: PathBuf,
        /// The store's directory.
        store: PathBuf,
    },
    /// The store, or one of its runs, was written by a newer release.
    #[error(
        "{} has format version {found}; this release reads up to version {supported}",
        .path.display()
    )]
    NewerFormat {
        /// The store's directory, or the run's file.
        path: PathBuf,
        /// The version it was written in.
        found: u32,
        /// The newest version that this release reads.
        supported: u32,
    },
    /// A run was written by a version from before the first release.
    #[error(
        "{} has format version {found}, from before the first release; this release reads version \
         {supported}",
        .path.display()
    )]
    OlderFormat {
        /// The run's file.
        path: PathBuf,
        /// The version it was written in.
        found: u32,
        /// The oldest version that this release reads.
        supported: u32,
    },
    /// The store is open elsewhere, in this process or in another.
    #[error("{} is already open{}", .path.display(), Holder(.holder))]
    Locked {
        /// The store's directory.
        path: PathBuf,
        /// ID of the process that has it open, if known.
        holder: Option<u32>,
    },
    /// The store's keys are ordered by a comparator other than the one given.
    #[error(
        "{} is ordered by comparator {stored:?}; it was opened with {given:?}",
        .path.display()
    )]
    ComparatorMismatch {
        /// The store's directory.
        path: PathBuf,
        /// Name of the comparator that the store was created with.
        stored: String,
        /// Name of the comparator in the options.
        given: String,
    },
    /// A keyspace's keys are ordered by a comparator other than the one given, or none was given.
    #[error(
        "keyspace {keyspace:?} is ordered by comparator {stored:?}; {}",
        DisplayComparator(.given)
    )]
    KeyspaceComparator {
        /// Name of the keyspace.
        keyspace: String,
        /// Name of the comparator that it was created with.
        stored: String,
        /// Name of the comparator in its options, if there are any.
        given: Option<String>,
    },
    /// A keyspace was opened with a time to live other than the one it was created with, which it
    /// keeps.
    #[error(
        "{} has {}, but was opened with a time to live of {} s",
        Keyspace(.keyspace),
        DisplayTtl(.stored),
        .given.as_secs()
    )]
    KeyspaceTtl {
        /// Name of the keyspace; that of the store's own is empty.
        keyspace: String,
        /// The time to live that it was created with; `None`: its entries never expire.
        stored: Option<Duration>,
        /// The time to live in the options.
        given: Duration,
    },
    /// The store was opened read-only. See [`Access::ReadOnly`](crate::Access::ReadOnly).
    #[error("{} was opened read-only", .path.display())]
    ReadOnly {
        /// Directory of the store.
        path: PathBuf,
    },
    /// A keyspace cannot have this name.
    #[error("a keyspace cannot be named {:?}: {reason}", Name(.name))]
    KeyspaceName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no keyspace of this name.
    #[error("there is no keyspace {:?}", Name(.name))]
    UnknownKeyspace {
        /// The name.
        name: String,
    },
    /// The keyspace was dropped, through any handle.
    #[error("keyspace {name:?} was dropped")]
    KeyspaceDropped {
        /// Its name.
        name: String,
    },
    /// A keyspace of one store was used with another store, or with a later opening of the same
    /// store.
    #[error("keyspace {name:?} belongs to another store, or to an earlier opening of this one")]
    ForeignKeyspace {
        /// Its name.
        name: String,
    },
    /// The store's manifest already has a keyspace with this name, although the open store does
    /// not know it. Open the store again.
    #[error(
        "keyspace {name:?} cannot be created: the manifest already has it; open the store again"
    )]
    KeyspaceExists {
        /// Its name.
        name: String,
    },
    /// The store already has the maximum number of keyspaces.
    #[error("keyspace {name:?} cannot be created: a store can have at most {limit}")]
    TooManyKeyspaces {
        /// Name of the keyspace to be created.
        name: String,
        /// The maximum number of keyspaces.
        limit: usize,
    },
    /// An option has an invalid value.
    #[error("option `{option}` is invalid: {reason}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A comparator panicked, or the store itself did, in the middle of an operation.
    #[error("a panic while {doing}: {message}")]
    Panicked {
        /// The operation that was running.
        doing: &'static str,
        /// The panic's message.
        message: String,
    },
    /// An earlier failure left the state of the log unknown, or a panic left a write or a change of
    /// the runs half done. The store accepts no more writes; reads continue. The log has everything
    /// that was acknowledged: open the store again.
    #[error("the store takes no more writes after an earlier failure: {cause}")]
    Poisoned {
        /// The failure.
        cause: Arc<Error>,
    },
    /// Runs of a keyspace cannot be compacted. Reads of it continue, and so do writes unless its
    /// level 0 is full and needs these runs. Other keyspaces are not affected.
    #[error("{} cannot be compacted: {cause}", Keyspace(.keyspace))]
    CompactionFailed {
        /// Name of the keyspace; that of the store's own is empty.
        keyspace: String,
        /// Why. If a page is damaged, this names the file and the offset of the page.
        cause: Arc<Error>,
    },
    /// The keyspace accepts no writes: its level 0 is full, and its runs cannot be compacted. Reads
    /// of it continue, and so do other keyspaces. Writes resume when a compaction succeeds: see
    /// [`Db::compact`](crate::Db::compact), and [`repair`](crate::repair) for damage.
    #[error(
        "{} takes no writes: its level 0 is full and cannot be compacted: {cause}",
        Keyspace(.keyspace)
    )]
    KeyspaceStopped {
        /// Name of the keyspace; that of the store's own is empty.
        keyspace: String,
        /// Why compactions fail.
        cause: Arc<Error>,
    },
    /// A version was added to a run out of order.
    #[error("key {} is out of order", Key(.key))]
    OutOfOrder {
        /// The key that was given.
        key: Vec<u8>,
    },
    /// A run was finished without entries.
    #[error("run {} has no entries", .path.display())]
    EmptyRun {
        /// The run's file.
        path: PathBuf,
    },
    /// The store was closed through another handle.
    #[error("the store is closed")]
    Closed,
    /// A function that can end a call, such as that of [`FileCopyOptions`](crate::FileCopyOptions)
    /// or [`Db::count_while`](crate::Db::count_while), ended it.
    #[error("the call was interrupted")]
    Interrupted,
    /// A durable write was requested, but the log is off.
    #[error("the write-ahead log is off, so nothing can be made durable")]
    LogOff,
    /// A prefix scan was requested, but this comparator may not keep keys with a common prefix
    /// together.
    #[error(
        "a prefix scan needs an order by bytes; the store is ordered by comparator {comparator:?}"
    )]
    PrefixOrder {
        /// The store's comparator.
        comparator: String,
    },
    /// The handle belongs to the parent process, and this process is a fork of it. Nothing was
    /// touched.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
    /// The directory of a store or of backups was removed, or emptied, while it was open; another
    /// process may have created a store there since. Nothing more is written there.
    #[error("{} was removed or emptied while open; nothing more is written there", .path.display())]
    DirectoryGone {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system failed a call.
    #[error("cannot {op} {}: {cause}", .path.display())]
    Io {
        /// The operation that failed: a verb, such as `"write"`.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        cause: Arc<io::Error>,
    },
}

/// The cause of a call that a file system refused, because the directory is gone.
#[derive(Debug, thiserror::Error)]
#[error("the directory is gone")]
pub(crate) struct DirectoryGone(pub(crate) PathBuf);

impl Error {
    /// Wraps a failed call with its operation and path.
    pub(crate) fn io(op: &'static str, path: &Path, cause: io::Error) -> Error {
        let inner = cause.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(DirectoryGone(path)) = inner {
            return Error::DirectoryGone { path: path.clone() };
        }
        Error::Io {
            op,
            path: path.to_owned(),
            cause: Arc::new(cause),
        }
    }

    /// Reports bad bytes of a file.
    pub(crate) fn corrupt_file(path: &Path, offset: u64, reason: impl Into<String>) -> Error {
        Error::CorruptFile {
            path: path.to_owned(),
            offset,
            reason: reason.into(),
        }
    }

    /// The kind of the failed system call, if this is one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Error::Io { cause, .. } => Some(cause.kind()),
            Error::Poisoned { cause }
            | Error::CompactionFailed { cause, .. }
            | Error::KeyspaceStopped { cause, .. } => cause.io_kind(),
            _ => None,
        }
    }
}

/// Serializes the error as its message.
#[cfg(feature = "serde")]
impl serde::Serialize for Error {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Shows a key as text, escaped where unprintable and truncated.
struct Key<'a>(&'a [u8]);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES: usize = 64;
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if shown.len() < self.0.len() {
            write!(f, "... ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

/// Shows which comparator was given.
struct DisplayComparator<'a>(&'a Option<String>);

impl fmt::Display for DisplayComparator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, "it was opened with {name:?}"),
            None => f.write_str("list it in `Options::keyspaces` with that comparator"),
        }
    }
}

/// Shows a time to live.
struct DisplayTtl<'a>(&'a Option<Duration>);

impl fmt::Display for DisplayTtl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ttl) => write!(f, "a time to live of {} s", ttl.as_secs()),
            None => f.write_str("no time to live"),
        }
    }
}

/// Shows a name from outside, which may be of any length, truncated.
struct Name<'a>(&'a String);

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_CHARS: usize = 64;
        let shown: String = self.0.chars().take(SHOWN_CHARS).collect();
        write!(f, "{shown:?}")?;
        if shown.len() < self.0.len() {
            f.write_str("...")
        } else {
            Ok(())
        }
    }
}

/// Shows which keyspace is meant.
struct Keyspace<'a>(&'a str);

impl fmt::Display for Keyspace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("the store's own keyspace"),
            name => write!(f, "keyspace {name:?}"),
        }
    }
}

/// Shows the number of a backup, if one was requested.
struct Number<'a>(&'a Option<u64>);

impl fmt::Display for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, " {number}"),
            None => Ok(()),
        }
    }
}

/// Shows who holds a lock.
struct Holder<'a>(&'a Option<u32>);

impl fmt::Display for Holder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, " (by process {pid})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_thing_and_the_place() {
        let error = Error::corrupt_file(
            Path::new("store/wal-000001.log"),
            48,
            "checksum does not match",
        );
        assert_eq!(
            error.to_string(),
            "store/wal-000001.log is corrupt at offset 48: checksum does not match"
        );

        let full = Error::io(
            "write",
            Path::new("wal"),
            io::Error::from(io::ErrorKind::StorageFull),
        );
        assert!(
            std::error::Error::source(&full).is_none(),
            "it is in the message"
        );
        let poisoned = Error::Poisoned {
            cause: Arc::new(full),
        };
        assert!(
            poisoned.to_string().contains("cannot write wal"),
            "{poisoned}"
        );
        assert_eq!(poisoned.io_kind(), Some(io::ErrorKind::StorageFull));

        let locked = Error::Locked {
            path: "store".into(),
            holder: Some(7),
        };
        assert_eq!(locked.to_string(), "store is already open (by process 7)");
    }

    #[test]
    fn a_key_is_shown_escaped_and_cut() {
        let error = Error::CorruptEntry {
            key: b"a\x00b".to_vec(),
            reason: "bad",
        };
        assert!(error.to_string().contains(r#""a\x00b""#), "{error}");
        let long = Error::CorruptEntry {
            key: vec![b'k'; 1000],
            reason: "bad",
        };
        assert!(long.to_string().contains("... (1000 bytes)"), "{long}");
        assert!(long.to_string().len() < 200);
    }
}
