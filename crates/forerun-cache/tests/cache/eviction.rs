//! Which items a full cache evicts, compared with S3-FIFO simulated item by item in bytes.

use crate::testing;

use forerun_cache::{Cache, CacheOptions, Store, StoreResult};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{HashMap, VecDeque};
use testing::cache;

/// S3-FIFO over items of any size: two queues and a ghost queue, each measured in bytes.
struct SimulatedS3Fifo {
    capacity_bytes: usize,
    items: HashMap<u32, SimulatedItem>,
    /// The small queue and the main queue, oldest first.
    queues: [VecDeque<u32>; 2],
    queue_bytes: [usize; 2],
    ghosts: VecDeque<(u32, usize)>,
    ghost_bytes: usize,
}

#[derive(Clone, Copy)]
struct SimulatedItem {
    bytes: usize,
    frequency: u8,
}

const SMALL: usize = 0;
const MAIN: usize = 1;

impl SimulatedS3Fifo {
    fn new(capacity_bytes: usize) -> SimulatedS3Fifo {
        SimulatedS3Fifo {
            capacity_bytes,
            items: HashMap::new(),
            queues: Default::default(),
            queue_bytes: [0; 2],
            ghosts: VecDeque::new(),
            ghost_bytes: 0,
        }
    }

    /// Looks a key up, and stores it if it is missing. Returns whether it was there.
    fn get_or_set(&mut self, key: u32, bytes: usize) -> bool {
        if let Some(item) = self.items.get_mut(&key) {
            item.frequency = (item.frequency + 1).min(15);
            return true;
        }
        let ghost = self.ghosts.iter().position(|&(ghost, _)| ghost == key);
        let queue = if let Some((_, ghost_bytes)) = ghost.and_then(|at| self.ghosts.remove(at)) {
            self.ghost_bytes -= ghost_bytes;
            MAIN
        } else {
            SMALL
        };
        while self.queue_bytes.iter().sum::<usize>() + bytes > self.capacity_bytes {
            self.evict();
        }
        let frequency = 0;
        self.push(queue, key, SimulatedItem { bytes, frequency });
        false
    }

    fn push(&mut self, queue: usize, key: u32, item: SimulatedItem) {
        self.queues[queue].push_back(key);
        self.queue_bytes[queue] += item.bytes;
        self.items.insert(key, item);
    }

    fn evict(&mut self) {
        let [small_bytes, main_bytes] = self.queue_bytes;
        let queue = if small_bytes * 10 > small_bytes + main_bytes {
            SMALL
        } else {
            MAIN
        };
        let key = self.queues[queue].pop_front().unwrap();
        let mut item = self.items.remove(&key).unwrap();
        self.queue_bytes[queue] -= item.bytes;
        if item.frequency > 0 {
            item.frequency = if queue == SMALL {
                0
            } else {
                item.frequency - 1
            };
            self.push(MAIN, key, item);
        } else if queue == SMALL {
            self.ghosts.push_back((key, item.bytes));
            self.ghost_bytes += item.bytes;
            while self.ghost_bytes > self.capacity_bytes {
                self.ghost_bytes -= self.ghosts.pop_front().unwrap().1;
            }
        }
    }
}

/// Requests for keys whose popularity follows Zipf's law with exponent 0.9.
fn zipf(keys: u32, requests: usize) -> Vec<u32> {
    let mut rng = SmallRng::seed_from_u64(11);
    let mut sum = 0.0;
    let cumulative: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += f64::from(rank).powf(-0.9);
            sum
        })
        .collect();
    let draw = |_| {
        let point = rng.random_range(0.0..sum);
        let rank = cumulative.partition_point(|&up_to| up_to <= point) as u32;
        // Scattered, so that a key's size does not depend on its popularity.
        rank.wrapping_mul(0x9e37_79b1)
    };
    (0..requests).map(draw).collect()
}

fn set(cache: &Cache, key: u32, value: &[u8]) {
    let stored = cache.store(Store::set(&key.to_be_bytes(), value));
    assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
}

/// The hit ratios of a cache and of the simulation, which gets as much memory for items as the
/// cache uses for them.
fn hit_ratios(limit_bytes: usize, trace: &[u32], len_of: impl Fn(u32) -> usize) -> (f64, f64) {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(limit_bytes)
        .seed(1);
    let cache = Cache::new(options).unwrap();
    let zeroes = vec![0; 1 << 20];
    let mut hits = 0;
    for &key in trace {
        if cache.pin().get(key.to_be_bytes()).is_some() {
            hits += 1;
        } else {
            set(&cache, key, &zeroes[..len_of(key)]);
        }
    }
    let stats = cache.stats();
    assert!(stats.evictions > 1000, "{stats:?}");
    let mut simulated = SimulatedS3Fifo::new(stats.item_bytes as usize);
    let mut simulated_hits = 0;
    for &key in trace {
        simulated_hits += usize::from(simulated.get_or_set(key, len_of(key) + 36));
    }
    let ratio = |hits: usize| hits as f64 / trace.len() as f64;
    (ratio(hits), ratio(simulated_hits))
}

#[test]
fn the_hit_ratio_is_that_of_s3_fifo_for_values_of_one_size_and_for_small_and_large_ones() {
    let trace = zipf(30_000, 60_000);
    let equal = |_| 1000_usize;
    let mixed = |key: u32| match key % 16 {
        0 => 40_000 + key as usize % 100_000,
        _ => 200 + key as usize % 1800,
    };
    let large = |key: u32| 20_000 + key as usize % 60_000;
    for (name, limit_bytes, len_of) in [
        ("equal", 8 << 20, &equal as &dyn Fn(u32) -> usize),
        ("mixed", 32 << 20, &mixed),
        ("large", 64 << 20, &large),
    ] {
        let (ours, simulated) = hit_ratios(limit_bytes, &trace, len_of);
        assert!(
            ours > simulated - 0.01,
            "{name}: {ours:.4}, simulated {simulated:.4}"
        );
    }
}

/// Stores `len_bytes` values that nobody reads, 80 MB in all, and reads 12,000 keys of 1 KB after
/// every 4 MB. Returns how many of these keys stay.
fn kept_of_hot_keys(len_bytes: usize) -> usize {
    const HOT: u32 = 12_000;
    let cache = cache(32 << 20);
    let read_all = || {
        let guard = cache.pin();
        (0..HOT)
            .filter(|key| guard.get(key.to_be_bytes()).is_some())
            .count()
    };
    (0..HOT).for_each(|key| set(&cache, key, &[1; 1000]));
    (0..3).for_each(|_| assert_eq!(read_all(), HOT as usize));
    let value = vec![2; len_bytes];
    let mut next = HOT;
    for _ in 0..20 {
        for _ in 0..4_000_000 / len_bytes {
            set(&cache, next, &value);
            next += 1;
        }
        read_all();
    }
    read_all()
}

#[test]
fn a_scan_of_large_values_evicts_no_more_hot_keys_than_one_of_small_values() {
    for len_bytes in [1000, 64_000, 300_000] {
        assert_eq!(kept_of_hot_keys(len_bytes), 12_000, "{len_bytes} bytes");
    }
}
