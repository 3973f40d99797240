//! openraft's log on the keyspaces `log` and `meta`.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use forerun_db::{Db, Keyspace, WriteBatch};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    LogId, LogState, OptionalSend, RaftLogId, RaftLogReader, RaftTypeConfig, StorageError,
    StorageIOError, Vote,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::install_order::InstallOrder;
use crate::records::{self, COMMITTED, PURGED, VOTE};
use crate::writer::Writer;
use crate::{Error, Result};

type NodeIdOf<C> = <C as RaftTypeConfig>::NodeId;
type StorageResult<C, T> = std::result::Result<T, StorageError<NodeIdOf<C>>>;

/// Entries of more bytes than this are written, read and sent in several steps.
pub(crate) const STEP_BYTES: usize = 8 << 20;

/// openraft's log storage: the log, the vote and the log ids that openraft stores beside them. Get
/// one from [`open`](crate::open()).
///
/// All writes are executed in order: small ones by the caller, others by one thread, which also
/// syncs unless that usually takes less than half a millisecond. An appended entry can be read when
/// `append` returns. openraft's callback is called once the entry is on stable storage; appends
/// that wait at the same time share a sync. A vote is on stable storage when `save_vote` returns.
pub struct LogStore<C> {
    reader: LogReader<C>,
    writer: Writer,
    install_order: InstallOrder,
}

/// Reads the log of a [`LogStore`].
pub struct LogReader<C> {
    log: Keyspace,
    meta: Keyspace,
    config: PhantomData<fn() -> C>,
}

impl<C> Clone for LogReader<C> {
    fn clone(&self) -> LogReader<C> {
        LogReader {
            log: self.log.clone(),
            meta: self.meta.clone(),
            config: PhantomData,
        }
    }
}

impl<C: RaftTypeConfig> LogReader<C> {
    /// The entries of a range, up to one that exceeds `limit_bytes`, which is included.
    fn entries(&self, range: &impl RangeBounds<u64>, limit_bytes: usize) -> Result<Vec<C::Entry>> {
        let Some((first, end)) = records::first_and_end(range) else {
            return Ok(Vec::new());
        };
        let first = records::log_key(first);
        let mut stored = match end {
            Some(end) => self.log.range(first..records::log_key(end)),
            None => self.log.range(first..),
        };
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while bytes <= limit_bytes
            && let Some(entry) = stored.next_entry()?
        {
            bytes += entry.value.len();
            entries.push(decode_entry::<C>(entry.key, entry.value)?);
        }
        Ok(entries)
    }

    fn last(&self) -> Result<Option<LogId<C::NodeId>>> {
        let mut stored = self.log.iter();
        let Some(entry) = stored.next_entry_back()? else {
            return Ok(None);
        };
        let entry = decode_entry::<C>(entry.key, entry.value)?;
        Ok(Some(entry.get_log_id().clone()))
    }

    fn state(&self) -> Result<LogState<C>> {
        let last_purged_log_id = self.meta_record(PURGED)?;
        let last_log_id = self.last()?.or_else(|| last_purged_log_id.clone());
        Ok(LogState {
            last_purged_log_id,
            last_log_id,
        })
    }

    fn meta_record<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let bytes = self.meta.get(key)?;
        let bytes = bytes.as_deref();
        bytes
            .map(|bytes| records::decode("meta", key, bytes))
            .transpose()
    }

    fn meta_batch(&self, key: &str, value: &impl Serialize) -> Result<WriteBatch> {
        let mut batch = WriteBatch::new();
        let value = records::encode(key, value)?;
        batch.keyspace(&self.meta).put(key, value)?;
        Ok(batch)
    }
}

/// Decodes an entry, and checks that it belongs to its key.
fn decode_entry<C: RaftTypeConfig>(key: &[u8], value: &[u8]) -> Result<C::Entry> {
    let index = key.try_into().map(u64::from_be_bytes);
    let index = index.map_err(|_| Error::BadRecord {
        keyspace: "log".to_owned(),
        record: format!("key {key:02x?}"),
        reason: "it is not an index, which has 8 bytes".to_owned(),
    })?;
    let record = format!("entry {index}");
    let entry: C::Entry = records::decode("log", &record, value)?;
    let own_index = entry.get_log_id().index;
    if own_index != index {
        return Err(Error::BadRecord {
            keyspace: "log".to_owned(),
            record,
            reason: format!("it says that its index is {own_index}"),
        });
    }
    Ok(entry)
}

impl<C: RaftTypeConfig> LogStore<C> {
    pub(crate) fn new(
        db: &Db,
        log: Keyspace,
        meta: Keyspace,
        install_order: InstallOrder,
    ) -> Result<LogStore<C>> {
        let reader = LogReader {
            log,
            meta,
            config: PhantomData,
        };
        // Reports a damaged record now, and not when openraft starts.
        reader.state()?;
        let writer = Writer::start(db.clone(), "raft log")?;
        Ok(LogStore {
            reader,
            writer,
            install_order,
        })
    }

