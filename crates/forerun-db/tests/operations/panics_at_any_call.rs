//! A comparator panics at any of its calls: the caller gets an error, no file stays behind, and the
//! store opens again with everything.

use crate::testing;

use std::cmp::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forerun_db::io::Io;
use forerun_db::io::fault::FaultIo;
use forerun_db::{
    CheckReport, Comparator, Db, Durability, Error, KeyspaceOptions, Options, RepairReport, Result,
    TreeOptions, WriteBatch, check_with_io, repair_with_io,
};
use testing::{STORE, open, tiny_options};

/// Orders by bytes, and panics at the call with a number. Every method of the comparator counts.
#[derive(Clone)]
struct PanickingAt {
    calls: Arc<AtomicU64>,
    panics_at: Arc<AtomicU64>,
    /// Whether memtables and runs have an index.
    is_indexed: bool,
}

impl PanickingAt {
    fn never(is_indexed: bool) -> PanickingAt {
        PanickingAt {
            calls: Arc::default(),
            panics_at: Arc::new(AtomicU64::new(u64::MAX)),
            is_indexed,
        }
    }

    /// Panics at the call with this number, counted from now on; never at `u64::MAX`.
    fn arm(&self, panics_at: u64) {
        self.calls.store(0, SeqCst);
        self.panics_at.store(panics_at, SeqCst);
    }

    fn call(&self) {
        let call = self.calls.fetch_add(1, SeqCst);
        if call == self.panics_at.load(SeqCst) {
            panic!("the user's comparator met call {call}");
        }
    }
}

impl Comparator for PanickingAt {
    fn name(&self) -> &str {
        self.call();
        "test.panicking"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.call();
        a.cmp(b)
    }

    fn prefix(&self, key: &[u8]) -> u64 {
        self.call();
        key.first().copied().unwrap_or(0).into()
    }

    fn equal_means_identical(&self) -> bool {
        self.call();
        self.is_indexed
    }
}

/// A store whose comparator can be made to panic.
struct Fixture {
    comparator: PanickingAt,
    options: Options,
    io: FaultIo,
}

impl Fixture {
    /// A store with runs in several levels, entries in the log, and range deletions in both.
    fn new(memtable_bytes: usize, is_indexed: bool) -> (Fixture, Db) {
        let comparator = PanickingAt::never(is_indexed);
        let options = tiny_options()
            .tree(TreeOptions::default().level0_runs(10))
            .memtable_bytes(memtable_bytes)
            .comparator(Arc::new(comparator.clone()));
        let io = FaultIo::new();
        let db = open(&io, &options).unwrap();
        fill(&db);
        let fixture = Fixture {
            comparator,
            options,
            io,
        };
        (fixture, db)
    }

    fn check(&self) -> CheckReport {
        check_with_io(Arc::new(self.io.clone()), STORE, &self.options).unwrap()
    }

    fn repair(&self) -> Result<RepairReport> {
        repair_with_io(Arc::new(self.io.clone()), STORE, &self.options)
    }

    /// Checks that the closed store is undamaged and has no file that it does not need.
    fn assert_sound(&self, case: &str) {
        let CheckReport {
            problems,
            leftovers,
            ..
        } = self.check();
        assert!(problems.is_empty(), "{case}: {problems:?}");
        assert_eq!(leftovers, 0, "{case}");
    }
}

fn fill(db: &Db) {
    for round in 0..2_u8 {
        for i in 0..8_u8 {
            db.put([i], [round; 50]).unwrap();
        }
        db.delete_range([2], [4]).unwrap();
        db.flush().unwrap();
    }
    for i in 4..20_u8 {
        db.put([i], [9; 50]).unwrap();
    }
    db.delete_range([7], [9]).unwrap();
}

fn ingest_some(db: &Db) -> Result<()> {
    let mut ingestion = db.ingest();
    ingestion.add([1], b"ingested")?;
    ingestion.add([200], b"ingested")?;
    ingestion.commit().map(drop)
}

fn write_much(db: &Db) -> Result<()> {
    (0..80).try_for_each(|i: u8| db.put([i], [i; 60]))
}

/// Writes a batch of ascending keys, and one of descending keys.
fn write_batches(db: &Db) -> Result<()> {
    for is_ascending in [true, false] {
        let mut batch = WriteBatch::new();
        for nth in 0..40 {
            let key = if is_ascending { nth } else { 80 - nth };
            batch.put([key], [nth; 60])?;
        }
        db.write(&batch, Durability::Buffered)?;
    }
    Ok(())
}

