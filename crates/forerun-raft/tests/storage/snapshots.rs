//! Snapshots: from one node to another, past crashes, and beside reads.

use std::sync::atomic::{AtomicBool, Ordering};

use super::fixture::{Model, Node, entry, log_id, receive, stream};
use forerun_db::Values;
use forerun_db::io::fault::{Fault, FaultIo};
use forerun_raft::Request;
use openraft::SnapshotMeta;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};

const KEYS: u64 = 300;

/// A generation: every key has the generation's number as its value.
fn generation(number: u64) -> Request {
    let keys = 0..KEYS;
    keys.fold(Request::new(), |request, key| {
        request.put(format!("key {key:04}"), number.to_string())
    })
}

fn expected(number: u64) -> Model {
    let entry = |key| {
        (
            format!("key {key:04}").into_bytes(),
            number.to_string().into_bytes(),
        )
    };
    (0..KEYS).map(entry).collect()
}

/// A snapshot of a node that has applied a generation as the entry of the same index.
async fn snapshot_of(number: u64) -> (SnapshotMeta<u64, openraft::BasicNode>, Vec<u8>) {
    let mut node = Node::open(&FaultIo::new());
    let entry = entry(1, number, generation(number));
    node.machine.apply([entry]).await.unwrap();
    let snapshot = node.build_snapshot().await;
    // It shows the state at its time, whatever is applied later.
    let later = super::fixture::entry(1, number + 1, Request::new().delete("key 0000"));
    node.machine.apply([later]).await.unwrap();
    (snapshot.meta.clone(), stream(snapshot))
}

#[tokio::test]
async fn an_installed_snapshot_replaces_the_entries() {
    let (meta, bytes) = snapshot_of(7).await;
    let io = FaultIo::new();
    let mut node = Node::open(&io);
    let stale = Request::new().put("stale", "1").put("key 0000", "0");
    node.machine.apply([entry(1, 0, stale)]).await.unwrap();
    let data = receive(&mut node.machine, &bytes).await;
    assert_eq!(
        node.entries().len(),
        2,
        "nothing is visible before it is installed"
    );
    node.machine.install_snapshot(&meta, data).await.unwrap();
    assert_eq!(node.entries(), expected(7));
    assert_eq!(node.db.keyspaces().len(), 3, "{:?}", node.db.keyspaces());
    let current = node.machine.get_current_snapshot().await.unwrap().unwrap();
    assert_eq!(current.meta, meta);
    assert_eq!(stream(current), bytes);

    node.machine
        .apply([entry(1, 8, generation(8))])
        .await
        .unwrap();
    drop(node);
    let mut node = Node::open(&io.kill());
    assert_eq!(node.entries(), expected(8));
    assert_eq!(node.applied_index().await, Some(8));
}

/// openraft installs a snapshot and purges the log up to it at the same time. If the purge came
/// first, a crash in between would lose acknowledged entries.
#[tokio::test]
async fn the_log_is_purged_only_after_the_snapshot_is_installed() {
    let (meta, bytes) = snapshot_of(7).await;
    for is_whole in [true, false] {
        let io = FaultIo::new();
        let Node {
            mut log,
            mut machine,
            db,
            ..
        } = Node::open(&io);
        let entries = (0..3).map(|index| entry(1, index, generation(index)));
        log.blocking_append(entries).await.unwrap();
        let length = if is_whole {
            bytes.len()
        } else {
            bytes.len() / 2
        };
        let data = receive(&mut machine, &bytes[..length]).await;
        let purging = tokio::spawn(async move { log.purge(log_id(1, 7)).await });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!purging.is_finished());
        let installed = machine.install_snapshot(&meta, data).await;
        assert_eq!(installed.is_ok(), is_whole);
        assert_eq!(purging.await.unwrap().is_ok(), is_whole);
        drop((machine, db));
        let mut node = Node::open(&io.kill());
        let state = node.log.get_log_state().await.unwrap();
        let last = if is_whole { log_id(1, 7) } else { log_id(1, 2) };
        assert_eq!(state.last_log_id, Some(last));
    }
}

