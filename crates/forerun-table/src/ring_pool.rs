//! Rings of staging memory. Lookups to the device share a few of them.
//!
//! ```text
//!   lookup ──> kept? ──> lent ──> kept          made when none is kept and fewer than RINGS_MAX are lent,
//!                └ all lent: wait ┘             never given back before the table is closed
//! ```

use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use forerun_gpu::gather::{StagingRing, StagingShape};
use forerun_gpu::{Gpu, GpuError};

/// The maximum number of rings. It is higher than what fills the link, because some rings wait for
/// the store.
const RINGS_MAX: usize = 8;

/// The staging rings of a device tier.
#[derive(Debug)]
pub(crate) struct RingPool {
    gpu: Option<Gpu>,
    shape: StagingShape,
    state: Mutex<PoolState>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    kept: Vec<StagingRing>,
    in_use: usize,
}

impl RingPool {
    /// A pool of rings to a GPU, or to ordinary memory without one. Rings are allocated on demand.
    pub(crate) fn new(gpu: Option<Gpu>, row_bytes: usize) -> RingPool {
        RingPool {
            gpu,
            shape: StagingShape::of(row_bytes),
            state: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Calls `work` with a ring. Waits while all rings are in use.
    ///
    /// # Errors
    /// Out of memory for a ring; the errors of `work`.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut StagingRing) -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        let mut state = self.lock();
        while state.in_use == RINGS_MAX {
            let waited = self.returned.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.in_use += 1;
        let kept = state.kept.pop();
        drop(state);
        let mut in_use = RingLease {
            ring_pool: self,
            ring: None,
        };
        let ring = match kept {
            Some(ring) => ring,
            None => self.make()?,
        };
        work(in_use.ring.insert(ring))
    }

    fn make(&self) -> Result<StagingRing, GpuError> {
        match &self.gpu {
            Some(gpu) => StagingRing::on_gpu(gpu, self.shape),
            None => StagingRing::on_cpu(self.shape),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // No change under the lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A ring in use, or the right to allocate one. Dropping it returns the ring, also after a panic,
/// which leaves no row in flight.
struct RingLease<'r> {
    ring_pool: &'r RingPool,
    ring: Option<StagingRing>,
}

impl Drop for RingLease<'_> {
    fn drop(&mut self) {
        let mut state = self.ring_pool.lock();
        state.in_use -= 1;
        state.kept.extend(self.ring.take());
        self.ring_pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The number of idle rings and the number of lent ones.
    fn counts(pool: &RingPool) -> (usize, usize) {
        let state = pool.lock();
        (state.kept.len(), state.in_use)
    }

    #[test]
    fn at_most_the_limit_of_rings_is_created() {
        let pool = RingPool::new(None, 16);
        for _ in 0..3 {
            pool.with(|_| Ok(())).unwrap();
        }
        assert_eq!(counts(&pool), (1, 0));

        // As many calls as there are rings meet inside; the others must wait for them.
        let (all_in, inside) = (Barrier::new(RINGS_MAX), AtomicUsize::new(0));
        forerun_core::sync::thread::scope(|scope| {
            for _ in 0..3 * RINGS_MAX {
                scope.spawn(|| {
                    pool.with(|_| {
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < RINGS_MAX);
                        all_in.wait();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        Ok(())
                    })
                    .unwrap();
                });
            }
        });
        assert_eq!(counts(&pool), (RINGS_MAX, 0));
    }

    #[test]
    fn a_ring_is_returned_after_an_error_or_a_panic() {
        let pool = RingPool::new(None, 16);
        for _ in 0..2 * RINGS_MAX {
            let failed = pool.with(|_| Err::<(), _>(GpuError::NoDevice));
            assert_eq!(failed, Err(GpuError::NoDevice));
            let work = || pool.with(|_| -> Result<(), GpuError> { panic!("as it may") });
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
        }
        assert_eq!(counts(&pool), (1, 0));
    }
}
