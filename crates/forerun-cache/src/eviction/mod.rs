//! Eviction: which queue a new item joins, which block is evicted next, and which of its items
//! survive.
//!
//! [`S3Fifo`] makes these decisions and keeps their history. It does not access items:
//! [`crate::evict`] empties the blocks.

mod ghosts;
mod s3_fifo;

pub(crate) use s3_fifo::S3Fifo;

/// The two queues of blocks, in the order in which the blocks were opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Queue {
    /// New items.
    Small = 0,
    /// Items that were read again.
    Main = 1,
}

impl Queue {
    pub(crate) const ALL: [Queue; 2] = [Queue::Small, Queue::Main];
}

/// The fate of a live item when its block is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionDecision {
    /// The item is removed.
    Evict,
    /// The item moves to a block of this queue and starts there with this frequency.
    Move { queue: Queue, frequency: u8 },
}
