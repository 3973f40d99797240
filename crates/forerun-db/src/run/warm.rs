//! Walks the way of a cursor's seek ahead of it and prefetches the lines that the seek reads, so
//! that the seeks of several runs wait for memory together.
//!
//! It changes no cursor and reads no file. Where a page is not in memory, it ends.

use forerun_core::arch::prefetch_read;
use forerun_core::suspend;

use super::page::{LINE_BYTES, Page, PageKind};
use super::page_search::{self, Step};
use super::reader::Run;
use crate::cache;

/// Walks to the first version at or after (`key`, `sequence`).
pub(crate) async fn warm(run: &Run, key: &[u8], sequence: u64) {
    let sequence = run.lookup_sequence(sequence);
    let pin = cache::pin();
    let (mut page, mut page_no) = (run.root(), u32::MAX);
    loop {
        let before = match page_search::find_group(page, run.order(), key) {
            Step::Row(before) => before,
            Step::Group(group) => {
                page.prefetch_group(group.index);
                suspend().await;
                let matches = page_search::prefix_matches(page, key, group);
                if !matches.is_empty() {
                    page.prefetch_key(&page.record(matches.start));
                    suspend().await;
                }
                page_search::rows_before_in(page, run.order(), key, sequence, matches)
            }
        };
        if page.kind() == PageKind::Leaf {
            page.prefetch_record(before.min(page.rows().saturating_sub(1)));
            return;
        }
        let child_no = page.child_number(before.saturating_sub(1));
        // A child's number is smaller than its parent's, so this ends whatever the pages
        // contain.
        if child_no >= page_no {
            return;
        }
        let Some(bytes) = run.slots().peek(child_no, &pin) else {
            return;
        };
        // The header and, in an internal page, more fences.
        prefetch_read(bytes.as_ptr());
        prefetch_read(bytes.as_ptr().wrapping_add(LINE_BYTES));
        suspend().await;
        (page, page_no) = (Page::new(bytes), child_no);
    }
}
