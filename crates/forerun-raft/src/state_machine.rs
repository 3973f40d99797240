//! openraft's state machine: entries in a keyspace, and the applied log id beside them.
//!
//! ```text
//!   apply     one batch: entries -> kv,  log id and membership -> meta "applied"
//!   build     a snapshot of the store: kv and "applied" at one moment
//!   install   entries -> runs of a new keyspace kv.2 -> durable
//!             one synced batch: "kv" = kv.2, "applied" = that of the snapshot
//!             drop the former keyspace
//! ```
//!
//! After a crash, opening the store finds the state before or after that batch, and drops the
//! keyspace that "kv" does not name.

use std::sync::{Arc, Mutex, PoisonError};

use forerun_db::{Db, Durability, Keyspace, WriteBatch};
use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, EntryPayload, OptionalSend, RaftSnapshotBuilder, RaftTypeConfig, Snapshot, SnapshotMeta,
    StorageError, StorageIOError,
};
use tokio::sync::oneshot;

use crate::install_order::InstallOrder;
use crate::kv_keyspaces::KvKeyspaces;
use crate::kv_reader::{CurrentKeyspace, KvReader};
use crate::log_store::STEP_BYTES;
use crate::records::{self, APPLIED, Applied, KV};
use crate::request::{Op, REQUEST_OPS_MAX, Request, Response};
use crate::snapshot_data::{ReceivedSnapshot, SnapshotData};
use crate::writer::Writer;
use crate::{Error, Result};

type StorageResult<C, T> = std::result::Result<T, StorageError<<C as RaftTypeConfig>::NodeId>>;

/// openraft's state machine: applies [`Request`]s to a keyspace. Get one from
/// [`open`](crate::open()), and read its entries with [`reader`](Self::reader).
pub struct StateMachine<C: RaftTypeConfig> {
    shared: Arc<Shared<C>>,
    applied: Applied<C>,
    writer: Writer,
}

/// What the state machine shares with the builder of a snapshot.
struct Shared<C: RaftTypeConfig> {
    db: Db,
    meta: Keyspace,
    kv: CurrentKeyspace,
    keyspaces: KvKeyspaces,
    install_order: InstallOrder,
    /// Locked while a snapshot is built and while one is installed.
    snapshot: Mutex<Option<CurrentSnapshot<C>>>,
}

#[derive(Clone)]
struct CurrentSnapshot<C: RaftTypeConfig> {
    meta: SnapshotMeta<C::NodeId, C::Node>,
    view: forerun_db::Snapshot,
    kv: Keyspace,
}

/// Builds snapshots of a [`StateMachine`].
pub struct SnapshotBuilder<C: RaftTypeConfig> {
    shared: Arc<Shared<C>>,
}

impl<C: RaftTypeConfig> StateMachine<C> {
    pub(crate) fn new(db: &Db, meta: Keyspace, keyspaces: KvKeyspaces) -> Result<StateMachine<C>> {
        let bytes = meta.get(APPLIED)?;
        let applied = decode_applied::<C>(bytes.as_deref())?;
        let shared = Shared {
            db: db.clone(),
            meta,
            kv: CurrentKeyspace::new(keyspaces.current()?),
            keyspaces,
            install_order: InstallOrder::new(applied.0.as_ref().map(|log_id| log_id.index)),
            snapshot: Mutex::new(None),
        };
        Ok(StateMachine {
            shared: Arc::new(shared),
            applied,
            writer: Writer::start(db.clone(), "raft state machine")?,
        })
    }

    pub(crate) fn install_order(&self) -> &InstallOrder {
        &self.shared.install_order
    }

    /// Returns what reads the entries on this node.
    pub fn reader(&self) -> KvReader {
        KvReader::new(self.shared.kv.clone())
    }
}

impl<C: RaftTypeConfig> Drop for StateMachine<C> {
    fn drop(&mut self) {
        self.shared.install_order.end();
    }
}

