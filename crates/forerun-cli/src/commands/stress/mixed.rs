//! Random work by several threads, each answer compared with what it must be.
//!
//! Every thread owns keys, `t00/…`, that it alone writes; what they hold it keeps in a plain map, its model. So each thread knows exactly what
//! any read of its own keys must give, while it also reads the others' keys, whose values must at least be the work of their owner. Two more things are
//! shared: all threads write the group `g/0` to `g/7` as whole batches, so at any snapshot its values are all the same; and a value names its
//! key, so an answer at the wrong position shows.
//!
//! The run goes in laps. After each, the threads stop, and the store must hold the union of the models: as it is, and once more after it was closed and
//! opened.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow};
use forerun::{Checks, Db, Durability, Options, Snapshot, Strategy, Values, WriteBatch};
use rand::Rng;
use rand::rngs::SmallRng;

use super::script::{self, Model};
use super::{Budget, Workplace};
use crate::exit::CheckFailed;
use crate::output::{self, Named, Out};
use crate::progress::Progress;

/// Keys of a thread.
const KEYS: u32 = 500;
/// Keys of the group that all threads write.
const GROUP: u32 = 8;
/// Operations of all threads between two comparisons of the whole store.
const LAP_OPS: u64 = 20_000;
/// Laps after which a new store is begun: a store keeps all versions of its keys.
const STORE_LAPS: u64 = 8;
/// Snapshots a thread holds at most.
const SNAPSHOTS: usize = 3;

/// How often each kind of work was done.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    ops: u64,
    writes: u64,
    looked_up: u64,
    compared: u64,
    scans: u64,
    snapshots: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.ops += other.ops;
        self.writes += other.writes;
        self.looked_up += other.looked_up;
        self.compared += other.compared;
        self.scans += other.scans;
        self.snapshots += other.snapshots;
    }
}

/// Runs laps until the budget is spent.
pub fn run(place: &Workplace, seed: u64, threads: usize, budget: Budget) -> anyhow::Result<()> {
    let mut out = Out::new();
    out.line(format_args!("stress: seed {seed}, {threads} threads"))?;
    out.flush()?;
    let progress = Progress::new("stress", None, "operations");
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut models = vec![Model::new(); threads];
    let mut laps = 0;
    loop {
        let left = match budget {
            Budget::Ops(ops) => ops.saturating_sub(tally.ops),
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
        tally += lap.run(&path, &mut models).with_context(|| {
            format!(
                "lap {laps} of the run with seed {seed}; the store is left in {}",
                path.display()
            )
        })?;
        progress.update(0, tally.ops);
        laps += 1;
        if laps % STORE_LAPS == 0 {
            place.remove_store(store)?;
        }
    }
    let took = progress.finish();
    out.line(format_args!(
        "{} in {}, {}: {} writes, {} keys looked up in batches, {} of them again one by one, {} scans, {} snapshots; \
         no wrong answer",
        output::counted(tally.ops, "operation"),
        output::time(took),
        output::counted(laps, "lap"),
        output::count(tally.writes),
        output::count(tally.looked_up),
        output::count(tally.compared),
        output::count(tally.scans),
        output::count(tally.snapshots),
    ))?;
    out.finish()
}

/// One lap: all threads work, then the store is compared whole.
struct Lap {
    seed: u64,
    number: u64,
    ops_per_thread: u64,
}

impl Lap {
    fn run(&self, path: &Path, models: &mut [Model]) -> anyhow::Result<Tally> {
        // Every third lap verifies each entry it passes.
        let checks = if self.number % 3 == 2 {
            Checks::Paranoid
        } else {
            Checks::Off
        };
        let options = Options {
            checks,
            wal_segment_bytes: 1 << 20,
            ..Options::default()
        };
        let db = Db::open(path, options.clone()).context("cannot open the store")?;
        let threads = models.len();
        let stopped = AtomicBool::new(false);
        let tally = thread::scope(|scope| {
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
                        worked.map(|()| worker.tally)
                    })
                })
                .collect();
            let mut sum = Tally::default();
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
        Ok(tally)
    }
}

/// The store holds the models and the group, and nothing else; both ways.
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

/// A scan gives exactly these entries in this order.
fn compare<'m, E>(
    found: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), E>>,
    mut expected: impl Iterator<Item = (&'m Vec<u8>, &'m Vec<u8>)>,
    what: &str,
) -> anyhow::Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    for entry in found {
        let (key, value) = entry.with_context(|| format!("{what} failed"))?;
        match expected.next() {
            Some((k, v)) if *k == key && *v == value => {}
            Some((k, _)) if *k == key => {
                return failed(format!("{what} gives another value for {}", Named(&key)));
            }
            Some((k, _)) => {
                return failed(format!(
                    "{what} gives {} where {} stands",
                    Named(&key),
                    Named(k)
                ));
            }
            None => return failed(format!("{what} goes on to {} after its end", Named(&key))),
        }
    }
    match expected.next() {
        None => Ok(()),
        Some((key, _)) => failed(format!("{what} ends before {}", Named(key))),
    }
}

