//! A segment: the buckets of all hashes that begin alike, their versions, and the writers' lock.
//!
//! ```text
//!   Segment   version                 in a line of its own, for readers
//!             prefix, depth           the hashes it holds
//!             buckets                 | bucket 0 | bucket 1 | ...                  64 bytes each, by mmap
//!             lock                    number of entries, whether the segment was replaced
//! ```
//!
//! Readers come by [`View`] and take no lock. A writer holds the lock for one operation; a writer that
//! finds the segment replaced by larger ones starts again from the directory.

use super::Error;
use super::bucket::{Bucket, Cell, Identity, SLOTS, Side};
use super::path::{self, Trail};
use super::place::Geometry;
use super::version::Version;
use forerun_core::Pages;
use forerun_core::arch::Scalar;
use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use std::sync::Arc;

/// What the lock guards beside the buckets.
#[derive(Debug, Default)]
struct State {
    retired: bool,
    trail: Trail,
}

/// Alone in its cache line, lest the lock beside it take it away from readers.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Alone<T>(T);

/// A segment.
#[derive(Debug)]
pub(super) struct Segment {
    version: Alone<Version>,
    /// Bits of the prefix.
    pub(super) depth: u32,
    /// What the selectors of the hashes here begin with, in the top `depth` bits; the others zero.
    pub(super) prefix: u64,
    pub(super) geometry: Geometry,
    buckets: buckets::Buckets,
    /// Entries. Written under the lock.
    entries: AtomicU64,
    state: Mutex<State>,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) bucket: usize,
    pub(super) slot: usize,
}

impl Segment {
    /// Empty segments of `len` buckets each, or the fewest there can be: one for each prefix.
    ///
    /// Their buckets are one mapping. Apart, lookups took a fifth longer, whatever the reason: the
    /// same pages were huge in both.
    pub(super) fn empty(
        prefixes: &[u64],
        depth: u32,
        len: u64,
        pages: Pages,
    ) -> Result<Vec<Arc<Segment>>, Error> {
        let len = len.max(Geometry::MIN_LEN);
        let buckets = buckets::Buckets::new(prefixes.len(), len, pages)?;
        let segments = prefixes.iter().zip(buckets).map(|(&prefix, buckets)| {
            Arc::new(Segment {
                version: Alone(Version::default()),
                depth,
                prefix,
                geometry: Geometry { len },
                buckets,
                entries: AtomicU64::new(0),
                state: Mutex::default(),
            })
        });
        Ok(segments.collect())
    }

    pub(super) fn version(&self) -> &Version {
        &self.version.0
    }

    /// The buckets.
    #[inline(always)]
    pub(super) fn buckets(&self) -> &[Bucket] {
        self.buckets.as_slice()
    }

    /// Entries.
    pub(super) fn entries(&self) -> u64 {
        // Relaxed: a count to look at, ordered with nothing.
        self.entries.load(Ordering::Relaxed)
    }

    /// Entries it has room for.
    pub(super) fn slots(&self) -> u64 {
        self.geometry.len * SLOTS as u64
    }

    /// Bytes of its buckets and of itself.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(self.buckets()) + size_of::<Segment>()
    }

    /// Waits for the writers' lock. `None` if the segment has been replaced.
    pub(super) fn lock(&self) -> Option<Locked<'_>> {
        // A writer that panicked left every bucket in order: each of its steps does.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (!state.retired).then_some(Locked {
            segment: self,
            state,
        })
    }
}

/// A segment whose lock is held.
pub(super) struct Locked<'a> {
    pub(super) segment: &'a Segment,
    state: MutexGuard<'a, State>,
}

/// A free slot for a new entry, and the side of the entry that it is on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    spot: Spot,
    side: Side,
}

/// The share of the slots that may be taken.
///
/// Two choices and buckets of four can be filled to 98%, but the last percent takes ever longer
/// searches for room.
const MAX_LOAD: f64 = 0.97;

