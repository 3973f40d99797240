//! Moves of a merge that fail: reads with errors, comparators that panic, and caches that are too
//! small.

use std::cmp::Ordering as KeyOrdering;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forerun_core::sync::OnceLock;
use forerun_core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use proptest::prelude::*;

use super::tests::{KEYS, Move, Sources, moves, sources};
use super::*;
use crate::Error;
use crate::cache::PageCache;
use crate::comparator::{Comparator, KeyOrder};
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::testing::runs::{PAGE_BYTES, cache, key, orders, run};
use crate::testing::version_list::{Sorted, held};
use crate::tree::merge::Merge;
use crate::tree::scan_limit::Direction;
use crate::versions::SEQUENCE_MAX;

fn walk(cursor: &mut impl VersionCursor, to: Move) -> Result<()> {
    match to {
        Move::First => cursor.seek_first(),
        Move::Last => cursor.seek_last(),
        Move::Seek(number, at) => cursor.seek(&key(number.into()), at),
        Move::SeekBefore(number, at) => cursor.seek_before(&key(number.into()), at),
        Move::Next(_) => cursor.next(),
        Move::Prev(_) => cursor.prev(),
    }
}

/// Every permit to hold a page has been returned.
fn assert_permits_are_back(cache: &PageCache, frames: usize) {
    let permits: Vec<_> = std::iter::from_fn(|| cache.hold_permit()).collect();
    assert_eq!(permits.len(), frames / 16);
}

/// The direction in which a scan after this move goes on.
fn direction(to: Move) -> Direction {
    match to {
        Move::First | Move::Seek(..) | Move::Next(_) => Direction::Forward,
        Move::Last | Move::SeekBefore(..) | Move::Prev(_) => Direction::Backward,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Also with a limit, behind which the merge may have no position.
    #[test]
    fn a_move_that_fails_names_its_file_and_leaves_no_position_until_the_next_seek(
        versions in prop::collection::vec((0..KEYS, any::<usize>()), 0..2_000),
        counts in (0_usize..3, 1_usize..12, 0_usize..4),
        moves in moves(),
        faults in prop::collection::vec(prop::option::weighted(0.4, 0_u64..12), 40),
        limit in prop::option::of((any::<bool>(), any::<bool>(), 0..KEYS)),
        frames in prop_oneof![Just(2), Just(40), Just(400)],
        reverse in any::<bool>(),
    ) {
        let order = &orders()[usize::from(reverse)];
        let (io, cache) = (FaultIo::new(), cache(frames));
        let (sources, all) = sources(&io, order, &cache, counts, &versions);
        let mut merge = Merge::new(order.clone(), sources.cursors()).interleaved(&cache);
        let limit = limit.map(|(is_forward, is_included, number)| {
            let direction = if is_forward { Direction::Forward } else { Direction::Backward };
            (direction, is_included, key(number.into()))
        });
        if let Some((direction, is_included, key)) = &limit {
            let bound = if *is_included {
                Bound::Included(&key[..])
            } else {
                Bound::Excluded(&key[..])
            };
            merge.set_limit(*direction, bound);
        }
        let is_behind = |at: &Version<'_>, scan: Direction| match &limit {
            Some((direction, is_included, key)) if *direction == scan => {
                let ahead = match direction {
                    Direction::Forward => order.compare(at.key, key),
                    Direction::Backward => order.compare(key, at.key),
                };
                ahead.is_gt() || ahead.is_eq() && !is_included
            }
            _ => false,
        };
        let mut plain = Sorted::new(order.clone(), all.clone());
        // Whether the merge has lost its position, by a failure or by the limit.
        let mut is_lost = false;
        // One fault at a time.
        let mut last_fault = 0;
        for (&to, fault) in moves.iter().zip(&faults) {
            if let Some(calls) = fault
                && last_fault < io.calls()
            {
                last_fault = io.calls() + calls;
                io.fail_call(last_fault, Fault::Fail(EIO));
            }
            let times = match to {
                Move::Next(times) | Move::Prev(times) => times,
                _ => {
                    is_lost = false;
                    1
                }
            };
            for _ in 0..times {
                walk(&mut plain, to).unwrap();
                if let Err(error) = walk(&mut merge, to) {
                    let Error::Io { path, .. } = &error else {
                        panic!("another error: {error}");
                    };
                    let hit = io.hit().unwrap();
                    prop_assert!(hit.ends_with(path.to_str().unwrap()), "{} at {}", error, hit);
                    is_lost = true;
                }
                if is_lost {
                    prop_assert_eq!(merge.at(), None);
                    continue;
                }
                let expected = plain.at();
                if merge.at().is_none()
                    && expected.is_some_and(|at| is_behind(&at, direction(to)))
                {
                    is_lost = true;
                    continue;
                }
                prop_assert_eq!(merge.at(), expected, "{:?}", to);
            }
        }
        drop(merge);
        assert_permits_are_back(&cache, frames);
    }
}

/// Orders by bytes and panics at a call.
#[derive(Clone)]
struct PanicsAt {
    calls: Arc<AtomicU64>,
    at: Arc<AtomicU64>,
}