fn failed<T>(problem: String) -> anyhow::Result<T> {
    Err(CheckFailed(problem).into())
}

/// One thread at work.
struct Worker<'a> {
    db: &'a Db,
    thread: usize,
    threads: usize,
    model: &'a mut Model,
    rng: SmallRng,
    batch: WriteBatch,
    values: Values,
    /// Snapshots, with what the thread's keys held when they were taken.
    snapshots: Vec<(Snapshot, Model)>,
    tally: Tally,
}

impl<'a> Worker<'a> {
    fn new(
        db: &'a Db,
        thread: usize,
        threads: usize,
        model: &'a mut Model,
        lap: &Lap,
    ) -> Worker<'a> {
        Worker {
            db,
            thread,
            threads,
            model,
            rng: script::rng(lap.seed, thread as u64, lap.number),
            batch: WriteBatch::new(),
            values: Values::new(),
            snapshots: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn work(&mut self, ops: u64, stopped: &AtomicBool) -> anyhow::Result<()> {
        for _ in 0..ops {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            self.tally.ops += 1;
            match self.rng.random_range(0..100) {
                0..25 => self.put()?,
                25..35 => self.delete()?,
                35..45 => self.write_batch()?,
                45..48 => self.write_group()?,
                48..58 => self.get()?,
                58..85 => self.multi_get()?,
                85..90 => self.scan_own()?,
                90..91 => self.scan_all()?,
                91..94 => self.read_group()?,
                94..97 => self.take_snapshot(),
                _ => self.check_snapshot()?,
            }
        }
        Ok(())
    }

    /// A key of this thread. Keys have many lengths, and some are prefixes of others.
    fn own_key(&mut self) -> Vec<u8> {
        let number = self.rng.random_range(0..KEYS);
        any_key(self.thread, number)
    }

    /// A value that names its key, of any length.
    fn value(&mut self, key: &[u8]) -> Vec<u8> {
        let length = if self.rng.random_ratio(1, 500) {
            20_000
        } else {
            self.rng.random_range(0..150)
        };
        let mut value = key.to_vec();
        value.push(0);
        value.resize(value.len() + length, self.rng.random());
        value
    }

    fn durability(&mut self) -> Durability {
        if self.rng.random_ratio(1, 200) {
            Durability::Synced
        } else {
            Durability::Buffered
        }
    }

    fn put(&mut self) -> anyhow::Result<()> {
        let key = self.own_key();
        let value = self.value(&key);
        let durability = self.durability();
        self.db
            .put_with(&key, &value, durability)
            .context("a put failed")?;
        self.model.insert(key, value);
        self.tally.writes += 1;
        Ok(())
    }

    fn delete(&mut self) -> anyhow::Result<()> {
        let key = self.own_key();
        let durability = self.durability();
        self.db
            .delete_with(&key, durability)
            .context("a delete failed")?;
        self.model.remove(&key);
        self.tally.writes += 1;
        Ok(())
    }

    /// Several operations, now and then on the same key: the last one counts.
    fn write_batch(&mut self) -> anyhow::Result<()> {
        self.batch.clear();
        for _ in 0..self.rng.random_range(1..12) {
            let key = self.own_key();
            if self.rng.random_ratio(3, 4) {
                let value = self.value(&key);
                self.batch.put(&key, &value)?;
                self.model.insert(key, value);
            } else {
                self.batch.delete(&key)?;
                self.model.remove(&key);
            }
        }
        let durability = self.durability();
        self.db
            .write(&self.batch, durability)
            .context("a batch failed")?;
        self.tally.writes += 1;
        Ok(())
    }

    fn write_group(&mut self) -> anyhow::Result<()> {
        self.batch.clear();
        let stamp: [u8; 16] = self.rng.random();
        for key in group() {
            self.batch.put(&key, &stamp)?;
        }
        self.db
            .write(&self.batch, Durability::Buffered)
            .context("a batch failed")?;
        self.tally.writes += 1;
        Ok(())
    }

    fn read_group(&mut self) -> anyhow::Result<()> {
        let keys = group();
        let snapshot = self.db.snapshot();
        snapshot
            .multi_get(&keys, &mut self.values)
            .context("a batch of lookups failed")?;
        let first = self.values.get(0).map_err(Clone::clone)?;
        for at in 1..keys.len() {
            if self.values.get(at).map_err(Clone::clone)? != first {
                return failed("a snapshot shows half of a batch of writes".to_owned());
            }
        }
        self.tally.looked_up += keys.len() as u64;
        Ok(())
    }

    fn get(&mut self) -> anyhow::Result<()> {
        let key = self.own_key();
        let found = self.db.get(&key).context("a get failed")?;
        check_own(self.model, &key, found.as_deref(), "a get")
    }

    /// A batch of keys of this thread, of the others and of nobody, in any order, some of them several times.
    fn multi_get(&mut self) -> anyhow::Result<()> {
        let length = match self.rng.random_range(0..10) {
            0 => self.rng.random_range(200..1500),
            1 => self.rng.random_range(0..3),
            _ => self.rng.random_range(1..100),
        };
        let mut keys: Vec<Vec<u8>> = Vec::with_capacity(length);
        for _ in 0..length {
            let key = match self.rng.random_range(0..10) {
                0 if !keys.is_empty() => keys[self.rng.random_range(0..keys.len())].clone(),
                1 => self.nobodys_key(),
                2..5 => any_key(
                    self.rng.random_range(0..self.threads),
                    self.rng.random_range(0..KEYS),
                ),
                _ => self.own_key(),
            };
            keys.push(key);
        }
        let strategy = Strategy::ALL[self.rng.random_range(0..Strategy::ALL.len())];
        let what = format!("a batch of {length} by {strategy}");
        // Another thread may write between a batch and the lookups that repeat it; a snapshot keeps them together.
        let again = self.rng.random_ratio(1, 4).then(|| self.db.snapshot());
        match &again {
            Some(snapshot) => snapshot.multi_get_with(&keys, strategy, &mut self.values),
            None => self.db.multi_get_with(&keys, strategy, &mut self.values),
        }
        .with_context(|| format!("{what} failed"))?;
        if self.values.len() != length {
            return failed(format!("{what} gives {} answers", self.values.len()));
        }
        for (at, key) in keys.iter().enumerate() {
            let found = self
                .values
                .get(at)
                .map_err(Clone::clone)
                .with_context(|| format!("{what} failed"))?;
            self.check(key, found, &what)?;
            if let Some(snapshot) = &again {
                let single = snapshot.get(key).context("a get failed")?;
                if single.as_deref() != found {
                    return failed(format!(
                        "{what} and a get at the same snapshot disagree about key {}",
                        Named(key)
                    ));
                }
                self.tally.compared += 1;
            }
        }
        self.tally.looked_up += length as u64;
        Ok(())
    }

    /// A key that is never put: between others, before all, after all, empty.
    fn nobodys_key(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..4) {
            0 => Vec::new(),
            1 => vec![0xff; 20],
            2 => vec![0],
            _ => {
                let mut key = self.own_key();
                key.push(0);
                key
            }
        }
    }

