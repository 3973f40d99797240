//! Tests every kind of lookup, at every load, in many schedules.

use crate::{Order, Shim, all_cases, cases, contents, on_shim, row_of, rows_of, small};
use forerun_gpu::GpuError;
use forerun_gpu::table::{
    Answers, Backend, Batch, Candidates, GpuTable, LookupMode, Operation, Status, TableError,
    TableOptions, Width,
};

/// Fills both tables to the same level, with the same keys in the same slots. Returns the present
/// keys.
fn filled(kernels: &mut GpuTable, cpu: &mut GpuTable, eighths: u64) -> Vec<u64> {
    let wanted = cpu.capacity() * eighths / 8;
    let mut next = 0;
    while cpu.size().unwrap() < wanted {
        let n = (wanted - cpu.size().unwrap()).max(4);
        let keys: Vec<u64> = (next..next + n).collect();
        next += n;
        let rows = rows_of(&keys, 0, 16);
        for table in [&mut *kernels, &mut *cpu] {
            table
                .apply(
                    Operation::InsertOrAssign,
                    &Batch::rows(&keys, &rows),
                    Answers::default(),
                )
                .unwrap();
        }
    }
    (0..next).collect()
}

/// Whether a lookup works with buckets of this width.
pub(crate) fn fits(lookup: LookupMode, width: Width) -> bool {
    lookup.name() != "pipeline" || width == Width::W128
}

fn check(kernels: &GpuTable, cpu: &GpuTable, lookup: LookupMode, keys: &[u64]) {
    let what = format!("{lookup:?}, {:?}", kernels.options());
    let n = keys.len();
    let mut slots = [vec![7; n], vec![7; n]];
    let mut status = [vec![Status::Refused; n], vec![Status::Refused; n]];
    let mut pointers = vec![7; n];
    for (which, table) in [kernels, cpu].into_iter().enumerate() {
        let answers = Answers {
            slots: Some(&mut slots[which]),
            status: Some(&mut status[which]),
            pointers: (which == 0).then_some(&mut pointers[..]),
            ..Answers::default()
        };
        table.lookup(lookup, keys, answers).unwrap();
    }
    assert_eq!(slots[0], slots[1], "{what}");
    assert_eq!(status[0], status[1], "{what}");
    let state = kernels.state();
    for (slot, pointer) in slots[0].iter().zip(pointers) {
        let expected = match slot.checked_sub(state.rows_split) {
            _ if *slot == u64::MAX => 0,
            None => state.rows + slot * state.row_stride_bytes,
            Some(beyond) => state.rows_host + beyond * state.row_stride_bytes,
        };
        assert_eq!(pointer, expected, "{what}");
    }
    // Rows and scores use another kernel.
    let mut rows = [vec![5; n * 16], vec![5; n * 16]];
    let mut scores = [vec![5; n], vec![5; n]];
    for (which, table) in [kernels, cpu].into_iter().enumerate() {
        let answers = Answers {
            rows: Some(&mut rows[which]),
            scores: Some(&mut scores[which]),
            ..Answers::default()
        };
        table.lookup(lookup, keys, answers).unwrap();
    }
    assert_eq!((&rows[0], &scores[0]), (&rows[1], &scores[1]), "{what}");
}

#[test]
fn every_lookup_finds_the_same_at_every_load() {
    let mut nth = 0;
    for width in Width::ALL {
        for candidates in [Candidates::One, Candidates::Two] {
            let options = small(width, candidates, if width == Width::W128 { 4 } else { 10 });
            for eighths in [0, 3, 5, 6, 8] {
                nth += 1;
                if !all_cases() && nth % 3 != 0 {
                    continue;
                }
                let Some(mut kernels) = on_shim(Order::OneWarp, options) else {
                    return;
                };
                let mut cpu = GpuTable::on_cpu(options).unwrap();
                let there = filled(&mut kernels, &mut cpu, eighths);
                // Erased keys leave slots that do not end a search.
                let erased: Vec<u64> = there.iter().copied().filter(|key| key % 7 == 3).collect();
                kernels.erase(&erased).unwrap();
                cpu.erase(&erased).unwrap();
                let mut keys: Vec<u64> = there.iter().copied().step_by(2).collect();
                keys.extend((0..90).map(|i| 1_000_000 + i));
                keys.extend([u64::MAX, u64::MAX - 3, 0, 0, 0]);
                for lookup in LookupMode::ALL {
                    if fits(lookup, width) {
                        check(&kernels, &cpu, lookup, &keys);
                    }
                }
            }
        }
    }
}

/// Keys whose hashes have the same low byte and therefore the same digest, found by trial.
pub(crate) fn equal_digests(table: &GpuTable, n: usize) -> Vec<u64> {
    let mut probe = GpuTable::on_cpu(*table.options()).unwrap();
    let mut keys = Vec::new();
    let mut wanted = None;
    for key in 0.. {
        probe.clear().unwrap();
        probe.insert_or_assign(&[key], &[0; 16], None).unwrap();
        let digest = probe
            .arrays()
            .unwrap()
            .0
            .into_iter()
            .find(|digest| *digest != 0);
        if *wanted.get_or_insert(digest) == digest {
            keys.push(key);
        }
        if keys.len() == n {
            break;
        }
    }
    keys
}

