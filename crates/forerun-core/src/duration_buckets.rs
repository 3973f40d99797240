//! How many durations fell between two powers of two: what a Prometheus histogram is made of.

/// Powers of two from 128 ns to 34 s.
const BOUNDS: usize = 29;
const FIRST_POWER: u32 = 7;

/// Counts of durations, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationBuckets {
    /// Counts per bucket. The last bucket has no bound.
    counts: [u64; BOUNDS + 1],
    sum_ns: u64,
}

impl DurationBuckets {
    /// Counts `count` durations of at most `upper_ns`, which a bound does not separate from them.
    pub(crate) fn add(&mut self, upper_ns: u64, count: u64) {
        let power = upper_ns.saturating_sub(1).checked_ilog2();
        let bucket = power.map_or(0, |power| (power + 1).saturating_sub(FIRST_POWER));
        self.counts[(bucket as usize).min(BOUNDS)] += count;
    }

    /// Sets the sum of all durations.
    pub(crate) fn set_sum_ns(&mut self, sum_ns: u64) {
        self.sum_ns = sum_ns;
    }

    /// The sum of all durations, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The upper bound of each bucket in nanoseconds, ascending, with the number of durations in
    /// that bucket. A duration that equals a bound is in the bucket below it. The last bucket has
    /// no bound.
    pub fn counts(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = (FIRST_POWER..).map(|power| 1 << power).take(BOUNDS);
        bounds.map(Some).chain([None]).zip(self.counts)
    }

    /// Subtracts earlier counts, which leaves their growth since then.
    pub(crate) fn subtract(&mut self, earlier: &DurationBuckets) {
        for (count, earlier) in self.counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(earlier);
        }
        self.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_the_first_bucket_that_it_does_not_exceed() {
        let bound = |ns| {
            let mut buckets = DurationBuckets::default();
            buckets.add(ns, 3);
            let mut hit = buckets.counts().filter(|(_, count)| *count > 0);
            let (bound, count) = hit.next().unwrap();
            assert_eq!((count, hit.next()), (3, None));
            bound
        };
        for (ns, expected) in [
            (0, Some(128)),
            (1, Some(128)),
            (128, Some(128)),
            (129, Some(256)),
            (1 << 35, Some(1 << 35)),
            ((1 << 35) + 1, None),
            (u64::MAX, None),
        ] {
            assert_eq!(bound(ns), expected, "{ns} ns");
        }
    }
}
