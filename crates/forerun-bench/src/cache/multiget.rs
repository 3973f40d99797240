//! Keys per second for three ways to look up a batch, in alternating rounds.

use super::args::Args;
use crate::item_arena::ItemArena;
use crate::memc3_index::MemC3Index;
use anyhow::{Result, ensure};
use foldhash::quality::FixedState;
use forerun_cache::{Cache, CacheOptions, Store, StoreResult};
use forerun_measure::harness::{Case, Sample, Turn, measure};
use forerun_measure::progress::Progress;
use forerun_measure::result_row::Row;
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, Hasher};

/// Batches drawn in advance. They have so many keys that no round finds lines that an earlier round
/// left in a cache.
const BATCHES: usize = 4096;

/// The result of one method: a line of JSON with the names of [`Row`] and these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MultigetRow {
    /// The fields that every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// All memory of the cache; null for MemC3's.
    pub memory_bytes: Option<u64>,
    /// Speed relative to MemC3's design.
    pub speedup_vs_memc3: f64,
}

/// MemC3's index and its items.
struct MemC3 {
    hasher: FixedState,
    index: MemC3Index,
    arena: ItemArena,
}

impl MemC3 {
    fn new(items: usize, key_bytes: usize, value_bytes: usize) -> Result<MemC3> {
        Ok(MemC3 {
            hasher: FixedState::with_seed(7),
            index: MemC3Index::new(items)?,
            arena: ItemArena::new(items, key_bytes, value_bytes)?,
        })
    }

    #[inline(always)]
    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// Stores an item whose key is not present. Returns `false` if there is no space for it.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        let hash = self.hash(key);
        let location = self.arena.push(key, value);
        location.is_some_and(|location| self.index.insert(hash, location))
    }

    /// The value of a key.
    #[inline]
    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let value_of = |location| self.arena.value_of(location, key);
        self.index.find(self.hash(key), value_of)
    }
}

fn key(n: usize) -> Vec<u8> {
    format!("user:{n:012}").into_bytes()
}

fn value(n: usize, len: usize) -> Vec<u8> {
    let mut value = (n as u64).to_le_bytes().repeat(len / 8 + 1);
    value.truncate(len);
    value
}

