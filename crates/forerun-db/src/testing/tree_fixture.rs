//! A store of runs only, for tests. A list replaces memtables and log, and the fixture remembers
//! everything ever written.

use forerun_core::sync::atomic::AtomicBool;
use forerun_core::sync::time;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::cache::PageCache;
use crate::comparator::{Comparator, KeyOrder};
use crate::io::Io;
use crate::io::fault::FaultIo;
use crate::ranges::Ranges;
use crate::run::cursor::RunCursor;
use crate::run::{Compression, RunOptions};
use crate::store_dir::encode_format;
use crate::testing::small_cache::small_cache;
use crate::testing::version_list::{Held, Sorted, all_of, held};
use crate::tree::build::{Build, write_runs};
use crate::tree::catalog::{Catalog, Logged, run_files};
use crate::tree::compact::compact;
use crate::tree::levels::{Edit, Levels};
use crate::tree::limiter::{IoClass, RateLimiter};
use crate::tree::pending_edits::PendingEdits;
use crate::tree::pick::{
    Compaction, DueAt, Existing, Obsolete, OlderKeys, Pick, pick, pick_for_deletions, pick_full,
};
use crate::tree::retain::Retain;
use crate::{Background, Bytewise, Options, Result, ReverseBytewise, TreeOptions};

pub(crate) const DIR: &str = "/db";
pub(crate) const KEYS: u16 = 160;

/// A store of runs only. What is not flushed is in a list.
pub(crate) struct Fixture {
    pub(crate) io: FaultIo,
    pub(crate) order: KeyOrder,
    pub(crate) comparator: &'static str,
    pub(crate) cache: Arc<PageCache>,
    pub(crate) options: TreeOptions,
    pub(crate) limiter: RateLimiter,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) catalog: Catalog,
    pub(crate) memtable: Vec<Held>,
    pub(crate) sequence: u64,
    pub(crate) snapshots: Vec<u64>,
    /// Everything ever written.
    pub(crate) model: Vec<Held>,
    /// Levels held by readers.
    pub(crate) readers: Vec<Arc<Levels>>,
    /// The compactions that have begun, oldest first.
    pub(crate) running: Vec<Begun>,
    /// How many parts a compaction has at most.
    pub(crate) parts_max: usize,
}

/// A compaction that has begun, with the snapshots of that moment.
pub(crate) struct Begun {
    id: u64,
    pub(crate) compaction: Compaction,
    older: OlderKeys,
    snapshots: Vec<u64>,
}

impl Fixture {
    pub(crate) fn new(is_reverse: bool) -> Fixture {
        let comparator: Arc<dyn Comparator> = if is_reverse {
            Arc::new(ReverseBytewise)
        } else {
            Arc::new(Bytewise)
        };
        let name = if is_reverse {
            "forerun.reverse-bytewise"
        } else {
            "forerun.bytewise"
        };
        let (io, order, cache) = (FaultIo::new(), KeyOrder::new(comparator), small_cache());
        io.create_dir(Path::new(DIR)).unwrap();
        io.sync_dir(Path::new("/")).unwrap();
        io.write("/db/FORMAT", &encode_format(name));
        Fixture {
            catalog: open(&io, &order, &cache).unwrap(),
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
            stop: Arc::default(),
            memtable: Vec::new(),
            sequence: 0,
            snapshots: Vec::new(),
            model: Vec::new(),
            readers: Vec::new(),
            running: Vec::new(),
            parts_max: 1,
        }
    }

    pub(crate) fn levels(&self) -> &Arc<Levels> {
        &self.catalog.runs_of(0).unwrap().levels
    }

    pub(crate) fn numbers(&self) -> BTreeSet<u64> {
        self.levels().runs().map(|(_, run)| run.number()).collect()
    }

    /// A copy with the same history and the same files, all of them durable, reopened.
    pub(crate) fn fork(&self) -> Fixture {
        let mut fork = prepare_again(self);
        let io = FaultIo::new();
        io.create_dir(Path::new(DIR)).unwrap();
        io.sync_dir(Path::new("/")).unwrap();
        for path in self.io.files() {
            io.write(&path, &self.io.read(&path).unwrap());
        }
        fork.reopen_on(io);
        fork
    }

