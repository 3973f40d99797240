//! The tree against a plain map: writes, flushes, compactions and snapshots in any order; and with every call to the
//! file system failing in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use proptest::prelude::*;

use crate::cache::PageCache;
use crate::comparator::{Comparator, KeyOrder};
use crate::io::Io;
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::run::cursor::RunCursor;
use crate::run::{self, Compression, Run, RunOptions};
use crate::tree::build::{Build, write_runs};
use crate::tree::catalog::{Catalog, Logged, run_files};
use crate::tree::compact::compact;
use crate::tree::levels::{Edit, Levels};
use crate::tree::limiter::RateLimiter;
use crate::tree::manifest::LEVELS;
use crate::tree::pick::{Compaction, Targets, pick, pick_full};
use crate::tree::retain::Retain;
use crate::tree::testing::{Held, Sorted, all_of, cache, held};
use crate::{Bytewise, Error, Result, ReverseBytewise, TreeOptions};

const DIR: &str = "/";
const KEYS: u16 = 160;

/// A store of runs alone: what is not flushed is in a list.
struct World {
    io: FaultIo,
    order: KeyOrder,
    comparator: &'static str,
    cache: Arc<PageCache>,
    options: TreeOptions,
    limiter: RateLimiter,
    stop: AtomicBool,
    catalog: Catalog,
    memtable: Vec<Held>,
    sequence: u64,
    snapshots: Vec<u64>,
    /// All that was ever written.
    model: Vec<Held>,
    /// Levels that readers hold.
    readers: Vec<Arc<Levels>>,
}

impl World {
    fn new(is_reverse: bool) -> World {
        let comparator: Arc<dyn Comparator> = match is_reverse {
            true => Arc::new(ReverseBytewise),
            false => Arc::new(Bytewise),
        };
        let name = match is_reverse {
            true => "forerun.reverse-bytewise",
            false => "forerun.bytewise",
        };
        let (io, order, cache) = (FaultIo::new(), KeyOrder::new(comparator), cache());
        World {
            catalog: open(&io, &order, name, &cache).unwrap(),
            io,
            order,
            comparator: name,
            cache,
            options: TreeOptions {
                level0_runs: 3,
                level1_bytes: 20_000,
                level_factor: 3,
                run_bytes: 5_000,
                ..TreeOptions::default()
            },
            limiter: RateLimiter::new(None),
            stop: AtomicBool::new(false),
            memtable: Vec::new(),
            sequence: 0,
            snapshots: Vec::new(),
            model: Vec::new(),
            readers: Vec::new(),
        }
    }

    fn write(&mut self, key: u16, value: Option<usize>) {
        self.sequence += 1;
        let value = value.map(|len| {
            let mut value = self.sequence.to_le_bytes().to_vec();
            value.resize(8 + len, key as u8);
            value
        });
        let version = held(
            format!("{key:05}").as_bytes(),
            self.sequence,
            value.as_deref(),
        );
        self.memtable.push(version.clone());
        self.model.push(version);
    }

