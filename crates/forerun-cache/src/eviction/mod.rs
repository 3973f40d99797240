//! Eviction policies: which queue a new item joins, which block is evicted next, and which of its
//! items survive.
//!
//! A policy makes decisions and keeps their history. It does not access items: [`crate::evict`]
//! empties the blocks. To add a policy, add a file that implements [`EvictionPolicy`] and register
//! it in [`Policy`].

mod ghosts;
mod s3_fifo;

use forerun_core::{Pages, RegionError};
use s3_fifo::S3Fifo;

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

/// The decisions that an eviction policy makes.
pub(crate) trait EvictionPolicy {
    /// The queue that a new item joins. Asked once per store.
    fn admit(&self, hash: u64) -> Queue;

    /// The queues to take the next items from, preferred first, given how many bytes each holds.
    fn eviction_order(&self, queue_bytes: [usize; 2]) -> [Queue; 2];

    /// Decides the fate of a live item in a block that is evicted, given how often it was read.
    fn decision(&self, queue: Queue, frequency: u8) -> EvictionDecision;

    /// Called after an item of this queue and of this many bytes was evicted.
    fn on_evict(&self, queue: Queue, hash: u64, bytes: usize);

    /// Bytes that the policy holds for as long as the cache exists.
    fn memory_bytes(&self) -> usize;
}

/// The registered policies.
#[derive(Debug)]
pub(crate) enum Policy {
    S3Fifo(S3Fifo),
}

impl Policy {
    /// The policy of a cache with this memory limit, with its memory in such pages.
    pub(crate) fn new(limit_bytes: usize, pages: Pages) -> Result<Policy, RegionError> {
        Ok(Policy::S3Fifo(S3Fifo::new(limit_bytes, pages)?))
    }
}

impl std::ops::Deref for Policy {
    type Target = dyn EvictionPolicy + Sync;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Policy::S3Fifo(policy) => policy,
        }
    }
}