    /// What a lookup found must be what the model has, for a key of this thread; and the work of its owner, for any.
    fn check(&self, key: &[u8], found: Option<&[u8]>, what: &str) -> anyhow::Result<()> {
        if key.starts_with(&script::prefix(self.thread)) {
            return check_own(self.model, key, found, what);
        }
        check_others(key, found, what)
    }

    fn scan_own(&mut self) -> anyhow::Result<()> {
        let prefix = script::prefix(self.thread);
        self.tally.scans += 1;
        if self.rng.random() {
            compare(
                self.db.prefix(&prefix),
                self.model.iter(),
                "a scan of a prefix",
            )
        } else {
            compare(
                self.db.prefix(&prefix).rev(),
                self.model.iter().rev(),
                "a scan of a prefix from its end",
            )
        }
    }

    /// The whole store while others write: in order, each value its owner's work, this thread's keys exactly.
    fn scan_all(&mut self) -> anyhow::Result<()> {
        let prefix = script::prefix(self.thread);
        let backward = self.rng.random();
        let mut entries = self.db.iter();
        let mut last: Option<Vec<u8>> = None;
        let mut own = 0;
        while let Some(entry) = if backward {
            entries.next_back()
        } else {
            entries.next()
        } {
            let (key, value) = entry.context("a scan failed")?;
            if last
                .as_ref()
                .is_some_and(|last| if backward { *last <= key } else { *last >= key })
            {
                return failed(format!("a scan gives {} out of order", Named(&key)));
            }
            if !key.starts_with(b"g/") {
                self.check(&key, Some(&value), "a scan")?;
            }
            own += usize::from(key.starts_with(&prefix));
            last = Some(key);
        }
        self.tally.scans += 1;
        match own == self.model.len() {
            true => Ok(()),
            false => failed(format!(
                "a scan gives {own} of a thread's {} keys",
                self.model.len()
            )),
        }
    }

