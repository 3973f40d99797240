//! Merged memtables, runs and levels against one sorted list.

use std::sync::Arc;

use forerun_core::Pages;
use proptest::prelude::*;

use super::*;
use crate::Op;
use crate::cache::PageCache;
use crate::comparator::{Bytewise, Comparator, KeyOrder, ReverseBytewise};
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::memtable::{MemTable, MemTableConfig, MemoryChecks};
use crate::run::Run;
use crate::testing::runs::{cache, key, orders, run};
use crate::testing::version_list::{Held, Sorted, held};
use crate::tree::merge::Merge;
use crate::versions::{SEQUENCE_MAX, SeekSide};

#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    First,
    Last,
    Seek(u16, u64),
    SeekBefore(u16, u64),
    Next(u8),
    Prev(u8),
}

/// Keys are below this number, which makes roots of small runs leaves and those of large ones not.
pub(super) const KEYS: u16 = 700;

pub(super) fn moves() -> impl Strategy<Value = Vec<Move>> {
    let key = || 0..KEYS + 20;
    let sequence = || prop_oneof![Just(0), Just(SEQUENCE_MAX), 0_u64..2_000];
    let one = prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        5 => (key(), sequence()).prop_map(|(key, at)| Move::Seek(key, at)),
        5 => (key(), sequence()).prop_map(|(key, at)| Move::SeekBefore(key, at)),
        5 => (0_u8..20).prop_map(Move::Next),
        5 => (0_u8..20).prop_map(Move::Prev),
    ];
    prop::collection::vec(one, 1..40)
}

/// Takes steps, and calls `check` after each.
fn walk(cursor: &mut impl VersionCursor, to: Move, mut check: impl FnMut(Option<Version<'_>>)) {
    let mut steps = 1;
    match to {
        Move::First => cursor.seek_first().unwrap(),
        Move::Last => cursor.seek_last().unwrap(),
        Move::Seek(number, at) => cursor.seek(&key(number.into()), at).unwrap(),
        Move::SeekBefore(number, at) => cursor.seek_before(&key(number.into()), at).unwrap(),
        Move::Next(times) | Move::Prev(times) => steps = times,
    }
    for _ in 0..steps {
        match to {
            Move::Next(_) => cursor.next().unwrap(),
            Move::Prev(_) => cursor.prev().unwrap(),
            _ => {}
        }
        check(cursor.at());
    }
}

/// The sources of a store, and everything that is in them.
#[derive(Default)]
pub(super) struct Sources {
    pub(super) tables: Vec<MemTable>,
    pub(super) runs: Vec<Arc<Run>>,
    pub(super) levels: Vec<Vec<Arc<Run>>>,
}

impl Sources {
    pub(super) fn cursors(&self) -> Vec<SourceCursor<'_>> {
        let tables = self.tables.iter().map(MemTable::versions);
        let runs = self.runs.iter().map(|run| RunCursor::new(run));
        let levels = self.levels.iter().map(|runs| LevelCursor::new(runs));
        (tables.map(SourceCursor::Table))
            .chain(runs.map(SourceCursor::Run))
            .chain(levels.map(SourceCursor::Level))
            .collect()
    }
}

pub(super) fn memtable(order: &KeyOrder, checks: MemoryChecks, versions: &[Held]) -> MemTable {
    let comparator: Arc<dyn Comparator> = match order {
        KeyOrder::Bytewise => Arc::new(Bytewise),
        KeyOrder::Custom(_) => Arc::new(ReverseBytewise),
    };
    let config = MemTableConfig::default()
        .limit_bytes(4 << 20)
        .comparator(comparator)
        .checks(checks)
        .pages(Pages::Small);
    let table = MemTable::new(config).unwrap();
    for Held {
        key,
        sequence,
        value,
    } in versions
    {
        let op = match value {
            Some(value) => Op::Put { key, value },
            None => Op::Delete { key },
        };
        let prepared = table.prepare(std::iter::once(op)).unwrap();
        prepared.publish(*sequence);
    }
    table
}