impl<C> StateMachine<C>
where
    C: RaftTypeConfig<D = Request, R = Response, Entry = Entry<C>>,
{
    /// The batches that apply entries. Each includes the log id of its last entry.
    fn apply_batches(
        &mut self,
        entries: impl IntoIterator<Item = Entry<C>>,
    ) -> Result<(Vec<WriteBatch>, Vec<Response>)> {
        let kv = self.shared.kv.get();
        let (mut batches, mut responses) = (Vec::new(), Vec::new());
        let mut batch = WriteBatch::new();
        for entry in entries {
            self.applied.0 = Some(entry.log_id.clone());
            responses.push(match entry.payload {
                EntryPayload::Blank => Response::Applied,
                EntryPayload::Normal(request) => apply_request(&request, &mut batch, &kv)?,
                EntryPayload::Membership(membership) => {
                    let log_id = Some(entry.log_id);
                    self.applied.1 = openraft::StoredMembership::new(log_id, membership);
                    Response::Applied
                }
            });
            // A short operation takes much more memory in a memtable than bytes in the batch.
            if batch.encoded().len() > STEP_BYTES || batch.len() >= REQUEST_OPS_MAX {
                self.add_applied(&mut batch)?;
                batches.push(std::mem::take(&mut batch));
            }
        }
        self.add_applied(&mut batch)?;
        batches.push(batch);
        Ok((batches, responses))
    }

    fn add_applied(&self, batch: &mut WriteBatch) -> Result<()> {
        self.shared.add_applied(batch, &self.applied)
    }
}

/// Adds the operations of a request to the batch. A request that breaks a limit has no effect, on
/// any node.
fn apply_request(request: &Request, batch: &mut WriteBatch, kv: &Keyspace) -> Result<Response> {
    if let Err(reason) = request.check() {
        return Ok(Response::Rejected(reason));
    }
    let mut batch = batch.keyspace(kv);
    for op in request.ops() {
        match op {
            Op::Put { key, value } => batch.put(key, value)?,
            Op::Delete { key } => batch.delete(key)?,
        }
    }
    Ok(Response::Applied)
}

fn decode_applied<C: RaftTypeConfig>(bytes: Option<&[u8]>) -> Result<Applied<C>> {
    let applied = bytes.map(|bytes| records::decode("meta", APPLIED, bytes));
    Ok(applied.transpose()?.unwrap_or_default())
}

impl<C: RaftTypeConfig> Shared<C> {
    fn add_applied(&self, batch: &mut WriteBatch, applied: &Applied<C>) -> Result<()> {
        let applied = records::encode(APPLIED, applied)?;
        Ok(batch.keyspace(&self.meta).put(APPLIED, applied)?)
    }

    fn set_applied(&self, applied: &Applied<C>) {
        let last = applied.0.as_ref();
        self.install_order
            .set_applied(last.map(|log_id| log_id.index));
    }

    fn lock_snapshot(&self) -> std::sync::MutexGuard<'_, Option<CurrentSnapshot<C>>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn build(&self) -> Result<CurrentSnapshot<C>> {
        // While it is locked, no other keyspace becomes the current one.
        let mut current = self.lock_snapshot();
        let view = self.db.snapshot();
        let bytes = view.keyspace(&self.meta).get(APPLIED)?;
        let (last_log_id, last_membership) = decode_applied::<C>(bytes.as_deref())?;
        let last = last_log_id.as_ref();
        let last = last.map_or_else(|| "none".to_owned(), ToString::to_string);
        let built = CurrentSnapshot {
            meta: SnapshotMeta {
                snapshot_id: format!("{last}-{}", view.sequence()),
                last_log_id,
                last_membership,
            },
            view,
            kv: self.kv.get(),
        };
        Ok(current.insert(built).clone())
    }

    fn begin_receiving(&self) -> Result<ReceivedSnapshot> {
        let receiving = self.install_order.begin_receiving();
        Ok(ReceivedSnapshot::new(
            &self.db,
            self.keyspaces.create()?,
            receiving,
        ))
    }

    fn install(&self, meta: &SnapshotMeta<C::NodeId, C::Node>, data: SnapshotData) -> Result<()> {
        let mut received = data.into_received(|| self.begin_receiving())?;
        let kv = received.commit()?;
        let mut batch = WriteBatch::new();
        batch.keyspace(&self.meta).put(KV, kv.name())?;
        let applied = (meta.last_log_id.clone(), meta.last_membership.clone());
        self.add_applied(&mut batch, &applied)?;

        let mut current = self.lock_snapshot();
        let switched = self.db.write(&batch, Durability::Synced);
        // If the write failed, the next opening may find it nevertheless; then the keyspace is
        // needed. If not, the next opening drops it.
        received.keep();
        switched?;
        let former = self.kv.replace(kv.clone());
        *current = Some(CurrentSnapshot {
            meta: meta.clone(),
            view: self.db.snapshot(),
            kv,
        });
        drop(current);
        if let Err(error) = self.db.drop_keyspace(former.name()) {
            tracing::warn!(%error, "the former entries remain until the store is opened again");
        }
        Ok(())
    }
}