impl Comparator for PanicsAt {
    fn name(&self) -> &str {
        "test.panics-at"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> KeyOrdering {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(call != self.at.load(Ordering::Relaxed), "call {call}");
        a.cmp(b)
    }
}

#[test]
fn a_panic_in_one_of_several_searches_leaves_nothing_behind() {
    let panics = PanicsAt {
        calls: Arc::default(),
        at: Arc::new(AtomicU64::new(u64::MAX)),
    };
    let order = &KeyOrder::new(Arc::new(panics.clone()));
    for frames in [4, 64] {
        let (io, cache) = (FaultIo::new(), cache(frames));
        let versions: Vec<_> = (0..3_000_u16)
            .map(|i| (i * 7 % KEYS, usize::from(i)))
            .collect();
        let (sources, all) = sources(&io, order, &cache, (0, 10, 2), &versions);
        let mut plain = Sorted::new(order.clone(), all);
        let mut merge = Merge::new(order.clone(), sources.cursors()).interleaved(&cache);
        let mut caught = 0;
        for call in 0.. {
            let number = call * 31 % usize::from(KEYS);
            panics.calls.store(0, Ordering::Relaxed);
            panics.at.store(call as u64, Ordering::Relaxed);
            let seek = || match call % 2 {
                0 => merge.seek(&key(number), SEQUENCE_MAX),
                _ => merge.seek_before(&key(number), SEQUENCE_MAX),
            };
            let ended = catch_unwind(AssertUnwindSafe(seek));
            panics.at.store(u64::MAX, Ordering::Relaxed);
            if ended.is_ok() {
                break;
            }
            caught += 1;
            assert_eq!(merge.at(), None);
            merge.prev().unwrap();
            assert_eq!(merge.at(), None);
            let number = call * 17 % usize::from(KEYS);
            for step in 0..4 {
                for cursor in [&mut merge as &mut dyn VersionCursor, &mut plain] {
                    match step {
                        0 => cursor.seek(&key(number), SEQUENCE_MAX).unwrap(),
                        1 => cursor.next().unwrap(),
                        _ => cursor.prev().unwrap(),
                    }
                }
                assert_eq!(merge.at(), plain.at(), "after call {call}");
            }
        }
        assert!(caught > 60, "{caught} calls");
        drop(merge);
        assert_permits_are_back(&cache, frames);
    }
}

/// Orders by bytes and looks at the memory of a cache at each call.
#[derive(Default)]
struct Watch {
    cache: OnceLock<Arc<PageCache>>,
    largest_bytes: AtomicUsize,
}

impl Comparator for Watch {
    fn name(&self) -> &str {
        "test.watch"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> KeyOrdering {
        if let Some(cache) = self.cache.get() {
            let used_bytes = cache.stats().used_bytes;
            self.largest_bytes.fetch_max(used_bytes, Ordering::Relaxed);
        }
        a.cmp(b)
    }
}

#[test]
fn searches_that_overlap_hold_few_pages_that_are_too_large_for_the_cache() {
    const LARGE: usize = 1 << 20;
    const RUNS: usize = 40;
    let watch = Arc::new(Watch::default());
    let order = &KeyOrder::new(Arc::clone(&watch) as Arc<dyn Comparator>);
    let (io, cache) = (FaultIo::new(), cache(64));
    let runs = (0..RUNS).map(|number| {
        let named = |letter: char| format!("{letter}{number:02}").into_bytes();
        let versions = [
            held(&named('a'), 1, Some(&[1; PAGE_BYTES])),
            held(&named('m'), 1, Some(&[number as u8; LARGE])),
            held(&named('z'), 1, Some(&[3; PAGE_BYTES])),
        ];
        run(
            &io,
            "/".as_ref(),
            number as u64 + 1,
            order,
            &cache,
            &versions,
        )
    });
    let sources = Sources {
        runs: runs.collect(),
        ..Sources::default()
    };
    assert!(watch.cache.set(Arc::clone(&cache)).is_ok());
    let mut merge = Merge::new(order.clone(), sources.cursors()).interleaved(&cache);
    // Each search comes to the leaf of the large value.
    merge.seek_before(b"n", SEQUENCE_MAX).unwrap();
    for number in (0..RUNS).rev() {
        let at = merge.at().unwrap();
        assert_eq!(at.key, format!("m{number:02}").as_bytes());
        assert!(at.value.len() == LARGE && at.value[LARGE - 1] == number as u8);
        merge.prev().unwrap();
    }
    let largest_bytes = watch.largest_bytes.load(Ordering::Relaxed);
    assert!(
        (LARGE..RUNS / 2 * LARGE).contains(&largest_bytes),
        "{largest_bytes} bytes"
    );
}

#[test]
fn no_search_begins_after_one_has_failed() {
    const RUNS: u64 = 30;
    let order = &orders()[0];
    let (io, cache) = (FaultIo::new(), cache(1_000));
    let runs = (0..RUNS).map(|number| {
        let version = |at: u64| {
            let sequence = 1 + number * 1_000 + at;
            held(
                &key((at * RUNS + number) as usize),
                sequence,
                Some(&[7; 90]),
            )
        };
        let versions: Vec<_> = (0..200).map(version).collect();
        run(&io, "/".as_ref(), number + 1, order, &cache, &versions)
    });
    let sources = Sources {
        runs: runs.collect(),
        ..Sources::default()
    };
    let mut merge = Merge::new(order.clone(), sources.cursors()).interleaved(&cache);
    let before = io.calls();
    io.fail_call(before, Fault::Fail(EIO));
    let failed = merge.seek(&key(2_500), SEQUENCE_MAX).unwrap_err();
    assert!(matches!(failed, Error::Io { .. }), "{failed}");
    let calls = io.calls() - before;
    assert!(calls < RUNS / 2, "{calls} reads");
    merge.seek(&key(2_500), SEQUENCE_MAX).unwrap();
    assert_eq!(merge.at().unwrap().key, key(2_500));
    assert!(io.calls() - before > RUNS, "every run is searched");
}
