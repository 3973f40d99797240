//! The lookup of one key in runs, as a coroutine.
//!
//! ```text
//!   root ─┬─> slot's word ─> first line(s) ─> group's two lines ─> (record) ─┬─> … ─> leaf's record ─> answer
//!         │        └─ not resident: the driver reads it                      │
//!         └──────────────────────── each arrow: prefetch, let the others run ─┘
//! ```
//!
//! `tree/lookup.rs` picks the runs that may hold a key and runs the coroutines of a batch side by side.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use forerun_core::arch::prefetch_read;
use forerun_core::suspend;

use super::page::{LINE_BYTES, Page, PageKind};
use super::page_search::{self, Step};
use super::reader::Run;
use super::stored::{PageLocation, unstore};
use super::{PageSearch, SearchKey};
use crate::cache::driver::{PageSource, Reads};
use crate::cache::{PageCache, PageSlots};
use crate::io::{IoFile, ReadBackend};
use crate::{Error, Result};

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
pub(crate) fn find_in<'r, 'g>(
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
            return Ok(match page.live_value(row) {
                Some(value) if !has_expired => Found::Value(value),
                _ => Found::Deleted,
            });
        }
        Ok(Found::Missing)
    }
}
