//! Kernels of several streams at the same time: a reader returns whole rows, old or new.

use crate::lookups::equal_digests;
use crate::{Order, Shim, cases, contents, crowd_around_zero, homes, row_of, rows_of, small};
use forerun_gpu::table::params::{
    ABSENT_INSERT, FOUND_ASSIGN_ROW, FOUND_ERASE, FOUND_SCORE, TableOp,
};
use forerun_gpu::table::{Answers, Backend, Candidates, GpuTable, LookupMode, Status, Width};
use std::collections::BTreeSet;
use std::sync::Arc;

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn read(shim: &Shim, address: u64, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    shim.read(address, &mut all).unwrap();
    all
}

fn names(width: Width) -> (String, String) {
    let slots = width.slots();
    (
        format!("table_write_w{slots}"),
        format!("table_find_rows_w{slots}"),
    )
}

/// Permanent keys are found with one of their rows, never with a mixture. Other keys are inserted
/// and removed.
#[test]
fn a_find_with_concurrent_writers_gives_a_whole_row_of_its_key() {
    let mut changed = 0;
    for seed in 0..cases(40) {
        let width = Width::ALL[seed as usize % 4];
        let mut options = small(width, Candidates::Two, 2);
        options.row_bytes = [48, 20, 6][seed as usize % 3];
        let row_bytes = options.row_bytes;
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let shim: Arc<Shim> = shim;
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        // The table is full of scores that new entries beat, except for the permanent keys.
        let stay: Vec<u64> = (0..6).collect();
        let rest: Vec<u64> = (100..400).collect();
        table
            .insert_or_assign(&stay, &rows_of(&stay, 0, row_bytes), Some(&[1000; 6]))
            .unwrap();
        table
            .insert_or_assign(&rest, &rows_of(&rest, 0, row_bytes), Some(&[1; 300]))
            .unwrap();

        let mut writes: Vec<u64> = (500..524).collect();
        writes.extend(&stay);
        writes.extend(&stay);
        let scores = vec![1000; writes.len()];
        let write = TableOp {
            table: *table.state(),
            count: writes.len() as u64,
            keys: shim.array(&bytes_of(&writes)),
            rows_in: shim.array(&rows_of(&writes, 1, row_bytes)),
            scores_in: shim.array(&bytes_of(&scores)),
            actions: FOUND_ASSIGN_ROW | FOUND_SCORE | ABSENT_INSERT,
            ..TableOp::default()
        };
        let gone: Vec<u64> = (100..116).collect();
        let erase = TableOp {
            table: *table.state(),
            count: gone.len() as u64,
            keys: shim.array(&bytes_of(&gone)),
            actions: FOUND_ERASE,
            ..TableOp::default()
        };
        let mut asked: Vec<u64> = stay.repeat(5);
        asked.extend(510..520);
        asked.extend(100..110);
        let find = TableOp {
            table: *table.state(),
            count: asked.len() as u64,
            keys: shim.array(&bytes_of(&asked)),
            rows_out: shim.array(&vec![0; asked.len() * row_bytes as usize]),
            status_out: shim.array(&vec![9; asked.len()]),
            concurrent_writers: 1,
            ..TableOp::default()
        };
        let (writer, finder) = names(width);
        let kernels = [
            (&*writer, 1, write),
            (&*finder, 2, find),
            (&*writer, 1, erase),
        ];
        shim.beside(32, seed, &kernels);

        let rows = read(&shim, find.rows_out, asked.len() * row_bytes as usize);
        let status = read(&shim, find.status_out, asked.len());
        for (i, key) in asked.iter().enumerate() {
            let row = &rows[i * row_bytes as usize..][..row_bytes as usize];
            let found = status[i] == Status::Found as u8;
            assert!(found || status[i] == Status::Absent as u8);
            let (old, new) = (row_of(*key, 0, row_bytes), row_of(*key, 1, row_bytes));
            assert!(
                !found || row == old || row == new,
                "seed {seed}: key {key} has a row of no time"
            );
            assert!(
                found || *key >= 6,
                "seed {seed}: key {key} was there all the time"
            );
            changed += u32::from(found && row == new);
        }
        let all = contents(&mut table);
        stay.iter()
            .for_each(|key| assert_eq!(all[key].1, row_of(*key, 1, row_bytes)));
        gone.iter().for_each(|key| assert!(!all.contains_key(key)));
    }
    assert!(
        changed > 0,
        "no find ever came after a writer: nothing was tested"
    );
}

/// Where the key of a race is.
#[derive(Clone, Copy)]
enum Lives {
    /// In its only candidate.
    AtHome,
    /// In its second candidate. The version of the first one is greater by this number.
    InSpill { home_ahead: u32 },
}

