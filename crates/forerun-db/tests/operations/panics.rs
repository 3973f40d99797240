//! A comparator or a file system panics: the caller gets an error that names it, no thread waits
//! forever, and no acknowledged write is lost.

use crate::testing;

use std::cmp::Ordering;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forerun_db::forward_io;
use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, IoFile, OpenMode};
use forerun_db::{
    Background, Comparator, Db, Durability, Error, KeyspaceOptions, Options, Result, TreeOptions,
    Values, WalMode, WriteBatch,
};
use testing::{STORE, small_options, tiny_options};

/// Runs something that must end.
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Ok(result) => result,
        Err(error) => panic!("{what} does not end: {error}"),
    }
}

/// When a comparator panics.
#[derive(Clone, Default)]
struct When(Arc<WhenState>);

#[derive(Default)]
struct WhenState {
    key: AtomicBool,
    thread: std::sync::Mutex<Option<&'static str>>,
}

impl When {
    /// At the key "boom", in any thread.
    fn at_key(&self, panics: bool) {
        self.0.key.store(panics, SeqCst);
    }

    /// In threads with this name.
    fn in_thread(&self, name: Option<&'static str>) {
        *self.0.thread.lock().unwrap() = name;
    }
}

/// Orders by bytes, and panics.
struct Panicking(When);

impl Comparator for Panicking {
    fn name(&self) -> &str {
        "test.panicking"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        let WhenState { key, thread } = &*self.0.0;
        if key.load(SeqCst) && [a, b].contains(&b"boom".as_slice()) {
            panic!("the user's comparator met boom");
        }
        let thread = *thread.lock().unwrap();
        if thread.is_some() && std::thread::current().name() == thread {
            panic!("the user's comparator met a thread");
        }
        a.cmp(b)
    }
}

/// The same order, and memtables with an index, which compares no keys.
struct Identical(Panicking);

impl Comparator for Identical {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.0.compare(a, b)
    }

    fn equal_means_identical(&self) -> bool {
        true
    }
}

fn options(when: &When) -> Options {
    small_options().comparator(Arc::new(Panicking(when.clone())))
}

fn indexed_options(when: &When) -> Options {
    small_options().comparator(Arc::new(Identical(Panicking(when.clone()))))
}

/// How to make options, without an index and with one.
const OPTIONS: [fn(&When) -> Options; 2] = [options, indexed_options];

fn open(io: &FaultIo, options: &Options) -> Db {
    testing::open(io, options).unwrap()
}

