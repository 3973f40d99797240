//! Draws an item at random, in bounded steps.
//!
//! ```text
//!   first     32 slots of the whole index: the first live item
//!   then      │ … │ segment, segment, … 16 │ next step │ …      from a random segment once around;
//!                   the first one with live items: one of these
//! ```
//!
//! If few slots have items, the draws find none, and segments are searched. A search is bounded,
//! because dead items stay in the index until their memory is reclaimed: after a flush, all of them
//! may be dead.

use crate::guard::CacheGuard;
use crate::item::Item;
use forerun_core::sync::random_seed;

/// How many slots are drawn before segments are searched.
const DRAWS: usize = 32;

/// How many segments one step searches: about 25,000 items at most.
const SEGMENTS_PER_STEP: usize = 16;

/// A search for a random item ([`CacheGuard::random`]), which keeps its place between guards.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomSearch {
    /// The first hash of the segment where the search began, and that of the next segment.
    range: Option<(u64, u64)>,
    is_over: bool,
}

impl RandomSearch {
    /// Whether the whole cache was searched.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl CacheGuard<'_> {
    /// An item drawn at random. It leaves no trace of a read. `None` means that there is none if
    /// the search [is over](RandomSearch::is_over); otherwise, drop the guard and continue. All but
    /// a nearly empty cache, or one of mostly dead items, give an item in the first step.
    ///
    /// In a large cache, some items are up to twice as likely as others. In a nearly empty one
    /// whose index has grown, those behind a long gap are more likely.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, RandomSearch};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("town", "Oslo");
    /// let mut search = RandomSearch::default();
    /// let mut key = None;
    /// while key.is_none() && !search.is_over() {
    ///     key = cache.pin().random(&mut search).map(|item| item.key().to_vec());
    /// }
    /// assert_eq!(key.unwrap(), b"town");
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn random(&self, search: &mut RandomSearch) -> Option<Item<'_>> {
        if self.cache.is_empty() {
            search.is_over = true;
        }
        if search.is_over {
            return None;
        }
        let directory = self.cache.index.directory(&self.pinned);
        if search.range.is_none() {
            let moment = self.cache.moment();
            // Slots are drawn until one has a live item, so that the neighbours of empty slots are
            // not more likely than others.
            let drawn = (0..DRAWS).find_map(|_| {
                let hash = random_seed();
                let item = directory.segment(hash).item_in_slot(hash)?;
                let record = self.cache.record(&self.pinned, item);
                (!record.is_gone(moment)).then(|| Item::untouched(record))
            });
            if drawn.is_some() {
                return drawn;
            }
        }
        let (start, mut at) = search.range.unwrap_or_else(|| {
            let hash = random_seed();
            let first = directory.segment(hash).first(hash);
            (first, first)
        });
        for _ in 0..SEGMENTS_PER_STEP {
            let page = self.page(at);
            let live = self.live(&page.items, self.cache.moment());
            let found: Vec<Item<'_>> = live.map(|(_, item)| item).collect();
            if !found.is_empty() {
                return Some(found[random_seed() as usize % found.len()]);
            }
            at = page.next_segment;
            // A segment's bounds remain bounds when it is split.
            if at == start {
                search.is_over = true;
                return None;
            }
        }
        search.range = Some((start, at));
        None
    }
}
