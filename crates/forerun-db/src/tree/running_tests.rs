//! Compactions of one keyspace that run at once.

use crate::testing::tree_fixture::{Fixture, KEYS, grown};
use crate::tree::manifest::LEVELS;
use crate::tree::pick::{Compaction, Pick, Targets, level0_begins_without};

/// Compactions that run at once have no run in common and write to no range of keys in common, and
/// only one takes from level 0.
pub(super) fn check_running(fixture: &Fixture) {
    let order = &fixture.order;
    let keys = |of: &Compaction| {
        let runs = of.upper.iter().chain(&of.lower).map(|run| run.meta());
        let least = runs.clone().map(|meta| &meta.smallest);
        let most = runs.map(|meta| &meta.largest);
        let least = least.min_by(|a, b| order.compare(a, b)).unwrap().clone();
        let most = most.max_by(|a, b| order.compare(a, b)).unwrap().clone();
        (least, most)
    };
    let running: Vec<_> = fixture.running.iter().map(|of| &of.compaction).collect();
    for (index, a) in running.iter().enumerate() {
        for b in &running[..index] {
            assert!(a.from > 0 || b.from > 0);
            let mut of_a = a.numbers();
            assert!(!of_a.any(|number| b.numbers().any(|other| other == number)));
            if a.into == b.into {
                let ((from_a, to_a), (from_b, to_b)) = (keys(a), keys(b));
                let is_apart =
                    order.compare(&to_a, &from_b).is_lt() || order.compare(&to_b, &from_a).is_lt();
                assert!(is_apart, "level {}", a.into);
            }
        }
    }
}

/// Writes every key to one of two runs of level 0 that overlap, so that they are merged and not
/// moved.
fn write_runs(fixture: &mut Fixture, value: impl Fn(u16) -> Option<usize>) {
    for start in 0..2 {
        let keys = (start..KEYS).step_by(2);
        keys.for_each(|key| fixture.write(key, value(key)));
        fixture.flush().unwrap();
    }
}

/// Begins compactions until none may begin. Returns how many of them merge runs of levels below
/// level 0.
fn begin_all(fixture: &mut Fixture) -> usize {
    while let Some(compaction) = fixture.pick() {
        fixture.begin(compaction);
        check_running(fixture);
    }
    let merges = |of: &Compaction| of.from > 0 && !of.lower.is_empty();
    let running = fixture.running.iter();
    running.filter(|of| merges(&of.compaction)).count()
}

#[test]
fn several_compactions_of_a_keyspace_run_at_once_and_end_in_any_order() {
    for seed in 0..4 {
        let mut fixture = grown(false);
        fixture.compact_all().unwrap();
        // Every run above the last level is due.
        fixture.options.level1_bytes = 1;
        write_runs(&mut fixture, |key| (key % 5 != seed).then_some(500));
        fixture.options.level0_runs = 1;
        let mut most = 0;
        let mut number = usize::from(seed);
        loop {
            most = most.max(begin_all(&mut fixture));
            if fixture.running.is_empty() {
                break;
            }
            number += 7;
            fixture.end(number % fixture.running.len()).unwrap();
            fixture.check();
        }
        assert!(most > 1, "{most} at once");
        fixture.compact_all().unwrap();
        fixture.check();
    }
}

#[test]
fn level_0_is_compacted_before_what_no_one_sees_is_dropped() {
    let mut fixture = grown(false);
    fixture.compact_all().unwrap();
    fixture.options.level1_bytes = 1 << 20;
    fixture.snapshots.push(fixture.sequence);
    write_runs(&mut fixture, |_| Some(200));
    fixture.compact_all().unwrap();
    fixture.snapshots.clear();
    let unseen = fixture.pick().unwrap();
    assert_eq!((unseen.from, unseen.into), (LEVELS - 1, LEVELS - 1));
    fixture.begin(unseen);
    assert!(fixture.pick().is_some(), "another one may begin beside it");
    write_runs(&mut fixture, |_| Some(200));
    fixture.options.level0_runs = 1;
    let begins = fixture.pick().map(|of| of.from);
    assert_eq!(begins, None, "level 0 would wait for it");
    fixture.end(0).unwrap();
    assert_eq!(fixture.pick().unwrap().from, 0);
    fixture.check();
}

