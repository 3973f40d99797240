//! What is recorded about the last write of each client, in the store.
//!
//! Keyspace `forerun.applied`, a record for each client:
//!
//! ```text
//!   key      client, 16 bytes
//!   value    0         4         8      12         20            28        36
//!           ┌─────────┬─────────┬──────┬──────────┬─────────────┬─────────┬──────────────────┐
//!           │ version │ keys    │ done │ sequence │ keys in all │ seconds │ flags            │
//!           │ 4, = 1  │ 4       │ 4    │ 8        │ 8           │ 8       │ a bit a key done │
//!           └─────────┴─────────┴──────┴──────────┴─────────────┴─────────┴──────────────────┘
//! ```
//!
//! `keys`: those of the write. `done`: how many of them are applied. `keys in all`: the keys of all
//! writes of this client that were applied. `seconds`: when, since 1970. `flags`: which keys had a
//! row. Numbers are little-endian.

use crate::disk_tier::{Rows, Store};
use crate::{Error, Result};
use forerun_core::RegionError;
use forerun_core::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use forerun_db::Keyspace;

const KEYSPACE: &str = "forerun.applied";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 36;
const LOCKS: usize = 64;

/// What is recorded about a client's last write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The write's number.
    pub sequence: u64,
    /// The number of its keys.
    pub keys: usize,
    /// For each key that is applied, in batch order: whether it had a row. Shorter than `keys` if
    /// a failure or a crash interrupted the write.
    pub found: Vec<bool>,
    /// The keys of all writes of this client that were applied.
    pub keys_in_all: u64,
    /// When it was applied, in seconds since 1970.
    pub seconds: u64,
}

/// The records of a table's clients.
#[derive(Debug)]
pub(crate) struct Clients {
    keyspace: OnceLock<Keyspace>,
    /// By client: a client's writes take turns, also on different threads.
    locks: Box<[Mutex<()>]>,
}

impl Default for Clients {
    fn default() -> Clients {
        Clients {
            keyspace: OnceLock::new(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
        }
    }
}

/// A record that goes into the batch of some rows.
pub(crate) struct Mark<'m> {
    pub(crate) keyspace: &'m Keyspace,
    pub(crate) client: [u8; 16],
    /// As of the chunk before.
    pub(crate) applied: &'m Applied,
}

impl Mark<'_> {
    /// Adds the record to the rows of the next keys, which have these flags.
    pub(crate) fn add_to(&self, rows: &mut Rows, found: &[bool]) -> Result<()> {
        rows.put_elsewhere(self.keyspace, &self.client, &self.applied.encode(found)?)
    }
}

impl Applied {
    /// # Errors
    /// [`Error::Memory`].
    fn encode(&self, more: &[bool]) -> Result<Vec<u8>> {
        let done = self.found.len() + more.len();
        let len_bytes = HEAD_BYTES + done.div_ceil(8);
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(len_bytes);
        reserved.map_err(|_| RegionError::OutOfMemory { len_bytes })?;
        bytes.extend(VERSION.to_le_bytes());
        // `write_once` refuses batches whose length does not fit.
        bytes.extend((self.keys as u32).to_le_bytes());
        bytes.extend((done as u32).to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend((self.keys_in_all + more.len() as u64).to_le_bytes());
        bytes.extend(self.seconds.to_le_bytes());
        bytes.resize(len_bytes, 0);
        for (at, _) in self
            .found
            .iter()
            .chain(more)
            .enumerate()
            .filter(|(_, found)| **found)
        {
            bytes[HEAD_BYTES + at / 8] |= 1 << (at % 8);
        }
        Ok(bytes)
    }

    /// `None` if the bytes are not a record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Applied> {
        let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..at + 4)?.as_array()?));
        let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..at + 8)?.as_array()?));
        let (keys, done) = (number(4)? as usize, number(8)? as usize);
        let flags = bytes.get(HEAD_BYTES..)?;
        if number(0)? != VERSION || done > keys || flags.len() != done.div_ceil(8) {
            return None;
        }
        Some(Applied {
            sequence: long(12)?,
            keys,
            found: (0..done)
                .map(|at| flags[at / 8] >> (at % 8) & 1 == 1)
                .collect(),
            keys_in_all: long(20)?,
            seconds: long(28)?,
        })
    }
}

impl Clients {
    pub(crate) fn keyspace(&self, store: &Store) -> Result<&Keyspace> {
        if let Some(keyspace) = self.keyspace.get() {
            return Ok(keyspace);
        }
        let keyspace = store.db().keyspace(KEYSPACE)?;
        Ok(self.keyspace.get_or_init(|| keyspace))
    }

    pub(crate) fn lock(&self, client: u128) -> MutexGuard<'_, ()> {
        let lock = (client ^ client >> 64) as usize % LOCKS;
        // The lock guards no data that a panic could leave half changed.
        self.locks[lock]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client's record, if it has one.
pub(crate) fn read(keyspace: &Keyspace, client: u128) -> Result<Option<Applied>> {
    let Some(bytes) = keyspace.get(client.to_be_bytes())? else {
        return Ok(None);
    };
    let applied = Applied::decode(&bytes);
    applied.map(Some).ok_or(Error::BadRecord { client })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            found: Vec<bool>, more: Vec<bool>, rest in 0..9usize, sequence: u64, seconds: u64,
            keys_in_all in 0..u64::MAX / 2,
        ) {
            let keys = found.len() + more.len() + rest;
            let mut applied = Applied { sequence, keys, found, keys_in_all, seconds };
            let bytes = applied.encode(&more).expect("memory");
            applied.keys_in_all += more.len() as u64;
            applied.found.extend(more);
            prop_assert_eq!(Applied::decode(&bytes), Some(applied));
        }

        #[test]
        fn arbitrary_bytes_are_a_record_or_none(bytes: Vec<u8>) {
            if let Some(applied) = Applied::decode(&bytes) {
                prop_assert!(applied.found.len() <= applied.keys);
            }
        }
    }
}
