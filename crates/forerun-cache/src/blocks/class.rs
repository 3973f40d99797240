//! Classes of items by the time that is left to them: those of a block expire at about the same time, so that it is empty then.
//!
//! ```text
//!   never │ …2 s │ …4 s │ …8 s │ … │ …2^31 s         with many blocks: four classes an octave; with few: one for several octaves
//! ```
//!
//! (Segcache, Yang, Yue and Vinayak, NSDI 2021, has 1024 classes; each open block is memory that waits to be filled, so here
//! their number follows that of the blocks.)

/// The most classes there are.
pub(crate) const CLASSES_MAX: usize = 1 + 32 * FINEST;
/// Classes an octave where there are many blocks.
const FINEST: usize = 4;

/// How times to live are put into classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classes {
    /// Several classes an octave.
    Fine,
    /// One for this many octaves.
    Octaves(u32),
}

impl Classes {
    /// For a cache of so many blocks.
    pub(crate) fn for_blocks(blocks: usize) -> Classes {
        match blocks {
            4096.. => Classes::Fine,
            1024.. => Classes::Octaves(1),
            256.. => Classes::Octaves(2),
            _ => Classes::Octaves(4),
        }
    }

    /// The class of an item that expires then; 0 is never.
    pub(crate) fn of(self, expiry: u32, now: u32) -> usize {
        if expiry == 0 {
            return 0;
        }
        let seconds = expiry.saturating_sub(now).max(1);
        let octave = seconds.ilog2();
        match self {
            Classes::Octaves(wide) => 1 + (octave / wide) as usize,
            // The two bits behind the first one.
            Classes::Fine => {
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
    fn longer_times_have_higher_classes_and_all_of_them_one() {
        for blocks in [1, 300, 2000, 100_000] {
            let classes = Classes::for_blocks(blocks);
            let mut last = 1;
            let doubled = (14..32).map(|bits| 1 << bits);
            for seconds in (0..10_000).chain(doubled).chain([u32::MAX - 7]) {
                let class = classes.of(7 + seconds, 7);
                assert!(class >= last && class < CLASSES_MAX, "{class}");
                last = class;
            }
            assert_eq!(classes.of(0, 7), 0);
            assert_eq!(
                classes.of(3, 7),
                classes.of(8, 7),
                "what has expired is as what will at once"
            );
        }
    }

    #[test]
    fn with_many_blocks_a_class_spans_a_quarter_of_the_time_at_most() {
        let classes = Classes::for_blocks(5000);
        for seconds in [100u32, 3600, 86_400, 2_592_000] {
            assert_ne!(
                classes.of(1 + seconds, 1),
                classes.of(1 + seconds + seconds / 4 + 1, 1)
            );
        }
    }
}
