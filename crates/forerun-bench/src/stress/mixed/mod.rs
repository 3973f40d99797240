//! Several threads do random work, and the test compares each answer with the expected one.
//!
//! Every thread owns keys, `t00/…`, that only it writes; it keeps their contents in a plain map,
//! its model. So each thread knows exactly what any read of its own keys must return. It also reads
//! the keys of other threads, whose values must at least be values that their owner wrote. All
//! threads write the group `g/0` to `g/7` in whole batches, so its values are all equal in any
//! snapshot. A value contains its key, so the test notices an answer at the wrong position.
//!
//! The run consists of laps. After each lap the threads stop, and the store must hold the union of
//! the models: as it is, and again after it was closed and reopened.

mod check_answers;
mod worker;

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow};
use forerun::{Db, MemoryChecks, Options, TreeOptions};

use self::check_answers::compare;
use self::worker::Worker;
use super::script::Model;
use super::{Budget, WorkDirectory};
use forerun_cli::output::{self, Out};
use forerun_measure::progress::Progress;

/// Operations of all threads between two comparisons of the whole store.
const LAP_OPS: u64 = 20_000;
/// Laps until a new store is started, because a store keeps all versions of its keys.
const STORE_LAPS: u64 = 8;

/// How often each kind of work was done.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    ops: u64,
    writes: u64,
    looked_up: u64,
    compared: u64,
    scans: u64,
    snapshots: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.ops += other.ops;
        self.writes += other.writes;
        self.looked_up += other.looked_up;
        self.compared += other.compared;
        self.scans += other.scans;
        self.snapshots += other.snapshots;
    }
}

/// Runs laps until the budget is spent.
pub fn run(place: &WorkDirectory, seed: u64, threads: usize, budget: Budget) -> anyhow::Result<()> {
    let mut out = Out::stdout();
    out.line(format_args!("stress: seed {seed}, {threads} threads"))?;
    out.flush()?;
    let progress = Progress::on_terminal().rate("stress", None, "operations");
    let began = Instant::now();
    let mut counters = Counters::default();
    let mut models = vec![Model::new(); threads];
    let mut laps = 0;
    loop {
        let left = match budget {
            Budget::Ops(ops) => ops.saturating_sub(counters.ops),
            Budget::Time(time) => {
                if began.elapsed() < time {
                    LAP_OPS
                } else {
                    0
                }
            }
        };
        if left == 0 {
            break;
        }
        let store = laps / STORE_LAPS;
        let path = place.store(store);
        if laps % STORE_LAPS == 0 {
            models.fill_with(Model::new);
        }
        let lap = Lap {
            seed,
            number: laps,
            ops_per_thread: left.min(LAP_OPS).div_ceil(threads as u64),
        };
        counters += lap.run(&path, &mut models).with_context(|| {
            format!(
                "lap {laps} of the run with seed {seed}; the store is left in {}",
                path.display()
            )
        })?;
        progress.update(0, counters.ops);
        laps += 1;
        if laps % STORE_LAPS == 0 {
            place.remove_store(store)?;
        }
    }
    let took = progress.finish();
    out.line(format_args!(
        "{} in {}, {}: {} writes, {} keys looked up in batches, {} of them repeated one by one, {} \
         scans, {} snapshots; no wrong answer",
        output::counted(counters.ops, "operation"),
        output::time(took),
        output::counted(laps, "lap"),
        output::count(counters.writes),
        output::count(counters.looked_up),
        output::count(counters.compared),
        output::count(counters.scans),
        output::count(counters.snapshots),
    ))?;
    out.finish()
}

/// One lap: all threads work, then the whole store is compared.
struct Lap {
    seed: u64,
    number: u64,
    ops_per_thread: u64,
}

impl Lap {
    fn run(&self, path: &Path, models: &mut [Model]) -> anyhow::Result<Counters> {
        // Every third lap verifies each entry that it visits.
        let checks = if self.number % 3 == 2 {
            MemoryChecks::Paranoid
        } else {
            MemoryChecks::Off
        };
        // Every other lap flushes and compacts all the time, with a cache that is small relative to
        // the store.
        let options = if self.number % 2 == 1 {
            Options::default()
                .memtable_bytes(256 << 10)
                .cache_bytes(1 << 20)
                .tree(
                    TreeOptions::default()
                        .level1_bytes(1 << 20)
                        .level_factor(4)
                        .run_bytes(256 << 10),
                )
        } else {
            Options::default()
        };
        // Two laps with indexes of memtables, then two without.
        let options = options
            .checks(checks)
            .memtable_index(self.number % 4 < 2)
            .wal_segment_bytes(1 << 20);
        let db = Db::open(path, options.clone()).context("cannot open the store")?;
        let threads = models.len();
        let stopped = AtomicBool::new(false);
        let counters = thread::scope(|scope| {
            let workers: Vec<_> = models
                .iter_mut()
                .enumerate()
                .map(|(thread, model)| {
                    let mut worker = Worker::new(&db, thread, threads, model, self);
                    let stopped = &stopped;
                    scope.spawn(move || {
                        let worked = worker.work(self.ops_per_thread, stopped);
                        if worked.is_err() {
                            stopped.store(true, Ordering::Relaxed); // a wish to end; orders nothing
                        }
                        worked.map(|()| worker.counters)
                    })
                })
                .collect();
            let mut sum = Counters::default();
            for worker in workers {
                sum += worker
                    .join()
                    .map_err(|_| anyhow!("a working thread panicked"))??;
            }
            anyhow::Ok(sum)
        })?;
        compare_whole(&db, models)?;
        db.close().context("cannot close the store")?;
        let db = Db::open(path, options).context("cannot open the store again")?;
        compare_whole(&db, models).context("after the store was opened again")?;
        db.close().context("cannot close the store")?;
        Ok(counters)
    }
}

/// Checks that the store holds the models and the group, and nothing else, in both directions.
fn compare_whole(db: &Db, models: &[Model]) -> anyhow::Result<()> {
    let mut expected: Model = models.iter().flat_map(|model| model.clone()).collect();
    expected.extend(db.prefix(b"g/").collect::<Result<BTreeMap<_, _>, _>>()?);
    compare(db.iter(), expected.iter(), "a scan of the store")?;
    compare(
        db.iter().rev(),
        expected.iter().rev(),
        "a scan of the store from its end",
    )
}
