//! Fills the buffers of values that arrive in pieces.

use crate::cache::Cache;
use crate::options::Error;
use crate::page_runs::AllocError;
use crate::reclaim::Shortage;
use crate::value_buffer::{Buffered, ValueBuffer};

impl ValueBuffer {
    /// Appends as many bytes as the value still lacks and returns how many. If that takes memory
    /// beyond the limit of `cache`, the cache that made the buffer, other items are evicted.
    ///
    /// # Errors
    /// [`Error::BuffersFull`] if all buffers of the cache together would take more than a quarter
    /// of its memory limit, and more than one value of the largest size; [`Error::Full`] if nothing
    /// can be evicted; [`Error::OtherCache`] if another cache made the buffer. In all cases the
    /// buffer is unchanged.
    pub fn put(&mut self, cache: &Cache, bytes: impl AsRef<[u8]>) -> Result<usize, Error> {
        let bytes = bytes.as_ref();
        let bytes = &bytes[..bytes.len().min(self.len_bytes - self.filled_bytes)];
        let (from, end) = (self.filled_bytes, self.filled_bytes + bytes.len());
        self.reserve(cache, end)?;
        match &mut self.bytes {
            Buffered::Small(small, _) => small.extend_from_slice(bytes),
            Buffered::Large(value) => value.bytes_mut()[from..end].copy_from_slice(bytes),
        }
        self.filled_bytes = end;
        Ok(bytes.len())
    }

    /// Fills the rest with zeroes.
    pub(crate) fn complete(&mut self, cache: &Cache) -> Result<(), Error> {
        if !self.is_full() {
            self.reserve(cache, self.len_bytes)?;
            if let Buffered::Small(bytes, _) = &mut self.bytes {
                bytes.resize(self.len_bytes, 0);
            }
            self.filled_bytes = self.len_bytes;
        }
        Ok(())
    }

    /// Charges the memory of the first `end` bytes.
    fn reserve(&mut self, cache: &Cache, end: usize) -> Result<(), Error> {
        if !self.share.is_of(&cache.budget) {
            return Err(Error::OtherCache);
        }
        let (held_bytes, wanted_bytes) = match &self.bytes {
            // Doubled, so that few copies are needed.
            Buffered::Small(bytes, _) if end > bytes.capacity() => {
                let doubled = (2 * bytes.capacity()).min(self.len_bytes);
                (bytes.capacity(), end.max(doubled))
            }
            Buffered::Small(bytes, _) => (bytes.capacity(), bytes.capacity()),
            Buffered::Large(value) => (value.held_bytes(), value.held_bytes_for(end)),
        };
        if wanted_bytes <= held_bytes {
            return Ok(());
        }
        let max_bytes = cache.value_buffer_limit_bytes();
        if !self.share.raise_to(wanted_bytes, max_bytes) {
            return Err(Error::BuffersFull { max_bytes });
        }
        let more_bytes = wanted_bytes - held_bytes;
        loop {
            let charged = match &mut self.bytes {
                Buffered::Small(bytes, charge) => {
                    if charge.raise_to(wanted_bytes) {
                        bytes.reserve_exact(wanted_bytes - bytes.len());
                        Ok(())
                    } else {
                        Err(AllocError::Limit)
                    }
                }
                Buffered::Large(value) => value.hold(end),
            };
            match charged {
                Ok(()) => return Ok(()),
                Err(AllocError::System(error)) => return Err(error.into()),
                Err(AllocError::Limit) if cache.reclaim(Shortage::Bytes(more_bytes), None) => {}
                Err(AllocError::Limit) => {
                    return Err(Error::Full {
                        len_bytes: more_bytes,
                    });
                }
            }
        }
    }
}
