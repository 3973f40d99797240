//! Compares computations, milliseconds, kinds and keys of all lengths with a plain map, under a
//! clock that the test advances by milliseconds.

use forerun_cache::{
    Cache, CacheOptions, Clock, ComputeOp, ComputePut, ComputeResult, Crawler, DeleteResult,
    Expiry, ItemKind, Store, StoreMode, StoreResult, ValuePart,
};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
enum When {
    Never,
    Seconds(u32),
    Ms(u64),
    Past,
}

#[derive(Clone, Debug)]
enum Op {
    Store {
        key: usize,
        len: usize,
        when: When,
        kind: ItemKind,
        mode: StoreMode,
    },
    /// Appends or cuts, and keeps the rest of the item.
    Edit {
        key: usize,
        suffix: Vec<u8>,
        keep: usize,
    },
    Expire {
        key: usize,
        when: When,
    },
    Touch {
        key: usize,
        when: When,
    },
    Remove {
        key: usize,
    },
    Keep {
        key: usize,
    },
    Delete {
        key: usize,
    },
    AdvanceMs(u64),
    AdvanceSeconds(u32),
    RemoveExpired,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..KEYS;
    let when = || {
        prop_oneof![
            2 => Just(When::Never),
            2 => (0..4u32).prop_map(When::Seconds),
            6 => (0..4000u64).prop_map(When::Ms),
            1 => (0..100_000u64).prop_map(When::Ms),
            1 => Just(When::Past),
        ]
    };
    let kind = prop_oneof![Just(ItemKind::String), Just(ItemKind::Hash)];
    let mode = prop_oneof![
        4 => Just(StoreMode::Set),
        1 => Just(StoreMode::Add),
        1 => Just(StoreMode::Replace),
        1 => Just(StoreMode::Append),
    ];
    let len = prop_oneof![4 => 0..200usize, 1 => 0..3000usize, 1 => 60_000..90_000usize];
    let suffix = proptest::collection::vec(any::<u8>(), 0..40);
    let keep = prop_oneof![Just(usize::MAX), 0..100usize];
    prop_oneof![
        8 => (key(), len, when(), kind, mode)
            .prop_map(|(key, len, when, kind, mode)| Op::Store { key, len, when, kind, mode }),
        6 => (key(), suffix, keep)
            .prop_map(|(key, suffix, keep)| Op::Edit { key, suffix, keep }),
        3 => (key(), when()).prop_map(|(key, when)| Op::Expire { key, when }),
        3 => (key(), when()).prop_map(|(key, when)| Op::Touch { key, when }),
        1 => key().prop_map(|key| Op::Remove { key }),
        1 => key().prop_map(|key| Op::Keep { key }),
        1 => key().prop_map(|key| Op::Delete { key }),
        4 => (0..1500u64).prop_map(Op::AdvanceMs),
        1 => (0..3u32).prop_map(Op::AdvanceSeconds),
        1 => Just(Op::RemoveExpired),
    ]
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Expected {
    value: Vec<u8>,
    flags: u32,
    kind: ItemKind,
    expiry: Expiry,
}

const KEYS: usize = 8;

struct Pair {
    cache: Cache,
    map: HashMap<usize, Expected>,
    keys: Vec<Vec<u8>>,
    stores: u32,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let options = CacheOptions::default().clock(Clock::Manual).seed(seed);
        let cache = Cache::new(options.memory_limit_bytes(32 << 20)).unwrap();
        let lens = [0, 1, 4, 250, 251, 255, 256, cache.key_bytes_max()];
        let keys = lens.iter().enumerate();
        Pair {
            keys: keys.map(|(n, &len)| vec![n as u8; len]).collect(),
            cache,
            map: HashMap::new(),
            stores: 0,
        }
    }

    fn expiry(&self, when: When) -> Expiry {
        match when {
            When::Never => Expiry::Never,
            When::Seconds(seconds) => Expiry::At(self.cache.now() + seconds),
            When::Ms(ms) => Expiry::AtMs(self.cache.now_ms() + ms),
            When::Past => Expiry::AtMs(7),
        }
    }

    fn live(&self, key: usize) -> Option<Expected> {
        let expected = self.map.get(&key)?;
        let is_live = match expected.expiry {
            Expiry::At(second) => second > self.cache.now(),
            Expiry::AtMs(ms) => ms > self.cache.now_ms(),
            _ => true,
        };
        is_live.then(|| expected.clone())
    }

    /// Stores what is expected of a key.
    fn put(&mut self, key: usize, expected: Expected) {
        self.map.insert(key, expected);
    }

    fn found(&self, key: usize) -> Option<Expected> {
        let guard = self.cache.pin();
        let item = guard.peek(&self.keys[key])?;
        assert_eq!(item.key(), self.keys[key]);
        assert_eq!(item.expiry_ms(), item.expiry().ms(0));
        Some(Expected {
            value: item.value().to_vec(),
            flags: item.flags(),
            kind: item.kind(),
            expiry: item.expiry(),
        })
    }

    fn check(&self) {
        for key in 0..KEYS {
            assert_eq!(self.found(key), self.live(key), "key {key}");
        }
        let mut crawled = HashMap::new();
        let mut crawler = Crawler::default();
        while crawler.step(&self.cache, 100, |item| {
            crawled.insert(item.key().to_vec(), item.value().to_vec());
        }) {}
        let live = (0..KEYS).filter_map(|key| {
            let expected = self.live(key)?;
            Some((self.keys[key].clone(), expected.value))
        });
        assert_eq!(crawled, live.collect::<HashMap<_, _>>());
        assert!(self.cache.len() >= crawled.len() as u64);
    }

