//! The work of one turn, and an engine's store between the turns. The store is loaded and checked
//! once, shared by the strategies, and rebuilt when a writer has changed too much of it.

use crate::engine::{self, Engine, Store, StoreRequirements};
use crate::skew::Skew;
use crate::threads::{Cores, Ready};
use crate::workload::{Dataset, EntryBuffer, Queries};
use anyhow::{Context, Result, ensure};
use forerun_measure::harness::{Sample, Turn};
use forerun_measure::progress::Progress;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// One combination of the lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) threads: usize,
    /// Threads that overwrite entries meanwhile.
    pub(crate) writers: usize,
    pub(crate) batch: usize,
    /// `None` if nothing is looked up.
    pub(crate) hit_rate: Option<f64>,
    pub(crate) skew: Skew,
}

/// Holds an engine's loaded store between the turns.
pub(crate) struct LoadedEngine<'a> {
    pub(crate) engine: &'a dyn Engine,
    data: Dataset,
    spare_entries: u64,
    cores: Cores,
    progress: Progress,
    loaded: RefCell<Option<Loaded>>,
}

struct Loaded {
    store: Box<dyn Store>,
    overwritten: u64,
}

impl<'a> LoadedEngine<'a> {
    pub(crate) fn new(
        engine: &'a dyn Engine,
        data: Dataset,
        spare_entries: u64,
        progress: Progress,
    ) -> LoadedEngine<'a> {
        LoadedEngine {
            engine,
            data,
            spare_entries: spare_entries + data.keys() / 2,
            cores: Cores::available(),
            progress,
            loaded: RefCell::new(None),
        }
    }

    pub(crate) fn baseline(&self) -> String {
        let first = self.engine.strategies().into_iter().next();
        first.unwrap_or_default()
    }

    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let loaded = self.loaded.borrow();
        let facts = loaded.as_ref().map(|loaded| loaded.store.facts());
        facts.unwrap_or_default()
    }

    /// Ensures that a store is loaded and fresh: nothing in it was overwritten, or less than half
    /// if the next turn writes to it.
    pub(crate) fn ready(&self, written: bool) -> Result<()> {
        let mut loaded = self.loaded.borrow_mut();
        let max = if written { self.data.keys() / 2 } else { 0 };
        if loaded.as_ref().is_some_and(|l| l.overwritten <= max) {
            return Ok(());
        }
        // Frees the old store's memory before the new one takes any.
        *loaded = None;
        let store = self
            .load()
            .with_context(|| format!("loading {}", self.engine.name()))?;
        for strategy in self.engine.strategies() {
            engine::verify(&mut *store.reader(&strategy)?, &self.data)
                .with_context(|| format!("checking {} {strategy}", self.engine.name()))?;
        }
        *loaded = Some(Loaded {
            store,
            overwritten: 0,
        });
        Ok(())
    }

    /// A store with all entries in it.
    fn load(&self) -> Result<Box<dyn Store>> {
        if let Some(store) = self.engine.open_loaded(&self.data)? {
            return Ok(store);
        }
        let store = self
            .engine
            .open(&StoreRequirements::of(&self.data, self.spare_entries))?;
        let what = format!("loading {}", self.engine.name());
        let bar = self.progress.steps(&what, self.data.keys());
        let all = 0..self.data.keys();
        engine::load(&mut *store.writer()?, &self.data, all, 1, |done| {
            bar.at(done)
        })?;
        store.wait_idle()?;
        Ok(store)
    }

    /// A turn of `fillrandom`, with `batch` entries per write.
    pub(crate) fn fill(&self, threads: usize, batch: usize) -> Result<Sample> {
        let data = self.data;
        let store = self.engine.open(&StoreRequirements::of(&data, 0))?;
        let keys = data.keys();
        let share = |thread: usize| keys * thread as u64 / threads as u64;
        let spans = self.cores.run(threads, |thread, ready| {
            let mut writer = store.writer()?;
            ready.wait();
            let start = Instant::now();
            let turns = share(thread)..share(thread + 1);
            engine::load(&mut *writer, &data, turns, batch, |_| ())?;
            Ok(start.elapsed())
        })?;
        let slowest = spans.into_iter().max().unwrap_or_default();
        Ok(Sample::new(keys, slowest))
    }

    /// A turn of the reading workloads.
    pub(crate) fn read(&self, strategy: &str, cell: &Cell, turn: &Turn) -> Result<Sample> {
        let written = cell.writers > 0;
        self.ready(written)?;
        let mut loaded = self.loaded.borrow_mut();
        let loaded = loaded.as_mut().context("the store is loaded")?;
        let (store, data) = (&*loaded.store, self.data);
        let readers = cell.threads;
        let reading = AtomicUsize::new(readers);
        let outcomes = self.cores.run(readers + cell.writers, |thread, ready| {
            if thread >= readers {
                let seed = !turn.seed ^ ((thread - readers) as u64) << 48;
                return write_concurrently(store, &data, seed, &reading, ready);
            }
            // However this thread ends, it must notify the writer.
            let _done = DoneOnDrop(&reading);
            let mut reader = store.reader(strategy)?;
            let seed = turn.seed ^ (thread as u64 + 1) << 48;
            let hit_rate = cell.hit_rate.unwrap_or(1.0);
            let queries = Queries::sized(&data, hit_rate, cell.skew, cell.batch, seed);
            let keys = queries.keys();
            ready.wait();
            let mut stream = keys.chunks_exact(cell.batch).cycle();
            let (mut asked, mut found) = (0u64, 0u64);
            // Reading the clock costs as much as a lookup in the cache, so it is read every few
            // hundred keys.
            let batches = 256usize.div_ceil(cell.batch);
            let sample = Sample::repeat(turn, || {
                for batch in stream.by_ref().take(batches) {
                    found += reader.read(batch)? as u64;
                }
                let step = (batches * cell.batch) as u64;
                asked += step;
                Ok(step)
            })?;
            let expected = queries.hits_among(asked);
            ensure!(
                found == expected,
                "{found} of {asked} keys were found instead of {expected}"
            );
            Ok(sample.per_second)
        })?;
        let beside_per_second = written.then(|| outcomes[readers..].iter().sum::<f64>());
        let turn_seconds = (turn.warm_up + turn.duration).as_secs_f64();
        // Rounded up, because a single write makes the store unfit for a workload that needs it
        // unchanged.
        loaded.overwritten += beside_per_second.map_or(0, |rate| (rate * turn_seconds) as u64 + 1);
        Ok(Sample {
            per_second: outcomes[..readers].iter().sum(),
            beside_per_second,
        })
    }
}

/// Overwrites random entries until the last reader is done. Returns the rate.
fn write_concurrently(
    store: &dyn Store,
    data: &Dataset,
    seed: u64,
    reading: &AtomicUsize,
    ready: Ready<'_>,
) -> Result<f64> {
    let mut writer = store.writer()?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut entry = EntryBuffer::default();
    ready.wait();
    let start = Instant::now();
    let mut written = 0u64;
    loop {
        for _ in 0..64 {
            let index = rng.random_range(0..data.keys());
            data.entry(index, &mut entry);
            writer.write(&entry.key, &entry.value)?;
        }
        written += 64;
        // Relaxed: the count only says when to stop; joining the threads orders the rest.
        if reading.load(Ordering::Relaxed) == 0 {
            break;
        }
    }
    Ok(written as f64 / start.elapsed().as_secs_f64())
}

/// Counts a reader as done when dropped.
struct DoneOnDrop<'a>(&'a AtomicUsize);

impl Drop for DoneOnDrop<'_> {
    fn drop(&mut self) {
        // Relaxed: as for the load.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
