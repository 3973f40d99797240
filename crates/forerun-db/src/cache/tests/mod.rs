//! The page cache: contents, budgets, failures and threads.

use forerun_core::sync::atomic::AtomicBool;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forerun_core::{Driver, Wait, block_on_with, interleave_with};
use proptest::prelude::*;

use super::driver::Reads;
use super::*;
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::io::{Io, OpenMode, ReadBackend};
use crate::testing::cases;

mod cached_reads;
mod changed_budget;
mod numbered_pages;

use numbered_pages::{HEAD, Numbered, PAGE, cache_of, page, scan, shuffled, take_all, wait_idle};

#[test]
fn every_page_is_returned_intact_for_any_budget_and_backend() {
    let dir = tempfile::tempdir().unwrap();
    for backend in ReadBackend::ALL {
        for frames in [1, 2, 4, 16, 64, 500] {
            let cache = cache_of(frames);
            let source = Numbered::real(dir.path(), &cache, vec![PAGE; 200]);
            assert_eq!(
                take_all(&source, &shuffled(2_000, 200, frames as u64), backend),
                []
            );
            let stats = cache.stats();
            assert_eq!(stats.hits + stats.misses, 2_000);
            if frames == 500 {
                assert!(stats.misses <= 2_000 && stats.evictions == 0, "{stats:?}");
                assert_eq!(take_all(&source, &shuffled(500, 200, 7), backend), []);
                assert_eq!(cache.stats().misses, stats.misses, "all are resident");
            }
        }
    }
}

#[test]
fn concurrent_readers_of_a_missing_page_share_one_read() {
    let io = FaultIo::new();
    let cache = cache_of(8);
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 4]);
    let before = io.calls();
    assert_eq!(take_all(&source, &[3; 16], ReadBackend::Auto), []);
    assert_eq!(io.calls() - before, 1);
}

#[test]
fn a_failure_at_any_read_reaches_only_those_that_wait_for_that_page() {
    let wanted = [1, 2, 3, 2, 1, 4, 2, 5, 6, 7, 0, 2];
    for call in 0..8 {
        for fault in [Fault::Fail(EIO), Fault::ShortWrite] {
            let io = FaultIo::new();
            let cache = cache_of(16);
            let source = Numbered::modelled(&io, &cache, vec![PAGE; 8]);
            io.fail_call(io.calls() + call, fault);
            let failed = take_all(&source, &wanted, ReadBackend::Auto);
            if fault == Fault::ShortWrite {
                assert_eq!(failed, []);
                continue;
            }
            // Reads begin in the order in which pages were requested.
            let victim = [1, 2, 3, 4, 5, 6, 7, 0][call as usize];
            let expected: Vec<_> = (0..wanted.len())
                .filter(|at| wanted[*at] == victim)
                .collect();
            assert_eq!(failed, expected);
            assert_eq!(take_all(&source, &wanted, ReadBackend::Auto), [], "later");
        }
    }
}

#[test]
fn a_changed_page_is_an_error_that_names_it() {
    let io = FaultIo::new();
    let cache = cache_of(16);
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 8]);
    let mut bytes = io.read("/pages").unwrap();
    bytes[5 * (PAGE + HEAD) + HEAD + 100] ^= 1;
    bytes.truncate(bytes.len() - 1);
    let io = FaultIo::new();
    io.write("/pages", &bytes);
    let file = io.open("/pages".as_ref(), OpenMode::Read).unwrap();
    let source = Numbered { file, ..source };
    let all: Vec<u32> = (0..8).collect();
    assert_eq!(take_all(&source, &all, ReadBackend::Sync), [5, 7]);
    let pin = pin();
    let reads = Reads::new(&cache, &pin, ReadBackend::Sync);
    let damaged = block_on_with(&reads, page(&reads, &source, 5)).unwrap_err();
    let place = format!("/pages is corrupt at offset {}: torn", 5 * (PAGE + HEAD));
    assert_eq!(damaged.to_string(), place);
    let short = block_on_with(&reads, page(&reads, &source, 7)).unwrap_err();
    assert!(
        short.to_string().contains("ends 1 byte too early"),
        "{short}"
    );
    let none = reads.page(&source, 8, source.location(7));
    let none = block_on_with(&reads, none).unwrap_err();
    assert!(none.to_string().contains("does not have"), "{none}");
}

