//! The tree against a plain map: writes, flushes, compactions and snapshots in any order, with
//! every file system call failing in turn.

use forerun_core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use proptest::prelude::*;

use crate::io::fault::{EIO, Fault};
use crate::run::{self, Run};
use crate::testing::tree_fixture::{DIR, Fixture, KEYS, check_reads, grown, open, prepare_again};
use crate::tree::catalog::run_files;
use crate::tree::manifest::LEVELS;
use crate::tree::pick::{Pick, Targets};
use crate::tree::running_tests::check_running;
use crate::{Error, Result, TreeOptions};

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<(u16, Option<usize>)>),
    Flush,
    Compact,
    Begin,
    End(prop::sample::Index),
    CompactAll,
    Snapshot,
    Release(prop::sample::Index),
    Hold,
    LetGo,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..KEYS, prop::option::weighted(0.75, 0_usize..400));
    let few = prop::collection::vec((0..KEYS, prop::option::weighted(0.75, 0_usize..9)), 1..4);
    // Ranges of keys too, so that some runs overlap few others.
    let range = (0..KEYS, 1_u16..40, 0_usize..300).prop_map(|(from, count, len)| {
        (from..(from + count).min(KEYS))
            .map(|key| (key, Some(len)))
            .collect::<Vec<_>>()
    });
    let step = prop_oneof![
        6 => prop::collection::vec(write, 1..60).prop_map(Step::Write),
        3 => range.prop_map(Step::Write),
        4 => few.prop_map(Step::Write),
        9 => Just(Step::Flush),
        4 => Just(Step::Compact),
        8 => Just(Step::Begin),
        4 => any::<prop::sample::Index>().prop_map(Step::End),
        1 => Just(Step::CompactAll),
        2 => Just(Step::Snapshot),
        2 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => Just(Step::Hold),
        1 => Just(Step::LetGo),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_reader_finds_what_was_written(
        steps in steps(),
        is_reverse in any::<bool>(),
        parts_max in 1_usize..5,
        deletions_wait in any::<bool>(),
    ) {
        let mut fixture = Fixture::new(is_reverse);
        fixture.parts_max = parts_max;
        if !deletions_wait {
            fixture.options.deletion_max_age = Some(Duration::ZERO);
        }
        for step in steps {
            match step {
                Step::Write(writes) => writes.into_iter()
                    .for_each(|(key, value)| fixture.write(key, value)),
                Step::Flush => fixture.flush().unwrap(),
                Step::Compact => drop(fixture.compact().unwrap()),
                Step::Begin => {
                    if let Some(compaction) = fixture.pick() {
                        fixture.begin(compaction);
                    }
                }
                Step::End(which) => {
                    if !fixture.running.is_empty() {
                        fixture.end(which.index(fixture.running.len())).unwrap();
                    }
                }
                Step::CompactAll => fixture.compact_all().unwrap(),
                Step::Snapshot => fixture.snapshots.push(fixture.sequence),
                Step::Release(which) => {
                    if !fixture.snapshots.is_empty() {
                        let which = which.index(fixture.snapshots.len());
                        fixture.snapshots.remove(which);
                    }
                }
                Step::Hold => fixture.readers.push(Arc::clone(fixture.levels())),
                Step::LetGo => fixture.readers.clear(),
                Step::Reopen => {
                    let io = fixture.io.crash(0);
                    fixture.reopen_on(io);
                }
            }
            fixture.check();
            check_running(&fixture);
        }
    }
}

#[test]
fn levels_come_to_their_targets_and_stay_there() {
    let mut fixture = grown(false);
    while fixture.compact().unwrap() {
        fixture.check();
    }
    let levels = fixture.levels();
    let targets = Targets::new(levels, &fixture.options);
    assert!(levels.level(0).runs().len() < fixture.options.level0_runs);
    assert!(targets.base < LEVELS - 1, "{targets:?}");
    for level in 1..LEVELS - 1 {
        assert!(
            levels.bytes(level) <= targets.bytes[level] + 1,
            "level {level}"
        );
    }
    assert!(levels.run_count() > 5);
    let limit_bytes = 3 * fixture.options.run_bytes;
    assert!(
        levels
            .runs()
            .all(|(_, run)| run.meta().file_bytes < limit_bytes)
    );
}