    fn with_build<T>(&self, run_bytes: u64, work: impl FnOnce(&Build<'_>) -> T) -> T {
        work(&Build {
            io: &self.io,
            dir: Path::new(DIR),
            order: &self.order,
            comparator: self.comparator,
            cache: &self.cache,
            options: RunOptions {
                page_bytes: 4096,
                compression: Compression::None,
                filter_bits_per_key: 10,
            },
            run_bytes,
            numbers: self.catalog.numbers(),
            limiter: &self.limiter,
            stop: &self.stop,
        })
    }

    fn flush(&mut self) -> Result<()> {
        let mut versions = Sorted::new(self.order.clone(), self.memtable.clone());
        let mut retain = Retain::new(self.order.clone(), self.snapshots.clone());
        let levels = Arc::clone(self.catalog.levels());
        let below = |key: &[u8]| levels.may_hold_from(0, key);
        let runs = self.with_build(u64::MAX, |build| {
            write_runs(&mut versions, &mut retain, below, build)
        })?;
        let edit = Edit {
            added: runs.into_iter().map(|run| (0, run)).collect(),
            removed: Vec::new(),
        };
        let logged = Logged {
            flushed_sequence: self.sequence,
            first_segment: self.sequence,
        };
        self.catalog.install(&edit, Some(logged))?;
        self.memtable.clear();
        Ok(())
    }

    /// Runs the compaction that is due; whether one was.
    fn compact(&mut self, busy: &BTreeSet<u64>) -> Result<bool> {
        match pick(self.catalog.levels(), &self.options, busy) {
            Some(compaction) => self.run(&compaction).map(|()| true),
            None => Ok(false),
        }
    }

    fn run(&mut self, compaction: &Compaction) -> Result<()> {
        let snapshots = self.snapshots.clone();
        let run_bytes = self.options.run_bytes;
        let done = self.with_build(run_bytes, |build| compact(compaction, snapshots, build))?;
        self.catalog.install(&done.edit, None).map(drop)
    }

    fn compact_all(&mut self) -> Result<()> {
        let limit = self.catalog.numbers().next();
        while let Some(compaction) = pick_full(self.catalog.levels(), limit) {
            self.run(&compaction)?;
        }
        Ok(())
    }

    /// The store as another process finds it that opens it on this file system.
    fn reopen_on(&mut self, io: FaultIo) {
        self.readers.clear();
        self.catalog = open(&io, &self.order, self.comparator, &self.cache).unwrap();
        self.io = io;
        self.snapshots.clear();
        let flushed = self.catalog.logged().flushed_sequence;
        self.memtable = self
            .model
            .iter()
            .filter(|version| version.sequence > flushed)
            .cloned()
            .collect();
    }

    /// What a reader as of `sequence` finds, by key.
    fn expected(&self, sequence: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut map = BTreeMap::new();
        for version in self
            .model
            .iter()
            .filter(|version| version.sequence <= sequence)
        {
            match &version.value {
                Some(value) => map.insert(version.key.clone(), value.clone()),
                None => map.remove(&version.key),
            };
        }
        map
    }

    fn check(&self) {
        let levels = self.catalog.levels();
        assert!(levels.overlap().is_none(), "{:?}", levels.overlap());
        let mut contents = BTreeMap::new();
        for (level, run) in levels.runs() {
            let all = all_of(&mut RunCursor::new(run)).unwrap();
            assert!(!all.is_empty());
            assert_eq!(run.meta().entries, all.len() as u64);
            if level > 0 && all.iter().any(|version| version.key != all[0].key) {
                assert!(run.meta().file_bytes < 5 * self.options.run_bytes);
            }
            contents.insert(run.number(), all);
        }
        for sequence in self.snapshots.iter().copied().chain([self.sequence]) {
            let expected = self.expected(sequence);
            for key in 0..KEYS {
                let key = format!("{key:05}").into_bytes();
                let found = self.read(levels, &contents, &key, sequence);
                assert_eq!(
                    found,
                    expected.get(&key).cloned(),
                    "key {} as of {sequence}",
                    key.escape_ascii()
                );
            }
        }
        // The files are those of the runs that somebody holds.
        let mut held_runs: BTreeSet<u64> = levels.runs().map(|(_, run)| run.number()).collect();
        for reader in &self.readers {
            held_runs.extend(reader.runs().map(|(_, run)| run.number()));
        }
        assert_eq!(
            run_files(&self.io, Path::new(DIR)).unwrap(),
            held_runs.into_iter().collect::<Vec<_>>()
        );
    }

    /// The newest version of `key` up to `sequence`, from the newest place that has one.
    fn read(
        &self,
        levels: &Levels,
        contents: &BTreeMap<u64, Vec<Held>>,
        key: &[u8],
        sequence: u64,
    ) -> Option<Vec<u8>> {
        let sees = |version: &&Held| version.key == key && version.sequence <= sequence;
        let memtable = self.memtable.iter().rev().find(sees);
        let mut runs = levels
            .candidates(key)
            .filter_map(|run| contents[&run.number()].iter().find(sees));
        memtable
            .or_else(|| runs.next())
            .and_then(|version| version.value.clone())
    }
}

fn open(
    io: &FaultIo,
    order: &KeyOrder,
    comparator: &str,
    cache: &Arc<PageCache>,
) -> Result<Catalog> {
    let io: Arc<dyn Io> = Arc::new(io.clone());
    Catalog::open(&io, Path::new(DIR), order, comparator, cache)
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<(u16, Option<usize>)>),
    Flush,
    Compact,
    CompactAll,
    Snapshot,
    Release(prop::sample::Index),
    Hold,
    LetGo,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..KEYS, prop::option::weighted(0.75, 0_usize..400));
    // Ranges of keys too, so that some runs overlap with few others.
    let range = (0..KEYS, 1_u16..40, 0_usize..300).prop_map(|(from, count, len)| {
        (from..(from + count).min(KEYS))
            .map(|key| (key, Some(len)))
            .collect::<Vec<_>>()
    });
    let step = prop_oneof![
        6 => prop::collection::vec(write, 1..60).prop_map(Step::Write),
        3 => range.prop_map(Step::Write),
        9 => Just(Step::Flush),
        8 => Just(Step::Compact),
        1 => Just(Step::CompactAll),
        2 => Just(Step::Snapshot),
        2 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => Just(Step::Hold),
        1 => Just(Step::LetGo),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_reader_finds_what_was_written(steps in steps(), is_reverse in any::<bool>()) {
        let mut world = World::new(is_reverse);
        for step in steps {
            match step {
                Step::Write(writes) => writes.into_iter().for_each(|(key, value)| world.write(key, value)),
                Step::Flush => world.flush().unwrap(),
                Step::Compact => drop(world.compact(&BTreeSet::new()).unwrap()),
                Step::CompactAll => world.compact_all().unwrap(),
                Step::Snapshot => world.snapshots.push(world.sequence),
                Step::Release(which) => {
                    if !world.snapshots.is_empty() {
                        let which = which.index(world.snapshots.len());
                        world.snapshots.remove(which);
                    }
                }
                Step::Hold => world.readers.push(Arc::clone(world.catalog.levels())),
                Step::LetGo => world.readers.clear(),
                Step::Reopen => {
                    let io = world.io.crash(0);
                    world.reopen_on(io);
                }
            }
            world.check();
        }
    }
}

