//! Bytes from outside, read as each part of a run: nothing may panic.

use super::filter::Filter;
use super::meta::{FOOTER_BYTES, Footer, RunMeta};
use super::page::{Page, PageKind};
use super::stored::PageLocation;
use super::{PageSearch, dump, page_search, unstore};
use crate::comparator::KeyOrder;

/// Reads `bytes` as a page that may pass its check or not, and looks for `key` in it.
///
/// Returns whether the check passed.
#[doc(hidden)]
pub fn read_page(bytes: &[u8], key: &[u8]) -> bool {
    let good = Page::check(bytes).is_ok();
    let page = Page::new(bytes);
    // A page that is none may say that it has any number of rows. Then there is much to go through, but nothing to see.
    let rows = page.rows();
    if rows > bytes.len() {
        return false;
    }
    for search in PageSearch::ALL {
        let row = match page.kind() {
            PageKind::Leaf => page_search::lower_bound(page, &KeyOrder::Bytewise, key, 7, search),
            PageKind::Internal => page_search::child(page, &KeyOrder::Bytewise, key, 7, search),
        };
        assert!(!good || row <= page.rows());
        let _ = page_search::find(page, &KeyOrder::Bytewise, key, 7, search);
    }
    let mut whole = Vec::new();
    for row in 0..rows {
        page.key_into(row, &mut whole);
        page.prefetch_record(row);
        let _ = (page.sequence(row), page.value(row), page.child(row));
    }
    if good {
        assert!(!dump::page(page, usize::MAX).is_empty());
        let _ = page.verify_order(&KeyOrder::Bytewise);
    }
    good
}

/// Reads `bytes` as a page that is stored, with what must match to get to the page's own check.
#[doc(hidden)]
pub fn read_stored(bytes: &[u8], raw_len: u16) {
    let location = PageLocation {
        offset: 32,
        stored_len: bytes.len() as u32,
        raw_len: u32::from(raw_len),
    };
    let mut into = vec![0; usize::from(raw_len)];
    if unstore(0, location, bytes, &mut into).is_ok() {
        assert!(Page::check(&into).is_ok());
    }
}

/// Reads `bytes` as a run's description and as its footer.
#[doc(hidden)]
pub fn read_meta(bytes: &[u8]) {
    if let Ok(meta) = RunMeta::decode(bytes) {
        assert_eq!(meta.encode(), bytes);
    }
    if let Some(footer) = bytes.first_chunk::<FOOTER_BYTES>() {
        let _ = Footer::decode(footer, 1000);
    }
}

/// Reads `bytes` as a filter.
#[doc(hidden)]
pub fn read_filter(bytes: &[u8], hash: u64) {
    if let Ok(filter) = Filter::decode(bytes) {
        filter.prefetch(hash);
        let _ = filter.may_contain(hash);
        let mut again = Vec::new();
        filter.encode_into(&mut again);
        assert_eq!(again, bytes);
    }
}
