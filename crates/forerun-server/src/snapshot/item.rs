//! The format of one item in a snapshot.
//!
//! ```text
//!   item  ┌──────┬──────┬─────────┬───────┬────────────┬─────┬───────────┬─────┬───────┐
//!         │ unit │ kind │ key_len │ flags │ expires_at │ cas │ value_len │ key │ value │      unit of expires_at: 1 second,
//!         │ 1    │ 1    │ 2       │ 4     │ 8          │ 8   │ 4         │     │       │      2 milliseconds
//!         └──────┴──────┴─────────┴───────┴────────────┴─────┴───────────┴─────┴───────┘
//!   end   ┌──────┬───────┬──────────┬──────────┐
//!         │ 0    │ items │ flush_at │ last_cas │      number of items, time of a scheduled flush, last
//!         │ 1    │ 8     │ 8        │ 8        │      CAS number of the server; nothing follows
//!         └──────┴───────┴──────────┴──────────┘
//! ```
//!
//! In version 3, an item begins with the length of its key, 1 to 250, in place of the first three
//! fields.

use std::io::{self, Write};

use forerun_cache::{Cache, CacheKeyspace, Expiry, Item, ItemKind, Store, StoreResult, StoreValue};

use crate::snapshot_error::VERSION_3;

use super::Fault;
use super::frames::{FRAME_BYTES, FrameReader};

/// The unit of items that expire at a second, or never.
const SECONDS: u8 = 1;
/// The unit of items that expire at a millisecond.
const MILLISECONDS: u8 = 2;

/// Added to the kind if the key names a keyspace of a cache that had several.
const IN_KEYSPACE: u8 = 0x80;

/// The longest key of version 3.
const KEY_BYTES_MAX_V3: u8 = 250;

/// The cache's clock and the wall clock at the same moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    pub(super) cache_s: u32,
    cache_ms: u64,
    pub(super) unix_s: u64,
    unix_ms: u64,
}

impl Clocks {
    /// The present moment, for a writer. Reads the wall clock second: if time passes in between,
    /// items expire later on it, not earlier.
    pub(super) fn to_write(cache: &Cache, unix_ms: impl FnOnce() -> u64) -> Clocks {
        let cache_clock = (cache.now(), cache.now_ms());
        Clocks::new(cache_clock, unix_ms())
    }

    /// The present moment, for a reader. For the same reason, it reads the cache's clock second.
    pub(super) fn to_read(cache: &Cache, unix_ms: impl FnOnce() -> u64) -> Clocks {
        let unix_ms = unix_ms();
        Clocks::new((cache.now(), cache.now_ms()), unix_ms)
    }

    fn new((cache_s, cache_ms): (u32, u64), unix_ms: u64) -> Clocks {
        Clocks {
            cache_s,
            cache_ms,
            unix_s: unix_ms / 1000,
            unix_ms,
        }
    }

    /// The unit for an item with this expiry, and its time on the wall clock.
    fn to_unix(self, expiry: Expiry) -> (u8, u64) {
        match expiry {
            // Each clock may have been read at any point of its millisecond, so one more makes sure
            // that no item expires early.
            Expiry::AtMs(ms) => {
                let left_ms = ms.saturating_sub(self.cache_ms);
                (MILLISECONDS, self.unix_ms + left_ms + 1)
            }
            _ => {
                let second = expiry.second(self.cache_s);
                let left_s = second.map(|second| second.saturating_sub(self.cache_s));
                (
                    SECONDS,
                    left_s.map_or(0, |left_s| self.unix_s + u64::from(left_s)),
                )
            }
        }
    }

    /// When an item expires whose time is in this unit; `None` if it has expired.
    fn to_expiry(self, unit: u8, expires_at: u64) -> Option<Expiry> {
        if unit == MILLISECONDS {
            let left_ms = expires_at
                .checked_sub(self.unix_ms)
                .filter(|left_ms| *left_ms > 0)?;
            return Some(Expiry::AtMs(
                self.cache_ms.saturating_add(left_ms).saturating_add(1),
            ));
        }
        if expires_at == 0 {
            return Some(Expiry::Never);
        }
        let left_s = expires_at
            .checked_sub(self.unix_s)
            .filter(|left_s| *left_s > 0)?;
        // The clock ends after 136 years, so items that would live longer expire then.
        let left_s = u32::try_from(left_s).unwrap_or(u32::MAX);
        Some(Expiry::At(self.cache_s.saturating_add(left_s)))
    }
}