#[test]
fn a_compaction_that_runs_holds_the_files_of_no_other_runs() {
    let mut fixture = grown(false);
    fixture.compact_all().unwrap();
    fixture.options.level1_bytes = 1;
    write_runs(&mut fixture, |_| Some(500));
    fixture.options.level0_runs = 1;
    assert!(fixture.compact().unwrap());
    let first = fixture.pick().unwrap();
    fixture.begin(first);
    let before = fixture.numbers();
    while let Some(compaction) = fixture.pick() {
        fixture.run(&compaction).unwrap();
    }
    assert!(before.difference(&fixture.numbers()).count() > 2);
    fixture.check();
    fixture.end(0).unwrap();
    fixture.check();
}

#[test]
fn level_0_is_compacted_before_more_runs_leave_the_level_below() {
    let mut fixture = grown(false);
    fixture.compact_all().unwrap();
    (fixture.options.level1_bytes, fixture.options.level0_runs) = (2_000, 1);
    write_runs(&mut fixture, |_| Some(300));
    assert!(fixture.compact().unwrap());
    let levels = fixture.levels();
    let base = (1..LEVELS).find(|level| levels.bytes(*level) > 0).unwrap();
    fixture.options.level1_bytes = levels.bytes(base) / 2;
    assert_eq!(Targets::new(fixture.levels(), &fixture.options).base, base);
    let of_base = fixture.levels().level(base).runs().len();
    assert!(of_base > 2, "{of_base} runs in level {base}");
    // The level below level 0 is due, and then level 0 is.
    let deeper = fixture.pick().unwrap();
    assert_eq!(deeper.from, base);
    fixture.begin(deeper);
    assert_eq!(fixture.pick().map(|of| of.from), Some(base));
    (0..KEYS).for_each(|key| fixture.write(key, Some(300)));
    fixture.flush().unwrap();
    while let Some(compaction) = fixture.pick() {
        assert!(compaction.from > base, "from {}", compaction.from);
        fixture.begin(compaction);
    }
    while !fixture.running.is_empty() {
        fixture.end(0).unwrap();
    }
    fixture.options.level1_bytes = 1 << 20;
    assert_eq!(fixture.pick().unwrap().from, 0);
    fixture.check();
}

#[test]
fn compactions_go_on_without_runs_that_cannot_be_read() {
    let (mut of_level0, mut deeper) = (0, 0);
    for seed in 0..8_u64 {
        let mut fixture = grown(seed % 2 == 1);
        fixture.options.level1_bytes = 4_000;
        for round in 0..6_u16 {
            let unreadable: Vec<u64> = fixture.numbers().into_iter().collect();
            let unreadable: Vec<u64> = unreadable
                .into_iter()
                .filter(|number| (number * 7 + seed) % 4 == 0)
                .collect();
            // Groups of runs with keys of their own, of which some overlap.
            for part in 0..4_u16 {
                let first = (part + round) % 4 * (KEYS / 4);
                let keys = (first..first + KEYS / 4).step_by(1 + usize::from(round % 3));
                keys.for_each(|key| fixture.write(key, (key % 5 != round % 5).then_some(90)));
                fixture.flush().unwrap();
            }
            while let Some(compaction) = fixture.pick_without(unreadable.clone()) {
                assert!(compaction.numbers().all(|of| !unreadable.contains(&of)));
                of_level0 += usize::from(compaction.from == 0);
                deeper += usize::from(compaction.from > 0);
                fixture.run(&compaction).unwrap();
                drop(compaction);
                fixture.check();
            }
        }
        while fixture.compact().unwrap() {}
        fixture.check();
        let levels = fixture.levels();
        assert!(levels.level(0).runs().len() < fixture.options.level0_runs);
    }
    assert!(of_level0 > 20 && deeper > 20, "{of_level0}, {deeper}");
}

