//! A node's storage on a model disk, without openraft around it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, Options};
use forerun_raft::{KvReader, LogStore, Request, SnapshotData, StateMachine, TypeConfig, open};
use openraft::storage::RaftStateMachine;
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftSnapshotBuilder, Snapshot};

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub struct Node {
    pub db: Db,
    pub log: LogStore<TypeConfig>,
    pub machine: StateMachine<TypeConfig>,
    pub reader: KvReader,
}

pub fn try_open(io: &FaultIo) -> Result<Node, Box<dyn std::error::Error>> {
    // The calls to the disk then depend on the test alone.
    let options = Options::default()
        .background(Background::Caller)
        .memory_limit_bytes(64 << 20)
        .memtable_bytes(1 << 20);
    let db = Db::open_with_io(Arc::new(io.clone()), "/store", options)?;
    let (log, machine) = open::<TypeConfig>(&db)?;
    let reader = machine.reader();
    Ok(Node {
        db,
        log,
        machine,
        reader,
    })
}

impl Node {
    pub fn open(io: &FaultIo) -> Node {
        try_open(io).unwrap()
    }

    /// All entries of the state machine.
    pub fn entries(&self) -> Model {
        let entries = self.reader.read(|keyspace| keyspace.iter().collect());
        entries.unwrap()
    }

    pub async fn applied_index(&mut self) -> Option<u64> {
        let (applied, _) = self.machine.applied_state().await.unwrap();
        applied.map(|log_id| log_id.index)
    }

    pub async fn build_snapshot(&mut self) -> Snapshot<TypeConfig> {
        let mut builder = self.machine.get_snapshot_builder().await;
        builder.build_snapshot().await.unwrap()
    }
}

pub fn log_id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

pub fn entry(term: u64, index: u64, request: Request) -> Entry<TypeConfig> {
    Entry {
        log_id: log_id(term, index),
        payload: EntryPayload::Normal(request),
    }
}

/// The bytes of a snapshot, as a network sends them.
pub fn stream(mut snapshot: Snapshot<TypeConfig>) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot.snapshot.read_to_end(&mut bytes).unwrap();
    bytes
}

/// What a node has received from such bytes, in pieces.
pub async fn receive(machine: &mut StateMachine<TypeConfig>, bytes: &[u8]) -> Box<SnapshotData> {
    let mut data = machine.begin_receiving_snapshot().await.unwrap();
    for piece in bytes.chunks(1000) {
        data.write_all(piece).unwrap();
    }
    data
}