    pub(crate) fn write(&mut self, key: u16, value: Option<usize>) {
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

    pub(crate) fn with_build<T>(&self, run_bytes: u64, work: impl FnOnce(&Build<'_>) -> T) -> T {
        work(&Build {
            io: &self.io,
            dir: Path::new(DIR),
            order: &self.order,
            comparator: self.comparator,
            keyspace: (0, ""),
            cache: &self.cache,
            options: RUN_OPTIONS,
            run_bytes,
            numbers: self.catalog.numbers(),
            limiter: &self.limiter,
            class: IoClass::Compaction,
            stop: &self.stop,
        })
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        let mut versions = Sorted::new(self.order.clone(), self.memtable.clone());
        let mut retain = Retain::new(self.order.clone(), self.snapshots.clone());
        let levels = Arc::clone(self.levels());
        let below = |key: &[u8]| levels.may_hold_from(0, key);
        let runs = self.with_build(u64::MAX, |build| {
            write_runs(&mut versions, &mut retain, below, build)
        })?;
        let edit = Edit {
            added: runs.into_iter().map(|run| (0, run)).collect(),
            ..Edit::default()
        };
        let logged = Logged {
            flushed_sequence: self.sequence,
            first_segment: self.sequence,
            ..Logged::default()
        };
        let edits = PendingEdits::new(self.catalog.obsolete_files()).with(0, edit);
        self.catalog.install(edits, Some(&logged))?;
        self.memtable.clear();
        Ok(())
    }

    /// Runs the compaction that is due, and returns whether there was one.
    pub(crate) fn compact(&mut self) -> Result<bool> {
        match self.pick() {
            Some(compaction) => self.run(&compaction).map(|()| true),
            None => Ok(false),
        }
    }

    pub(crate) fn run(&mut self, compaction: &Compaction) -> Result<()> {
        self.begin(compaction.clone());
        self.end(self.running.len() - 1)
    }

    /// Begins a compaction that may begin beside those that run.
    pub(crate) fn begin(&mut self, compaction: Compaction) {
        let (id, older) = self
            .catalog
            .begin(0, &compaction, true, 1, time::now())
            .unwrap();
        self.running.push(Begun {
            id,
            compaction,
            older,
            snapshots: self.snapshots.clone(),
        });
    }

    /// Runs a compaction that has begun, by its index.
    pub(crate) fn end(&mut self, index: usize) -> Result<()> {
        let begun = self.running.remove(index);
        let compaction = begun.compaction;
        let run_bytes = compaction.run_bytes(&self.options);
        let done = self.with_build(run_bytes, |build| {
            let retain = Retain::new(self.order.clone(), begun.snapshots);
            compact(&compaction, &begun.older, &retain, build, self.parts_max)
        });
        drop(compaction);
        let installed = done.and_then(|done| {
            let edits = PendingEdits::new(self.catalog.obsolete_files()).with(0, done.edit);
            self.catalog.install(edits, None)
        });
        self.catalog.running_mut().end(begun.id);
        installed
    }

    pub(crate) fn compact_all(&mut self) -> Result<()> {
        let existing = self.catalog.existing();
        loop {
            match self.pick_full(existing) {
                Pick::Begins(compaction) => self.run(&compaction)?,
                Pick::Waits => self.end(0)?,
                Pick::Nothing => return Ok(()),
            }
        }
    }

    pub(crate) fn pick(&self) -> Option<Compaction> {
        self.pick_without(Vec::new())
    }

    /// The next compaction that takes none of these runs. Their numbers ascend.
    pub(crate) fn pick_without(&self, unreadable: Vec<u64>) -> Option<Compaction> {
        let oldest_reader = self.snapshots.iter().min().unwrap_or(&self.sequence);
        let running = self.catalog.running().in_keyspace(0).without(unreadable);
        let for_deletions = || {
            let at = DueAt {
                oldest_reader: *oldest_reader,
                unix_s: self.io.unix_time_s(),
            };
            pick_for_deletions(self.levels(), &self.options, at, &running)
        };
        pick(self.levels(), &self.options, *oldest_reader, &running).or_else(for_deletions)
    }

    pub(crate) fn pick_full(&self, existing: Existing) -> Pick {
        self.pick_full_without(existing, Vec::new())
    }

    /// The next step of a full compaction that takes none of these runs. Their numbers ascend.
    pub(crate) fn pick_full_without(&self, existing: Existing, unreadable: Vec<u64>) -> Pick {
        let none = Ranges::new(self.order.clone());
        let obsolete = Obsolete {
            ranges: &none,
            expired_sequence: 0,
        };
        let running = self.catalog.running().in_keyspace(0).without(unreadable);
        pick_full(self.levels(), &self.options, existing, obsolete, &running)
    }

    /// The store as another process would find it when it opens this file system.
    pub(crate) fn reopen_on(&mut self, io: FaultIo) {
        self.readers.clear();
        self.running.clear();
        self.catalog = open(&io, &self.order, &self.cache).unwrap();
        self.io = io;
        self.snapshots.clear();
        let flushed = self.catalog.flushed_sequence();
        self.memtable = self
            .model
            .iter()
            .filter(|version| version.sequence > flushed)
            .cloned()
            .collect();
    }

    /// The values that a reader at `sequence` finds, by key.
    pub(crate) fn expected(&self, sequence: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
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

    pub(crate) fn check(&self) {
        let levels = self.levels();
        assert!(levels.overlap().is_none(), "{:?}", levels.overlap());
        let mut contents = BTreeMap::new();
        for (_, run) in levels.runs() {
            let all = all_of(&mut RunCursor::new(run)).unwrap();
            assert!(!all.is_empty());
            assert_eq!(run.meta().entries, all.len() as u64);
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
        // The files are exactly those of the runs that are still held.
        let mut held_runs: BTreeSet<u64> = levels.runs().map(|(_, run)| run.number()).collect();
        for reader in &self.readers {
            held_runs.extend(reader.runs().map(|(_, run)| run.number()));
        }
        assert_eq!(
            run_files(&self.io, Path::new(DIR)).unwrap(),
            held_runs.into_iter().collect::<Vec<_>>()
        );
    }

    /// The newest version of `key` up to `sequence`, from the newest source that has one.
    pub(crate) fn read(
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

pub(crate) const RUN_OPTIONS: RunOptions = RunOptions {
    page_bytes: 4096,
    compression: Compression::None,
    filter_bits_per_key: 10,
    index: true,
};

pub(crate) fn store_options(order: &KeyOrder, tree: TreeOptions) -> Options {
    Options {
        comparator: match order {
            KeyOrder::Bytewise => Arc::new(Bytewise),
            KeyOrder::Custom(comparator) => Arc::clone(comparator),
        },
        run: RUN_OPTIONS,
        tree,
        background: Background::Caller,
        ..Options::default()
    }
}

pub(crate) fn open(io: &FaultIo, order: &KeyOrder, cache: &Arc<PageCache>) -> Result<Catalog> {
    open_on(Arc::new(io.clone()), order, cache)
}

pub(crate) fn open_on(
    io: Arc<dyn Io>,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
) -> Result<Catalog> {
    let options = store_options(order, TreeOptions::default());
    Catalog::open(&io, Path::new(DIR), &options, cache)
}

/// A store with enough runs for several levels.
pub(crate) fn grown(is_reverse: bool) -> Fixture {
    let mut fixture = Fixture::new(is_reverse);
    for round in 0..12_u16 {
        for i in 0..40 {
            let key = (i * 7 + round * 31) % KEYS;
            fixture.write(key, (i % 9 != round % 9).then_some(usize::from(i) * 11));
        }
        fixture.flush().unwrap();
        fixture.compact().unwrap();
    }
    fixture
}

/// A fixture with the same history, to be opened on other files.
pub(crate) fn prepare_again(fixture: &Fixture) -> Fixture {
    let mut next = Fixture::new(matches!(fixture.order, KeyOrder::Custom(_)));
    next.model.clone_from(&fixture.model);
    next.sequence = fixture.sequence;
    next
}

pub(crate) fn check_reads(fixture: &Fixture, context: &str) {
    let levels = fixture.levels();
    let contents: BTreeMap<u64, Vec<Held>> = levels
        .runs()
        .map(|(_, run)| (run.number(), all_of(&mut RunCursor::new(run)).unwrap()))
        .collect();
    let expected = fixture.expected(fixture.sequence);
    for key in 0..KEYS {
        let key = format!("{key:05}").into_bytes();
        let found = fixture.read(levels, &contents, &key, fixture.sequence);
        assert_eq!(
            found,
            expected.get(&key).cloned(),
            "{context}: key {}",
            key.escape_ascii()
        );
    }
}