#[test]
fn after_a_full_compaction_there_is_one_version_a_key_and_no_deletion() {
    let mut fixture = grown(false);
    fixture.snapshots.push(fixture.sequence);
    fixture.compact_all().unwrap();
    fixture.check();
    fixture.snapshots.clear();
    for key in 0..KEYS {
        fixture.write(key, (key % 3 == 0).then_some(9));
    }
    fixture.flush().unwrap();
    fixture.compact_all().unwrap();
    fixture.check();
    let levels = fixture.levels();
    let entries: u64 = levels.runs().map(|(_, run)| run.meta().entries).sum();
    assert_eq!(entries as usize, fixture.expected(fixture.sequence).len());
    assert!(
        levels
            .runs()
            .all(|(level, run)| level == LEVELS - 1 && run.meta().deletions == 0)
    );
}

#[test]
fn a_full_compaction_ends_although_new_runs_keep_coming() {
    let mut fixture = grown(false);
    let existing = fixture.catalog.existing();
    let before = fixture.sequence;
    let mut steps = 0;
    while let Pick::Begins(compaction) = fixture.pick_full(existing) {
        steps += 1;
        assert!(steps < 100);
        fixture.run(&compaction).unwrap();
        for key in 0..KEYS / 2 {
            fixture.write((key * 13 + steps) % KEYS, Some(100));
        }
        fixture.flush().unwrap();
        while fixture.compact().unwrap() {}
    }
    fixture.check();
    let has_old = |run: &Run| run.meta().smallest_sequence <= before;
    let mut runs = fixture.levels().runs();
    assert!(runs.all(|(level, run)| level == LEVELS - 1 || !has_old(run)));
}

#[test]
fn ascending_writes_are_moved_and_not_rewritten() {
    let mut fixture = Fixture::new(false);
    for start in (0..KEYS).step_by(20) {
        (start..start + 20).for_each(|key| fixture.write(key, Some(200)));
        fixture.flush().unwrap();
        while let Some(compaction) = fixture.pick() {
            let older = compaction.older_keys(fixture.levels());
            assert!(compaction.is_move(&older));
            fixture.run(&compaction).unwrap();
            fixture.check();
        }
    }
    assert!(fixture.levels().level(0).runs().len() < 3);
}

/// Flushes a few overwritten keys at a time into a store with a level of many times their size.
/// Returns the bytes that compactions wrote, and the largest number of runs in level 0.
fn overwrite_few(fixture: &mut Fixture) -> (u64, usize) {
    let (mut written_bytes, mut most_runs) = (0, 0);
    for round in 0..60 {
        fixture.write(round % 7, Some(round.into()));
        fixture.write(KEYS - 1 - round % 5, None);
        fixture.flush().unwrap();
        while let Some(compaction) = fixture.pick() {
            let before: BTreeSet<u64> = fixture.numbers();
            fixture.run(&compaction).unwrap();
            let runs = fixture.levels().runs().map(|(_, run)| run);
            let new = runs.filter(|run| !before.contains(&run.number()));
            written_bytes += new.map(|run| run.meta().file_bytes).sum::<u64>();
        }
        most_runs = most_runs.max(fixture.levels().level(0).runs().len());
        fixture.check();
    }
    (written_bytes, most_runs)
}

#[test]
fn what_only_a_snapshot_saw_is_dropped_once_it_is_gone() {
    let mut fixture = grown(false);
    fixture.compact_all().unwrap();
    let before_bytes = fixture.levels().bytes(LEVELS - 1);
    fixture.snapshots.push(fixture.sequence);
    for key in 0..KEYS {
        fixture.write(key, (key % 3 > 0).then_some(200));
    }
    fixture.flush().unwrap();
    fixture.compact_all().unwrap();
    fixture.snapshots.push(fixture.sequence);
    fixture.check();
    assert!(fixture.levels().bytes(LEVELS - 1) > before_bytes * 3 / 2);
    assert!(!fixture.compact().unwrap(), "the snapshot still sees it");
    fixture.snapshots.remove(0);
    while fixture.compact().unwrap() {}
    fixture.check();
    let levels = fixture.levels();
    let entries: u64 = levels.runs().map(|(_, run)| run.meta().entries).sum();
    assert_eq!(entries as usize, fixture.expected(fixture.sequence).len());
    assert_eq!(levels.obsolete_from(), None);
}

