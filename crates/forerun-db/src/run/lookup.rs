//! One key, or a batch of keys, in the runs that may hold it.
//!
//! ```text
//!   stage 1   candidates of all keys, newest first; their filters' lines are asked for, and tested some keys later
//!   stage 2   a coroutine a key, W in flight, from its newest run to its oldest until one knows the key:
//!
//!             root ─┬─> slot's word ─> first line(s) ─> group's two lines ─> (record) ─┬─> … ─> leaf's record ─> answer
//!                   │        └─ not resident: the driver reads it                      │
//!                   └──────────────────────── each arrow: ask, let the others run ─────┘
//! ```
//!
//! `get` runs the same coroutine alone.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use forerun_core::arch::prefetch_read;
use forerun_core::{alone_with, interleave_with, suspend};

use super::page::{LINE_BYTES, Page, PageKind};
use super::page_search::{self, Step};
use super::reader::Run;
use super::stored::{PageLocation, unstore};
use super::{PageSearch, SearchKey};
use crate::cache::driver::{PageSource, Reads};
use crate::cache::{self, PageCache, PageSlots};
use crate::io::{IoFile, ReadBackend};
use crate::tree::levels::Levels;
use crate::{Error, Result};

/// Lookups in flight. In memory, from 8 to 64 measure alike, within 5%; a batch that waits for a disk wants all of its
/// reads under way, and with 48 of 64 keys has most of what more would give.
const IN_FLIGHT: usize = 48;

/// Keys that are looked up under one pin: what is evicted meanwhile waits for its end.
const CHUNK_KEYS: usize = 256;

/// Keys between asking for a filter's line and testing it.
const FILTERS_AHEAD: usize = 16;

/// What the runs know of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found<'g> {
    /// The newest visible value.
    Value(&'g [u8]),
    /// The newest visible version is a deletion.
    Deleted,
    /// No version of the key is visible.
    Missing,
}

/// What lookups in runs go through.
#[derive(Clone, Debug)]
pub(crate) struct ReadContext {
    pub(crate) cache: Arc<PageCache>,
    pub(crate) backend: ReadBackend,
    pub(crate) search: PageSearch,
}

impl PageSource for Run {
    fn file(&self) -> &dyn IoFile {
        Run::file(self)
    }

    fn path(&self) -> &Path {
        Run::path(self)
    }

    fn slots(&self) -> &PageSlots {
        Run::slots(self)
    }

    fn check_location(&self, location: PageLocation) -> Result<()> {
        Run::check_location(self, location)
    }

    fn unstore(
        &self,
        location: PageLocation,
        stored: &[u8],
        into: &mut [u8],
    ) -> Result<(), &'static str> {
        unstore(self.salt(), location, stored, into)
    }
}

/// Asks for the lines that a search of a page reads first: the header's, and of an internal page, which has more rows, the
/// next one with more fences.
#[inline(always)]
fn prefetch_start(bytes: &[u8], leaf: bool) {
    prefetch_read(bytes.as_ptr());
    if !leaf {
        prefetch_read(bytes.as_ptr().wrapping_add(LINE_BYTES));
    }
}

