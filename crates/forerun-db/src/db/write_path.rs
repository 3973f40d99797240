//! Where writes get their sequence numbers and become visible.

use std::sync::Arc;

use super::published_sequence::PublishedSequence;
use super::write::Writer;
use crate::clock::Clock;

/// The order of all writes.
pub(super) struct WritePath {
    /// Assigns the sequence numbers.
    pub(super) writer: Writer,
    /// Notes when they were assigned.
    pub(super) clock: Arc<Clock>,
    /// The newest one that readers see.
    pub(super) published: PublishedSequence,
}
