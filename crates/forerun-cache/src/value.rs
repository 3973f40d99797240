//! Values outside the blocks: large values, and buffers for values that arrive in pieces.
//!
//! ```text
//!   item in a block   │ header │ key │ 0 … │ LargeValue* │      the item owns one share
//!                                               │
//!   run of pages                                └▶ │ value …   │      others: SharedValue, for as long as a slow reader holds it
//! ```

#![allow(unsafe_code, reason = "a run's bytes are exposed as slices")]

use crate::budget::Charge;
use crate::page_runs::{AllocError, PageRuns, Run};
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
        Ok(LargeValue {
            start: run.start(),
            run: Some(run),
            len_bytes,
            runs: Arc::clone(runs),
        })
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
        // SAFETY: as above, and nobody else has the value.
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

/// A buffer for a value that arrives in pieces, within the cache's memory limit. Fill it, then
/// store it as [`Value::Buffer`](crate::Value::Buffer) or drop it.
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

/// Where the bytes of a buffer are stored.
#[derive(Debug)]
pub(crate) enum Buffered {
    /// Copied into a block when it is stored.
    Small(
        Box<[u8]>,
        #[allow(dead_code, reason = "held until drop gives the charge back")] Charge,
    ),
    /// Becomes the stored value itself.
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

    /// The length of the whole value, in bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all bytes are filled.
    pub fn is_full(&self) -> bool {
        self.filled == self.len()
    }

    /// Appends as many bytes as still fit and returns how many.
    pub fn put(&mut self, bytes: impl AsRef<[u8]>) -> usize {
        let bytes = bytes.as_ref();
        let len = bytes.len().min(self.len() - self.filled);
        self.unfilled()[..len].copy_from_slice(&bytes[..len]);
        self.advance(len);
        len
    }

    /// The unfilled part. After reading into it, call [`ValueBuffer::advance`].
    pub fn unfilled(&mut self) -> &mut [u8] {
        let bytes = match &mut self.bytes {
            Buffered::Small(bytes, _) => bytes,
            Buffered::Large(value) => value.bytes_mut(),
        };
        &mut bytes[self.filled..]
    }

    /// Marks the next `len` bytes as filled.
    ///
    /// # Panics
    /// If fewer bytes are unfilled.
    pub fn advance(&mut self, len: usize) {
        assert!(
            len <= self.len() - self.filled,
            "cannot advance past the end of the value"
        );
        self.filled += len;
    }
}
