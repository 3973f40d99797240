//! Where leaves are in the file, for lookups that read a single record of a leaf.
//!
//! ```text
//!   place   │ prefix's first 16 bytes │ raw_len 32 │ records_start 24 │ prefix_len 8 │ offset + 1 │    32 bytes a leaf
//! ```
//!
//! A leaf's place is noted when the leaf has been verified, or, if the run had no index in memory
//! then, when the leaf is read again. Only uncompressed leaves whose prefix
//! has at most 16 bytes have one.

use std::sync::Arc;

use forerun_core::arch::prefetch_read;
use forerun_core::sync::OnceLock;
use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};

use super::page::{INLINE_PREFIX_BYTES, Page};
use super::stored::PageLocation;
use crate::cache::{Charge, PageCache};

/// Where a leaf is, and what a record needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeafPlace {
    /// Offset in the file.
    pub(super) offset: u64,
    /// Bytes of the page, as it is in the file.
    pub(super) raw_len: usize,
    pub(super) records_start: usize,
    /// The keys' common prefix, as [`packed`](super::page_search::packed).
    pub(super) prefix: u128,
    pub(super) prefix_len: usize,
}

impl LeafPlace {
    /// The place of a leaf, if a record of it can be read alone.
    pub(super) fn of(location: PageLocation, page: Page<'_>) -> Option<LeafPlace> {
        let (prefix_len, records_start) = (page.prefix_len(), page.records_start());
        if !location.is_raw() || prefix_len > INLINE_PREFIX_BYTES || records_start > 0xff_ffff {
            return None;
        }
        Some(LeafPlace {
            offset: location.offset,
            raw_len: location.raw_len as usize,
            records_start,
            prefix: u128::from_be_bytes(*page.inline_prefix()),
            prefix_len,
        })
    }
}

/// A place, or zeros.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Words([AtomicU64; 4]);

/// The places of a run's leaves.
#[derive(Debug)]
pub(super) struct LeafPlaces(Box<[Words]>);

impl LeafPlaces {
    /// Without any place.
    fn new(leaf_pages: u32) -> LeafPlaces {
        LeafPlaces((0..leaf_pages).map(|_| Words::default()).collect())
    }

    /// The places in `cell`. Without any, makes them if they fit into the cache's budget.
    pub(super) fn made<'c>(
        cell: &'c OnceLock<(LeafPlaces, Charge)>,
        cache: &Arc<PageCache>,
        leaf_pages: u32,
    ) -> Option<&'c LeafPlaces> {
        if cell.get().is_none() {
            let charge = cache.try_charge_pinned(leaf_pages as usize * size_of::<Words>())?;
            let places = LeafPlaces::new(leaf_pages);
            // Another thread may have made them first.
            let _ = cell.set((places, charge));
        }
        cell.get().map(|(places, _)| places)
    }

    /// Prefetches a leaf's place. Any number is allowed.
    #[inline(always)]
    pub(super) fn prefetch(&self, page_no: u32) {
        prefetch_read(self.0.as_ptr().wrapping_add(page_no as usize));
    }

    /// A leaf's place, if it is noted.
    #[inline]
    pub(super) fn get(&self, page_no: u32) -> Option<LeafPlace> {
        let Words([high, low, lens, offset]) = self.0.get(page_no as usize)?;
        // Acquire: pairs with the Release in `note`, so the other words are complete.
        let offset = offset.load(Ordering::Acquire).checked_sub(1)?;
        // Relaxed: see above. Every thread notes the same words, unless the file has changed.
        let [high, low, lens] = [high, low, lens].map(|word| word.load(Ordering::Relaxed));
        Some(LeafPlace {
            offset,
            raw_len: (lens >> 32) as usize,
            records_start: (lens >> 8 & 0xff_ffff) as usize,
            prefix: u128::from(high) << 64 | u128::from(low),
            prefix_len: (lens & 0xff) as usize,
        })
    }

    /// Notes a verified leaf's place.
    pub(super) fn note(&self, page_no: u32, place: LeafPlace) {
        let Some(Words([high, low, lens, offset])) = self.0.get(page_no as usize) else {
            return;
        };
        // Relaxed: published by the last store.
        high.store((place.prefix >> 64) as u64, Ordering::Relaxed);
        low.store(place.prefix as u64, Ordering::Relaxed);
        let (raw_len, records_start) = (place.raw_len as u64, place.records_start as u64);
        let packed_lens = raw_len << 32 | records_start << 8 | place.prefix_len as u64;
        lens.store(packed_lens, Ordering::Relaxed);
        // Release: pairs with the Acquire in `get`.
        offset.store(place.offset + 1, Ordering::Release);
    }
}

/// Loom's model of the orderings: `RUSTFLAGS="--cfg loom" cargo test -p forerun-db --release --lib
/// leaf_places::loom_tests`.
#[cfg(all(test, loom))]
mod loom_tests {
    use forerun_core::sync::loom_model;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn a_place_is_complete_or_not_there_whoever_notes_it() {
        let place = LeafPlace {
            offset: 0x1234,
            raw_len: 0x5678,
            records_start: 0x9a,
            prefix: 0xbc << 64 | 0xde,
            prefix_len: 16,
        };
        loom_model::check(3, move || {
            let places = Arc::new(LeafPlaces::new(1));
            let noting = {
                let places = Arc::clone(&places);
                thread::spawn(move || places.note(0, place))
            };
            let reading = {
                let places = Arc::clone(&places);
                thread::spawn(move || {
                    let first = places.get(0);
                    let second = places.get(0);
                    assert!([None, Some(place)].contains(&first));
                    assert!(second == Some(place) || second == first);
                })
            };
            places.note(0, place);
            noting.join().unwrap();
            reading.join().unwrap();
            assert_eq!(places.get(0), Some(place));
        });
    }
}