/// Splits versions into disjoint runs of about a hundred.
pub(super) fn level(
    io: &FaultIo,
    first: u64,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
    mut versions: Vec<Held>,
) -> Vec<Arc<Run>> {
    versions.sort_by(|a, b| a.version().compare(order, &b.version()));
    let mut runs = Vec::new();
    let mut rest = &versions[..];
    while !rest.is_empty() {
        let mut end = rest.len().min(100);
        while end < rest.len() && rest[end].key == rest[end - 1].key {
            end += 1;
        }
        let number = first + runs.len() as u64;
        runs.push(run(io, "/".as_ref(), number, order, cache, &rest[..end]));
        rest = &rest[end..];
    }
    runs
}

/// Puts version `i` into the source that `to[i]` names: memtables first, then runs, then levels.
pub(super) fn sources(
    io: &FaultIo,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
    counts: (usize, usize, usize),
    versions: &[(u16, usize)],
) -> (Sources, Vec<Held>) {
    let total = counts.0 + counts.1 + counts.2;
    let mut parts = vec![Vec::new(); total];
    let mut all = Vec::new();
    for (i, (number, to)) in versions.iter().enumerate() {
        let value = format!("{i}").repeat(i % 30);
        let value = (i % 5 > 0).then_some(value.as_bytes());
        let version = held(&key((*number).into()), i as u64 + 1, value);
        if let Some(part) = parts.get_mut(to % total.max(1)) {
            part.push(version.clone());
            all.push(version);
        }
    }
    let mut sources = Sources::default();
    for (at, part) in parts.into_iter().enumerate() {
        let number = at as u64 * 100 + 1;
        if at < counts.0 {
            let checks = match at {
                0 => MemoryChecks::Off,
                _ => MemoryChecks::Paranoid,
            };
            sources.tables.push(memtable(order, checks, &part));
        } else if part.is_empty() {
        } else if at < counts.0 + counts.1 {
            let run = run(io, "/".as_ref(), number, order, cache, &part);
            sources.runs.push(run);
        } else {
            let runs = level(io, number, order, cache, part);
            sources.levels.push(runs);
        }
    }
    (sources, all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Few versions make roots that are leaves; more than eight sources do not all seek at once.
    #[test]
    fn interleaved_seeks_of_many_sources_go_where_one_sorted_list_says(
        versions in prop_oneof![
            prop::collection::vec((0..KEYS, any::<usize>()), 0..60),
            prop::collection::vec((0..KEYS, any::<usize>()), 300..2_500),
        ],
        counts in (0_usize..3, 0_usize..8, 0_usize..4),
        moves in moves(),
        frames in prop_oneof![Just(2), Just(30), Just(1_000)],
        reverse in any::<bool>(),
    ) {
        let order = &orders()[usize::from(reverse)];
        let (io, cache) = (FaultIo::new(), cache(frames));
        let (sources, all) = sources(&io, order, &cache, counts, &versions);
        let mut merge = Merge::new(order.clone(), sources.cursors()).interleaved(&cache);
        let mut plain = Sorted::new(order.clone(), all.clone());
        for &to in &moves {
            let mut expected = Vec::new();
            walk(&mut plain, to, |at| expected.push(at.map(|at| (at.key.to_vec(), at.sequence))));
            let mut expected = expected.into_iter();
            walk(&mut merge, to, |at| {
                let found = at.map(|at| (at.key.to_vec(), at.sequence));
                assert_eq!(Some(found), expected.next(), "{to:?}");
                if let Some(at) = at {
                    assert_eq!(at, all[at.sequence as usize - 1].version());
                }
            });
        }
    }
}

#[test]
fn after_a_failed_read_the_merge_has_no_position_until_the_next_seek() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let versions: Vec<_> = (0..2_000_u16)
        .map(|i| (i * 7 % KEYS, usize::from(i) % 5))
        .collect();
    let cold = cache(4);
    let (sources, all) = sources(&io, order, &cold, (1, 3, 1), &versions);
    let mut plain = Sorted::new(order.clone(), all);
    let (mut call, mut failures) = (0, 0);
    loop {
        let fault = io.calls() + call;
        io.fail_call(fault, Fault::Fail(EIO));
        let mut merge = Merge::new(order.clone(), sources.cursors()).interleaved(&cold);
        let mut failed = false;
        for number in [300, 20, 650, 410, 600] {
            let sought = match number % 20 {
                0 => merge.seek(&key(number), SEQUENCE_MAX),
                _ => merge.seek_before(&key(number), SEQUENCE_MAX),
            };
            if let Err(error) = sought {
                assert!(error.to_string().contains("cannot read"), "{error}");
                assert_eq!(merge.at(), None);
                merge.next().unwrap();
                assert_eq!(merge.at(), None);
                failed = true;
            }
        }
        if io.calls() <= fault {
            break;
        }
        merge.seek(&key(600), SEQUENCE_MAX).unwrap();
        plain.seek(&key(600), SEQUENCE_MAX).unwrap();
        assert_eq!(merge.at(), plain.at());
        failures += usize::from(failed);
        call += 1;
    }
    assert!(failures > 3, "{failures} of {call}");
}

