//! The background thread that moves rows, and its queue.
//!
//! ```text
//!   lookups ──> rows to promote to the host tier ┐
//!           ──> keys to promote to the device ───┤
//!           ──> keys that hit on the device ─────┼──> jobs, bounded ──> one thread
//!   prefetch ──> keys ───────────────────────────┤
//!   writes ──> "trim" ───────────────────────────┘
//! ```
//!
//! A job that does not fit into the queue is dropped. A later lookup finds its rows in the lower
//! tier again and queues their promotion again.

use crate::Result;
use crate::inner::Inner;
use crate::move_queue::{Job, PIECE_KEYS, PendingMoves, Queue};
use crate::promotion_batch::{Origin, PromotionBatch};
use forerun_db::Background;
use std::sync::Arc;

use forerun_core::sync::thread::{self, JoinHandle};

/// Maximum bytes of queued rows.
const WAITING_BYTES: usize = 16 << 20;

/// Bytes of rows that a lookup collects before it queues them.
const PIECE_BYTES: usize = 1 << 20;

impl Inner {
    /// Queues the moves of a lookup, or makes them at once with [`Background::Caller`].
    pub(crate) fn queue_moves(&self, moves: PendingMoves) {
        let promotions = moves.promotions.filter(|promotions| !promotions.is_empty());
        let promotions = promotions.map(Job::PromoteToHost);
        let to_device =
            (!moves.to_device.is_empty()).then_some(Job::PromoteToDevice(moves.to_device));
        let touched = (!moves.touched.is_empty()).then_some(Job::Touch(moves.touched));
        for job in [promotions, to_device, touched].into_iter().flatten() {
            self.queue_job(job);
        }
    }

    /// Queues a lookup's promotions so far if they fill a piece, and leaves an empty batch. So a
    /// lookup of any size holds at most one piece.
    pub(crate) fn queue_promotions(&self, promotions: &mut PromotionBatch) {
        if promotions.len() * self.row.bytes() >= PIECE_BYTES {
            let empty = PromotionBatch::of(promotions.origin());
            self.queue_job(Job::PromoteToHost(std::mem::replace(promotions, empty)));
        }
    }

    /// Queues keys to be prefetched, or prefetches them at once with [`Background::Caller`].
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted).
    pub(crate) fn queue_prefetch(&self, keys: &[u64]) -> Result<()> {
        for keys in keys.chunks(PIECE_KEYS) {
            self.interrupt.check()?;
            let mut piece = Vec::new();
            if piece.try_reserve_exact(keys.len()).is_err() {
                // As for a piece that does not fit into the queue.
                self.counters.unpromoted_rows.add(keys.len());
                continue;
            }
            piece.extend_from_slice(keys);
            self.queue_job(Job::Prefetch(piece));
        }
        Ok(())
    }

    fn queue_job(&self, job: Job) {
        if self.policies.background == Background::Caller {
            return self.run(job);
        }
        match self.queue.push(job, WAITING_BYTES / self.row.bytes()) {
            Ok(()) | Err(Job::Touch(_) | Job::Trim) => {}
            Err(Job::PromoteToHost(promotions)) => {
                self.counters.unpromoted_rows.add(promotions.len())
            }
            Err(Job::Prefetch(keys)) => self.counters.unpromoted_rows.add(keys.len()),
            Err(Job::PromoteToDevice(keys)) => self.counters.device_unpromoted_rows.add(keys.len()),
        }
    }

    fn run(&self, job: Job) {
        match job {
            Job::PromoteToHost(promotions) => self.promote_to_host(promotions),
            Job::PromoteToDevice(keys) => self.promote_to_device(&keys, Origin::Found),
            Job::Touch(keys) => {
                if let Some(device) = self.device() {
                    device.touch(&keys);
                }
            }
            Job::Prefetch(keys) => self.prefetch_now(&keys),
            Job::Trim => self.trim(),
        }
    }

    /// Queues the eviction of rows beyond the capacity.
    pub(crate) fn queue_trim(&self) {
        self.queue.trim();
    }
}

/// Starts the background thread.
pub(crate) fn start(inner: &Arc<Inner>) -> std::io::Result<JoinHandle<()>> {
    let inner = Arc::clone(inner);
    let thread = thread::Builder::new().name("forerun-table".to_owned());
    thread.spawn(move || {
        // Releases all threads that wait for this one, even if it panics.
        let _stop = Stop(&inner.queue);
        while let Some(job) = inner.queue.next() {
            inner.run(job);
        }
    })
}

struct Stop<'q>(&'q Queue);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