/// Measures all three.
pub(super) fn measure_all(args: &Args, progress: &Progress) -> Result<Vec<MultigetRow>> {
    let items = args.items();
    let item_bytes = args.value + key(0).len() + 64;
    let cache = Cache::new(
        CacheOptions::default()
            .memory_limit_bytes(items * item_bytes * 3 / 2 + (64 << 20))
            .max_item_bytes(args.value + 1024),
    )?;
    let mut memc3 = MemC3::new(items, key(0).len(), args.value)?;
    let bar = progress.steps("filling", items as u64);
    for n in 0..items {
        let (key, value) = (key(n), value(n, args.value));
        let stored = cache.store(Store::set(&key, &value[..]));
        ensure!(
            matches!(stored, StoreResult::Stored { .. }),
            "the cache does not take item {n}: {stored:?}"
        );
        ensure!(
            memc3.insert(&key, &value),
            "MemC3's table does not take item {n}"
        );
        bar.step();
    }
    drop(bar);
    ensure!(
        cache.stats().evictions == 0,
        "the cache is too small for its items"
    );
    let mut rng = SmallRng::seed_from_u64(1);
    let drawn: Vec<Vec<usize>> = (0..BATCHES)
        .map(|_| {
            (0..args.batch)
                .map(|_| rng.random_range(0..items))
                .collect()
        })
        .collect();
    let keys: Vec<Vec<Vec<u8>>> = drawn
        .iter()
        .map(|batch| batch.iter().map(|&n| key(n)).collect())
        .collect();
    check(&cache, &memc3, &drawn, &keys, args)?;

    // Copies each value found, as to a socket's buffer.
    let slices: Vec<Vec<&[u8]>> = keys
        .iter()
        .map(|batch| batch.iter().map(|key| &key[..]).collect())
        .collect();
    let next = |at: &mut usize| {
        *at = (*at + 1) % BATCHES;
        &slices[*at]
    };
    let cases = vec![
        Case::new(0, "memc3", {
            let (memc3, mut at, mut out) = (&memc3, 0, Vec::new());
            move |turn: &Turn| {
                Sample::repeat(turn, || {
                    out.clear();
                    let keys = next(&mut at);
                    for key in keys {
                        out.extend_from_slice(memc3.get(key).unwrap_or_default());
                    }
                    Ok(keys.len() as u64)
                })
            }
        }),
        Case::new(0, "get", {
            let (cache, mut at, mut out) = (&cache, 0, Vec::new());
            move |turn: &Turn| {
                Sample::repeat(turn, || {
                    out.clear();
                    let keys = next(&mut at);
                    for key in keys {
                        let guard = cache.pin();
                        out.extend_from_slice(guard.get(key).map_or(&[], |item| item.value()));
                    }
                    Ok(keys.len() as u64)
                })
            }
        }),
        Case::new(0, "multiget", {
            let (cache, mut at, mut out) = (&cache, 0, Vec::new());
            move |turn: &Turn| {
                Sample::repeat(turn, || {
                    out.clear();
                    let keys = next(&mut at);
                    let guard = cache.pin();
                    let mut found = vec![None; keys.len()];
                    guard.multi_get(keys, &mut found)?;
                    for item in found.iter().flatten() {
                        out.extend_from_slice(item.value());
                    }
                    Ok(keys.len() as u64)
                })
            }
        }),
    ];
    let outcomes = measure(cases, &args.output.plan(&args.timing), progress)?;
    let rows = outcomes.iter().map(|outcome| MultigetRow {
        common: Row {
            bench: "cache".into(),
            case: "multiget".into(),
            engine: if outcome.name == "memc3" {
                "memc3"
            } else {
                "forerun"
            }
            .into(),
            strategy: outcome.name.clone(),
            keys: items as u64,
            batch: args.batch as u64,
            threads: 1,
            rounds: args.output.plan(&args.timing).rounds as u64,
            ..Row::default()
        }
        .with_rates(
            outcome.per_second(),
            outcome.per_second_min(),
            outcome.per_second_max(),
        ),
        value_bytes: args.value as u64,
        memory_bytes: (outcome.name != "memc3").then(|| cache.stats().memory_bytes),
        speedup_vs_memc3: outcome.ratio_to(&outcomes[0]),
    });
    Ok(rows.collect())
}

/// Checks that each method finds the right values.
fn check(
    cache: &Cache,
    memc3: &MemC3,
    drawn: &[Vec<usize>],
    keys: &[Vec<Vec<u8>>],
    args: &Args,
) -> Result<()> {
    for (batch, keys) in drawn.iter().zip(keys).take(64) {
        let guard = cache.pin();
        let slices: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let mut found = vec![None; keys.len()];
        guard.multi_get(&slices, &mut found)?;
        for ((&n, key), item) in batch.iter().zip(&slices).zip(found) {
            let value = value(n, args.value);
            let answers = [
                item.map(|item| item.value()),
                guard.get(key).map(|item| item.value()),
                memc3.get(key),
            ];
            ensure!(
                answers == [Some(&value[..]); 3],
                "item {n} is answered wrongly"
            );
        }
    }
    Ok(())
}

/// The rows as a table.
pub(super) fn table(rows: &[MultigetRow]) -> TextTable {
    let mut table = TextTable::new([
        "strategy", "items", "value B", "batch", "keys/s", "ns/key", "vs MemC3", "spread",
    ]);
    for row in rows {
        let (median, min, max) = row.common.rates();
        table.push([
            row.common.strategy.clone(),
            count(row.common.keys),
            row.value_bytes.to_string(),
            row.common.batch.to_string(),
            short(median),
            digits(1e9 / median),
            format!("{:.2}x", row.speedup_vs_memc3),
            spread(min, max),
        ]);
    }
    table
}
