//! What is known of a block beside its bytes.
//!
//! ```text
//!   state   63       62..48    47..32    31..0
//!         | sealed | 0       | pending | tail |      tail: bytes taken, from the front; pending: items being written
//! ```
//!
//! An item's writer takes room and joins the pending ones in one step, and leaves them when the item is in the index, or given
//! up. A block that is sealed takes no more; when nobody is pending in it either, all its items are written, and whoever goes
//! through them finds in the index what is alive.

use crate::flush::Moment;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const PENDING_ONE: u64 = 1 << 32;
const PENDING: u64 = 0xffff << 32;
const SEALED: u64 = 1 << 63;

/// The two queues of blocks, by the order in which they were opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Queue {
    /// For new items. Those that nobody asked for before their block's turn comes leave.
    Small = 0,
    /// For items that were asked for. At each turn they need to have been asked for again.
    Main = 1,
}

impl Queue {
    pub(crate) const ALL: [Queue; 2] = [Queue::Small, Queue::Main];
}

/// A block's own words, in a line of their own.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Meta {
    state: AtomicU64,
    /// Bytes of its items that the index has.
    live_bytes: AtomicU32,
    /// The last second in which one of its items expires: `u32::MAX` is never.
    expiry_last: AtomicU32,
    /// The most flushes that one of its items has seen; 0 where there is none yet.
    flushes_last: AtomicU64,
    class: AtomicU8,
    queue: AtomicU8,
}

impl Meta {
    /// Begins anew. The block is nobody's.
    pub(super) fn reset(&self, queue: Queue, class: usize) {
        // Relaxed: others learn of the block by its place among the open ones, which is released.
        self.live_bytes.store(0, Ordering::Relaxed);
        self.expiry_last.store(0, Ordering::Relaxed);
        self.flushes_last.store(0, Ordering::Relaxed);
        self.class.store(class as u8, Ordering::Relaxed);
        self.queue.store(queue as u8, Ordering::Relaxed);
        self.state.store(0, Ordering::Relaxed);
    }

    /// Takes room, and is pending from then on: where it begins, if there is room.
    #[inline]
    pub(super) fn try_take(&self, bytes: usize, block_bytes: usize) -> Option<usize> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let tail = tail(state);
            if state & SEALED != 0 || tail + bytes > block_bytes || state & PENDING == PENDING {
                return None;
            }
            let next = state + PENDING_ONE + bytes as u64;
            // Relaxed: the bytes are this writer's from now on, and others learn of them by what is released below.
            let taken =
                self.state
                    .compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return Some(tail),
                Err(now) => state = now,
            }
        }
    }

    /// The item is in the index, or given up: in any case it is written.
    #[inline]
    pub(super) fn finish_write(&self) {
        // Release: who finds nobody pending finds the item written.
        self.state.fetch_sub(PENDING_ONE, Ordering::Release);
    }

    /// Takes no more items.
    pub(super) fn seal(&self) {
        // Relaxed: it orders nothing; see `is_complete`.
        self.state.fetch_or(SEALED, Ordering::Relaxed);
    }

    /// Whether the block is sealed and all its items are written.
    pub(super) fn is_complete(&self) -> bool {
        // Acquire: pairs with the release of the last one pending.
        self.state.load(Ordering::Acquire) & (SEALED | PENDING) == SEALED
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & SEALED != 0
    }

    /// Bytes taken.
    pub(super) fn tail(&self) -> usize {
        tail(self.state.load(Ordering::Acquire))
    }

    /// An item of so many bytes goes into the index.
    #[inline]
    pub(super) fn add_live(&self, bytes: usize, expiry: u32, flushes: u64) {
        // Relaxed: counts. What decides whether an item lives is the index.
        self.live_bytes.fetch_add(bytes as u32, Ordering::Relaxed);
        self.extend(expiry);
        if self.flushes_last.load(Ordering::Relaxed) < flushes {
            self.flushes_last.fetch_max(flushes, Ordering::Relaxed);
        }
    }

    /// An item expires then; 0 is never.
    #[inline]
    pub(super) fn extend(&self, expiry: u32) {
        let expiry = if expiry == 0 { u32::MAX } else { expiry };
        if self.expiry_last.load(Ordering::Relaxed) < expiry {
            self.expiry_last.fetch_max(expiry, Ordering::Relaxed);
        }
    }

    /// And one leaves it.
    #[inline]
    pub(super) fn remove_live(&self, bytes: usize) {
        self.live_bytes.fetch_sub(bytes as u32, Ordering::Relaxed);
    }

    pub(super) fn live_bytes(&self) -> usize {
        self.live_bytes.load(Ordering::Relaxed) as usize
    }

    /// Whether there are items, and all have expired or were flushed.
    pub(super) fn is_gone(&self, moment: Moment) -> bool {
        let expiry_last = self.expiry_last.load(Ordering::Relaxed);
        let flushes_last = self.flushes_last.load(Ordering::Relaxed);
        (1..=moment.now).contains(&expiry_last) || (1..moment.flushes).contains(&flushes_last)
    }

    pub(super) fn class(&self) -> usize {
        self.class.load(Ordering::Relaxed).into()
    }

    pub(super) fn queue(&self) -> Queue {
        match self.queue.load(Ordering::Relaxed) {
            0 => Queue::Small,
            _ => Queue::Main,
        }
    }
}

fn tail(state: u64) -> usize {
    (state & 0xffff_ffff) as usize
}
