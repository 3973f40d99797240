//! The memory of all connections' own buffers, and its limit.
//!
//! ```text
//!   a connection waits with bytes in its buffers  ──> Ticket::hold ──> counted here
//!   4/5 of the limit (crowded)  ──> connections that have had to wait for their reader are not read
//!                               ──> connections that hold memory and make no progress are closed
//!   the limit (full)            ──> a connection whose turn takes more memory is closed
//!
//!   an answer waits with a large value ──> WaitingValues ──> counted once for all answers
//!   the limit of uploads        ──> the value is copied into the connection's buffer; if that has no room,
//!                               ──> the reader that has made no progress for the longest time is closed
//!   4/5 of it                   ──> connections with such values that make no progress are closed
//! ```
//!
//! A connection that waits with empty buffers holds no memory: see
//! [`Spare`]. The server reads such a connection no matter how full the
//! buffers are, so deliberately slow readers never stop the service for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forerun_cache::Cache;

use crate::input::Input;
use crate::output::Output;
use crate::shared::ConnectionStats;
use crate::waiting_values::WaitingValues;

/// While memory is short, a connection that holds some of it and has made no progress for this long
/// is closed.
pub(crate) const STALL_S: u64 = 5;

/// If another reader of a large value finds no room, one that has made no progress for longer than
/// this is closed.
pub(crate) const READER_STALL_S: u64 = 1;

/// A connection that holds memory makes progress by giving all of it back, or by moving this many
/// bytes. Fewer bytes are not progress: otherwise a client could keep the memory by sending or
/// reading a byte now and then.
pub(crate) const PROGRESS_BYTES: u64 = 64 << 10;

// All counts here are statistics, or are compared with a limit that one turn may exceed. They order
// nothing, so every access is relaxed.
const RELAXED: Ordering = Ordering::Relaxed;

/// Buffers that a worker's connections share. A connection that waits with empty buffers gives them
/// up, and the next connection finds them in the CPU cache.
#[derive(Default)]
pub(crate) struct Spare {
    pub(super) input: Input,
    pub(super) output: Output,
}

/// The memory that a connection's own buffers take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferMemory {
    /// An incomplete command, or commands that wait for a slow reader.
    pub(crate) input_bytes: usize,
    /// Answers that wait for a slow reader, without the large values that they share.
    pub(crate) output_bytes: usize,
}

/// The buffers of all connections.
#[derive(Debug)]
pub(crate) struct Buffers {
    limit_bytes: usize,
    input: Side,
    output: Side,
    /// The large values that waiting answers share with the cache.
    values: Arc<WaitingValues>,
    pauses: AtomicU64,
}

/// Which memory of connections is so scarce that those that hold it must make progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// Their own buffers.
    pub(crate) buffers: bool,
    /// Values that have not arrived in full.
    pub(crate) uploads: bool,
    /// Large values that wait for their readers.
    pub(crate) values: bool,
}

impl Shortage {
    /// Whether any memory is scarce.
    pub(crate) fn is_some(self) -> bool {
        self != Shortage::default()
    }
}

/// The input buffers of all connections, or their output buffers.
#[derive(Debug, Default)]
struct Side {
    connections: AtomicUsize,
    bytes: AtomicUsize,
    closed: AtomicU64,
}

impl Side {
    fn change(&self, from: usize, to: usize) {
        if from == to {
            return;
        }
        // Wraps around for a decrease.
        self.bytes.fetch_add(to.wrapping_sub(from), RELAXED);
        match (from, to) {
            (0, _) => _ = self.connections.fetch_add(1, RELAXED),
            (_, 0) => _ = self.connections.fetch_sub(1, RELAXED),
            _ => {}
        }
    }
}

impl BufferMemory {
    /// Whether a connection holds any memory.
    pub(crate) fn is_some(self) -> bool {
        self != BufferMemory::default()
    }

    /// Input and output together.
    pub(crate) fn bytes(self) -> usize {
        self.input_bytes + self.output_bytes
    }
}

