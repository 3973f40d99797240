//! A store and its directory: the process changes its own, or someone moves, removes or replaces
//! the store's while it is open.

mod testing;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, OpenMode, OsIo};
use forerun_db::{Backups, Create, Db, Durability, Error, Options, Result, check, check_with_io};
use testing::hook_io::HookIo;
use testing::{STORE, open, small_options};

fn put_all(db: &Db, prefix: &str, count: usize) {
    for number in 0..count {
        db.put(format!("{prefix}{number:04}"), prefix).unwrap();
    }
}

/// How many keys of a closed store have each prefix.
#[track_caller]
fn counts<const N: usize>(path: &Path, prefixes: [&str; N]) -> [usize; N] {
    let db = Db::open(path, small_options().create(Create::Never)).unwrap();
    let counts = prefixes.map(|prefix| db.prefix(prefix).count());
    db.close().unwrap();
    let checked = check(path, &Options::default()).unwrap();
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    counts
}

#[track_caller]
fn is_gone<T>(result: Result<T>) {
    match result {
        Err(error) => {
            let error = match error {
                Error::Poisoned { cause } => cause.to_string(),
                other => other.to_string(),
            };
            let is_worded = error.contains("was removed or emptied while open");
            assert!(is_worded, "another error: {error}");
        }
        Ok(_) => panic!("it was let through"),
    }
}

#[test]
fn a_store_keeps_its_directory_when_the_process_changes_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let [here, there] = ["here", "there"].map(|name| directory.path().join(name));
    for (path, prefix) in [(&here, "a"), (&there, "b")] {
        fs::create_dir(path).unwrap();
        std::env::set_current_dir(path).unwrap();
        let db = Db::open("store", small_options()).unwrap();
        put_all(&db, prefix, 10);
        db.close().unwrap();
    }
    std::env::set_current_dir(&here).unwrap();
    let db = Db::open("store", small_options()).unwrap();
    let mut backups = Backups::open_or_create("backups").unwrap();
    put_all(&db, "c", 10);
    std::env::set_current_dir(&there).unwrap();
    assert_eq!(db.path(), here.join("store"));
    put_all(&db, "d", 100);
    db.flush().unwrap();
    db.compact().unwrap();
    backups.create(&db).unwrap();
    put_all(&db, "e", 10);
    db.close().unwrap();
    // A copy goes where the caller is now.
    backups.restore(None, "copy").unwrap();
    std::env::set_current_dir("/").unwrap();
    assert_eq!(
        counts(&here.join("store"), ["a", "b", "c", "d", "e"]),
        [10, 0, 10, 100, 10]
    );
    assert_eq!(
        counts(&there.join("store"), ["a", "b", "c", "d", "e"]),
        [0, 10, 0, 0, 0]
    );
    assert_eq!(counts(&there.join("copy"), ["a", "d", "e"]), [10, 100, 0]);
    assert!(here.join("backups").exists() && !there.join("backups").exists());
}

#[test]
fn a_renamed_store_goes_on_in_its_directory_and_leaves_a_new_one_of_its_name_alone() {
    for new_is_open in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let [path, moved] = ["store", "moved"].map(|name| directory.path().join(name));
        // One run's file is open at a time, so the others are reopened.
        let old = Db::open(&path, small_options().max_open_files(1)).unwrap();
        for prefix in ["a", "b"] {
            put_all(&old, prefix, 100);
            old.flush().unwrap();
        }
        fs::rename(&path, &moved).unwrap();
        let new = Db::open(&path, small_options()).unwrap();
        put_all(&new, "n", 100);
        let kept = new_is_open.then_some(new);
        put_all(&old, "c", 100);
        old.flush().unwrap();
        old.compact().unwrap();
        old.checkpoint(directory.path().join("copy")).unwrap();
        assert!(matches!(
            Db::open(&moved, small_options()),
            Err(Error::Locked { .. })
        ));
        assert_eq!(old.prefix("a").count(), 100);
        old.put_with("d", "d", Durability::Synced).unwrap();
        old.close().unwrap();
        drop(kept);
        assert_eq!(counts(&path, ["n", "a", "b", "c"]), [100, 0, 0, 0]);
        assert_eq!(
            counts(&moved, ["n", "a", "b", "c", "d"]),
            [0, 100, 100, 100, 1]
        );
        assert_eq!(
            counts(&directory.path().join("copy"), ["b", "c", "d"]),
            [100, 100, 0]
        );
    }
}

