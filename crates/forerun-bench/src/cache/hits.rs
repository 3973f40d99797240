//! The hit ratio of get-or-set, at several memory sizes, compared with memcached's.

use super::args::Args;
use super::memcached::Memcached;
use super::workload::Load;
use anyhow::Result;
use forerun_cache::{Cache, CacheOptions, Store};
use forerun_measure::progress::Progress;
use forerun_measure::result_row::Row;
use forerun_measure::size::{count, short};
use forerun_measure::text_table::TextTable;
use serde::{Deserialize, Serialize};

/// Keys per batch.
const BATCH: usize = 32;

/// The note below the table.
pub(super) const NOTE: &str =
    "-m: memcached's limit. held: by how much its process grew under the \
load (RSS at the end less that at the start), with slabs, hash table
and everything else. This is our limit too, including our index; our own figure is what our cache \
counts at the end. Without a
memcached, -m is our limit.";

/// One cache at one memory size. Each is a line of JSON with the names of [`Row`] and these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HitsRow {
    /// The fields that every bench's rows have; `keys` counts the distinct ones.
    #[serde(flatten)]
    pub common: Row,
    /// The load: the mix or the trace.
    pub load: String,
    /// Reads.
    pub reads: u64,
    /// Bytes of all keys and values, each counted once.
    pub footprint_bytes: u64,
    /// The memory limit that memcached gets, or would get.
    pub memory_bytes: u64,
    /// The memory that the cache held at the end: the growth of memcached's process, which is also
    /// our cache's limit.
    pub held_bytes: Option<u64>,
    /// Reads that were hits.
    pub hit_ratio: f64,
    /// The difference from memcached's, if that was measured.
    pub above_memcached: Option<f64>,
}

pub(super) fn measure_all(args: &Args, progress: &Progress) -> Result<Vec<HitsRow>> {
    let load = Load::new(args)?;
    let (distinct, footprint_bytes) = load.footprint();
    let sizes = match &args.memory[..] {
        [] => [16, 32, 64, 128].map(|mib| mib << 20).to_vec(),
        sizes => sizes.to_vec(),
    };
    let bar = progress.steps("get or set", (2 * sizes.len() * load.keys.len()) as u64);
    let mut rows = Vec::new();
    for memory_bytes in sizes {
        let row = |engine: &str, hits: u64, held_bytes| HitsRow {
            common: Row {
                bench: "cache".into(),
                case: "hits".into(),
                engine: engine.into(),
                strategy: "get or set".into(),
                keys: distinct as u64,
                batch: BATCH as u64,
                threads: 1,
                rounds: 1,
                ..Row::default()
            },
            load: load.name.clone(),
            reads: load.keys.len() as u64,
            footprint_bytes,
            memory_bytes: memory_bytes as u64,
            held_bytes,
            hit_ratio: hits as f64 / load.keys.len() as f64,
            above_memcached: None,
        };
        let mut step = |done| bar.at(bar.position() + done as u64);
        let mut theirs = None;
        if let Some(mut memcached) = Memcached::start(&args.memcached, memory_bytes)? {
            let before = memcached.resident_bytes().unwrap_or(0);
            let hits = play(&load, &mut memcached, &mut step)?;
            let grown = memcached
                .resident_bytes()
                .map(|now| now.saturating_sub(before));
            theirs = Some(row("memcached", hits, grown));
        }
        // Our cache gets as much memory as memcached actually took, whatever its limit was.
        let held = theirs.as_ref().and_then(|theirs| theirs.held_bytes);
        let limit_bytes = held.map_or(memory_bytes, |held| held as usize);
        let cache = Cache::new(
            CacheOptions::default()
                .memory_limit_bytes(limit_bytes)
                .max_item_bytes((limit_bytes / 2).min(1 << 20)),
        )?;
        let hits = play(&load, &mut ForerunCache(&cache), &mut step)?;
        let mut ours = row("forerun", hits, Some(cache.stats().memory_bytes));
        drop(cache);
        ours.above_memcached = theirs
            .as_ref()
            .map(|theirs| ours.hit_ratio - theirs.hit_ratio);
        rows.push(ours);
        rows.extend(theirs);
    }
    Ok(rows)
}

/// A cache that answers requests.
trait SimulatedCache {
    fn get(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>>;
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
}

struct ForerunCache<'c>(&'c Cache);

impl SimulatedCache for ForerunCache<'_> {
    fn get(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let guard = self.0.pin();
        let mut items = vec![None; keys.len()];
        guard.multi_get(&keys, &mut items)?;
        Ok(items.iter().map(Option::is_some).collect())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        // A value that is too large for the cache stays missing.
        let _ = self.0.store(Store::set(key, value));
        Ok(())
    }
}

impl SimulatedCache for Memcached {
    fn get(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>> {
        Memcached::get(self, keys)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Memcached::set(self, key, value)
    }
}

/// Requests all keys in order, sets the missing ones, and counts the hits. If a missing key occurs
/// twice in a batch, it is set once and its second read counts as a hit, as it would with single
/// reads.
fn play(load: &Load, cache: &mut dyn SimulatedCache, mut each: impl FnMut(usize)) -> Result<u64> {
    let bytes = vec![b'v'; 1 << 20];
    let mut hits = 0;
    for batch in load.keys.chunks(BATCH) {
        let mut distinct: Vec<u32> = Vec::with_capacity(BATCH);
        for &n in batch {
            if !distinct.contains(&n) {
                distinct.push(n);
            }
        }
        let keys: Vec<_> = distinct.iter().map(|&n| load.key(n)).collect();
        let found = cache.get(&keys)?;
        let misses = found.iter().filter(|&&found| !found).count();
        hits += (batch.len() - misses) as u64;
        for ((&n, key), found) in distinct.iter().zip(&keys).zip(found) {
            if !found {
                cache.set(key, &bytes[..load.value_len(n)])?;
            }
        }
        each(batch.len());
    }
    Ok(hits)
}

/// The rows as a table.
pub(super) fn table(rows: &[HitsRow]) -> TextTable {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut table = TextTable::new([
        "load",
        "reads",
        "keys",
        "all MiB",
        "-m MiB",
        "cache",
        "held MiB",
        "hit ratio",
        "above memcached",
    ]);
    for row in rows {
        table.push([
            row.load.clone(),
            short(row.reads as f64),
            count(row.common.keys),
            mib(row.footprint_bytes),
            mib(row.memory_bytes),
            row.common.engine.clone(),
            row.held_bytes.map_or_else(|| "-".into(), mib),
            format!("{:.4}", row.hit_ratio),
            row.above_memcached
                .map_or_else(|| "-".into(), |above| format!("{above:+.4}")),
        ]);
    }
    table
}
