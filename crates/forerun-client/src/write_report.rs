//! The outcome of a batch of writes.

use crate::values::ServerFailure;

/// The outcome of a batch of writes. `done`, `not_found` and the length of `unwritten` add up to
/// the number of keys.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct WriteReport {
    /// Keys that were written.
    pub done: usize,
    /// Keys of a deletion that were not found.
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
    /// Its server failed before it answered. It may have written the key, unless the client did not
    /// ask it; see [`WriteReport::failures`].
    Failed,
    /// Its server refused it with this line, for example because the value is too long or memory is
    /// full.
    Refused(String),
}