    fn take_snapshot(&mut self) {
        if self.snapshots.len() == SNAPSHOTS {
            self.snapshots
                .swap_remove(self.rng.random_range(0..SNAPSHOTS));
        }
        self.snapshots
            .push((self.db.snapshot(), self.model.clone()));
        self.tally.snapshots += 1;
    }

    /// A snapshot still shows what the thread's keys held when it was taken.
    fn check_snapshot(&mut self) -> anyhow::Result<()> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let keys: Vec<Vec<u8>> = (0..30).map(|_| self.own_key()).collect();
        let (snapshot, model) = &self.snapshots[self.rng.random_range(0..self.snapshots.len())];
        let strategy = Strategy::ALL[self.rng.random_range(0..Strategy::ALL.len())];
        snapshot
            .multi_get_with(&keys, strategy, &mut self.values)
            .context("a batch of lookups failed")?;
        for (at, key) in keys.iter().enumerate() {
            check_own(
                model,
                key,
                self.values.get(at).map_err(Clone::clone)?,
                "a batch at a snapshot",
            )?;
        }
        self.tally.looked_up += keys.len() as u64;
        compare(
            snapshot.prefix(&script::prefix(self.thread)),
            model.iter(),
            "a scan of a snapshot",
        )
    }
}

/// Key `number` of a thread: of many lengths, some prefixes of others.
fn any_key(thread: usize, number: u32) -> Vec<u8> {
    let mut key = script::prefix(thread);
    key.extend_from_slice((number / 4).to_string().as_bytes());
    // Keys that agree in their first bytes, so that comparing prefixes alone does not do.
    key.resize(key.len() + [0, 1, 12, 60][number as usize % 4], b'.');
    key
}

fn group() -> Vec<Vec<u8>> {
    (0..GROUP)
        .map(|number| format!("g/{number}").into_bytes())
        .collect()
}

fn check_own(model: &Model, key: &[u8], found: Option<&[u8]>, what: &str) -> anyhow::Result<()> {
    match (found, model.get(key)) {
        (found, expected) if found == expected.map(Vec::as_slice) => Ok(()),
        (None, _) => failed(format!("{what} does not find key {}", Named(key))),
        (_, None) => failed(format!(
            "{what} finds key {}, which is not there",
            Named(key)
        )),
        _ => failed(format!("{what} finds another value for key {}", Named(key))),
    }
}

fn check_others(key: &[u8], found: Option<&[u8]>, what: &str) -> anyhow::Result<()> {
    let Some(value) = found else { return Ok(()) };
    let names_its_key = value
        .strip_prefix(key)
        .is_some_and(|rest| rest.first() == Some(&0));
    if !names_its_key || !key.starts_with(b"t") {
        return failed(format!(
            "{what} finds a value for key {} that nobody put there",
            Named(key)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_differ_and_some_are_prefixes_of_others() {
        let keys: HashSet<Vec<u8>> = (0..3)
            .flat_map(|t| (0..KEYS).map(move |n| any_key(t, n)))
            .collect();
        assert_eq!(keys.len(), 3 * KEYS as usize);
        assert!(any_key(0, 2).starts_with(&any_key(0, 1)));
    }

    #[test]
    fn each_way_to_be_wrong_is_noticed() {
        let model = Model::from([
            (b"t00/1".to_vec(), b"t00/1\0x".to_vec()),
            (b"t00/2".to_vec(), b"t00/2\0".to_vec()),
        ]);
        assert!(check_own(&model, b"t00/1", Some(b"t00/1\0x"), "it").is_ok());
        assert!(check_own(&model, b"t00/3", None, "it").is_ok());
        assert!(check_own(&model, b"t00/1", None, "it").is_err());
        assert!(check_own(&model, b"t00/1", Some(b"t00/1\0y"), "it").is_err());
        assert!(check_own(&model, b"t00/3", Some(b""), "it").is_err());
        assert!(check_others(b"t01/1", Some(b"t01/1\0zz"), "it").is_ok());
        assert!(check_others(b"t01/1", Some(b"t01/10\0zz"), "it").is_err());
        assert!(check_others(b"", Some(b"\0"), "it").is_err());

        type Entries = Vec<Result<(Vec<u8>, Vec<u8>), forerun::Error>>;
        let whole = || -> Entries { model.clone().into_iter().map(Ok).collect() };
        assert!(compare(whole().into_iter(), model.iter(), "it").is_ok());
        assert!(
            compare(whole().into_iter().take(1), model.iter(), "it").is_err(),
            "it ends early"
        );
        assert!(
            compare(whole().into_iter().skip(1), model.iter(), "it").is_err(),
            "one is passed over"
        );
        assert!(
            compare(whole().into_iter().rev(), model.iter(), "it").is_err(),
            "out of order"
        );
        assert!(
            compare(whole().into_iter(), model.iter().take(1), "it").is_err(),
            "one too many"
        );
    }
}
