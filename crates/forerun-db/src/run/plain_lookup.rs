//! The lookup of one key in a run by any search of pages, as a coroutine, for measurements. It
//! suspends before it reads a page, not within a page.

use std::future::Future;

use forerun_core::suspend;

use super::SearchKey;
use super::lookup::{Found, prefetch_start};
use super::page::{Page, PageKind};
use super::page_search::PageSearch;
use super::reader::Run;
use crate::cache::driver::Reads;
use crate::{Error, Result};

/// Looks a key up in a run that was written by this process, so that its pages are in order.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments a second time in its state, and the state is to stay \
        small"
)]
#[inline(always)]
pub(crate) fn find_by<'r, 'g>(
    run: &'g Run,
    key: &'r SearchKey<'r>,
    search: PageSearch,
    reads: &'r Reads<'g>,
) -> impl Future<Output = Result<Found<'g>, Box<Error>>> + use<'r, 'g> {
    async move {
        // As in `find_in`, the root and the first lines of its children are near.
        let mut near = true;
        let mut bytes = run.root().bytes();
        while Page::new(bytes).kind() == PageKind::Internal {
            let row = search.child(Page::new(bytes), run.order(), key.key, key.sequence);
            let child_no = Page::new(bytes).child_number(row);
            if !near {
                run.slots().prefetch(child_no);
                suspend().await;
            }
            bytes = match reads.resident(run.slots(), child_no) {
                Some(child) => {
                    let is_leaf = child_no < run.meta().leaf_pages;
                    prefetch_start(child, is_leaf);
                    if !near || is_leaf {
                        suspend().await;
                    }
                    child
                }
                None => {
                    let (_, location) = Page::new(bytes).child(row);
                    reads
                        .page(run, child_no, location)
                        .await
                        .map_err(Box::new)?
                }
            };
            near = false;
        }
        let page = Page::new(bytes);
        let Some(row) = search.find(page, run.order(), key.key, key.sequence) else {
            return Ok(Found::Missing);
        };
        Ok(match page.live_value(row) {
            Some(value) => Found::Value(value),
            None => Found::Deleted,
        })
    }
}