/// Looks a key up in runs, from the newest on, until one knows it.
///
/// One state for all of it, which holds the key by reference and gives errors in a box: a state of two cache lines is
/// moved into its slot by a few instructions, a larger one by a call.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments a second time in its state, and the state is to stay small"
)]
#[inline(always)]
fn find_in<'r, 'g>(
    runs: &'r [&'g Run],
    key: &'r SearchKey<'r>,
    search: PageSearch,
    reads: &'r Reads<'g>,
) -> impl Future<Output = Result<Found<'g>, Box<Error>>> + use<'r, 'g> {
    async move {
        for run in runs {
            // The root and what lies directly below it is used by every lookup, and so is near.
            let mut near = true;
            let mut bytes = run.root().bytes();
            let mut page_no = u32::MAX;
            // Down to a leaf: a child's number is smaller than its parent's, so this ends whatever the pages say.
            while Page::new(bytes).kind() == PageKind::Internal {
                let row = if search == PageSearch::KeyPrefixes {
                    let step = page_search::group_of(Page::new(bytes), run.order(), key.key);
                    let rows = match step {
                        Step::Row(rows) => rows,
                        Step::Group(group) => {
                            if !near {
                                Page::new(bytes).prefetch_group(group.index);
                                suspend().await;
                            }
                            let page = Page::new(bytes);
                            let tied = page_search::tied(page, key.key, group);
                            if !near && !tied.is_empty() {
                                page.prefetch_key(&page.record(tied.start));
                                suspend().await;
                            }
                            let page = Page::new(bytes);
                            page_search::among(page, run.order(), key.key, key.sequence, tied)
                        }
                    };
                    rows.saturating_sub(1)
                } else {
                    let page = Page::new(bytes);
                    page_search::child(page, run.order(), key.key, key.sequence, search)
                };
                let child_no = Page::new(bytes).child_number(row);
                if child_no >= page_no {
                    let reason = "a page leads to one that is not below it";
                    let (_, location) = Page::new(bytes).child(row);
                    return Err(Box::new(run.corrupt(location.offset, reason)));
                }
                if !near {
                    run.slots().prefetch(child_no);
                    suspend().await;
                }
                page_no = child_no;
                bytes = match reads.resident(run.slots(), child_no) {
                    Some(child) => {
                        let is_leaf = child_no < run.meta().leaf_pages;
                        prefetch_start(child, is_leaf);
                        // The first lines of what lies below the root are as near as the root is.
                        if !near || is_leaf {
                            suspend().await;
                        }
                        child
                    }
                    None => {
                        let (_, location) = Page::new(bytes).child(row);
                        reads
                            .page(*run, child_no, location)
                            .await
                            .map_err(Box::new)?
                    }
                };
                near = false;
            }
            let row = if search == PageSearch::KeyPrefixes {
                let Step::Group(group) =
                    page_search::group_of(Page::new(bytes), run.order(), key.key)
                else {
                    continue;
                };
                Page::new(bytes).prefetch_group(group.index);
                suspend().await;
                let tied = page_search::tied(Page::new(bytes), key.key, group);
                if tied.is_empty() {
                    continue;
                }
                Page::new(bytes).prefetch_record(tied.start);
                suspend().await;
                let page = Page::new(bytes);
                page_search::find_among(page, run.order(), key.key, key.sequence, tied)
            } else {
                let page = Page::new(bytes);
                page_search::find(page, run.order(), key.key, key.sequence, search)
            };
            let page = Page::new(bytes);
            let Some(row) = row else { continue };
            // Where it has expired, what is older has too.
            let has_expired = run.sequence(page.sequence(row)) <= key.expired_sequence;
            return Ok(match page.says(row) {
                Some(value) if !has_expired => Found::Value(value),
                _ => Found::Deleted,
            });
        }
        Ok(Found::Missing)
    }
}

/// Looks keys up, and hands what is known of each to `sink` with its position, in any order.
pub(crate) fn multi_get(
    tree: &Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    sink: impl FnMut(usize, Result<Found<'_>>),
) {
    multi_get_in_flight::<IN_FLIGHT>(tree, keys, context, sink);
}

/// [`multi_get`] with `W` lookups in flight.
fn multi_get_in_flight<const W: usize>(
    tree: &Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    mut sink: impl FnMut(usize, Result<Found<'_>>),
) {
    let mut first = 0;
    while first < keys.len() {
        let chunk = &keys[first..keys.len().min(first + CHUNK_KEYS)];
        first += look_up_chunk::<W>(tree, chunk, context, |position, found| {
            sink(first + position, found);
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
        // By range first, and some keys later by filter: those that stay move to the front.
        let mut by_range: [u32; FILTERS_AHEAD] = [0; FILTERS_AHEAD];
        let mut all: Vec<&'g Run> = Vec::with_capacity(FILTERS_AHEAD * 4);
        for group in keys.chunks(FILTERS_AHEAD) {
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

/// Looks up the keys of a chunk, and returns how many: fewer than all where the cache is so small that what they read
/// fills it.
fn look_up_chunk<const W: usize>(
    tree: &Levels,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
    mut sink: impl FnMut(usize, Result<Found<'_>>),
) -> usize {
    let candidates = Candidates::new(tree, keys);
    let pin = cache::pin();
    let reads = Reads::new(&context.cache, &pin, context.backend);
    let mut begun = 0;
    let lookups = std::iter::from_fn(|| {
        let key = keys.get(begun)?;
        if begun > 0 && reads.crowded() {
            return None;
        }
        let runs = candidates.of(begun);
        begun += 1;
        Some(find_in(runs, key, context.search, &reads))
    });
    interleave_with::<W, _, _>(&reads, lookups, |position, found| {
        sink(position, found.map_err(|error| *error));
    });
    let crowded = reads.crowded();
    drop(reads);
    drop(pin);
    if crowded {
        cache::reclaim();
    }
    begun
}

/// Looks one key up, and hands what is known of it to `take`.
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
        let found = alone_with(&reads, find_in(&[run], &key, context.search, &reads));
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
