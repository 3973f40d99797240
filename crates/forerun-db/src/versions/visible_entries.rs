//! The entries visible to a snapshot: for each key the newest version it may see, if that is a
//! value.
//!
//! ```text
//!   versions   apple @9 │ apple @4 │ bee @7 deletion │ bee @3 │ cow @5
//!   as of 8                apple @4                              cow @5
//! ```
//!
//! Moving forward, the cursor stays on the entry and lends it. Moving backward, it meets a key's
//! versions oldest first, and knows the newest one only when it reaches the next key. So it copies
//! the entry, and stops before the entry's key. Most keys have only one version, though. If the
//! source shows this without a search, the cursor stays on the entry in this direction too.

use super::{BEHIND_ALL, Kind, SEQUENCE_MAX, SeekSide, SkipDeleted, Version};
use crate::Result;
use crate::comparator::KeyOrder;

/// An entry of a store or a memtable, borrowed from an iterator or a cursor.
///
/// ```
/// use forerun_db::{Db, Entry, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// db.put("paris", "48.85,2.35")?;
/// let mut entries = db.iter();
/// let first = entries.next_entry()?;
/// assert_eq!(first, Some(Entry { key: b"paris", value: b"48.85,2.35" }));
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The user key.
    pub key: &'a [u8],
    /// Its newest visible value.
    pub value: &'a [u8],
}

/// After this many single steps, a new search is faster than more steps.
const WALK_LIMIT: usize = 8;

/// Bytes of key and value buffers that are kept for reuse.
const KEPT_BYTES: usize = 4 << 10;

/// A longer buffer is freed when an entry needs less than a quarter of it.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// A cursor over the entries that a snapshot sees, in key order, in both directions.
pub(crate) struct VisibleEntries<C> {
    versions: C,
    order: KeyOrder,
    snapshot: u64,
    position: Position,
    /// The key whose versions are being skipped; moving backward, the entry's key.
    key: Vec<u8>,
    /// Moving backward, the entry's value.
    value: Vec<u8>,
}

/// Where the underlying cursor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Nowhere,
    /// On the entry.
    OnEntry,
    /// On the entry, which is the newest version of its key, with the versions before it next.
    OnNewest,
    /// Before all versions of the entry's key, or nowhere; the entry is copied.
    BeforeKey,
}

impl<C: SkipDeleted> VisibleEntries<C> {
    pub(crate) fn new(versions: C, order: KeyOrder, snapshot: u64) -> VisibleEntries<C> {
        VisibleEntries {
            versions,
            order,
            snapshot,
            position: Position::Nowhere,
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Resets the cursor, for another snapshot.
    pub(crate) fn reopen(&mut self, snapshot: u64) {
        self.snapshot = snapshot;
        self.position = Position::Nowhere;
    }

    /// The underlying cursor.
    pub(crate) fn versions_mut(&mut self) -> &mut C {
        &mut self.versions
    }

    /// Frees memory that is not worth keeping for reuse.
    pub(crate) fn reset(&mut self) {
        self.position = Position::Nowhere;
        self.versions.reset();
        for kept in [&mut self.key, &mut self.value] {
            kept.clear();
            kept.shrink_to(KEPT_BYTES);
        }
    }

    /// Moves to the first entry.
    pub(crate) fn seek_first(&mut self) -> Result<Option<Entry<'_>>> {
        self.position = Position::Nowhere;
        self.versions.seek_first()?;
        self.find_visible_forward()?;
        Ok(self.entry())
    }

    /// Moves to the last entry.
    pub(crate) fn seek_last(&mut self) -> Result<Option<Entry<'_>>> {
        self.position = Position::Nowhere;
        self.versions.seek_last()?;
        self.find_visible_backward()?;
        Ok(self.entry())
    }

