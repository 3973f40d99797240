//! Items in one piece of memory, as a cache without deletion keeps them. Indexes under study find
//! them by their locations.
//!
//! ```text
//!   item       │ key bytes: u32 │ value bytes: u32 │ key │ value │      starts at a multiple of 8
//!   location   its offset / 8, at least 1
//! ```

use forerun_core::arch::{prefetch_bytes, prefetch_read};
use forerun_core::{CacheLines, RegionError};

/// Bytes of a line of [`CacheLines`].
const LINE_BYTES: usize = 64;
/// What an item's start is a multiple of.
const ALIGN_BYTES: usize = 8;
const HEADER_BYTES: usize = 8;

/// A growing list of items, in huge pages.
pub(crate) struct ItemArena {
    lines: CacheLines,
    len_bytes: usize,
}

impl ItemArena {
    /// Memory for `items` items with keys and values of these lengths.
    pub(crate) fn new(
        items: usize,
        key_bytes: usize,
        value_bytes: usize,
    ) -> Result<ItemArena, RegionError> {
        let item_bytes = (HEADER_BYTES + key_bytes + value_bytes).next_multiple_of(ALIGN_BYTES);
        let len_bytes = items.saturating_mul(item_bytes).saturating_add(ALIGN_BYTES);
        Ok(ItemArena {
            lines: CacheLines::zeroed(len_bytes.div_ceil(LINE_BYTES))?,
            len_bytes: ALIGN_BYTES,
        })
    }

    /// Appends an item and returns its location. `None` if it does not fit.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> Option<u64> {
        let start = self.len_bytes;
        let end = start + HEADER_BYTES + key.len() + value.len();
        if end > self.lines.len() * LINE_BYTES {
            return None;
        }
        let lengths = [key.len(), value.len()].map(u32::try_from);
        let [Ok(key_bytes), Ok(value_bytes)] = lengths else {
            return None;
        };
        let mut at = start;
        for part in [
            &key_bytes.to_le_bytes()[..],
            &value_bytes.to_le_bytes(),
            key,
            value,
        ] {
            self.write(at, part);
            at += part.len();
        }
        self.len_bytes = end.next_multiple_of(ALIGN_BYTES);
        Some((start / ALIGN_BYTES) as u64)
    }

    fn write(&mut self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let line = &mut self.lines[at / LINE_BYTES].0[at % LINE_BYTES..];
            let count = line.len().min(bytes.len());
            line[..count].copy_from_slice(&bytes[..count]);
            at += count;
            bytes = &bytes[count..];
        }
    }

    /// The value of the item at a location, if the item has this key.
    #[inline(always)]
    pub(crate) fn value_of(&self, location: u64, key: &[u8]) -> Option<&[u8]> {
        let item = &self.lines.bytes()[location as usize * ALIGN_BYTES..];
        let (header, rest) = item.split_first_chunk::<HEADER_BYTES>()?;
        let lengths = u64::from_le_bytes(*header);
        let (key_bytes, value_bytes) = (lengths as u32 as usize, (lengths >> 32) as usize);
        (key_bytes == key.len() && rest[..key_bytes] == *key)
            .then(|| &rest[key_bytes..key_bytes + value_bytes])
    }

    /// Prefetches the start of an item, where its key is.
    #[inline(always)]
    pub(crate) fn prefetch(&self, location: u64) {
        let at = location as usize * ALIGN_BYTES;
        let bytes = self.lines.bytes();
        for offset in [0, HEADER_BYTES + ALIGN_BYTES] {
            if let Some(byte) = bytes.get(at + offset) {
                prefetch_read(byte);
            }
        }
    }

    /// Prefetches a value.
    #[inline(always)]
    pub(crate) fn prefetch_value(value: &[u8]) {
        /// The CPU's own prefetcher fetches the rest.
        const FETCH_BYTES_MAX: usize = 512;
        prefetch_bytes(value, FETCH_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_by_their_locations_and_only_with_their_keys() {
        let mut arena = ItemArena::new(1000, 12, 300).unwrap();
        let item = |n: usize| {
            let key = format!("k{n}").into_bytes();
            (key, vec![n as u8; n * 7 % 300])
        };
        let locations: Vec<u64> = (0..1000)
            .map(|n| {
                let (key, value) = item(n);
                arena.push(&key, &value).expect("it fits")
            })
            .collect();
        for (n, &location) in locations.iter().enumerate() {
            let (key, value) = item(n);
            arena.prefetch(location);
            assert_eq!(arena.value_of(location, &key), Some(&value[..]));
            assert_eq!(arena.value_of(location, &item(n + 1).0), None);
            assert!(location > 0);
        }
    }

    #[test]
    fn an_item_that_does_not_fit_is_refused() {
        let mut arena = ItemArena::new(1, 8, 40).unwrap();
        assert_eq!(arena.push(b"12345678", &[1; 400]), None);
        let location = arena.push(b"12345678", &[1; 40]).expect("it fits");
        assert_eq!(arena.value_of(location, b"12345678"), Some(&[1; 40][..]));
        assert_eq!(arena.push(b"12345679", &[1; 40]), None);
    }
}
