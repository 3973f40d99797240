//! Keys, rows and calls: the entries of the table, and the requests.

use super::setting::Setting;
use crate::skew::Skew;
use anyhow::{Result, anyhow};
use forerun_gpu::table::GpuTable;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;

/// The `i`-th key: all different, in random order.
pub(super) fn key_of(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(23)
        .wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// A row that identifies its key.
pub(super) fn row_of(key: u64, row_bytes: u64) -> impl Iterator<Item = u8> {
    let word = (key ^ 0xa5a5_a5a5_a5a5_a5a5).to_le_bytes();
    word.into_iter().cycle().take(row_bytes as usize)
}

pub(super) fn rows_of(keys: &[u64], row_bytes: u64) -> Vec<u8> {
    let mut rows = Vec::with_capacity(keys.len() * row_bytes as usize);
    keys.iter()
        .for_each(|key| rows.extend(row_of(*key, row_bytes)));
    rows
}

/// The keys of one call, and which of them are present.
pub(super) struct Call {
    pub(super) keys: Vec<u64>,
    pub(super) there: Vec<bool>,
}

impl Call {
    pub(super) fn hits(&self) -> usize {
        self.there.iter().filter(|there| **there).count()
    }

    /// The present keys, or the absent ones.
    pub(super) fn keys_with(&self, there: bool) -> Vec<u64> {
        let all = self.keys.iter().zip(&self.there);
        all.filter(|(_, is)| **is == there)
            .map(|(key, _)| *key)
            .collect()
    }
}

/// The maximum number of sampled keys that hits come from, and the maximum share of a table that
/// they are. It leaves a full table enough older entries for new ones to replace until the whole
/// sample has been used again.
const SAMPLE_MAX: u64 = 1 << 24;
const SAMPLE_PART: u64 = 8;

/// Keys of a filled table.
pub(super) struct Keys {
    /// How many keys were inserted.
    filled: u64,
    /// Present keys, spread evenly over the time of their insertion, in random order.
    sample: Vec<u64>,
    /// The position of the next key in the sample.
    next: usize,
    /// From this number on, keys were never inserted.
    absent: u64,
    random: SmallRng,
}

impl Keys {
    /// Fills a table to the setting's load, and chooses the keys to request.
    pub(super) fn fill(table: &mut GpuTable, setting: &Setting) -> Result<Keys> {
        let row_bytes = setting.row_bytes();
        let capacity = table.capacity();
        let target = (capacity as f64 * setting.load) as u64;
        // Some buckets are full long before the table is, so the table never becomes entirely full.
        let enough = if setting.load < 1.0 {
            target
        } else {
            target - target / 10_000
        };
        let mut filled = 0;
        let mut size = table.size()?;
        while size < enough && filled < capacity.saturating_mul(4) {
            // The last free slots of a full table are found by chance, which takes many keys.
            let n = if setting.load < 1.0 {
                (target - size).clamp(1 << 8, 1 << 20)
            } else {
                (capacity / 16).clamp(1 << 8, 1 << 20)
            };
            let keys: Vec<u64> = (filled..filled + n).map(key_of).collect();
            table.insert_or_assign(&keys, &rows_of(&keys, row_bytes), None)?;
            filled += n;
            size = table.size()?;
        }
        let mut keys = Keys {
            filled,
            sample: Vec::new(),
            next: 0,
            absent: 1 << 40,
            random: SmallRng::seed_from_u64(0x5eed),
        };
        keys.choose(table)?;
        Ok(keys)
    }

    fn choose(&mut self, table: &GpuTable) -> Result<()> {
        let wanted = (self.filled / SAMPLE_PART).clamp(1, SAMPLE_MAX);
        // Golden-ratio steps spread evenly over all inserted keys; the step is odd, and coprime to
        // the count except where that matters little.
        let step = ((self.filled as f64 * 0.618_033_988_75) as u64) | 1;
        let mut at = 0;
        let mut chosen: Vec<u64> = (0..wanted)
            .map(|_| {
                at = (at + step) % self.filled;
                key_of(at)
            })
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        for part in chosen.chunks(1 << 20) {
            let there = table.contains(part)?;
            let present = part.iter().zip(there).filter(|(_, there)| *there);
            self.sample.extend(present.map(|(key, _)| *key));
        }
        self.sample.shuffle(&mut self.random);
        Ok(())
    }

    /// Keys that are present.
    pub(super) fn sample(&self) -> &[u64] {
        &self.sample
    }

    /// The keys of the next call: all different, unless the skew repeats popular keys.
    pub(super) fn call(&mut self, setting: &Setting) -> Result<Call> {
        let hits = (setting.batch as f64 * setting.hit_rate).round() as usize;
        let hits = hits.min(setting.batch);
        let mut keys: Vec<(u64, bool)> = Vec::with_capacity(setting.batch);
        match setting.skew {
            Skew::Uniform => {
                for _ in 0..hits {
                    keys.push((self.sample[self.next], true));
                    self.next = (self.next + 1) % self.sample.len();
                }
            }
            Skew::Zipf(exponent) => {
                let ranks = Zipf::new(self.sample.len() as f64, exponent)
                    .map_err(|error| anyhow!("zipf:{exponent}: {error}"))?;
                for _ in 0..hits {
                    let rank = self.random.sample(ranks) as usize;
                    keys.push((self.sample[rank.clamp(1, self.sample.len()) - 1], true));
                }
            }
        }
        let absent = self.absent..self.absent + (setting.batch - hits) as u64;
        self.absent = absent.end;
        keys.extend(absent.map(|i| (key_of(i), false)));
        keys.shuffle(&mut self.random);
        let (keys, there) = keys.into_iter().unzip();
        Ok(Call { keys, there })
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::Args;
    use super::*;

    #[test]
    fn a_call_has_the_requested_share_of_present_keys_and_no_duplicates() {
        let mut args = Args::default();
        args.output.quick = true;
        for load in [0.5, 1.0] {
            let setting = Setting {
                load,
                hit_rate: 0.25,
                ..Setting::seed(&args, false)
            };
            let mut table = GpuTable::on_cpu(setting.options(setting.slots)).unwrap();
            let mut keys = Keys::fill(&mut table, &setting).unwrap();
            let full = table.load_factor().unwrap();
            assert!((full - load).abs() < 0.001, "{full}");
            for _ in 0..3 {
                let call = keys.call(&setting).unwrap();
                assert_eq!(
                    (call.keys.len(), call.hits()),
                    (setting.batch, setting.batch / 4)
                );
                assert_eq!(table.contains(&call.keys).unwrap(), call.there);
                let mut distinct = call.keys.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), setting.batch);
            }
        }
    }

    #[test]
    fn a_skewed_call_requests_few_keys_often() {
        let mut args = Args::default();
        args.output.quick = true;
        let setting = Setting {
            skew: Skew::Zipf(1.2),
            hit_rate: 1.0,
            ..Setting::seed(&args, false)
        };
        let mut table = GpuTable::on_cpu(setting.options(setting.slots)).unwrap();
        let mut keys = Keys::fill(&mut table, &setting).unwrap();
        let call = keys.call(&setting).unwrap();
        let mut distinct = call.keys.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() < setting.batch * 3 / 4, "{}", distinct.len());
        assert_eq!(call.hits(), setting.batch);
    }
}