#[test]
fn a_scan_does_not_push_out_what_is_used_all_the_time() {
    let io = FaultIo::new();
    let cache = cache_of(128);
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 2_000]);
    for _ in 0..4 {
        scan(&source, 0..64);
    }
    scan(&source, 100..2_000);
    let before = cache.stats();
    assert!(before.evictions > 1_800, "{before:?}");
    take_all(&source, &(0..64).collect::<Vec<_>>(), ReadBackend::Sync);
    let lost = cache.stats().misses - before.misses;
    assert!(lost <= 6, "{lost} of 64 hot pages were evicted");
}

#[test]
fn a_page_that_comes_back_soon_is_kept_longer() {
    let io = FaultIo::new();
    let cache = cache_of(100);
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 3_000]);
    let resident = |page_no| source.slots.get(page_no, PAGE, &pin()).is_some();
    // Fills the main queue; page 0 goes through the small one and comes back.
    for _ in 0..4 {
        scan(&source, 1..60);
    }
    scan(&source, [0].into_iter());
    scan(&source, 100..140);
    assert!(!resident(0));
    scan(&source, [0].into_iter());
    scan(&source, 200..400);
    assert!(resident(0));
}

#[test]
fn pages_and_what_is_charged_stay_within_the_budget() {
    let io = FaultIo::new();
    let cache = cache_of(100);
    let capacity = cache.stats().capacity_bytes;
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 1_000]);
    let some = shuffled(3_000, 1_000, 5);
    take_all(&source, &some, ReadBackend::Sync);
    wait_idle(&cache);
    let full = cache.stats();
    assert!(
        full.used_bytes <= capacity && full.used_bytes > capacity * 8 / 10,
        "{full:?}"
    );
    let charge = cache.charge(capacity / 2);
    let again: Vec<Charge> = (0..10).map(|_| cache.charge(100)).collect();
    take_all(&source, &some, ReadBackend::Sync);
    wait_idle(&cache);
    take_all(&source, &some[..100], ReadBackend::Sync);
    wait_idle(&cache);
    let charged = cache.stats();
    assert!(charged.used_bytes <= capacity, "{charged:?}");
    // Pages keep a quarter, however much is charged.
    let all = cache.charge(10 * capacity);
    take_all(&source, &some, ReadBackend::Sync);
    let before = cache.stats().misses;
    take_all(&source, &[some[2_999]; 10], ReadBackend::Sync);
    assert!(cache.stats().misses <= before + 1);
    drop((charge, again, all));
    take_all(&source, &some, ReadBackend::Sync);
    wait_idle(&cache);
    let back = cache.stats().used_bytes;
    assert!(back <= capacity && back > capacity * 8 / 10, "{back}");
    drop(source);
    assert!(cache.stats().used_bytes <= capacity);
}

#[test]
fn indexes_have_their_share_whatever_else_is_charged() {
    let cache = cache_of(100);
    let capacity = cache.stats().capacity_bytes;
    // As much as the roots and page tables of many runs.
    let roots = cache.charge(capacity / 2);
    let index = cache.try_charge_index(capacity / 8).unwrap();
    assert!(
        cache.try_charge_index(capacity / 4).is_none(),
        "their share"
    );
    let filter = cache.try_charge(capacity / 8 - 10).unwrap();
    assert!(
        cache.try_charge_index(capacity / 8 - 10).is_none(),
        "the share of pages"
    );
    drop(filter);
    let other = cache.try_charge_index(capacity / 8 - 10).unwrap();
    drop((index, roots));
    assert!(cache.try_charge_index(capacity / 8).is_some(), "given back");
    drop(other);
}