#[test]
fn a_copy_inside_a_renamed_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let [path, moved] = ["store", "moved"].map(|name| directory.path().join(name));
    let db = Db::open(&path, small_options()).unwrap();
    put_all(&db, "a", 10);
    fs::rename(&path, &moved).unwrap();
    let copies = [path.join("copy"), moved.join("copy"), moved.join("a/copy")];
    for new_is_there in [false, true] {
        for copy in &copies {
            let made = db.checkpoint(copy);
            let is_refused = matches!(made, Err(Error::InsideStore { .. }));
            assert!(is_refused, "{copy:?}, {new_is_there}: {made:?}");
        }
        if !new_is_there {
            fs::create_dir(&path).unwrap();
        }
    }
    db.checkpoint(directory.path().join("copy")).unwrap();
    let mut entries = fs::read_dir(&moved).unwrap();
    assert!(entries.all(|entry| entry.unwrap().file_type().unwrap().is_file()));
}

/// Removes the files of a directory, and leaves the directory.
fn empty(path: &Path) {
    for entry in fs::read_dir(path).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

#[test]
fn a_removed_store_refuses_changes_and_leaves_a_new_one_of_its_name_alone() {
    let removals: [fn(&Path); 2] = [|path| fs::remove_dir_all(path).unwrap(), empty];
    for (removal, remove) in removals.into_iter().enumerate() {
        // What the old process does first with its store.
        for first in 0..5 {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("store");
            let old = Db::open(&path, small_options().wal_segment_bytes(1 << 20)).unwrap();
            put_all(&old, "a", 100);
            old.flush().unwrap();
            put_all(&old, "b", 100);
            remove(&path);
            let new = Db::open(&path, small_options()).unwrap();
            put_all(&new, "n", 100);
            new.flush().unwrap();
            put_all(&new, "m", 100);
            new.close().unwrap();
            match first {
                0 => is_gone(old.flush()),
                1 => is_gone(old.put_with("c", "c", Durability::Synced)),
                2 => is_gone(old.checkpoint(directory.path().join("copy"))),
                3 => is_gone(old.keyspace("other").map(drop)),
                _ => {}
            }
            if (0..2).contains(&first) {
                is_gone(old.put("c", "c"));
            }
            assert_eq!(old.get("a0001").unwrap().as_deref(), Some(&b"a"[..]));
            match first {
                4 => drop(old),
                _ => is_gone(old.close()),
            }
            let case = format!("removal {removal}, first {first}");
            assert_eq!(
                counts(&path, ["a", "b", "n", "m"]),
                [0, 0, 100, 100],
                "{case}"
            );
        }
    }
}

#[test]
fn removed_backups_refuse_changes_and_leave_new_ones_alone() {
    let directory = tempfile::tempdir().unwrap();
    let [path, backups] = ["store", "backups"].map(|name| directory.path().join(name));
    let db = Db::open(&path, small_options()).unwrap();
    put_all(&db, "a", 100);
    let mut old = Backups::open_or_create(&backups).unwrap();
    old.create(&db).unwrap();
    empty(&backups);
    let mut new = Backups::open_or_create(&backups).unwrap();
    new.create(&db).unwrap();
    new.create(&db).unwrap();
    put_all(&db, "b", 100);
    is_gone(old.create(&db));
    is_gone(old.delete(1));
    assert_eq!(new.list().unwrap().backups.len(), 2);
    assert!(new.verify().unwrap().problems.is_empty());
}

#[test]
fn a_store_notices_a_new_lock_file_before_each_change() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    put_all(&db, "a", 10);
    io.take("/store/LOCK");
    let _lock = io.open("/store/LOCK".as_ref(), OpenMode::Create).unwrap();
    let before = io.files();
    is_gone(db.flush());
    is_gone(db.put("b", "b"));
    is_gone(db.close());
    assert_eq!(io.files(), before);
}