impl Buffers {
    pub(crate) fn new(limit_bytes: usize) -> Buffers {
        Buffers {
            limit_bytes,
            input: Side::default(),
            output: Side::default(),
            values: Arc::default(),
            pauses: AtomicU64::new(0),
        }
    }

    /// Whether the limit is near: connections that hold memory must give it back before they get
    /// more.
    pub(crate) fn is_crowded(&self) -> bool {
        !self.has_room(1)
    }

    /// Whether the limit is not near even if some bytes are added.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes().saturating_add(bytes) <= self.limit_bytes / 5 * 4
    }

    /// Which memory is scarce. Uploads and the values of answers may each take as much as the cache
    /// allows uploads. The cache refuses uploads above that, so they are scarce from half of it.
    pub(crate) fn shortage(&self, cache: &Cache) -> Shortage {
        let limit_bytes = cache.value_buffer_limit_bytes();
        Shortage {
            buffers: self.is_crowded(),
            uploads: cache.stats().buffer_bytes as usize > limit_bytes / 2,
            values: self.values.bytes() > limit_bytes / 5 * 4,
        }
    }

    /// The large values that waiting answers share with the cache.
    pub(crate) fn values(&self) -> &Arc<WaitingValues> {
        &self.values
    }

    /// Whether the limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.limit_bytes
    }

    fn bytes(&self) -> usize {
        self.input.bytes.load(RELAXED) + self.output.bytes.load(RELAXED)
    }

    /// Records that the memory of one connection has changed.
    pub(crate) fn change(&self, from: BufferMemory, to: BufferMemory) {
        self.input.change(from.input_bytes, to.input_bytes);
        self.output.change(from.output_bytes, to.output_bytes);
    }

    /// Counts one time that a connection is not read.
    pub(crate) fn paused(&self) {
        self.pauses.fetch_add(1, RELAXED);
    }

    /// Counts a connection that is closed because of its memory.
    pub(crate) fn closed(&self, has_answers: bool) {
        let side = if has_answers {
            &self.output
        } else {
            &self.input
        };
        side.closed.fetch_add(1, RELAXED);
    }

    /// Fills in the metrics of `stats`.
    pub(crate) fn describe(&self, stats: &mut ConnectionStats) {
        stats.response_obj_oom = self.output.closed.load(RELAXED);
        stats.response_obj_count = self.output.connections.load(RELAXED) as u64;
        stats.response_obj_bytes = self.output.bytes.load(RELAXED) as u64;
        stats.response_value_bytes = self.values.bytes() as u64;
        stats.read_buf_count = self.input.connections.load(RELAXED) as u64;
        stats.read_buf_bytes = self.input.bytes.load(RELAXED) as u64;
        stats.read_buf_oom = self.input.closed.load(RELAXED);
        stats.read_buf_pauses = self.pauses.load(RELAXED);
        stats.read_buf_limit_bytes = self.limit_bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_follows_every_change_up_and_down() {
        let buffers = Buffers::new(100);
        let of = |input_bytes, output_bytes| BufferMemory {
            input_bytes,
            output_bytes,
        };
        buffers.change(of(0, 0), of(30, 50));
        buffers.change(of(0, 0), of(0, 10));
        assert!(buffers.is_crowded() && !buffers.is_full());
        buffers.change(of(30, 50), of(40, 60));
        assert!(buffers.is_full());
        let mut stats = ConnectionStats::default();
        buffers.describe(&mut stats);
        assert_eq!((stats.read_buf_count, stats.read_buf_bytes), (1, 40));
        assert_eq!(
            (stats.response_obj_count, stats.response_obj_bytes),
            (2, 70)
        );
        buffers.change(of(40, 60), of(0, 0));
        buffers.change(of(0, 10), of(0, 0));
        buffers.describe(&mut stats);
        assert_eq!((stats.read_buf_count, stats.read_buf_bytes), (0, 0));
        assert_eq!((stats.response_obj_count, stats.response_obj_bytes), (0, 0));
        assert!(!buffers.is_crowded());
    }
}
