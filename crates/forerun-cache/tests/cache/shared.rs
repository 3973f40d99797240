//! Concurrent threads: every value that is read is complete, belongs to its key, and is no older
//! than what the reader has already seen.

use crate::testing::all_cases;

use forerun_cache::{
    Arithmetic, ArithmeticResult, Cache, CacheOptions, Delete, Expiry, Store, StoreMode,
    StoreResult,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const KEYS: usize = 3000;

fn cache(memory_limit_bytes: usize) -> Cache {
    Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(memory_limit_bytes)
            .max_item_bytes(memory_limit_bytes / 4),
    )
    .unwrap()
}

fn key(n: usize) -> Vec<u8> {
    format!("shared key {n}").into_bytes()
}

/// A value that consists of its key, its version, and bytes derived from both.
fn value(n: usize, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = [(n as u64).to_le_bytes(), version.to_le_bytes()].concat();
    let word = (n as u64)
        .wrapping_mul(31)
        .wrapping_add(version)
        .to_le_bytes();
    bytes.extend(word.repeat(len / 8 + 1));
    bytes.truncate(16 + len);
    bytes
}

/// The version of a value, after checking that the value is whole.
fn version(n: usize, bytes: &[u8]) -> u64 {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(number(0), n as u64, "another key's value");
    let version = number(8);
    assert!(
        bytes == value(n, version, bytes.len() - 16),
        "torn: key {n}, version {version}"
    );
    version
}

fn stress(memory_limit_bytes: usize, len_max: usize, rounds: usize) {
    let cache = cache(memory_limit_bytes);
    let written: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let is_done = AtomicBool::new(false);
    forerun_core::sync::thread::scope(|scope| {
        // Each key has one writer, so its versions only increase.
        let writers: Vec<_> = (0..2usize)
            .map(|writer| {
                let (cache, written) = (&cache, &written);
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(writer as u64);
                    for round in 0..rounds {
                        let n = rng.random_range(0..KEYS / 2) * 2 + writer;
                        let len = if rng.random_ratio(1, 100) {
                            rng.random_range(0..len_max)
                        } else {
                            rng.random_range(0..300)
                        };
                        let version = written[n].load(Ordering::Relaxed) + 1;
                        let expiry = if rng.random_bool(0.2) {
                            Expiry::At(cache.now() + rng.random_range(1..5))
                        } else {
                            Expiry::Never
                        };
                        match rng.random_range(0..10) {
                            0 => {
                                cache.delete(Delete::key(&key(n)));
                            }
                            1 => {
                                cache.touch(&key(n), expiry);
                            }
                            _ => {
                                let (key, value) = (key(n), value(n, version, len));
                                let store = Store {
                                    expiry,
                                    ..Store::set(&key, &value[..])
                                };
                                if let StoreResult::Stored { .. } = cache.store(store) {
                                    written[n].store(version, Ordering::Release);
                                }
                            }
                        }
                        if round % (rounds / 20) == 0 && writer == 0 {
                            cache.advance(cache.now() + 1);
                        }
                        if round % (rounds / 2) == rounds / 3 && writer == 1 {
                            cache.flush_all(0);
                        }
                    }
                })
            })
            .collect();
        for reader in 0..2 {
            let (cache, written, is_done) = (&cache, &written, &is_done);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(100 + reader);
                let mut seen = vec![0; KEYS];
                while !is_done.load(Ordering::Relaxed) {
                    let batch: Vec<usize> = (0..rng.random_range(1..150))
                        .map(|_| rng.random_range(0..KEYS))
                        .collect();
                    let before: Vec<u64> = batch
                        .iter()
                        .map(|&n| written[n].load(Ordering::Acquire))
                        .collect();
                    let keys: Vec<_> = batch.iter().map(|&n| key(n)).collect();
                    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                    let guard = cache.pin();
                    let mut items = vec![None; keys.len()];
                    if reader == 0 {
                        guard.multi_get(&keys, &mut items).unwrap();
                    } else {
                        items
                            .iter_mut()
                            .zip(&keys)
                            .for_each(|(item, key)| *item = guard.get(key));
                    }
                    for ((&n, before), item) in batch.iter().zip(before).zip(items) {
                        if let Some(item) = item {
                            let version = version(n, item.value());
                            assert!(version >= before && version >= seen[n], "stale: key {n}");
                            seen[n] = version;
                        }
                    }
                    drop(guard);
                    // A full cache waits for readers. On few cores they would keep the writers from
                    // theirs.
                    forerun_core::sync::thread::yield_now();
                }
            });
        }
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
    });
    let stats = cache.stats();
    assert!(stats.memory_bytes <= stats.limit_bytes, "{stats:?}");
    assert!(
        stats.get_hits > 0 && stats.blocks_reclaimed > 0,
        "{stats:?}"
    );
}

#[test]
fn readers_get_whole_values_no_older_than_those_they_have_seen() {
    stress(2 << 20, 100_000, if all_cases() { 25_000 } else { 6_000 });
}

#[test]
fn readers_get_whole_values_even_when_almost_nothing_fits() {
    stress(1 << 20, 200_000, if all_cases() { 15_000 } else { 6_000 });
}

#[test]
fn no_increment_is_lost() {
    let cache = cache(4 << 20);
    let _ = cache.store(Store::set(b"n", b"0"));
    forerun_core::sync::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..3000 {
                    let counted = cache.arithmetic(Arithmetic::increment(b"n", 1));
                    assert!(
                        matches!(counted, ArithmeticResult::Changed { .. }),
                        "{counted:?}"
                    );
                }
            });
        }
    });
    assert_eq!(cache.get(b"n").unwrap(), b"12000");
}

#[test]
fn one_of_many_threads_adds_or_claims_a_key() {
    let cache = cache(4 << 20);
    let (added, claimed) = (AtomicU64::new(0), AtomicU64::new(0));
    forerun_core::sync::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..2000 {
                    let key = key(n);
                    let store = Store {
                        mode: StoreMode::Add,
                        ..Store::set(&key, b"v")
                    };
                    let is_stored = matches!(cache.store(store), StoreResult::Stored { .. });
                    added.fetch_add(is_stored.into(), Ordering::Relaxed);
                    let guard = cache.pin();
                    let item = guard.get(&key).unwrap();
                    claimed.fetch_add(cache.claim(&item).into(), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((added.into_inner(), claimed.into_inner()), (2000, 2000));
}

#[test]
fn no_item_is_missed_while_the_index_grows() {
    let cache = cache(64 << 20);
    let written = AtomicU64::new(0);
    forerun_core::sync::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..100_000 {
                let _ = cache.store(Store::set(&key(n), &value(n, 1, 10)[..]));
                written.store(n as u64 + 1, Ordering::Release);
            }
        });
        scope.spawn(|| {
            let mut rng = SmallRng::seed_from_u64(7);
            loop {
                let until = written.load(Ordering::Acquire) as usize;
                if until == 100_000 {
                    break;
                }
                if until > 0 {
                    let n = rng.random_range(0..until);
                    let guard = cache.pin();
                    let item = guard
                        .get(&key(n))
                        .unwrap_or_else(|| panic!("key {n} of {until}"));
                    assert_eq!(version(n, item.value()), 1);
                }
            }
        });
    });
    assert!(cache.stats().index_splits > 50 && cache.stats().evictions == 0);
}
