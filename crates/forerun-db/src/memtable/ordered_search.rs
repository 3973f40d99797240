//! Searches for a batch in the list, built on the search in `descent.rs`.
//!
//! ```text
//!   small table       single; finger for a large batch
//!   other tables      interleaved
//! ```
//!
//! The sink receives each answer with the position of its key.

use forerun_core::sync::SIMULATED;
use forerun_core::{interleave, prefetch_ahead};

use super::descent::{Descent, Lookup, Trail, entries, find, find_alone};
use super::key_batch::{BatchKey, KeyBatch, Sorted};
use super::memory_checks::{Checked, Visit};
use super::node::{HEIGHT_MAX, Node, Seen, Stands, Target};
use super::search_starts::SearchStarts;
use super::skip_list::SkipList;

/// Lookups in flight. Each prefetches one or two cache lines at a time, and a Zen 4 core has room
/// for 24 misses: from 12 to 24 lookups measure alike, and 32 are slower.
const IN_FLIGHT: usize = 16;

/// Looks up a batch.
pub(super) fn find_all<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    batch: &KeyBatch<'_, K>,
    sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    let keys = batch.keys.len();
    match OrderedSearch::of(list, keys) {
        OrderedSearch::Single => single::<V, K>(list, batch, sink),
        OrderedSearch::Finger => finger::<V, K>(list, batch, sink),
        OrderedSearch::Interleaved => interleaved::<V, K>(list, batch, keys, |turn| turn, sink),
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
    batch: &KeyBatch<'_, K>,
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
    batch: &KeyBatch<'_, K>,
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
/// before: it goes up the path until it does not overshoot, then down. Where the whole path
/// overshoots, and for the first key, it enters as a search of one key does: through the skip-list
/// index, or from the top.
pub(super) fn finger<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    batch: &KeyBatch<'_, K>,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    let mut path = Finger::new(list.head());
    // The levels on which `path` is known: none yet.
    let mut known = 0;
    for Sorted { position, .. } in batch.sorted(list) {
        let target = batch.target(list, position);
        // On every known level `path.before` is before the last key sought. This key does not sort
        // before that one, so `path.before` is before this key as well. (A key that occurs twice
        // finds its own first version again, since `before` is strictly so.) A search that entered
        // through the index leaves the levels above as an earlier one recorded them: before a
        // smaller key.
        let level = (0..known).find(|&level| !target_is_past(list, &path, level, &target));
        let (descent, top) = match level {
            // SAFETY: the path is before the target, and reaches up to the level.
            Some(level) => unsafe {
                let descent = Descent::from(list, target, path.before[level], level);
                (descent, level)
            },
            None => {
                let [entry] = entries::<V, 1>(list, &[target]);
                let top = match entry {
                    Some(_) => list.shape().index_level,
                    None => list.top_level(),
                };
                // SAFETY: the entry was found for this target.
                (unsafe { Descent::enter(list, target, entry) }, top)
            }
        };
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
fn target_is_past(list: &SkipList, path: &Finger<'_>, level: usize, target: &Target<'_>) -> bool {
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
