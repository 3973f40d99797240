//! The state of a block, kept apart from its bytes.
//!
//! ```text
//!   state   63       62..48    47..32    31..0
//!         | sealed | 0       | pending | tail |      tail: bytes allocated, from the front; pending: items being written
//! ```
//!
//! A writer allocates bytes and becomes pending in one atomic step. It stops being pending when its
//! item is in the index or abandoned. A sealed block takes no more items. Once it is sealed and no
//! writer is pending, all its items are written. The index shows which of them are live.

use crate::eviction::Queue;
use crate::generation::Moment;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const PENDING_ONE: u64 = 1 << 32;
const PENDING: u64 = 0xffff << 32;
const SEALED: u64 = 1 << 63;

/// The words of one block, on a cache line of their own.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Meta {
    state: AtomicU64,
    /// Bytes of the items that are in the index.
    live_bytes: AtomicU32,
    /// The latest expiry of its items; `u32::MAX` is never.
    expiry_last: AtomicU32,
    /// The flush count of its youngest item; 0 if it has had no item yet.
    flushes_last: AtomicU64,
    /// Bytes at the front whose items the eviction policy has already gone through.
    head: AtomicU32,
    ttl_class: AtomicU8,
    queue: AtomicU8,
}

impl Meta {
    /// Resets the state of a free block, which no thread uses.
    pub(super) fn reset(&self, queue: Queue, ttl_class: usize) {
        // Relaxed: other threads learn of the block only when it is opened, by a release store.
        self.live_bytes.store(0, Ordering::Relaxed);
        self.expiry_last.store(0, Ordering::Relaxed);
        self.flushes_last.store(0, Ordering::Relaxed);
        self.head.store(0, Ordering::Relaxed);
        self.ttl_class.store(ttl_class as u8, Ordering::Relaxed);
        self.queue.store(queue as u8, Ordering::Relaxed);
        self.state.store(0, Ordering::Relaxed);
    }

    /// Allocates bytes if the block is open and they fit, and returns their offset. The caller is
    /// pending from now on.
    #[inline]
    pub(super) fn try_allocate(&self, bytes: usize, block_bytes: usize) -> Option<usize> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let tail = tail(state);
            if state & SEALED != 0 || tail + bytes > block_bytes || state & PENDING == PENDING {
                return None;
            }
            let next = state + PENDING_ONE + bytes as u64;
            // Relaxed: the bytes belong to this writer from now on. Other threads learn of them by
            // the releases below.
            let exchanged =
                self.state
                    .compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return Some(tail),
                Err(now) => state = now,
            }
        }
    }

    /// Whether [`Meta::try_allocate`] would find this many bytes.
    pub(super) fn has_room(&self, bytes: usize, block_bytes: usize) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state & SEALED == 0 && tail(state) + bytes <= block_bytes && state & PENDING != PENDING
    }

    /// Ends a write. The item is in the index or abandoned; in either case its bytes are written.
    #[inline]
    pub(super) fn finish_write(&self) {
        // Release: a thread that sees no pending writer also sees the written items.
        self.state.fetch_sub(PENDING_ONE, Ordering::Release);
    }

    /// Closes the block to further items.
    pub(super) fn seal(&self) {
        // Relaxed: sealing orders nothing; see `is_complete`.
        self.state.fetch_or(SEALED, Ordering::Relaxed);
    }

    /// Whether the block is sealed and all its items are written.
    pub(super) fn is_complete(&self) -> bool {
        // Acquire: pairs with the release of the last pending writer.
        self.state.load(Ordering::Acquire) & (SEALED | PENDING) == SEALED
    }

    /// Whether an item is being written in the block.
    pub(super) fn is_pending(&self) -> bool {
        self.state.load(Ordering::Relaxed) & PENDING != 0
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & SEALED != 0
    }

    /// Bytes allocated.
    pub(super) fn tail(&self) -> usize {
        tail(self.state.load(Ordering::Acquire))
    }

    /// Counts an item that enters the index.
    #[inline]
    pub(super) fn add_live(&self, bytes: usize, expiry: u32, flushes: u64) {
        // Relaxed: a count. The index decides whether an item is live.
        self.live_bytes.fetch_add(bytes as u32, Ordering::Relaxed);
        self.extend(expiry);
        if self.flushes_last.load(Ordering::Relaxed) < flushes {
            self.flushes_last.fetch_max(flushes, Ordering::Relaxed);
        }
    }

    /// Records an item's expiry; 0 means never.
    #[inline]
    pub(super) fn extend(&self, expiry: u32) {
        let expiry = if expiry == 0 { u32::MAX } else { expiry };
        if self.expiry_last.load(Ordering::Relaxed) < expiry {
            self.expiry_last.fetch_max(expiry, Ordering::Relaxed);
        }
    }

    /// Uncounts an item that leaves the index.
    #[inline]
    pub(super) fn remove_live(&self, bytes: usize) {
        self.live_bytes.fetch_sub(bytes as u32, Ordering::Relaxed);
    }

    pub(super) fn live_bytes(&self) -> usize {
        self.live_bytes.load(Ordering::Relaxed) as usize
    }

    /// Bytes of the items that have left the index, or never entered it.
    pub(super) fn dead_bytes(&self) -> usize {
        self.tail().saturating_sub(self.live_bytes())
    }

    /// Bytes that a move of its items would win back: those of dead items, and the end of a block
    /// that was sealed early. The items would leave an end shorter than `end_max` elsewhere too.
    pub(super) fn wasted_bytes(&self, block_bytes: usize, end_max: usize) -> usize {
        let end = block_bytes.saturating_sub(self.tail());
        self.dead_bytes() + if end > end_max { end } else { 0 }
    }

    /// Where the items begin that the eviction policy has not gone through.
    pub(super) fn head(&self) -> usize {
        // Relaxed: it only changes while the block's only user owns it, and the pool's lock orders
        // the users.
        self.head.load(Ordering::Relaxed) as usize
    }

    pub(super) fn set_head(&self, offset: usize) {
        // Relaxed, as above.
        self.head.store(offset as u32, Ordering::Relaxed);
    }

    /// Whether the block has items and all of them have expired or were flushed.
    pub(super) fn is_gone(&self, moment: Moment<'_>) -> bool {
        let expiry_last = self.expiry_last.load(Ordering::Relaxed);
        let flushes_last = self.flushes_last.load(Ordering::Relaxed);
        (1..=moment.now).contains(&expiry_last) || (1..moment.flushes).contains(&flushes_last)
    }

    pub(super) fn ttl_class(&self) -> usize {
        self.ttl_class.load(Ordering::Relaxed).into()
    }

    pub(super) fn queue(&self) -> Queue {
        match self.queue.load(Ordering::Relaxed) {
            small if small == Queue::Small as u8 => Queue::Small,
            _ => Queue::Main,
        }
    }
}

fn tail(state: u64) -> usize {
    (state & 0xffff_ffff) as usize
}