/// Asserts that a write is rejected because of a panic with the message `text`.
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, text: &str) {
    match result {
        Err(Error::Poisoned { cause }) => {
            assert!(matches!(*cause, Error::Panicked { .. }), "{cause}");
            assert!(cause.to_string().contains(text), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_comparator_that_panics_while_a_batch_is_applied_stops_writes_and_nobody_hangs() {
    let cases = OPTIONS.map(|options| [(options, WalMode::On), (options, WalMode::Off)]);
    for (options, wal) in cases.into_iter().flatten() {
        let (when, io) = (When::default(), FaultIo::new());
        let options = options(&when).wal(wal);
        let db = open(&io, &options);
        db.put(b"a", b"1").unwrap();
        when.at_key(true);
        assert_refused(db.put(b"boom", b"2"), "met boom");
        when.at_key(false);
        let later = db.clone();
        let refused = ends("a later write", move || later.put(b"later", b"3"));
        assert_refused(refused, "met boom");
        assert!(db.stats().poisoned.unwrap().contains("met boom"));
        // Everything that was visible can be read, and nothing else.
        assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(db.get(b"boom").unwrap(), None);
        assert_eq!(db.iter().count(), 1);
        assert_eq!(db.snapshot().iter().count(), 1);
        let other = db.clone();
        assert_refused(ends("a flush", move || other.flush()), "met boom");
        assert_refused(ends("a close", move || db.close()), "met boom");

        if wal == WalMode::On {
            let db = open(&io, &options);
            assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
            assert_eq!(db.get(b"later").unwrap(), None);
            db.put(b"later", b"4").unwrap();
        }
    }
}

#[test]
fn flushes_that_panic_leave_no_files_of_runs() {
    let (when, io) = (When::default(), FaultIo::new());
    let db = open(&io, &options(&when).background(Background::Caller));
    for key in ["a", "boom", "c"] {
        db.put(key, "1").unwrap();
    }
    when.at_key(true);
    for _ in 0..3 {
        assert_refused(db.flush(), "met boom");
        let is_run = |path: &PathBuf| path.extension().is_some_and(|it| it == "run");
        assert_eq!(io.files().iter().filter(|path| is_run(path)).count(), 0);
    }
    drop(db);
    when.at_key(false);
    assert_eq!(open(&io, &options(&when)).iter().count(), 3);
}

#[test]
fn a_batch_across_keyspaces_that_panics_is_visible_in_none_of_them() {
    let (when, io) = (When::default(), FaultIo::new());
    let keyspaces = ["x", "y"].map(|name| {
        let comparator: Arc<dyn Comparator> = Arc::new(Panicking(when.clone()));
        let options = KeyspaceOptions::default().comparator(comparator);
        (name.to_owned(), options)
    });
    let options = small_options().keyspaces(keyspaces.to_vec());
    let db = open(&io, &options);
    let [x, y] = ["x", "y"].map(|name| db.keyspace(name).unwrap());
    let batch = |key: &[u8], other: &[u8]| {
        let mut batch = WriteBatch::new();
        batch.keyspace(&x).put(key, b"x").unwrap();
        batch.keyspace(&y).put(other, b"y").unwrap();
        batch.keyspace(&y).delete_range(other, b"z").unwrap();
        batch
    };
    db.write(&batch(b"a", b"b"), Durability::Buffered).unwrap();
    let boom = batch(b"c", b"boom");
    when.at_key(true);
    // The range is checked before anything is logged, so this does no harm.
    let refused = db.write(&boom, Durability::Buffered);
    assert!(
        matches!(refused, Err(Error::Panicked { .. })),
        "{refused:?}"
    );
    let mut boom = WriteBatch::new();
    boom.keyspace(&x).put(b"c", b"x").unwrap();
    boom.keyspace(&y).put(b"boom", b"y").unwrap();
    assert_refused(db.write(&boom, Durability::Buffered), "met boom");
    when.at_key(false);
    assert_eq!((x.iter().count(), y.iter().count()), (1, 0));
    drop((x, y));
    assert_refused(ends("a close", move || db.close()), "met boom");
    let db = open(&io, &options);
    let [x, y] = ["x", "y"].map(|name| db.keyspace(name).unwrap());
    // It was logged, and all of it is there.
    assert_eq!((x.iter().count(), y.iter().count()), (2, 1));
}

#[test]
fn writers_beside_a_panicking_one_end_and_their_acknowledged_writes_stay() {
    for options in OPTIONS {
        write_beside_a_panicking_writer(options);
    }
}

fn write_beside_a_panicking_writer(options: fn(&When) -> Options) {
    let (when, io) = (When::default(), FaultIo::new());
    let options = options(&when).memory_limit_bytes(8 << 20);
    let db = open(&io, &options);
    when.at_key(true);
    let written = AtomicU64::new(0);
    let written = Arc::new(written);
    let threads: Vec<_> = (0..4_u64)
        .map(|thread| {
            let (db, written) = (db.clone(), Arc::clone(&written));
            move || {
                let mut kept = Vec::new();
                for n in 0..100_000_u64 {
                    if thread == 0 && written.load(SeqCst) > 200 {
                        assert!(db.put(b"boom", b"").is_err());
                    }
                    let key = [b"key", &thread.to_be_bytes()[..], &n.to_be_bytes()].concat();
                    match db.put(&key, b"value") {
                        Ok(()) => kept.push(key),
                        Err(error) => {
                            assert_refused(Err::<(), _>(error), "met boom");
                            return kept;
                        }
                    }
                    written.fetch_add(1, SeqCst);
                }
                panic!("writes go on");
            }
        })
        .map(std::thread::spawn)
        .collect();
    let kept = ends("writing", || {
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.flatten().collect::<Vec<_>>()
    });
    when.at_key(false);
    assert!(kept.len() > 200);
    for key in &kept {
        assert!(db.get(key).unwrap().is_some());
    }
    let _ = ends("a close", move || db.close());
    let db = open(&io, &options);
    for key in &kept {
        assert!(db.get(key).unwrap().is_some());
    }
}

#[test]
fn a_worker_that_panics_stops_writes_and_nobody_hangs() {
    for worker in ["forerun-flush", "forerun-compact"] {
        let (when, io) = (When::default(), FaultIo::new());
        let options = options(&when)
            .memtable_bytes(16 << 10)
            .background(Background::Threads)
            .tree(TreeOptions::default().level0_runs(2));
        let db = open(&io, &options);
        db.put(b"a", b"1").unwrap();
        db.flush().unwrap();
        when.in_thread(Some(worker));
        let writer = db.clone();
        let (kept, error) = ends("writing", move || {
            for n in 0_u64.. {
                if let Err(error) = writer.put(&n.to_be_bytes(), &[7; 300]) {
                    return (n, error);
                }
                // Level 0 gets its runs.
                if n % 50 == 49
                    && let Err(error) = writer.flush()
                {
                    return (n + 1, error);
                }
            }
            unreachable!()
        });
        assert_refused(Err::<(), _>(error), "met a thread");
        // Writes are rejected first; the worker records its failure a moment later.
        let failure = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            db.stats().background_failure
        });
        assert!(failure.unwrap().contains("met a thread"));
        let other = db.clone();
        let waited = ends("waiting until idle", move || other.wait_idle());
        if worker == "forerun-compact" {
            assert_refused(waited, "met a thread");
        }
        for n in 0..kept {
            assert!(db.get(&n.to_be_bytes()).unwrap().is_some(), "{n} of {kept}");
        }
        assert_eq!(db.iter().count() as u64, kept + 1);
        assert_refused(ends("a close", move || db.close()), "met a thread");
        when.in_thread(None);
        let db = open(&io, &options);
        assert!(db.iter().count() as u64 > kept);
        db.put(b"b", b"2").unwrap();
        db.compact().unwrap();
        db.close().unwrap();
    }
}

#[test]
fn a_panic_in_a_callers_flush_or_compaction_is_an_error() {
    for background in [Background::Caller, Background::Threads] {
        let (when, io) = (When::default(), FaultIo::new());
        let options = options(&when).background(background);
        let db = open(&io, &options);
        for key in [&b"a"[..], b"boom", b"c"] {
            db.put(key, b"1").unwrap();
            db.put(b"b", b"2").unwrap();
            db.flush().unwrap();
        }
        when.at_key(true);
        assert_refused(db.compact(), "met boom");
        assert_refused(db.put(b"d", b""), "met boom");
        when.at_key(false);
        assert_eq!(db.iter().count(), 4);
        assert_refused(ends("a close", move || db.close()), "met boom");
        let db = open(&io, &options);
        assert_eq!(db.iter().count(), 4);
        db.compact().unwrap();
    }
}

#[test]
fn a_comparator_that_panics_while_a_caller_waits_is_an_error_of_that_call() {
    let when = When::default();
    let options = options(&when).background(Background::Threads);
    let db = open(&FaultIo::new(), &options);
    for key in 0..1_000_u32 {
        db.put(key.to_be_bytes(), [7; 100]).unwrap();
    }
    db.compact().unwrap();
    // It needs what the range deletions cover, so a compaction for them is looked for in vain.
    let snapshot = db.snapshot();
    for key in 0..1_000_u32 {
        let key = key.to_be_bytes();
        db.delete_range(key, [&key[..], &[0]].concat()).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    when.in_thread(Some("waiting"));
    let waiting = std::thread::Builder::new().name("waiting".into());
    let waits = db.clone();
    let waited = waiting.spawn(move || (waits.wait_idle(), waits.stats().is_compaction_due));
    let (waited, is_due) = waited.unwrap().join().unwrap();
    assert!(matches!(waited, Err(Error::Panicked { .. })), "{waited:?}");
    assert!(is_due, "it is not known");
    when.in_thread(None);
    // Only this call has failed.
    db.put(b"key", b"value").unwrap();
    db.wait_idle().unwrap();
    drop(snapshot);
    db.close().unwrap();
}

#[test]
fn a_read_that_panics_is_an_error_of_that_read() {
    let (when, io) = (When::default(), FaultIo::new());
    let db = open(&io, &options(&when));
    for round in 0..2 {
        for key in [&b"a"[..], b"b", b"boom", b"c"] {
            db.put(key, b"1").unwrap();
        }
        when.at_key(true);
        let is_panic = |error: &Error| {
            matches!(error,
                Error::Panicked { message, .. } if message.contains("met boom"))
        };
        assert!(db.get(b"boom").is_err_and(|error| is_panic(&error)));
        let mut values = Values::new();
        let found = db.multi_get(&[&b"a"[..], b"boom"], &mut values);
        assert!(found.is_err_and(|error| is_panic(&error)));
        let snapshot = db.snapshot();
        assert!(snapshot.get(b"boom").is_err_and(|error| is_panic(&error)));
        let mut iter = db.range(&b"b"[..]..&b"boom"[..]);
        let error = iter.find_map(Result::err).unwrap();
        assert!(is_panic(&error));
        assert!(iter.next().is_none() && iter.next_back().is_none());
        let mut back = db.range(..=&b"boom"[..]);
        assert!(is_panic(&back.next_back().unwrap().unwrap_err()));
        let mut ingestion = db.ingest();
        ingestion.add(b"a", b"").unwrap();
        let added = ingestion.add(b"boom", b"");
        assert!(added.is_err_and(|error| is_panic(&error)));
        drop(ingestion);
        when.at_key(false);
        assert_eq!(db.iter().count(), 4);
        db.multi_get(&[&b"a"[..], b"boom"], &mut values).unwrap();
        assert_eq!(values.found(), 2);
        // In the second round everything is in a run.
        if round == 0 {
            db.flush().unwrap();
        }
    }
    db.close().unwrap();
}

#[test]
fn opening_with_a_comparator_that_panics_is_an_error_and_the_store_can_be_opened_again() {
    let (when, io) = (When::default(), FaultIo::new());
    let db = open(&io, &options(&when));
    db.put(b"boom", b"1").unwrap();
    db.put(b"a", b"1").unwrap();
    db.close().unwrap();
    when.at_key(true);
    match testing::open(&io, &options(&when)) {
        Err(Error::Panicked { message, .. }) => assert!(message.contains("met boom")),
        other => panic!("{other:?}"),
    }
    when.at_key(false);
    assert_eq!(open(&io, &options(&when)).iter().count(), 2);
}

/// A file system that panics at one of its calls.
#[derive(Clone, Debug)]
struct PanickingIo {
    io: FaultIo,
    calls: Arc<AtomicU64>,
    panics_at: u64,
}

impl PanickingIo {
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        if self.calls.fetch_add(1, SeqCst) == self.panics_at {
            panic!("the user's file system fell over");
        }
        call()
    }
}

#[derive(Debug)]
struct PanickingFile {
    file: Box<dyn IoFile>,
    io: PanickingIo,
}

impl Io for PanickingIo {
    forward_io!(
        this => this.io, |_name, call| this.call(call);
        list, create_dir, rename, remove, link, sync_dir, boot_id
    );

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let file = self.call(|| self.io.open(path, mode))?;
        let io = self.clone();
        Ok(Box::new(PanickingFile { file, io }))
    }
}

impl IoFile for PanickingFile {
    forward_io!(
        this => this.file, |_name, call| this.io.call(call);
        read_at, write_at, len, set_len, sync, try_lock
    );
}

#[test]
fn a_file_system_that_panics_at_any_call_is_one_that_fails_there() {
    let run = |panics_at: u64, background: Background| {
        let io = PanickingIo {
            io: FaultIo::new(),
            calls: Arc::default(),
            panics_at,
        };
        let options = tiny_options().background(background);
        let calls = Arc::clone(&io.calls);
        let model = io.io.clone();
        let kept = ends(&format!("a panic at call {panics_at}"), move || {
            let mut kept = Vec::new();
            let Ok(db) = Db::open_with_io(Arc::new(io), STORE, options) else {
                return kept;
            };
            for n in 0..40_u32 {
                let durability = match n % 8 {
                    0 => Durability::Synced,
                    _ => Durability::Buffered,
                };
                if db.put_with(&n.to_be_bytes(), &[9; 150], durability).is_ok() {
                    kept.push(n);
                }
                let _ = db.get(&n.to_be_bytes());
            }
            let mut ingestion = db.ingest();
            let _ = ingestion.add(b"\xffingested", b"");
            let _ = ingestion.commit();
            let _ = db.compact();
            let _ = db.close();
            kept
        });
        let db = open(&model, &tiny_options());
        for n in &kept {
            let value = db.get(&n.to_be_bytes()).unwrap();
            assert!(value.is_some(), "a panic at call {panics_at}: {n} is gone");
        }
        assert!(db.verify().unwrap().problems.is_empty());
        (calls.load(SeqCst), kept.len())
    };
    let (calls, kept) = run(u64::MAX, Background::Caller);
    assert!(calls > 200 && kept == 40);
    for panics_at in (0..calls).step_by(3) {
        run(panics_at, Background::Caller);
    }
    for panics_at in (0..calls).step_by(23) {
        run(panics_at, Background::Threads);
    }
}
