//! The two keys that a bucket cannot hold, because it marks its slots with them: their entries lie
//! beside the table.
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

/// Whether a key is one of the marks.
#[inline(always)]
pub(super) fn is_mark<K: Word>(key: K) -> bool {
    (key == K::ZERO) | (key == K::MAX)
}

/// Whether any of the keys is a mark. No branch within, so that the compiler takes several at once.
#[inline(always)]
pub(super) fn any_mark<K: Word>(keys: &[K]) -> bool {
    keys.iter().fold(false, |any, &key| any | is_mark(key))
}

/// The entries of the two marks, where they are keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aside<V> {
    empty: Option<V>,
    tombstone: Option<V>,
}

impl<V: Word> Aside<V> {
    /// The entry of a mark.
    pub(super) fn get<K: Word>(&self, mark: K) -> Option<V> {
        if mark == K::ZERO {
            self.empty
        } else {
            self.tombstone
        }
    }

    /// The place of a mark's entry.
    pub(super) fn slot<K: Word>(&mut self, mark: K) -> &mut Option<V> {
        if mark == K::ZERO {
            &mut self.empty
        } else {
            &mut self.tombstone
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.empty.is_some()) + usize::from(self.tombstone.is_some())
    }

    /// Answers for those keys of a batch that are marks, in place of what their lookup made of
    /// them; `hits` is the number found so far, and the result that number corrected.
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
            if is_mark(key) {
                let entry = self.get(key);
                hits = hits - usize::from(*found) + usize::from(entry.is_some());
                *found = entry.is_some();
                *value = entry.unwrap_or_default();
            }
        }
        hits
    }
}
