//! Crashes, kills and a failing disk: nothing that was acknowledged is lost, and only the affected
//! keys fail.

use crate::testing;

use forerun_db::io::fault::{EIO, ENOSPC, Fault, FaultIo};
use forerun_db::{Background, Db, Options, ReadBackend};
use forerun_table::{Admission, Dtype, Error, Table, WhenHostFull, WritePolicy};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testing::{find, version_of};

const WORDS: usize = 4;
const KEYS: u64 = 40;

/// A table over a disk that can be made to fail. A device of 1 row has one bucket of 16. The
/// memtables of the store have an index if the host's rows are even.
fn open(
    io: &FaultIo,
    writes: WritePolicy,
    device_rows: usize,
    rows: usize,
) -> Result<Table, Error> {
    let options = Options::default()
        .memtable_bytes(64 << 10)
        .memtable_index(rows.is_multiple_of(2))
        .cache_bytes(64 << 10)
        .background(Background::Caller)
        .reads(ReadBackend::Sync);
    let db = Db::open_with_io(Arc::new(io.clone()), "store", options)?;
    Table::builder(Dtype::I64, WORDS as u32)
        .device_capacity(device_rows)
        .host_capacity(rows)
        .db(db)
        .admission(Admission::Always)
        .writes(writes)
        .background(Background::Caller)
        .open()
}

fn insert(table: &Table, keys: impl IntoIterator<Item = u64>, version: u32) -> Result<(), Error> {
    let keys: Vec<u64> = keys.into_iter().collect();
    table.insert(&keys, &testing::rows(WORDS, &keys, version))
}