#[test]
fn a_comparator_that_panics_at_any_call_leaves_no_files() {
    type Operation = fn(&Fixture, Db) -> Result<Db>;
    let operations: [(&str, Operation); 6] = [
        ("flush", |_, db| db.flush().map(|()| db)),
        ("compact", |_, db| db.compact().map(|()| db)),
        ("ingest", |_, db| ingest_some(&db).map(|()| db)),
        ("write", |_, db| write_much(&db).map(|()| db)),
        ("batches", |_, db| write_batches(&db).map(|()| db)),
        ("open", |fixture, db| {
            db.close()?;
            // The log does not fit into one memtable, so opening writes runs.
            open(
                &fixture.io,
                &fixture.options.clone().memtable_bytes(1 << 10),
            )
        }),
    ];
    // Memtables of 16 KiB have an index.
    let cases = operations.map(|of| [(of, 4 << 10, false), (of, 16 << 10, true)]);
    for ((name, operation), memtable_bytes, is_indexed) in cases.into_iter().flatten() {
        let attempt = |panics_at: u64| {
            let (fixture, db) = Fixture::new(memtable_bytes, is_indexed);
            fixture.comparator.arm(panics_at);
            let case = format!("{name}, indexed: {is_indexed}, a panic at call {panics_at}");
            let done = catch_unwind(AssertUnwindSafe(|| operation(&fixture, db)));
            let done = done.unwrap_or_else(|_| panic!("{case}: it reaches the caller"));
            let calls = fixture.comparator.calls.load(SeqCst);
            // The heights of a memtable's towers are random, and so is the number of comparisons.
            if panics_at < calls {
                // After an ingestion is visible, a due compaction may fail without it.
                assert!(done.is_err() || name == "ingest", "{case}");
            } else {
                assert!(done.is_ok(), "{case}");
            }
            drop(done);
            fixture.comparator.arm(u64::MAX);
            fixture.assert_sound(&case);
            let db = open(&fixture.io, &fixture.options).unwrap();
            assert!(db.get([19]).unwrap().is_some(), "{case}");
            calls
        };
        let calls = attempt(u64::MAX);
        assert!(calls > 50, "{name} calls the comparator {calls} times");
        // The last calls install what was written.
        let step = 1 + calls as usize / 200;
        let last = calls.saturating_sub(60);
        for panics_at in (0..last).step_by(step).chain(last..calls) {
            attempt(panics_at);
        }
    }
}

#[test]
fn a_comparator_that_panics_at_any_call_of_a_repair_leaves_no_new_runs() {
    for is_manifest_lost in [false, true] {
        let attempt = |panics_at: u64| {
            let (fixture, db) = Fixture::new(48 << 10, is_manifest_lost);
            let Fixture {
                comparator,
                options,
                io,
            } = &fixture;
            // A run of several pages, of which one is damaged.
            for i in 0..200_u8 {
                db.put([i, i], [i; 100]).unwrap();
            }
            db.flush().unwrap();
            db.close().unwrap();
            let files = io.files();
            let runs = files
                .iter()
                .filter(|path| path.to_string_lossy().ends_with(".run"));
            let len = |path: &&PathBuf| io.read(path).unwrap().len();
            let largest = runs.max_by_key(len).unwrap();
            let mut bytes = io.read(largest).unwrap();
            bytes[100] ^= 1;
            io.write(largest, &bytes);
            if is_manifest_lost {
                io.remove(format!("{STORE}/MANIFEST").as_ref()).unwrap();
            }
            let before = io.files();
            comparator.arm(panics_at);
            let repaired = fixture.repair();
            let calls = comparator.calls.load(SeqCst);
            comparator.arm(u64::MAX);
            let case = format!("manifest lost: {is_manifest_lost}, a panic at call {panics_at}");
            // Attempts need not make the same number of calls.
            assert_eq!(repaired.is_ok(), panics_at >= calls, "{case}");
            match repaired {
                Ok(report) => assert!(report.new_runs > 0, "{case}"),
                // The runs were repaired, and the check that follows has failed.
                Err(_) if io.files() != before => {
                    let checked = fixture.check();
                    assert!(checked.runs.problems.is_empty(), "{case}");
                    assert_eq!(checked.leftovers, 0, "{case}");
                }
                Err(_) => {
                    fixture.repair().unwrap();
                }
            }
            let db = open(io, options).unwrap();
            assert!(db.get([199, 199]).unwrap().is_some(), "{case}");
            calls
        };
        let calls = attempt(u64::MAX);
        assert!(calls > 100, "a repair calls the comparator {calls} times");
        let step = 1 + calls as usize / 300;
        for panics_at in (0..calls).step_by(step) {
            attempt(panics_at);
        }
    }
}

#[test]
fn a_comparator_that_panics_while_a_keyspace_is_created_creates_none() {
    for panics_at in 0.. {
        let comparator = PanickingAt::never(true);
        let users = KeyspaceOptions::default().comparator(Arc::new(comparator.clone()));
        let options = tiny_options().keyspaces(vec![("users".to_owned(), users)]);
        let io = FaultIo::new();
        let db = open(&io, &options).unwrap();
        comparator.arm(panics_at);
        let created = catch_unwind(AssertUnwindSafe(|| db.keyspace("users")));
        let created = created.unwrap_or_else(|_| panic!("call {panics_at} reaches the caller"));
        let calls = comparator.calls.load(SeqCst);
        comparator.arm(u64::MAX);
        if calls <= panics_at {
            assert!(created.is_ok() && calls > 0);
            break;
        }
        assert!(
            matches!(created, Err(Error::Panicked { .. })),
            "call {panics_at}: {created:?}"
        );
        assert!(db.find_keyspace("users").is_none(), "call {panics_at}");
        db.keyspace("users").unwrap().put("a", "1").unwrap();
        db.close().unwrap();
        let checked = check_with_io(Arc::new(io.clone()), STORE, &options).unwrap();
        let problems = checked.problems;
        assert!(problems.is_empty(), "call {panics_at}: {problems:?}");
        let db = open(&io, &options).unwrap();
        let users = db.find_keyspace("users").unwrap();
        assert_eq!(users.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    }
}
