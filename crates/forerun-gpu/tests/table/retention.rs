//! Tests which entries a table keeps, and how full it gets before it evicts any.

use crate::{Order, all_cases, contents, on_shim, rows_of};
use forerun_gpu::table::{
    Answers, Batch, Candidates, GpuEvictStrategy, GpuTable, Operation, Status, TableOptions, Width,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

fn kept_of_the_best(table: &mut GpuTable, rounds: usize, seed: u64) -> f64 {
    let mut random = SmallRng::seed_from_u64(seed);
    let capacity = table.capacity() as usize;
    let mut all: Vec<(u64, u64)> = Vec::new();
    for _ in 0..rounds {
        let keys: Vec<u64> = (0..capacity / 8).map(|_| random.random()).collect();
        let scores: Vec<u64> = keys.iter().map(|_| random.random()).collect();
        let rows = rows_of(&keys, 0, table.options().row_bytes);
        table
            .apply(
                Operation::InsertOrAssign,
                &Batch::rows(&keys, &rows).with_scores(&scores),
                Answers::default(),
            )
            .unwrap();
        all.extend(scores.into_iter().zip(keys));
    }
    all.sort_unstable_by(|a, b| b.cmp(a));
    let best: BTreeSet<u64> = all[..capacity].iter().map(|(_, key)| *key).collect();
    let kept = contents(table);
    assert_eq!(kept.len(), capacity, "the table is full");
    kept.keys().filter(|key| best.contains(key)).count() as f64 / capacity as f64
}

fn options(slots: u64) -> TableOptions {
    TableOptions::new(slots, 8)
        .candidates(Candidates::Two)
        .evict_strategy(GpuEvictStrategy::Customized)
}

#[test]
fn two_candidates_keep_the_best_over_128_rounds() {
    let mut table = GpuTable::on_cpu(options(1 << 12)).unwrap();
    let kept = kept_of_the_best(&mut table, 128, 1);
    assert!(kept >= 0.99, "{kept}");
}

#[test]
fn one_candidate_keeps_most_of_the_best_over_128_rounds() {
    for (width, least) in [(Width::W64, 0.94), (Width::W128, 0.96)] {
        let options = options(1 << 12).width(width).candidates(Candidates::One);
        let mut table = GpuTable::on_cpu(options).unwrap();
        let kept = kept_of_the_best(&mut table, 128, 1);
        assert!(kept >= least, "{width:?}: {kept}");
    }
}

#[test]
fn the_kernels_keep_the_best_as_well() {
    let Some(mut table) = on_shim(Order::Seeded(1), options(1 << 9)) else {
        return;
    };
    let rounds = if all_cases() { 128 } else { 40 };
    let kept = kept_of_the_best(&mut table, rounds, 7);
    assert!(kept >= 0.99, "{kept}");
}

#[test]
fn nothing_is_evicted_before_98_of_100_slots_are_taken() {
    let first = |width, candidates| {
        let options = options(1 << 17)
            .width(width)
            .candidates(candidates)
            .row_bytes(0);
        let mut table = GpuTable::on_cpu(options).unwrap();
        let mut random = SmallRng::seed_from_u64(5);
        loop {
            let key = [random.random()];
            let status = table.insert_or_assign(&key, &[], None).unwrap();
            if status[0] != Status::Inserted {
                return table.load_factor().unwrap();
            }
        }
    };
    assert!(first(Width::W128, Candidates::Two) >= 0.98);
    assert!(first(Width::W64, Candidates::Two) >= 0.95);
    assert!(first(Width::W128, Candidates::One) < 0.85);
}

#[test]
fn a_table_grows_before_a_bucket_is_full() {
    for width in Width::ALL {
        for candidates in [Candidates::One, Candidates::Two] {
            let options = options(1 << 10)
                .width(width)
                .candidates(candidates)
                .row_bytes(0)
                .max_capacity(1 << 22);
            let mut table = GpuTable::on_cpu(options).unwrap();
            let mut random = SmallRng::seed_from_u64(11);
            let mut inserted = 0;
            while table.capacity() < 1 << 18 {
                let keys: Vec<u64> = (0..500).map(|_| random.random()).collect();
                let status = table.insert_or_assign(&keys, &[], None).unwrap();
                assert!(
                    status.iter().all(|status| *status == Status::Inserted),
                    "{width:?} {candidates:?} at {inserted}"
                );
                inserted += keys.len() as u64;
            }
            assert_eq!(table.size().unwrap(), inserted, "{width:?} {candidates:?}");
        }
    }
}