    fn run(&mut self, op: Op) {
        self.stores += 1;
        match op {
            Op::Store {
                key,
                len,
                when,
                kind,
                mode,
            } => {
                let expected = Expected {
                    value: vec![self.stores as u8; len],
                    flags: self.stores,
                    kind,
                    expiry: self.expiry(when),
                };
                let stored = self.cache.store(Store {
                    flags: expected.flags,
                    kind,
                    expiry: expected.expiry,
                    mode,
                    ..Store::set(&self.keys[key], &expected.value)
                });
                let expected = match (self.live(key), mode) {
                    (None, StoreMode::Set | StoreMode::Add) => Some(expected),
                    (Some(_), StoreMode::Set | StoreMode::Replace) => Some(expected),
                    (Some(old), StoreMode::Append) => Some(Expected {
                        value: [old.value, expected.value].concat(),
                        kind,
                        ..old
                    }),
                    _ => None,
                };
                match (expected, stored) {
                    (Some(expected), StoreResult::Stored { .. }) => self.put(key, expected),
                    (Some(expected), StoreResult::TooLarge) => {
                        let limit = self.cache.options().max_item_bytes;
                        assert!(expected.value.len() + self.keys[key].len() + 32 > limit);
                    }
                    (expected, stored) => {
                        assert_eq!((expected, stored), (None, StoreResult::NotStored))
                    }
                }
            }
            Op::Edit { key, suffix, keep } => {
                let old = self.live(key);
                let mut seen = None;
                let result = self.cache.compute(&self.keys[key], |item| {
                    seen = item.map(|item| item.value().to_vec());
                    let parts = vec![ValuePart::Old(0..keep), ValuePart::Bytes(&suffix)];
                    ComputeOp::Put(ComputePut {
                        flags: item.map_or(3, |item| item.flags()),
                        kind: item.map_or(ItemKind::Hash, |item| item.kind()),
                        expiry: item.map_or(Expiry::Never, |item| item.expiry()),
                        ..ComputePut::new(parts)
                    })
                });
                assert_eq!(seen, old.as_ref().map(|old| old.value.clone()));
                let mut new = old.unwrap_or(Expected {
                    value: Vec::new(),
                    flags: 3,
                    kind: ItemKind::Hash,
                    expiry: Expiry::Never,
                });
                new.value.truncate(keep);
                new.value.extend_from_slice(&suffix);
                match result {
                    ComputeResult::Stored { cas } => {
                        let guard = self.cache.pin();
                        assert_eq!(guard.peek(&self.keys[key]).unwrap().cas(), cas);
                        drop(guard);
                        self.put(key, new);
                    }
                    ComputeResult::TooLarge => {
                        let limit = self.cache.options().max_item_bytes;
                        assert!(new.value.len() + self.keys[key].len() + 32 > limit);
                    }
                    other => panic!("{other:?}"),
                }
            }
            Op::Expire { key, when } => {
                let expiry = self.expiry(when);
                let result = self
                    .cache
                    .compute(&self.keys[key], |_| ComputeOp::Expire(expiry));
                let old = self.live(key);
                match old {
                    Some(old) => {
                        assert_eq!(result, ComputeResult::Touched);
                        self.put(key, Expected { expiry, ..old });
                    }
                    None => assert_eq!(result, ComputeResult::Kept),
                }
            }
            Op::Touch { key, when } => {
                let (old, expiry) = (self.live(key), self.expiry(when));
                let is_touched = self.cache.touch(&self.keys[key], expiry);
                assert_eq!(is_touched, old.is_some());
                if let Some(old) = old {
                    self.put(key, Expected { expiry, ..old });
                }
            }
            Op::Remove { key } => {
                let removed = self.cache.compute(&self.keys[key], |_| ComputeOp::Remove);
                let expected = match self.live(key) {
                    Some(_) => ComputeResult::Removed,
                    None => ComputeResult::Kept,
                };
                assert_eq!(removed, expected);
                self.map.remove(&key);
            }
            Op::Keep { key } => {
                let kept = self.cache.compute(&self.keys[key], |_| ComputeOp::Keep);
                assert_eq!(kept, ComputeResult::Kept);
            }
            Op::Delete { key } => {
                let deleted = self.cache.delete(&self.keys[key]);
                let is_there = self.live(key).is_some();
                assert_eq!(deleted == DeleteResult::Deleted, is_there);
                self.map.remove(&key);
            }
            Op::AdvanceMs(ms) => self.cache.advance_ms(self.cache.now_ms() + ms),
            Op::AdvanceSeconds(seconds) => self.cache.advance(self.cache.now() + seconds),
            Op::RemoveExpired => {
                self.cache.remove_expired();
                let live = (0..KEYS).filter(|&key| self.live(key).is_some()).count();
                assert_eq!(self.cache.len(), live as u64);
                assert_eq!(self.cache.len(), self.cache.stats().items);
            }
        }
    }
}

/// Few cases by default. Set `PROPTEST_CASES=5000` for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: match std::env::var_os("PROPTEST_CASES") {
            Some(_) => default.cases,
            None => 24,
        },
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_cache_with_computations_equals_a_map(
        seed in any::<u64>(), ops in proptest::collection::vec(op(), 1..300),
    ) {
        let mut pair = Pair::new(seed);
        for op in ops {
            pair.run(op);
            pair.check();
        }
    }
}
