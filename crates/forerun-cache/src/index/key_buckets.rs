//! The two buckets of a key in a segment of the index, computed from its hash.
//!
//! ```text
//!   63 …                           23..16         15..0
//!   | directory, as deep as it is | home bucket | tag |
//!                                      │           │
//!                                      └─ xor ◀────┘ 1 to 255: the second bucket
//! ```
//!
//! Each of the two buckets follows from the other and the tag (partial-key cuckoo hashing, MemC3,
//! NSDI 2013), so that an item can be displaced without reading it.

/// Buckets per segment.
#[cfg(not(loom))]
pub(crate) const BUCKETS: usize = 256;
/// Loom models have two buckets.
#[cfg(loom)]
pub(crate) const BUCKETS: usize = 2;

const TAG_BITS: u32 = 16;
const BUCKET_BITS: u32 = BUCKETS.trailing_zeros();

/// Bits of a [position](KeyBuckets::position).
pub(crate) const POSITION_BITS: u32 = TAG_BITS + 8;

/// Maximum depth of the directory: the hash has this many bits left for it.
pub(crate) const DEPTH_MAX: u32 = 64 - POSITION_BITS;

/// The tag of a key and its two buckets within a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyBuckets {
    pub(crate) tag: u16,
    /// The bucket that a lookup reads first.
    pub(crate) home: usize,
}

impl KeyBuckets {
    #[inline(always)]
    pub(crate) fn new(hash: u64) -> KeyBuckets {
        KeyBuckets {
            tag: hash as u16,
            home: (hash >> TAG_BITS) as usize % BUCKETS,
        }
    }

    /// The place of an item in the order of its segment: the low bits of its hash.
    pub(super) fn position(self) -> u64 {
        (self.home as u64) << TAG_BITS | u64::from(self.tag)
    }

    /// The second bucket.
    #[inline(always)]
    pub(crate) fn second(self) -> usize {
        other(self.home, self.tag)
    }
}

/// The other bucket of an item that is in `bucket`.
#[inline(always)]
pub(crate) fn other(bucket: usize, tag: u16) -> usize {
    // The tag scaled to 0..BUCKETS - 1, plus one: never the same bucket.
    let apart = (usize::from(tag) * (BUCKETS - 1)) >> TAG_BITS;
    bucket ^ (apart + 1)
}

const _: () = assert!(BUCKETS.is_power_of_two() && BUCKET_BITS <= 8);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_two_buckets_lead_to_each_other() {
        for tag in 0..=u16::MAX {
            for bucket in [0, 1, 77, BUCKETS - 1] {
                let second = other(bucket, tag);
                assert!(second < BUCKETS && second != bucket);
                assert_eq!(other(second, tag), bucket);
            }
        }
    }
}
