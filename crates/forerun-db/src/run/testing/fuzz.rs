//! Fuzz targets: arbitrary bytes, read as each part of a run, must not cause a panic.

use crate::comparator::KeyOrder;
#[cfg(any(test, feature = "study"))]
use crate::run::PageSearch;
use crate::run::codec::Dictionary;
use crate::run::meta::{FOOTER_BYTES, Footer, RunMeta};
use crate::run::record_index::LocationBits;
use crate::run::stored::{checksum, unstore};
use crate::run::{Filter, Page, PageKind, PageLocation, RecordIndex, dump, page_search};

/// Reads `bytes` as a page, valid or not, and searches it for `key`.
///
/// Returns whether the page is valid.
pub fn read_page(bytes: &[u8], key: &[u8]) -> bool {
    let good = Page::check(bytes).is_ok();
    let page = Page::new(bytes);
    // An invalid page may claim any number of rows. Reading them all would take long and show
    // nothing.
    let rows = page.rows();
    if rows > bytes.len() {
        return false;
    }
    let row = match page.kind() {
        PageKind::Leaf => page_search::lower_bound(page, &KeyOrder::Bytewise, key, 7),
        PageKind::Internal => page_search::child(page, &KeyOrder::Bytewise, key, 7),
    };
    assert!(!good || row <= page.rows());
    #[cfg(any(test, feature = "study"))]
    for search in PageSearch::ALL {
        let row = match page.kind() {
            PageKind::Leaf => search.lower_bound(page, &KeyOrder::Bytewise, key, 7),
            PageKind::Internal => search.child(page, &KeyOrder::Bytewise, key, 7),
        };
        assert!(!good || row <= page.rows());
        let _ = search.find(page, &KeyOrder::Bytewise, key, 7);
    }
    let mut whole = Vec::new();
    for row in 0..rows {
        page.key_into(row, &mut whole);
        page.prefetch_record(row);
        let _ = (page.sequence(row), page.value(row), page.child(row));
    }
    if good {
        assert!(!dump::page(page, usize::MAX).to_string().is_empty());
        let _ = page.verify_order(&KeyOrder::Bytewise);
    }
    good
}

/// Reads `bytes` as a stored page, with a location and a checksum that let it reach the page's own
/// check, in a run with these bytes as its dictionary.
pub fn read_stored(bytes: &[u8], raw_len: u16, dictionary: &[u8]) {
    const OFFSET: u64 = 32;
    let Ok(dictionary) = Dictionary::decode(dictionary) else {
        return;
    };
    let sum = checksum(0, OFFSET, bytes);
    let bytes = &[bytes, &sum.to_le_bytes()].concat()[..];
    let location = PageLocation {
        offset: OFFSET,
        stored_len: bytes.len() as u32,
        raw_len: u32::from(raw_len),
    };
    let mut into = vec![0; usize::from(raw_len)];
    if unstore(0, location, dictionary.as_ref(), bytes, &mut into).is_ok() {
        assert!(Page::check(&into).is_ok());
    }
}

/// Reads `bytes` as a run's metadata and as its footer.
pub fn read_meta(bytes: &[u8]) {
    if let Ok(meta) = RunMeta::decode(bytes) {
        assert_eq!(meta.encode(), bytes);
    }
    if let Some(footer) = bytes.first_chunk::<FOOTER_BYTES>() {
        let _ = Footer::decode(footer, 1000);
    }
}

/// Reads `bytes` as a filter.
pub fn read_filter(bytes: &[u8], hash: u64) {
    if let Ok(filter) = Filter::decode(bytes) {
        filter.prefetch(hash);
        let _ = filter.may_contain(hash);
        let mut again = Vec::new();
        filter.encode_into(&mut again);
        assert_eq!(again, bytes);
    }
}

/// Reads `bytes` as the index of a run with this many leaves and this limit for pages.
pub fn read_index(bytes: &[u8], hash: u64, leaf_pages: u32, page_bytes: u32) {
    let bits = LocationBits::new(leaf_pages, page_bytes);
    if let Ok(index) = RecordIndex::decode(bytes, bits) {
        assert_eq!(index.bytes(), bytes);
        index.prefetch(hash);
        if let Some(place) = index.find(hash) {
            assert!(place.page < leaf_pages);
            // Another key with the same tag may come first, but the place is this hash's too.
            assert!(index.has(hash, place) && index.keys() > 0);
        }
    }
}