/// Makes two copies into `/copy` at once: the second as a whole before each change in turn that the
/// first makes. One succeeds, and its copy is complete.
fn race(make: impl Fn(Arc<dyn Io>, &str) -> Result<()> + Sync) {
    let mut at = 0;
    loop {
        let io = FaultIo::new();
        for name in ["a", "b"] {
            let path = format!("{STORE}-{name}");
            let db = Db::open_with_io(Arc::new(io.clone()), path, small_options()).unwrap();
            put_all(&db, name, 40);
            db.flush().unwrap();
            put_all(&db, name, 50);
            let backups = format!("/backups-{name}");
            let backups = Backups::open_with_io(Arc::new(io.clone()), backups, Create::IfMissing);
            backups.unwrap().create(&db).unwrap();
            db.close().unwrap();
        }
        let left = AtomicU64::new(at);
        let second = std::sync::Mutex::new(None);
        let first = std::thread::scope(|scope| {
            let (begin, begun) = std::sync::mpsc::channel::<()>();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let (io, make, second) = (&io, &make, &second);
            scope.spawn(move || {
                if begun.recv().is_ok() {
                    *second.lock().unwrap() = Some(make(Arc::new(io.clone()), "b"));
                    let _ = end.send(());
                }
            });
            let (begin, ended) = (std::sync::Mutex::new(begin), std::sync::Mutex::new(ended));
            let hook = HookIo::new(io, move |_, path| {
                if path.starts_with("/copy") && left.fetch_sub(1, Ordering::Relaxed) == 0 {
                    begin.lock().unwrap().send(()).unwrap();
                    ended.lock().unwrap().recv().unwrap();
                }
                Ok(())
            });
            make(Arc::new(hook), "a")
        });
        let Some(second) = second.into_inner().unwrap() else {
            assert!(at > 5, "there are some changes");
            return;
        };
        let winner = match (&first, &second) {
            (Ok(()), Err(Error::Locked { .. } | Error::AlreadyExists { .. })) => "a",
            (Err(Error::Locked { .. } | Error::AlreadyExists { .. }), Ok(())) => "b",
            other => panic!("change {at}: {other:?}"),
        };
        let io: Arc<dyn Io> = Arc::new(io.clone());
        let checked = check_with_io(Arc::clone(&io), "/copy", &small_options()).unwrap();
        assert!(checked.problems.is_empty(), "{:?}", checked.problems);
        let db = Db::open_with_io(io, "/copy", small_options().create(Create::Never)).unwrap();
        assert_eq!(db.prefix(winner).count(), 50, "change {at}");
        assert_eq!(db.iter().count(), 50, "change {at}");
        at += 1;
    }
}

#[test]
fn of_two_checkpoints_into_one_directory_one_succeeds() {
    race(|io, name| {
        let db = Db::open_with_io(io, format!("{STORE}-{name}"), small_options())?;
        db.checkpoint("/copy")
    });
}

#[test]
fn of_two_restores_into_one_directory_one_succeeds() {
    race(|io, name| {
        let backups = Backups::open_with_io(io, format!("/backups-{name}"), Create::Never)?;
        backups.restore(None, "/copy").map(drop)
    });
}

#[test]
fn an_open_directory_is_found_wherever_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let [path, moved] = ["dir", "moved"].map(|name| directory.path().join(name));
    fs::create_dir(&path).unwrap();
    let io = OsIo.open_dir(&path).unwrap().unwrap();
    fs::rename(&path, &moved).unwrap();
    fs::create_dir(&path).unwrap();
    let [a, b] = ["a", "b"].map(|name| path.join(name));
    io.open(&a, OpenMode::Create).unwrap();
    io.rename(&a, &b).unwrap();
    io.link(&b, &a).unwrap();
    assert_eq!(io.file_id(&a).unwrap(), io.file_id(&b).unwrap());
    io.remove(&b).unwrap();
    io.sync_dir(&path).unwrap();
    assert_eq!(io.list(&path).unwrap(), ["a"]);
    assert_eq!(OsIo.list(&moved).unwrap(), ["a"]);
    assert!(OsIo.list(&path).unwrap().is_empty());
    // Out of the directory, by name.
    io.link(&a, &moved.with_extension("copy")).unwrap();
    fs::remove_dir_all(&moved).unwrap();
    let created = io.open(&a, OpenMode::Create).unwrap_err();
    assert_eq!(created.kind(), std::io::ErrorKind::NotFound);
}
