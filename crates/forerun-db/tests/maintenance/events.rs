//! A listener receives what happens in a store.

use crate::testing;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Background, BackgroundTask, CompactionReason, Db, DbEvent, Error, Options, TreeOptions,
    WriteStallReason,
};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, open, small_options, tiny_options, wait_for};

/// Events, and the threads in which they happened.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<(ThreadId, DbEvent)>>>);

impl Received {
    fn listen(&self, options: Options) -> Options {
        let received = self.clone();
        options.event_listener(Arc::new(move |event: &DbEvent| {
            let mut events = received.0.lock().unwrap();
            events.push((thread::current().id(), event.clone()));
        }))
    }

    fn all(&self) -> Vec<DbEvent> {
        let events = self.0.lock().unwrap();
        events.iter().map(|(_, event)| event.clone()).collect()
    }

    /// Checks that in each thread, what begins ends, and nothing ends that has not begun. A write
    /// may flush and compact while it waits.
    fn check_pairs(&self) {
        let kind = |event: &DbEvent| match event {
            DbEvent::FlushBegun { .. } | DbEvent::FlushEnded { .. } => "flush",
            DbEvent::CompactionBegun { .. } | DbEvent::CompactionEnded { .. } => "compaction",
            DbEvent::WriteStallBegun { .. } | DbEvent::WriteStallEnded { .. } => "stall",
            _ => "error",
        };
        let mut begun: Vec<(ThreadId, &str)> = Vec::new();
        for (thread, event) in &*self.0.lock().unwrap() {
            match event {
                DbEvent::FlushBegun { .. }
                | DbEvent::CompactionBegun { .. }
                | DbEvent::WriteStallBegun { .. } => begun.push((*thread, kind(event))),
                DbEvent::FlushEnded { .. }
                | DbEvent::CompactionEnded { .. }
                | DbEvent::WriteStallEnded { .. } => {
                    let last = begun.iter().rposition(|(of, _)| of == thread);
                    let last = last.map(|at| begun.remove(at).1);
                    assert_eq!(last, Some(kind(event)), "{event:?}");
                }
                _ => {}
            }
        }
        assert!(begun.is_empty(), "{begun:?}");
    }
}

