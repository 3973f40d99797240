//! The directory: which segment holds a hash.
//!
//! ```text
//!   hash  | 10 | ...                             the top `depth` bits choose
//!            v
//!   views | 00 | 01 | 10 | 11 |                  32 bytes each, two to a line
//!            \   /     |    |
//!   segments  0*       10   11                   a segment may be named by several entries
//! ```
//!
//! A directory never changes: a writer that replaces a segment makes a new one (extendible hashing,
//! Fagin et al. 1979, by copy). Readers hold the one they began with, which an epoch keeps alive.

use super::bucket::Bucket;
use super::place::Geometry;
use super::segment::{Segment, Versions};
use super::version::Version;
use std::sync::Arc;

/// What a lookup needs of a segment.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) buckets: &'a [Bucket],
    pub(super) versions: &'a Versions,
    pub(super) geometry: Geometry,
}

impl<'a> View<'a> {
    /// A bucket that the geometry named, and its version.
    #[inline(always)]
    pub(super) fn at(&self, bucket: usize) -> (&'a Bucket, &'a Version) {
        debug_assert!(bucket < self.buckets.len());
        // SAFETY: Geometry scales every hash to 0..len, and its len is that of the buckets.
        let found = unsafe { self.buckets.get_unchecked(bucket) };
        (found, self.versions.of(bucket))
    }
}

/// A [`View`] as the directory keeps it, beside the segment it refers to.
#[derive(Clone, Copy, Debug)]
struct RawView {
    buckets: *const Bucket,
    len: usize,
    versions: *const Versions,
    depth: u32,
}

/// The segments by the top bits of the hashes.
#[derive(Debug)]
pub(super) struct Directory {
    depth: u32,
    /// One for each value of the top `depth` bits.
    views: Box<[RawView]>,
    /// Likewise: the owners of what the views point to.
    segments: Box<[Arc<Segment>]>,
    memory_bytes: usize,
}

// SAFETY: the pointers of the views are into segments that the directory owns a share of, and are
// only ever made shared references; Segment is Send and Sync.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    /// A directory of segments that together hold every hash once, in the order of their prefixes.
    pub(super) fn new(segments: &[Arc<Segment>]) -> Directory {
        let depth = segments
            .iter()
            .map(|segment| segment.geometry.depth)
            .max()
            .unwrap_or(0);
        let named: Vec<Arc<Segment>> = segments
            .iter()
            .flat_map(|segment| {
                let times = 1 << (depth - segment.geometry.depth);
                std::iter::repeat_n(Arc::clone(segment), times)
            })
            .collect();
        debug_assert_eq!(
            named.len(),
            1 << depth,
            "a hash without a segment, or with two"
        );
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

    /// A directory with some segments in the place of one, whose hashes they hold.
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

    /// The segment of a hash, to read from.
    #[inline(always)]
    pub(super) fn view(&self, hash: u64) -> View<'_> {
        let at = self.index(hash);
        debug_assert!(at < self.views.len());
        // SAFETY: index() gives a number of `depth` bits, and there are 2^depth views.
        let raw = unsafe { self.views.get_unchecked(at) };
        // SAFETY: RawView::of made the pointers from a segment whose Arc is in `segments`: the
        // versions are a field of it, the buckets a slice of `len` that it owns until it is dropped,
        // which is not before the directory is.
        unsafe {
            View {
                buckets: std::slice::from_raw_parts(raw.buckets, raw.len),
                versions: &*raw.versions,
                geometry: Geometry {
                    depth: raw.depth,
                    len: raw.len as u64,
                },
            }
        }
    }

    /// The segment of a hash, to write to.
    pub(super) fn segment(&self, hash: u64) -> &Arc<Segment> {
        &self.segments[self.index(hash)]
    }

    /// Every segment once, in the order of their prefixes.
    pub(super) fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let segment = self.segments.get(at)?;
            at += 1 << (self.depth - segment.geometry.depth);
            Some(segment)
        })
    }

    /// Bytes of the directory and its segments.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        // Two shifts, since one by 64 would be none.
        ((hash >> 1) >> (63 - self.depth)) as usize
    }
}

impl RawView {
    fn of(segment: &Arc<Segment>) -> RawView {
        RawView {
            buckets: segment.buckets().as_ptr(),
            len: segment.buckets().len(),
            versions: &raw const segment.versions,
            depth: segment.geometry.depth,
        }
    }
}
