//! How much of the process's memory a table takes, and when it returns it. This is one test,
//! because the tests of a program run in parallel.

#![cfg(target_os = "linux")]

use forerun_table::{Dtype, Error, Table, WhenFull};

/// Memory that may come and go for other reasons.
const SLACK_BYTES: usize = 24 << 20;

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
    let table = Table::builder(Dtype::U8, 4096)
        .host_capacity(30_000)
        .path(directory.path().join("rows"))
        .admission(forerun_table::Admission::Always)
        .open()
        .unwrap();
    insert_below(&table, 0..20_000);
    let keys: Vec<u64> = (0..20_000).collect();
    let (mut rows, mut found) = (vec![1; keys.len() * 4096], vec![false; keys.len()]);
    let before = resident_bytes();
    assert_eq!(table.find(&keys, &mut rows, &mut found).unwrap(), 20_000);
    let grown = resident_bytes().saturating_sub(before);
    // The rows in the host tier, possibly all of them by now, are the tier's own memory.
    let tier = table.stats().host_used_bytes as usize;
    assert!(
        grown < tier + 2 * SLACK_BYTES,
        "{grown} bytes beside {tier} of rows"
    );
    table.close().unwrap();

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
        .when_full(WhenFull::Evict)
        .open()
        .unwrap();
    insert(&table, 0..5000).unwrap();
    table.wait_idle();
    assert_eq!(table.count().unwrap(), 1000);
}