impl Locked<'_> {
    /// Where the entry of a hash is, if it is here.
    pub(super) fn find(&self, hash: u64) -> Option<Spot> {
        let Segment { geometry, .. } = self.segment;
        let buckets = self.segment.buckets();
        let identity = Identity::home(hash);
        let home = geometry.home(hash);
        let mask = buckets[home].find(Scalar::new(), identity);
        if mask != 0 {
            let slot = mask.trailing_zeros() as usize;
            return Some(Spot { bucket: home, slot });
        }
        if !buckets[home].may_be_away(Cell::new(identity.remainder())) {
            return None;
        }
        let bucket = geometry.other(home, identity.remainder());
        let mask = buckets[bucket].find(Scalar::new(), identity.on(Side::Away));
        (mask != 0).then(|| Spot {
            bucket,
            slot: mask.trailing_zeros() as usize,
        })
    }

    /// The value of an entry that was found.
    pub(super) fn value(&self, spot: Spot) -> u64 {
        self.segment.buckets()[spot.bucket].value(spot.slot)
    }

    /// Replaces it.
    pub(super) fn set_value(&self, spot: Spot, value: u64) -> u64 {
        self.segment.buckets()[spot.bucket].set_value(spot.slot, value)
    }

    /// A slot for an entry that is not here yet. `None` if the segment is full.
    pub(super) fn make_room(&mut self, hash: u64) -> Option<Room> {
        let segment = self.segment;
        if segment.entries() as f64 >= segment.slots() as f64 * MAX_LOAD {
            return None;
        }
        let home = segment.geometry.home(hash);
        if let Some(slot) = segment.buckets()[home].free_slot() {
            return Some(Room {
                spot: Spot { bucket: home, slot },
                side: Side::Home,
            });
        }
        let identity = Identity::home(hash);
        let (spot, side) = path::make_room(segment, identity, home, &mut self.state.trail)?;
        Some(Room { spot, side })
    }

    /// Writes the entry that room was made for, before anything else is written.
    pub(super) fn put(&mut self, room: Room, hash: u64, value: u64) {
        self.segment
            .put(room.spot, Identity::home(hash).on(room.side), value);
        self.count(|entries| entries + 1);
    }

    /// Removes an entry that was found.
    pub(super) fn remove(&mut self, spot: Spot) {
        self.segment.version().changing(|| self.segment.clear(spot));
        self.count(|entries| entries - 1);
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        let segment = self.segment;
        segment.version().changing(|| {
            for bucket in 0..segment.buckets().len() {
                (0..SLOTS).for_each(|slot| segment.clear(Spot { bucket, slot }));
            }
        });
        self.count(|_| 0);
    }

    /// Calls `each` with the hash and the value of every entry.
    pub(super) fn for_each(&self, mut each: impl FnMut(u64, u64)) {
        let Segment { geometry, .. } = self.segment;
        for (bucket, entries) in self.segment.buckets().iter().enumerate() {
            for slot in 0..SLOTS {
                if let Some(entry) = entries.entry(slot) {
                    each(geometry.hash_of(bucket, entry), entries.value(slot));
                }
            }
        }
    }

    /// Marks the segment as replaced: writers that wait for the lock look for its successors.
    pub(super) fn retire(mut self) {
        self.state.retired = true;
    }

    fn count(&self, change: impl FnOnce(u64) -> u64) {
        // Relaxed: the lock orders its writers.
        let entries = self.segment.entries.load(Ordering::Relaxed);
        self.segment
            .entries
            .store(change(entries), Ordering::Relaxed);
    }
}

/// The steps of a writer, who holds the lock.
impl Segment {
    /// Writes an entry into a free slot, and counts it in its home bucket if that is another one.
    fn put(&self, spot: Spot, identity: Identity, value: u64) {
        self.buckets()[spot.bucket].put(spot.slot, identity, value);
        if identity.side() == Side::Away {
            self.home_of(spot.bucket, identity)
                .count_away(Cell::new(identity.remainder()));
        }
    }

