//! What readers and checkpoints see while an ingestion commits.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::io::Io;
use crate::io::fault::FaultIo;
use forerun_core::Pages;
use forerun_core::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use crate::tree::checkpoint::checkpoint;
use crate::tree::file_copy::{FileCopyOptions, Meter};
use crate::{Background, Db, Options, TreeOptions, Values};

/// A hook that is called once, before an operation on a file.
type Hook = Box<dyn FnOnce() + Send>;

/// A file system that calls a hook before a segment of the log is removed.
#[derive(Clone, Default)]
struct HookIo {
    disk: FaultIo,
    before_removal: Arc<Mutex<Option<Hook>>>,
}

fn call(hook: &Mutex<Option<Hook>>, path: &Path) {
    if path.extension().is_some_and(|extension| extension == "log") {
        let hook = hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

fn set(hook: &Mutex<Option<Hook>>, to: impl FnOnce() + Send + 'static) {
    *hook.lock().unwrap() = Some(Box::new(to));
}

impl std::fmt::Debug for HookIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.disk.fmt(f)
    }
}

impl Io for HookIo {
    crate::forward_io!(
        this => this.disk;
        open, list, create_dir, rename, sync_dir, boot_id, free_bytes
    );

    fn remove(&self, path: &Path) -> io::Result<()> {
        call(&self.before_removal, path);
        self.disk.remove(path)
    }
}

/// Options under which a compaction is due after each flush and each write fills a segment of the
/// log.
fn always_due() -> Options {
    Options {
        pages: Pages::Small,
        wal_segment_bytes: 1,
        tree: TreeOptions {
            level0_runs: 1,
            level1_bytes: 1,
            ..TreeOptions::default()
        },
        ..Options::default()
    }
}

/// Reads `k` in each of the possible ways.
fn read_all_ways(db: &Db) -> [Option<Vec<u8>>; 5] {
    let mut values = Values::new();
    db.multi_get(&["k"], &mut values).unwrap();
    let snapshot = db.snapshot();
    [
        db.get(b"k").unwrap(),
        values.get(0).unwrap().map(<[u8]>::to_vec),
        snapshot.get(b"k").unwrap(),
        db.iter()
            .map(Result::unwrap)
            .find(|of| of.0 == b"k")
            .map(|of| of.1),
        snapshot.range("k"..="k").next().map(|of| of.unwrap().1),
    ]
}

#[test]
fn a_compaction_beside_a_committing_ingestion_hides_nothing_from_readers() {
    let io = HookIo::default();
    let options = Options {
        background: Background::Caller,
        ..always_due()
    };
    let db = Db::open_with_io(Arc::new(io.clone()), "/db", options).unwrap();
    db.put(b"k", b"old").unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let before = db.snapshot();
    db.put(b"z", b"z").unwrap();
    db.flush().unwrap();
    drop(before);

    let was_called = Arc::new(AtomicBool::new(false));
    let (reader, called) = (db.clone(), Arc::clone(&was_called));
    set(&io.before_removal, move || {
        // The commit removes segments of the log, so the runs are installed.
        let compactions = || reader.inner().unwrap().tree.stats().compactions;
        let before = compactions();
        while reader.inner().unwrap().compact_one().unwrap() {}
        assert!(compactions() > before, "nothing was compacted");
        assert_eq!(
            read_all_ways(&reader),
            [(); 5].map(|()| Some(b"new".to_vec()))
        );
        called.store(true, Ordering::Relaxed);
    });
    let mut ingestion = db.ingest();
    ingestion.add(b"k", b"new").unwrap();
    let sequence = ingestion.commit().unwrap();
    assert!(was_called.load(Ordering::Relaxed));
    assert_eq!(db.snapshot().sequence(), sequence);
    assert_eq!(read_all_ways(&db), [(); 5].map(|()| Some(b"new".to_vec())));
}

#[test]
fn readers_beside_ingestions_and_compactions_always_find_the_key_and_never_an_older_value() {
    const ROUNDS: u64 = 60;
    let options = always_due();
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    db.put(b"k", &0_u64.to_be_bytes()).unwrap();
    let is_done = AtomicBool::new(false);
    forerun_core::sync::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !is_done.load(Ordering::Relaxed) {
                    for value in read_all_ways(&db) {
                        let value = value.expect("the key is not found");
                        let round = u64::from_be_bytes(value.try_into().unwrap());
                        // All ways are read before any is checked, so each value is at least as new
                        // as the last round's.
                        assert!(round >= last, "{round} after {last}");
                    }
                    let value = db.get(b"k").unwrap().expect("the key is not found");
                    last = u64::from_be_bytes(value.try_into().unwrap());
                    let snapshot = db.snapshot();
                    let first = snapshot.get(b"k").unwrap();
                    assert_eq!(snapshot.get(b"k").unwrap(), first, "a snapshot has changed");
                }
            });
        }
        let other = db.keyspace("other").unwrap();
        for round in 1..=ROUNDS {
            other.put(&round.to_be_bytes(), b"").unwrap();
            let mut ingestion = db.ingest();
            ingestion.add(b"k", &round.to_be_bytes()).unwrap();
            ingestion.commit().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(db.get(b"k").unwrap().unwrap(), ROUNDS.to_be_bytes());
}

#[test]
fn a_checkpoint_is_of_one_moment_whatever_an_ingestion_installs_and_removes() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    for is_installed_first in [false, true] {
        let io = HookIo::default();
        let options = Options {
            background: Background::Caller,
            pages: Pages::Small,
            ..Options::default()
        };
        let db = Db::open_with_io(Arc::new(io.clone()), "/db", options.clone()).unwrap();
        db.put(b"a", b"flushed").unwrap();
        db.flush().unwrap();
        if !is_installed_first {
            // The ingestion flushes it, and its segment of the log is removed.
            db.put(b"b", b"logged").unwrap();
        }
        let inner = Arc::clone(db.inner().unwrap());
        let (installed, is_installed) = mpsc::channel();
        let (remove, may_remove) = mpsc::channel();
        set(&io.before_removal, move || {
            installed.send(()).unwrap();
            may_remove.recv_timeout(TIMEOUT).unwrap();
        });
        let before = (!is_installed_first).then(|| inner.checkpoint_source().unwrap());
        let (source, log) = forerun_core::sync::thread::scope(|scope| {
            let ingestion = scope.spawn(|| {
                let mut ingestion = db.ingest();
                ingestion.add(b"k", b"ingested").unwrap();
                ingestion.commit().unwrap();
            });
            // A segment of the log is about to be removed.
            is_installed.recv_timeout(TIMEOUT).unwrap();
            let source = before.unwrap_or_else(|| inner.checkpoint_source().unwrap());
            remove.send(()).unwrap();
            ingestion.join().unwrap();
            source
        });
        let (dir, into) = (&inner.path, Path::new("/copy"));
        let copying = FileCopyOptions::default();
        let mut meter = Meter::new(&copying, None, 0);
        checkpoint(&inner.io, dir, into, &source.manifest, &log, &mut meter).unwrap();
        let copy = Db::open_with_io(Arc::new(io), into, options).unwrap();
        assert_eq!(copy.get(b"a").unwrap().unwrap(), b"flushed");
        assert_eq!(copy.get(b"b").unwrap().is_some(), !is_installed_first);
        assert_eq!(copy.get(b"k").unwrap().is_some(), is_installed_first);
    }
}
