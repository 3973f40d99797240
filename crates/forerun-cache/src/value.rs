//! Values that outlive a guard, and values that come in pieces.

use std::ops::Deref;
use std::sync::Arc;

/// A large value, shared with the cache: it stays readable when its item is gone, and counts towards the memory limit until
/// the last share is dropped.
#[derive(Clone, Debug)]
pub struct SharedValue(pub(crate) Arc<[u8]>);

impl Deref for SharedValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
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
    pub(crate) bytes: Box<[u8]>,
    filled: usize,
}

impl ValueBuffer {
    pub(crate) fn new(len_bytes: usize) -> ValueBuffer {
        ValueBuffer {
            bytes: vec![0; len_bytes].into(),
            filled: 0,
        }
    }

    /// Bytes of the whole value.
    pub fn len(&self) -> usize {
        self.bytes.len()
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
        &mut self.bytes[self.filled..]
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
