//! How much of the process's memory a table takes, and when it returns it.

#![cfg(target_os = "linux")]

mod testing;

use forerun_db::{Db, Options};
use forerun_table::{Admission, Background, Dtype, Error, Table, WhenHostFull};
use std::sync::{Mutex, MutexGuard, PoisonError};
use testing::row;

/// Memory that may come and go for other reasons.
const SLACK_BYTES: usize = 24 << 20;

/// Each test holds it, because memory is that of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.unwrap().trim().strip_suffix("kB").unwrap();
    kib.trim().parse::<usize>().unwrap() * 1024
}

fn insert(table: &Table, keys: std::ops::Range<u64>) -> Result<(), Error> {
    let row_bytes = table.row().bytes();
    for from in keys.clone().step_by(1000) {
        let keys: Vec<u64> = (from..keys.end.min(from + 1000)).collect();
        table.insert(&keys, &vec![7; keys.len() * row_bytes])?;
    }
    Ok(())
}

#[test]
fn memory_is_allocated_on_use_and_returned_on_close() {
    let _alone = alone();
    // A capacity reserves addresses but allocates no memory.
    let before = resident_bytes();
    let table = Table::builder(Dtype::F32, 16)
        .host_capacity(4_000_000_000)
        .open()
        .unwrap();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < SLACK_BYTES, "opening took {grown} bytes");
    insert(&table, 0..10_000).unwrap();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 2 * SLACK_BYTES, "10,000 rows took {grown} bytes");
    assert!(table.stats().host_used_bytes < 2 * SLACK_BYTES as u64);
    table.close().unwrap();

    // Closing a table without a store frees its memory.
    let before = resident_bytes();
    let table = Table::builder(Dtype::U8, 4096).open().unwrap();
    insert(&table, 0..30_000).unwrap();
    // The slots of replaced rows are still on their way back to the pool when the table is dropped.
    insert(&table, 0..1000).unwrap();
    let full = resident_bytes().saturating_sub(before);
    assert!(full >= 30_000 * 4096, "{full} bytes for 30,000 rows");
    table.close().unwrap();
    let kept = resident_bytes().saturating_sub(before);
    assert!(
        kept < SLACK_BYTES,
        "{kept} of {full} bytes kept after close"
    );

    // A lookup keeps no copy of the rows it promotes, and no scratch memory of their size.
    let directory = tempfile::tempdir().unwrap();
    // All rows are in files, so that the memory of memtables is not part of what grows.
    let store = Db::open(
        directory.path().join("rows"),
        Options::default().cache_bytes(16 << 20),
    )
    .unwrap();
    let table = Table::builder(Dtype::U8, 4096)
        .host_capacity(30_000)
        .db(store.clone())
        .admission(Admission::Always)
        .open()
        .unwrap();
    insert_below(&table, 0..20_000);
    store.flush().unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    let (mut rows, mut found) = (vec![1; keys.len() * 4096], vec![false; keys.len()]);
    let before = resident_bytes();
    assert_eq!(table.find(&keys, &mut rows, &mut found).unwrap(), 20_000);
    let grown = resident_bytes().saturating_sub(before);
    // The rows in the host tier, possibly all of them by now, and the pages in the store's cache
    // are memory of the tiers.
    let tiers = table.stats().memory_bytes() as usize;
    assert!(
        grown < tiers + 2 * SLACK_BYTES,
        "{grown} bytes beside {tiers} of rows and pages"
    );
    table.close().unwrap();
    store.close().unwrap();

    // A capacity that no machine has is refused.
    for capacity in [usize::MAX, 1 << 40] {
        let table = Table::builder(Dtype::U8, 1 << 20).host_capacity(capacity);
        assert!(matches!(table.open(), Err(Error::HostCapacity { .. })));
    }
    let table = Table::builder(Dtype::U8, 1 << 20).host_capacity(4_000_000_000);
    assert!(matches!(table.open(), Err(Error::Memory(_))));
}

fn insert_below(table: &Table, keys: std::ops::Range<u64>) {
    for from in keys.clone().step_by(1000) {
        let keys: Vec<u64> = (from..keys.end.min(from + 1000)).collect();
        table
            .import_rows(&keys, &vec![7; keys.len() * 4096])
            .unwrap();
    }
}