#[test]
fn flushes_and_compactions_are_received_in_order_with_their_bytes() {
    for background in [Background::Caller, Background::Threads] {
        let received = Received::default();
        let options = received.listen(tiny_options().background(background));
        let db = open(&FaultIo::new(), &options).unwrap();
        let users = db.keyspace("users").unwrap();
        for round in 0..40_u32 {
            for key in 0..10_u32 {
                db.put(key.to_be_bytes(), round.to_be_bytes().repeat(20))
                    .unwrap();
                users.put((key * round).to_be_bytes(), [7; 100]).unwrap();
            }
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        // One run in level 0, which makes no compaction due.
        db.keyspace("rare").unwrap().put("key", "value").unwrap();
        db.compact().unwrap();
        db.wait_idle().unwrap();
        let timed = db.stats();
        let tree = timed.tree;
        db.close().unwrap();
        received.check_pairs();
        let [
            mut flushes,
            mut flushed,
            mut compactions,
            mut merges,
            mut read,
            mut written,
            mut dropped,
        ] = [0; 7];
        let (mut flushed_keyspaces, mut compacted) = (Vec::new(), Vec::new());
        for event in received.all() {
            match event {
                DbEvent::FlushBegun { memtable_bytes, .. } => assert!(memtable_bytes > 0),
                DbEvent::FlushEnded {
                    keyspaces,
                    written_bytes,
                    error,
                    ..
                } => {
                    assert!(error.is_none(), "{error:?}");
                    flushes += 1;
                    flushed += written_bytes;
                    flushed_keyspaces.extend(keyspaces);
                }
                DbEvent::CompactionBegun {
                    runs,
                    run_bytes,
                    from_level,
                    into_level,
                    ..
                } => {
                    assert!(runs > 0 && run_bytes > 0 && from_level <= into_level);
                }
                DbEvent::CompactionEnded {
                    keyspace,
                    reason,
                    read_bytes,
                    written_bytes,
                    dropped_entries,
                    error,
                    ..
                } => {
                    assert!(error.is_none(), "{error:?}");
                    compactions += 1;
                    merges += u64::from(read_bytes > 0);
                    read += read_bytes;
                    written += written_bytes;
                    dropped += dropped_entries;
                    compacted.push((keyspace, reason));
                }
                DbEvent::WriteStallBegun { .. } | DbEvent::WriteStallEnded { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(flushes > 3 && compactions > 3 && dropped > 0, "{tree:?}");
        assert_eq!((flushes, flushed), (tree.flushes, tree.flushed_bytes));
        assert_eq!(compactions, tree.compactions);
        assert_eq!(read, tree.compaction_read_bytes);
        assert_eq!(written, tree.compaction_written_bytes);
        assert_eq!(dropped, tree.dropped_entries);
        assert_eq!(
            (timed.flush.calls, timed.compaction.calls),
            (flushes, merges)
        );
        for keyspace in ["", "users"] {
            assert!(
                flushed_keyspaces.iter().any(|of| of == keyspace),
                "{keyspace:?}"
            );
            let wanted = (keyspace.to_owned(), CompactionReason::Level);
            assert!(compacted.contains(&wanted), "{keyspace:?}");
        }
        let rare = compacted.iter().filter(|(keyspace, _)| keyspace == "rare");
        let rare: Vec<_> = rare.map(|(_, reason)| *reason).collect();
        assert_eq!(rare, [CompactionReason::Requested]);
    }
}

/// Writes until a write has waited. The background thread of this name writes no run before.
fn stall(
    thread: &'static str,
    options: Options,
    write: impl Fn(&Db, u32) + Sync,
) -> WriteStallReason {
    let received = Received::default();
    let is_stalled = Arc::new(AtomicBool::new(false));
    let io = {
        let is_stalled = Arc::clone(&is_stalled);
        HookIo::new(&FaultIo::new(), move |change, _: &Path| {
            if change == Change::Create && thread::current().name() == Some(thread) {
                wait_for(&is_stalled);
            }
            Ok(())
        })
    };
    let options = options.background(Background::Threads);
    let listening = received.listen(options.clone()).event_listener.unwrap();
    let flag = Arc::clone(&is_stalled);
    let options = options.event_listener(Arc::new(move |event: &DbEvent| {
        listening.on_event(event);
        if matches!(event, DbEvent::WriteStallBegun { .. }) {
            flag.store(true, SeqCst);
        }
    }));
    let db = Db::open_with_io(Arc::new(io), STORE, options).unwrap();
    thread::scope(|scope| {
        for writer in 0..2 {
            let (db, write, is_stalled) = (&db, &write, &is_stalled);
            scope.spawn(move || {
                for round in 0.. {
                    write(db, 2 * round + writer);
                    if is_stalled.load(SeqCst) {
                        break;
                    }
                }
            });
        }
    });
    db.wait_idle().unwrap();
    let stats = db.stats();
    db.close().unwrap();
    received.check_pairs();
    let mut stalls = 0;
    let mut stalled = Duration::ZERO;
    let mut reasons = Vec::new();
    for event in received.all() {
        if let DbEvent::WriteStallEnded {
            reason, duration, ..
        } = event
        {
            stalls += 1;
            stalled += duration;
            reasons.push(reason);
        }
    }
    assert!(stalls > 0);
    assert_eq!(stats.write_stalls.stalls, stalls);
    assert_eq!(stats.write_stall.calls, stalls);
    assert_eq!(u128::from(stats.write_stall.sum_ns), stalled.as_nanos());
    reasons.remove(0)
}

#[test]
fn a_write_that_waits_for_memory_begins_and_ends_a_stall() {
    let options = small_options()
        .memtable_bytes(64 << 10)
        .memory_limit_bytes(256 << 10);
    let reason = stall("forerun-flush", options, |db, round| {
        db.put(round.to_be_bytes(), [7; 1_000]).unwrap();
    });
    assert_eq!(reason, WriteStallReason::Memory);
}

#[test]
fn a_write_that_flushes_to_get_memory_begins_and_ends_a_stall() {
    let received = Received::default();
    let options = small_options()
        .background(Background::Threads)
        .memtable_bytes(16 << 10);
    let options = received.listen(options);
    let db = open(&FaultIo::new(), &options).unwrap();
    for key in 0..12_u8 {
        db.put([key], [7; 1_000]).unwrap();
    }
    // The memory limit has no room for it beside the active memtable.
    db.put("large", vec![7; 216 << 10]).unwrap();
    let stats = db.stats();
    db.close().unwrap();
    received.check_pairs();
    let ended = received.all().into_iter().filter_map(|event| match event {
        DbEvent::WriteStallEnded { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [WriteStallReason::Memory]);
    assert_eq!(stats.write_stalls.memory_stalls, 1);
}

#[test]
fn a_write_that_waits_for_an_ingestion_begins_and_ends_a_stall() {
    let received = Received::default();
    let [is_held, is_stalled] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let io = {
        let (is_held, is_stalled) = (Arc::clone(&is_held), Arc::clone(&is_stalled));
        HookIo::new(&FaultIo::new(), move |change, _: &Path| {
            if change == Change::Rename && thread::current().name() == Some("ingesting") {
                is_held.store(true, SeqCst);
                wait_for(&is_stalled);
            }
            Ok(())
        })
    };
    let listening = received.listen(small_options()).event_listener.unwrap();
    let flag = Arc::clone(&is_stalled);
    let options = small_options().background(Background::Threads);
    let options = options.event_listener(Arc::new(move |event: &DbEvent| {
        listening.on_event(event);
        if matches!(event, DbEvent::WriteStallBegun { .. }) {
            flag.store(true, SeqCst);
        }
    }));
    let db = Db::open_with_io(Arc::new(io), STORE, options).unwrap();
    thread::scope(|scope| {
        let ingesting = thread::Builder::new().name("ingesting".into());
        let ingest = || {
            let mut ingestion = db.ingest();
            ingestion.add("a", "ingested").unwrap();
            ingestion.commit().unwrap();
        };
        ingesting.spawn_scoped(scope, ingest).unwrap();
        wait_for(&is_held);
        db.put("a", "written").unwrap();
    });
    assert_eq!(db.get("a").unwrap().unwrap(), b"written");
    let stalls = db.stats().write_stalls;
    db.close().unwrap();
    received.check_pairs();
    let ended = received.all().into_iter().filter_map(|event| match event {
        DbEvent::WriteStallEnded { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [WriteStallReason::Ingestion]);
    assert_eq!(stalls.ingestion_stalls, 1);
}

#[test]
fn a_write_that_waits_for_level_0_begins_and_ends_a_stall() {
    let tree = TreeOptions::default().level0_runs(2).level0_slow_runs(3);
    let options = small_options().tree(tree.level0_stop_runs(3));
    let reason = stall("forerun-compact", options, |db, round| {
        let users = db.keyspace("users").unwrap();
        users.put("a", round.to_be_bytes()).unwrap();
        users.put("z", round.to_be_bytes()).unwrap();
        users.flush().unwrap();
    });
    let keyspace = "users".to_owned();
    assert_eq!(reason, WriteStallReason::Level0 { keyspace });
}

#[test]
fn a_flush_and_a_compaction_that_fail_end_with_their_errors() {
    for failing in ["forerun-flush", "forerun-compact"] {
        let received = Received::default();
        let fails = Arc::new(AtomicBool::new(true));
        let io = {
            let fails = Arc::clone(&fails);
            HookIo::new(&FaultIo::new(), move |change, path: &Path| {
                let is_run = path.extension().is_some_and(|end| end == "run");
                let is_here = thread::current().name() == Some(failing);
                if change == Change::Create && is_run && is_here && fails.load(SeqCst) {
                    return Err(std::io::Error::other("no"));
                }
                Ok(())
            })
        };
        let tree = TreeOptions::default().level0_runs(2);
        let options = small_options().background(Background::Threads).tree(tree);
        let db = Db::open_with_io(Arc::new(io), STORE, received.listen(options)).unwrap();
        for round in 0..2_u8 {
            db.put("a", [round]).unwrap();
            db.put("z", [round]).unwrap();
            if failing == "forerun-flush" {
                assert!(db.flush().is_err());
            } else {
                db.flush().unwrap();
            }
        }
        if failing == "forerun-compact" {
            assert!(db.wait_idle().is_err());
        }
        fails.store(false, SeqCst);
        db.flush().unwrap();
        db.wait_idle().unwrap();
        db.close().unwrap();
        received.check_pairs();
        let mut ends = Vec::new();
        let mut errors = Vec::new();
        for event in received.all() {
            match event {
                DbEvent::FlushEnded { error, .. } if failing == "forerun-flush" => ends.push(error),
                DbEvent::CompactionEnded { error, .. } if failing == "forerun-compact" => {
                    ends.push(error);
                }
                DbEvent::BackgroundError { task, error, .. } => errors.push((task, error)),
                _ => {}
            }
        }
        let (first, last) = (ends.first().unwrap(), ends.last().unwrap());
        assert!(last.is_none(), "{last:?}");
        let (task, error) = errors.first().unwrap();
        match (failing, task, first) {
            ("forerun-flush", BackgroundTask::Flush, Some(Error::Io { .. })) => {}
            (
                "forerun-compact",
                BackgroundTask::Compaction,
                Some(Error::CompactionFailed { .. }),
            ) => {}
            _ => panic!("{failing}: {task:?}, {first:?}"),
        }
        assert_eq!(error.to_string(), first.as_ref().unwrap().to_string());
        let failures = ends.iter().flatten().count();
        assert_eq!(errors.len(), failures);
    }
}

#[test]
fn a_listener_that_panics_is_called_no_more_and_harms_nothing() {
    let calls = Arc::new(AtomicUsize::new(0));
    let listener = {
        let calls = Arc::clone(&calls);
        move |event: &DbEvent| {
            calls.fetch_add(1, SeqCst);
            panic!("the listener does not like {event:?}");
        }
    };
    let io = FaultIo::new();
    let options = tiny_options().event_listener(Arc::new(listener));
    let db = open(&io, &options).unwrap();
    for key in 0..500_u32 {
        db.put(key.to_be_bytes(), [7; 100]).unwrap();
    }
    db.compact().unwrap();
    assert_eq!(calls.load(SeqCst), 1);
    let stats = db.stats();
    assert!(
        stats.tree.flushes > 3 && stats.tree.compactions > 0,
        "{stats}"
    );
    assert_eq!((stats.poisoned, stats.background_failure), (None, None));
    assert_eq!(db.count().unwrap(), 500);
    db.close().unwrap();
}

#[test]
fn closing_drops_a_listener_that_keeps_the_store() {
    for background in [Background::Caller, Background::Threads] {
        let (store, alive) = (Arc::new(Mutex::new(None::<Db>)), Arc::new(()));
        let left = Arc::downgrade(&alive);
        let listener = {
            let store = Arc::clone(&store);
            move |_: &DbEvent| {
                let _kept = (&store, &alive);
            }
        };
        let io = FaultIo::new();
        let options = tiny_options().background(background);
        let db = open(&io, &options.clone().event_listener(Arc::new(listener))).unwrap();
        *store.lock().unwrap() = Some(db.clone());
        drop(store);
        db.put("key", "value").unwrap();
        db.flush().unwrap();
        let reading = db.snapshot();
        db.close().unwrap();
        assert!(left.upgrade().is_none(), "it went with the store");
        assert_eq!(reading.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        drop(reading);
        assert_eq!(open(&io, &options).unwrap().count().unwrap(), 1);
    }
}

#[test]
fn a_listener_may_read_the_store() {
    for background in [Background::Caller, Background::Threads] {
        let store = Arc::new(Mutex::new(None::<Db>));
        let reads = Arc::new(AtomicUsize::new(0));
        let listener = {
            let (store, reads) = (Arc::clone(&store), Arc::clone(&reads));
            move |_: &DbEvent| {
                let db = store.lock().unwrap().clone();
                if let Some(db) = db {
                    assert_eq!(db.get("first").unwrap().as_deref(), Some(&b"value"[..]));
                    assert!(db.iter().next().is_some());
                    reads.fetch_add(db.stats().memtables, SeqCst);
                }
            }
        };
        let options = tiny_options().background(background);
        let options = options.event_listener(Arc::new(listener));
        let db = open(&FaultIo::new(), &options).unwrap();
        db.put("first", "value").unwrap();
        *store.lock().unwrap() = Some(db.clone());
        for key in 0..500_u32 {
            db.put(key.to_be_bytes(), [7; 100]).unwrap();
        }
        let mut ingestion = db.ingest();
        ingestion.add("ingested", "value").unwrap();
        ingestion.commit().unwrap();
        db.compact().unwrap();
        *store.lock().unwrap() = None;
        assert!(reads.load(SeqCst) > 10);
        db.close().unwrap();
    }
}