/// Enough runs for several levels.
fn grown(is_reverse: bool) -> World {
    let mut world = World::new(is_reverse);
    for round in 0..12_u16 {
        for i in 0..40 {
            let key = (i * 7 + round * 31) % KEYS;
            world.write(key, (i % 9 != round % 9).then_some(usize::from(i) * 11));
        }
        world.flush().unwrap();
        world.compact(&BTreeSet::new()).unwrap();
    }
    world
}

#[test]
fn levels_come_to_their_targets_and_stay_there() {
    let mut world = grown(false);
    while world.compact(&BTreeSet::new()).unwrap() {
        world.check();
    }
    let levels = world.catalog.levels();
    let targets = Targets::new(levels, &world.options);
    assert!(levels.level(0).runs().len() < world.options.level0_runs);
    assert!(targets.base < LEVELS - 1, "{targets:?}");
    for level in 1..LEVELS - 1 {
        assert!(
            levels.bytes(level) <= targets.bytes[level] + 1,
            "level {level}"
        );
    }
    assert!(levels.run_count() > 5);
}

#[test]
fn after_a_full_compaction_there_is_one_version_a_key_and_no_deletion() {
    let mut world = grown(false);
    world.snapshots.push(world.sequence);
    world.compact_all().unwrap();
    world.check();
    world.snapshots.clear();
    for key in 0..KEYS {
        world.write(key, (key % 3 == 0).then_some(9));
    }
    world.flush().unwrap();
    world.compact_all().unwrap();
    world.check();
    let levels = world.catalog.levels();
    let entries: u64 = levels.runs().map(|(_, run)| run.meta().entries).sum();
    assert_eq!(entries as usize, world.expected(world.sequence).len());
    assert!(
        levels
            .runs()
            .all(|(level, run)| level == LEVELS - 1 && run.meta().deletions == 0)
    );
}

