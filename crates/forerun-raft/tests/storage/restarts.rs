//! The log and the state machine after a restart and after a power loss.

use std::sync::Arc;

use super::fixture::{Model, Node, entry, log_id, try_open};
use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, Options, WalMode};
use forerun_raft::{REQUEST_BYTES_MAX, REQUEST_OPS_MAX, Request, Response};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{RaftLogReader, Vote};

fn numbered(index: u64) -> Request {
    Request::new().put(format!("key {index}"), format!("value {index}"))
}

async fn indexes(node: &mut Node) -> Vec<u64> {
    let entries = node.log.try_get_log_entries(..).await.unwrap();
    entries.iter().map(|entry| entry.log_id.index).collect()
}

#[tokio::test]
async fn an_acknowledged_entry_and_a_vote_survive_a_power_loss() {
    for seed in 0..20 {
        let io = FaultIo::new();
        let mut node = Node::open(&io);
        let entries = (0..10).map(|index| entry(1, index, numbered(index)));
        node.log.blocking_append(entries).await.unwrap();
        node.log
            .save_vote(&Vote::new_committed(3, 1))
            .await
            .unwrap();

        let mut node = Node::open(&io.crash(seed));
        assert_eq!(indexes(&mut node).await, Vec::from_iter(0..10));
        let entries = node.log.try_get_log_entries(4..5).await.unwrap();
        assert_eq!(entries, [entry(1, 4, numbered(4))]);
        assert_eq!(
            node.log.read_vote().await.unwrap(),
            Some(Vote::new_committed(3, 1))
        );
    }
}

/// openraft acknowledges the entries that it finds at its start.
#[tokio::test]
async fn entries_that_a_restarted_node_has_found_survive_a_power_loss() {
    let io = FaultIo::new();
    let mut node = Node::open(&io);
    node.machine
        .apply([entry(1, 0, numbered(0))])
        .await
        .unwrap();
    let io = io.kill();
    drop(node);

    let mut node = Node::open(&io);
    assert_eq!(node.applied_index().await, Some(0));
    let mut node = Node::open(&io.crash(0));
    assert_eq!(node.applied_index().await, Some(0));
}

#[tokio::test]
async fn truncated_and_purged_entries_stay_away() {
    let io = FaultIo::new();
    let mut node = Node::open(&io);
    let entries = (0..20).map(|index| entry(1, index, numbered(index)));
    node.log.blocking_append(entries).await.unwrap();
    node.log.truncate(log_id(1, 15)).await.unwrap();
    node.log.purge(log_id(1, 4)).await.unwrap();
    let rewritten = (15..17).map(|index| entry(2, index, numbered(index)));
    node.log.blocking_append(rewritten).await.unwrap();
    node.log.save_committed(Some(log_id(2, 15))).await.unwrap();
    drop(node);

    let io = io.kill();
    let mut node = Node::open(&io);
    assert_eq!(indexes(&mut node).await, Vec::from_iter(5..17));
    let state = node.log.get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, Some(log_id(1, 4)));
    assert_eq!(state.last_log_id, Some(log_id(2, 16)));
    assert_eq!(
        node.log.read_committed().await.unwrap(),
        Some(log_id(2, 15))
    );

    node.log.purge(log_id(2, 16)).await.unwrap();
    drop(node);
    let mut node = Node::open(&io.kill());
    let state = node.log.get_log_state().await.unwrap();
    assert_eq!(state.last_log_id, Some(log_id(2, 16)));
    assert!(indexes(&mut node).await.is_empty());
}

/// Whatever the disk has kept, the entries are those of the log up to the applied log id.
#[tokio::test]
async fn the_applied_log_id_belongs_to_the_entries() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let io = FaultIo::new();
        let mut node = Node::open(&io);
        let request = |index: u64| {
            let key = format!("key {}", index % 7);
            match index % 5 {
                4 => Request::new().delete(key),
                _ => numbered(index).put(key, index.to_string()),
            }
        };
        for first in (0..60).step_by(3) {
            let entries = (first..first + 3).map(|index| entry(1, index, request(index)));
            node.machine.apply(entries).await.unwrap();
            // Some of it becomes durable, as syncs of the log make it.
            if first % 20 == 0 {
                node.db.flush_wal().unwrap();
            }
        }
        let mut node = Node::open(&io.crash(seed));
        let applied = node.applied_index().await;
        let mut expected = Model::new();
        for index in 0..applied.map_or(0, |applied| applied + 1) {
            for op in request(index).ops() {
                match op.clone() {
                    forerun_raft::Op::Put { key, value } => expected.insert(key, value),
                    forerun_raft::Op::Delete { key } => expected.remove(&key),
                    other => panic!("{other:?}"),
                };
            }
        }
        assert_eq!(node.entries(), expected, "seed {seed}, applied {applied:?}");
        found.insert(applied);
    }
    assert!(found.len() > 1, "every power loss left the same: {found:?}");
}

