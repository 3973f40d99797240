//! A segment: the buckets of all hashes with a common prefix, a version, and a lock for writers.
//!
//! ```text
//!   Segment   version                 on its own cache line, for readers
//!             prefix, depth           which hashes it holds
//!             buckets                 | bucket 0 | bucket 1 | ...                  64 bytes each, by mmap
//!             lock                    number of entries, whether the segment was replaced
//! ```
//!
//! Readers use a [`View`] and take no lock. A writer holds the lock for one operation. If it finds
//! that the segment was replaced, it starts again from the directory.

mod path;

use super::Error;
use super::bucket::{Bucket, Identity, OverflowCounter, SLOTS, Side};
use super::place::Geometry;
use super::version::Version;
use forerun_core::arch::Scalar;
use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use forerun_core::{CachePadded, Pages};
use path::SearchPath;
use std::sync::Arc;

/// The data that the lock guards in addition to the buckets.
#[derive(Debug, Default)]
struct State {
    retired: bool,
    search_path: SearchPath,
}

/// A segment.
#[derive(Debug)]
pub(super) struct Segment {
    /// Apart from the lock, which writers change.
    version: CachePadded<Version>,
    /// The length of the prefix, in bits.
    pub(super) depth: u32,
    /// The prefix of the selectors of all hashes here, in the top `depth` bits. The other bits are
    /// zero.
    pub(super) prefix: u64,
    pub(super) geometry: Geometry,
    buckets: buckets::Buckets,
    /// The number of entries. Written under the lock.
    entries: AtomicU64,
    state: Mutex<State>,
}

/// The position of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotRef {
    pub(super) bucket: usize,
    pub(super) slot: usize,
}

impl Segment {
    /// One empty segment per prefix, of `len` buckets each, or the minimum if that is more.
    ///
    /// Their buckets share one mapping. With separate mappings, lookups took a fifth longer. The
    /// reason is unknown: the same pages were huge in both cases.
    pub(super) fn empty(
        prefixes: &[u64],
        depth: u32,
        len: u64,
        pages: Pages,
    ) -> Result<Vec<Arc<Segment>>, Error> {
        let len = len.max(Geometry::LEN_MIN);
        let buckets = buckets::Buckets::new(prefixes.len(), len, pages)?;
        let segments = prefixes.iter().zip(buckets).map(|(&prefix, buckets)| {
            Arc::new(Segment {
                version: CachePadded::new(Version::default()),
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
        &self.version
    }

    /// The buckets.
    #[inline(always)]
    pub(super) fn buckets(&self) -> &[Bucket] {
        self.buckets.as_slice()
    }

    /// The number of entries.
    pub(super) fn entries(&self) -> u64 {
        // Relaxed: a count that orders nothing.
        self.entries.load(Ordering::Relaxed)
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> u64 {
        self.geometry.len * SLOTS as u64
    }

    /// Bytes of the segment and its buckets.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(self.buckets()) + size_of::<Segment>()
    }

    /// Takes the writers' lock. `None` if the segment has been replaced.
    pub(super) fn lock(&self) -> Option<LockedSegment<'_>> {
        // Every step of a writer leaves the buckets consistent, so a panic does no harm.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (!state.retired).then_some(LockedSegment {
            segment: self,
            state,
        })
    }
}

/// A segment whose lock is held.
pub(super) struct LockedSegment<'a> {
    pub(super) segment: &'a Segment,
    state: MutexGuard<'a, State>,
}

/// A free slot for a new entry, and which of the entry's two buckets it is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeSlot {
    slot_ref: SlotRef,
    side: Side,
}

/// The largest share of slots that may be occupied.
///
/// Buckets of four with two choices can be filled to 98%, but searches for a free slot get ever
/// longer for the last percent.
const LOAD_MAX: f64 = 0.97;