#[test]
fn pages_longer_than_a_frame_are_cached_too_and_counted() {
    let io = FaultIo::new();
    let cache = cache_of(200);
    let capacity = cache.stats().capacity_bytes;
    let lens: Vec<usize> = (0..100)
        .map(|n| match n % 3 {
            0 => PAGE,
            1 => 5_000 + n,
            _ => 10,
        })
        .collect();
    let source = Numbered::modelled(&io, &cache, lens);
    for seed in 0..5 {
        assert_eq!(
            take_all(&source, &shuffled(1_000, 100, seed), ReadBackend::Sync),
            []
        );
        wait_idle(&cache);
        let stats = cache.stats();
        assert!(stats.used_bytes <= capacity, "{stats:?}");
    }
    let before = cache.stats().misses;
    for _ in 0..10 {
        take_all(&source, &[1, 4, 7], ReadBackend::Sync);
    }
    assert!(cache.stats().misses <= before + 6, "large pages stay");
    // A page above the size limit for the cache is still read.
    let long = Numbered::modelled(&io, &cache, vec![capacity * 2; 2]);
    assert_eq!(take_all(&long, &[0, 1, 0, 1], ReadBackend::Sync), []);
    wait_idle(&cache);
    assert!(cache.stats().used_bytes <= capacity);
}

#[test]
fn pages_that_are_not_cached_are_freed_with_the_pin() {
    let io = FaultIo::new();
    let cache = cache_of(64);
    let capacity = cache.stats().capacity_bytes;
    // Too large for the cache to keep, then larger than all of it.
    for len in [capacity / 2, 3 * capacity] {
        let source = Numbered::modelled(&io, &cache, vec![len; 20]);
        let before = cache.stats().used_bytes;
        // An older reader delays the epoch for the whole time.
        let _older = pin();
        for page_no in 0..20 {
            let pin = pin();
            let reads = Reads::new(&cache, &pin, ReadBackend::Sync);
            let bytes = block_on_with(&reads, page(&reads, &source, page_no)).unwrap();
            source.is_page(page_no, bytes);
            assert_eq!(
                cache.stats().used_bytes,
                before + len,
                "with page {page_no}"
            );
            drop(reads);
            drop(pin);
            assert_eq!(cache.stats().used_bytes, before, "after page {page_no}");
        }
    }
}

#[test]
fn lent_pages_stay_in_place_while_more_are_lent() {
    let io = FaultIo::new();
    let cache = cache_of(4);
    let source = Numbered::modelled(&io, &cache, vec![8 * PAGE; 40]);
    let pin = pin();
    let reads = Reads::new(&cache, &pin, ReadBackend::Sync);
    let all: Vec<&[u8]> = (0..40)
        .map(|page_no| block_on_with(&reads, page(&reads, &source, page_no)).unwrap())
        .collect();
    for (page_no, bytes) in all.into_iter().enumerate() {
        source.is_page(page_no as u32, bytes);
    }
}

#[test]
fn memory_charged_beside_a_reader_is_made_up_for_once_it_has_gone() {
    let io = FaultIo::new();
    let cache = cache_of(100);
    let capacity = cache.stats().capacity_bytes;
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 200]);
    take_all(&source, &shuffled(1_000, 200, 3), ReadBackend::Sync);
    wait_idle(&cache);
    let full = cache.stats().used_bytes;
    assert!(full > capacity * 8 / 10, "{full} of {capacity}");
    let reader = pin();
    let charge = cache.charge(capacity / 2);
    assert!(!cache.evict_to_budget(), "the reader holds evicted pages");
    assert!(cache.stats().used_bytes > capacity);
    drop(reader);
    // Readers of other tests share the epoch.
    let is_within = (0..20_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_micros(500));
        cache.evict_to_budget()
    });
    assert!(is_within, "{:?}", cache.stats());
    let used = cache.stats().used_bytes;
    assert!(used <= capacity, "{used} of {capacity}");
    drop(charge);
}

