//! Defects that `forerun-lab sim` found in the store, each as a scenario without a simulation.

use crate::testing;

use std::cmp::Ordering;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use forerun_db::forward_io;
use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::io::{Io, OpenMode};
use forerun_db::{Backups, Comparator, Create, Db, Durability, Error, Iter, Options};
use testing::{STORE, open, small_options, tiny_options};

/// Orders by bytes, but ignores case; panics while it is switched on.
#[derive(Default)]
struct Folding {
    panics: AtomicBool,
}

impl Comparator for Folding {
    fn name(&self) -> &str {
        "test.folding"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        assert!(!self.panics.load(SeqCst), "the user's comparator");
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }
}

fn folding(options: Options) -> (Arc<Folding>, Options) {
    let order = Arc::new(Folding::default());
    let options = options.comparator(Arc::clone(&order) as Arc<dyn Comparator>);
    (order, options)
}

fn backward(mut iter: Iter) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut entries = Vec::new();
    while let Some(entry) = iter.next_entry_back().unwrap() {
        entries.push((entry.key.to_vec(), entry.value.to_vec()));
    }
    entries.reverse();
    entries
}

#[test]
fn an_iterator_yields_matching_keys_and_values_from_both_ends() {
    let (_, options) = folding(small_options());
    let db = open(&FaultIo::new(), &options).unwrap();
    let check = |db: &Db, what: &str| {
        let forward: Vec<_> = db.iter().map(Result::unwrap).collect();
        assert_eq!(forward.last().unwrap().0, b"KEY", "{what}");
        assert_eq!(backward(db.iter()), forward, "{what}");
        let snapshot = db.snapshot();
        assert_eq!(backward(snapshot.iter()), forward, "{what}");
    };
    db.put(b"a", b"1").unwrap();
    for (key, value) in [(b"key", "first"), (b"Key", "second"), (b"KEY", "last")] {
        db.put(key, value.as_bytes()).unwrap();
    }
    check(&db, "in a memtable");
    db.flush().unwrap();
    check(&db, "in a run");
    // So many versions that stepping over them gives way to a search.
    for n in 0..100 {
        db.put(if n % 2 == 0 { b"kEY" } else { b"KEY" }, b"many")
            .unwrap();
    }
    check(&db, "in a run and a memtable");
    db.compact().unwrap();
    check(&db, "compacted");
}

#[test]
fn a_comparator_that_panics_while_runs_are_verified_is_an_error() {
    let (order, options) = folding(tiny_options());
    let io = FaultIo::new();
    let db = open(&io, &options).unwrap();
    for n in 0..50_u32 {
        db.put(format!("{n:04}").as_bytes(), &[1; 100]).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let mut backups =
        Backups::open_with_io(Arc::new(io.clone()), "/backups", Create::IfMissing).unwrap();
    order.panics.store(true, SeqCst);
    let is_reported = |error: Error| {
        let text = error.to_string();
        assert!(matches!(error, Error::Panicked { .. }), "{text}");
        assert!(text.contains("the user's comparator"), "{text}");
    };
    is_reported(db.verify().unwrap_err());
    is_reported(backups.create(&db).unwrap_err());
    order.panics.store(false, SeqCst);
    // Nothing was changed, so nothing is half done.
    assert!(db.verify().unwrap().problems.is_empty());
    let made = backups.create(&db).unwrap();
    assert_eq!(backups.list().unwrap().backups.len(), 1);
    backups.restore(Some(made.number), "/restored").unwrap();
    db.put(b"more", b"").unwrap();
    assert!(Db::open_with_io(Arc::new(io), STORE, options).is_err());
}

#[test]
fn a_checkpoint_never_holds_a_write_that_failed() {
    let options = small_options();
    // The write to the log, its sync, and any call before them.
    for call in 0..4 {
        let io = FaultIo::new();
        let db = open(&io, &options).unwrap();
        db.put_with(b"kept", b"1", Durability::Synced).unwrap();
        db.flush().unwrap();
        io.fail_call(io.calls() + call, Fault::Fail(EIO));
        let has_failed = db.put_with(b"failed", b"2", Durability::Synced).is_err();
        assert_eq!(db.get(b"failed").unwrap().is_none(), has_failed);
        match db.checkpoint("/copy") {
            Ok(()) => {
                let copy = Db::open_with_io(Arc::new(io), "/copy", options.clone()).unwrap();
                assert_eq!(copy.get(b"kept").unwrap().as_deref(), Some(&b"1"[..]));
                let is_there = copy.get(b"failed").unwrap().is_some();
                assert_eq!(is_there, !has_failed, "failing call {call}");
            }
            Err(Error::Poisoned { .. }) => {
                assert!(has_failed);
                assert!(!io.files().iter().any(|path| path.starts_with("/copy")));
            }
            Err(error) => assert!(!has_failed, "failing call {call}: {error}"),
        }
    }
}

/// A file system on which another process creates the store right after its directory was listed
/// with only a lock file in it.
#[derive(Debug)]
struct CreatedMeanwhile {
    disk: FaultIo,
    was_created: AtomicBool,
}

impl Io for CreatedMeanwhile {
    forward_io!(this => this.disk; open, create_dir, rename, remove, link, sync_dir, boot_id);

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let names = self.disk.list(dir)?;
        if dir == Path::new(STORE) && names == ["LOCK"] && !self.was_created.swap(true, SeqCst) {
            drop(open(&self.disk, &small_options()).unwrap());
        }
        Ok(names)
    }
}

#[test]
fn a_store_created_concurrently_is_not_a_foreign_directory() {
    let disk = FaultIo::new();
    disk.create_dir(STORE.as_ref()).unwrap();
    drop(disk.open(&Path::new(STORE).join("LOCK"), OpenMode::Create));
    let io = Arc::new(CreatedMeanwhile {
        disk,
        was_created: AtomicBool::new(false),
    });
    let opened = Db::open_with_io(Arc::clone(&io) as Arc<dyn Io>, STORE, small_options());
    assert!(io.was_created.load(SeqCst));
    opened.unwrap().put(b"key", b"value").unwrap();
}
