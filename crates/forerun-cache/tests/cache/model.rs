//! Compares random operations on a cache with a plain map. A value that is found is always complete
//! and the last one written. Until the cache has evicted items, everything written is found.

use forerun_cache::{
    Arithmetic, ArithmeticResult, Cache, CacheOptions, Delete, DeleteResult, Expiry, Store,
    StoreMode, StoreResult, WhenFull,
};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Op {
    Store {
        key: u16,
        len: usize,
        expiry: Option<u32>,
        mode: StoreMode,
        right_cas: Option<bool>,
    },
    Buffered {
        key: u16,
        len: usize,
    },
    Delete {
        key: u16,
        right_cas: Option<bool>,
    },
    Touch {
        key: u16,
        expiry: Option<u32>,
    },
    Count {
        key: u16,
        delta: u64,
    },
    Advance {
        seconds: u32,
    },
    Flush {
        after: u32,
    },
    Batch {
        first: u16,
        len: u16,
    },
}

fn op(keys: u16, len_max: usize) -> impl Strategy<Value = Op> {
    let key = 0..keys;
    let expiry = || proptest::option::weighted(0.4, prop_oneof![0..4u32, 0..100u32, 0..100_000u32]);
    let len = prop_oneof![8 => 0..200usize, 3 => 0..3000usize, 1 => 0..len_max];
    let mode = prop_oneof![
        6 => Just(StoreMode::Set),
        1 => Just(StoreMode::Add),
        1 => Just(StoreMode::Replace),
        1 => Just(StoreMode::Append),
        1 => Just(StoreMode::Prepend),
    ];
    let right_cas = || proptest::option::weighted(0.2, any::<bool>());
    prop_oneof![
        20 => (key.clone(), len.clone(), expiry(), mode, right_cas()).prop_map(
            |(key, len, expiry, mode, right_cas)| Op::Store { key, len, expiry, mode, right_cas }
        ),
        1 => (key.clone(), len).prop_map(|(key, len)| Op::Buffered { key, len }),
        4 => (key.clone(), right_cas()).prop_map(|(key, right_cas)| Op::Delete { key, right_cas }),
        4 => (key.clone(), expiry()).prop_map(|(key, expiry)| Op::Touch { key, expiry }),
        2 => (key.clone(), any::<u64>()).prop_map(|(key, delta)| Op::Count { key, delta }),
        2 => (0..5u32).prop_map(|seconds| Op::Advance { seconds }),
        1 => (0..300u32).prop_map(|after| Op::Flush { after }),
        6 => (key, 1..200u16).prop_map(|(first, len)| Op::Batch { first, len }),
    ]
}

#[derive(Clone, Debug)]
struct Expected {
    value: Vec<u8>,
    expiry: Expiry,
    cas: u64,
}

struct Pair {
    cache: Cache,
    map: HashMap<u16, Expected>,
    keys: u16,
    version: u64,
    flush_at: Option<u32>,
    /// Every item of the map must be found.
    is_exact: bool,
}

impl Pair {
    fn key(n: u16) -> Vec<u8> {
        format!("key number {n}").into_bytes()
    }

    /// Bytes that identify the key and the version.
    fn value(&mut self, key: u16, len: usize) -> Vec<u8> {
        self.version += 1;
        let word = (u64::from(key) << 32 | self.version).to_le_bytes();
        let mut value = word.repeat(len / 8 + 1);
        value.truncate(len);
        value
    }

    fn live(&mut self, key: u16) -> Option<Expected> {
        let now = self.cache.now();
        let expected = self.map.get(&key)?;
        let is_live = !matches!(expected.expiry, Expiry::At(second) if second <= now);
        is_live.then(|| expected.clone())
    }

    /// Checks a key's item against the map. Forgets the key if the cache has evicted it.
    fn known(&mut self, key: u16) -> Option<Expected> {
        let expected = self.live(key);
        let guard = self.cache.pin();
        match (guard.peek(&Self::key(key)), &expected) {
            (Some(item), Some(expected)) => {
                assert!(item.value() == expected.value, "key {key}");
                assert_eq!((item.expiry(), item.cas()), (expected.expiry, expected.cas));
            }
            (Some(item), None) => panic!("key {key} should be gone: {item:?}"),
            (None, None) => {}
            (None, Some(_)) => {
                assert!(
                    !self.is_exact,
                    "key {key} is missing: {:?}, {:?}",
                    expected,
                    self.cache.stats()
                );
                drop(guard);
                self.map.remove(&key);
                return None;
            }
        }
        expected
    }

