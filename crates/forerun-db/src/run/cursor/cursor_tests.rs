//! Cursors against a sorted list.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::cache::{self, PageCache};
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::run::level_cursor::LevelCursor;
use crate::testing::runs::{cache, key, orders, run, sorted};
use crate::testing::version_list::{Held, all_of, held};

#[derive(Clone, Copy, Debug)]
enum Go {
    First,
    Last,
    Seek(u16, u64),
    Before(u16, u64),
    Next(u8),
    Prev(u8),
}

fn go() -> impl Strategy<Value = Go> {
    prop_oneof![
        1 => Just(Go::First),
        1 => Just(Go::Last),
        4 => (0_u16..1_000, 0_u64..2_000).prop_map(|(key, at)| Go::Seek(key, at)),
        4 => (0_u16..1_000, 0_u64..2_000).prop_map(|(key, at)| Go::Before(key, at)),
        6 => any::<u8>().prop_map(Go::Next),
        6 => any::<u8>().prop_map(Go::Prev),
    ]
}

/// Moves a cursor and an index into the sorted list by the same steps.
fn walk(cursor: &mut dyn VersionCursor, order: &KeyOrder, list: &[Held], steps: &[Go]) {
    let rank = |number: u16, sequence: u64| {
        let target = held(&key(number.into()), sequence, None);
        list.partition_point(|held| held.version().compare(order, &target.version()).is_lt())
    };
    let check = |cursor: &dyn VersionCursor, at: Option<usize>| {
        let before = at.and_then(|at| list.get(at.checked_sub(1)?));
        let is_newest = at.and_then(|at| list.get(at)).is_some_and(|held| {
            before.is_none_or(|before| order.compare(&before.key, &held.key).is_ne())
        });
        assert!(is_newest || !cursor.is_newest_of_key());
        assert_eq!(
            cursor.at(),
            at.and_then(|at| list.get(at)).map(Held::version)
        );
    };
    let mut at = None;
    for &step in steps {
        match step {
            Go::First => {
                cursor.seek_first().unwrap();
                at = Some(0);
            }
            Go::Last => {
                cursor.seek_last().unwrap();
                at = list.len().checked_sub(1);
            }
            Go::Seek(number, sequence) => {
                cursor.seek(&key(number.into()), sequence).unwrap();
                at = Some(rank(number, sequence));
            }
            Go::Before(number, sequence) => {
                cursor.seek_before(&key(number.into()), sequence).unwrap();
                at = rank(number, sequence).checked_sub(1);
            }
            Go::Next(times) => {
                for _ in 0..times {
                    cursor.next().unwrap();
                    at = at.filter(|at| *at < list.len()).map(|at| at + 1);
                    check(cursor, at);
                }
            }
            Go::Prev(times) => {
                for _ in 0..times {
                    cursor.prev().unwrap();
                    at = at
                        .filter(|at| *at < list.len())
                        .and_then(|at| at.checked_sub(1));
                    check(cursor, at);
                }
            }
        }
        at = at.filter(|at| *at < list.len());
        check(cursor, at);
    }
}

fn versions(keys: &[u16]) -> Vec<Held> {
    keys.iter()
        .enumerate()
        .map(|(at, number)| {
            let value = format!("{at}").repeat(at % 40);
            let value = (at % 5 > 0).then_some(value.as_bytes());
            held(&key((*number).into()), at as u64 + 1, value)
        })
        .collect()
}

