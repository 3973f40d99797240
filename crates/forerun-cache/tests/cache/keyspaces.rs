//! Several keyspaces in one cache: no key of one is a key of another, and each is counted and
//! emptied on its own.

use std::collections::HashMap;

use crate::testing::set;
use forerun_cache::{
    Cache, CacheKeyspace, CacheOptions, Clock, Delete, DeleteResult, Error, Expiry, KeyspaceFlush,
    Store, StoreResult,
};
use proptest::prelude::*;

const KEYSPACES: u16 = 3;

fn cache() -> Cache {
    let options = CacheOptions::default()
        .clock(Clock::Manual)
        .memory_limit_bytes(16 << 20)
        .keyspaces(KEYSPACES);
    Cache::new(options).expect("the options are valid")
}

fn keyspaces(cache: &Cache) -> Vec<CacheKeyspace> {
    (0..KEYSPACES)
        .map(|number| cache.keyspace(number).expect("there are so many"))
        .collect()
}

fn flush(cache: &Cache, keyspace: CacheKeyspace) {
    let mut flush = KeyspaceFlush::new(cache, keyspace);
    while flush.step(cache) {}
}

#[derive(Clone, Debug)]
enum Step {
    Set {
        keyspace: usize,
        key: Vec<u8>,
        value: u8,
    },
    Expiring {
        keyspace: usize,
        key: Vec<u8>,
    },
    Delete {
        keyspace: usize,
        key: Vec<u8>,
    },
    Flush(usize),
    FlushAll,
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || {
        prop_oneof![
            "[a-c]{0,2}".prop_map(String::into_bytes),
            Just(b"\n".to_vec()),
            Just(b"\n\x01a".to_vec()),
            Just(b"\n\x00".to_vec()),
        ]
    };
    let keyspace = || 0..usize::from(KEYSPACES);
    prop_oneof![
        8 => (keyspace(), key(), any::<u8>())
            .prop_map(|(keyspace, key, value)| Step::Set { keyspace, key, value }),
        2 => (keyspace(), key()).prop_map(|(keyspace, key)| Step::Expiring { keyspace, key }),
        3 => (keyspace(), key()).prop_map(|(keyspace, key)| Step::Delete { keyspace, key }),
        1 => keyspace().prop_map(Step::Flush),
        1 => Just(Step::FlushAll),
        1 => Just(Step::Tick),
    ]
}

proptest! {
    #[test]
    fn keyspaces_are_maps_of_their_own(steps in proptest::collection::vec(step(), 0..200)) {
        let cache = cache();
        let keyspaces = keyspaces(&cache);
        let mut models = vec![HashMap::<Vec<u8>, Option<u8>>::new(); keyspaces.len()];
        for step in steps {
            match step {
                Step::Set { keyspace, key, value } => {
                    set(&cache, &keyspaces[keyspace].stored_key(&key), &[value]);
                    models[keyspace].insert(key, Some(value));
                }
                Step::Expiring { keyspace, key } => {
                    let stored = keyspaces[keyspace].stored_key(&key);
                    let expiry = Expiry::At(cache.now() + 1);
                    let store = Store { expiry, ..Store::set(&stored, b"x") };
                    let is_stored = matches!(cache.store(store), StoreResult::Stored { .. });
                    prop_assert!(is_stored);
                    models[keyspace].insert(key, None);
                }
                Step::Delete { keyspace, key } => {
                    let stored = keyspaces[keyspace].stored_key(&key);
                    let deleted = cache.delete(Delete::key(&stored));
                    let was_there = models[keyspace].remove(&key).is_some();
                    prop_assert_eq!(deleted == DeleteResult::Deleted, was_there);
                }
                Step::Flush(keyspace) => {
                    flush(&cache, keyspaces[keyspace]);
                    models[keyspace].clear();
                }
                Step::FlushAll => {
                    cache.flush_all(cache.now());
                    models.iter_mut().for_each(HashMap::clear);
                }
                Step::Tick => {
                    cache.advance(cache.now() + 1);
                    cache.remove_expired();
                    models.iter_mut().for_each(|model| model.retain(|_, value| value.is_some()));
                }
            }
            for (&keyspace, model) in keyspaces.iter().zip(&models) {
                prop_assert_eq!(cache.keyspace_len(keyspace), model.len() as u64);
                for (key, value) in model {
                    let expected = vec![value.unwrap_or(b'x')];
                    prop_assert_eq!(cache.get(keyspace.stored_key(key)), Some(expected));
                }
            }
        }
        let total: usize = models.iter().map(HashMap::len).sum();
        prop_assert_eq!(cache.len(), total as u64);
    }
}

#[test]
fn a_flush_of_a_keyspace_takes_what_was_stored_before_it_in_steps() {
    let cache = cache();
    let [first, second, _] = keyspaces(&cache)[..] else {
        panic!("there are three")
    };
    for number in 0..20_000_u32 {
        for keyspace in [first, second] {
            set(&cache, &keyspace.stored_key(&number.to_be_bytes()), b"old");
        }
    }
    let mut flush = KeyspaceFlush::new(&cache, second);
    let mut steps = 0;
    loop {
        let before = cache.keyspace_len(second);
        let is_more = flush.step(&cache);
        assert!(
            before - cache.keyspace_len(second) <= 2_000,
            "a step is bounded"
        );
        steps += 1;
        set(
            &cache,
            &second.stored_key(format!("new {steps}").as_bytes()),
            b"new",
        );
        if !is_more {
            break;
        }
    }
    assert!(steps > 10, "{steps} steps");
    assert_eq!(cache.keyspace_len(second), steps);
    assert_eq!(cache.keyspace_len(first), 20_000);
    assert_eq!(cache.stats().expired, 0, "they were removed");
}

#[test]
fn evicted_items_are_not_counted() {
    let cache = cache();
    let keyspaces = keyspaces(&cache);
    for number in 0..200_000_u32 {
        let keyspace = keyspaces[number as usize % keyspaces.len()];
        set(
            &cache,
            &keyspace.stored_key(&number.to_be_bytes()),
            &[7; 200],
        );
    }
    let counted: u64 = keyspaces.iter().map(|one| cache.keyspace_len(*one)).sum();
    assert!(cache.stats().evictions > 0);
    assert_eq!(counted, cache.len());
    let mut found = vec![0; keyspaces.len()];
    let mut cursor = 0;
    loop {
        cursor = cache.pin().scan_keys(cursor, 1_000, |item| {
            for (keyspace, found) in keyspaces.iter().zip(&mut found) {
                *found += u64::from(keyspace.own_key(item.key()).is_some());
            }
        });
        if cursor == 0 {
            break;
        }
    }
    let lens: Vec<u64> = keyspaces
        .iter()
        .map(|one| cache.keyspace_len(*one))
        .collect();
    assert_eq!(found, lens);
}

#[test]
fn a_cache_has_1_to_256_keyspaces() {
    for (keyspaces, is_valid) in [(0, false), (1, true), (256, true), (257, false)] {
        let made = Cache::new(CacheOptions::default().keyspaces(keyspaces));
        assert_eq!(made.is_ok(), is_valid, "{keyspaces}");
        if let Err(error) = made {
            assert_eq!(error, Error::Keyspaces { keyspaces });
        }
    }
}