/// Inserts key 0 into its second candidate.
fn insert_into_spill(shim: &Shim, table: &mut GpuTable, row: &[u8], home_ahead: u32) {
    let options = *table.options();
    let crowd = crowd_around_zero(options);
    let rows = rows_of(&crowd, 0, options.row_bytes);
    table.insert_or_assign(&crowd, &rows, None).unwrap();
    table.insert_or_assign(&[0], row, None).unwrap();
    let mut slots = [0];
    let answers = Answers {
        slots: Some(&mut slots),
        ..Answers::default()
    };
    table.lookup(LookupMode::ByLoad, &[0], answers).unwrap();
    let spill = slots[0] / u64::from(options.width.slots());
    let (_, home) = homes(options).next().unwrap();
    assert_ne!(spill, home);
    let word_at = |bucket: u64| table.state().words + bucket * 4;
    let word = |bucket: u64| {
        let bytes = read(shim, word_at(bucket), 4);
        u32::from_ne_bytes(bytes.try_into().unwrap())
    };
    let version = (word(spill) >> 3) + home_ahead;
    let home_word = version << 3 | (word(home) & 7);
    shim.write(word_at(home), &home_word.to_ne_bytes()).unwrap();
}

/// One key is written, and erased if `erased`, while other streams look it up. All parts of a row
/// that is found come from one write, whichever lanes copied them. A row that is absent is
/// untouched, or zeros if the key was removed during the lookup.
fn race_for_one_key(erased: bool, lives: Lives) {
    // Dense lookups often copy a row while it is written. Sparse ones seldom wait for its lock, so
    // a warp soon takes its next keys, without locks.
    let asked: Vec<u64> = match lives {
        Lives::AtHome => (0..640)
            .map(|i| if i % 16 == 3 { 0 } else { 1 << 20 | i })
            .collect(),
        Lives::InSpill { .. } => vec![0; 48],
    };
    let lookups = asked.len();
    let (mut changed, mut absent, mut zeroed) = (BTreeSet::new(), 0, 0);
    for seed in 0..cases(60) {
        let width = Width::ALL[3 - seed as usize % 2];
        let mut options = match lives {
            Lives::AtHome => small(width, Candidates::One, 1),
            Lives::InSpill { .. } => small(width, Candidates::Two, 4),
        };
        options.row_bytes = [128, 64, 36, 18][seed as usize % 4];
        let row_bytes = options.row_bytes as usize;
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let first = row_of(0, 0, options.row_bytes);
        match lives {
            Lives::AtHome => drop(table.insert_or_assign(&[0], &first, None).unwrap()),
            Lives::InSpill { home_ahead } => {
                insert_into_spill(&shim, &mut table, &first, home_ahead);
            }
        }
        let op = |keys: usize, actions: u32| TableOp {
            table: *table.state(),
            count: keys as u64,
            keys: shim.array(&vec![0; keys * 8]),
            actions,
            ..TableOp::default()
        };
        let rows: Vec<u8> = (1..33)
            .flat_map(|stamp| row_of(0, stamp, options.row_bytes))
            .collect();
        let write = TableOp {
            rows_in: shim.array(&rows),
            ..op(32, FOUND_ASSIGN_ROW | ABSENT_INSERT)
        };
        let erase = op(if erased { 16 } else { 0 }, FOUND_ERASE);
        let find = TableOp {
            keys: shim.array(&bytes_of(&asked)),
            rows_out: shim.array(&vec![7; lookups * row_bytes]),
            scores_out: shim.array(&vec![7; lookups * 8]),
            status_out: shim.array(&vec![9; lookups]),
            concurrent_writers: 1,
            ..op(lookups, 0)
        };
        let (writer, finder) = names(width);
        let kernels = [
            (&*writer, 1, write),
            (&*finder, 2, find),
            (&*writer, 1, erase),
        ];
        shim.beside(32, seed, &kernels);
        let (rows, scores, status) = (
            read(&shim, find.rows_out, lookups * row_bytes),
            read(&shim, find.scores_out, lookups * 8),
            read(&shim, find.status_out, lookups),
        );
        for (i, row) in rows.chunks_exact(row_bytes).enumerate() {
            let score = &scores[i * 8..][..8];
            if asked[i] != 0 {
                assert_eq!(status[i], Status::Absent as u8);
                assert!(row.iter().chain(score).all(|byte| *byte == 7));
                continue;
            }
            if status[i] == Status::Found as u8 {
                let stamp = (0..33).find(|stamp| *row == row_of(0, *stamp, options.row_bytes));
                assert!(stamp.is_some(), "seed {seed}: a mixed row {row:?}");
                assert_eq!(score, [0; 8]);
                changed.insert(stamp);
            } else {
                let same = [0, 7]
                    .into_iter()
                    .find(|byte| row.iter().all(|b| b == byte));
                assert!(same.is_some(), "seed {seed}: absent, with {row:?}");
                assert!(score == [0; 8] || score == [7; 8]);
                absent += 1;
                zeroed += u32::from(same == Some(0));
            }
        }
        contents(&mut table);
    }
    assert!(changed.len() > 10, "few rows were seen: {changed:?}");
    assert_eq!(absent > 0 && zeroed > 0, erased, "{absent}, {zeroed}");
}

#[test]
fn a_row_is_of_one_time_whichever_lanes_copied_it() {
    race_for_one_key(false, Lives::AtHome);
}

