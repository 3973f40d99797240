//! A store on a read-only file system is read and checked, and nothing in its directory changes.

use crate::testing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_db::forward_io;
use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, IoFile, OpenMode};
use forerun_db::{
    Access, CheckReport, Db, Durability, Error, KeyspaceOptions, Options, Result, Values,
    WriteBatch, check_with_io,
};
use testing::{STORE, entries, open, small_options, tiny_options};

/// The error number of a read-only file system.
const EROFS: i32 = 30;

/// A file system that is mounted for reading only.
#[derive(Clone, Debug)]
struct ReadOnlyIo(FaultIo);

fn refused<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(EROFS))
}

impl Io for ReadOnlyIo {
    forward_io!(this => this.0; list, boot_id);

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        match mode {
            OpenMode::Read | OpenMode::ReadImmutable => self.0.open(path, mode),
            _ => refused(),
        }
    }
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        refused()
    }
    fn link(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }
}

fn open_read_only(io: &FaultIo, options: &Options) -> Result<Db> {
    let options = options.clone().access(Access::ReadOnly);
    Db::open_with_io(Arc::new(ReadOnlyIo(io.clone())), STORE, options)
}

fn check(io: &FaultIo) -> Result<CheckReport> {
    check_with_io(Arc::new(ReadOnlyIo(io.clone())), STORE, &tiny_options())
}

/// All files, with their bytes.
fn files(io: &FaultIo) -> Vec<(PathBuf, Vec<u8>)> {
    let files = io.files().into_iter();
    files
        .map(|path| (path.clone(), io.read(&path).unwrap()))
        .collect()
}

/// A store with runs on several levels, and enough in the log for several memtables.
fn store(is_closed: bool) -> FaultIo {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let other = db.keyspace("other").unwrap();
    for number in 0..300_u32 {
        db.put(&number.to_be_bytes(), &[number as u8; 40]).unwrap();
    }
    db.delete_range(&10_u32.to_be_bytes(), &20_u32.to_be_bytes())
        .unwrap();
    db.compact().unwrap();
    // With a larger memtable, so that all of this stays in the log.
    db.close().unwrap();
    drop(other);
    let db = open(&io, &small_options()).unwrap();
    let other = db.keyspace("other").unwrap();
    for number in 0..200_u32 {
        other.put(&number.to_be_bytes(), &[7; 40]).unwrap();
        db.put(&(2 * number).to_be_bytes(), b"newer").unwrap();
    }
    db.delete_range(&100_u32.to_be_bytes(), &120_u32.to_be_bytes())
        .unwrap();
    if is_closed {
        db.close().unwrap();
        io
    } else {
        io.kill()
    }
}

#[test]
fn a_store_on_a_read_only_file_system_reads_as_it_does_elsewhere_and_is_left_alone() {
    for is_closed in [true, false] {
        let io = store(is_closed);
        // Leftovers of a crash: a run that no manifest names, and a file that was being written.
        io.write("/store/run-000900.run", b"torn");
        io.write("/store/MANIFEST.new", b"torn");
        let before = files(&io);
        // With memtables of the original size, and far smaller ones.
        for options in [small_options(), tiny_options()] {
            let db = open_read_only(&io, &options).unwrap();
            let own = entries(db.iter());
            let other = entries(db.keyspace("other").unwrap().iter());
            let keys: Vec<_> = (0..420_u32).map(u32::to_be_bytes).collect();
            let mut values = Values::new();
            db.multi_get(&keys, &mut values).unwrap();
            for (place, key) in keys.iter().enumerate() {
                let wanted = own.iter().find(|of| of.0 == key).map(|of| &of.1[..]);
                assert_eq!(values.get(place).unwrap(), wanted);
                assert_eq!(db.get(key).unwrap().as_deref(), wanted);
                assert_eq!(db.snapshot().get(key).unwrap().as_deref(), wanted);
            }
            assert!(db.verify().unwrap().problems.is_empty());
            db.wait_idle().unwrap();
            let closed = db.clone();
            db.close().unwrap();
            assert_eq!(entries(closed.iter()), own);
            drop(closed);

            let copy = FaultIo::new();
            files(&io).iter().for_each(|(path, bytes)| {
                let _ = copy.create_dir(STORE.as_ref());
                copy.write(path, bytes);
            });
            let elsewhere = open(&copy, &small_options()).unwrap();
            assert_eq!(entries(elsewhere.iter()), own, "closed: {is_closed}");
            assert_eq!(entries(elsewhere.keyspace("other").unwrap().iter()), other);
        }
        let checked = check(&io).unwrap();
        assert!(checked.problems.is_empty(), "{:?}", checked.problems);
        assert_eq!(
            (checked.leftovers, checked.keyspaces),
            (1, vec!["other".to_owned()])
        );
        assert!(files(&io) == before, "a file was changed");
    }
}