    fn expiry(&self, after: Option<u32>) -> Expiry {
        after.map_or(Expiry::Never, |seconds| {
            Expiry::At(self.cache.now() + seconds)
        })
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Store {
                key,
                len,
                expiry,
                mode,
                right_cas,
            } => {
                let old = self.known(key);
                let (value, expiry) = (self.value(key, len), self.expiry(expiry));
                let compare_cas = right_cas
                    .map(|right| old.as_ref().map_or(3, |old| old.cas) ^ u64::from(!right));
                let stored = self.cache.store(Store {
                    expiry,
                    mode,
                    compare_cas,
                    ..Store::set(&Self::key(key), &value[..])
                });
                let was_there = old.is_some();
                let is_allowed = match (&old, mode) {
                    (None, StoreMode::Append | StoreMode::Prepend) => Err(StoreResult::NotStored),
                    (None, _) if compare_cas.is_some() => Err(StoreResult::NotFound),
                    (None, StoreMode::Set | StoreMode::Add) => Ok(()),
                    (None, _) | (Some(_), StoreMode::Add) => Err(StoreResult::NotStored),
                    (Some(old), _) if compare_cas.is_some_and(|cas| cas != old.cas) => {
                        Err(StoreResult::Exists)
                    }
                    _ => Ok(()),
                };
                let (value, expiry) = match (old, mode) {
                    (Some(old), StoreMode::Append) => {
                        ([&old.value[..], &value].concat(), old.expiry)
                    }
                    (Some(old), StoreMode::Prepend) => {
                        ([&value[..], &old.value].concat(), old.expiry)
                    }
                    _ => (value, expiry),
                };
                match (is_allowed, stored) {
                    (Ok(()), StoreResult::Stored { cas }) => {
                        self.map.insert(key, Expected { value, expiry, cas });
                    }
                    (Ok(()), StoreResult::TooLarge) => {
                        assert!(value.len() + 60 > self.cache.options().max_item_bytes);
                    }
                    (Ok(()), StoreResult::OutOfMemory) => {
                        assert_eq!(self.cache.options().when_full, WhenFull::Refuse);
                    }
                    (Err(refusal), stored) => assert_eq!(stored, refusal),
                    // Making room for the new value has evicted the old one.
                    (Ok(()), StoreResult::NotStored | StoreResult::NotFound)
                        if was_there && self.cache.options().when_full == WhenFull::Evict =>
                    {
                        self.map.remove(&key);
                    }
                    (Ok(()), other) => panic!("{other:?}"),
                }
            }
            Op::Buffered { key, len } => {
                let value = self.value(key, len);
                let Ok(mut buffer) = self.cache.value_buffer(len) else {
                    return;
                };
                for chunk in value.chunks(1000) {
                    match buffer.put(&self.cache, chunk) {
                        Ok(len) => assert_eq!(len, chunk.len()),
                        Err(_) => return,
                    }
                }
                if let StoreResult::Stored { cas } =
                    self.cache.store(Store::set(&Self::key(key), buffer))
                {
                    self.map.insert(
                        key,
                        Expected {
                            value,
                            expiry: Expiry::Never,
                            cas,
                        },
                    );
                }
            }
            Op::Delete { key, right_cas } => {
                let old = self.known(key);
                let compare_cas = right_cas
                    .map(|right| old.as_ref().map_or(3, |old| old.cas) ^ u64::from(!right));
                let deleted = self.cache.delete(Delete {
                    key: &Self::key(key),
                    compare_cas,
                });
                let expected = match (old, right_cas) {
                    (None, _) => DeleteResult::NotFound,
                    (Some(_), Some(false)) => DeleteResult::Exists,
                    _ => DeleteResult::Deleted,
                };
                assert_eq!(deleted, expected);
                if deleted == DeleteResult::Deleted {
                    self.map.remove(&key);
                }
            }
            Op::Touch { key, expiry } => {
                let (old, expiry) = (self.known(key), self.expiry(expiry));
                let is_touched = self.cache.touch(&Self::key(key), expiry);
                assert_eq!(is_touched, old.is_some());
                if let (Some(_), Some(expected)) = (old, self.map.get_mut(&key)) {
                    expected.expiry = expiry;
                }
            }
            Op::Count { key, delta } => {
                let old = self.known(key);
                let counted = self.cache.arithmetic(Arithmetic {
                    initial: Some((7, Expiry::Never)),
                    ..Arithmetic::increment(&Self::key(key), delta)
                });
                match (counted, old) {
                    (
                        ArithmeticResult::Changed {
                            cas,
                            value,
                            is_new: true,
                            ..
                        },
                        old,
                    ) if old.is_none() || self.cache.options().when_full == WhenFull::Evict => {
                        let value = value.to_string().into_bytes();
                        self.map.insert(
                            key,
                            Expected {
                                value,
                                expiry: Expiry::Never,
                                cas,
                            },
                        );
                    }
                    (
                        ArithmeticResult::Changed {
                            cas,
                            value,
                            is_new: false,
                            ..
                        },
                        Some(old),
                    ) => {
                        assert_eq!(value, number(&old.value).wrapping_add(delta));
                        let value = format!("{value:<len$}", len = old.value.len()).into_bytes();
                        self.map.insert(key, Expected { value, cas, ..old });
                    }
                    (ArithmeticResult::NotANumber, Some(_))
                    | (ArithmeticResult::OutOfMemory, _) => {}
                    other => panic!("{other:?}"),
                }
            }
            Op::Advance { seconds } => {
                self.cache.advance(self.cache.now() + seconds);
                if self.flush_at.is_some_and(|at| at <= self.cache.now()) {
                    self.flush_at = None;
                    self.map.clear();
                }
            }
            Op::Flush { after } => {
                let at = self.cache.now() + after;
                self.cache.flush_all(at);
                self.flush_at = (after > 0).then_some(at);
                if after == 0 {
                    self.map.clear();
                }
            }
            Op::Batch { first, len } => {
                let keys: Vec<_> = (first..self.keys.min(first + len)).map(Self::key).collect();
                let batch: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                {
                    let guard = self.cache.pin();
                    let mut items = vec![None; batch.len()];
                    guard.multi_get(&batch, &mut items).unwrap();
                    for (item, key) in items.iter().zip(&batch) {
                        assert_eq!(
                            item.map(|item| item.cas()),
                            guard.peek(key).map(|item| item.cas())
                        );
                    }
                }
                (first..self.keys.min(first + len)).for_each(|key| {
                    self.known(key);
                });
            }
        }
    }

    fn check(&mut self) {
        (0..self.keys).for_each(|key| {
            self.known(key);
        });
        let stats = self.cache.stats();
        assert!(stats.memory_bytes <= stats.limit_bytes, "{stats:?}");
        assert!(
            stats.items
                >= self
                    .map
                    .iter()
                    .filter(|(_, e)| e.expiry == Expiry::Never)
                    .count() as u64
        );
    }
}

