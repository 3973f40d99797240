//! Lookups of one key, or of a batch of keys, in the runs of a tree.
//!
//! ```text
//!   stage 1   find the candidate runs of all keys, newest first: by key range, then by filter.
//!             Prefetch the filters' lines first, and test them some keys later
//!   stage 2   one coroutine per key (run/lookup.rs), W in flight, from the newest candidate to the oldest
//!             until one has an answer
//! ```
//!
//! `get` runs the same coroutine alone.

use forerun_core::{block_on_with, interleave_with};

use crate::Result;
use crate::cache;
use crate::cache::driver::Reads;
use crate::run::lookup::{Found, ReadContext, find_in};
use crate::run::{Run, SearchKey};
use crate::tree::levels::Levels;

/// Lookups in flight. In memory, 8 to 64 perform the same within 5%. A batch that waits for a disk
/// benefits from having all its reads in flight; for 64 keys, 48 reads in flight give most of the
/// gain.
const IN_FLIGHT: usize = 48;

/// Keys looked up under one pin. Pages evicted under the pin become free only when it ends.
const CHUNK_KEYS: usize = 256;

/// Keys between prefetching a filter's line and testing it.
const FILTER_PREFETCH_DISTANCE: usize = 16;

/// Looks keys up, and passes each result to `on_result` with its position, in any order.
pub(crate) fn multi_get(
    tree: &Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    on_result: impl FnMut(usize, Result<Found<'_>>),
) {
    multi_get_in_flight::<IN_FLIGHT>(tree, keys, context, on_result);
}

/// [`multi_get`] with `W` lookups in flight.
fn multi_get_in_flight<const W: usize>(
    tree: &Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    mut on_result: impl FnMut(usize, Result<Found<'_>>),
) {
    let mut first = 0;
    while first < keys.len() {
        let chunk = &keys[first..keys.len().min(first + CHUNK_KEYS)];
        first += look_up_chunk::<W>(tree, chunk, context, |position, found| {
            on_result(first + position, found);
        });
    }
}

/// The runs that may hold each key of a chunk.
struct Candidates<'g> {
    runs: Vec<&'g Run>,
    /// Where each key's runs end.
    ends: Vec<u32>,
}

impl<'g> Candidates<'g> {
    fn new(tree: &'g Levels, keys: &'g [SearchKey<'_>]) -> Self {
        let mut of = Candidates {
            runs: Vec::with_capacity(2 * keys.len()),
            ends: Vec::with_capacity(keys.len()),
        };
        // First by key range, then, some keys later, by filter. The runs that pass move to the
        // front.
        let mut by_range: [u32; FILTER_PREFETCH_DISTANCE] = [0; FILTER_PREFETCH_DISTANCE];
        let mut all: Vec<&'g Run> = Vec::with_capacity(FILTER_PREFETCH_DISTANCE * 4);
        for group in keys.chunks(FILTER_PREFETCH_DISTANCE) {
            all.clear();
            for (key, end) in group.iter().zip(&mut by_range) {
                for run in tree.candidates(key.key) {
                    run.prefetch_filter(key.hash);
                    all.push(run);
                }
                *end = all.len() as u32;
            }
            let mut from = 0;
            for (key, end) in group.iter().zip(by_range) {
                let candidates = all[from..end as usize].iter();
                let may_hold =
                    |run: &&&Run| run.may_contain(key.hash) && run.is_visible(key.sequence);
                of.runs.extend(candidates.filter(may_hold));
                of.ends.push(of.runs.len() as u32);
                from = end as usize;
            }
        }
        of
    }

    fn of(&self, position: usize) -> &[&'g Run] {
        let from = match position {
            0 => 0,
            _ => self.ends[position - 1],
        };
        &self.runs[from as usize..self.ends[position] as usize]
    }
}

/// Looks up the keys of a chunk and returns how many it has looked up. It stops early if the cache
/// is so small that these lookups fill it.
fn look_up_chunk<const W: usize>(
    tree: &Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    mut on_result: impl FnMut(usize, Result<Found<'_>>),
) -> usize {
    let candidates = Candidates::new(tree, keys);
    let pin = cache::pin();
    let reads = Reads::new(&context.cache, &pin, context.backend);
    let mut begun = 0;
    let lookups = std::iter::from_fn(|| {
        let key = keys.get(begun)?;
        if begun > 0 && reads.should_end_batch() {
            return None;
        }
        let runs = candidates.of(begun);
        begun += 1;
        Some(find_in(runs, key, context.search, &reads))
    });
    interleave_with::<W, _, _>(&reads, lookups, |position, found| {
        on_result(position, found.map_err(|error| *error));
    });
    let should_end_batch = reads.should_end_batch();
    drop(reads);
    drop(pin);
    if should_end_batch {
        cache::reclaim();
    }
    begun
}

/// Looks one key up and passes the result to `take`.
pub(crate) fn get<T>(
    tree: &Levels,
    key: SearchKey<'_>,
    context: &ReadContext,
    take: impl FnOnce(Found<'_>) -> T,
) -> Result<T> {
    let candidates = tree.candidates(key.key);
    for run in candidates.clone() {
        run.prefetch_filter(key.hash);
    }
    let pin = cache::pin();
    let reads = Reads::new(&context.cache, &pin, context.backend);
    for run in candidates {
        if !run.may_contain(key.hash) || !run.is_visible(key.sequence) {
            continue;
        }
        let found = block_on_with(&reads, find_in(&[run], &key, context.search, &reads));
        match found.map_err(|error| *error)? {
            Found::Missing => {}
            found => return Ok(take(found)),
        }
    }
    Ok(take(Found::Missing))
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