/// The versions, split into disjoint runs.
fn level(
    io: &FaultIo,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
    list: &[Held],
    runs: usize,
) -> Vec<Arc<Run>> {
    let mut level = Vec::new();
    let mut from = 0;
    for number in 1..=runs {
        let mut to = (list.len() * number / runs).max(from);
        while to < list.len() && to > 0 && list[to].key == list[to - 1].key {
            to += 1;
        }
        if to > from {
            level.push(run(
                io,
                "/".as_ref(),
                number as u64,
                order,
                cache,
                &list[from..to],
            ));
        }
        from = to;
    }
    level
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_cursor_goes_where_a_sorted_list_says(
        keys in prop::collection::vec(0_u16..900, 1..1_500),
        steps in prop::collection::vec(go(), 1..40),
        frames in prop_oneof![Just(2), Just(30), Just(500)],
        runs in 1_usize..5,
        reverse in any::<bool>(),
    ) {
        let order = &orders()[usize::from(reverse)];
        let io = FaultIo::new();
        let cache = cache(frames);
        let list = sorted(order, &versions(&keys));
        let whole = run(&io, "/".as_ref(), 9, order, &cache, &list);
        walk(&mut RunCursor::new(&whole), order, &list, &steps);
        walk(&mut RunCursor::past_cache(&whole), order, &list, &steps);
        let level = level(&io, order, &cache, &list, runs);
        walk(&mut LevelCursor::new(&level), order, &list, &steps);
        walk(&mut LevelCursor::past_cache(&level), order, &list, &steps);
        walk(&mut LevelCursor::new(&[]), order, &[], &steps);
    }
}

fn many() -> Vec<Held> {
    versions(&(0..4_000).collect::<Vec<_>>())
}

#[test]
fn both_ways_through_a_deep_run() {
    for order in &orders() {
        let io = FaultIo::new();
        let cache = cache(8);
        let list = sorted(order, &many());
        let run = run(&io, "/".as_ref(), 1, order, &cache, &list);
        assert!(run.meta().internal_pages > 4);
        for mut cursor in [RunCursor::new(&run), RunCursor::past_cache(&run)] {
            assert_eq!(all_of(&mut cursor).unwrap(), list);
            cursor.seek_last().unwrap();
            for expected in list.iter().rev() {
                assert_eq!(cursor.at(), Some(expected.version()));
                cursor.prev().unwrap();
            }
            assert_eq!(cursor.at(), None);
        }
    }
}

#[test]
fn a_long_scan_leaves_few_pages_in_the_cache_and_reads_several_at_once() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let cache = cache(1_000);
    let list = sorted(order, &many());
    let run = run(&io, "/".as_ref(), 1, order, &cache, &list);
    let leaves = u64::from(run.meta().leaf_pages);
    let (before, calls) = (cache.stats(), io.calls());
    assert_eq!(all_of(&mut RunCursor::new(&run)).unwrap(), list);
    let (after, calls) = (cache.stats(), io.calls() - calls);
    let read = after.misses - before.misses;
    let internal = u64::from(run.meta().internal_pages) - 1;
    assert_eq!(read, internal + u64::from(LEAVES_INTO_CACHE));
    assert!(
        calls < read + leaves / 4,
        "{calls} calls for {leaves} leaves"
    );
    // Pages in the cache are used.
    let (before, calls) = (cache.stats(), io.calls());
    let mut cursor = RunCursor::new(&run);
    cursor.seek_first().unwrap();
    assert_eq!((cache.stats().misses, io.calls()), (before.misses, calls));
}

#[test]
fn a_cursor_stays_on_its_row_while_the_cache_evicts_its_pages() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let list = sorted(order, &many());
    // With and without permits to hold pages.
    for frames in [8, 48] {
        let cache = cache(frames);
        let run = run(&io, "/".as_ref(), 2, order, &cache, &list);
        let mut cursor = RunCursor::new(&run);
        // The first search reads the pages, and the third finds them in the cache.
        for number in [300, 700, 300] {
            cursor.seek(&key(number), 10_000).unwrap();
        }
        let start = list.partition_point(|held| held.key < key(300));
        for (passed, held) in list[start..].iter().take(60).enumerate() {
            assert_eq!(cursor.at(), Some(held.version()), "{passed} rows on");
            for number in (0..4_000).step_by(if passed % 20 == 0 { 5 } else { 500 }) {
                let mut other = RunCursor::new(&run);
                other.seek(&key(number), 10_000).unwrap();
            }
            assert_eq!(cursor.at(), Some(held.version()), "{passed} rows on");
            cursor.next().unwrap();
        }
        assert!(cache.stats().evictions > 100, "{:?}", cache.stats());
    }
}