#[test]
fn a_run_that_is_dropped_gives_its_frames_back() {
    let io = FaultIo::new();
    let cache = cache_of(90);
    for _ in 0..20 {
        let source = Numbered::modelled(&io, &cache, vec![PAGE; 50]);
        let large = Numbered::modelled(&io, &cache, vec![2 * PAGE; 5]);
        let before = cache.stats();
        let all: Vec<u32> = (0..50).collect();
        take_all(&source, &all, ReadBackend::Sync);
        take_all(&large, &all[..5], ReadBackend::Sync);
        take_all(&source, &all, ReadBackend::Sync);
        assert_eq!(cache.stats().misses - before.misses, 55);
    }
    assert_eq!(cache.stats().evictions, 0, "there was space for each");
}

#[test]
fn frames_that_wait_for_a_reader_are_not_overwritten() {
    let io = FaultIo::new();
    let cache = cache_of(4);
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 100]);
    let mine = pin();
    let reads = Reads::new(&cache, &mine, ReadBackend::Sync);
    let held = block_on_with(&reads, page(&reads, &source, 42)).unwrap();
    for _ in 0..3 {
        forerun_core::sync::thread::scope(|scope| {
            scope.spawn(|| {
                take_all(&source, &shuffled(1_000, 40, 1), ReadBackend::Sync);
                reclaim();
            });
        });
        source.is_page(42, held);
    }
}

#[test]
fn a_held_page_outlives_its_eviction_and_then_its_frame_is_free() {
    let io = FaultIo::new();
    let cache = cache_of(64);
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 200]);
    let frames_out_of_use = || {
        wait_idle(&cache);
        let state = cache.lock();
        let used = state.policy.bytes() + state.free.len() * cache.frames.stride_bytes();
        (state.frame_bytes - used) / cache.frames.stride_bytes()
    };
    for _ in 0..3 {
        assert_eq!(take_all(&source, &[42], ReadBackend::Sync), []);
        let permits = [cache.hold_permit().unwrap(), cache.hold_permit().unwrap()];
        let held = permits
            .each_ref()
            .map(|permit| source.slots.hold(42, PAGE, permit).unwrap());
        for seed in 0..4 {
            let others: Vec<u32> = shuffled(600, 150, seed).iter().map(|at| at + 50).collect();
            assert_eq!(take_all(&source, &others, ReadBackend::Sync), []);
        }
        assert!(
            source.slots.get(42, PAGE, &pin()).is_none(),
            "it is evicted"
        );
        assert_eq!(frames_out_of_use(), 1);
        let [one, other] = held;
        drop(one);
        assert_eq!(frames_out_of_use(), 1);
        source.is_page(42, other.bytes());
        drop(other);
        assert_eq!(frames_out_of_use(), 0);
    }
    let stats = cache.stats();
    assert!(stats.used_bytes <= stats.capacity_bytes, "{stats:?}");
}

#[test]
fn only_some_of_the_frames_can_be_held() {
    let cache = cache_of(64);
    let mut permits: Vec<_> = std::iter::from_fn(|| cache.hold_permit()).collect();
    assert_eq!(permits.len(), 64 / HELD_SHARE);
    permits.pop();
    permits.extend(cache.hold_permit());
    assert!(cache.hold_permit().is_none());
    assert_eq!(permits.len(), 64 / HELD_SHARE);
    assert!(cache_of(2).hold_permit().is_none());
}