    /// Moves to the first entry at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>> {
        self.position = Position::Nowhere;
        self.versions.seek(key, self.snapshot)?;
        self.find_visible_forward()?;
        Ok(self.entry())
    }

    /// Moves to the first entry after `key`.
    pub(crate) fn seek_after(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>> {
        self.position = Position::Nowhere;
        self.versions.seek(key, BEHIND_ALL)?;
        self.find_visible_forward()?;
        Ok(self.entry())
    }

    /// Moves to the last entry before `key`.
    pub(crate) fn seek_before(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>> {
        self.position = Position::Nowhere;
        self.versions.seek_before(key, SEQUENCE_MAX)?;
        self.find_visible_backward()?;
        Ok(self.entry())
    }

    /// Moves to the last entry at or before `key`.
    pub(crate) fn seek_back(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>> {
        self.position = Position::Nowhere;
        self.versions.seek_before(key, BEHIND_ALL)?;
        self.find_visible_backward()?;
        Ok(self.entry())
    }

    /// Moves to the next entry; to the first if the cursor has no position.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>> {
        self.step_forward()?;
        Ok(self.entry())
    }

    /// [`next`](Self::next), for callers that do not need the entry yet.
    #[inline]
    pub(crate) fn step_forward(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.position, Position::Nowhere) {
            Position::Nowhere => return self.seek_first().map(drop),
            Position::OnEntry | Position::OnNewest => self.pass_key()?,
            Position::BeforeKey => self.versions.seek(&self.key, BEHIND_ALL)?,
        }
        self.find_visible_forward()
    }

    /// Moves to the newest visible version of the next key, which may be a deletion; of the first
    /// key if the cursor has no position.
    pub(crate) fn next_newest(&mut self) -> Result<Option<Version<'_>>> {
        match std::mem::replace(&mut self.position, Position::Nowhere) {
            Position::Nowhere => self.versions.seek_first()?,
            Position::OnEntry | Position::OnNewest => self.pass_key()?,
            Position::BeforeKey => self.versions.seek(&self.key, BEHIND_ALL)?,
        }
        while let Some(at) = self.versions.at() {
            if at.sequence <= self.snapshot {
                self.position = Position::OnEntry;
                break;
            }
            self.pass_newer()?;
        }
        self.versions.end_search(None, SeekSide::AtOrAfter);
        Ok(self.versions.at())
    }

    /// Moves to the previous entry; to the last if the cursor has no position.
    pub(crate) fn prev(&mut self) -> Result<Option<Entry<'_>>> {
        self.step_backward()?;
        Ok(self.entry())
    }

    /// [`prev`](Self::prev), for callers that do not need the entry yet.
    #[inline]
    pub(crate) fn step_backward(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.position, Position::Nowhere) {
            Position::Nowhere => return self.seek_last().map(drop),
            Position::OnEntry => {
                keep(&mut self.key, self.versions.at().map(|at| at.key));
                self.versions.seek_before(&self.key, SEQUENCE_MAX)?;
            }
            Position::OnNewest => self.versions.prev()?,
            Position::BeforeKey => {}
        }
        self.find_visible_backward()
    }

    /// Whether the cursor is on an entry.
    #[inline(always)]
    pub(crate) fn is_positioned(&self) -> bool {
        self.position != Position::Nowhere
    }

    /// The current entry.
    #[inline(always)]
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        match self.position {
            Position::Nowhere => None,
            Position::OnEntry | Position::OnNewest => self.versions.at().map(|at| Entry {
                key: at.key,
                value: at.value,
            }),
            Position::BeforeKey => Some(Entry {
                key: &self.key,
                value: &self.value,
            }),
        }
    }

    /// From the underlying cursor's position on, finds the first key whose newest visible version
    /// is a value. Has no position if there is none before the cursor's limit.
    #[inline]
    fn find_visible_forward(&mut self) -> Result<()> {
        while let Some(Version { sequence, kind, .. }) = self.versions.at() {
            if sequence <= self.snapshot && kind == Kind::Value {
                self.position = Position::OnEntry;
                break;
            }
            if self.versions.is_limit_passed() {
                break;
            }
            if sequence > self.snapshot {
                self.versions.note_too_new();
                self.pass_newer()?
            } else if !self.skip_deleted(SeekSide::AtOrAfter)? {
                self.pass_key()?
            }
        }
        self.versions.end_search(None, SeekSide::AtOrAfter);
        Ok(())
    }

    /// Skips deleted keys, if the source knows of any from the one on at which it is. Returns
    /// whether it has moved.
    #[inline]
    fn skip_deleted(&mut self, side: SeekSide) -> Result<bool> {
        if !self.versions.note_deleted() {
            return Ok(false);
        }
        keep(&mut self.key, self.versions.at().map(|at| at.key));
        self.versions.skip_deleted(&self.key, side)
    }

    /// Skips a version that is too new. An older one of the same key may be visible.
    fn pass_newer(&mut self) -> Result<()> {
        self.versions.next()?;
        let mut passed = 1;
        while let Some(at) = self.versions.at()
            && at.sequence > self.snapshot
        {
            if passed == WALK_LIMIT {
                keep(&mut self.key, Some(at.key));
                return self.versions.seek(&self.key, self.snapshot);
            }
            self.versions.next()?;
            passed += 1;
        }
        Ok(())
    }

    /// Moves to the first version of the next key.
    #[inline]
    fn pass_key(&mut self) -> Result<()> {
        keep(&mut self.key, self.versions.at().map(|at| at.key));
        for _ in 0..WALK_LIMIT {
            self.versions.next()?;
            if !self.is_at_key() {
                return Ok(());
            }
        }
        self.versions.seek(&self.key, BEHIND_ALL)
    }

    /// From the underlying cursor's position back, finds the first key with an entry, and stops
    /// before it. Has no position if there is none before the cursor's limit.
    fn find_visible_backward(&mut self) -> Result<()> {
        while let Some(at) = self.versions.at() {
            if self.versions.is_newest_of_key() {
                // The key's only version, but for older ones that are hidden.
                if at.kind == Kind::Value && at.sequence <= self.snapshot {
                    self.position = Position::OnNewest;
                    break;
                }
                if self.versions.is_limit_passed() {
                    break;
                }
                if at.sequence > self.snapshot {
                    self.versions.note_too_new();
                } else if self.skip_deleted(SeekSide::Before)? {
                    continue;
                }
                self.versions.prev()?;
                continue;
            }
            keep(&mut self.key, Some(at.key));
            self.versions.set_undecided(true);
            let mut newest = None;
            let mut passed = 0;
            while self.is_at_key() {
                let Some(at) = self.versions.at().filter(|at| at.sequence <= self.snapshot) else {
                    break;
                };
                newest = Some(at.kind);
                // Equal keys may have different bytes. Shows the key that came with the value.
                if at.key != self.key {
                    keep(&mut self.key, Some(at.key));
                }
                keep(&mut self.value, Some(at.value));
                passed += 1;
                if passed == WALK_LIMIT {
                    self.versions.seek(&self.key, self.snapshot)?;
                    let at = self.versions.at();
                    newest = at.map(|at| at.kind);
                    keep(&mut self.value, at.map(|at| at.value));
                    if let Some(at) = at {
                        keep(&mut self.key, Some(at.key));
                    }
                    break;
                }
                self.versions.prev()?;
            }
            if self.is_at_key() {
                // The key's other versions are too new, or have been skipped.
                self.versions.note_too_new();
                self.versions.seek_before(&self.key, SEQUENCE_MAX)?;
            }
            self.versions.set_undecided(false);
            if newest == Some(Kind::Value) {
                self.position = Position::BeforeKey;
                break;
            }
            if self.versions.is_limit_passed() {
                break;
            }
            if self.versions.note_deleted() {
                self.versions.skip_deleted(&self.key, SeekSide::Before)?;
            }
        }
        let found = (self.position == Position::BeforeKey).then_some(&*self.key);
        self.versions.end_search(found, SeekSide::Before);
        Ok(())
    }

    /// Whether the underlying cursor is at a version of `key`.
    #[inline(always)]
    fn is_at_key(&self) -> bool {
        let at = self.versions.at();
        at.is_some_and(|at| self.order.compare(at.key, &self.key).is_eq())
    }
}

