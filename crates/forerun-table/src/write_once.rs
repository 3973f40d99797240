//! Writes that are applied once, however often a client repeats them.
//!
//! ```text
//!   write_once(client, sequence, keys)
//!     the client's record in the store     sequence lower    ──> refused: a later write was applied
//!                                          the same          ──> continue after the keys that are done
//!                                          higher, or none   ──> begin
//!     for each chunk of keys               one batch of the store: rows + record (sequence, keys done, flags)
//! ```
//!
//! The record is in the same batch as the rows, so after a crash the store has both or neither:
//! see [`clients`](crate::clients).

use crate::clients::{Applied, Mark, read};
use crate::disk_tier::Store;
use crate::inner::Inner;
use crate::options::Update;
use crate::{Error, Failures, Result, Table};
use forerun_core::RegionError;
use forerun_core::sync::time;
use forerun_db::{Durability, Keyspace, WriteBatch};
use std::time::{Duration, UNIX_EPOCH};

/// Identifies a write: a client, and a number that is higher than those of the client's earlier
/// writes. A client's writes take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteId {
    /// The client: a random number.
    pub client: u128,
    /// The number of the write, from 1.
    pub sequence: u64,
}

/// What a write does with its keys.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Write<'r> {
    /// [`Table::insert`] with these rows.
    Insert(&'r [u8]),
    /// [`Table::update`] with these rows.
    Update(&'r [u8], Update),
    /// [`Table::erase`].
    Erase,
}

fn now_seconds() -> u64 {
    let since = time::system_now().duration_since(UNIX_EPOCH);
    // A clock before 1970 makes records look old.
    since.map_or(0, |since| since.as_secs())
}

impl Inner {
    fn store_for(&self, op: &'static str) -> Result<&Store> {
        let store = self.store.as_ref().ok_or(Error::NoStore { op })?;
        self.through().ok_or(Error::Conflict(
            "only a table with WritePolicy::WriteThrough can record its clients' writes",
        ))?;
        Ok(store)
    }

    fn write_once(
        &self,
        id: WriteId,
        keys: &[u64],
        write: Write<'_>,
        found: &mut [bool],
    ) -> Result<()> {
        let store = self.store_for("write_once")?;
        self.check_takes_writes()?;
        self.check_found(keys, found)?;
        if let Write::Insert(rows) | Write::Update(rows, _) = write {
            self.check_rows(keys, rows.len())?;
        }
        if self.has_scores() {
            return Err(Error::Conflict(
                "a table with EvictStrategy::Customized cannot record its clients' writes",
            ));
        }
        if u32::try_from(keys.len()).is_err() {
            return Err(Error::Conflict(
                "a recorded write has at most 2^32 - 1 keys",
            ));
        }
        let start = time::now();
        let _turn = self.clients.lock(id.client);
        let keyspace = self.clients.keyspace(store)?;
        let mut applied = begin(read(keyspace, id.client)?, id, keys.len())?;
        applied.seconds = now_seconds();
        found[..applied.found.len()].copy_from_slice(&applied.found);
        let mut failures = Failures::default();
        let from = applied.found.len();
        let left = keys.len() - from;
        let reserved = applied.found.try_reserve_exact(left);
        reserved.map_err(|_| RegionError::OutOfMemory { len_bytes: left })?;
        // The record of an empty write has no batch to be in.
        if keys.is_empty() {
            self.write_chunk(keyspace, id, &applied, keys, write, found, &mut failures);
        }
        for from in (from..keys.len()).step_by(self.host.chunk()) {
            let to = keys.len().min(from + self.host.chunk());
            let (keys, found) = (&keys[from..to], &mut found[from..to]);
            let bytes = from * self.row.bytes()..to * self.row.bytes();
            let part = match write {
                Write::Insert(rows) => Write::Insert(&rows[bytes]),
                Write::Update(rows, how) => Write::Update(&rows[bytes], how),
                Write::Erase => Write::Erase,
            };
            self.write_chunk(keyspace, id, &applied, keys, part, found, &mut failures);
            if !failures.is_empty() {
                break;
            }
            applied.found.extend_from_slice(found);
            applied.keys_in_all += keys.len() as u64;
        }
        let done = applied.found.len();
        match write {
            Write::Erase => self.counters.erased_keys.add(done - from),
            _ => self.counters.written_rows.add(done - from),
        }
        self.counters.failed_keys.add(keys.len() - done);
        self.clocks.write.record(time::elapsed(start));
        let cause = failures.iter().next().map(|(.., error)| error.clone());
        let Some(cause) = cause else {
            return failures.into_result(done).map(drop);
        };
        let mut undone = Failures::default();
        for (at, &key) in keys.iter().enumerate().skip(done) {
            found[at] = false;
            undone.push(at, key, cause.clone());
        }
        undone.into_result(done).map(drop)
    }

    /// Writes some keys and the record, or neither.
    #[expect(clippy::too_many_arguments, reason = "the parts of a write")]
    fn write_chunk(
        &self,
        keyspace: &Keyspace,
        id: WriteId,
        applied: &Applied,
        keys: &[u64],
        write: Write<'_>,
        found: &mut [bool],
        failures: &mut Failures,
    ) {
        let mark = Mark {
            keyspace,
            client: id.client.to_be_bytes(),
            applied,
        };
        let written = match write {
            Write::Insert(rows) => self.insert_marked(keys, rows, found, &mark),
            Write::Update(rows, how) => self.update_marked(keys, rows, how, found, &mark),
            Write::Erase => self.erase_marked(keys, found, &mark),
        };
        if let Err(error) = written {
            failures.push(0, keys.first().copied().unwrap_or_default(), error);
        }
    }

    fn forget_clients(&self, older_than: Duration) -> Result<usize> {
        let store = self.store_for("forget_clients")?;
        let keyspace = self.clients.keyspace(store)?;
        let limit = now_seconds().saturating_sub(older_than.as_secs());
        let mut forgotten = 0;
        for entry in keyspace.iter() {
            let (key, value) = entry?;
            let Some(client) = key.as_array().map(|key| u128::from_be_bytes(*key)) else {
                continue;
            };
            if Applied::decode(&value).is_some_and(|applied| applied.seconds > limit) {
                continue;
            }
            forgotten += usize::from(self.forget(store, client, Some(limit))?);
        }
        Ok(forgotten)
    }

    /// Removes a client's record, unless it is newer than this.
    fn forget(&self, store: &Store, client: u128, limit: Option<u64>) -> Result<bool> {
        self.check_takes_writes()?;
        let _turn = self.clients.lock(client);
        let keyspace = self.clients.keyspace(store)?;
        let Some(bytes) = keyspace.get(client.to_be_bytes())? else {
            return Ok(false);
        };
        let is_newer = |limit| Applied::decode(&bytes).is_some_and(|a| a.seconds > limit);
        if limit.is_some_and(is_newer) {
            return Ok(false);
        }
        let mut batch = WriteBatch::new();
        batch.keyspace(keyspace).delete(client.to_be_bytes())?;
        store.db().write(&batch, Durability::Buffered)?;
        Ok(true)
    }
}

/// The record with which a write begins, or continues after the keys that are done.
fn begin(last: Option<Applied>, id: WriteId, keys: usize) -> Result<Applied> {
    let keys_in_all = last.as_ref().map_or(0, |last| last.keys_in_all);
    match last {
        Some(last) if last.sequence > id.sequence => Err(Error::Superseded {
            sequence: id.sequence,
            last: last.sequence,
        }),
        Some(last) if last.sequence == id.sequence => {
            if last.keys == keys {
                Ok(last)
            } else {
                Err(Error::Length {
                    what: "keys of a repeated write",
                    len: keys,
                    keys: last.keys,
                    needed: last.keys,
                })
            }
        }
        _ => Ok(Applied {
            sequence: id.sequence,
            keys,
            found: Vec::new(),
            keys_in_all,
            seconds: 0,
        }),
    }
}

impl Table {
    /// Writes a batch once, however often it is called with the same client and sequence: also
    /// after a crash, and after the answer was lost. A repeated call must have the same keys and
    /// rows. It sets the flags in `found` of the keys that had a row when the write was applied;
    /// `Insert` and `Erase` set all of them.
    ///
    /// ```
    /// use forerun_table::{Dtype, Table, Update, Write, WriteId};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("rows");
    /// let table = Table::builder(Dtype::I32, 1).path(path).open()?;
    /// table.insert(&[1], &40i32.to_le_bytes())?;
    /// let id = WriteId { client: 7, sequence: 1 };
    /// let two = 2i32.to_le_bytes();
    /// for _ in 0..3 {
    ///     table.write_once(id, &[1], Write::Update(&two, Update::Add), &mut [false])?;
    /// }
    /// let mut row = [0; 4];
    /// table.find(&[1], &mut row, &mut [false])?;
    /// assert_eq!(i32::from_le_bytes(row), 42);
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Keys`]: the keys from some position on were not written; a repeated call continues
    /// with them. [`Error::Superseded`]: a later write of the client was applied.
    /// [`Error::NoStore`], [`Error::Conflict`]: the table has no store, is not write-through, or
    /// has scores. [`Error::Length`], [`Error::Closed`], [`Error::BadRecord`]: nothing was written.
    pub fn write_once(
        &self,
        id: WriteId,
        keys: &[u64],
        write: Write<'_>,
        found: &mut [bool],
    ) -> Result<()> {
        self.inner()?.write_once(id, keys, write, found)
    }

    /// The record of a client's last write; `None` if there is none. It waits for a write of that
    /// client that is running.
    ///
    /// # Errors
    /// [`Error::NoStore`], [`Error::Conflict`], [`Error::BadRecord`]; those of the store.
    pub fn applied(&self, client: u128) -> Result<Option<Applied>> {
        let inner = self.inner()?;
        inner.check_open()?;
        let store = inner.store_for("applied")?;
        let _turn = inner.clients.lock(client);
        read(inner.clients.keyspace(store)?, client)
    }

    /// Removes a client's record. Returns whether there was one. A client that is forgotten must
    /// not repeat a write.
    ///
    /// # Errors
    /// [`Error::NoStore`], [`Error::Conflict`]; those of the store.
    pub fn forget_client(&self, client: u128) -> Result<bool> {
        let inner = self.inner()?;
        inner.check_open()?;
        inner.forget(inner.store_for("forget_client")?, client, None)
    }

    /// Removes the records of clients whose last write is older than this. Returns their number.
    ///
    /// # Errors
    /// [`Error::NoStore`], [`Error::Conflict`]; those of the store.
    pub fn forget_clients(&self, older_than: Duration) -> Result<usize> {
        let inner = self.inner()?;
        inner.check_open()?;
        inner.forget_clients(older_than)
    }
}
