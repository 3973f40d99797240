//! The directory: maps a hash to its segment.
//!
//! ```text
//!   selector  | 10 | ...                         the top `depth` bits choose
//!            v
//!   views | 00 | 01 | 10 | 11 |                  32 bytes each, two per cache line
//!            \   /     |    |
//!   segments  0*       10   11                   several entries may point to one segment
//! ```
//!
//! A directory never changes. A writer that replaces a segment makes a new directory (extendible
//! hashing, Fagin et al. 1979, by copying). Readers keep using the directory they began with, which
//! an epoch keeps alive.

use super::bucket::Bucket;
use super::place::{Geometry, SELECTOR_BITS};
use super::segment::Segment;
use super::version::Version;
use std::marker::PhantomData;
use std::sync::Arc;

/// The data of a segment that a lookup uses.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) version: &'a Version,
    buckets: &'a [Bucket],
    pub(super) geometry: Geometry,
}

impl<'a> View<'a> {
    /// The bucket at an index that the geometry computed.
    #[inline(always)]
    pub(super) fn bucket(&self, at: usize) -> &'a Bucket {
        debug_assert!(at < self.buckets.len());
        // SAFETY: Geometry scales every hash to 0..len, and its len is the number of buckets.
        unsafe { self.buckets.get_unchecked(at) }
    }
}

impl<'a> From<&'a Segment> for View<'a> {
    fn from(segment: &'a Segment) -> View<'a> {
        View {
            version: segment.version(),
            buckets: segment.buckets(),
            geometry: segment.geometry,
        }
    }
}

/// A [`View`] as the directory stores it. The directory owns the segment that it refers to.
#[repr(align(32))]
#[derive(Clone, Copy, Debug)]
struct RawView {
    version: *const Version,
    buckets: *const Bucket,
    len: usize,
}

/// The segments by the top bits of the selector.
#[derive(Debug)]
pub(super) struct Directory {
    depth: u32,
    /// One view for each value of the top `depth` bits.
    views: Box<[RawView]>,
    /// The owners of the segments, one for each view.
    segments: Box<[Arc<Segment>]>,
    memory_bytes: usize,
}

// SAFETY: the views point into segments that the directory owns a share of, and only shared
// references are made from them; Segment is Send and Sync.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    /// A directory of segments that are ordered by prefix and together cover every hash once.
    pub(super) fn new(segments: &[Arc<Segment>]) -> Directory {
        let depth = segments
            .iter()
            .map(|segment| segment.depth)
            .max()
            .unwrap_or(0);
        let named: Vec<Arc<Segment>> = segments
            .iter()
            .flat_map(|segment| {
                let times = 1 << (depth - segment.depth);
                std::iter::repeat_n(Arc::clone(segment), times)
            })
            .collect();
        debug_assert_eq!(named.len(), 1 << depth, "a hash has no segment, or two");
        let views = named.iter().map(RawView::of).collect();
        let of_segments: usize = segments.iter().map(|segment| segment.memory_bytes()).sum();
        let of_entries = named.len() * (size_of::<RawView>() + size_of::<Arc<Segment>>());
        Directory {
            depth,
            views,
            segments: named.into(),
            memory_bytes: size_of::<Directory>() + of_entries + of_segments,
        }
    }

    /// A copy of the directory in which some segments replace one whose hashes they cover.
    pub(super) fn with(&self, old: &Segment, new: &[Arc<Segment>]) -> Directory {
        let segments: Vec<Arc<Segment>> = self
            .segments()
            .flat_map(|segment| {
                if std::ptr::eq(&raw const **segment, old) {
                    new.to_vec()
                } else {
                    vec![Arc::clone(segment)]
                }
            })
            .collect();
        Directory::new(&segments)
    }

    /// The data of the directory that lookups use.
    #[inline(always)]
    pub(super) fn views(&self) -> Views<'_> {
        Views {
            views: self.views.as_ptr(),
            shift: SELECTOR_BITS - self.depth,
            mask: (1 << self.depth) - 1,
            directory: PhantomData,
        }
    }

    /// The segment of a hash, for writers.
    pub(super) fn segment(&self, hash: u64) -> &Arc<Segment> {
        &self.segments[self.index(hash)]
    }

    /// Every segment once, in the order of their prefixes.
    pub(super) fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let segment = self.segments.get(at)?;
            at += 1 << (self.depth - segment.depth);
            Some(segment)
        })
    }

    /// Bytes of the directory and its segments.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    fn index(&self, hash: u64) -> usize {
        self.views().index(hash)
    }
}

/// The views of a directory, small enough to stay in registers.
#[derive(Clone, Copy)]
pub(super) struct Views<'a> {
    views: *const RawView,
    /// Shifts the selector's first `depth` bits to the lowest bits.
    shift: u32,
    /// Masks `depth` bits.
    mask: u64,
    directory: PhantomData<&'a Directory>,
}

impl<'a> Views<'a> {
    /// The segment of a hash.
    #[inline(always)]
    pub(super) fn of(self, hash: u64) -> View<'a> {
        // SAFETY: the index has `depth` bits, and the directory, which is borrowed, has 2^depth
        // views.
        let raw = unsafe { &*self.views.add(self.index(hash)) };
        // SAFETY: RawView::of made the pointers from a segment of which the directory owns a share.
        // The version is a field of it, and the buckets are a slice of `len` that the segment owns
        // until it is dropped, which is not before the directory.
        let (version, buckets) = unsafe {
            (
                &*raw.version,
                std::slice::from_raw_parts(raw.buckets, raw.len),
            )
        };
        View {
            version,
            buckets,
            geometry: Geometry {
                len: raw.len as u64,
            },
        }
    }

    /// The view of all hashes, if there is only one segment.
    #[inline(always)]
    pub(super) fn only(self) -> Option<View<'a>> {
        (self.mask == 0).then(|| self.of(0))
    }

    #[inline(always)]
    fn index(self, hash: u64) -> usize {
        (hash >> self.shift & self.mask) as usize
    }
}

impl RawView {
    fn of(segment: &Arc<Segment>) -> RawView {
        RawView {
            version: segment.version(),
            buckets: segment.buckets().as_ptr(),
            len: segment.buckets().len(),
        }
    }
}
