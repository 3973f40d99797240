//! The output of one operation in device memory is the next one's batch, with counts that the host
//! has not seen.

use crate::{Order, Shim, contents, on_shim, race, row_of, rows_of, small};
use forerun_gpu::table::params::{ABSENT_INSERT, FOUND_ASSIGN_ROW, FOUND_SCORE, TableOp};
use forerun_gpu::table::{Backend, Candidates, GpuTable, Width};
use std::collections::BTreeSet;

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words(shim: &Shim, address: u64, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * 8];
    shim.read(address, &mut bytes).unwrap();
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word))
        .collect()
}

/// The number of keys that an operation has processed, derived from its output.
fn gone_through(shim: &Shim, op: &TableOp, max: usize) -> usize {
    let mut status = vec![0; max];
    shim.read(op.status_out, &mut status).unwrap();
    let end = status.iter().position(|byte| *byte == 99).unwrap_or(max);
    assert!(status[end..].iter().all(|byte| *byte == 99), "{status:?}");
    end
}

/// A count in device memory limits every kind of operation. No operation goes beyond the arrays.
#[test]
fn a_count_in_device_memory_is_the_number_of_keys() {
    const KEYS_MAX: usize = 200;
    for (seed, width) in Width::ALL.into_iter().enumerate() {
        let options = small(
            width,
            Candidates::Two,
            if width == Width::W128 { 4 } else { 24 },
        );
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let table = GpuTable::on(shim.clone(), options).unwrap();
        let slots = width.slots();
        let mut kernels = vec![
            (
                format!("table_write_w{slots}"),
                FOUND_ASSIGN_ROW | FOUND_SCORE | ABSENT_INSERT,
            ),
            (format!("table_find_slots_w{slots}"), 0),
            (format!("table_find_rows_w{slots}"), 0),
            ("table_find_thread".into(), 0),
            ("table_find_seed_rule".into(), 0),
        ];
        if width == Width::W128 {
            kernels.push(("table_find_pipeline".into(), 0));
        }
        let keys: Vec<u64> = (0..KEYS_MAX as u64).map(|i| u64::MAX - i).collect();
        for (name, actions) in kernels {
            for count in [0u64, 1, 31, 77, 200, 1000] {
                let op = TableOp {
                    table: *table.state(),
                    count: KEYS_MAX as u64,
                    count_at: shim.array(&count.to_ne_bytes()),
                    keys: shim.array(&bytes_of(&keys)),
                    rows_in: shim.array(&rows_of(&keys, 0, 16)),
                    rows_out: if name.contains("rows") {
                        shim.array(&[0; 16 * KEYS_MAX])
                    } else {
                        0
                    },
                    status_out: shim.array(&[99; KEYS_MAX]),
                    actions,
                    ..TableOp::default()
                };
                let blocks = 1 + seed as u32 % 2;
                shim.beside(32, seed as u64, &[(&name, blocks, op)]);
                let through = gone_through(&shim, &op, KEYS_MAX);
                assert_eq!(through, (count as usize).min(KEYS_MAX), "{name}, {count}");
            }
        }
    }
}

/// The next operation inserts the keys that a lookup missed. The host has not seen how many there
/// are.
#[test]
fn missed_keys_feed_the_next_operation() {
    for seed in 0..6u64 {
        let options = small(Width::W64, Candidates::Two, 8);
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let there: Vec<u64> = (0..120).map(|i| i * 2).collect();
        table
            .insert_or_assign(&there, &rows_of(&there, 0, 16), None)
            .unwrap();

        let asked: Vec<u64> = (0..150).collect();
        let (count, missed, places) = (
            shim.array(&[0; 8]),
            shim.array(&[0; 1200]),
            shim.array(&[0; 1200]),
        );
        let find = TableOp {
            table: *table.state(),
            count: 150,
            keys: shim.array(&bytes_of(&asked)),
            out_count: count,
            out_keys: missed,
            out_places: places,
            ..TableOp::default()
        };
        shim.beside(64, seed, &[("table_find_slots_w64", 2, find)]);
        let n = words(&shim, count, 1)[0] as usize;
        assert_eq!(n, 75);
        // Rows in the order of the missing keys, as a tier below would supply them.
        let keys = words(&shim, missed, n);
        let insert = TableOp {
            table: *table.state(),
            count: 150,
            count_at: count,
            keys: missed,
            rows_in: shim.array(&[rows_of(&keys, 1, 16), vec![0xee; 75 * 16]].concat()),
            actions: FOUND_ASSIGN_ROW | ABSENT_INSERT,
            ..TableOp::default()
        };
        shim.beside(32, seed, &[("table_write_w64", 3, insert)]);
        let all = contents(&mut table);
        let expected: BTreeSet<u64> = there
            .iter()
            .copied()
            .chain((0..150).filter(|key| key % 2 == 1))
            .collect();
        assert_eq!(all.keys().copied().collect::<BTreeSet<_>>(), expected);
        for key in keys {
            assert_eq!(all[&key].1, row_of(key, 1, 16));
        }
    }
}

/// Several threads use one table. Each of its calls copies its batch in, launches, and copies the
/// answers back, and the calls of lookups lie between those of writers in any order.
#[test]
fn threads_look_up_keys_beside_writers() {
    for seed in 0..2 {
        let Some(mut table) = on_shim(Order::Seeded(seed), race::options()) else {
            return;
        };
        race::lookups_beside_writers(&mut table, 2);
    }
}
