//! The format of one item in a snapshot.
//!
//! ```text
//!   item  ┌─────────┬───────┬────────────┬─────┬───────────┬─────┬───────┐
//!         │ key_len │ flags │ expires_at │ cas │ value_len │ key │ value │
//!         │ 1, > 0  │ 4     │ 8          │ 8   │ 4         │     │       │
//!         └─────────┴───────┴────────────┴─────┴───────────┴─────┴───────┘
//!   end   ┌─────────┬───────┬──────────┬──────────┐
//!         │ 0       │ items │ flush_at │ last_cas │      number of items, time of a scheduled flush, last
//!         │ 1       │ 8     │ 8        │ 8        │      CAS number of the server; nothing follows
//!         └─────────┴───────┴──────────┴──────────┘
//! ```

use std::io::{self, Write};

use forerun_cache::{Cache, Expiry, Item, KEY_BYTES_MAX, Store, StoreResult, StoreValue};

use super::Fault;
use super::frames::{FRAME_BYTES, FrameReader};

/// Bytes of a record before its key.
const HEAD_BYTES: usize = 1 + 4 + 8 + 8 + 4;

/// Appends a record up to its value. `now_s` (cache clock) and `now_unix_s` (wall clock) are the
/// same moment.
pub(super) fn push_head(head: &mut Vec<u8>, item: &Item<'_>, now_s: u32, now_unix_s: u64) {
    let expires_at = item.expiry().second(now_s).map_or(0, |second| {
        now_unix_s + u64::from(second.saturating_sub(now_s))
    });
    // Keys have at most KEY_BYTES_MAX = 250 bytes, values at most 1 GiB.
    head.push(item.key().len() as u8);
    head.extend_from_slice(&item.flags().to_le_bytes());
    head.extend_from_slice(&expires_at.to_le_bytes());
    head.extend_from_slice(&item.cas().to_le_bytes());
    head.extend_from_slice(&(item.value().len() as u32).to_le_bytes());
    head.extend_from_slice(item.key());
}

/// The record that follows the last item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The number of items.
    pub(super) items: u64,
    /// The time of a scheduled flush, in seconds since 1970; 0 if there is none.
    pub(super) flush_at: u64,
    /// The last CAS number that the server has given.
    pub(super) last_cas: u64,
}

impl End {
    pub(super) fn write(self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&[0])?;
        let numbers = [self.items, self.flush_at, self.last_cas];
        to.write_all(numbers.map(u64::to_le_bytes).as_flattened())
    }

    /// Reads the record behind its first byte.
    fn read<R: io::Read>(from: &mut FrameReader<R>) -> Result<End, Fault> {
        let mut numbers = [[0; 8]; 3];
        from.take(numbers.as_flattened_mut())?;
        let [items, flush_at, last_cas] = numbers.map(u64::from_le_bytes);
        Ok(End {
            items,
            flush_at,
            last_cas,
        })
    }
}

/// The result of reading a record.
pub(super) enum Read {
    /// An item, which is now in the cache.
    Stored,
    /// An item that has already expired.
    Expired,
    /// An item that the cache refused.
    Refused,
    /// The end of the items.
    End(End),
}

/// Reads a record and stores its item. `value` is a buffer to reuse. `now_s` (cache clock) and
/// `now_unix_s` (wall clock) are the same moment.
pub(super) fn read_record<R: io::Read>(
    from: &mut FrameReader<R>,
    cache: &Cache,
    value: &mut Vec<u8>,
    now_s: u32,
    now_unix_s: u64,
) -> Result<Read, Fault> {
    let mut key_len = [0];
    from.take(&mut key_len)?;
    let key_len = usize::from(key_len[0]);
    if key_len == 0 {
        return End::read(from).map(Read::End);
    }
    if key_len > KEY_BYTES_MAX {
        return Err(from.damaged("a key is too long"));
    }
    let mut head = [0; HEAD_BYTES - 1];
    from.take(&mut head)?;
    let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let (flags, expires_at, cas) = (u32_at(0), u64_at(4), u64_at(12));
    let value_len = u32_at(20) as usize;
    let mut key = [0; KEY_BYTES_MAX];
    let key = &mut key[..key_len];
    from.take(key)?;

    let left_s = expires_at.saturating_sub(now_unix_s);
    if expires_at != 0 && left_s == 0 {
        skip(from, value_len)?;
        return Ok(Read::Expired);
    }
    let expiry = match expires_at {
        0 => Expiry::Never,
        // The clock ends after 136 years, so items that would live longer expire then.
        _ => Expiry::At(now_s.saturating_add(u32::try_from(left_s).unwrap_or(u32::MAX))),
    };
    let value: StoreValue<'_> = if value_len <= FRAME_BYTES {
        value.resize(value_len, 0);
        from.take(value)?;
        value.as_slice().into()
    } else if let Ok(mut buffer) = cache.value_buffer(value_len) {
        while !buffer.is_full() {
            let left = value_len - buffer.filled_bytes();
            value.resize(left.min(FRAME_BYTES), 0);
            from.take(value)?;
            if buffer.put(cache, &*value).is_err() {
                skip(from, left - value.len())?;
                return Ok(Read::Refused);
            }
        }
        buffer.into()
    } else {
        skip(from, value_len)?;
        return Ok(Read::Refused);
    };
    let stored = cache.store(Store {
        flags,
        expiry,
        new_cas: Some(cas),
        ..Store::set(key, value)
    });
    Ok(match stored {
        StoreResult::Stored { .. } => Read::Stored,
        _ => Read::Refused,
    })
}

fn skip<R: io::Read>(from: &mut FrameReader<R>, count: usize) -> Result<(), Fault> {
    let mut left = count;
    let mut into = [0; 4096];
    while left > 0 {
        let now = left.min(into.len());
        from.take(&mut into[..now])?;
        left -= now;
    }
    Ok(())
}
