//! Values outside the blocks.
//!
//! ```text
//!   item in a block   │ header │ key │ 0 … │ LargeValue* │      the item owns one share
//!                                               │
//!   run of pages                                └▶ │ value …   │      others: SharedValue, for as long as a slow reader holds it
//! ```

#![allow(unsafe_code, reason = "a run's bytes are exposed as slices")]

use crate::page_runs::{AllocError, PageRuns, Run};
use forerun_core::region::page_bytes;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A value in a page run, charged to the memory limit.
#[derive(Debug)]
pub(crate) struct LargeValue {
    /// `None` only while the value is being dropped.
    run: Option<Run>,
    start: NonNull<u8>,
    len_bytes: usize,
    runs: Arc<PageRuns>,
}

// SAFETY: it owns its bytes, as a Box<[u8]> does; they are written only through `bytes_mut`.
unsafe impl Send for LargeValue {}
// SAFETY: as above.
unsafe impl Sync for LargeValue {}

impl LargeValue {
    /// Bytes of a value in addition to its pages: this struct and the reference counts.
    pub(crate) const OVERHEAD_BYTES: usize = size_of::<LargeValue>() + 2 * size_of::<usize>();

    /// Creates a value of zeroes, to be filled.
    pub(crate) fn zeroed(runs: &Arc<PageRuns>, len_bytes: usize) -> Result<LargeValue, AllocError> {
        let run = runs.allocate(len_bytes)?;
        Ok(LargeValue::of(run, runs, len_bytes))
    }

    /// Creates a value of zeroes whose pages are charged later, by [`LargeValue::hold`]. Nothing
    /// may be written to pages that are not charged.
    pub(crate) fn reserved(
        runs: &Arc<PageRuns>,
        len_bytes: usize,
    ) -> Result<LargeValue, AllocError> {
        let run = runs.reserve(len_bytes)?;
        Ok(LargeValue::of(run, runs, len_bytes))
    }

    fn of(run: Run, runs: &Arc<PageRuns>, len_bytes: usize) -> LargeValue {
        LargeValue {
            start: run.start(),
            run: Some(run),
            len_bytes,
            runs: Arc::clone(runs),
        }
    }

    /// Whether its memory comes from these runs.
    pub(crate) fn is_in(&self, runs: &Arc<PageRuns>) -> bool {
        Arc::ptr_eq(&self.runs, runs)
    }

    /// Charges the pages of the first `end` bytes if the limit allows them.
    pub(crate) fn hold(&mut self, end: usize) -> Result<(), AllocError> {
        match &mut self.run {
            Some(run) => self.runs.charge_front(run, end),
            None => Ok(()),
        }
    }

    /// Bytes of the pages that are charged.
    pub(crate) fn held_bytes(&self) -> usize {
        self.run.as_ref().map_or(0, Run::charged_bytes)
    }

    /// Bytes of the pages that the first `end` bytes take.
    pub(crate) fn held_bytes_for(&self, end: usize) -> usize {
        end.next_multiple_of(page_bytes())
    }

    /// The charge for the value.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.runs.charge_bytes(self.len_bytes)
    }

    /// The value.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the run has this many initialised bytes, which belong to the value until it is
        // dropped. They are written only through `bytes_mut`, which borrows the value mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }

    /// The value, writable until it is shared.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other thread has the value.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            self.runs.free(run);
        }
    }
}

/// A large value, shared with the cache. It stays readable after its item has left the cache, and
/// counts towards the memory limit until the last share is dropped.
#[derive(Clone)]
pub struct SharedValue(pub(crate) Arc<LargeValue>);

impl Deref for SharedValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl fmt::Debug for SharedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedValue")
            .field("len", &self.len())
            .finish()
    }
}
