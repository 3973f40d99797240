//! Shared by the tests: small stores on a model file system, and a script of writes whose outcome
//! can be checked after any failure.

#![allow(dead_code, reason = "each test uses only a part")]

pub mod counting;
pub mod hook_io;
#[path = "../../src/testing/random.rs"]
pub mod random;
pub mod search;
pub mod watched_io;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use forerun_core::Pages;
use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Background, Comparator, Db, Durability, KeyspaceOptions, Options, Result, ReverseBytewise,
    RunOptions, TreeOptions, WriteBatch,
};

/// Whether every case is to be tried, as every night: `FORERUN_ALL_CASES` is set.
pub fn all_cases() -> bool {
    std::env::var_os("FORERUN_ALL_CASES").is_some()
}

/// The seeds below `all` of a loss of power at the `n`th place: by default a third of them, in
/// turns.
pub fn seeds(n: u64, all: u64) -> impl Iterator<Item = u64> {
    (0..all).filter(move |seed| all_cases() || seed % 3 == n % 3)
}

/// Waits for another thread, at most a minute.
pub fn wait_for(flag: &AtomicBool) {
    for _ in 0..60_000 {
        if flag.load(SeqCst) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it never happens");
}

/// The directory of the tests' stores.
pub const STORE: &str = "/store";

/// Options for a store that is opened thousands of times: little memory, short segments.
pub fn small_options() -> Options {
    Options::default()
        .memory_limit_bytes(256 << 10)
        .pages(Pages::Small)
        .wal_segment_bytes(700)
}

/// Options under which a few writes fill a memtable and a few memtables trigger a compaction. The
/// writing thread does all the work, so the file system calls come in the same order each time.
pub fn tiny_options() -> Options {
    small_options()
        .memtable_bytes(2 << 10)
        .cache_bytes(128 << 10)
        .background(Background::Caller)
        .run(RunOptions::default().page_bytes(4 << 10))
        .tree(
            TreeOptions::default()
                .level0_runs(2)
                .level1_bytes(6 << 10)
                .level_factor(2)
                .run_bytes(3 << 10),
        )
}

/// The smallest memtable that has an index.
const INDEXED_BYTES: usize = 16 << 10;

/// These options with an index for each memtable, which is large enough for it, and without.
pub fn with_and_without_index(options: &Options) -> [Options; 2] {
    let bytes = options.memtable_bytes.max(INDEXED_BYTES);
    let with = options.clone().memtable_bytes(bytes).memtable_index(true);
    [with, options.clone().memtable_index(false)]
}

/// Opens the store.
pub fn open(io: &FaultIo, options: &Options) -> Result<Db> {
    Db::open_with_io(Arc::new(io.clone()), STORE, options.clone())
}

/// The result that a writer got for its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not attempted.
    Untried,
    /// It returned an error.
    Failed,
    /// It succeeded, and the operating system has it.
    Buffered,
    /// It succeeded, and is on stable storage.
    Synced,
}

/// Numbered batches and the results that their writer got. See [`batch`].
#[derive(Clone, Debug)]
pub struct Script {
    pub outcomes: Vec<Outcome>,
}

pub const BATCHES: usize = 14;

impl Script {
    pub fn new() -> Script {
        Script {
            outcomes: vec![Outcome::Untried; BATCHES],
        }
    }

    /// Opens the store, writes half of the batches, closes it, reopens it, writes the rest, and
    /// leaves it open.
    ///
    /// A step that fails is recorded and the script continues, as a program would after a temporary
    /// failure.
    pub fn run(&mut self, io: &FaultIo, options: &Options) -> Option<Db> {
        let first = (0..2).find_map(|_| open(io, options).ok());
        if let Some(db) = first {
            self.write(&db, 0..BATCHES / 2);
            let _ = db.close();
        }
        let second = (0..2).find_map(|_| open(io, options).ok())?;
        self.write(&second, BATCHES / 2..BATCHES);
        Some(second)
    }

    /// Writes these batches, every third synced.
    pub fn write(&mut self, db: &Db, batches: std::ops::Range<usize>) {
        for i in batches {
            let durability = if i % 3 == 1 {
                Durability::Synced
            } else {
                Durability::Buffered
            };
            self.write_one(db, i, durability);
        }
    }

    /// Writes one more batch than the script has.
    pub fn append(&mut self, db: &Db, durability: Durability) {
        self.outcomes.push(Outcome::Untried);
        self.write_one(db, self.outcomes.len() - 1, durability);
    }