#[test]
fn a_failure_at_any_read_leaves_the_cursor_nowhere_and_the_next_seek_goes_well() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let list = sorted(order, &versions(&(0..1_200).collect::<Vec<_>>()));
    let cold = cache(4);
    let level = level(&io, order, &cold, &list, 2);
    let mut call = 0;
    let mut failures = 0;
    loop {
        let fault = io.calls() + call;
        io.fail_call(fault, Fault::Fail(EIO));
        let mut cursor = LevelCursor::new(&level);
        let result = all_of(&mut cursor);
        if io.calls() <= fault {
            break;
        }
        match result {
            // A read of several leaves failed, so they were read one by one.
            Ok(all) => assert_eq!(all, list),
            Err(error) => {
                assert!(error.to_string().contains("cannot read"), "{error}");
                assert_eq!(cursor.at(), None);
                cursor.next().unwrap();
                assert_eq!(cursor.at(), None);
                failures += 1;
            }
        }
        cursor.seek(&key(600), 10_000).unwrap();
        assert_eq!(cursor.at().unwrap().key, key(600));
        call += 1;
    }
    assert!(failures > 10, "{failures} of {call}");
}

/// Whether a cursor reads its leaf where the cache has it.
fn is_leaf_held(cursor: &RunCursor<'_>) -> bool {
    let pin = cache::pin();
    let number = cursor.leaf.number().unwrap();
    let cached = cursor.run.slots().get(number, usize::MAX, &pin);
    cached.is_some_and(|bytes| bytes.as_ptr() == cursor.leaf.bytes().as_ptr())
}

#[test]
fn thousands_of_cursors_stay_on_their_rows_and_leave_the_cache_its_frames() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let list = sorted(order, &many());
    for frames in [64, 320] {
        let cache = cache(frames);
        let run = run(&io, "/".as_ref(), 2, order, &cache, &list);
        let mut cursors = Vec::new();
        let mut held = 0;
        for at in (0..list.len()).step_by(2) {
            let mut cursor = RunCursor::new(&run);
            // The second search finds the pages in the cache.
            for _ in 0..2 {
                cursor.seek(&list[at].key, list[at].sequence).unwrap();
            }
            held += usize::from(is_leaf_held(&cursor));
            cursors.push((at, cursor));
        }
        assert!((1..=frames / 16).contains(&held), "{held} of {frames}");
        for (at, cursor) in &mut cursors {
            assert_eq!(cursor.at(), Some(list[*at].version()));
            cursor.next().unwrap();
            assert_eq!(cursor.at(), list.get(*at + 1).map(Held::version));
            cursor.prev().unwrap();
        }
        // Readers of other tests share the epoch.
        let is_within = (0..20_000).any(|_| {
            forerun_core::sync::thread::sleep(std::time::Duration::from_micros(500));
            let stats = cache.stats();
            cache.evict_to_budget() && stats.used_bytes <= stats.capacity_bytes
        });
        assert!(is_within, "{:?}", cache.stats());
        // Pages that a third of the frames can hold stay.
        let leaves = run.meta().leaf_pages as usize;
        let pages = leaves.min(frames / 3);
        let read_all = || {
            let before = cache.stats();
            for page in 0..pages {
                let mut cursor = RunCursor::new(&run);
                cursor.seek(&key(page * 4_000 / leaves), 10_000).unwrap();
            }
            cache.stats().misses - before.misses
        };
        // Other tests of this process may keep frames from being reused for a while.
        for _ in 0..100 {
            if read_all() <= pages as u64 / 8 {
                break;
            }
        }
        let misses = read_all();
        assert!(misses <= pages as u64 / 8, "{misses} of {pages}");
        drop(cursors);
        let permits: Vec<_> = std::iter::from_fn(|| cache.hold_permit()).collect();
        assert_eq!(permits.len(), frames / 16);
    }
}

