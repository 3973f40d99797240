//! What readers see while an ingestion commits.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::io::fault::FaultIo;
use crate::io::{Io, IoFile, OpenMode};
use forerun_core::Pages;

use crate::{Background, Db, Options, TreeOptions, Values};

/// What is called before a file is removed.
type Hook = Box<dyn Fn() + Send>;

/// A file system that calls a hook before a segment of the log is removed.
#[derive(Clone)]
struct HookIo {
    disk: FaultIo,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl std::fmt::Debug for HookIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.disk.fmt(f)
    }
}

impl Io for HookIo {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        self.disk.open(path, mode)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.disk.list(dir)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        if path.extension().is_some_and(|extension| extension == "log") {
            let hook = self.hook.lock().unwrap().take();
            if let Some(hook) = hook {
                hook();
            }
        }
        self.disk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn boot_id(&self) -> Option<u128> {
        self.disk.boot_id()
    }
}

/// The value of `k` by each way of reading.
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
fn a_compaction_while_an_ingestion_commits_takes_nothing_from_readers() {
    let io = HookIo {
        disk: FaultIo::new(),
        hook: Arc::default(),
    };
    let options = Options {
        background: Background::Caller,
        pages: Pages::Small,
        wal_segment_bytes: 1,
        tree: TreeOptions {
            level0_runs: 1,
            level1_bytes: 1,
            ..TreeOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open_with_io(Arc::new(io.clone()), "/db", options).unwrap();
    db.put(b"k", b"old").unwrap();
    db.flush().unwrap();
    db.settle().unwrap();
    let before = db.snapshot();
    db.put(b"z", b"z").unwrap();
    db.flush().unwrap();
    drop(before);

    let was_called = Arc::new(AtomicBool::new(false));
    let (reader, called) = (db.clone(), Arc::clone(&was_called));
    *io.hook.lock().unwrap() = Some(Box::new(move || {
        // The commit removes segments of the log: the runs are installed.
        let compactions = || reader.inner().unwrap().tree_work().compactions;
        let before = compactions();
        while reader.inner().unwrap().compact_one().unwrap() {}
        assert!(compactions() > before, "nothing was compacted");
        assert_eq!(
            read_all_ways(&reader),
            [(); 5].map(|()| Some(b"new".to_vec()))
        );
        called.store(true, Ordering::Relaxed);
    }));
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
    let options = Options {
        pages: Pages::Small,
        wal_segment_bytes: 1,
        tree: TreeOptions {
            level0_runs: 1,
            level1_bytes: 1,
            ..TreeOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    db.put(b"k", &0_u64.to_be_bytes()).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !is_done.load(Ordering::Relaxed) {
                    for value in read_all_ways(&db) {
                        let value = value.expect("the key is not found");
                        let round = u64::from_be_bytes(value.try_into().unwrap());
                        // The second way is read before the first is looked at: each is newer than the round before.
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