    fn write_one(&mut self, db: &Db, i: usize, durability: Durability) {
        self.outcomes[i] = match db.write(&batch(i), durability) {
            Err(_) => Outcome::Failed,
            Ok(_) => Outcome::Buffered,
        };
        if durability == Durability::Synced && self.outcomes[i] == Outcome::Buffered {
            // The sync covers everything that was written before.
            for outcome in &mut self.outcomes[..=i] {
                if *outcome == Outcome::Buffered {
                    *outcome = Outcome::Synced;
                }
            }
        }
    }

    /// Compares a store with the results that the writers got: nothing that reached `safe` is
    /// missing, no batch is there in part, and only batches at the end were lost.
    pub fn check(&self, db: &Db, safe: Outcome, case: &str) {
        let mut last = None;
        let mut lost = None;
        for (i, outcome) in self.outcomes.iter().enumerate() {
            let there = is_there(db, i, case);
            let is_safe = match safe {
                Outcome::Buffered => matches!(outcome, Outcome::Buffered | Outcome::Synced),
                _ => *outcome == safe,
            };
            assert!(
                there || !is_safe,
                "{case}: batch {i} was acknowledged ({outcome:?}) but is gone"
            );
            assert!(
                !there || *outcome != Outcome::Untried,
                "{case}: batch {i} appeared from nowhere"
            );
            if there {
                last = Some(i);
                assert_eq!(
                    lost, None,
                    "{case}: batch {i} is there, but an acknowledged one before it is not"
                );
            } else if matches!(outcome, Outcome::Buffered | Outcome::Synced) {
                lost = Some(i);
            }
        }
        let reported = db
            .get(b"last")
            .unwrap()
            .map(|value| String::from_utf8(value).unwrap().parse::<usize>().unwrap());
        assert_eq!(
            reported, last,
            "{case}: the key that all batches write is wrong"
        );
    }
}

/// Batch `i` of the script.
pub fn batch(i: usize) -> WriteBatch {
    let mut batch = WriteBatch::new();
    batch.put(format!("a-{i}").as_bytes(), &value(i)).unwrap();
    batch.put(b"last", i.to_string().as_bytes()).unwrap();
    batch.put(format!("temporary-{i}").as_bytes(), b"").unwrap();
    batch.delete(format!("temporary-{i}").as_bytes()).unwrap();
    batch.put(format!("b-{i}").as_bytes(), &value(i)).unwrap();
    batch
}

/// Whether batch `i` was applied. Panics if it was applied in part.
pub fn is_there(db: &Db, i: usize, case: &str) -> bool {
    let [a, b, temporary] =
        ["a", "b", "temporary"].map(|name| db.get(format!("{name}-{i}").as_bytes()).unwrap());
    assert_eq!(a, b, "{case}: half of batch {i} is there");
    assert_eq!(temporary, None, "{case}: batch {i} lacks its last deletion");
    if let Some(a) = &a {
        assert_eq!(*a, value(i), "{case}: batch {i} has another value");
    }
    a.is_some()
}

fn value(i: usize) -> Vec<u8> {
    // The lengths differ, so that records end at odd offsets.
    format!("value {i} ").repeat(3 + i % 4).into_bytes()
}

/// A custom order: shorter keys first.
pub struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &str {
        "test.by-length"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
}

pub fn by_length() -> KeyspaceOptions {
    KeyspaceOptions::default()
        .comparator(Arc::new(ByLength))
        .tree(tiny_options().tree)
        .run(tiny_options().run)
}

pub fn reverse() -> KeyspaceOptions {
    by_length().comparator(Arc::new(ReverseBytewise))
}

/// Options that know all comparators of the tests.
pub fn options_with_orders() -> Options {
    tiny_options().keyspaces(vec![("lengths".into(), by_length())])
}

/// All entries, in order.
pub fn entries(iter: forerun_db::Iter) -> Vec<(Vec<u8>, Vec<u8>)> {
    iter.map(Result::unwrap).collect()
}

/// Names of the run files.
pub fn run_files(io: &FaultIo) -> Vec<String> {
    let files = io.files();
    let names = files.iter().filter_map(|path| path.to_str());
    names
        .filter(|name| name.ends_with(".run"))
        .map(str::to_owned)
        .collect()
}