#[test]
fn a_few_entries_at_a_time_are_merged_in_level_0_and_not_into_a_large_level() {
    let mut fixture = Fixture::new(false);
    fixture.options.level1_bytes = 1 << 20;
    fixture.options.run_bytes = 1 << 20;
    (0..KEYS).for_each(|key| fixture.write(key, Some(1_000)));
    fixture.flush().unwrap();
    fixture.compact_all().unwrap();
    let store_bytes = fixture.levels().bytes(LEVELS - 1);
    let (written_bytes, most_runs) = overwrite_few(&mut fixture);
    assert!(
        written_bytes < 2 * store_bytes,
        "{written_bytes} of {store_bytes}"
    );
    assert!(most_runs < fixture.options.level0_runs, "{most_runs}");
}

#[test]
fn runs_of_single_ascending_keys_do_not_stay_alone() {
    let mut fixture = Fixture::new(false);
    fixture.options = TreeOptions::default();
    let mut most = 0;
    for key in 0..KEYS {
        fixture.write(key, Some(10));
        fixture.flush().unwrap();
        if key % 2 == 0 {
            while fixture.compact().unwrap() {}
        } else if key % 20 == 1 {
            fixture.compact_all().unwrap();
        }
        most = most.max(fixture.levels().run_count());
    }
    fixture.check();
    assert!(most < 16, "{most} runs");
    fixture.compact_all().unwrap();
    assert!(fixture.levels().run_count() < 4);
    // A store that has many small runs already gets rid of them too.
    let mut fixture = Fixture::new(false);
    for key in 0..KEYS {
        fixture.options.run_bytes = 1;
        fixture.write(key, Some(10));
        fixture.flush().unwrap();
        fixture.compact_all().unwrap();
    }
    assert_eq!(fixture.levels().run_count(), usize::from(KEYS));
    fixture.options = TreeOptions::default();
    fixture.compact_all().unwrap();
    fixture.check();
    assert_eq!(fixture.levels().run_count(), 1);
}

#[test]
fn the_file_of_an_obsolete_run_goes_with_its_last_reader() {
    let mut fixture = grown(false);
    let reader = Arc::clone(fixture.levels());
    let files = || run_files(&fixture.io, Path::new(DIR)).unwrap();
    let before = files();
    fixture.compact_all().unwrap();
    let files = || run_files(&fixture.io, Path::new(DIR)).unwrap();
    assert!(before.iter().all(|number| files().contains(number)));
    let runs: Vec<Weak<Run>> = reader.runs().map(|(_, run)| Arc::downgrade(run)).collect();
    drop(reader);
    let left: Vec<u64> = runs
        .iter()
        .filter_map(Weak::upgrade)
        .map(|run| run.number())
        .collect();
    assert!(
        before
            .iter()
            .all(|number| left.contains(number) == files().contains(number))
    );
    assert!(left.len() < before.len());
}

#[test]
fn a_rate_limit_and_a_stop_are_heeded() {
    let mut fixture = grown(false);
    fixture.write(1, Some(10));
    let before = run_files(&fixture.io, Path::new(DIR)).unwrap();
    fixture.stop.store(true, Ordering::Relaxed);
    assert!(matches!(fixture.flush(), Err(Error::Closed)));
    assert!(matches!(fixture.compact_all(), Err(Error::Closed)));
    assert_eq!(run_files(&fixture.io, Path::new(DIR)).unwrap(), before);
    fixture.stop.store(false, Ordering::Relaxed);
    fixture.flush().unwrap();
    fixture.check();
}