#[tokio::test]
async fn a_snapshot_that_does_not_arrive_whole_leaves_nothing() {
    let (meta, bytes) = snapshot_of(7).await;
    let mut node = Node::open(&FaultIo::new());
    node.machine
        .apply([entry(1, 0, generation(0))])
        .await
        .unwrap();
    drop(receive(&mut node.machine, &bytes[..bytes.len() / 2]).await);
    let cut = receive(&mut node.machine, &bytes[..bytes.len() - 1]).await;
    let error = node.machine.install_snapshot(&meta, cut).await.unwrap_err();
    assert!(error.to_string().contains("the end is missing"), "{error}");
    assert_eq!(node.entries(), expected(0));
    assert_eq!(node.db.keyspaces(), ["log", "meta", "kv"]);
}

/// The power is lost at every call to the disk while a snapshot is received and installed.
#[tokio::test]
async fn a_crash_leaves_the_old_entries_or_the_new_ones() {
    let (meta, bytes) = snapshot_of(7).await;
    let (mut old, mut new) = (0, 0);
    for call in 0.. {
        let io = FaultIo::new();
        let mut node = Node::open(&io);
        node.machine
            .apply([entry(1, 3, generation(3))])
            .await
            .unwrap();
        node.db.flush_wal().unwrap();
        let first_call = io.calls();
        io.fail_call(first_call + call, Fault::PowerLoss);
        let received = node.machine.begin_receiving_snapshot().await;
        let installed = match received {
            Ok(mut data) => match std::io::Write::write_all(&mut *data, &bytes) {
                Ok(()) => node.machine.install_snapshot(&meta, data).await.is_ok(),
                Err(_) => false,
            },
            Err(_) => false,
        };
        let was_hit = io.hit().is_some();
        let mut node = Node::open(&io.crash(call));
        let number = node.applied_index().await.unwrap();
        assert!(
            number == 7 || (number == 3 && !installed),
            "call {call}: {number}"
        );
        assert_eq!(node.entries(), expected(number), "call {call}");
        let keyspaces = node.db.keyspaces();
        assert_eq!(keyspaces.len(), 3, "call {call}: {keyspaces:?}");
        // It continues from there.
        node.machine
            .apply([entry(1, 9, generation(9))])
            .await
            .unwrap();
        assert_eq!(node.entries(), expected(9), "call {call}");
        *if number == 3 { &mut old } else { &mut new } += 1;
        if !was_hit {
            break;
        }
    }
    assert!(
        old > 5 && new > 1,
        "{old} crashes before the switch, {new} after it"
    );
}

#[tokio::test]
async fn a_batch_of_reads_sees_one_snapshot_while_others_are_installed() {
    let mut node = Node::open(&FaultIo::new());
    node.machine
        .apply([entry(1, 0, generation(0))])
        .await
        .unwrap();
    let reader = node.reader.clone();
    let has_ended = AtomicBool::new(false);
    let snapshots = [snapshot_of(1).await, snapshot_of(2).await];
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let keys: Vec<String> = (0..KEYS).map(|key| format!("key {key:04}")).collect();
            let mut batches = 0;
            // Acquire: pairs with the store after the last installation.
            while !has_ended.load(Ordering::Acquire) {
                let mut values = Values::new();
                reader.multi_get(&keys, &mut values).unwrap();
                let values = values.to_vec().unwrap();
                assert!(values[0].is_some() && values.iter().all(|value| *value == values[0]));
                batches += 1;
            }
            batches
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let installing = scope.spawn(move || {
            runtime.block_on(async {
                for _ in 0..10 {
                    for (meta, bytes) in &snapshots {
                        let data = receive(&mut node.machine, bytes).await;
                        node.machine.install_snapshot(meta, data).await.unwrap();
                    }
                }
            });
        });
        let installed = installing.join();
        has_ended.store(true, Ordering::Release);
        installed.unwrap();
        assert!(reading.join().unwrap() > 0);
    });
}
