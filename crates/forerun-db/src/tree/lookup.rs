//! Lookups of one key, or of a batch of keys, in the runs of a tree.
//!
//! ```text
//!   stage 1   the candidate runs of all keys, newest first, by key range; prefetch a line of each
//!             run's index, or of its filter
//!   stage 2   rule runs out; where an index has found a key's record in its newest candidate and
//!             the leaf is in memory, prefetch the record
//!   stage 3   compare these records: most lookups end here; if the leaf is not in memory, read the
//!             record alone, if that is possible
//!   stage 4   the others, one coroutine per key (run/lookup.rs), 48 in flight, from the newest
//!             candidate to the oldest until one has an answer
//! ```
//!
//! `get` takes the same steps for one key, run after run, and a batch of one key is a `get`: with
//! the arrays of a block, it takes 2.8 times as many instructions where the runs are in memory.

use forerun_core::{block_on_with, interleave_with};

use crate::Result;
use crate::cache::driver::Reads;
use crate::cache::{self, Pin};
use crate::run::indexed_record::IndexedRecord;
use crate::run::lookup::{Found, ReadContext, find_in};
use crate::run::stored_record::StoredRecord;
use crate::run::{Probe, Run, SearchKey};
use crate::tree::levels::Levels;

/// Lookups in flight. In memory, 8 to 64 perform the same within 5%. A batch that waits for a disk
/// benefits from having all its reads in flight; for 64 keys, 48 reads in flight give most of the
/// gain.
pub(super) const IN_FLIGHT: usize = 48;

/// Keys looked up under one pin. Pages evicted under the pin become free only when it ends.
pub(super) const CHUNK_KEYS: usize = 256;

/// Keys that go through the first three stages together.
pub(super) const BLOCK_KEYS: usize = 32;

/// Looks keys up, and passes each result to `on_result` with its position, in any order.
pub(crate) fn multi_get(
    tree: &Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    mut on_result: impl FnMut(usize, Result<Found<'_>>),
) {
    if let [key] = keys {
        let found = get(tree, *key, context, |found| on_result(0, Ok(found)));
        return found.unwrap_or_else(|error| on_result(0, Err(error)));
    }
    let mut searches = Searches::default();
    for (at, chunk) in keys.chunks(CHUNK_KEYS).enumerate() {
        let first = at * CHUNK_KEYS;
        searches.clear();
        find_records(tree, chunk, context, &mut searches, |position, found| {
            on_result(first + position, Ok(found));
        });
        let mut begun = 0;
        while begun < searches.len() {
            begun += search(&searches, begun, chunk, context, |position, found| {
                on_result(first + position, found);
            });
        }
    }
}

/// Lookups that no index has answered.
#[derive(Default)]
struct Searches<'g> {
    /// The positions of their keys.
    positions: Vec<u32>,
    /// The runs that may hold each key, newest first.
    runs: Vec<&'g Run>,
    /// Where each key's runs end.
    ends: Vec<u32>,
}

impl<'g> Searches<'g> {
    fn clear(&mut self) {
        self.positions.clear();
        self.runs.clear();
        self.ends.clear();
    }

    fn len(&self) -> usize {
        self.positions.len()
    }

    fn push(&mut self, position: usize, runs: &[&'g Run]) {
        self.positions.push(position as u32);
        self.runs.extend_from_slice(runs);
        self.ends.push(self.runs.len() as u32);
    }

    fn runs(&self, at: usize) -> &[&'g Run] {
        let from = match at {
            0 => 0,
            _ => self.ends[at - 1],
        };
        &self.runs[from as usize..self.ends[at] as usize]
    }
}

/// What the index or the filter of a run says of a key. `None`: the run has no version of it that
/// the lookup sees.
#[inline(always)]
fn probe(run: &Run, key: &SearchKey<'_>, pin: &Pin) -> Option<Probe> {
    let probe = run.probe(key.hash, pin);
    (probe != Probe::Absent && run.is_visible(key.sequence)).then_some(probe)
}

/// The record that an index has found, if its leaf is in memory. Its lines are prefetched.
#[inline(always)]
fn record<'g>(run: &'g Run, probe: Probe, reads: &Reads<'g>) -> Option<IndexedRecord<'g>> {
    match probe {
        Probe::At(address) => IndexedRecord::prefetched(run, reads, address),
        Probe::Absent | Probe::Anywhere => None,
    }
}

/// The record that an index has found, if its leaf is not in memory. What is known of the leaf is
/// prefetched.
#[inline(always)]
fn stored_record(run: &Run, probe: Probe) -> Option<StoredRecord<'_>> {
    match probe {
        Probe::At(address) => StoredRecord::prefetched(run, address),
        Probe::Absent | Probe::Anywhere => None,
    }
}

