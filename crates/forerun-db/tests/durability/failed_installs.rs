//! Manifests that cannot be written: however often writing is retried, no files accumulate on the
//! disk, and no entry is lost.

use crate::testing;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, Error, Options, Result, check_with_io};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, entries, run_files, tiny_options};

/// The step of writing a manifest that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Write,
    Sync,
    Rename,
    /// Sync of the directory, after the rename.
    SyncDir,
}

const STEPS: [Step; 5] = [
    Step::Create,
    Step::Write,
    Step::Sync,
    Step::Rename,
    Step::SyncDir,
];

/// Fails one step of each manifest's writing while it is switched on.
struct Failing {
    step: Step,
    is_on: AtomicBool,
    is_renamed: AtomicBool,
    failures: AtomicUsize,
    /// Runs that were created.
    created: Mutex<BTreeSet<PathBuf>>,
}

impl Failing {
    fn io(disk: &FaultIo, step: Step) -> (Arc<Failing>, HookIo) {
        let failing = Arc::new(Failing {
            step,
            is_on: AtomicBool::new(false),
            is_renamed: AtomicBool::new(false),
            failures: AtomicUsize::new(0),
            created: Mutex::default(),
        });
        let hook = Arc::clone(&failing);
        let io = HookIo::new(disk, move |change, path| hook.pass(change, path));
        (failing, io)
    }

    fn pass(&self, change: Change, path: &Path) -> io::Result<()> {
        let of_manifest = path.ends_with("MANIFEST.new");
        if change == Change::Create && path.to_string_lossy().ends_with(".run") {
            self.created.lock().unwrap().insert(path.to_owned());
        }
        let step = match change {
            Change::Create if of_manifest => Step::Create,
            Change::Write if of_manifest => Step::Write,
            Change::Sync if of_manifest => Step::Sync,
            Change::Rename if path.ends_with("MANIFEST") => {
                self.is_renamed.store(true, Ordering::Relaxed);
                Step::Rename
            }
            Change::SyncDir if self.is_renamed.swap(false, Ordering::Relaxed) => Step::SyncDir,
            _ => return Ok(()),
        };
        if step != self.step || !self.is_on.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        Err(io::Error::other("no manifests today"))
    }

    fn created(&self) -> usize {
        self.created.lock().unwrap().len()
    }
}

fn options(background: Background) -> Options {
    tiny_options()
        .background(background)
        .tree(tiny_options().tree.level0_runs(10))
}

fn flush(db: &Db) -> Result<()> {
    db.flush()
}

fn compact(db: &Db) -> Result<()> {
    db.compact()
}

fn ingest(db: &Db) -> Result<()> {
    let mut ingestion = db.ingest();
    ingestion.add(b"ingested", b"value")?;
    ingestion.commit().map(drop)
}