/// A value that the cache accepted as a number. Any white space of C's `isspace`, including a
/// vertical tab, may surround it.
fn number(value: &[u8]) -> u64 {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let digits = value.split(is_space).find(|word| !word.is_empty());
    std::str::from_utf8(digits.unwrap())
        .unwrap()
        .parse()
        .unwrap()
}

/// The hash's `seed` is part of the case, so that a failing case fails again.
fn pair(
    (memory_limit_bytes, when_full): (usize, WhenFull),
    seed: u64,
    keys: u16,
    is_exact: bool,
) -> Pair {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(memory_limit_bytes)
            .max_item_bytes(memory_limit_bytes / 4)
            .when_full(when_full)
            .seed(seed),
    );
    Pair {
        cache: cache.unwrap(),
        map: HashMap::new(),
        keys,
        version: 0,
        flush_at: None,
        is_exact,
    }
}

#[test]
fn a_number_followed_by_a_vertical_tab_is_changed() {
    let mut pair = pair((64 << 20, WhenFull::Evict), 1, 1, true);
    let count = || Op::Count { key: 0, delta: 1 };
    pair.run(count());
    // The appended byte is the version.
    pair.version = 0x0a;
    pair.run(Op::Store {
        key: 0,
        len: 1,
        expiry: None,
        mode: StoreMode::Append,
        right_cas: None,
    });
    pair.run(count());
    assert_eq!(pair.cache.get(&Pair::key(0)).unwrap(), b"8 ");
}

/// Few cases by default. Set `PROPTEST_CASES=5000` for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: match std::env::var_os("PROPTEST_CASES") {
            Some(_) => default.cases,
            None => 12,
        },
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_cache_with_enough_memory_equals_a_map(
        seed in any::<u64>(), ops in proptest::collection::vec(op(300, 20_000), 1..1500),
    ) {
        let mut pair = pair((64 << 20, WhenFull::Evict), seed, 300, true);
        ops.into_iter().for_each(|op| pair.run(op));
        pair.check();
        prop_assert_eq!(pair.cache.stats().evictions, 0);
    }

    #[test]
    fn a_full_cache_loses_items_but_never_returns_wrong_ones(
        seed in any::<u64>(), ops in proptest::collection::vec(op(2000, 60_000), 1000..2500),
    ) {
        let mut pair = pair((1 << 20, WhenFull::Evict), seed, 2000, false);
        ops.into_iter().for_each(|op| pair.run(op));
        pair.check();
    }

    #[test]
    fn a_refusing_cache_loses_nothing(
        seed in any::<u64>(), ops in proptest::collection::vec(op(2000, 60_000), 1000..2500),
    ) {
        let mut pair = pair((2 << 20, WhenFull::Refuse), seed, 2000, true);
        ops.into_iter().for_each(|op| pair.run(op));
        pair.check();
    }
}
