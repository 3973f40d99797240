//! The lookup of a batch, in groups of 64: hash, tags, keys.
//!
//! ```text
//!   group   hash, prefetch the home buckets
//!           compare tags at home ─┬─ one matches: prefetch the item
//!                                 └─ none, but the counter says away: prefetch the second bucket
//!           compare tags there, prefetch the items
//!           compare keys, prefetch the rest of the value, hand out
//! ```
//!
//! Each step is a loop over the group, so that what one step waits for comes while the others' is asked for. A tag that matches by
//! chance, one lookup in some thousands, has its key looked up anew.

use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::flush::Moment;
use crate::index::bucket::{Entry, ItemRef};
use crate::index::place::Place;
use crate::index::segment::Segment;
use crate::item::Item;
use forerun_core::arch::{Simd, WithSimd};

/// Keys a group: a bit for each in a word, and more lines than memory works on at a time.
const GROUP: usize = 64;

/// A batch of keys, and places for what is found.
pub(crate) struct Batch<'b, 'g> {
    pub(crate) cache: &'b Cache,
    pub(crate) pinned: &'g Pinned<'g>,
    pub(crate) keys: &'b [&'b [u8]],
    pub(crate) items: &'b mut [Option<Item<'g>>],
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    /// Of the misses: those whose item was there, but had expired.
    pub(crate) expired: u64,
}

impl WithSimd for Batch<'_, '_> {
    type Output = Counts;

    #[inline(always)]
    fn with<S: Simd>(self, simd: S) -> Counts {
        let mut counts = Counts::default();
        let moment = self.cache.moment();
        let groups = self.items.chunks_mut(GROUP);
        for (keys, items) in self.keys.chunks(GROUP).zip(groups) {
            let mut group = Group::new(self.cache, self.pinned, keys);
            group.look_at_home(simd);
            group.look_away(simd);
            group.hand_out(items, moment, &mut counts);
        }
        counts
    }
}

/// A group on its way.
struct Group<'b, 'g> {
    cache: &'b Cache,
    pinned: &'g Pinned<'g>,
    keys: &'b [&'b [u8]],
    hashes: [u64; GROUP],
    segments: [Option<&'g Segment>; GROUP],
    /// The items whose tags match.
    candidates: [Option<ItemRef>; GROUP],
    /// A bit for each key that is perhaps in its second bucket.
    away: u64,
    /// A bit for each key whose slot was emptied while it was looked at: it is looked up anew.
    again: u64,
}

impl<'b, 'g> Group<'b, 'g> {
    #[inline(always)]
    fn new(cache: &'b Cache, pinned: &'g Pinned<'g>, keys: &'b [&'b [u8]]) -> Self {
        let mut group = Group {
            cache,
            pinned,
            keys,
            hashes: [0; GROUP],
            segments: [None; GROUP],
            candidates: [None; GROUP],
            away: 0,
            again: 0,
        };
        let directory = cache.index.directory(pinned);
        let places = group.hashes.iter_mut().zip(&mut group.segments);
        for (key, (hash, segment)) in keys.iter().zip(places) {
            *hash = cache.hasher.hash(key);
            let found = directory.segment(*hash);
            found.buckets()[Place::new(*hash).home].prefetch();
            *segment = Some(found);
        }
        group
    }

    #[inline(always)]
    fn look_at_home<S: Simd>(&mut self, simd: S) {
        for at in 0..self.keys.len().min(GROUP) {
            let (Some(segment), place) = (self.segments[at], Place::new(self.hashes[at])) else {
                continue;
            };
            let home = &segment.buckets()[place.home];
            let mask = home.find(simd, place);
            if mask != 0 {
                self.take_candidate(at, home.entry(mask.trailing_zeros() as usize));
            } else if home.may_be_away(place.tag) {
                segment.buckets()[place.second()].prefetch();
                self.away |= 1 << at;
            }
        }
    }

    #[inline(always)]
    fn look_away<S: Simd>(&mut self, simd: S) {
        while self.away != 0 {
            let at = self.away.trailing_zeros() as usize;
            self.away &= self.away - 1;
            let (Some(segment), place) = (self.segments[at], Place::new(self.hashes[at])) else {
                continue;
            };
            let second = &segment.buckets()[place.second()];
            let mask = second.find(simd, place);
            if mask != 0 {
                self.take_candidate(at, second.entry(mask.trailing_zeros() as usize));
            }
        }
    }

    #[inline(always)]
    fn take_candidate(&mut self, at: usize, entry: Option<Entry>) {
        match entry {
            Some(Entry { item, .. }) => {
                self.cache.blocks.prefetch(item);
                self.candidates[at] = Some(item);
            }
            None => self.again |= 1 << at,
        }
    }

    #[inline(always)]
    fn hand_out(&mut self, items: &mut [Option<Item<'g>>], moment: Moment, counts: &mut Counts) {
        let of_keys = self.keys.iter().zip(&self.hashes).zip(&self.candidates);
        for (at, (((key, &hash), &candidate), item)) in of_keys.zip(items).enumerate() {
            *item = None;
            let record = candidate.map(|item| self.cache.record(self.pinned, item));
            let record = match record {
                Some(record) if record.key() == *key => record,
                None if self.again & 1 << at == 0 => continue,
                _ => match self.cache.find(self.pinned, hash, key) {
                    Some((_, found)) => found,
                    None => continue,
                },
            };
            if record.is_gone(moment) {
                counts.expired += u64::from(record.is_expired(moment.now));
                continue;
            }
            record.prefetch_rest();
            *item = Some(Item::accessed(record, moment.now));
            counts.hits += 1;
        }
    }
}
