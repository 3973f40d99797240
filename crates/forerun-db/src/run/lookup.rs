//! The lookup of one key in runs, as a coroutine.
//!
//! ```text
//!   root ─┬─> slot's word ─> first line(s) ─> group's two lines ─> (record) ─┬─> … ─> leaf's record ─> answer
//!         │        └─ not resident: the driver reads it                      │
//!         └──────────────────────── each arrow: prefetch, let the others run ─┘
//! ```
//!
//! `tree/lookup.rs` picks the runs that may hold a key and interleaves the coroutines of a batch.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use forerun_core::arch::prefetch_read;
use forerun_core::suspend;

use super::SearchKey;
use super::page::{LINE_BYTES, Page, PageKind};
use super::page_search::{self, GroupSearch};
use super::reader::Run;
use super::stored::{PageChecks, PageLocation, check_raw};
use crate::cache::driver::{PageSource, Reads};
use crate::cache::{PageCache, PageSlots, Pin, VerifyChecksums};
use crate::comparator::KeyOrder;
use crate::io::{IoFile, ReadBackend};
use crate::{Error, Result};

/// The result of a lookup in runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found<'g> {
    /// The newest visible value.
    Value(&'g [u8]),
    /// The newest visible version is a deletion.
    Deleted,
    /// No version of the key is visible.
    Missing,
}

/// What lookups in runs read pages with.
#[derive(Clone, Debug)]
pub(crate) struct ReadContext {
    pub(crate) cache: Arc<PageCache>,
    pub(crate) backend: ReadBackend,
    pub(crate) verify_checksums: VerifyChecksums,
}

impl ReadContext {
    /// The reads of point lookups under a pin.
    pub(crate) fn reads<'g>(&'g self, pin: &'g Pin) -> Reads<'g> {
        Reads::new(&self.cache, pin, self.backend).verifying(self.verify_checksums)
    }
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

    fn is_leaf(&self, page_no: u32) -> bool {
        page_no < self.meta().leaf_pages
    }

    fn may_be_trusted(&self) -> bool {
        // A comparator may not expect damaged keys.
        matches!(self.order(), KeyOrder::Bytewise)
    }

    fn is_direct(&self) -> bool {
        Run::is_direct(self)
    }

    fn head(&self, page: &[u8]) -> u64 {
        self.shared_prefix().head_of(Page::new(page))
    }

    fn note_leaf(&self, page_no: u32, location: PageLocation, page: &[u8]) {
        Run::note_leaf(self, page_no, location, Page::new(page));
    }

    fn note_missing_leaf(&self, page_no: u32, location: PageLocation, page: &[u8]) {
        if self.lacks_leaf_place(page_no) {
            Run::note_leaf(self, page_no, location, Page::new(page));
        }
    }

    fn is_raw(&self, location: PageLocation) -> bool {
        location.is_raw()
    }

    fn check_raw(
        &self,
        checks: PageChecks,
        location: PageLocation,
        stored: &[u8],
    ) -> Result<(), &'static str> {
        check_raw(checks, self.salt(), location, stored)
    }

    fn unstore(
        &self,
        checks: PageChecks,
        location: PageLocation,
        stored: &[u8],
        into: &mut [u8],
    ) -> Result<(), &'static str> {
        Run::unstore(self, checks, location, stored, into)
    }
}

/// Prefetches the lines that a page search reads first: the header's line, and for an internal
/// page, which has more rows, the next line of fences.
#[inline(always)]
pub(super) fn prefetch_start(bytes: &[u8], leaf: bool) {
    prefetch_read(bytes.as_ptr());
    if !leaf {
        prefetch_read(bytes.as_ptr().wrapping_add(LINE_BYTES));
    }
}

/// Looks a key up in runs, newest first, until one has an answer. The caller leaves out the runs
/// that are not [visible](Run::is_visible) at the key's sequence number: an ingested run has one
/// number for all its versions, which its pages do not contain.
///
/// The whole lookup is one future. It holds the key by reference and boxes errors, because the
/// compiler moves a future of two cache lines with a few instructions, but a larger one with a
/// call.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments a second time in its state, and the state is to stay \
        small"
)]
#[inline(always)]
pub(crate) fn find_in<'r, 'g>(
    runs: &'r [&'g Run],
    key: &'r SearchKey<'r>,
    reads: &'r Reads<'g>,
) -> impl Future<Output = Result<Found<'g>, Box<Error>>> + use<'r, 'g> {
    async move {
        let mut next = 0;
        while let Some(run) = runs.get(next) {
            next += 1;
            // Every lookup reads the root and its children, so they are probably in the CPU's
            // cache.
            let mut near = true;
            let mut bytes = run.root().bytes();
            let mut page_no = u32::MAX;
            // Descends to a leaf. A child's number is smaller than its parent's, so this ends
            // whatever the pages contain.
            while Page::new(bytes).kind() == PageKind::Internal {
                let step = page_search::find_group(Page::new(bytes), run.order(), key.key);
                let rows = match step {
                    GroupSearch::Row(rows) => rows,
                    GroupSearch::Group(group) => {
                        if !near {
                            Page::new(bytes).prefetch_group(group.index);
                            suspend().await;
                        }
                        let page = Page::new(bytes);
                        let matches = page_search::prefix_matches(page, key.key, group);
                        if !near && !matches.is_empty() {
                            page.prefetch_key(&page.record(matches.start));
                            suspend().await;
                        }
                        let page = Page::new(bytes);
                        page_search::rows_before_in(
                            page,
                            run.order(),
                            key.key,
                            key.sequence,
                            matches,
                        )
                    }
                };
                let row = rows.saturating_sub(1);
                let child_no = Page::new(bytes).child_number(row);
                if child_no >= page_no {
                    let reason = "a page points to a page that is not below it";
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
                        // The first lines of the root's children are as likely in the CPU's cache
                        // as the root.
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
            let found = 'leaf: {
                let GroupSearch::Group(group) =
                    page_search::find_group(Page::new(bytes), run.order(), key.key)
                else {
                    break 'leaf Found::Missing;
                };
                Page::new(bytes).prefetch_group(group.index);
                suspend().await;
                let matches = page_search::prefix_matches(Page::new(bytes), key.key, group);
                if matches.is_empty() {
                    break 'leaf Found::Missing;
                }
                Page::new(bytes).prefetch_record(matches.start);
                suspend().await;
                let page = Page::new(bytes);
                let row = page_search::find_in(page, run.order(), key.key, key.sequence, matches);
                let Some(row) = row else {
                    break 'leaf Found::Missing;
                };
                // If this version has expired, older ones have too.
                let has_expired = run.sequence(page.sequence(row)) <= key.expired_sequence;
                match page.live_value(row) {
                    Some(value) if !has_expired => Found::Value(value),
                    _ => Found::Deleted,
                }
            };
            match found {
                Found::Value(_) => return Ok(found),
                // A page that was trusted is searched again, verified.
                _ if reads.distrust(run.slots(), page_no, bytes) => next -= 1,
                Found::Deleted => return Ok(found),
                Found::Missing => {}
            }
        }
        Ok(Found::Missing)
    }
}