#[test]
fn a_table_without_a_path_drops_rows_only_if_configured() {
    let _alone = alone();
    let table = Table::builder(Dtype::U8, 4).open().unwrap();
    insert(&table, 0..70_000).unwrap();
    table.wait_idle();
    assert_eq!(table.count().unwrap(), 70_000);

    let table = Table::builder(Dtype::U8, 4)
        .host_capacity(1000)
        .open()
        .unwrap();
    insert(&table, 0..1000).unwrap();
    let Err(Error::Keys(failures)) = insert(&table, 1000..1010) else {
        panic!("there is no space for ten more rows")
    };
    assert_eq!((failures.len(), failures.served()), (10, 0));
    assert!(matches!(
        failures.iter().next(),
        Some((0, 1000, Error::Full { capacity: 1000 }))
    ));
    assert_eq!(table.count().unwrap(), 1000);

    let table = Table::builder(Dtype::U8, 4)
        .host_capacity(1000)
        .when_full(WhenHostFull::Evict)
        .open()
        .unwrap();
    insert(&table, 0..5000).unwrap();
    table.wait_idle();
    assert_eq!(table.count().unwrap(), 1000);
}

/// A million calls, each of which takes and returns slots, scratch memory and jobs.
#[test]
fn a_million_calls_take_no_more_memory_than_a_few() {
    const WORDS: usize = 9;
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let table = Table::builder(Dtype::I64, WORDS as u32)
        .host_capacity(100)
        .path(directory.path().join("rows"))
        .background(Background::Caller)
        .admission(Admission::Always)
        .open()
        .unwrap();
    let keys: Vec<u64> = (0..400).collect();
    let rows: Vec<u8> = keys.iter().flat_map(|&key| row(WORDS, key, 1)).collect();
    table.import_rows(&keys, &rows).unwrap();
    let mut out = [0; 4 * WORDS * 8];
    let mut calls = |from: u64, to: u64| {
        for call in from..to {
            let keys = [call % 90, call % 89, call % 83, 1000 + call];
            table.find(&keys, &mut out, &mut [false; 4]).unwrap();
            if call % 64 == 0 {
                // All of these are below the host tier or are evicted.
                let keys: Vec<u64> = (0..8).map(|n| (call / 8 + n) % 400).collect();
                table.prefetch(&keys).unwrap();
                table.erase(&[1_000_000 + call]).unwrap();
            }
        }
    };
    calls(0, 50_000);
    let (before, slots) = (resident_bytes(), table.stats().host_bytes);
    let rest = if cfg!(debug_assertions) {
        200_000
    } else {
        1_000_000
    };
    calls(50_000, rest);
    let after = resident_bytes();
    assert_eq!(table.stats().host_bytes, slots);
    // The store's memtable holds the erasures: about 100 bytes each.
    let grown = after.saturating_sub(before);
    assert!(
        grown < 24 << 20,
        "memory grew by {grown} bytes in {rest} calls"
    );
}

/// Runs a test of this file in a process of its own, in which the allocator takes all memory from
/// the end of the heap, and returns `true` there. Elsewhere, checks that it succeeds.
fn is_child(test: &str) -> bool {
    const CHILD: &str = "FORERUN_TEST_OF_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(program);
    child.args(["--exact", test, "--test-threads", "1"]);
    child.env(CHILD, "1").env("MALLOC_ARENA_MAX", "1");
    let ran = child.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {said}", ran.status);
    false
}

/// Limits the address space to what is in use, and this many bytes more.
fn limit_address_space(more_bytes: u64) {
    let used = std::fs::read_to_string("/proc/self/status").unwrap();
    let used = used.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = used.unwrap().trim().strip_suffix("kB").unwrap();
    let limit = libc::rlimit {
        rlim_cur: kib.trim().parse::<u64>().unwrap() * 1024 + more_bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the call only reads the limit, which lives until it returns.
    let failed = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(failed, 0);
}

#[test]
fn an_export_without_address_space_is_an_error() {
    if !is_child("an_export_without_address_space_is_an_error") {
        return;
    }
    let table = Table::builder(Dtype::U8, 4).open().unwrap();
    insert(&table, 0..500_000).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let stored = Table::builder(Dtype::U8, 4).path(directory.path().join("rows"));
    let stored = stored.open().unwrap();
    insert(&stored, 0..500_000).unwrap();
    let snapshot = stored.snapshot().unwrap();
    let keys: Vec<u64> = (0..500_000).collect();
    let (mut rows, mut found) = (vec![0; 2_000_000], vec![false; keys.len()]);
    limit_address_space(1 << 19);
    let mut exported = table.export(1000).unwrap();
    let error = exported.next().unwrap().unwrap_err();
    assert!(
        matches!(error, Error::Index(_) | Error::Memory(_)),
        "{error}"
    );
    assert!(exported.next().is_none());
    let error = snapshot.export(500_000).find_map(|rows| rows.err());
    assert!(matches!(error, Some(Error::Memory(_))), "{error:?}");
    let error = snapshot.find(&keys, &mut rows, &mut found).unwrap_err();
    assert!(
        matches!(error, Error::Memory(_) | Error::Store(_)),
        "{error}"
    );
    // The table goes on.
    table.insert(&[1], &[1; 4]).unwrap();
    assert_eq!(table.contains(&[1], &mut [false]).unwrap(), 1);
}
