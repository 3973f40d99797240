//! Reads at one sequence number: shared by the store and its snapshots.
//!
//! ```text
//!   keys -> active memtable -missing-> full ones, newest first -missing-> runs
//!           all at once, interleaved                                      all at once, from
//!                                                                         memory and disk
//! ```

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use arc_swap::Guard;
use forerun_core::prefetch_ahead;
use forerun_core::sync::time;

use super::Inner;
use super::cursor::Cursor;
use super::iter::Iter;
use super::keyspace_data::KeyspaceData;
use super::snapshots::{ReadPoint, SnapshotPoint};
use super::super_version::SuperVersion;
use crate::memtable::{Bytewise, Comparator, CoveredKey, Lookup, ReverseBytewise};
use crate::panics;
use crate::run::SearchKey;
use crate::run::lookup::Found;
use crate::tree::lookup;
use crate::{Error, Result, Values};

/// The maximum number of keys that are looked up in runs together. More keys in flight hide no more
/// latency, and the state of each is on the stack.
const RUN_BATCH: usize = 256;

/// A keyspace at one moment.
pub(super) struct View<'a> {
    inner: &'a Inner,
    pub(super) keyspace: &'a Arc<KeyspaceData>,
    pub(super) version: Guard<Arc<SuperVersion>>,
    pub(super) read_point: ReadPoint,
}