fn versions(table: &Table) -> Vec<Option<u32>> {
    testing::versions(table, &(0..KEYS).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn power_loss_loses_nothing_that_was_flushed(
        back: bool,
        device_rows in 0usize..3,
        rows in 1usize..60,
        flushed in 1u32..6,
        after in 0u32..4,
        seed: u64,
    ) {
        let writes = if back { WritePolicy::WriteBack } else { WritePolicy::WriteThrough };
        let io = FaultIo::new();
        let table = open(&io, writes, device_rows, rows).unwrap();
        for version in 1..=flushed {
            insert(&table, 0..KEYS, version).unwrap();
        }
        table.erase(&[3]).unwrap();
        table.flush().unwrap();
        for version in flushed + 1..=flushed + after {
            insert(&table, (0..KEYS).filter(|&key| key != 3), version).unwrap();
        }
        let io = io.crash(seed);
        drop(table);
        let table = open(&io, writes, device_rows, rows).unwrap();
        for (key, version) in versions(&table).into_iter().enumerate() {
            if key == 3 {
                prop_assert_eq!(version, None);
            } else {
                let version = version.unwrap_or(0);
                prop_assert!((flushed..=flushed + after)
                    .contains(&version), "key {}: {}", key, version);
            }
        }
    }

    #[test]
    fn written_through_rows_survive_a_killed_process(
        rows in 1usize..60, versions_written in 1u32..6,
    ) {
        let io = FaultIo::new();
        let table = open(&io, WritePolicy::WriteThrough, 1, rows).unwrap();
        for version in 1..=versions_written {
            insert(&table, 0..KEYS, version).unwrap();
        }
        let io = io.kill();
        drop(table);
        let table = open(&io, WritePolicy::WriteThrough, 1, rows).unwrap();
        prop_assert_eq!(versions(&table), vec![Some(versions_written); KEYS as usize]);
    }

    /// Every disk call fails once, somewhere. Each answer is right or an error, and afterwards the
    /// table is in the reported state.
    #[test]
    fn a_failing_disk_fails_only_the_affected_keys(
        back: bool,
        device_rows in 0usize..3,
        rows in 1usize..60,
        call in 0u64..120,
        kind in 0usize..3,
    ) {
        let writes = if back { WritePolicy::WriteBack } else { WritePolicy::WriteThrough };
        let io = FaultIo::new();
        let table = open(&io, writes, device_rows, rows).unwrap();
        let fault = [Fault::Fail(ENOSPC), Fault::Fail(EIO), Fault::TornWrite(EIO)][kind];
        io.fail_call(io.calls() + call, fault);
        // The versions that each key may have.
        let mut may: HashMap<u64, Vec<Option<u32>>> = (0..KEYS).map(|key| (key, vec![None]))
            .collect();
        for version in 1..12u32 {
            let keys = (0..KEYS).filter(|key| (key + u64::from(version)) % 3 != 0);
            let keys: Vec<u64> = keys.collect();
            let failed = failed_keys(insert(&table, keys.iter().copied(), version));
            for key in &keys {
                let may = may.get_mut(key).unwrap();
                if !failed.contains(key) {
                    may.clear();
                }
                may.push(Some(version));
            }
            let asked: Vec<u64> = (0..KEYS).collect();
            for (key, answer) in asked.iter().zip(find(&table, &asked)) {
                // Its reads may have hit a planned failure; then the lookup reports it.
                if let Ok(answer) = answer {
                    let version = answer.map(|row| version_of(&row, *key));
                    prop_assert!(may[key]
                        .contains(&version), "key {key}: {version:?} of {:?}", may[key]);
                }
            }
            if version % 4 == 0 {
                let _ = table.flush();
            }
        }
    }
}

/// The keys that a write failed for.
fn failed_keys(written: Result<(), Error>) -> Vec<u64> {
    match written {
        Ok(()) => Vec::new(),
        Err(Error::Keys(failures)) => failures.iter().map(|(_, key, _)| key).collect(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn rows_in_memory_are_found_while_the_disk_fails() {
    // Enough for many pages.
    const KEYS: u64 = 4000;
    let io = FaultIo::new();
    let table = open(&io, WritePolicy::WriteThrough, 0, 20).unwrap();
    insert(&table, 0..KEYS, 1).unwrap();
    drop(table);
    let options = Options::default().cache_bytes(0).reads(ReadBackend::Sync);
    let db = Db::open_with_io(Arc::new(io.clone()), "store", options).unwrap();
    db.flush().unwrap();
    let table = Table::builder(Dtype::I64, WORDS as u32)
        .host_capacity(20)
        .db(db)
        .background(Background::Caller)
        .open()
        .unwrap();
    table.prefetch(&(0..10).collect::<Vec<u64>>()).unwrap();
    assert_eq!(table.host_len(), 10);
    for call in io.calls()..io.calls() + 10_000 {
        io.fail_call(call, Fault::Fail(EIO));
    }
    let keys: Vec<u64> = (0..KEYS).collect();
    let answers = find(&table, &keys);
    for (key, answer) in keys.iter().zip(&answers) {
        match answer {
            Ok(Some(row)) => assert_eq!(version_of(row, *key), 1),
            Ok(None) => panic!("key {key} is there"),
            Err(error) => {
                assert!(*key >= 10, "key {key} is above");
                assert!(matches!(error, Error::Store(_)), "{error}");
            }
        }
    }
    let failed = answers.iter().filter(|answer| answer.is_err()).count();
    assert!(failed > KEYS as usize / 2, "{failed} failed");
    assert_eq!(table.stats().counts.failed_keys, failed as u64);
}

#[test]
fn a_full_disk_keeps_rows_in_memory_until_space_is_free() {
    let io = FaultIo::new();
    let table = open(&io, WritePolicy::WriteBack, 0, 100).unwrap();
    insert(&table, 0..KEYS, 1).unwrap();
    io.set_capacity_bytes(Some(0));
    assert!(matches!(table.flush(), Err(Error::Store(_))));
    assert_eq!(versions(&table), vec![Some(1); KEYS as usize]);
    assert_eq!(table.stats().host_dirty_rows, KEYS);
    io.set_capacity_bytes(None);
    table.flush().unwrap();
    assert_eq!(table.stats().host_dirty_rows, 0);
    let io = io.crash(0);
    drop(table);
    let table = open(&io, WritePolicy::WriteBack, 0, 100).unwrap();
    assert_eq!(versions(&table), vec![Some(1); KEYS as usize]);
}

#[test]
fn a_callback_that_panics_keeps_its_rows_and_ends_no_thread() {
    for background in [Background::Threads, Background::Caller] {
        let panics = Arc::new(AtomicBool::new(true));
        let (is_on, evicted) = (Arc::clone(&panics), Arc::new(AtomicUsize::new(0)));
        let received = Arc::clone(&evicted);
        let callback = move |keys: &[u64], _: &[u8]| {
            assert!(!is_on.load(Ordering::SeqCst), "the user's callback");
            received.fetch_add(keys.len(), Ordering::SeqCst);
        };
        let table = Table::builder(Dtype::I64, WORDS as u32)
            .host_capacity(2)
            .background(background)
            .when_full(WhenHostFull::Callback(Arc::new(callback)))
            .open()
            .unwrap();
        // The rows beyond the capacity stay, until there is no slot for another one.
        let error = (0..10_000)
            .find_map(|key| insert(&table, [key], 1).err())
            .unwrap();
        let Error::Keys(failures) = error else {
            panic!("{background:?}: {error}")
        };
        let (_, _, error) = failures.iter().next().unwrap();
        let Error::CallbackPanicked { message } = error else {
            panic!("{background:?}: {error}")
        };
        assert_eq!(message, "the user's callback");
        let kept = table.host_len();
        assert!(kept > 2, "{background:?}");
        let deadline = Instant::now() + Duration::from_secs(60);
        while table.stats().counts.failed_moves == 0 {
            assert!(
                Instant::now() < deadline,
                "{background:?}: no failure is counted"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        panics.store(false, Ordering::SeqCst);
        insert(&table, [20_000], 1).unwrap();
        assert!(
            table.wait_idle_for(Duration::from_secs(60)),
            "{background:?}"
        );
        assert_eq!(table.host_len(), 2, "{background:?}");
        assert_eq!(evicted.load(Ordering::SeqCst), kept - 1, "{background:?}");
    }
}