/// The versions of both candidates count each write of the key. A lookup must compare that of the
/// bucket in which it has found the key with an earlier one of the same bucket.
#[test]
fn a_row_in_a_spill_bucket_is_of_one_time() {
    race_for_one_key(false, Lives::InSpill { home_ahead: 0 });
    race_for_one_key(false, Lives::InSpill { home_ahead: 1 });
}

#[test]
fn an_absent_row_is_untouched_or_zeros() {
    race_for_one_key(true, Lives::AtHome);
    race_for_one_key(true, Lives::InSpill { home_ahead: 0 });
}

/// Slots get keys with the digests of the keys that were erased there. A search that sees the new
/// digest also sees the new key.
#[test]
fn an_erased_key_is_not_found_in_the_slot_of_a_key_with_its_digest() {
    let keys = equal_digests(
        &GpuTable::on_cpu(small(Width::W16, Candidates::One, 1)).unwrap(),
        16,
    );
    let (old, new) = keys.split_at(8);
    let (mut found, mut absent) = (0, 0);
    for seed in 0..cases(64) {
        let width = Width::ALL[seed as usize / 4 % 4];
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let options = small(width, Candidates::One, 1);
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        table
            .insert_or_assign(old, &rows_of(old, 0, 16), None)
            .unwrap();
        assert_eq!(table.erase(old).unwrap(), [Status::Found; 8]);
        let write = TableOp {
            table: *table.state(),
            count: 8,
            keys: shim.array(&bytes_of(new)),
            rows_in: shim.array(&rows_of(new, 1, 16)),
            actions: ABSENT_INSERT,
            ..TableOp::default()
        };
        // Threads search much faster than tiles and the writer.
        let asked = [keys.repeat(16), keys.repeat(256)];
        let finds = asked.each_ref().map(|asked| TableOp {
            table: *table.state(),
            count: asked.len() as u64,
            keys: shim.array(&bytes_of(asked)),
            status_out: shim.array(&vec![9; asked.len()]),
            concurrent_writers: 1,
            ..TableOp::default()
        });
        let (writer, _) = names(width);
        let slots = format!("table_find_slots_w{}", width.slots());
        let kernels = [
            (&*slots, 1, finds[0]),
            (&*writer, 1, write),
            ("table_find_thread", 1, finds[1]),
        ];
        shim.beside(32, seed, &kernels);
        for (asked, find) in asked.iter().zip(finds) {
            let status = read(&shim, find.status_out, asked.len());
            for (key, status) in asked.iter().zip(status) {
                let is_found = status == Status::Found as u8;
                assert!(
                    !is_found || new.contains(key),
                    "seed {seed}, {} searches: key {key} was erased before",
                    asked.len()
                );
                if new.contains(key) {
                    found += u32::from(is_found);
                    absent += u32::from(!is_found);
                }
            }
        }
        assert_eq!(contents(&mut table).len(), 8);
    }
    assert!(
        found > 0 && absent > 0,
        "{found}, {absent}: no search ran beside the writer"
    );
}

/// The table stays consistent after concurrent inserts, erases and searches for slots, and after a
/// clear that runs concurrently with erases and searches.
#[test]
fn concurrent_operations_leave_the_table_consistent() {
    for seed in 0..cases(24) {
        let width = Width::ALL[seed as usize % 4];
        let options = small(
            width,
            if seed % 3 == 0 {
                Candidates::One
            } else {
                Candidates::Two
            },
            2,
        );
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let keys: Vec<u64> = (0..150).collect();
        table
            .insert_or_assign(&keys, &rows_of(&keys, 0, 16), None)
            .unwrap();
        let op = |keys: Vec<u64>, actions: u32| TableOp {
            table: *table.state(),
            count: keys.len() as u64,
            keys: shim.array(&bytes_of(&keys)),
            rows_in: shim.array(&rows_of(&keys, 1, 16)),
            slots_out: shim.array(&vec![0; keys.len() * 8]),
            actions,
            ..TableOp::default()
        };
        let insert = FOUND_ASSIGN_ROW | ABSENT_INSERT;
        let (first, second) = (
            op((0..60).collect(), insert),
            op((30..90).collect(), insert),
        );
        let erase = op((40..80).rev().collect(), FOUND_ERASE);
        let find = op((0..100).collect(), 0);
        let slots = format!("table_find_slots_w{}", width.slots());
        let (writer, _) = names(width);
        let mut kernels = vec![
            (&*writer, 1, erase),
            (&*slots, 1, find),
            ("table_find_thread", 1, find),
        ];
        if seed % 4 == 0 {
            kernels.push(("table_clear", 1, erase));
        } else {
            kernels.extend([(&*writer, 1, first), (&*writer, 1, second)]);
        }
        shim.beside(32, seed, &kernels);
        if seed % 4 == 0 {
            assert_eq!(table.size().unwrap(), 0);
        }
        for (key, (_, row)) in contents(&mut table) {
            let whole = row == row_of(key, 0, 16) || row == row_of(key, 1, 16);
            assert!(whole, "seed {seed}: key {key}");
        }
        // Every entry is where a search finds it.
        let there: Vec<u64> = contents(&mut table).into_keys().collect();
        assert!(
            table
                .contains(&there)
                .unwrap()
                .into_iter()
                .all(|found| found)
        );
    }
}
