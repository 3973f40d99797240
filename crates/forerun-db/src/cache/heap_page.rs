//! Pages that are not in frames.

use forerun_core::CACHE_LINE_BYTES;
use forerun_core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// A page on the heap that starts on a cache line.
pub(super) struct HeapPage {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
    /// Counts its bytes while it lives.
    counted: Option<Arc<AtomicUsize>>,
}

impl HeapPage {
    /// A page of zeros; `None` if there is no memory.
    pub(super) fn new(len: usize) -> Option<HeapPage> {
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len.checked_add(CACHE_LINE_BYTES)?)
            .ok()?;
        bytes.resize(len + CACHE_LINE_BYTES, 0);
        let bytes = bytes.into_boxed_slice();
        let start = bytes
            .as_ptr()
            .align_offset(CACHE_LINE_BYTES)
            .min(CACHE_LINE_BYTES);
        Some(HeapPage {
            bytes,
            start,
            len,
            counted: None,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The longest page that it can be.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len() - CACHE_LINE_BYTES
    }

    /// Makes it a page of `len` bytes, which are left as they are. At most its
    /// [capacity](Self::capacity).
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Counts its bytes until it is freed.
    pub(super) fn count(&mut self, counter: &Arc<AtomicUsize>) {
        // Relaxed: a counter orders nothing.
        counter.fetch_add(self.len, Ordering::Relaxed);
        self.counted = Some(Arc::clone(counter));
    }

    pub(super) fn is_counted(&self) -> bool {
        self.counted.is_some()
    }
}

impl Drop for HeapPage {
    fn drop(&mut self) {
        if let Some(counted) = &self.counted {
            counted.fetch_sub(self.len, Ordering::Relaxed);
        }
    }
}
