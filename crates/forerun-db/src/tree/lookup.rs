//! Lookups of one key, or of a batch of keys, in the runs of a tree.
//!
//! ```text
//!   candidates   the runs that may hold the key, newest first, by key range; prefetch a line of
//!                each run's index, or of its filter
//!   probe        rule runs out; where an index has found the key's record in its newest candidate,
//!                prefetch the slot of its leaf
//!   locate       if the leaf is in memory, prefetch the record
//!   answer       compare the record: most lookups end here; if the leaf is not in memory, read the
//!                record alone, if that is possible
//!   search       the others, one coroutine per key (run/lookup.rs), 48 in flight, from the newest
//!                candidate to the oldest until one has an answer
//! ```
//!
//! The stages up to the answer run over blocks of keys. In one loop over the batch, each some keys
//! behind the one before, they take a quarter more time: a branch for each stage and key costs more
//! than the few misses that a barrier does not overlap. `get` takes the same steps for one key, run
//! after run, and a batch of one key is a `get`: with the arrays of a block, it takes 2.8 times as
//! many instructions where the runs are in memory.

use forerun_core::{block_on_with, interleave_with};

use crate::Result;
use crate::cache::driver::Reads;
use crate::cache::{self, Pin, ScratchPage};
use crate::run::indexed_record::IndexedRecord;
use crate::run::lookup::{Found, ReadContext, find_in};
use crate::run::stored_record::StoredRecord;
use crate::run::{Probe, RecordAddress, Run, SearchKey};
use crate::tree::levels::Levels;

/// Lookups in flight. In memory, 8 to 64 perform the same within 5%. A batch that waits for a disk
/// benefits from having all its reads in flight; for 64 keys, 48 reads in flight give most of the
/// gain.
pub(super) const IN_FLIGHT: usize = 48;

/// Keys looked up under one pin. Pages evicted under the pin become free only when it ends.
pub(super) const CHUNK_KEYS: usize = 256;

/// Keys that go through the stages up to the answer together.
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

/// What is known of the record of a key in its newest candidate.
#[derive(Clone, Copy, Default)]
enum Record<'g> {
    /// Nothing: the pages have to be searched.
    #[default]
    Unknown,
    /// Where it is, by the index.
    At(RecordAddress),
    /// Its leaf is in memory. Its lines are prefetched.
    InMemory(IndexedRecord<'g>),
    /// Its leaf is not in memory. What is known of the leaf is prefetched.
    Stored(StoredRecord<'g>),
}

impl<'g> Record<'g> {
    /// What a probe says.
    #[inline(always)]
    fn of(probe: Probe) -> Record<'g> {
        match probe {
            Probe::At(address) => Record::At(address),
            Probe::Absent | Probe::Anywhere => Record::Unknown,
        }
    }

    /// Finds the leaf of a record of `run`.
    #[inline(always)]
    fn locate(self, run: &'g Run, reads: &Reads<'g>) -> Record<'g> {
        let Record::At(address) = self else {
            return self;
        };
        match IndexedRecord::prefetched(run, reads, address) {
            Some(record) => Record::InMemory(record),
            None => StoredRecord::prefetched(run, address).map_or(Record::Unknown, Record::Stored),
        }
    }

    /// The record's answer. `None` if the pages have to be searched.
    #[inline(always)]
    fn find<'b>(
        self,
        key: &SearchKey<'_>,
        reads: &Reads<'_>,
        buffer: &'b mut ScratchPage,
    ) -> Option<Found<'b>>
    where
        'g: 'b,
    {
        match self {
            Record::Unknown | Record::At(_) => None,
            Record::InMemory(record) => record.find(key),
            Record::Stored(record) => record.find(key, reads, buffer),
        }
    }
}

/// A lookup on its way through the stages.
#[derive(Clone, Copy, Default)]
struct Lookup<'g> {
    /// Its candidates are these of the block's.
    begin: usize,
    end: usize,
    record: Record<'g>,
}

/// Answers what the indexes can answer, and adds the rest to `searches`.
fn find_records<'t>(
    tree: &'t Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    searches: &mut Searches<'t>,
    mut on_found: impl FnMut(usize, Found<'_>),
) {
    let pin = cache::pin();
    let reads = context.reads(&pin);
    // The candidates of a block's keys, those of one key side by side.
    let mut runs: Vec<&'t Run> = Vec::with_capacity(2 * BLOCK_KEYS);
    let mut lookups = [Lookup::default(); BLOCK_KEYS];
    let mut buffer = reads.scratch_page();
    for (block, keys) in keys.chunks(BLOCK_KEYS).enumerate() {
        let lookups = &mut lookups[..keys.len()];
        runs.clear();
        for (key, lookup) in keys.iter().zip(&mut *lookups) {
            let begin = runs.len();
            for run in tree.candidates(key.key) {
                run.prefetch_probe(key.hash, &pin);
                runs.push(run);
            }
            *lookup = Lookup {
                begin,
                end: runs.len(),
                record: Record::Unknown,
            };
        }
        for (key, lookup) in keys.iter().zip(&mut *lookups) {
            // The candidates that pass move to the front.
            let mut kept = lookup.begin;
            for candidate in lookup.begin..lookup.end {
                let run = runs[candidate];
                let Some(probe) = probe(run, key, &pin) else {
                    continue;
                };
                if kept == lookup.begin {
                    lookup.record = Record::of(probe);
                    if let Probe::At(address) = probe {
                        run.slots().prefetch(address.page);
                    }
                }
                runs[kept] = run;
                kept += 1;
            }
            lookup.end = kept;
        }
        for lookup in &mut *lookups {
            if let Some(&run) = runs[lookup.begin..lookup.end].first() {
                lookup.record = lookup.record.locate(run, &reads);
            }
        }
        for (at, (key, lookup)) in keys.iter().zip(&*lookups).enumerate() {
            let position = block * BLOCK_KEYS + at;
            let runs = &runs[lookup.begin..lookup.end];
            match lookup.record.find(key, &reads, &mut buffer) {
                Some(found) => on_found(position, found),
                None if runs.is_empty() => on_found(position, Found::Missing),
                None => searches.push(position, runs),
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
        let record = Record::of(probe).locate(run, &reads);
        let mut buffer = reads.scratch_page();
        if let Some(found) = record.find(&key, &reads, &mut buffer) {
            return Ok(take(found));
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
