//! Reading as of one sequence number: what the store itself and its snapshots share.

use std::borrow::Cow;
use std::ops::{Bound, RangeBounds};

use super::Inner;
use super::iter::Iter;
use crate::memtable::{Bytewise, Comparator, Lookup, ReverseBytewise, Strategy};
use crate::{Error, Result, Values};

/// The store as of a sequence number.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) inner: &'a Inner,
    pub(super) sequence: u64,
}

impl<'a> View<'a> {
    pub(super) fn get(self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.counters.count_lookups(1);
        match self.inner.memtable.get(key, self.sequence)? {
            Lookup::Value(value) => Ok(Some(value.to_vec())),
            Lookup::Missing | Lookup::Deleted => Ok(None),
        }
    }

    pub(super) fn multi_get<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        strategy: Strategy,
        values: &mut Values,
    ) {
        self.inner.counters.count_lookups(keys.len());
        self.inner
            .memtable
            .multi_get_values(keys, self.sequence, strategy, values);
    }

    pub(super) fn range<K: AsRef<[u8]>>(self, range: impl RangeBounds<K>) -> Iter<'a> {
        let owned = |bound: Bound<&K>| bound.map(|key| Cow::Owned(key.as_ref().to_vec()));
        self.iter(owned(range.start_bound()), owned(range.end_bound()))
    }

    pub(super) fn prefix(self, prefix: &[u8]) -> Iter<'a> {
        let with_prefix = Bound::Included(Cow::Owned(prefix.to_vec()));
        let behind = match successor(prefix) {
            Some(key) => Bound::Excluded(Cow::Owned(key)),
            None => Bound::Unbounded,
        };
        let name = self.inner.comparator.name();
        if name == Bytewise.name() {
            self.iter(with_prefix, behind)
        } else if name == ReverseBytewise.name() {
            self.iter(behind, with_prefix)
        } else {
            let comparator = name.to_owned();
            self.iter(Bound::Unbounded, Bound::Unbounded)
                .failing(Error::PrefixOrder { comparator })
        }
    }

    pub(super) fn iter(self, start: Bound<Cow<'a, [u8]>>, end: Bound<Cow<'a, [u8]>>) -> Iter<'a> {
        Iter::new(
            &self.inner.memtable,
            &*self.inner.comparator,
            self.sequence,
            start,
            end,
        )
    }
}

/// The first key, by bytes, behind all that begin with `prefix`; `None` if there is none, because
/// `prefix` is empty or all `0xff`.
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
