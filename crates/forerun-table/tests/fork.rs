//! A table belongs to the process that opened it: in a fork of that process, calls fail and change
//! nothing.

#[path = "../../forerun-core/tests/testing/fork.rs"]
mod fork;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_table::{Dtype, Error, Result, Table, Update, WritePolicy};
use fork::Ending::{AtOnce, Exit};

const ROWS: u64 = 4000;

/// A table with most of its rows only on disk.
fn open(path: &Path, writes: WritePolicy) -> Table {
    let builder = Table::builder(Dtype::I64, 8).path(path).writes(writes);
    let store_options = builder
        .default_store_options()
        .cache_bytes(0)
        .memory_limit_bytes(8 << 20);
    let builder = builder.store_options(store_options);
    builder
        .host_capacity(500)
        .device_capacity(64)
        .open()
        .unwrap()
}

fn row(key: u64) -> Vec<u8> {
    [key; 8].map(u64::to_le_bytes).concat()
}

fn rows(keys: &[u64]) -> Vec<u8> {
    keys.iter().flat_map(|key| row(*key)).collect()
}

fn check_reads(table: &Table, batches: u64) {
    for batch in 0..batches {
        let keys: Vec<u64> = (0..64).map(|at| (batch * 7919 + at * 61) % ROWS).collect();
        let (mut found_rows, mut found) = (vec![0; 64 * 64], [false; 64]);
        assert_eq!(table.find(&keys, &mut found_rows, &mut found).unwrap(), 64);
        assert_eq!(found_rows, rows(&keys));
    }
}

#[track_caller]
fn refused<T>(result: Result<T>) {
    match result {
        Err(Error::Forked(_)) => {}
        Err(other) => panic!("unexpected error: {other}"),
        Ok(_) => panic!("the call succeeded"),
    }
}

fn use_all(table: &Table, path: &Path) {
    let (mut bytes, mut found) = ([0; 64], [false]);
    refused(table.check_process());
    refused(table.find(&[1], &mut bytes, &mut found));
    refused(table.find_to_device(&[1], &mut bytes[..], &mut found));
    refused(table.find_ptr(&[1]));
    refused(table.contains(&[1], &mut found));
    refused(table.insert(&[1], &bytes));
    refused(table.insert_with_scores(&[1], &bytes, &[1]));
    refused(table.update(&[1], &bytes, Update::Add, &mut found));
    refused(table.erase(&[1]));
    refused(table.prefetch(&[1]));
    refused(table.import_rows(&[1], &bytes));
    refused(table.import_rows_with_scores(&[1], &bytes, &[1]));
    refused(table.export(10));
    refused(table.snapshot());
    refused(table.checkpoint(path.with_extension("copy")));
    refused(table.flush());
    refused(table.count());
    table.wait_idle();
    assert_eq!((table.host_len(), table.device_len()), (0, 0));
    assert!(table.stats().store.is_none() && table.device_stats().is_none());
    assert!(table.gpu().is_none() && format!("{table:?}").contains("host_rows"));
    assert_eq!(table.row().bytes(), 64);
    refused(table.clone().close());
}

#[test]
fn a_child_gets_errors_and_its_drops_flush_and_close_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for (writes, ending) in [
        (WritePolicy::WriteThrough, Exit),
        (WritePolicy::WriteBack, AtOnce),
        (WritePolicy::WriteBack, Exit),
    ] {
        let path = directory.path().join(format!("{writes:?}-{ending:?}"));
        let table = open(&path, writes);
        let keys: Vec<u64> = (0..ROWS).collect();
        table.insert(&keys, &rows(&keys)).unwrap();
        let snapshot = table.snapshot().unwrap();
        let mut export = table.export(10).unwrap();
        export.next().unwrap().unwrap();
        // With write-back, these are in memory only.
        table.insert(&[ROWS], &row(ROWS)).unwrap();
        let mut handles = Some((table, snapshot, export));
        fork::in_child(ending, || {
            let (table, snapshot, mut export) = handles.take().unwrap();
            use_all(&table, &path);
            let found = snapshot.find(&[1], &mut [0; 64], &mut [false]);
            assert!(
                matches!(found, Err(Error::Store(forerun_db::Error::Forked(_)))),
                "{found:?}"
            );
            assert_eq!(snapshot.export(1).count(), 1, "an error, then the end");
            refused(export.next().unwrap());
            assert!(export.next().is_none());
            drop((export, snapshot, table));
        });
        let (table, snapshot, export) = handles.unwrap();
        check_reads(&table, 10);
        assert_eq!(
            export.map(|rows| rows.unwrap().keys.len()).sum::<usize>(),
            3990
        );
        let mut found = [false; 2];
        snapshot
            .find(&[1, ROWS], &mut [0; 128], &mut found)
            .unwrap();
        assert_eq!(found, [true, false]);
        drop(snapshot);
        table.close().unwrap();
        assert_eq!(open(&path, writes).count().unwrap(), ROWS + 1);
    }
}

#[test]
fn a_child_never_waits_for_a_lock_that_a_thread_of_its_parent_held() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let table = open(&path, WritePolicy::WriteBack);
    let keys: Vec<u64> = (0..ROWS).collect();
    table.insert(&keys, &rows(&keys)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                check_reads(&table, 1);
                table.prefetch(&keys[..100]).unwrap();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                table.insert(&keys[..200], &rows(&keys[..200])).unwrap();
                drop(table.snapshot().unwrap());
            }
        });
        for at in 0..8 {
            let before = table.stats().counts.written_rows;
            while table.stats().counts.written_rows < before + 400 {
                std::thread::yield_now();
            }
            fork::in_child(Exit, || {
                use_all(&table, &path);
                // A table that a child opens is its own. Its rows evict each other.
                let own = open(&path.with_extension(at.to_string()), WritePolicy::WriteBack);
                own.insert(&keys, &rows(&keys)).unwrap();
                own.flush().unwrap();
                check_reads(&own, 5);
                own.close().unwrap();
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    table.close().unwrap();
    assert_eq!(
        open(&path, WritePolicy::WriteThrough).count().unwrap(),
        ROWS
    );
}