#[tokio::test]
async fn a_request_beyond_a_limit_has_no_effect() {
    let mut node = Node::open(&FaultIo::new());
    let too_large = Request::new()
        .put("a", "1")
        .put("b", vec![0; REQUEST_BYTES_MAX]);
    let entries = [entry(1, 0, too_large), entry(1, 1, numbered(1))];
    let responses = node.machine.apply(entries).await.unwrap();
    assert!(matches!(
        responses[..],
        [Response::Rejected(_), Response::Applied]
    ));
    assert_eq!(node.entries().len(), 1);
    assert_eq!(node.applied_index().await, Some(1));
}

#[tokio::test]
async fn no_number_of_operations_stops_a_node() {
    let mut node = Node::open(&FaultIo::new());
    let puts = |count: usize, value_bytes: usize| {
        let numbers = (0..count as u32).map(u32::to_be_bytes);
        let put = |request: Request, key| request.put(key, vec![0; value_bytes]);
        numbers.fold(Request::new(), put)
    };
    // The most operations, and as many bytes as fit.
    let largest = puts(REQUEST_OPS_MAX, REQUEST_BYTES_MAX / REQUEST_OPS_MAX - 4);
    let deletes = |count: usize| (0..count).fold(Request::new(), |all, _| all.delete(""));
    let requests = [
        deletes(REQUEST_OPS_MAX),
        deletes(1 << 20),
        largest,
        puts(1 << 20, 0),
        puts(1, 1),
    ];
    let mut accepted = Vec::new();
    for (index, request) in requests.into_iter().enumerate() {
        let is_good = request.check().is_ok();
        let entries = [entry(1, index as u64, request)];
        node.log.blocking_append(entries.clone()).await.unwrap();
        let responses = node.machine.apply(entries).await.unwrap();
        assert_eq!(responses[0] == Response::Applied, is_good);
        accepted.push(is_good);
    }
    assert_eq!(accepted, [true, false, true, false, true]);
    assert_eq!(node.entries().len(), REQUEST_OPS_MAX);
}

#[tokio::test]
async fn many_entries_of_short_operations_are_applied_in_several_steps() {
    let mut node = Node::open(&FaultIo::new());
    let puts = |index: u64| {
        let first = index as u32 * REQUEST_OPS_MAX as u32;
        let numbers = (first..).take(REQUEST_OPS_MAX).map(u32::to_be_bytes);
        let request = numbers.fold(Request::new(), |all, key| all.put(key, ""));
        entry(1, index, request)
    };
    let entries: Vec<_> = (0..8).map(puts).collect();
    let responses = node.machine.apply(entries).await.unwrap();
    assert_eq!(responses, [const { Response::Applied }; 8]);
    assert_eq!(node.entries().len(), 8 * REQUEST_OPS_MAX);
}

#[tokio::test]
async fn many_large_entries_are_written_in_several_steps() {
    let io = FaultIo::new();
    let mut node = Node::open(&io);
    let large = |index: u64| {
        let value = vec![index as u8; 5 << 20];
        entry(1, index, Request::new().put(index.to_string(), value))
    };
    node.log.blocking_append((0..8).map(large)).await.unwrap();
    let entries = node.log.limited_get_log_entries(0, 8).await.unwrap();
    assert_eq!(entries, [large(0), large(1)]);
    for part in [0..3, 3..8] {
        let responses = node.machine.apply(part.clone().map(large)).await.unwrap();
        assert_eq!(responses.len() as u64, part.end - part.start);
    }
    assert_eq!(node.entries().len(), 8);
}

#[test]
fn a_store_without_a_write_ahead_log_is_refused() {
    let io = FaultIo::new();
    drop(Node::open(&io));
    for io in [FaultIo::new(), io.kill()] {
        let options = Options::default().wal(WalMode::Off);
        let db = Db::open_with_io(Arc::new(io), "/store", options).unwrap();
        let opened = forerun_raft::open::<forerun_raft::TypeConfig>(&db);
        let error = opened.err().unwrap();
        let expected = matches!(error, forerun_raft::Error::Db(forerun_db::Error::LogOff));
        assert!(expected, "{error}");
    }
}

#[test]
fn data_of_another_version_or_of_someone_else_is_refused() {
    let io = FaultIo::new();
    let node = Node::open(&io);
    let meta = node.db.find_keyspace("meta").unwrap();
    meta.put("format", 2_u32.to_le_bytes()).unwrap();
    drop(node);
    let error = try_open(&io.kill()).err().unwrap().to_string();
    assert_eq!(
        error,
        "the store's Raft data has format 2; this version reads format 1"
    );

    for name in ["log", "meta", "kv", "kv.5"] {
        let io = FaultIo::new();
        let db = Db::open_with_io(Arc::new(io.clone()), "/store", Options::default());
        let keyspace = db.unwrap().keyspace(name).unwrap();
        keyspace.put("mine", "1").unwrap();
        let error = try_open(&io.kill()).err().unwrap().to_string();
        let expected = format!("keyspace {name:?} has entries, but the store has no Raft data");
        assert_eq!(error, expected);
    }
}