#[test]
fn pages_are_held_while_threads_evict_them() {
    let io = FaultIo::new();
    let cache = cache_of(48);
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 60]);
    let stop = AtomicBool::new(false);
    forerun_core::sync::thread::scope(|scope| {
        for thread in 0..2 {
            let (source, stop) = (&source, &stop);
            scope.spawn(move || {
                for round in 0..15 {
                    let pages = shuffled(300, 60, thread * 100 + round);
                    assert_eq!(take_all(source, &pages, ReadBackend::Sync), []);
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        for thread in 0..2 {
            let (source, cache, stop) = (&source, &cache, &stop);
            scope.spawn(move || {
                let permit = cache.hold_permit().unwrap();
                let mut held = 0;
                while !stop.load(Ordering::Relaxed) || held == 0 {
                    for page_no in shuffled(60, 60, thread) {
                        let Some(page) = source.slots.hold(page_no, PAGE, &permit) else {
                            continue;
                        };
                        source.is_page(page_no, page.bytes());
                        std::thread::yield_now();
                        source.is_page(page_no, page.bytes());
                        held += 1;
                    }
                }
            });
        }
    });
    wait_idle(&cache);
    let state = cache.lock();
    let in_use = state.policy.bytes() + state.free.len() * cache.frames.stride_bytes();
    assert_eq!(state.frame_bytes, in_use, "every frame came back");
}

#[test]
fn threads_hammer_a_tiny_cache() {
    let dir = tempfile::tempdir().unwrap();
    for frames in [4, 40] {
        let cache = cache_of(frames);
        let source = Numbered::real(dir.path(), &cache, vec![PAGE; 60]);
        let stop = AtomicBool::new(false);
        forerun_core::sync::thread::scope(|scope| {
            for thread in 0..4 {
                let (source, stop) = (&source, &stop);
                scope.spawn(move || {
                    let backend = ReadBackend::ALL[thread];
                    for round in 0..15 {
                        let pages = shuffled(300, 60, (thread * 100 + round) as u64);
                        assert_eq!(take_all(source, &pages, backend), []);
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            // Meanwhile, runs are opened and dropped.
            while !stop.load(Ordering::Relaxed) {
                let io = FaultIo::new();
                let other = Numbered::modelled(&io, &cache, vec![PAGE; 10]);
                take_all(&other, &shuffled(20, 10, 3), ReadBackend::Sync);
            }
        });
        wait_idle(&cache);
        let stats = cache.stats();
        assert!(stats.used_bytes <= stats.capacity_bytes, "{stats:?}");
    }
}

#[test]
fn a_panic_leaves_the_cache_usable() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache_of(16);
    let source = Numbered::real(dir.path(), &cache, vec![PAGE; 60]);
    for backend in ReadBackend::ALL {
        for at in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                let pin = pin();
                let reads = Reads::new(&cache, &pin, backend);
                let reads = &reads;
                let source = &source;
                let lookups = (0..40).map(|n| async move {
                    let page_no = (n * 7 + at) % 60;
                    page(reads, source, page_no).await.unwrap();
                    assert!(n != at, "lookup {n} fails");
                });
                interleave_with::<8, _, _>(reads, lookups, |_, ()| ());
            }));
            assert!(result.is_err());
        }
        assert_eq!(take_all(&source, &shuffled(300, 60, 9), backend), []);
    }
}

#[test]
fn a_dropped_lookup_does_not_block_the_others() {
    let io = FaultIo::new();
    let cache = cache_of(16);
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 60]);
    let pin = pin();
    let reads = Reads::new(&cache, &pin, ReadBackend::Sync);
    let dropped = reads.page(&source, 1, source.location(1));
    let waits = reads.page(&source, 2, source.location(2));
    assert_eq!(reads.parked(), 2);
    drop(dropped);
    assert_eq!(reads.parked(), 1);
    reads.turn(Wait::ForOne);
    assert_eq!(reads.parked(), 0);
    source.is_page(2, block_on_with(&reads, waits).unwrap());
    source.is_page(1, block_on_with(&reads, page(&reads, &source, 1)).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64, 256)))]

    /// A page that was read and not evicted is a hit; any other is a miss.
    #[test]
    fn resident_pages_are_hits_and_others_misses(
        frames in 4_usize..40,
        wanted in prop::collection::vec(0_u32..50, 1..300),
    ) {
        let io = FaultIo::new();
        let cache = cache_of(frames);
        let source = Numbered::modelled(&io, &cache, vec![PAGE; 50]);
        for page_no in wanted {
            wait_idle(&cache);
            let resident = source.slots.get(page_no, PAGE, &pin()).is_some();
            let (before, calls) = (cache.stats(), io.calls());
            take_all(&source, &[page_no], ReadBackend::Sync);
            let after = cache.stats();
            prop_assert_eq!(after.hits - before.hits, u64::from(resident));
            prop_assert_eq!(io.calls() - calls, u64::from(!resident));
            prop_assert!(source.slots.get(page_no, PAGE, &pin()).is_some());
        }
    }
}