    /// Frees a slot. The bucket's version is open.
    fn clear(&self, spot: Spot) {
        let bucket = &self.buckets()[spot.bucket];
        let Some(identity) = bucket.entry(spot.slot) else {
            return;
        };
        bucket.clear(spot.slot);
        if identity.side() == Side::Away {
            self.home_of(spot.bucket, identity)
                .uncount_away(Cell::new(identity.remainder()));
        }
    }

    /// Moves an entry to a free slot of its other bucket.
    pub(super) fn shift(&self, from: Spot, to: Spot) {
        let buckets = self.buckets();
        let Some(identity) = buckets[from.bucket].entry(from.slot) else {
            return;
        };
        let value = buckets[from.bucket].value(from.slot);
        let moved = identity.on(identity.side().other());
        self.version().changing(|| {
            self.put(to, moved, value);
            self.clear(from);
        });
    }

    fn home_of(&self, bucket: usize, identity: Identity) -> &Bucket {
        &self.buckets()[self.geometry.home_of(bucket, identity)]
    }
}

mod buckets {
    //! The memory of the buckets.

    use super::super::Error;
    use super::super::bucket::Bucket;
    use forerun_core::Pages;

    /// Zeroed memory that is read and written as buckets: a part of a mapping.
    #[cfg(not(loom))]
    #[derive(Debug)]
    pub(in super::super) struct Buckets {
        region: std::sync::Arc<forerun_core::Region>,
        /// The first of them, counted in buckets.
        first: usize,
        len: usize,
    }

    #[cfg(not(loom))]
    impl Buckets {
        /// Several runs of `len` buckets, in one mapping.
        pub(in super::super) fn new(
            runs: usize,
            len: u64,
            pages: Pages,
        ) -> Result<impl Iterator<Item = Buckets>, Error> {
            let too_large = Error::TooLarge {
                buckets: (runs as u64).saturating_mul(len),
            };
            let len = usize::try_from(len).map_err(|_| too_large.clone())?;
            let bytes = len
                .checked_mul(runs)
                .and_then(|all| all.checked_mul(size_of::<Bucket>()));
            let region = forerun_core::Region::new(bytes.ok_or(too_large)?, pages)?;
            let region = std::sync::Arc::new(region);
            Ok((0..runs).map(move |run| Buckets {
                region: region.clone(),
                first: run * len,
                len,
            }))
        }

        #[inline(always)]
        pub(in super::super) fn as_slice(&self) -> &[Bucket] {
            // SAFETY:
            // - the region holds all runs of len * size_of::<Bucket>() bytes each, this one from
            //   bucket `first` on; it lives as long as self, and is aligned to a cache line at least,
            //   as a Bucket is;
            // - it was zeroed, and zero bytes are a Bucket: eight atomic words;
            // - nothing else refers to these bytes but through such slices, and what is behind them
            //   is only ever accessed atomically.
            unsafe {
                let first = self.region.as_ptr().cast::<Bucket>().add(self.first);
                std::slice::from_raw_parts(first, self.len)
            }
        }
    }

    /// Loom's atomics are no plain bytes: models have their buckets made one by one.
    #[cfg(loom)]
    #[derive(Debug)]
    pub(in super::super) struct Buckets(Box<[Bucket]>);

    #[cfg(loom)]
    impl Buckets {
        pub(in super::super) fn new(
            runs: usize,
            len: u64,
            _: Pages,
        ) -> Result<impl Iterator<Item = Buckets>, Error> {
            Ok((0..runs).map(move |_| Buckets((0..len).map(|_| Bucket::default()).collect())))
        }

        pub(in super::super) fn as_slice(&self) -> &[Bucket] {
            &self.0
        }
    }
}
