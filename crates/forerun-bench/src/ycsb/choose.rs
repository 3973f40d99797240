//! Chooses the record of a request, by YCSB's distributions.
//!
//! ```text
//!  Zipfian     rank 0 most often, rank r  1 / (r + 1)^0.99  as often        drawn by inverting an approximate sum
//!  Scrambled   a Zipfian rank of 10^10, hashed, modulo the records          popular records lie anywhere
//!  Latest      newest record - Zipfian rank                                 the latest inserts are popular
//! ```
//!
//! The Zipfian generator is that of Gray et al., "Quickly generating billion-record synthetic
//! databases" (SIGMOD 1994), which YCSB uses: the first two ranks are exact, the others follow a
//! power law fitted to the sums of the weights.

use super::record::hash;
use rand::Rng;

/// YCSB's exponent.
pub const THETA: f64 = 0.99;

/// The number of ranks for scrambled requests, as in YCSB, whatever the number of records.
const SCRAMBLED_RANKS: u64 = 10_000_000_000;

/// The sum of their weights.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Ranks by Zipf's law.
#[derive(Clone, Debug)]
pub struct Zipfian {
    ranks: u64,
    /// The sum of the weights of all ranks.
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    /// Ranks from 0 to below `ranks`, which is at least one. This sums all their weights.
    pub fn new(ranks: u64) -> Zipfian {
        let mut zipfian = Zipfian::with_zeta(1, 1.0);
        zipfian.grow(ranks);
        zipfian
    }

    fn with_zeta(ranks: u64, zeta: f64) -> Zipfian {
        let mut zipfian = Zipfian {
            ranks,
            zeta,
            eta: 0.0,
        };
        zipfian.fit();
        zipfian
    }

    /// Adds ranks up to `ranks`; it never removes any.
    pub fn grow(&mut self, ranks: u64) {
        if ranks > self.ranks {
            self.zeta += (self.ranks..ranks).map(weight).sum::<f64>();
            self.ranks = ranks;
            self.fit();
        }
    }

    fn fit(&mut self) {
        let two = weight(0) + weight(1);
        // With two ranks or fewer the law is never used, and its denominator would be zero.
        self.eta = if self.ranks > 2 {
            (1.0 - (2.0 / self.ranks as f64).powf(1.0 - THETA)) / (1.0 - two / self.zeta)
        } else {
            0.0
        };
    }

    /// A rank.
    pub fn draw(&self, rng: &mut impl Rng) -> u64 {
        let uniform: f64 = rng.random();
        let sum = uniform * self.zeta;
        if sum < weight(0) {
            return 0;
        }
        if sum < weight(0) + weight(1) {
            return 1.min(self.ranks - 1);
        }
        let share = (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        ((self.ranks as f64 * share) as u64).min(self.ranks - 1)
    }
}

/// How often a rank is drawn, relative to rank 0.
fn weight(rank: u64) -> f64 {
    ((rank + 1) as f64).powf(-THETA)
}

/// Zipfian requests with the popular records scattered among all.
#[derive(Clone, Debug)]
pub struct Scrambled {
    ranks: Zipfian,
    records: u64,
}

impl Scrambled {
    /// Requests for records from 0 to below `records`, which is at least one.
    pub fn new(records: u64) -> Scrambled {
        Scrambled {
            ranks: Zipfian::with_zeta(SCRAMBLED_RANKS, SCRAMBLED_ZETA),
            records: records.max(1),
        }
    }

    /// A record.
    pub fn draw(&self, rng: &mut impl Rng) -> u64 {
        hash(self.ranks.draw(rng)) % self.records
    }
}

/// Requests that prefer the newest records.
#[derive(Clone, Debug)]
pub struct Latest {
    ranks: Zipfian,
}

impl Latest {
    /// Requests for the newest of `records` records, which is at least one.
    pub fn new(records: u64) -> Latest {
        Latest {
            ranks: Zipfian::new(records.max(1)),
        }
    }