impl LockedSegment<'_> {
    /// Finds the entry of a hash.
    pub(super) fn find(&self, hash: u64) -> Option<SlotRef> {
        let Segment { geometry, .. } = self.segment;
        let buckets = self.segment.buckets();
        let identity = Identity::home(hash);
        let home = geometry.home(hash);
        let mask = buckets[home].find(Scalar::new(), identity);
        if mask != 0 {
            let slot = mask.trailing_zeros() as usize;
            return Some(SlotRef { bucket: home, slot });
        }
        if !buckets[home].has_overflow(OverflowCounter::new(identity.remainder())) {
            return None;
        }
        let bucket = geometry.other(home, identity.remainder());
        let mask = buckets[bucket].find(Scalar::new(), identity.on(Side::Second));
        (mask != 0).then(|| SlotRef {
            bucket,
            slot: mask.trailing_zeros() as usize,
        })
    }

    /// The value of an entry.
    pub(super) fn value(&self, slot_ref: SlotRef) -> u64 {
        self.segment.buckets()[slot_ref.bucket].value(slot_ref.slot)
    }

    /// Replaces the value of an entry and returns the old one.
    pub(super) fn set_value(&self, slot_ref: SlotRef, value: u64) -> u64 {
        self.segment.buckets()[slot_ref.bucket].set_value(slot_ref.slot, value)
    }

    /// Finds or makes a free slot for an entry that is not in the segment. `None` if the segment is
    /// full.
    pub(super) fn free_slot_for(&mut self, hash: u64) -> Option<FreeSlot> {
        let segment = self.segment;
        if segment.entries() as f64 >= segment.slots() as f64 * LOAD_MAX {
            return None;
        }
        let home = segment.geometry.home(hash);
        if let Some(slot) = segment.buckets()[home].free_slot() {
            return Some(FreeSlot {
                slot_ref: SlotRef { bucket: home, slot },
                side: Side::Home,
            });
        }
        let identity = Identity::home(hash);
        let (slot_ref, side) =
            path::free_slot_for(segment, identity, home, &mut self.state.search_path)?;
        Some(FreeSlot { slot_ref, side })
    }

    /// Writes an entry to the slot that was found for it. The caller has written nothing in
    /// between.
    pub(super) fn put(&mut self, free_slot: FreeSlot, hash: u64, value: u64) {
        self.segment.put(
            free_slot.slot_ref,
            Identity::home(hash).on(free_slot.side),
            value,
        );
        self.count(|entries| entries + 1);
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, slot_ref: SlotRef) {
        self.segment
            .version()
            .write(|| self.segment.clear(slot_ref));
        self.count(|entries| entries - 1);
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        let segment = self.segment;
        segment.version().write(|| {
            for bucket in 0..segment.buckets().len() {
                (0..SLOTS).for_each(|slot| segment.clear(SlotRef { bucket, slot }));
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

    /// Marks the segment as replaced: writers that wait for the lock then look for its successors.
    pub(super) fn retire(mut self) {
        self.state.retired = true;
    }

    fn count(&self, change: impl FnOnce(u64) -> u64) {
        // Relaxed: the lock orders all writers.
        let entries = self.segment.entries.load(Ordering::Relaxed);
        self.segment
            .entries
            .store(change(entries), Ordering::Relaxed);
    }
}

/// The steps of a writer, which holds the lock.
impl Segment {
    /// Writes an entry to a free slot, and counts it in its home bucket if that is a different one.
    fn put(&self, slot_ref: SlotRef, identity: Identity, value: u64) {
        self.buckets()[slot_ref.bucket].put(slot_ref.slot, identity, value);
        if identity.side() == Side::Second {
            self.home_of(slot_ref.bucket, identity)
                .add_overflow(OverflowCounter::new(identity.remainder()));
        }
    }

    /// Frees a slot. Called inside [`Version::write`].
    fn clear(&self, slot_ref: SlotRef) {
        let bucket = &self.buckets()[slot_ref.bucket];
        let Some(identity) = bucket.entry(slot_ref.slot) else {
            return;
        };
        bucket.clear(slot_ref.slot);
        if identity.side() == Side::Second {
            self.home_of(slot_ref.bucket, identity)
                .remove_overflow(OverflowCounter::new(identity.remainder()));
        }
    }

    /// Moves an entry to a free slot of its other bucket.
    pub(super) fn move_entry(&self, from: SlotRef, to: SlotRef) {
        let buckets = self.buckets();
        let Some(identity) = buckets[from.bucket].entry(from.slot) else {
            return;
        };
        let value = buckets[from.bucket].value(from.slot);
        let moved = identity.on(identity.side().other());
        self.version().write(|| {
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
        /// The index of the first bucket in the region.
        first: usize,
        len: usize,
    }

    #[cfg(not(loom))]
    impl Buckets {
        /// Allocates several runs of `len` buckets in one mapping.
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
            //   bucket `first` on; it lives as long as self and is aligned at least to a cache
            //   line, as a Bucket is;
            // - it was zeroed, and zero bytes are a valid Bucket of eight atomic words;
            // - these bytes are reachable only through such slices and are only accessed
            //   atomically.
            unsafe {
                let first = self.region.as_ptr().cast::<Bucket>().add(self.first);
                std::slice::from_raw_parts(first, self.len)
            }
        }
    }

    /// Loom's atomics are not plain bytes, so models construct their buckets one by one.
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
