use super::super::contender::tests::Map;
use super::super::contender::{FIND_BATCH, GET};
use super::super::run_turn::UpdateKind;
use super::super::sweep::Operation;
use super::*;
use forerun_core::Pages;
use forerun_core::arch::Isa;
use forerun_measure::progress::Progress;
use std::time::Duration;

fn sweep() -> Sweep {
    Sweep {
        sizes: vec![16 << 10],
        load_factors: vec![0.4, 0.8],
        hit_rates: vec![1.0, 0.5],
        threads: vec![1, 2],
        isas: vec![Isa::Scalar],
        ..Sweep::cell()
    }
}

/// The rows of a sweep over three maps, one of which fills only half its slots, and the steps of
/// the progress bar.
fn measure(sweep: &Sweep, memory_bytes: usize) -> Result<Vec<HashRow>> {
    let probe = Probe::new(1 << 20, Pages::Small)?;
    let bar = Progress::hidden().steps("", 0);
    let bench = Bench {
        study: Some(1),
        plan: Plan::new(2, Duration::from_micros(100)),
        cores: Cores::available(),
        probe: &probe,
        in_flight: BTreeMap::new(),
        memory_bytes,
        stream_len: 4096,
        peer: Some(("test".into(), GET.into())),
        bar: &bar,
    };
    let half = Map {
        limit: 0.5,
        ..Map::new("half")
    };
    let maps = [Map::new("one"), Map::new(MEMC3), half];
    let all = maps.each_ref().map(|map| map as &dyn Contender<u64, u64>);
    check_names(sweep, &all)?;
    let steps = match sweep.operation {
        Operation::Lookup => bench.steps(sweep, &all),
        Operation::Write => bench.write_steps(sweep, &all),
    };
    bar.set_total(steps);
    let mut rows = Vec::new();
    let mut emit = |new| {
        rows.extend::<Vec<HashRow>>(new);
        Ok(())
    };
    match sweep.operation {
        Operation::Lookup => bench.measure(sweep, &all, &mut emit)?,
        Operation::Write => bench.measure_writes(sweep, &all, &mut emit)?,
    }
    assert_eq!(bar.position(), steps);
    Ok(rows)
}

#[test]
fn every_cell_has_one_row_per_variant_and_full_tables_have_no_rates() {
    for memory_bytes in [usize::MAX, 0] {
        let rows = measure(&sweep(), memory_bytes).unwrap();
        let full = rows.iter().filter(|row| !row.is_measured());
        assert_eq!(full.clone().count(), 4);
        for row in full {
            assert_eq!((row.design.as_str(), row.load_factor), ("half", 0.8));
            assert_eq!((row.full_at, row.common.keys_per_second), (Some(0.5), 0.0));
        }
        // Two load factors, four cells, three maps, two strategies, minus the full ones.
        assert_eq!(rows.len() - 4, (2 * 3 - 1) * 4 * 2);
        for row in rows.iter().filter(|row| row.is_measured()) {
            let common = &row.common;
            assert!(common.keys_per_second > 0.0 && common.ns_per_key.is_finite());
            assert!(common.roofline_share.is_some_and(|share| share > 0.0));
            assert_eq!(row.lines_per_lookup, Some(1.0));
            assert_eq!(row.speedup_vs_scalar, Some(1.0));
            assert_eq!(row.speedup_vs_one_thread.is_some(), common.threads == 2);
            assert!(row.speedup_vs_memc3.is_some() && common.speedup_vs_single.is_some());
            let bytes = row.bytes_per_entry.unwrap_or(0.0);
            assert!((bytes * row.load_factor - 16.0).abs() < 0.1);
            if row.design == MEMC3 {
                assert_eq!(row.speedup_vs_memc3, Some(1.0));
            }
            if common.strategy == GET {
                assert_eq!(common.speedup_vs_single, Some(1.0));
            }
        }
    }
}

#[test]
fn reads_beside_updates_are_compared_with_quiet_ones() {
    let sweep = Sweep {
        load_factors: vec![0.4],
        hit_rates: vec![0.5],
        threads: vec![1],
        updates: vec![0.0, 0.5],
        update_kinds: vec![UpdateKind::Upsert, UpdateKind::Churn],
        strategies: vec![FIND_BATCH.into()],
        ..sweep()
    };
    let rows = measure(&sweep, usize::MAX).unwrap();
    assert_eq!(rows.len(), 3 * 3);
    for row in rows {
        let busy = row.updates > 0.0;
        assert_eq!(row.share_of_quiet.is_some(), busy);
        assert_eq!(row.common.inserts_per_second.is_some(), busy);
        assert_eq!(row.update_kind.is_some(), busy);
    }
}

#[test]
fn writes_have_a_row_for_each_operation_batch_and_map() {
    let sweep = Sweep {
        operation: Operation::Write,
        batches: vec![1, 8],
        load_factors: vec![0.4],
        ..sweep()
    };
    let rows = measure(&sweep, usize::MAX).unwrap();
    assert_eq!(rows.len(), 2 * 2 * 3);
    for row in &rows {
        assert!(["insert", "remove"].contains(&&*row.common.case));
        assert!(row.common.keys_per_second > 0.0 && row.common.hit_rate.is_none());
        assert!(row.common.roofline_share.is_some_and(|share| share > 0.0));
        assert!(row.common.speedup_vs_single.is_some() && row.speedup_vs_memc3.is_some());
        if row.common.batch == 1 {
            assert_eq!(row.common.speedup_vs_single, Some(1.0));
        }
    }
    // A map with half the slots is full before it is written to.
    let fuller = Sweep {
        load_factors: vec![0.8],
        ..sweep
    };
    let rows = measure(&fuller, 0).unwrap();
    let full: Vec<&HashRow> = rows.iter().filter(|row| !row.is_measured()).collect();
    assert_eq!((rows.len(), full.len()), (2 * 2 * 3, 2 * 2));
    assert!(full.iter().all(|row| row.design == "half"));
    let large = Sweep {
        batches: vec![512],
        ..fuller
    };
    let error = measure(&large, usize::MAX).unwrap_err();
    assert!(format!("{error:#}").contains("an eighth"), "{error:#}");
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let error_of = |change: &dyn Fn(&mut Sweep)| {
        let mut sweep = sweep();
        change(&mut sweep);
        format!("{:#}", measure(&sweep, usize::MAX).unwrap_err())
    };
    let design = error_of(&|sweep| sweep.designs = vec!["robin".into()]);
    assert!(
        design.contains("\"robin\"") && design.contains("half"),
        "{design}"
    );
    let strategy = error_of(&|sweep| sweep.strategies = vec!["guess".into()]);
    assert!(
        strategy.contains("\"guess\"") && strategy.contains(FIND_BATCH),
        "{strategy}"
    );
}