    /// The batches that append entries. A crash between two of them leaves no hole.
    fn append_batches(
        &self,
        entries: impl IntoIterator<Item = C::Entry>,
    ) -> Result<Vec<WriteBatch>> {
        let (mut batches, mut batch) = (Vec::new(), WriteBatch::new());
        for entry in entries {
            let index = entry.get_log_id().index;
            let value = records::encode("a log entry", &entry)?;
            let mut log = batch.keyspace(&self.reader.log);
            log.put(records::log_key(index), value)?;
            if batch.encoded().len() > STEP_BYTES {
                batches.push(std::mem::take(&mut batch));
            }
        }
        batches.push(batch);
        Ok(batches)
    }

    fn purge_batch(&self, last: &LogId<C::NodeId>) -> Result<WriteBatch> {
        let mut batch = self.reader.meta_batch(PURGED, last)?;
        let end = records::log_key_after(last.index);
        let mut log = batch.keyspace(&self.reader.log);
        log.delete_range(records::log_key(0), end)?;
        Ok(batch)
    }

    fn truncate_batch(&self, first: &LogId<C::NodeId>) -> Result<WriteBatch> {
        let mut batch = WriteBatch::new();
        let end = records::log_key_after(u64::MAX);
        let mut log = batch.keyspace(&self.reader.log);
        log.delete_range(records::log_key(first.index), end)?;
        Ok(batch)
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogReader<C> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> StorageResult<C, Vec<C::Entry>> {
        self.entries(&range, usize::MAX).map_err(read_logs::<C>)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> StorageResult<C, Vec<C::Entry>> {
        self.entries(&(start..end), STEP_BYTES)
            .map_err(read_logs::<C>)
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> StorageResult<C, Vec<C::Entry>> {
        self.reader.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> StorageResult<C, Vec<C::Entry>> {
        self.reader.limited_get_log_entries(start, end).await
    }
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for LogStore<C> {
    type LogReader = LogReader<C>;

    async fn get_log_state(&mut self) -> StorageResult<C, LogState<C>> {
        self.reader.state().map_err(read_logs::<C>)
    }

    async fn get_log_reader(&mut self) -> LogReader<C> {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> StorageResult<C, ()> {
        let write_vote = |error: Error| StorageIOError::write_vote(error.to_any());
        let batch = self.reader.meta_batch(VOTE, vote).map_err(write_vote)?;
        let written = self.writer.write_durably(batch).await;
        Ok(written.map_err(write_vote)?)
    }

    async fn read_vote(&mut self) -> StorageResult<C, Option<Vote<C::NodeId>>> {
        let vote = self.reader.meta_record(VOTE);
        Ok(vote.map_err(|error| StorageIOError::read_vote(error.to_any()))?)
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<C::NodeId>>,
    ) -> StorageResult<C, ()> {
        let batch = self.reader.meta_batch(COMMITTED, &committed);
        let batch = batch.map_err(write_logs::<C>)?;
        let written = self.writer.write(vec![batch]).await;
        written.map_err(write_logs::<C>)
    }

    async fn read_committed(&mut self) -> StorageResult<C, Option<LogId<C::NodeId>>> {
        let committed = self
            .reader
            .meta_record::<Option<LogId<C::NodeId>>>(COMMITTED);
        Ok(committed.map_err(read_logs::<C>)?.flatten())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> StorageResult<C, ()>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let batches = self.append_batches(entries).map_err(write_logs::<C>)?;
        let on_durable = move |result: forerun_db::Result<()>| {
            callback.log_io_completed(result.map_err(std::io::Error::other));
        };
        let written = self.writer.write_then(batches, on_durable).await;
        written.map_err(write_logs::<C>)
    }

    async fn truncate(&mut self, log_id: LogId<C::NodeId>) -> StorageResult<C, ()> {
        let batch = self.truncate_batch(&log_id).map_err(write_logs::<C>)?;
        let written = self.writer.write(vec![batch]).await;
        written.map_err(write_logs::<C>)
    }

    async fn purge(&mut self, log_id: LogId<C::NodeId>) -> StorageResult<C, ()> {
        let index = log_id.index;
        if !self.install_order.may_purge(index).await {
            return Err(write_logs::<C>(Error::NotInstalled { index }));
        }
        let batch = self.purge_batch(&log_id).map_err(write_logs::<C>)?;
        let written = self.writer.write(vec![batch]).await;
        written.map_err(write_logs::<C>)
    }
}

fn read_logs<C: RaftTypeConfig>(error: Error) -> StorageError<C::NodeId> {
    StorageIOError::read_logs(error.to_any()).into()
}

fn write_logs<C: RaftTypeConfig>(error: Error) -> StorageError<C::NodeId> {
    StorageIOError::write_logs(error.to_any()).into()
}
