//! Reads past the memory of the system find what other reads do; where there are none, opening says
//! so.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::Pages;
use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, IoFile, OpenMode, OsIo};
use forerun_db::{Db, Error, Options, ReadBackend, RunOptions, Values, forward_io};

use crate::testing::{STORE, tiny_options};

/// Little memory, so that most pages are read from files.
fn options() -> Options {
    Options::default()
        .pages(Pages::Small)
        .memtable_bytes(256 << 10)
        .memory_limit_bytes(1 << 20)
        .cache_bytes(128 << 10)
        .use_direct_reads(true)
}

/// Bytes that no compression makes much shorter, at a multiple of 7 a value of several pages.
fn value(n: u64) -> Vec<u8> {
    let words = match n % 7 {
        0 => 900,
        _ => n % 90,
    };
    let word = |at: u64| (n << 16 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..words).flat_map(|at| word(at).to_le_bytes()).collect()
}

/// Whether the store can be opened; not where there are no direct reads.
fn open(path: &Path, options: Options) -> Option<Db> {
    match Db::open(path, options) {
        Err(Error::BadOption { option, reason }) => {
            assert_eq!(option, "use_direct_reads");
            eprintln!("no direct reads here: {reason}");
            None
        }
        opened => Some(opened.unwrap()),
    }
}

fn check(db: &Db, model: &BTreeMap<Vec<u8>, Vec<u8>>, keys: u64) {
    let mut values = Values::new();
    for first in (0..keys).step_by(50) {
        // Neighbours are on different pages.
        let wanted: Vec<[u8; 8]> = (first..first + 50)
            .map(|n| (n * 7919 % keys).to_be_bytes())
            .collect();
        db.multi_get(&wanted, &mut values).unwrap();
        for (at, key) in wanted.iter().enumerate() {
            let wanted = model.get(&key[..]).map(Vec::as_slice);
            assert_eq!(values.get(at).unwrap(), wanted, "{key:?}");
        }
    }
    for n in (0..keys).step_by(61) {
        let key = n.to_be_bytes();
        assert_eq!(db.get(key).unwrap(), model.get(&key[..]).cloned());
    }
    let entries: Vec<_> = db.iter().map(Result::unwrap).collect();
    assert!(entries.iter().map(|(key, value)| (key, value)).eq(model));
}

#[test]
fn a_store_with_direct_reads_finds_every_entry_with_every_backend_and_compression() {
    const KEYS: u64 = 1500;
    for compression in ["none", "lz4", "zstd"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let run = RunOptions::default()
            .page_bytes(4 << 10)
            .compression(compression.parse().unwrap());
        let mut model = BTreeMap::new();
        for (round, backend) in (0_u64..).zip(ReadBackend::ALL) {
            let options = options().run(run).reads(backend);
            let Some(db) = open(&path, options) else {
                return;
            };
            for n in (round..KEYS).step_by(2 + round as usize) {
                let (key, value) = (n.to_be_bytes(), value(n + round));
                db.put(key, &value).unwrap();
                model.insert(key.to_vec(), value);
            }
            for n in (round..KEYS).step_by(11) {
                db.delete(n.to_be_bytes()).unwrap();
                model.remove(&n.to_be_bytes()[..]);
            }
            db.flush().unwrap();
            check(&db, &model, KEYS);
            if round % 2 == 1 {
                db.compact().unwrap();
                check(&db, &model, KEYS);
            }
            assert!(db.verify().unwrap().problems.is_empty());
            db.close().unwrap();
        }
    }
}

/// The only run of a store.
fn run_file(store: &Path) -> PathBuf {
    let files = std::fs::read_dir(store).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    let is_run = |path: &PathBuf| path.extension().is_some_and(|of| of == "run");
    files.find(is_run).unwrap()
}

/// Whether the system has the start of a file in memory.
fn is_in_memory(path: &Path) -> bool {
    let file = OsIo.open(path, OpenMode::Read).unwrap();
    file.read_cached_at(&mut [0], 0).is_ok()
}

#[test]
fn the_system_keeps_no_page_of_a_store_with_direct_reads() {
    let dir = tempfile::tempdir().unwrap();
    let written = |name: &str, options: Options| {
        let path = dir.path().join(name);
        let db = open(&path, options)?;
        for n in 0..1000_u64 {
            db.put(n.to_be_bytes(), value(n % 7 + 1)).unwrap();
        }
        db.flush().unwrap();
        for n in 0..1000_u64 {
            assert!(db.get(n.to_be_bytes()).unwrap().is_some());
        }
        db.close().unwrap();
        Some(run_file(&path))
    };
    let one_run = options()
        .memtable_bytes(8 << 20)
        .memory_limit_bytes(32 << 20);
    let Some(run) = written("direct", one_run.clone()) else {
        return;
    };
    let is_kept = is_in_memory(&run);
    let run = written("other", one_run.use_direct_reads(false)).unwrap();
    let file = OsIo.open(&run, OpenMode::Read).unwrap();
    file.invalidate_cache().unwrap();
    if is_in_memory(&run) {
        return; // A file system in memory.
    }
    assert!(!is_kept);
}

/// A file system without direct reads.
#[derive(Debug)]
struct NoDirectReads(FaultIo);

impl Io for NoDirectReads {
    forward_io!(this => this.0; list, create_dir, rename, remove, link, sync_dir, boot_id);

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        match mode {
            OpenMode::ReadDirect => Err(ErrorKind::Unsupported.into()),
            mode => self.0.open(path, mode),
        }
    }
}

#[test]
fn a_store_on_a_file_system_without_direct_reads_opens_only_without_them() {
    let io = FaultIo::new();
    let open = |options: Options| {
        let io = Arc::new(NoDirectReads(io.clone()));
        Db::open_with_io(io, STORE, options)
    };
    match open(tiny_options().use_direct_reads(true)) {
        Err(Error::BadOption { option, reason }) => {
            assert_eq!(option, "use_direct_reads");
            assert!(reason.contains(STORE), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let db = open(tiny_options()).unwrap();
    db.put("paris", "48.85,2.35").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    // Files in memory are in memory once.
    let direct = tiny_options().use_direct_reads(true);
    let db = Db::open_with_io(Arc::new(io.clone()), STORE, direct).unwrap();
    assert_eq!(
        db.get("paris").unwrap().as_deref(),
        Some(&b"48.85,2.35"[..])
    );
}
