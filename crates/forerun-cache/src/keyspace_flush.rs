//! Empties one of several keyspaces, in bounded steps.
//!
//! ```text
//!   index   │ segment: its items of the keyspace go │ segment │ …      one step each, under its lock
//!   CAS     … │ at the beginning │ later: these stay
//! ```
//!
//! [`Cache::flush_all`](crate::Cache::flush_all) takes constant time, because each item has the
//! number of the flushes before it. Items have no such number for their keyspace.

use crate::cache::Cache;
use crate::keyspace::CacheKeyspace;
use crate::unlink::RemovalCause;

/// A flush of one keyspace, which takes one step for each part of the index, of about 1,500 items.
///
/// Afterwards, nothing is left that was stored before it began. What is stored meanwhile stays.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions, KeyspaceFlush};
///
/// let cache = Cache::new(CacheOptions::default().keyspaces(2))?;
/// let [first, second] = [0, 1].map(|number| cache.keyspace(number).unwrap());
/// let _ = cache.set(&first.stored_key(b"town"), "Oslo");
/// let _ = cache.set(&second.stored_key(b"town"), "Bern");
/// let mut flush = KeyspaceFlush::new(&cache, second);
/// while flush.step(&cache) {}
/// assert_eq!((cache.keyspace_len(first), cache.keyspace_len(second)), (1, 0));
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KeyspaceFlush {
    keyspace: CacheKeyspace,
    /// The last CAS number that was given before it began.
    last_cas: u64,
    /// The hash at which it continues; `None`: it is complete.
    next: Option<u64>,
}

impl KeyspaceFlush {
    /// A flush of what the keyspace has now.
    pub fn new(cache: &Cache, keyspace: CacheKeyspace) -> KeyspaceFlush {
        KeyspaceFlush {
            keyspace,
            last_cas: cache.last_cas(),
            next: (!cache.is_forked()).then_some(0),
        }
    }

    /// Empties the next part. Returns whether more steps follow.
    pub fn step(&mut self, cache: &Cache) -> bool {
        let Some(hash) = self.next else {
            return false;
        };
        let (_, next) = cache.sweep_segment(hash, RemovalCause::Removed, |item, _| {
            // Read under the lock, so that it covers all that was stored up to now. A number that
            // was not given yet is a client's own.
            let given = self.last_cas + 1..=cache.last_cas();
            self.keyspace.own_key(item.key()).is_some() && !given.contains(&item.cas())
        });
        cache.collect_waiting();
        self.next = next;
        next.is_some()
    }
}