#[test]
fn ascending_writes_are_moved_and_not_rewritten() {
    let mut world = World::new(false);
    for start in (0..KEYS).step_by(20) {
        (start..start + 20).for_each(|key| world.write(key, Some(200)));
        world.flush().unwrap();
        while let Some(compaction) = pick(world.catalog.levels(), &world.options, &BTreeSet::new())
        {
            assert!(compaction.is_move());
            world.run(&compaction).unwrap();
            world.check();
        }
    }
    assert!(world.catalog.levels().level(0).runs().len() < 3);
}

#[test]
fn two_compactions_at_once_take_different_runs() {
    let mut world = grown(false);
    for round in 0..6 {
        for key in 0..KEYS {
            world.write((key * 13 + round) % KEYS, Some(100));
        }
        world.flush().unwrap();
        let mut busy = BTreeSet::new();
        let mut under_way = Vec::new();
        while let Some(compaction) = pick(world.catalog.levels(), &world.options, &busy) {
            for number in compaction.numbers() {
                assert!(busy.insert(number), "run {number} is in two compactions");
            }
            under_way.push(compaction);
        }
        // The last one first: their order must not matter.
        while let Some(compaction) = under_way.pop() {
            world.run(&compaction).unwrap();
            drop(compaction);
        }
        world.check();
    }
}

#[test]
fn the_file_of_an_obsolete_run_goes_with_its_last_reader() {
    let mut world = grown(false);
    let reader = Arc::clone(world.catalog.levels());
    let files = || run_files(&world.io, Path::new(DIR)).unwrap();
    let before = files();
    world.compact_all().unwrap();
    let files = || run_files(&world.io, Path::new(DIR)).unwrap();
    assert!(before.iter().all(|number| files().contains(number)));
    let runs: Vec<Weak<Run>> = reader.runs().map(|(_, run)| Arc::downgrade(run)).collect();
    drop(reader);
    let left: Vec<u64> = runs
        .iter()
        .filter_map(Weak::upgrade)
        .map(|run| run.number())
        .collect();
    assert!(
        before
            .iter()
            .all(|number| left.contains(number) == files().contains(number))
    );
    assert!(left.len() < before.len());
}

#[test]
fn a_rate_limit_and_a_stop_are_heeded() {
    let mut world = grown(false);
    world.write(1, Some(10));
    let before = run_files(&world.io, Path::new(DIR)).unwrap();
    world.stop = AtomicBool::new(true);
    assert!(matches!(world.flush(), Err(Error::Closed)));
    assert!(matches!(world.compact_all(), Err(Error::Closed)));
    assert_eq!(run_files(&world.io, Path::new(DIR)).unwrap(), before);
    world.stop = AtomicBool::new(false);
    world.flush().unwrap();
    world.check();
}

/// Fails each call of `work` in turn, in each way. What is read must be the same whatever fails, in this process, in
/// one that opens the store after it, and after a loss of power; and trying again must do.
fn fail_everywhere(prepare: impl Fn() -> World, work: impl Fn(&mut World) -> Result<()>) {
    let faults = [
        Fault::Fail(EIO),
        Fault::TornWrite(EIO),
        Fault::ShortWrite,
        Fault::PowerLoss,
    ];
    let prepared = prepare();
    for call in 0.. {
        let mut met = false;
        for fault in faults {
            let mut world = prepare();
            world.io.fail_call(world.io.calls() + call, fault);
            let result = work(&mut world);
            let hit = world.io.hit();
            met |= hit.is_some();
            if fault == Fault::ShortWrite || hit.is_none() {
                result.unwrap();
            } else if result.is_ok() {
                // The removal of a file that nothing names may fail in silence.
                assert!(
                    hit.as_deref().is_some_and(|hit| hit.starts_with("remove")),
                    "{hit:?}"
                );
            }
            let context = format!("{fault:?} at call {call}, {hit:?}");
            if fault != Fault::PowerLoss {
                check_reads(&world, &context);
                let mut next = prepare_again(&world);
                let io = world.io.kill();
                next.reopen_on(io);
                next.check();
                // This process goes on instead.
                let mut world = prepare();
                world.io.fail_call(world.io.calls() + call, fault);
                let _ = work(&mut world);
                work(&mut world).unwrap_or_else(|error| panic!("again after {context}: {error}"));
                check_reads(&world, &context);
                let io = world.io.kill();
                world.reopen_on(io);
                world.check();
                assert_eq!(world.sequence, prepared.sequence);
            } else {
                for seed in 0..6 {
                    let mut next = prepare_again(&world);
                    next.reopen_on(world.io.crash(seed));
                    next.check();
                }
            }
        }
        if !met {
            assert!(call > 5);
            return;
        }
    }
}