/// Appends a record up to its value.
pub(super) fn push_head(
    head: &mut Vec<u8>,
    item: &Item<'_>,
    clocks: Clocks,
    keyspace: CacheKeyspace,
) {
    let (unit, expires_at) = clocks.to_unix(item.expiry());
    let mut kind = item.kind() as u8;
    if !keyspace.stores_as_is(item.key()) {
        kind |= IN_KEYSPACE;
    }
    // Keys have at most 65,535 bytes, values at most 1 GiB.
    head.extend_from_slice(&[unit, kind]);
    head.extend_from_slice(&(item.key().len() as u16).to_le_bytes());
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
    /// An item of a keyspace that the cache does not have.
    NoKeyspace,
    /// The end of the items.
    End(End),
}

/// Buffers that are reused from record to record.
#[derive(Default)]
pub(super) struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The beginning of an item's record.
struct Head {
    unit: u8,
    kind: ItemKind,
    /// Whether the key names a keyspace.
    in_keyspace: bool,
    key_len: usize,
}

impl Head {
    /// Reads it. `None`: the record is the end.
    fn read<R: io::Read>(from: &mut FrameReader<R>, version: u32) -> Result<Option<Head>, Fault> {
        let mut unit = [0];
        from.take(&mut unit)?;
        let [unit] = unit;
        if unit == 0 {
            return Ok(None);
        }
        if version == VERSION_3 {
            if unit > KEY_BYTES_MAX_V3 {
                return Err(from.damaged("a key is too long"));
            }
            return Ok(Some(Head {
                unit: SECONDS,
                kind: ItemKind::String,
                in_keyspace: false,
                key_len: unit.into(),
            }));
        }
        let mut rest = [0; 3];
        from.take(&mut rest)?;
        let [kind, l0, l1] = rest;
        match ItemKind::from_number(kind & !IN_KEYSPACE) {
            Some(item_kind) if matches!(unit, SECONDS | MILLISECONDS) => Ok(Some(Head {
                unit,
                kind: item_kind,
                in_keyspace: kind & IN_KEYSPACE != 0,
                key_len: u16::from_le_bytes([l0, l1]).into(),
            })),
            _ => Err(from.damaged("a record is of an unknown type")),
        }
    }
}

/// Reads a record and stores its item. The file may have an earlier version of it, which a record
/// that is not stored replaces, too.
pub(super) fn read_record<R: io::Read>(
    from: &mut FrameReader<R>,
    version: u32,
    cache: &Cache,
    buffers: &mut Buffers,
    clocks: Clocks,
) -> Result<Read, Fault> {
    let read = read_and_store(from, version, cache, buffers, clocks)?;
    if matches!(read, Read::Expired | Read::Refused) {
        let _ = cache.delete(&buffers.key);
    }
    Ok(read)
}

fn read_and_store<R: io::Read>(
    from: &mut FrameReader<R>,
    version: u32,
    cache: &Cache,
    buffers: &mut Buffers,
    clocks: Clocks,
) -> Result<Read, Fault> {
    let Some(Head {
        unit,
        kind,
        in_keyspace,
        key_len,
    }) = Head::read(from, version)?
    else {
        return End::read(from).map(Read::End);
    };
    let mut head = [0; 4 + 8 + 8 + 4];
    from.take(&mut head)?;
    let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let (flags, expires_at, cas) = (u32_at(0), u64_at(4), u64_at(12));
    let value_len = u32_at(20) as usize;
    let Buffers { key, value } = buffers;
    key.resize(key_len, 0);
    from.take(key)?;
    if !place_key(cache, key, in_keyspace) {
        skip(from, value_len)?;
        return Ok(Read::NoKeyspace);
    }
    let Some(expiry) = clocks.to_expiry(unit, expires_at) else {
        skip(from, value_len)?;
        return Ok(Read::Expired);
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
        kind,
        expiry,
        new_cas: Some(cas),
        ..Store::set(key, value)
    });
    Ok(match stored {
        StoreResult::Stored { .. } => Read::Stored,
        _ => Read::Refused,
    })
}

/// Replaces the key of a record by the one under which this cache has the item. The cache that
/// wrote it may have had another number of keyspaces. Returns false if this one has no such
/// keyspace.
fn place_key(cache: &Cache, key: &mut Vec<u8>, in_keyspace: bool) -> bool {
    let number = match (in_keyspace, key.get(1)) {
        (false, _) => 0,
        (true, Some(&number)) => number.into(),
        (true, None) => u16::MAX,
    };
    let Some(keyspace) = cache.keyspace(number) else {
        return false;
    };
    if in_keyspace {
        key.drain(..2);
    }
    if !keyspace.stores_as_is(key) {
        key.splice(..0, keyspace.prefix()).for_each(drop);
    }
    true
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
