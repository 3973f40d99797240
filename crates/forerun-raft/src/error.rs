//! Errors of the log storage and of the state machine.

use openraft::AnyError;

/// The version of what this crate writes to a store.
pub(crate) const FORMAT: u32 = 1;

/// The result of a call to this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the log storage or of the state machine.
///
/// openraft stops the node when its storage returns an error. It has to be started again, after the
/// cause is removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store returned an error.
    #[error(transparent)]
    Db(#[from] forerun_db::Error),
    /// The store was written by another version of this crate.
    #[error("the store's Raft data has format {found}; this version reads format {FORMAT}")]
    Format {
        /// The format of the store.
        found: u32,
    },
    /// A keyspace that this crate needs has other data in it.
    #[error("keyspace {keyspace:?} has entries, but the store has no Raft data")]
    KeyspaceInUse {
        /// Its name.
        keyspace: String,
    },
    /// A record cannot be decoded, or is not what it must be.
    #[error("keyspace {keyspace:?}, {record}: {reason}")]
    BadRecord {
        /// The name of the keyspace.
        keyspace: String,
        /// Which record.
        record: String,
        /// What is wrong.
        reason: String,
    },
    /// A record cannot be encoded.
    #[error("{record} cannot be encoded: {reason}")]
    Encode {
        /// Which record.
        record: String,
        /// Why.
        reason: String,
    },
    /// Received bytes are not a snapshot, or not all of one.
    #[error("byte {offset} of a received snapshot: {reason}")]
    SnapshotStream {
        /// The number of bytes before.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A snapshot that was built is written to, or one that is being received is read.
    #[error("{0}")]
    SnapshotDirection(&'static str),
    /// The log is not purged, because the snapshot that replaces it was not installed.
    #[error("the log is not purged up to {index}: the snapshot up to there was not installed")]
    NotInstalled {
        /// The index up to which it was to be purged.
        index: u64,
    },
    /// A thread of the storage could not be started.
    #[error("cannot start the thread {thread:?}: {reason}")]
    Thread {
        /// Its name.
        thread: &'static str,
        /// Why.
        reason: String,
    },
    /// A thread of the storage has ended, because it panicked.
    #[error("the thread {thread:?} has ended")]
    ThreadEnded {
        /// Its name.
        thread: &'static str,
    },
}

impl Error {
    /// The error for openraft.
    pub(crate) fn to_any(&self) -> AnyError {
        AnyError::new(self)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        std::io::Error::other(error)
    }
}
