//! Deletes that failed. A server may come back with the values that it had, after a restart with a
//! snapshot or when the network is whole again. The client then deletes a key before it asks the
//! server for it.
//!
//! ```text
//!   delete k ─ fails ─> keys of the server          request ─> delete k │ the request
//!                                     ^                                 │
//!                                     └── the request fails: k stays ───┘
//! ```
//!
//! A request repeats a limited number of deletes. If it repeated all, it could take longer than a
//! call may take, and the server would fail again with every call.

use std::collections::HashMap;

use forerun_core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

/// The most deletes that a request repeats besides those of its own keys.
const REPEATED_MAX: usize = 1000;

/// The keys whose deletes failed, by server.
#[derive(Debug)]
pub(crate) struct FailedDeletes {
    keys_max: usize,
    /// The number of keys. Requests read it without the lock.
    count: AtomicUsize,
    dropped: AtomicU64,
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    /// Each key with the number of the delete that failed last.
    servers: Vec<HashMap<Box<[u8]>, u64>>,
    next_number: u64,
}

/// A delete that a request repeats.
#[derive(Debug)]
pub(crate) struct RepeatedDelete {
    pub(crate) key: Box<[u8]>,
    number: u64,
}

/// The deletes that a request repeats, and how many of them have been answered.
#[derive(Debug, Default)]
pub(crate) struct RepeatedDeletes {
    deletes: Vec<RepeatedDelete>,
    answers: usize,
    refused: u64,
}

impl RepeatedDeletes {
    pub(crate) fn new(deletes: Vec<RepeatedDelete>) -> RepeatedDeletes {
        RepeatedDeletes {
            deletes,
            ..RepeatedDeletes::default()
        }
    }

    /// Whether the next answer is that of a delete.
    pub(crate) fn is_waiting(&self) -> bool {
        self.answers < self.deletes.len()
    }

    /// A delete was answered.
    pub(crate) fn answered(&mut self, is_deleted: bool) {
        self.answers += 1;
        self.refused += u64::from(!is_deleted);
    }
}

impl FailedDeletes {
    pub(crate) fn new(servers: usize, keys_max: usize) -> FailedDeletes {
        let keys = Keys {
            servers: vec![HashMap::new(); servers],
            next_number: 0,
        };
        FailedDeletes {
            keys_max,
            count: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            keys: Mutex::new(keys),
        }
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether failed deletes are kept.
    pub(crate) fn is_on(&self) -> bool {
        self.keys_max > 0
    }

    /// The number of keys that wait for their server.
    pub(crate) fn count(&self) -> usize {
        // Relaxed, here and below: a request that reads the number before a delete on another
        // thread has failed runs at the same time as the delete. The keys are behind the lock.
        self.count.load(Ordering::Relaxed)
    }

    /// The number of keys that were not kept, because too many wait or the server refuses them.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Keeps a key whose delete failed.
    pub(crate) fn add(&self, server: usize, key: &[u8]) {
        let mut keys = self.keys();
        keys.next_number += 1;
        let number = keys.next_number;
        if let Some(known) = keys.servers[server].get_mut(key) {
            *known = number;
        } else if self.count() < self.keys_max {
            keys.servers[server].insert(key.into(), number);
            self.count.fetch_add(1, Ordering::Relaxed);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The deletes that the next request to a server repeats: those of the request's own keys, and
    /// some others.
    pub(crate) fn next<'k>(
        &self,
        server: usize,
        own: impl IntoIterator<Item = &'k [u8]>,
    ) -> Vec<RepeatedDelete> {
        if self.count() == 0 {
            return Vec::new();
        }
        let keys = self.keys();
        let waiting = &keys.servers[server];
        let is_long = waiting.len() > REPEATED_MAX;
        let own = own.into_iter().filter(|_| is_long);
        let own = own.filter_map(|key| waiting.get_key_value(key));
        let repeated = own.chain(waiting.iter().take(REPEATED_MAX));
        let repeated = repeated.map(|(key, number)| RepeatedDelete {
            key: key.clone(),
            number: *number,
        });
        repeated.collect()
    }

    /// The server has answered these deletes. A key stays if another delete has failed since.
    pub(crate) fn done(&self, server: usize, repeated: RepeatedDeletes) {
        if repeated.deletes.is_empty() {
            return;
        }
        // Relaxed: a statistic.
        self.dropped.fetch_add(repeated.refused, Ordering::Relaxed);
        let mut keys = self.keys();
        for delete in repeated.deletes {
            let known = &mut keys.servers[server];
            if known.get(&delete.key) == Some(&delete.number) {
                known.remove(&delete.key);
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_until_its_last_failed_delete_is_repeated() {
        let deletes = FailedDeletes::new(2, 3);
        let keys = |server| {
            let next = deletes.next(server, None);
            let mut keys: Vec<_> = next.into_iter().map(|delete| delete.key).collect();
            keys.sort();
            keys
        };
        for key in ["a", "b", "a", "b"] {
            deletes.add(1, key.as_bytes());
        }
        assert_eq!(
            (keys(0).len(), keys(1)),
            (0, vec![(*b"a").into(), (*b"b").into()])
        );
        let repeated = || RepeatedDeletes::new(deletes.next(1, None));
        let before = repeated();
        deletes.add(1, b"a");
        deletes.done(1, before);
        assert_eq!(keys(1), [(*b"a").into()]);
        deletes.done(1, repeated());
        assert_eq!((keys(1).len(), deletes.count()), (0, 0));
    }

    #[test]
    fn a_request_repeats_some_deletes_and_those_of_its_keys() {
        let deletes = FailedDeletes::new(1, 10 * REPEATED_MAX);
        let keys: Vec<[u8; 4]> = (0..5000_u32).map(u32::to_le_bytes).collect();
        for key in &keys {
            deletes.add(0, key);
        }
        let mut requests = 0;
        for own in keys.chunks(700) {
            let next = deletes.next(0, own.iter().map(|key| &key[..]));
            assert!(next.len() <= REPEATED_MAX + own.len());
            deletes.done(0, RepeatedDeletes::new(next));
            let waiting = deletes.keys();
            let waiting = &waiting.servers[0];
            assert!(own.iter().all(|key| !waiting.contains_key(&key[..])));
            requests += usize::from(!waiting.is_empty());
        }
        assert!(requests > 1);
        assert_eq!(deletes.count(), 0);
    }

    #[test]
    fn memory_is_bounded_and_what_is_dropped_is_counted() {
        let deletes = FailedDeletes::new(2, 3);
        for number in 0..10_u8 {
            deletes.add(usize::from(number % 2), &[number]);
        }
        assert_eq!((deletes.count(), deletes.dropped()), (3, 7));
        deletes.done(0, RepeatedDeletes::new(deletes.next(0, None)));
        deletes.add(1, &[99]);
        assert_eq!((deletes.count(), deletes.dropped()), (2, 7));
    }
}