#[test]
fn every_write_to_a_read_only_store_is_refused_as_read_only() {
    let io = store(false);
    let before = files(&io);
    let db = open_read_only(&io, &small_options()).unwrap();
    let other = db.keyspace("other").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(b"key", b"value").unwrap();
    let mut ingestion = db.ingest();
    let refusals = [
        ("put", db.put(b"key", b"value")),
        ("put in a keyspace", other.put(b"key", b"value")),
        ("delete", db.delete(b"key")),
        ("delete_range", db.delete_range(b"a", b"b")),
        ("write", db.write(&batch, Durability::Buffered).map(drop)),
        ("flush_wal", db.flush_wal()),
        ("flush", db.flush()),
        ("compact", db.compact()),
        ("checkpoint", db.checkpoint("/copy")),
        ("keyspace", db.keyspace("new").map(drop)),
        (
            "keyspace_with",
            db.keyspace_with("new", KeyspaceOptions::default())
                .map(drop),
        ),
        ("drop_keyspace", db.drop_keyspace("other")),
        ("ingest", ingestion.add(b"key", b"value")),
    ];
    for (what, refused) in refusals {
        assert!(
            matches!(refused, Err(Error::ReadOnly { .. })),
            "{what}: {refused:?}"
        );
    }
    drop(ingestion);
    assert!(!entries(other.iter()).is_empty());
    assert_eq!(db.get(b"key").unwrap(), None);
    db.close().unwrap();
    assert!(files(&io) == before, "a file was changed");
}

#[test]
fn check_reports_a_torn_log_tail_and_keeps_it() {
    let io = store(false);
    let last = io
        .files()
        .into_iter()
        .rfind(|path| path.extension() == Some("log".as_ref()));
    let last = last.unwrap();
    let mut bytes = io.read(&last).unwrap();
    bytes.truncate(bytes.len() - 3);
    io.write(&last, &bytes);
    let before = files(&io);
    let db = open_read_only(&io, &small_options()).unwrap();
    assert!(db.recovery().dropped_tail.is_some());
    // The deletion that was cut off.
    assert!(db.get(&110_u32.to_be_bytes()).unwrap().is_some());
    drop(db);
    assert!(files(&io) == before, "a file was changed");
}

#[test]
fn a_log_larger_than_memory_is_refused() {
    let options = tiny_options().memory_limit_bytes(8 << 10);
    let opened = open_read_only(&store(false), &options);
    assert!(
        matches!(opened, Err(Error::MemoryLimit { .. })),
        "{opened:?}"
    );
}

#[test]
fn opening_a_missing_store_read_only_is_an_error() {
    let io = FaultIo::new();
    let opened = open_read_only(&io, &small_options());
    assert!(matches!(opened, Err(Error::NotAStore { .. })), "{opened:?}");
    assert_eq!(io.files(), [] as [PathBuf; 0]);
}

#[test]
fn readers_share_a_store_and_a_writer_has_it_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let reading = small_options().access(Access::ReadOnly);
    let writer = Db::open(&path, small_options()).unwrap();
    writer.put(b"key", b"value").unwrap();
    let is_locked = |opened: Result<Db>| matches!(opened, Err(Error::Locked { .. }));
    assert!(is_locked(Db::open(&path, reading.clone())));
    writer.close().unwrap();
    let readers = [(); 2].map(|()| Db::open(&path, reading.clone()).unwrap());
    assert!(is_locked(Db::open(&path, small_options())));
    for reader in readers {
        assert_eq!(reader.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    }
    // A copy may lack the lock file.
    std::fs::remove_file(path.join("LOCK")).unwrap();
    let reader = Db::open(&path, reading).unwrap();
    assert_eq!(reader.iter().count(), 1);
    assert!(!path.join("LOCK").exists());
}
