//! The outcome of a batch of writes.

use crate::values::ServerFailure;

/// The outcome of a batch of writes. `done`, `not_found` and the length of `unwritten` add up to
/// the number of keys.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct WriteReport {
    /// Keys that were written.
    pub done: usize,
    /// Keys to be deleted that their server did not have.
    pub not_found: usize,
    /// The positions of all other keys, in order, and why they were not written.
    pub unwritten: Vec<(usize, Unwritten)>,
    /// The servers that failed.
    pub failures: Vec<ServerFailure>,
}

/// Why a key of a batch was not written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unwritten {
    /// Its server failed before it answered. It may have written the key, unless it was not asked;
    /// see [`WriteReport::failures`].
    Failed,
    /// Its server refused it, with this line: a value that is too long, or no memory.
    Refused(String),
}
