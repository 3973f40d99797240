//! Values with memory of their own: large ones, and those that come in pieces.
//!
//! ```text
//!   item in a block   │ header │ key │ 0 … │ LargeValue* │      the item owns one share
//!                                               │
//!   run of pages                                └▶ │ value …   │      others: SharedValue, as long as a slow reader has it
//! ```

#![allow(unsafe_code, reason = "a run's bytes are handed out as slices")]

use crate::budget::Charge;
use crate::page_runs::{AllocError, PageRuns, Run};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A value in pages of its own, which count towards the limit.
#[derive(Debug)]
pub(crate) struct LargeValue {
    /// Until it is dropped.
    run: Option<Run>,
    start: NonNull<u8>,
    len_bytes: usize,
    runs: Arc<PageRuns>,
}

// SAFETY: it owns its bytes, as a Box<[u8]> does: they are written through `bytes_mut` only.
unsafe impl Send for LargeValue {}
// SAFETY: as above.
unsafe impl Sync for LargeValue {}

impl LargeValue {
    /// Bytes of a value beside its pages: itself, and the counts of its shares.
    pub(crate) const OVERHEAD_BYTES: usize = size_of::<LargeValue>() + 2 * size_of::<usize>();

    /// Zeroes, to be written.
    pub(crate) fn zeroed(runs: &Arc<PageRuns>, len_bytes: usize) -> Result<LargeValue, AllocError> {
        let run = runs.allocate(len_bytes)?;
        Ok(LargeValue {
            start: run.start(),
            run: Some(run),
            len_bytes,
            runs: Arc::clone(runs),
        })
    }

    /// Bytes that it is charged.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.runs.charge_bytes(self.len_bytes)
    }

    /// The value.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the run has so many initialised bytes, which are the value's until it is dropped; they are written through
        // `bytes_mut` only, which takes the value mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }

    /// The value, to be written, before it is shared.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and nobody else has the value.
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

/// A large value, shared with the cache: it stays readable when its item is gone, and counts towards the memory limit until
/// the last share is dropped.
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

/// Room for a value that comes in pieces, within the cache's memory limit: to be filled, then stored as
/// [`Value::Buffer`](crate::Value::Buffer), or dropped.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions, Store};
///
/// let cache = Cache::new(CacheOptions::default())?;
/// let mut buffer = cache.value_buffer(11)?;
/// assert_eq!(buffer.put(b"hello "), 6);
/// assert_eq!(buffer.put(b"world, and more"), 5);
/// assert!(buffer.is_full());
/// cache.store(Store::set(b"key", buffer));
/// assert_eq!(cache.pin().get(b"key").unwrap().value(), b"hello world");
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Debug)]
pub struct ValueBuffer {
    pub(crate) bytes: Buffered,
    filled: usize,
}

/// Where the bytes of a buffer are.
#[derive(Debug)]
pub(crate) enum Buffered {
    /// To be copied into a block.
    Small(
        Box<[u8]>,
        #[allow(dead_code, reason = "held for what it gives back")] Charge,
    ),
    /// To become the value as it is.
    Large(LargeValue),
}

impl ValueBuffer {
    pub(crate) fn new(bytes: Buffered) -> ValueBuffer {
        ValueBuffer { bytes, filled: 0 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Buffered::Small(bytes, _) => bytes,
            Buffered::Large(value) => value.bytes(),
        }
    }

    /// Bytes of the whole value.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all bytes are there.
    pub fn is_full(&self) -> bool {
        self.filled == self.len()
    }

    /// Appends as many bytes as are wanted still, and tells how many.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.len() - self.filled);
        self.unfilled()[..len].copy_from_slice(&bytes[..len]);
        self.advance(len);
        len
    }

    /// The rest, to be read into; then tell by [`ValueBuffer::advance`] how much was.
    pub fn unfilled(&mut self) -> &mut [u8] {
        let bytes = match &mut self.bytes {
            Buffered::Small(bytes, _) => bytes,
            Buffered::Large(value) => value.bytes_mut(),
        };
        &mut bytes[self.filled..]
    }

    /// Takes the next `len` bytes as filled.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, len: usize) {
        assert!(
            len <= self.len() - self.filled,
            "more bytes than the value has"
        );
        self.filled += len;
    }
}