#[test]
fn keys_with_equal_digests_are_distinguished() {
    for width in [Width::W16, Width::W128] {
        let options = small(width, Candidates::Two, 2);
        let Some(mut kernels) = on_shim(Order::OneWarp, options) else {
            return;
        };
        let mut cpu = GpuTable::on_cpu(options).unwrap();
        let slots = cpu.capacity() as usize;
        let keys = equal_digests(&cpu, slots + 8);
        for table in [&mut kernels, &mut cpu] {
            table
                .insert_or_assign(&keys[..slots], &rows_of(&keys[..slots], 0, 16), None)
                .unwrap();
        }
        assert!(cpu.size().unwrap() as usize > slots * 9 / 10);
        for lookup in LookupMode::ALL {
            if fits(lookup, width) {
                check(&kernels, &cpu, lookup, &keys);
            }
        }
    }
}

#[test]
fn no_schedule_changes_what_is_found() {
    let options = small(Width::W128, Candidates::Two, 2);
    for seed in 0..cases(6) {
        let Some(mut kernels) = on_shim(Order::Seeded(seed), options) else {
            return;
        };
        let keys: Vec<u64> = (0..200).map(|i| i * 3).collect();
        kernels
            .insert_or_assign(&keys, &rows_of(&keys, 1, 16), None)
            .unwrap();
        let there = kernels.contains(&keys).unwrap();
        let asked: Vec<u64> = (0..90).collect();
        for lookup in LookupMode::ALL {
            let mut status = vec![Status::Refused; asked.len()];
            let answers = Answers {
                status: Some(&mut status),
                ..Answers::default()
            };
            kernels.lookup(lookup, &asked, answers).unwrap();
            for (key, status) in asked.iter().zip(status) {
                let expected = key % 3 == 0 && there[*key as usize / 3];
                assert_eq!(status == Status::Found, expected, "{lookup:?}, key {key}");
            }
        }
        let mut rows = vec![0; asked.len() * 16];
        let missed = kernels.find_missed(&asked, &mut rows).unwrap();
        let mut places: Vec<u64> = missed.positions.clone();
        places.sort_unstable();
        let expected: Vec<u64> = (0..90)
            .filter(|key| !there[*key as usize / 3] || key % 3 != 0)
            .collect();
        assert_eq!(places, expected);
        for (key, place) in missed.keys.iter().zip(&missed.positions) {
            assert_eq!(*key, asked[*place as usize]);
        }
        for key in asked.iter().filter(|key| !expected.contains(key)) {
            assert_eq!(rows[*key as usize * 16..][..16], row_of(*key, 1, 16));
        }
    }
}

#[cfg(feature = "study")]
#[test]
fn the_pipeline_requires_buckets_of_128() {
    let table = GpuTable::on_cpu(small(Width::W64, Candidates::One, 1)).unwrap();
    let refused = table.lookup(LookupMode::Pipeline, &[1], Answers::default());
    assert!(matches!(refused, Err(TableError::Lookup { width: 64 })));
}

/// Rows that stay on the device: at any address, with the bytes of missing keys unchanged, and with
/// enough keys for several parts.
#[test]
fn rows_go_from_the_device_to_the_device() {
    const LONG: u64 = 1 << 20;
    for (row_bytes, n) in [(4, 40), (12, 40), (16, 40), (160, 40), (LONG, 25)] {
        for offset in [0, 1, 4, 16] {
            if row_bytes == LONG && offset != 16 {
                continue;
            }
            let options = TableOptions::new(16, row_bytes)
                .width(Width::W16)
                .candidates(Candidates::One);
            let Some(shim) = Shim::start(Order::Seeded(row_bytes + offset)) else {
                return;
            };
            let mut table = GpuTable::on(shim.clone(), options).unwrap();
            let there = [3, 9, u64::MAX];
            table
                .insert_or_assign(&there, &rows_of(&there, 1, row_bytes), None)
                .unwrap();
            // With long rows, some are in the second part of the batch, because staging memory does
            // not hold all keys at once.
            let keys: Vec<u64> = (0..n).map(|i| if i % 8 == 7 { 9 } else { i }).collect();
            let before = vec![0xa5; (offset + n * row_bytes) as usize];
            let address = shim.array(&before);
            // SAFETY: there is space for one row per key at this offset.
            let mut missed = unsafe { table.find_missed_at(&keys, address + offset) }.unwrap();
            let mut after = before.clone();
            shim.read(address, &mut after).unwrap();
            let mut expected = before;
            let rows = &mut expected[offset as usize..];
            let mut also_missed = table.find_missed(&keys, rows).unwrap();
            assert!(after == expected, "rows of {row_bytes} at {offset}");
            missed.positions.sort_unstable();
            also_missed.positions.sort_unstable();
            assert_eq!(missed.positions, also_missed.positions);
            let hits = keys.iter().filter(|key| there.contains(key)).count();
            assert_eq!(keys.len() - missed.len(), hits);
            shim.free(address);
        }
    }
    let table = GpuTable::on_cpu(TableOptions::new(16, 4)).unwrap();
    // SAFETY: this table has no device and refuses the call.
    let refused = unsafe { table.find_missed_at(&[1], 0) }.unwrap_err();
    assert!(matches!(refused, TableError::Gpu(GpuError::NoDevice)));
}

/// By load, a table of two candidates of 128 slots that is not too full gives each of many keys a
/// thread of its own.
#[test]
fn many_keys_are_found_by_load_with_a_thread_each() {
    let options = small(Width::W128, Candidates::Two, 4);
    let Some(mut kernels) = on_shim(Order::Seeded(5), options) else {
        return;
    };
    let mut cpu = GpuTable::on_cpu(options).unwrap();
    let there = filled(&mut kernels, &mut cpu, 3);
    let present = contents(&mut kernels);
    let end = there.len() as u64 * 2;
    let asked: Vec<u64> = (0..1 << 16).map(|i| i * 7 % end).collect();
    let expected: Vec<bool> = asked.iter().map(|key| present.contains_key(key)).collect();
    assert!(kernels.contains(&asked).unwrap() == expected);
}