#[test]
fn newer_runs_with_other_keys_leave_level_0_before_one_that_cannot_be_read() {
    let mut fixture = grown(false);
    fixture.compact_all().unwrap();
    fixture.options.level0_runs = 1;
    let ranges = [0..30, 10..40, 100..130, 110..140];
    let numbers = ranges.map(|keys| {
        let before = fixture.numbers();
        keys.for_each(|key| fixture.write(key, Some(300)));
        fixture.flush().unwrap();
        *fixture.numbers().difference(&before).next().unwrap()
    });
    let upper = |of: &Compaction| -> Vec<u64> { of.upper.iter().map(|run| run.number()).collect() };
    let [oldest, newer, apart, newest] = numbers;
    for unreadable in [oldest, newer] {
        let picked = fixture.pick_without(vec![unreadable]).unwrap();
        assert_eq!(upper(&picked), [newest, apart]);
    }
    assert!(fixture.pick_without(vec![oldest, newest]).is_none());
    let unreadable = vec![0, oldest, newest];
    let blocked = level0_begins_without(fixture.levels(), &fixture.options, unreadable);
    assert_eq!(blocked, Err(Some(oldest)));
    let all = fixture.pick().unwrap();
    assert!(upper(&all).contains(&oldest));
}

#[test]
fn a_small_run_beside_a_compaction_is_left_out_if_it_cannot_be_read() {
    let mut fixture = Fixture::new(false);
    fixture.options.run_bytes = 1 << 20;
    fixture.options.level0_runs = 1;
    for keys in [0..5, 50..55] {
        fixture.compact_all().unwrap();
        keys.for_each(|key| fixture.write(key, Some(90)));
        fixture.flush().unwrap();
    }
    let (level, beside) = fixture.levels().runs().last().unwrap();
    let beside = beside.number();
    assert!(level > 0);
    let lower = |of: Compaction| -> Vec<u64> { of.lower.iter().map(|run| run.number()).collect() };
    assert_eq!(lower(fixture.pick().unwrap()), [beside]);
    let without = fixture.pick_without(vec![beside]).unwrap();
    assert_eq!((without.from, lower(without)), (0, Vec::new()));
}

#[test]
fn a_full_compaction_takes_all_but_the_runs_that_cannot_be_read() {
    let mut fixture = Fixture::new(false);
    // Small runs of the last level with keys of their own.
    fixture.options.run_bytes = 1;
    for key in 0..40 {
        fixture.write(key, Some(300));
        fixture.flush().unwrap();
        fixture.compact_all().unwrap();
    }
    let runs = |fixture: &Fixture| fixture.levels().runs().count();
    assert_eq!(runs(&fixture), 40);
    fixture.options.run_bytes = 1 << 20;
    // Level 0 goes directly into the last level.
    fixture.options.level1_bytes = 1 << 20;
    let bad = fixture.levels().runs().nth(20).unwrap().1.number();
    // Above them, one that overlaps the bad one and one that does not, the older first.
    for key in [20, 0] {
        fixture.write(key, Some(10));
        fixture.flush().unwrap();
    }
    let existing = fixture.catalog.existing();
    let mut next = fixture.pick_full_without(existing, vec![bad]);
    while let Pick::Begins(compaction) = next {
        assert!(compaction.numbers().all(|number| number != bad));
        fixture.run(&compaction).unwrap();
        drop(compaction);
        fixture.check();
        next = fixture.pick_full_without(existing, vec![bad]);
    }
    assert!(matches!(next, Pick::Nothing), "it waits for nothing");
    assert_eq!(fixture.levels().level(0).runs().len(), 1);
    // The bad one, and one on each side of it.
    assert_eq!(runs(&fixture), 4);
}