impl<C> From<CurrentSnapshot<C>> for Snapshot<C>
where
    C: RaftTypeConfig<SnapshotData = SnapshotData>,
{
    fn from(current: CurrentSnapshot<C>) -> Snapshot<C> {
        let data = SnapshotData::built(&current.view, &current.kv);
        Snapshot {
            meta: current.meta,
            snapshot: Box::new(data),
        }
    }
}

/// Runs what waits for the disk on a thread of its own.
async fn blocking<T: Send + 'static>(
    name: &'static str,
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, result) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        // If nobody waits any longer, nobody needs the result.
        .spawn(move || drop(sender.send(run())))
        .map_err(|error| Error::Thread {
            thread: name,
            reason: error.to_string(),
        })?;
    result
        .await
        .map_err(|_| Error::ThreadEnded { thread: name })?
}

impl<C> RaftSnapshotBuilder<C> for SnapshotBuilder<C>
where
    C: RaftTypeConfig<SnapshotData = SnapshotData>,
{
    async fn build_snapshot(&mut self) -> StorageResult<C, Snapshot<C>> {
        let built = self.shared.build();
        let built = built.map_err(|error| StorageIOError::read_snapshot(None, error.to_any()))?;
        Ok(built.into())
    }
}

impl<C> RaftStateMachine<C> for StateMachine<C>
where
    C: RaftTypeConfig<D = Request, R = Response, Entry = Entry<C>, SnapshotData = SnapshotData>,
{
    type SnapshotBuilder = SnapshotBuilder<C>;

    async fn applied_state(&mut self) -> StorageResult<C, Applied<C>> {
        Ok(self.applied.clone())
    }

    async fn apply<I>(&mut self, entries: I) -> StorageResult<C, Vec<Response>>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let write = |error: Error| StorageIOError::write_state_machine(error.to_any());
        let (batches, responses) = self.apply_batches(entries).map_err(write)?;
        self.writer.write(batches).await.map_err(write)?;
        self.shared.set_applied(&self.applied);
        Ok(responses)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<C> {
        SnapshotBuilder {
            shared: Arc::clone(&self.shared),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> StorageResult<C, Box<SnapshotData>> {
        let shared = Arc::clone(&self.shared);
        let received = blocking("raft snapshot", move || shared.begin_receiving()).await;
        let received =
            received.map_err(|error| StorageIOError::write_snapshot(None, error.to_any()))?;
        Ok(Box::new(SnapshotData::received(received)))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        snapshot: Box<SnapshotData>,
    ) -> StorageResult<C, ()> {
        // Until the result is known, the log is not purged.
        let receiving = self.shared.install_order.begin_receiving();
        let (shared, own_meta) = (Arc::clone(&self.shared), meta.clone());
        let install = move || shared.install(&own_meta, *snapshot);
        let installed = blocking("raft snapshot", install).await;
        match &installed {
            Ok(()) => {
                self.applied = (meta.last_log_id.clone(), meta.last_membership.clone());
                self.shared.set_applied(&self.applied);
            }
            Err(_) => self.shared.install_order.end(),
        }
        drop(receiving);
        Ok(installed.map_err(|error| {
            StorageIOError::write_snapshot(Some(meta.signature()), error.to_any())
        })?)
    }

    async fn get_current_snapshot(&mut self) -> StorageResult<C, Option<Snapshot<C>>> {
        let current = self.shared.lock_snapshot().clone();
        Ok(current.map(Snapshot::from))
    }
}
