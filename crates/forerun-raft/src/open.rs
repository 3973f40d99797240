//! Opens the Raft data of a store, or creates it.

use forerun_db::{Db, Durability, Keyspace, WriteBatch};
use openraft::RaftTypeConfig;

use crate::kv_keyspaces::{self, KvKeyspaces};
use crate::log_store::LogStore;
use crate::records;
use crate::state_machine::StateMachine;
use crate::{Error, Result, error};

/// Returns the log storage and the state machine in a store, for `openraft::Raft::new`.
///
/// A store has the data of one Raft node, in its keyspaces `log`, `meta` and `kv`, `kv.2` and so
/// on. They are created in a new store. Keyspaces with other names are yours, but nothing
/// replicates them. Do not write to those of Raft, and do not open them a second time while a node
/// uses them.
///
/// ```
/// use forerun_db::{Db, Options};
/// use forerun_raft::TypeConfig;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// let (log, state_machine) = forerun_raft::open::<TypeConfig>(&db)?;
/// let reader = state_machine.reader();
/// // openraft::Raft::new(id, config, network, log, state_machine).await?;
/// assert_eq!(reader.get("NO/Oslo")?, None);
/// # drop(log);
/// # Ok::<(), forerun_raft::Error>(())
/// ```
///
/// # Errors
/// - [`Error::Format`]: another version of this crate wrote the data.
/// - [`Error::KeyspaceInUse`]: the store has such a keyspace, but no Raft data.
/// - [`Error::BadRecord`]: a record is damaged.
/// - [`Error::Db`]: for example if the store has no write-ahead log (`WalMode::Off`), without which
///   nothing is durable. [`Error::Thread`].
pub fn open<C: RaftTypeConfig>(db: &Db) -> Result<(LogStore<C>, StateMachine<C>)> {
    let (log, meta) = (db.keyspace("log")?, db.keyspace("meta")?);
    match meta.get(records::FORMAT)? {
        None => create(db, &log, &meta)?,
        Some(format) => check_format(&format)?,
    }
    // A killed process may have left log entries that are not synced. Once openraft has read them,
    // it counts them as durable.
    db.flush_wal()?;
    let current = meta.get(records::KV)?.map(String::from_utf8);
    let Some(Ok(current)) = current else {
        return Err(bad_record(records::KV, "it is no name"));
    };
    let keyspaces = KvKeyspaces::open(db, current)?;
    let state_machine = StateMachine::new(db, meta.clone(), keyspaces)?;
    let install_order = state_machine.install_order().clone();
    Ok((LogStore::new(db, log, meta, install_order)?, state_machine))
}

fn create(db: &Db, log: &Keyspace, meta: &Keyspace) -> Result<()> {
    let kv = db.keyspace(kv_keyspaces::FIRST)?;
    let names = db.keyspaces();
    let of_kv = names.iter().filter(|name| kv_keyspaces::is_of_kv(name));
    let of_kv = of_kv.filter_map(|name| db.find_keyspace(name));
    for keyspace in [log.clone(), meta.clone()].into_iter().chain(of_kv) {
        if keyspace.iter().next_entry()?.is_some() {
            return Err(Error::KeyspaceInUse {
                keyspace: keyspace.name().to_owned(),
            });
        }
    }
    let mut batch = WriteBatch::new();
    let mut records = batch.keyspace(meta);
    records.put(records::FORMAT, error::FORMAT.to_le_bytes())?;
    records.put(records::KV, kv.name())?;
    db.write(&batch, Durability::Synced)?;
    Ok(())
}

fn check_format(bytes: &[u8]) -> Result<()> {
    let format = bytes.try_into().map(u32::from_le_bytes);
    match format.map_err(|_| bad_record(records::FORMAT, "it has not 4 bytes"))? {
        error::FORMAT => Ok(()),
        found => Err(Error::Format { found }),
    }
}

fn bad_record(record: &str, reason: &str) -> Error {
    Error::BadRecord {
        keyspace: "meta".to_owned(),
        record: record.to_owned(),
        reason: reason.to_owned(),
    }
}