/// Fails each call of `work` in turn, in each way. Whatever fails, reads must stay the same: in
/// this process, in one that opens the store next, and after a power loss. And a retry must
/// succeed.
fn fail_everywhere(prepare: impl Fn() -> Fixture, work: impl Fn(&mut Fixture) -> Result<()>) {
    let faults = [
        Fault::Fail(EIO),
        Fault::TornWrite(EIO),
        Fault::ShortWrite,
        Fault::PowerLoss,
    ];
    let prepared = prepare();
    for call in 0.. {
        let mut met = false;
        for fault in faults {
            let mut fixture = prepare();
            fixture.io.fail_call(fixture.io.calls() + call, fault);
            let result = work(&mut fixture);
            let Some(hit) = fixture.io.hit() else {
                result.unwrap();
                continue;
            };
            met = true;
            if fault == Fault::ShortWrite {
                result.unwrap();
            } else if result.is_ok() {
                // Leftover files are removed later, and failed read-ahead is read again.
                assert!(
                    hit.starts_with("remove") || hit.starts_with("read"),
                    "{hit}"
                );
            }
            let context = format!("{fault:?} at call {call}, {hit}");
            if fault != Fault::PowerLoss {
                check_reads(&fixture, &context);
                let mut next = prepare_again(&fixture);
                let io = fixture.io.kill();
                next.reopen_on(io);
                next.check();
                // This process continues instead.
                let mut fixture = prepare();
                fixture.io.fail_call(fixture.io.calls() + call, fault);
                let _ = work(&mut fixture);
                work(&mut fixture).unwrap_or_else(|error| panic!("again after {context}: {error}"));
                check_reads(&fixture, &context);
                let io = fixture.io.kill();
                fixture.reopen_on(io);
                fixture.check();
                assert_eq!(fixture.sequence, prepared.sequence);
            } else {
                for seed in 0..6 {
                    let mut next = prepare_again(&fixture);
                    next.reopen_on(fixture.io.crash(seed));
                    next.check();
                }
            }
        }
        if !met {
            assert!(call > 5);
            return;
        }
    }
}

#[test]
fn a_failure_at_any_call_of_a_flush_loses_nothing() {
    let mut fixture = grown(false);
    (0..50).for_each(|key| fixture.write(key * 3, (key % 4 > 0).then_some(100)));
    fail_everywhere(|| fixture.fork(), Fixture::flush);
}

#[test]
fn a_failure_at_any_call_of_a_compaction_loses_nothing() {
    let mut fixture = grown(false);
    while fixture.levels().level(0).runs().len() < 3 {
        (0..30).for_each(|key| fixture.write(key * 5, (key % 4 > 0).then_some(100)));
        fixture.flush().unwrap();
    }
    for parts_max in [1, 3] {
        let prepare = || {
            let mut fork = fixture.fork();
            fork.parts_max = parts_max;
            fork
        };
        fail_everywhere(prepare, |fixture| fixture.compact().map(drop));
    }
}

#[test]
fn runs_without_a_manifest_are_not_thrown_away() {
    let fixture = grown(false);
    let before = run_files(&fixture.io, Path::new(DIR)).unwrap();
    fixture.io.take("/db/MANIFEST");
    let opened = open(&fixture.io, &fixture.order, &fixture.cache);
    assert!(
        matches!(opened, Err(Error::CorruptFile { .. })),
        "{opened:?}"
    );
    assert_eq!(run_files(&fixture.io, Path::new(DIR)).unwrap(), before);
}

#[test]
fn a_missing_run_and_another_in_its_place_are_named() {
    let fixture = grown(false);
    let (io, levels) = (&fixture.io, fixture.levels());
    let paths: Vec<_> = levels
        .runs()
        .map(|(_, run)| run::path(Path::new(DIR), run.number()))
        .collect();
    let (first, second) = (io.read(&paths[0]).unwrap(), io.read(&paths[1]).unwrap());
    for bytes in [None, Some(second)] {
        match bytes {
            Some(bytes) => io.write(&paths[0], &bytes),
            None => io.take(&paths[0]),
        }
        match open(io, &fixture.order, &fixture.cache) {
            Err(Error::CorruptFile { path, .. }) => assert_eq!(path, paths[0]),
            other => panic!("{other:?}"),
        }
        io.write(&paths[0], &first);
    }
    open(io, &fixture.order, &fixture.cache).unwrap();
}
