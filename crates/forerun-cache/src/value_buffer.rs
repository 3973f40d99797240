//! Buffers for values that arrive in pieces.

use crate::budget::{Budget, BufferShare, Charge};
use crate::value::LargeValue;
use std::sync::Arc;

/// A buffer for a value that arrives in pieces. It takes memory as the bytes arrive. Fill it, then
/// store it as [`StoreValue::Buffer`](crate::StoreValue::Buffer) or drop it.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions};
///
/// let cache = Cache::new(CacheOptions::default())?;
/// let mut buffer = cache.value_buffer(11)?;
/// assert_eq!(buffer.put(&cache, b"hello ")?, 6);
/// assert_eq!(buffer.put(&cache, b"world, and more")?, 5);
/// assert!(buffer.is_full());
/// let _ = cache.set(b"key", buffer);
/// assert_eq!(cache.pin().get(b"key").unwrap().value(), b"hello world");
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Debug)]
pub struct ValueBuffer {
    pub(crate) bytes: Buffered,
    pub(crate) len_bytes: usize,
    pub(crate) filled_bytes: usize,
    pub(crate) share: BufferShare,
}

/// Where the bytes of a buffer are stored.
#[derive(Debug)]
pub(crate) enum Buffered {
    /// Copied into a block when it is stored.
    Small(Vec<u8>, Charge),
    /// Becomes the stored value itself.
    Large(LargeValue),
}

impl ValueBuffer {
    pub(crate) fn new(bytes: Buffered, len_bytes: usize, budget: &Arc<Budget>) -> ValueBuffer {
        ValueBuffer {
            bytes,
            len_bytes,
            filled_bytes: 0,
            share: BufferShare::new(budget),
        }
    }

    /// The bytes that have arrived, and the zeroes after them in a large value.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Buffered::Small(bytes, _) => bytes,
            Buffered::Large(value) => value.bytes(),
        }
    }

    /// The length of the whole value, in bytes.
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The number of bytes that have arrived.
    pub fn filled_bytes(&self) -> usize {
        self.filled_bytes
    }

    /// Whether all bytes have arrived.
    pub fn is_full(&self) -> bool {
        self.filled_bytes == self.len_bytes
    }
}
