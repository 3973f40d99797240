//! Imports: small ones go through the log, large ascending ones into files of the store. Both are
//! visible and survive a restart.

use crate::testing;

use forerun_db::io::fault::{ENOSPC, Fault, FaultIo};
use forerun_db::{Background, Db, Options, ReverseBytewise};
use forerun_table::{Admission, Dtype, Error, EvictStrategy, Table, WritePolicy};
use std::sync::Arc;
use testing::versions;

const WORDS: usize = 4;
/// More than half of a memtable of these stores.
const KEYS: u64 = 2000;
const MEMTABLE_BYTES: usize = 64 << 10;

fn open(io: &FaultIo, writes: WritePolicy) -> Table {
    let options = Options::default()
        .memtable_bytes(MEMTABLE_BYTES)
        .background(Background::Caller);
    let db = Db::open_with_io(Arc::new(io.clone()), "store", options).unwrap();
    Table::builder(Dtype::I64, WORDS as u32)
        .device_capacity(16)
        .host_capacity(8)
        .db(db)
        .writes(writes)
        .admission(Admission::Always)
        .background(Background::Caller)
        .open()
        .unwrap()
}

fn rows(keys: &[u64], version: u32) -> Vec<u8> {
    testing::rows(WORDS, keys, version)
}

#[test]
fn a_large_import_is_seen_through_every_tier_and_is_durable_by_itself() {
    for writes in [WritePolicy::WriteThrough, WritePolicy::WriteBack] {
        let io = FaultIo::new();
        let table = open(&io, writes);
        let keys: Vec<u64> = (0..KEYS).collect();
        // Older rows in all tiers, and one row that the import does not change.
        table
            .insert(&[1, 2, 3, 9000], &rows(&[1, 2, 3, 9000], 1))
            .unwrap();
        table.prefetch(&[2, 3]).unwrap();
        assert_eq!(table.device_len(), 2);
        table.insert(&[3], &rows(&[3], 2)).unwrap();
        let logged = |table: &Table| table.stats().store.unwrap().log_written_bytes;
        let before = logged(&table);
        table.import_rows(&keys, &rows(&keys, 5)).unwrap();
        // The rows did not go through the log.
        assert!(logged(&table) - before < 8 * KEYS, "{writes:?}");
        assert_eq!((table.device_len(), table.host_len()), (0, 1));
        assert_eq!(versions(&table, &keys), vec![Some(5); KEYS as usize]);
        table.insert(&[7], &rows(&[7], 6)).unwrap();
        assert_eq!(versions(&table, &[7, 9000]), [Some(6), Some(1)]);
        assert_eq!(table.stats().counts.written_rows, 5 + KEYS + 1);
        let io = io.crash(1);
        drop(table);
        let table = open(&io, writes);
        for (key, version) in keys.iter().zip(versions(&table, &keys)) {
            assert!(
                version == Some(5) || *key == 7 && version == Some(6),
                "key {key}"
            );
        }
    }
}

#[test]
fn an_import_onto_a_full_disk_fails_all_its_keys() {
    let io = FaultIo::new();
    let table = open(&io, WritePolicy::WriteThrough);
    let keys: Vec<u64> = (0..KEYS).collect();
    table.insert(&[4], &rows(&[4], 1)).unwrap();
    table.prefetch(&[4]).unwrap();
    io.fail_call(io.calls() + 3, Fault::Fail(ENOSPC));
    let Err(Error::Keys(failures)) = table.import_rows(&keys, &rows(&keys, 2)) else {
        panic!("the disk is full")
    };
    assert_eq!((failures.len(), failures.served()), (keys.len(), 0));
    assert_eq!(versions(&table, &[3, 4, 5]), [None, Some(1), None]);
    table.import_rows(&keys, &rows(&keys, 2)).unwrap();
    assert_eq!(versions(&table, &keys), vec![Some(2); KEYS as usize]);
}

#[test]
fn a_store_of_another_order_takes_large_imports_as_well() {
    let options = Options::default()
        .memtable_bytes(MEMTABLE_BYTES)
        .comparator(Arc::new(ReverseBytewise));
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "store", options).unwrap();
    let table = Table::builder(Dtype::I64, WORDS as u32)
        .db(db)
        .evict_strategy(EvictStrategy::Customized)
        .background(Background::Caller)
        .open()
        .unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    table
        .import_rows_with_scores(&keys, &rows(&keys, 3), &keys)
        .unwrap();
    assert_eq!(versions(&table, &keys), vec![Some(3); KEYS as usize]);
}
