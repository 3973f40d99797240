//! Buffers for values that arrive in pieces.

use crate::budget::{Budget, BufferShare, Charge};
use crate::value::{LargeValue, SharedValue};
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
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Buffered::Small(bytes, _) => bytes,
            Buffered::Large(value) => value.bytes(),
        }
    }

    /// The value of a full buffer, if it is a large one, for
    /// [`ComputeValue::Shared`](crate::ComputeValue::Shared). Otherwise the buffer is returned, and
    /// its [bytes](ValueBuffer::bytes) have to be copied.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, ComputeOp, ComputePut};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let mut buffer = cache.value_buffer(512 << 10)?;
    /// buffer.put(&cache, vec![7; 512 << 10])?;
    /// let value = buffer.into_shared().unwrap();
    /// let _ = cache.compute("picture", |old| match old {
    ///     Some(_) => ComputeOp::Keep,
    ///     None => ComputeOp::Put(ComputePut::new(value.clone())),
    /// });
    /// assert_eq!(cache.get("picture").unwrap().len(), 512 << 10);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    ///
    /// # Errors
    /// The buffer itself.
    pub fn into_shared(self) -> Result<SharedValue, ValueBuffer> {
        match self.bytes {
            Buffered::Large(value) if self.filled_bytes == self.len_bytes => {
                Ok(SharedValue(Arc::new(value)))
            }
            bytes => Err(ValueBuffer { bytes, ..self }),
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