    /// A record from 0 to below `records`, which must not have decreased since the last call.
    pub fn draw(&mut self, records: u64, rng: &mut impl Rng) -> u64 {
        self.ranks.grow(records);
        records.saturating_sub(1 + self.ranks.draw(rng))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use std::collections::BTreeMap;

    const DRAWS: u64 = 200_000;

    fn counts(mut draw: impl FnMut(&mut SmallRng) -> u64) -> BTreeMap<u64, u64> {
        let mut rng = SmallRng::seed_from_u64(5);
        let mut counts = BTreeMap::new();
        for _ in 0..DRAWS {
            *counts.entry(draw(&mut rng)).or_insert(0) += 1;
        }
        counts
    }

    /// The probability of the ranks below `to`, by the plain definition.
    fn exact(ranks: u64, to: u64) -> f64 {
        let sum = |to| (1..=to).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        sum(to) / sum(ranks)
    }

    #[test]
    fn zipfian_ranks_come_as_often_as_zipfs_law_says() {
        for ranks in [3, 10, 1000, 100_000] {
            let zipfian = Zipfian::new(ranks);
            let counts = counts(|rng| zipfian.draw(rng));
            assert!(counts.keys().all(|rank| *rank < ranks));
            for to in [1, 2, 3, 10, 100, 1000, 50_000] {
                let to = to.min(ranks);
                let share = counts.range(..to).map(|(_, count)| count).sum::<u64>();
                let share = share as f64 / DRAWS as f64;
                // Two ranks are exact; the fitted law of the others is known to be slightly off.
                let slack = if to <= 2 { 0.005 } else { 0.05 };
                let exact = exact(ranks, to);
                assert!(
                    (share - exact).abs() < slack,
                    "{to} of {ranks}: {share} {exact}"
                );
            }
        }
    }

    #[test]
    fn a_grown_generator_is_the_one_made_at_once() {
        let mut grown = Zipfian::new(10);
        for ranks in [10, 11, 500, 499, 1000] {
            grown.grow(ranks);
        }
        let at_once = Zipfian::new(1000);
        assert_eq!(grown.ranks, at_once.ranks);
        assert!((grown.zeta - at_once.zeta).abs() < 1e-9);
        assert!((grown.eta - at_once.eta).abs() < 1e-9);
    }

    #[test]
    fn few_ranks_do_for_a_generator() {
        for ranks in 1..3 {
            let zipfian = Zipfian::new(ranks);
            let counts = counts(|rng| zipfian.draw(rng));
            assert_eq!(counts.len() as u64, ranks);
            let first = counts[&0] as f64 / DRAWS as f64;
            assert!((first - exact(ranks, 1)).abs() < 0.01);
        }
    }

    #[test]
    fn scrambled_requests_are_as_skewed_and_their_popular_records_lie_anywhere() {
        let records = 1000;
        let scrambled = Scrambled::new(records);
        let counts = counts(|rng| scrambled.draw(rng));
        assert!(counts.keys().all(|record| *record < records));
        // Rank 0 of 10^10 gets 3.8% of all requests, and so does the record to which it hashes.
        let (top, max) = counts.iter().max_by_key(|(_, count)| **count).unwrap();
        assert_eq!(*top, hash(0) % records);
        let share = *max as f64 / DRAWS as f64;
        assert!((0.035..0.045).contains(&share), "{share}");
        let mut popular: Vec<u64> = counts.values().copied().collect();
        popular.sort_unstable_by(|a, b| b.cmp(a));
        let hundred = popular[..100].iter().sum::<u64>() as f64 / DRAWS as f64;
        // The first hundred of 10^10 ranks get a fifth; the other requests are spread evenly.
        assert!((0.2..0.4).contains(&hundred), "{hundred}");
    }

    #[test]
    fn the_newest_records_are_requested_most_as_records_are_added() {
        let mut latest = Latest::new(1000);
        for records in [1000, 1500] {
            let counts = counts(|rng| latest.draw(records, rng));
            assert!(counts.keys().all(|record| *record < records));
            let (top, max) = counts.iter().max_by_key(|(_, count)| **count).unwrap();
            assert_eq!(*top, records - 1);
            let share = *max as f64 / DRAWS as f64;
            assert!((share - exact(records, 1)).abs() < 0.01, "{share}");
            let newest = counts.range(records - 100..).map(|(_, count)| count);
            assert!(newest.sum::<u64>() > DRAWS / 2);
        }
        assert_eq!(Latest::new(1).draw(1, &mut SmallRng::seed_from_u64(1)), 0);
    }
}
