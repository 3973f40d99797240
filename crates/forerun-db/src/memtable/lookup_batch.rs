//! A batch of lookups: through the hash index, or by one of three ordered searches, which are built
//! on the search in `descent.rs`.
//!
//! ```text
//!   hash index          in stages that run over the batch (hash_lookup.rs)
//!   no index:
//!     small table       single; finger for a large batch
//!     other tables      interleaved
//! ```
//!
//! The sink receives each answer with the position of its key.

use forerun_core::sync::SIMULATED;
use forerun_core::{interleave, prefetch_ahead};

use super::descent::{Descent, Lookup, Trail, find, find_alone};
use super::hash_index::HashIndex;
use super::hash_lookup;
use super::memory_checks::{Checked, Visit};
use super::node::{HEIGHT_MAX, Node, Seen, Stands, Target};
use super::search_starts::SearchStarts;
use super::skip_list::SkipList;
use crate::versions::ReadPoint;

/// Lookups in flight. Each prefetches one or two cache lines at a time, and a Zen 4 core has room
/// for 24 misses: from 12 to 24 lookups measure alike, and 32 are slower.
const IN_FLIGHT: usize = 16;

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
pub(super) struct Batch<'k, K> {
    pub(super) keys: &'k [K],
    pub(super) read_point: ReadPoint,
}

impl<'k, K: BatchKey> Batch<'k, K> {
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
            .without(self.keys[position].deleted_sequence())
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

/// Looks up a batch. `index` is the table's hash index, if it has one.
pub(super) fn find_all<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    index: Option<&HashIndex>,
    batch: &Batch<'_, K>,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    match (index, batch.keys) {
        (_, []) => {}
        (Some(index), [_]) => {
            let (key, read_point) = (batch.key(0), batch.read_point(0));
            sink(0, hash_lookup::find(list, index, key, read_point));
        }
        (Some(index), _) => hash_lookup::find_all(list, index, batch, sink),
        (None, keys) => match OrderedSearch::of(list, keys.len()) {
            OrderedSearch::Single => single::<V, K>(list, batch, sink),
            OrderedSearch::Finger => finger::<V, K>(list, batch, sink),
            OrderedSearch::Interleaved => {
                interleaved::<V, K>(list, batch, keys.len(), |turn| turn, sink);
            }
        },
    }
}

/// How a batch is searched for in the list.
enum OrderedSearch {
    Single,
    Finger,
    Interleaved,
}

/// From this many keys on, sorting a batch for `finger` pays in a table that fits into a core's own
/// cache, because neighbours share most of their path. It is the slowest search of a shorter batch.
const FINGER_FROM: usize = 128;

/// Below this size a table fits into a core's own cache, and there is little to overlap. (Measured
/// where that cache has 1 MiB; docs/internals/performance.md has the figures behind this and the
/// next one.) The tables of a simulation are small. Their limit is so low that it runs every
/// search.
const CACHED_BYTES: usize = if SIMULATED { 4 << 10 } else { 1 << 20 };

/// Below twice `CACHED_BYTES`, the fewest keys for which interleaving pays.
const INTERLEAVE_FROM: usize = 8;

impl OrderedSearch {
    /// The search for so many keys.
    fn of(list: &SkipList, keys: usize) -> OrderedSearch {
        match (list.arena().used_bytes(), keys) {
            (_, 1) => OrderedSearch::Single,
            (..CACHED_BYTES, FINGER_FROM..) => OrderedSearch::Finger,
            (..CACHED_BYTES, _) => OrderedSearch::Single,
            (bytes, ..INTERLEAVE_FROM) if bytes < 2 * CACHED_BYTES => OrderedSearch::Single,
            _ => OrderedSearch::Interleaved,
        }
    }
}

/// Searches for one key after the other.
pub(super) fn single<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    batch: &Batch<'_, K>,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    for position in 0..batch.keys.len() {
        let (key, read_point) = (batch.key(position), batch.read_point(position));
        sink(position, find_alone::<V>(list, key, read_point));
    }
}

/// Runs `searches` searches as coroutines, started in the order of `place`, which returns the
/// position of the next key.
pub(super) fn interleaved<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    batch: &Batch<'_, K>,
    searches: usize,
    place: impl Fn(usize) -> usize,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    let keys = prefetch_ahead(searches, |turn| batch.key(place(turn)));
    let targets = (keys.enumerate()).map(|(turn, _)| (batch.target(list, place(turn)), ()));
    let starts = SearchStarts::<V, _, _>::new(list, targets);
    let lookups = starts.map(|(descent, ())| find::<V>(descent));
    interleave::<IN_FLIGHT, _>(lookups, |turn, answer| sink(place(turn), answer));
}

/// Sorts the batch and searches for the keys in order. Each search starts from the path of the one
/// before: it goes up the path until it does not overshoot, then down.
pub(super) fn finger<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    batch: &Batch<'_, K>,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    let mut path = Finger::new(list.head());
    // The levels on which `path` is known: none yet.
    let mut known = 0;
    for Sorted { position, .. } in batch.sorted(list) {
        let target = batch.target(list, position);
        // On every known level `path.before` is before the last key sought. This key does not sort
        // before that one, so `path.before` is before this key as well. (A key that occurs twice
        // finds its own first version again, since `before` is strictly so.)
        let height = list.top_level() + 1;
        let (start, top) = match (0..known).find(|&level| !overshot(list, &path, level, &target)) {
            Some(level) => (path.before[level], level),
            None => (list.head(), height - 1),
        };
        // SAFETY: `start` is before the target, and the path or the head reaches up to `top`.
        let descent = unsafe { Descent::from(list, target, start, top) };
        let found = descent
            .land::<V, _>(&mut path)
            .map(|descent| descent.answer());
        // A failed search has left the lower part of its path as it was for a smaller key: still
        // before every key to come, but perhaps far away. The next search starts from the top.
        known = if found.is_ok() { known.max(top + 1) } else { 0 };
        sink(position, found);
    }
}

/// Whether the target is behind the node that follows the path on this level.
fn overshot(list: &SkipList, path: &Finger<'_>, level: usize, target: &Target<'_>) -> bool {
    let seen = path.seen[level];
    let behind = |next: Node<'_>| next.stands(list.order(), target) == Stands::Before;
    seen.prefix <= target.prefix && seen.next.is_some_and(behind)
}

/// The path of the last search: on each level the last node before the target, and what followed
/// it.
struct Finger<'a> {
    before: [Node<'a>; HEIGHT_MAX],
    seen: [Seen<'a>; HEIGHT_MAX],
}

impl<'a> Finger<'a> {
    fn new(head: Node<'a>) -> Self {
        Finger {
            before: [head; HEIGHT_MAX],
            seen: [Seen {
                next: None,
                prefix: u64::MAX,
            }; HEIGHT_MAX],
        }
    }
}

impl<'a> Trail<'a> for Finger<'a> {
    const KEEPS_ALL: bool = true;

    #[inline(always)]
    fn record(&mut self, level: usize, before: Node<'a>, seen: Seen<'a>) {
        self.before[level] = before;
        self.seen[level] = seen;
    }
}