#[inline]
fn keep(into: &mut Vec<u8>, bytes: Option<&[u8]>) {
    let bytes = bytes.unwrap_or_default();
    into.clear();
    if into.capacity() > KEPT_BYTES_MAX.max(4 * bytes.len()) {
        *into = Vec::new();
    }
    into.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::versions::VersionCursor;

    /// Versions in a sorted vector, as a reference.
    struct Sorted {
        versions: Vec<(Vec<u8>, u64, Kind, Vec<u8>)>,
        at: Option<usize>,
    }

    impl Sorted {
        fn place(&self, key: &[u8], sequence: u64) -> usize {
            self.versions
                .partition_point(|(k, s, ..)| (k.as_slice(), !s) < (key, !sequence))
        }

        fn go(&mut self, to: usize) -> Result<()> {
            self.at = (to < self.versions.len()).then_some(to);
            Ok(())
        }
    }

    impl SkipDeleted for Sorted {}

    impl VersionCursor for Sorted {
        fn seek_first(&mut self) -> Result<()> {
            self.go(0)
        }
        fn seek_last(&mut self) -> Result<()> {
            self.go(self.versions.len().wrapping_sub(1))
        }
        fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
            self.go(self.place(key, sequence))
        }
        fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
            self.go(self.place(key, sequence).wrapping_sub(1))
        }
        fn next(&mut self) -> Result<()> {
            self.go(self.at.map_or(usize::MAX, |at| at + 1))
        }
        fn prev(&mut self) -> Result<()> {
            self.go(self.at.map_or(usize::MAX, |at| at.wrapping_sub(1)))
        }
        fn is_newest_of_key(&self) -> bool {
            let before = |at: usize| at.checked_sub(1).map(|before| &self.versions[before].0);
            // As runs do, it does not know of every key.
            let is_known = |at: usize| !at.is_multiple_of(3);
            let is_newest = |at: usize| before(at) != Some(&self.versions[at].0);
            self.at.is_some_and(|at| is_known(at) && is_newest(at))
        }
        fn at(&self) -> Option<Version<'_>> {
            let (key, sequence, kind, value) = &self.versions[self.at?];
            Some(Version {
                key,
                sequence: *sequence,
                kind: *kind,
                value,
            })
        }
    }

    fn owned(entry: Option<Entry<'_>>) -> Option<(Vec<u8>, Vec<u8>)> {
        entry.map(|entry| (entry.key.to_vec(), entry.value.to_vec()))
    }

    proptest! {
        #[test]
        fn iterating_a_snapshot_matches_iterating_a_map(
            writes in prop::collection::vec((0_u8..6, any::<bool>()), 0..120),
            snapshot in 0_u64..130,
            steps in prop::collection::vec((0_u8..8, 0_u8..7), 1..60),
        ) {
            let mut map = BTreeMap::new();
            let mut versions = Vec::new();
            for (i, (key, is_value)) in writes.iter().enumerate() {
                let sequence = i as u64 + 1;
                let value = sequence.to_string().into_bytes();
                if sequence <= snapshot {
                    if *is_value {
                        map.insert(vec![*key], value.clone());
                    } else {
                        map.remove(&[*key][..]);
                    }
                }
                let (kind, value) = if *is_value {
                    (Kind::Value, value)
                } else {
                    (Kind::Deletion, Vec::new())
                };
                versions.push((vec![*key], sequence, kind, value));
            }
            versions.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
            let mut visible =
                VisibleEntries::new(Sorted { versions, at: None }, KeyOrder::Bytewise, snapshot);
            let mut at: Option<Vec<u8>> = None;
            for (step, key) in steps {
                let key = vec![key];
                let pair = |(k, v): (&Vec<u8>, &Vec<u8>)| (k.clone(), v.clone());
                let first = map.iter().next().map(pair);
                let last = map.iter().next_back().map(pair);
                use std::ops::Bound::{Excluded, Unbounded};
                let (got, wanted) = match step {
                    0 => (visible.seek_first(), first),
                    1 => (visible.seek_last(), last),
                    2 => (visible.seek(&key), map.range(key..).next().map(pair)),
                    3 => (visible.seek_after(&key), map.range((Excluded(key), Unbounded)).next()
                        .map(pair)),
                    4 => (visible.seek_before(&key), map.range(..key).next_back().map(pair)),
                    5 => (visible.seek_back(&key), map.range(..=key).next_back().map(pair)),
                    6 => (visible.next(), match at {
                        None => first,
                        Some(at) => map.range((Excluded(at), Unbounded)).next().map(pair),
                    }),
                    _ => (visible.prev(), match at {
                        None => last,
                        Some(at) => map.range(..at).next_back().map(pair),
                    }),
                };
                let got = owned(got.unwrap());
                prop_assert_eq!(&got, &wanted);
                at = got.map(|(key, _)| key);
            }
        }
    }

    #[test]
    fn a_long_value_that_is_copied_takes_memory_only_while_it_is_the_entry() {
        const LONG: usize = 1 << 20;
        let versions = (0..40).map(|n| {
            let value = vec![n as u8; if n / 2 == 9 { LONG } else { 10 }];
            (vec![n as u8 / 2], 100 - n, Kind::Value, value)
        });
        let versions = Sorted {
            versions: versions.collect(),
            at: None,
        };
        let mut visible = VisibleEntries::new(versions, KeyOrder::Bytewise, 200);
        let mut lens = Vec::new();
        while let Some(entry) = visible.prev().unwrap() {
            let len = entry.value.len();
            lens.push(len);
            assert!(visible.value.capacity() <= KEPT_BYTES_MAX.max(4 * len));
        }
        assert_eq!(lens.iter().max(), Some(&LONG));
        assert_eq!(lens.len(), 20);
    }
}