type Operation = (&'static str, fn(&Db) -> Result<()>);

const OPERATIONS: [Operation; 3] = [("flush", flush), ("compact", compact), ("ingest", ingest)];

/// Tries an operation ten times while no manifest can be written, and once more when one can.
fn try_often(step: Step, background: Background, (name, operation): Operation) {
    let case = format!("{name} while manifests fail at {step:?}, {background:?}");
    let disk = FaultIo::new();
    let (failing, io) = Failing::io(&disk, step);
    let db = Db::open_with_io(Arc::new(io), STORE, options(background)).unwrap();
    for round in 0..3_u8 {
        for i in 0..20_u8 {
            db.put(&[i], &[round; 50]).unwrap();
        }
        db.flush().unwrap();
    }
    if name == "flush" {
        db.put(b"unflushed", b"value").unwrap();
    }
    let mut expected = entries(db.iter());
    let (files, created) = (run_files(&disk).len(), failing.created());
    failing.is_on.store(true, Ordering::Relaxed);
    let mut max = 0;
    for attempt in 0..10 {
        let error = operation(&db).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{case}: {error}");
        // The store's threads remove files a moment later.
        let begun = Instant::now();
        let is_much = |files: usize| attempt > 0 && files > max;
        while is_much(run_files(&disk).len()) && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let left = run_files(&disk).len();
        assert!(
            !is_much(left),
            "{case}: {left} runs after attempt {attempt}"
        );
        max = max.max(left);
        assert_eq!(entries(db.iter()), expected, "{case}");
    }
    assert!(failing.failures.load(Ordering::Relaxed) >= 10, "{case}");
    assert!(
        disk.read(format!("{STORE}/MANIFEST.new")).is_none() || step == Step::Rename,
        "{case}"
    );
    if name != "ingest" {
        // While manifests fail, no new runs are written for them.
        assert!(failing.created() - created <= files, "{case}");
    }
    failing.is_on.store(false, Ordering::Relaxed);
    operation(&db).unwrap_or_else(|error| panic!("{case}, healed: {error}"));
    if name == "ingest" {
        expected.push((b"ingested".to_vec(), b"value".to_vec()));
        expected.sort();
    }
    db.wait_idle().unwrap();
    assert_eq!(entries(db.iter()), expected, "{case}");
    db.close().unwrap();
    let checked = check_with_io(Arc::new(disk.clone()), STORE, &options(background)).unwrap();
    assert!(
        checked.problems.is_empty(),
        "{case}: {:?}",
        checked.problems
    );
    assert_eq!(checked.leftovers, 0, "{case}");
    let db = testing::open(&disk, &options(background)).unwrap();
    assert_eq!(entries(db.iter()), expected, "{case}, reopened");
}

#[test]
fn attempts_to_install_runs_leave_no_files_however_often_the_manifest_cannot_be_written() {
    for step in STEPS {
        for operation in OPERATIONS {
            try_often(step, Background::Caller, operation);
            try_often(step, Background::Threads, operation);
        }
    }
}

#[test]
fn waiting_until_idle_removes_the_runs_of_a_failed_ingestion() {
    for step in STEPS {
        for background in [Background::Caller, Background::Threads] {
            let case = format!("{step:?}, {background:?}");
            let disk = FaultIo::new();
            let (failing, io) = Failing::io(&disk, step);
            let db = Db::open_with_io(Arc::new(io), STORE, options(background)).unwrap();
            db.put(b"key", b"value").unwrap();
            db.flush().unwrap();
            let before = run_files(&disk);
            failing.is_on.store(true, Ordering::Relaxed);
            ingest(&db).unwrap_err();
            failing.is_on.store(false, Ordering::Relaxed);
            db.wait_idle().unwrap();
            assert_eq!(run_files(&disk), before, "{case}");
            assert_eq!(db.get(b"ingested").unwrap(), None, "{case}");
        }
    }
}

#[test]
fn every_manifest_a_power_loss_can_leave_has_its_runs() {
    for step in STEPS {
        for operation in OPERATIONS {
            for attempts in [1, 3] {
                for seed in 0..6 {
                    let disk = FaultIo::new();
                    let (failing, io) = Failing::io(&disk, step);
                    let options = options(Background::Caller);
                    let db = Db::open_with_io(Arc::new(io), STORE, options.clone()).unwrap();
                    for i in 0..20_u8 {
                        db.put(&[i], &[i; 50]).unwrap();
                    }
                    db.flush().unwrap();
                    db.put_with(b"synced", b"value", forerun_db::Durability::Synced)
                        .unwrap();
                    let expected = entries(db.iter());
                    failing.is_on.store(true, Ordering::Relaxed);
                    for _ in 0..attempts {
                        operation.1(&db).unwrap_err();
                    }
                    let after = disk.crash(seed);
                    let case = format!("{step:?}, {}, {attempts}, seed {seed}", operation.0);
                    let db = testing::open(&after, &options)
                        .unwrap_or_else(|error| panic!("{case}: {error}"));
                    let mut found = entries(db.iter());
                    found.retain(|(key, _)| key != b"ingested");
                    assert_eq!(found, expected, "{case}");
                }
            }
        }
    }
}