impl<'a> View<'a> {
    /// A keyspace as it is now.
    pub(super) fn now(inner: &'a Inner, keyspace: &'a Arc<KeyspaceData>) -> View<'a> {
        // Load the super version first. If the sequence number were older, a compaction in between
        // could have dropped versions that it needs. A newer number does no harm: newer entries are
        // not in the super version.
        inner.write_path.prefetch();
        let version = keyspace.version.load();
        version.prefetch();
        let now = inner.write_path.read_point(keyspace);
        let read_point = ReadPoint {
            expired_sequence: now.expired_sequence.max(version.expired_sequence),
            ..now
        };
        View {
            inner,
            keyspace,
            version,
            read_point,
        }
    }

    /// A keyspace as a live snapshot sees it.
    pub(super) fn as_of(
        inner: &'a Inner,
        keyspace: &'a Arc<KeyspaceData>,
        point: &SnapshotPoint,
    ) -> View<'a> {
        // A super version loaded after the snapshot was made has everything that was visible then.
        let version = keyspace.version.load();
        version.prefetch();
        View {
            inner,
            keyspace,
            version,
            read_point: point.in_keyspace(keyspace.id()),
        }
    }

    /// The same view, unless the keyspace was dropped.
    pub(super) fn checked(self) -> Result<View<'a>> {
        if self.version.is_dropped {
            Err(self.keyspace.dropped())
        } else {
            Ok(self)
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let may_panic = self.keyspace.order().may_panic();
        panics::catch_if(may_panic, "looking up a key", || {
            self.find(key, <[u8]>::to_vec)
        })
    }

    /// Passes the value of a key to `read`, at most once.
    pub(super) fn read(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<()> {
        if !self.keyspace.order().may_panic() {
            return self.find(key, read).map(drop);
        }
        // A panic in `read` belongs to its caller. It is not caught together with those of the
        // comparator.
        if let Some(value) = self.get(key)? {
            read(&value);
        }
        Ok(())
    }

    fn find<T>(&self, key: &[u8], take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        if self.inner.counters.count_lookup() {
            self.find_timed(key, take)
        } else {
            self.find_untimed(key, take)
        }
    }

    #[cold]
    #[inline(never)]
    fn find_timed<T>(&self, key: &[u8], take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let begun = time::now();
        let found = self.find_untimed(key, take);
        self.inner.counters.get.record(time::elapsed(begun));
        self.inner.retry_filters(begun);
        found
    }

    /// The steps of [`find_all`](Self::find_all) for one key. Compiled for one key, the code of the
    /// batch takes 15% more instructions to find a key in the memtable.
    #[inline(always)]
    fn find_untimed<T>(&self, key: &[u8], take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let covered = self.covered(key);
        let read_point = self.read_point.with_deleted_up_to(covered.deleted_sequence);
        for table in &self.version.tables {
            match table.memtable.get_as_of(key, read_point)? {
                Lookup::Value(value) => return Ok(Some(take(value))),
                Lookup::Deleted => return Ok(None),
                Lookup::Missing => {}
            }
        }
        if self.version.levels.run_count() == 0 {
            return Ok(None);
        }
        let key = self.search_key(covered);
        lookup::get(
            &self.version.levels,
            key,
            &self.version.reading,
            |found| match found {
                Found::Value(value) => Some(take(value)),
                Found::Deleted | Found::Missing => None,
            },
        )
    }

    pub(super) fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        let may_panic = self.keyspace.order().may_panic();
        panics::catch_if(may_panic, "looking up a batch of keys", || {
            self.find_all(keys, values);
            Ok(())
        })
        .inspect_err(|_| values.reset(keys.len()))
    }

    fn find_all<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) {
        values.reset(keys.len());
        if let [key] = keys {
            let found = self.find(key.as_ref(), |value| values.set_found(0, value));
            if let Err(error) = found {
                values.set_failed(0, error);
            }
            return;
        }
        let is_timed = self.inner.counters.count_lookups(keys.len());
        let begun = is_timed.then(time::now);
        let mut missing = values.take_missing();
        let older = match self.version.tables.split_first() {
            // Each key is first looked up in the range deletions.
            _ if self.version.has_ranges() => {
                missing.extend(0..keys.len() as u32);
                &self.version.tables[..]
            }
            Some((newest, older)) => {
                let memtable = &newest.memtable;
                memtable.multi_get_as_of(keys, self.read_point, |position, lookup| {
                    if is_missing(lookup, position, values) {
                        missing.push(position as u32);
                    }
                });
                older
            }
            // The keyspace was not written to recently.
            None => {
                missing.extend(0..keys.len() as u32);
                &[]
            }
        };
        for batch in missing.chunks_mut(RUN_BATCH) {
            self.look_below(keys, batch, older, values);
        }
        values.keep_missing(missing);
        if let Some(begun) = begun {
            self.inner.counters.multi_get.record(time::elapsed(begun));
            self.inner.retry_filters(begun);
        }
    }

    /// The key, with the newest range deletion that covers it.
    fn covered<'k>(&self, key: &'k [u8]) -> CoveredKey<'k> {
        CoveredKey {
            bytes: key,
            deleted_sequence: self.version.cover(key, self.read_point.sequence),
        }
    }

    fn search_key<'k>(&self, key: CoveredKey<'k>) -> SearchKey<'k> {
        let read_point = self.read_point.with_deleted_up_to(key.deleted_sequence);
        SearchKey {
            expired_sequence: read_point.expired_sequence,
            ..SearchKey::new(key.bytes, read_point.sequence)
        }
    }

    /// Looks up keys in these memtables and in the runs, at most [`RUN_BATCH`] of them.
    fn look_below<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        positions: &mut [u32],
        tables: &[Arc<super::super_version::Table>],
        values: &mut Values,
    ) {
        let has_runs = self.version.levels.run_count() != 0;
        if tables.is_empty() && !has_runs {
            return;
        }
        let mut left = positions.len();
        let mut batch = [CoveredKey::NONE; RUN_BATCH];
        let has_ranges = self.version.has_ranges();
        let wanted = prefetch_ahead(left, |i| keys[positions[i] as usize].as_ref());
        for (key, bytes) in batch.iter_mut().zip(wanted) {
            *key = if has_ranges {
                self.covered(bytes)
            } else {
                CoveredKey::outside_ranges(bytes)
            };
        }
        for table in tables {
            let mut missing = [false; RUN_BATCH];
            let memtable = &table.memtable;
            memtable.multi_get_as_of(&batch[..left], self.read_point, |i, lookup| {
                missing[i] = is_missing(lookup, positions[i] as usize, values);
            });
            // Keys that are still missing move to the front, for the next lookup.
            let mut kept = 0;
            for i in 0..left {
                if missing[i] {
                    positions[kept] = positions[i];
                    batch[kept] = batch[i];
                    kept += 1;
                }
            }
            left = kept;
            if left == 0 {
                return;
            }
        }
        if !has_runs {
            return;
        }
        let mut search_keys = [SearchKey::NONE; RUN_BATCH];
        for (search_key, key) in search_keys.iter_mut().zip(&batch[..left]) {
            *search_key = self.search_key(*key);
        }
        let search_keys = &search_keys[..left];
        let reading = &self.version.reading;
        lookup::multi_get(&self.version.levels, search_keys, reading, |i, found| {
            let position = positions[i] as usize;
            match found {
                Ok(Found::Value(value)) => values.set_found(position, value),
                Ok(Found::Deleted | Found::Missing) => {}
                Err(error) => values.set_failed(position, error),
            }
        });
    }

    pub(super) fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        // The prefetch runs while the bounds are copied.
        self.keyspace.cursors.prefetch();
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        self.iter(owned(range.start_bound()), owned(range.end_bound()))
    }

    pub(super) fn prefix(&self, prefix: &[u8]) -> Iter {
        self.keyspace.cursors.prefetch();
        let with_prefix = Bound::Included(prefix.to_vec());
        let end = match successor(prefix) {
            Some(key) => Bound::Excluded(key),
            None => Bound::Unbounded,
        };
        let name = self.keyspace.comparator_name();
        if name == Bytewise.name() {
            self.iter(with_prefix, end)
        } else if name == ReverseBytewise.name() {
            self.iter(end, with_prefix)
        } else {
            let comparator = name.to_owned();
            self.iter(Bound::Unbounded, Bound::Unbounded)
                .failing(Error::PrefixOrder { comparator })
        }
    }

    pub(super) fn iter(&self, start: Bound<Vec<u8>>, end: Bound<Vec<u8>>) -> Iter {
        let cursor = Cursor::open(self.keyspace, &self.version, self.read_point);
        let iter = Iter::new(cursor, (start, end));
        if self.version.is_dropped {
            iter.failing(self.keyspace.dropped())
        } else {
            iter
        }
    }
}

/// Whether a memtable says nothing of a key. Otherwise keeps its answer.
#[inline(always)]
fn is_missing(lookup: Result<Lookup<'_>>, position: usize, values: &mut Values) -> bool {
    match lookup {
        Ok(Lookup::Value(value)) => values.set_found(position, value),
        Ok(Lookup::Deleted) => {}
        Ok(Lookup::Missing) => return true,
        Err(error) => values.set_failed(position, error),
    }
    false
}

/// The first key in byte order after all keys that start with `prefix`. `None` if there is none,
/// because `prefix` is empty or all `0xff`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut key = prefix[..=kept].to_vec();
    key[kept] += 1;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_successor_of_a_prefix_carries_over_its_last_full_bytes() {
        assert_eq!(successor(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xfe\xff"), Some(b"\xff".to_vec()));
        assert_eq!(successor(b"\xff\xff"), None);
        assert_eq!(successor(b""), None);
        assert_eq!(successor(b"a\x00"), Some(b"a\x01".to_vec()));
    }
}