#[test]
fn cursors_that_wait_to_be_reused_do_not_make_others_copy_their_pages() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let cache = cache(320);
    let list = sorted(order, &many());
    let run = run(&io, "/".as_ref(), 2, order, &cache, &list);
    let open = |number: usize| {
        let mut cursor = RunCursor::new(&run);
        for _ in 0..2 {
            cursor.seek(&key(number), 10_000).unwrap();
        }
        cursor
    };
    // Together they need more permits than there are.
    let mut idle: Vec<_> = (0..40).map(|n| open(n * 90)).collect();
    assert!(!is_leaf_held(&open(1_000)), "there is no permit left");
    idle.iter_mut().for_each(VersionCursor::reset);
    assert!(is_leaf_held(&open(1_000)));
    for (n, cursor) in idle.iter_mut().enumerate() {
        cursor.seek(&key(n * 90), 10_000).unwrap();
        assert_eq!(cursor.at().unwrap().key, key(n * 90));
    }
}

#[test]
fn a_cursor_that_has_passed_a_large_entry_keeps_no_memory_for_it() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let mut list: Vec<_> = (0..4_000)
        .map(|n| held(&key(n), n as u64 + 1, Some(&[n as u8; 60])))
        .collect();
    list[2_000].value = Some(vec![7; 8 << 20]);
    let list = sorted(order, &list);
    // The large page is kept by one cache and too large for the other.
    for frames in [100, 20_000] {
        let cache = cache(frames);
        let run = run(&io, "/".as_ref(), 2, order, &cache, &list);
        for mut cursor in [RunCursor::new(&run), RunCursor::past_cache(&run)] {
            let buffer_bytes = |cursor: &RunCursor<'_>| {
                let above = cursor.path.iter().map(|above| &above.loaded);
                let pages = above.chain([&cursor.leaf]).map(LoadedPage::buffer_bytes);
                pages.sum::<usize>() + cursor.ahead.bytes.capacity()
            };
            for is_forward in [true, false] {
                cursor.seek(&key(2_000), 10_000).unwrap();
                assert_eq!(cursor.at(), Some(list[2_000].version()));
                for step in 1..500 {
                    if is_forward {
                        cursor.next().unwrap()
                    } else {
                        cursor.prev().unwrap()
                    }
                    let at = if is_forward {
                        2_000 + step
                    } else {
                        2_000 - step
                    };
                    assert_eq!(cursor.at(), Some(list[at].version()));
                }
                let bytes = buffer_bytes(&cursor);
                assert!(bytes < 1 << 20, "{bytes} bytes");
            }
        }
    }
}

#[test]
fn frames_that_cursors_held_when_they_were_evicted_are_used_again() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let cache = cache(64);
    let list = sorted(order, &many());
    let run = run(&io, "/".as_ref(), 2, order, &cache, &list);
    let leaves = run.meta().leaf_pages as usize;
    for round in 0..400 {
        let mut cursor = RunCursor::new(&run);
        for _ in 0..2 {
            cursor.seek(&key(round * 61 % 4_000), 10_000).unwrap();
        }
        for page in 0..leaves {
            let mut other = RunCursor::new(&run);
            other.seek(&key(page * 4_000 / leaves), 10_000).unwrap();
        }
    }
    let pages = 16;
    let read_all = || {
        let before = cache.stats();
        for page in 0..pages {
            let mut cursor = RunCursor::new(&run);
            cursor.seek(&key(page * 4_000 / leaves), 10_000).unwrap();
        }
        cache.stats().misses - before.misses
    };
    // Readers of other tests share the epoch.
    let are_kept = (0..2_000).any(|_| {
        forerun_core::sync::thread::sleep(std::time::Duration::from_micros(500));
        read_all() <= 2
    });
    assert!(are_kept, "{:?}", cache.stats());
}