/// The first three stages: answers what the indexes can answer, and adds the rest to `searches`.
fn find_records<'t>(
    tree: &'t Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    searches: &mut Searches<'t>,
    mut on_found: impl FnMut(usize, Found<'_>),
) {
    let pin = cache::pin();
    let reads = context.reads(&pin);
    // The candidates of a block's keys, and where those of each key end.
    let mut runs: Vec<&'t Run> = Vec::with_capacity(2 * BLOCK_KEYS);
    let mut ends = [0; BLOCK_KEYS];
    let mut records: [Option<IndexedRecord<'_>>; BLOCK_KEYS] = [None; BLOCK_KEYS];
    let mut stored: [Option<StoredRecord<'_>>; BLOCK_KEYS] = [None; BLOCK_KEYS];
    let mut buffer = reads.scratch_page();
    for (block, keys) in keys.chunks(BLOCK_KEYS).enumerate() {
        let first = block * BLOCK_KEYS;
        runs.clear();
        for (key, end) in keys.iter().zip(&mut ends) {
            for run in tree.candidates(key.key) {
                run.prefetch_probe(key.hash, &pin);
                runs.push(run);
            }
            *end = runs.len();
        }
        // The candidates that pass move to the front.
        let (mut from, mut kept) = (0, 0);
        for (((key, end), found), stored) in
            (keys.iter().zip(&mut ends).zip(&mut records)).zip(&mut stored)
        {
            let begin = kept;
            (*found, *stored) = (None, None);
            for at in from..*end {
                let run = runs[at];
                let Some(probe) = probe(run, key, &pin) else {
                    continue;
                };
                if kept == begin {
                    *found = record(run, probe, &reads);
                    if found.is_none() {
                        *stored = stored_record(run, probe);
                    }
                }
                runs[kept] = run;
                kept += 1;
            }
            from = std::mem::replace(end, kept);
        }
        let mut begin = 0;
        for (at, (key, end)) in keys.iter().zip(ends).enumerate() {
            let runs = &runs[begin..end];
            begin = end;
            match records[at].and_then(|record| record.find(key)) {
                Some(found) => on_found(first + at, found),
                None if runs.is_empty() => on_found(first + at, Found::Missing),
                None => {
                    let stored = stored[at];
                    match stored.and_then(|stored| stored.find(key, &reads, &mut buffer)) {
                        Some(found) => on_found(first + at, found),
                        None => searches.push(first + at, runs),
                    }
                }
            }
        }
    }
}

/// The last stage, from the search `begun` on. Returns how many lookups it has made: it stops early
/// if the cache is so small that these lookups fill it.
fn search(
    searches: &Searches<'_>,
    begun: usize,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    mut on_result: impl FnMut(usize, Result<Found<'_>>),
) -> usize {
    let pin = cache::pin();
    let reads = context.reads(&pin);
    let mut next = begun;
    let lookups = std::iter::from_fn(|| {
        let position = *searches.positions.get(next)?;
        if next > begun && reads.should_end_batch() {
            return None;
        }
        let runs = searches.runs(next);
        next += 1;
        let key = &keys[position as usize];
        Some(find_in(runs, key, &reads))
    });
    interleave_with::<IN_FLIGHT, _, _>(&reads, lookups, |at, found| {
        let position = searches.positions[begun + at];
        on_result(position as usize, found.map_err(|error| *error));
    });
    let should_end_batch = reads.should_end_batch();
    drop(reads);
    drop(pin);
    if should_end_batch {
        cache::reclaim();
    }
    next - begun
}

/// Looks one key up and passes the result to `take`.
pub(crate) fn get<T>(
    tree: &Levels,
    key: SearchKey<'_>,
    context: &ReadContext,
    take: impl FnOnce(Found<'_>) -> T,
) -> Result<T> {
    let candidates = tree.candidates(key.key);
    let pin = cache::pin();
    for run in candidates.clone() {
        run.prefetch_probe(key.hash, &pin);
    }
    let reads = context.reads(&pin);
    for run in candidates {
        let Some(probe) = probe(run, &key, &pin) else {
            continue;
        };
        let record = record(run, probe, &reads);
        if let Some(found) = record.and_then(|record| record.find(&key)) {
            return Ok(take(found));
        }
        if record.is_none()
            && let Some(stored) = stored_record(run, probe)
        {
            let mut buffer = reads.scratch_page();
            if let Some(found) = stored.find(&key, &reads, &mut buffer) {
                return Ok(take(found));
            }
        }
        let found = block_on_with(&reads, find_in(&[run], &key, &reads));
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
#[cfg(test)]
#[path = "trusted_pages_tests.rs"]
mod trusted_pages_tests;