/// A world with the same history, to be opened on other files.
fn prepare_again(world: &World) -> World {
    let mut next = World::new(matches!(world.order, KeyOrder::Custom(_)));
    next.model.clone_from(&world.model);
    next.sequence = world.sequence;
    next
}

fn check_reads(world: &World, context: &str) {
    let levels = world.catalog.levels();
    let contents: BTreeMap<u64, Vec<Held>> = levels
        .runs()
        .map(|(_, run)| (run.number(), all_of(&mut RunCursor::new(run)).unwrap()))
        .collect();
    let expected = world.expected(world.sequence);
    for key in 0..KEYS {
        let key = format!("{key:05}").into_bytes();
        let found = world.read(levels, &contents, &key, world.sequence);
        assert_eq!(
            found,
            expected.get(&key).cloned(),
            "{context}: key {}",
            key.escape_ascii()
        );
    }
}

#[test]
fn a_failure_at_any_call_of_a_flush_loses_nothing() {
    let prepare = || {
        let mut world = grown(false);
        (0..50).for_each(|key| world.write(key * 3, (key % 4 > 0).then_some(100)));
        world
    };
    fail_everywhere(prepare, World::flush);
}

#[test]
fn a_failure_at_any_call_of_a_compaction_loses_nothing() {
    let prepare = || {
        let mut world = grown(false);
        while world.catalog.levels().level(0).runs().len() < 3 {
            (0..30).for_each(|key| world.write(key * 5, (key % 4 > 0).then_some(100)));
            world.flush().unwrap();
        }
        world
    };
    fail_everywhere(prepare, |world| world.compact(&BTreeSet::new()).map(drop));
}

#[test]
fn runs_without_a_manifest_are_not_thrown_away() {
    let world = grown(false);
    let before = run_files(&world.io, Path::new(DIR)).unwrap();
    world.io.take("/MANIFEST");
    let opened = open(&world.io, &world.order, world.comparator, &world.cache);
    assert!(
        matches!(opened, Err(Error::CorruptFile { .. })),
        "{opened:?}"
    );
    assert_eq!(run_files(&world.io, Path::new(DIR)).unwrap(), before);
}

#[test]
fn a_missing_run_and_another_in_its_place_are_named() {
    let world = grown(false);
    let (io, levels) = (&world.io, world.catalog.levels());
    let paths: Vec<_> = levels
        .runs()
        .map(|(_, run)| run::path(Path::new(DIR), run.number()))
        .collect();
    let (first, second) = (io.read(&paths[0]).unwrap(), io.read(&paths[1]).unwrap());
    for bytes in [None, Some(second)] {
        match bytes {
            Some(bytes) => io.write(&paths[0], &bytes),
            None => io.take(&paths[0]),
        }
        match open(io, &world.order, world.comparator, &world.cache) {
            Err(Error::CorruptFile { path, .. }) => assert_eq!(path, paths[0]),
            other => panic!("{other:?}"),
        }
        io.write(&paths[0], &first);
    }
    open(io, &world.order, world.comparator, &world.cache).unwrap();
}
