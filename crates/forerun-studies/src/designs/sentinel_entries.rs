//! The two sentinel keys. A bucket marks its slots with them and cannot hold them as keys, so their
//! entries are stored outside the table.
//!
//! ```text
//!   slot's key   0: never used      all ones: used and removed      any other: an entry
//! ```

use super::Word;

/// Marks a slot that was never used. Zeroed memory is empty slots.
#[inline(always)]
pub(super) fn empty<K: Word>() -> K {
    K::ZERO
}

/// Marks a slot that an entry was removed from while its bucket was full.
#[inline(always)]
pub(super) fn tombstone<K: Word>() -> K {
    K::MAX
}

/// Whether a key is a sentinel.
#[inline(always)]
pub(super) fn is_sentinel<K: Word>(key: K) -> bool {
    (key == K::ZERO) | (key == K::MAX)
}

/// Whether any of the keys is a sentinel. It has no branch, so the compiler can vectorize it.
#[inline(always)]
pub(super) fn any_sentinel<K: Word>(keys: &[K]) -> bool {
    keys.iter().fold(false, |any, &key| any | is_sentinel(key))
}

/// The entries whose keys are the two sentinels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SentinelEntries<V> {
    empty: Option<V>,
    tombstone: Option<V>,
}

impl<V: Word> SentinelEntries<V> {
    /// The entry of a sentinel.
    pub(super) fn get<K: Word>(&self, sentinel: K) -> Option<V> {
        if sentinel == K::ZERO {
            self.empty
        } else {
            self.tombstone
        }
    }

    /// The slot of a sentinel's entry.
    pub(super) fn slot<K: Word>(&mut self, sentinel: K) -> &mut Option<V> {
        if sentinel == K::ZERO {
            &mut self.empty
        } else {
            &mut self.tombstone
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.empty.is_some()) + usize::from(self.tombstone.is_some())
    }

    /// Overwrites the answers of keys that are sentinels. `hits` is the number of keys found so
    /// far; returns the corrected number.
    #[cold]
    pub(super) fn correct<K: Word>(
        &self,
        keys: &[K],
        values: &mut [V],
        found: &mut [bool],
        mut hits: usize,
    ) -> usize {
        let slots = values.iter_mut().zip(found);
        for (&key, (value, found)) in keys.iter().zip(slots) {
            if is_sentinel(key) {
                let entry = self.get(key);
                hits = hits - usize::from(*found) + usize::from(entry.is_some());
                *found = entry.is_some();
                *value = entry.unwrap_or_default();
            }
        }
        hits
    }
}