#[test]
fn a_run_on_one_side_of_the_target_is_not_read_before_its_turn() {
    let order = &orders()[0];
    let (io, cache) = (FaultIo::new(), cache(1_000));
    let mut all = Vec::new();
    let mut sources = Sources::default();
    for part in 0..6_u64 {
        let versions: Vec<Held> = (0..100)
            .map(|i| {
                let number = part * 100 + i;
                held(&key(number as usize), number + 1, Some(b"value"))
            })
            .collect();
        all.extend(versions.iter().cloned());
        let number = part + 1;
        let run = run(&io, "/".as_ref(), number, order, &cache, &versions);
        match part {
            0..4 => sources.runs.push(run),
            4 => sources.levels.push(vec![run]),
            _ => sources.levels[0].push(run),
        }
    }
    let mut plain = Sorted::new(order.clone(), all.clone());
    let mut eager = Merge::new(order.clone(), sources.cursors());
    let mut merge = Merge::new(order.clone(), sources.cursors()).interleaved(&cache);
    let touched = |before: crate::PageCacheStats| {
        let after = cache.stats();
        after.hits + after.misses - before.hits - before.misses
    };
    for number in [0, 50, 250, 399, 450, 599, 700] {
        for side in [SeekSide::AtOrAfter, SeekSide::Before] {
            let key = key(number);
            let to = SeekTarget {
                key: &key,
                sequence: SEQUENCE_MAX,
                side,
            };
            let before = cache.stats();
            to.seek(&mut eager).unwrap();
            let (by_all, before) = (touched(before), cache.stats());
            to.seek(&mut merge).unwrap();
            let by_one = touched(before);
            to.seek(&mut plain).unwrap();
            assert_eq!(merge.at(), plain.at(), "{to:?}");
            assert_eq!(eager.at(), plain.at(), "{to:?}");
            assert!(by_one <= 3, "{by_one} pages for {to:?}, {by_all} by all");
            while plain.at().is_some() {
                let step = |cursor: &mut dyn VersionCursor| match side {
                    SeekSide::AtOrAfter => cursor.next().unwrap(),
                    SeekSide::Before => cursor.prev().unwrap(),
                };
                step(&mut merge);
                step(&mut plain);
                assert_eq!(merge.at(), plain.at());
            }
        }
    }
}

#[test]
fn a_search_behind_the_last_version_of_a_run_goes_on_in_the_next_run_of_its_level() {
    let order = &orders()[0];
    let (io, cache) = (FaultIo::new(), cache(100));
    let version = |number: u64| held(&key(number as usize), number + 500, Some(b"value"));
    let part = |numbers: std::ops::Range<u64>, file| {
        let versions: Vec<_> = numbers.map(version).collect();
        run(&io, "/".as_ref(), file, order, &cache, &versions)
    };
    let level = vec![part(0..200, 1), part(200..400, 2)];
    let also = vec![
        held(&key(0), 2, Some(b"old")),
        held(&key(399), 3, Some(b"old")),
    ];
    let others = [
        vec![],
        vec![run(&io, "/".as_ref(), 3, order, &cache, &also)],
    ];
    // Alone, and together with another search.
    for runs in others {
        let sources = Sources {
            levels: vec![level.clone()],
            runs,
            ..Sources::default()
        };
        let mut merge = Merge::new(order.clone(), sources.cursors()).interleaved(&cache);
        // Older than the only version of the first run's last key.
        merge.seek(&key(199), 10).unwrap();
        assert_eq!(merge.at(), Some(version(200).version()));
        // Newer than the only version of the second run's first key.
        merge.seek_before(&key(200), 5_000).unwrap();
        assert_eq!(merge.at(), Some(version(199).version()));
    }
}
