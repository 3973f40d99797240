//! TTL classes: items with a similar time to live share blocks, so that a block's items expire at
//! about the same time and the whole block becomes free.
//!
//! ```text
//!   never │ …2 s │ …4 s │ …8 s │ … │ …2^31 s       many blocks: four classes per octave; few blocks: one class for several octaves
//! ```
//!
//! Segcache (Yang, Yue and Vinayak, NSDI 2021) calls them TTL buckets and has 1024. Each class
//! keeps a block open, which is memory that waits to be filled, so the number of classes here
//! depends on the number of blocks.

/// Maximum number of classes.
pub(crate) const TTL_CLASSES_MAX: usize = 1 + 32 * FINEST;
/// Classes per octave in a cache with many blocks.
const FINEST: usize = 4;

/// How times to live are mapped to classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TtlClasses {
    /// [`FINEST`] classes per octave.
    Fine,
    /// One class for this many octaves.
    Octaves(u32),
}

impl TtlClasses {
    /// The classes of a cache of `blocks` blocks.
    pub(crate) fn for_blocks(blocks: usize) -> TtlClasses {
        match blocks {
            4096.. => TtlClasses::Fine,
            1024.. => TtlClasses::Octaves(1),
            256.. => TtlClasses::Octaves(2),
            _ => TtlClasses::Octaves(4),
        }
    }

    /// The class of an item that expires at `expiry`; 0 means never.
    pub(crate) fn of(self, expiry: u32, now: u32) -> usize {
        if expiry == 0 {
            return 0;
        }
        let seconds = expiry.saturating_sub(now).max(1);
        let octave = seconds.ilog2();
        match self {
            TtlClasses::Octaves(wide) => 1 + (octave / wide) as usize,
            // The two bits below the highest one.
            TtlClasses::Fine => {
                let quarter = (u64::from(seconds) << 2 >> octave) as usize & (FINEST - 1);
                1 + octave as usize * FINEST + quarter
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ttl_has_a_class_and_classes_increase() {
        for blocks in [1, 300, 2000, 100_000] {
            let classes = TtlClasses::for_blocks(blocks);
            let mut last = 1;
            let doubled = (14..32).map(|bits| 1 << bits);
            for seconds in (0..10_000).chain(doubled).chain([u32::MAX - 7]) {
                let class = classes.of(7 + seconds, 7);
                assert!(class >= last && class < TTL_CLASSES_MAX, "{class}");
                last = class;
            }
            assert_eq!(classes.of(0, 7), 0);
            assert_eq!(
                classes.of(3, 7),
                classes.of(8, 7),
                "an expired item and one about to expire share a class"
            );
        }
    }

    #[test]
    fn with_many_blocks_a_class_spans_at_most_a_quarter_of_the_time() {
        let classes = TtlClasses::for_blocks(5000);
        for seconds in [100u32, 3600, 86_400, 2_592_000] {
            assert_ne!(
                classes.of(1 + seconds, 1),
                classes.of(1 + seconds + seconds / 4 + 1, 1)
            );
        }
    }
}
