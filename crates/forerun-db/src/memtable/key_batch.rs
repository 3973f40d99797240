//! The keys of a batch of lookups, and what they see.

use forerun_core::prefetch_ahead;

use super::node::Target;
use super::skip_list::SkipList;
use crate::versions::ReadPoint;

/// A key of a batch.
pub(crate) trait BatchKey {
    fn bytes(&self) -> &[u8];

    /// Versions of this key up to this sequence number are deleted, besides those that are expired
    /// for the whole batch.
    #[inline(always)]
    fn deleted_sequence(&self) -> u64 {
        0
    }
}

impl<K: AsRef<[u8]>> BatchKey for K {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

/// A key that a range deletion may cover.
#[derive(Clone, Copy)]
pub(crate) struct CoveredKey<'k> {
    pub(crate) bytes: &'k [u8],
    /// The sequence number of the newest range deletion that covers it, or 0.
    pub(crate) deleted_sequence: u64,
}

impl<'k> CoveredKey<'k> {
    /// Fills arrays.
    pub(crate) const NONE: CoveredKey<'static> = CoveredKey::outside_ranges(&[]);

    /// A key that no range deletion covers.
    pub(crate) const fn outside_ranges(bytes: &'k [u8]) -> CoveredKey<'k> {
        CoveredKey {
            bytes,
            deleted_sequence: 0,
        }
    }
}

impl BatchKey for CoveredKey<'_> {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.bytes
    }

    #[inline(always)]
    fn deleted_sequence(&self) -> u64 {
        self.deleted_sequence
    }
}

/// A batch: its keys, and what it sees.
pub(super) struct KeyBatch<'k, K> {
    pub(super) keys: &'k [K],
    pub(super) read_point: ReadPoint,
}

impl<'k, K: BatchKey> KeyBatch<'k, K> {
    #[inline(always)]
    pub(super) fn key(&self, position: usize) -> &'k [u8] {
        self.keys[position].bytes()
    }

    /// The keys in order, each prefetched before its turn.
    #[inline(always)]
    pub(super) fn keys_ahead(&self) -> impl Iterator<Item = &'k [u8]> + use<'k, K> {
        let keys = self.keys;
        prefetch_ahead(keys.len(), move |position| keys[position].bytes())
    }

    /// What the lookup of this key sees.
    #[inline(always)]
    pub(super) fn read_point(&self, position: usize) -> ReadPoint {
        self.read_point
            .with_deleted_up_to(self.keys[position].deleted_sequence())
    }

    pub(super) fn target(&self, list: &SkipList, position: usize) -> Target<'k> {
        Target::new(list.order(), self.key(position), self.read_point(position))
    }

    /// The positions in key order, each with its key's prefix.
    pub(super) fn sorted(&self, list: &SkipList) -> Vec<Sorted> {
        let order = list.order();
        let mut sorted: Vec<_> = (self.keys_ahead().enumerate())
            .map(|(position, key)| Sorted {
                prefix: order.prefix(key),
                position,
            })
            .collect();
        sorted.sort_unstable_by(|a, b| {
            a.prefix
                .cmp(&b.prefix)
                .then_with(|| order.compare(self.key(a.position), self.key(b.position)))
        });
        sorted
    }
}

/// A key's place in a sorted batch.
#[derive(Clone, Copy)]
pub(super) struct Sorted {
    pub(super) prefix: u64,
    pub(super) position: usize,
}
