//! Scans of several streams at the same time, and beside writers and lookups.

use crate::{Order, Shim, cases, contents, row_of, rows_of, small};
use forerun_gpu::table::params::{
    ABSENT_INSERT, FOUND_ASSIGN_ROW, FOUND_SCORE, SCAN_ERASE, TableOp,
};
use forerun_gpu::table::{Backend, Candidates, GpuTable, Status, TableOptions, Width};
use std::sync::Arc;

const KEYS: u64 = 60;
/// The keys from 0 on that are pinned.
const PINNED: u64 = 3;
/// The score that the scans look for, and another one.
const OLD: u64 = 5;
const NEW: u64 = 100;

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn word(shim: &Shim, address: u64) -> u64 {
    let mut bytes = [0; 8];
    shim.read(address, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

/// Options of a table with enough slots that nothing is evicted.
fn options(seed: u64) -> TableOptions {
    let width = Width::ALL[seed as usize % 4];
    let candidates = [Candidates::One, Candidates::Two][seed as usize / 4 % 2];
    small(width, candidates, 512 / u64::from(width.slots()))
}

/// A table in which all keys have the old score.
fn filled(shim: &Arc<Shim>, seed: u64) -> GpuTable {
    let mut table = GpuTable::on(shim.clone(), options(seed)).unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    let status = table
        .insert_or_assign(&keys, &rows_of(&keys, 0, 16), Some(&[OLD; KEYS as usize]))
        .unwrap();
    assert_eq!(status, [Status::Inserted; KEYS as usize]);
    table.lock(&keys[..PINNED as usize]).unwrap();
    table
}

/// Erases the entries with the old score.
fn erase_old(shim: &Shim, table: &GpuTable) -> TableOp {
    TableOp {
        table: *table.state(),
        count: table.capacity(),
        score_min: OLD,
        score_max: OLD,
        scan: SCAN_ERASE,
        out_count: shim.array(&[0; 8]),
        ..TableOp::default()
    }
}

/// A writer gives every key the new score, while two scans erase what has the old one. A key that
/// was erased first is inserted again; one that was written first stays. So all keys are there in
/// the end.
#[test]
fn an_entry_that_no_longer_meets_the_condition_is_not_erased() {
    let (mut erased, mut stayed) = (0, 0);
    for seed in 0..cases(48) {
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let mut table = filled(&shim, seed);
        let keys: Vec<u64> = (0..KEYS).collect();
        let write = TableOp {
            table: *table.state(),
            count: KEYS,
            keys: shim.array(&bytes_of(&keys)),
            rows_in: shim.array(&rows_of(&keys, 1, 16)),
            scores_in: shim.array(&bytes_of(&[NEW; KEYS as usize])),
            status_out: shim.array(&[9; KEYS as usize]),
            actions: FOUND_ASSIGN_ROW | FOUND_SCORE | ABSENT_INSERT,
            ..TableOp::default()
        };
        let find = TableOp {
            table: *table.state(),
            count: KEYS,
            keys: write.keys,
            rows_out: shim.array(&vec![0; 16 * KEYS as usize]),
            status_out: shim.array(&[9; KEYS as usize]),
            concurrent_writers: 1,
            ..TableOp::default()
        };
        let scans = [(); 2].map(|()| erase_old(&shim, &table));
        let slots = table.options().width.slots();
        let (writer, finder) = (
            format!("table_write_w{slots}"),
            format!("table_find_rows_w{slots}"),
        );
        let kernels = [
            ("table_scan", 2, scans[0]),
            (&*writer, 1, write),
            ("table_scan", 1, scans[1]),
            (&*finder, 1, find),
        ];
        shim.beside(32, seed, &kernels);

        let all = contents(&mut table);
        for key in keys {
            let expected = if key < PINNED {
                (OLD, row_of(key, 0, 16))
            } else {
                (NEW, row_of(key, 1, 16))
            };
            assert_eq!(all.get(&key), Some(&expected), "seed {seed}, key {key}");
        }
        let mut status = [0; KEYS as usize];
        shim.read(write.status_out, &mut status).unwrap();
        let of = |wanted: Status| status.iter().filter(|s| **s == wanted as u8).count() as u64;
        let given = scans
            .map(|scan| word(&shim, scan.out_count))
            .iter()
            .sum::<u64>();
        assert_eq!(
            given,
            of(Status::Inserted),
            "seed {seed}: each is erased once"
        );
        assert_eq!(of(Status::Pinned), PINNED);
        (erased, stayed) = (erased + given, stayed + of(Status::Found));

        let mut rows = vec![0; 16 * KEYS as usize];
        shim.read(find.rows_out, &mut rows).unwrap();
        shim.read(find.status_out, &mut status).unwrap();
        for (key, row) in (0..KEYS).zip(rows.chunks_exact(16)) {
            let is_whole = row == row_of(key, 0, 16) || row == row_of(key, 1, 16);
            let is_found = status[key as usize] == Status::Found as u8;
            assert!(!is_found || is_whole, "seed {seed}, key {key}: {row:?}");
            assert!(is_found || key >= PINNED, "seed {seed}: pinned key {key}");
        }
    }
    assert!(
        erased > 0 && stayed > 0,
        "{erased}, {stayed}: nothing was tested"
    );
}

#[test]
fn a_clear_beside_scans_counts_each_entry_once() {
    let mut erased = 0;
    for seed in 0..cases(24) {
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let mut table = filled(&shim, seed);
        let scans = [(); 2].map(|()| erase_old(&shim, &table));
        let kernels = [
            ("table_scan", 2, scans[0]),
            ("table_clear", 1, scans[0]),
            ("table_scan", 1, scans[1]),
        ];
        shim.beside(32, seed, &kernels);
        // Both numbers are exact: `contents` compares the first.
        assert!(contents(&mut table).is_empty(), "seed {seed}");
        assert_eq!(word(&shim, table.state().control + 8), 0, "seed {seed}");
        let given = scans
            .map(|scan| word(&shim, scan.out_count))
            .iter()
            .sum::<u64>();
        assert!(given <= KEYS, "seed {seed}: {given} of {KEYS} were erased");
        erased += given;
    }
    assert!(
        erased > 0,
        "the table was always cleared first: nothing was tested"
    );
}
