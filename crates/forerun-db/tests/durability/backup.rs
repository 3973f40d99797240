//! Backups: several backups of a store in one directory share their common runs and restore
//! exactly.

use crate::testing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Background, Backups, Create, Db, Error, FileCopyOptions, KeyspaceOptions, ReverseBytewise,
    WalMode, WriteBatch, check_with_io,
};
use testing::{STORE, open, tiny_options};

const BACKUPS: &str = "/backups";

fn backups(io: &FaultIo) -> Backups {
    Backups::open_with_io(Arc::new(io.clone()), BACKUPS, Create::IfMissing).unwrap()
}

/// The contents of a store: all entries of each keyspace.
type Contents = BTreeMap<String, Vec<(Vec<u8>, Vec<u8>)>>;

fn contents(db: &Db) -> Contents {
    let mut all = Contents::new();
    for name in ["", "reverse", "other"] {
        let keyspace = match name {
            "" => Some(db.default_keyspace()),
            name => db.find_keyspace(name),
        };
        if let Some(keyspace) = keyspace {
            all.insert(name.into(), keyspace.iter().map(Result::unwrap).collect());
        }
    }
    all
}

/// Writes a round of entries to two keyspaces. Some overwrite entries of earlier rounds, and some
/// go to both keyspaces in one batch.
fn write_round(db: &Db, round: u64) {
    let comparator = Arc::new(ReverseBytewise);
    let options = KeyspaceOptions::default()
        .comparator(comparator)
        .run(tiny_options().run)
        .tree(tiny_options().tree);
    let reverse = db.keyspace_with("reverse", options).unwrap();
    for i in 0..60_u64 {
        let key = ((round * 37 + i * 11) % 150).to_be_bytes();
        // Values that do not compress.
        let words =
            (0..12).map(|word| (round << 32 | i << 8 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let value: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let mut batch = WriteBatch::new();
        batch.put(&key, &value).unwrap();
        batch.keyspace(&reverse).put(&key, &value[..20]).unwrap();
        if i % 9 == 0 {
            batch.delete(&(round + i).to_be_bytes()).unwrap();
        }
        db.write(&batch, forerun_db::Durability::Buffered).unwrap();
    }
}

/// Names of the files in the directory of backups with this ending.
fn files(io: &FaultIo, end: &str) -> Vec<PathBuf> {
    let in_dir =
        |path: &PathBuf| path.starts_with(BACKUPS) && path.to_string_lossy().ends_with(end);
    io.files().into_iter().filter(in_dir).collect()
}

fn restored(io: &FaultIo, backups: &Backups, number: Option<u64>, into: &str) -> Contents {
    backups.restore(number, into).unwrap();
    let checked = check_with_io(Arc::new(io.clone()), into, &tiny_options()).unwrap();
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    let db = Db::open_with_io(Arc::new(io.clone()), into, tiny_options()).unwrap();
    let contents = contents(&db);
    // The restored store works on its own.
    db.put(b"later", b"value").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    contents
}

#[test]
fn each_backup_restores_its_point_in_time() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let mut backups = backups(&io);
    let mut then = Vec::new();
    for round in 0..5 {
        write_round(&db, round);
        match round {
            1 => db.compact().unwrap(),
            2 => db
                .delete_range(&40_u64.to_be_bytes(), &60_u64.to_be_bytes())
                .unwrap(),
            3 => db.drop_keyspace("reverse").unwrap(),
            _ => {}
        }
        let made = backups.create(&db).unwrap();
        assert_eq!(made.number, round + 1);
        assert_eq!(made.last_sequence, db.stats().last_sequence);
        then.push((made, contents(&db)));
    }
    // Later changes of the store do not affect its backups.
    db.delete_range(b"", &[0xff; 9]).unwrap();
    db.compact().unwrap();
    db.close().unwrap();
    for (made, contents) in &then {
        let into = format!("/restored-{}", made.number);
        assert_eq!(
            restored(&io, &backups, Some(made.number), &into),
            *contents,
            "{made:?}"
        );
    }
    assert_eq!(restored(&io, &backups, None, "/newest"), then[4].1);
    let checked = backups.verify().unwrap();
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert_eq!((checked.backups, checked.leftovers), (5, 0));
    assert_eq!(checked.runs, files(&io, ".run").len());
}

#[test]
fn files_of_an_earlier_backup_are_not_copied_again() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    for round in 0..4 {
        write_round(&db, round);
    }
    db.compact().unwrap();
    let mut backups = backups(&io);
    let first = backups.create(&db).unwrap();
    assert_eq!(first.own_bytes, first.bytes);
    let (runs, before) = (files(&io, ".run"), io.calls());
    let again = backups.create(&db).unwrap();
    assert_eq!(files(&io, ".run"), runs);
    assert!(
        again.own_bytes < 2_000 && again.bytes > 10 * again.own_bytes,
        "{again:?}"
    );
    assert!(
        io.calls() - before < 30 + 4 * runs.len() as u64,
        "no run was read"
    );

    // A small addition adds little.
    db.put(b"more", &[7; 300]).unwrap();
    let more = backups.create(&db).unwrap();
    assert_eq!(files(&io, ".run").len(), runs.len() + 1);
    assert!(more.own_bytes < 4_000, "{more:?}");
    let list = backups.list().unwrap().backups;
    assert_eq!(
        list.iter().map(|of| of.number).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    // By now, the first backup shares all its files with the others.
    assert!(list[0].own_bytes < 2_000, "{list:?}");

    // Another store's runs have the same names there, but the backups tell them apart.
    let other = Db::open_with_io(Arc::new(io.clone()), "/other", tiny_options()).unwrap();
    write_round(&other, 9);
    backups.create(&other).unwrap();
    assert_eq!(
        restored(&io, &backups, None, "/restored-other"),
        contents(&other)
    );
    assert_eq!(
        restored(&io, &backups, Some(3), "/restored-3"),
        contents(&db)
    );
}

#[test]
fn pruning_removes_only_files_no_other_backup_needs() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let mut backups = backups(&io);
    let mut then = Vec::new();
    for round in 0..5 {
        write_round(&db, round);
        backups.create(&db).unwrap();
        then.push(contents(&db));
    }
    io.write("/backups/notes.txt", b"mine");
    let bytes_of = |files: &[PathBuf]| -> u64 {
        files
            .iter()
            .map(|path| io.read(path).unwrap().len() as u64)
            .sum()
    };
    let before = bytes_of(&files(&io, ".run"));
    let removed = backups.purge_old(2).unwrap();
    assert_eq!(removed.backups, [1, 2, 3]);
    assert!(removed.files > 0);
    assert_eq!(before - bytes_of(&files(&io, ".run")), removed.bytes);
    for number in [4, 5] {
        let into = format!("/restored-{number}");
        assert_eq!(
            restored(&io, &backups, Some(number), &into),
            then[number as usize - 1]
        );
    }
    assert!(matches!(
        backups.restore(Some(3), "/nowhere"),
        Err(Error::NoBackup {
            number: Some(3),
            ..
        })
    ));
    assert!(io.read("/nowhere/FORMAT").is_none());

    // Deletes only the newer of the two.
    assert_eq!(backups.delete(4).unwrap().backups, [4]);
    assert!(matches!(backups.delete(4), Err(Error::NoBackup { .. })));
    assert_eq!(backups.purge_old(7).unwrap().backups, []);
    assert!(matches!(backups.purge_old(0), Err(Error::BadOption { .. })));
    let only = &backups.list().unwrap().backups[0];
    assert_eq!(only.own_bytes, only.bytes);
    assert_eq!(restored(&io, &backups, None, "/last"), then[4]);

    backups.delete(5).unwrap();
    assert_eq!(files(&io, ".run"), Vec::<PathBuf>::new());
    assert!(matches!(
        backups.restore(None, "/none"),
        Err(Error::NoBackup { number: None, .. })
    ));
    assert_eq!(io.read("/backups/notes.txt").as_deref(), Some(&b"mine"[..]));
}

#[test]
fn a_changed_bit_anywhere_is_found_named_and_never_restored() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let mut backups = backups(&io);
    write_round(&db, 0);
    db.compact().unwrap();
    backups.create(&db).unwrap();
    let mut then = vec![contents(&db)];
    write_round(&db, 1);
    backups.create(&db).unwrap();
    then.push(contents(&db));
    let all = files(&io, "");
    for path in all
        .iter()
        .filter(|path| !path.ends_with("LOCK") && !path.ends_with("BACKUPS"))
    {
        let good = io.read(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for at in (0..good.len()).step_by(good.len() / 23 + 1) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            io.write(path, &bad);
            let problems = match backups.verify() {
                Ok(checked) => checked.problems,
                // The version's own checksum is valid then: a newer release may have written it.
                Err(error) => vec![error],
            };
            assert_eq!(problems.len(), 1, "{name} at {at}: {problems:?}");
            assert!(problems[0].to_string().contains(&name), "{}", problems[0]);
            // Each backup is rejected or restored as it was, and at least one is rejected.
            let mut refused = 0;
            for number in [1, 2] {
                let into = format!("/restored-{name}-{at}-{number}");
                match backups.restore(Some(number), &into) {
                    Err(error) => {
                        assert!(error.to_string().contains(&name), "{error}");
                        assert!(io.read(Path::new(&into).join("FORMAT")).is_none());
                        refused += 1;
                    }
                    Ok(_) => {
                        let io = Arc::new(io.clone());
                        let db = Db::open_with_io(io, &into, tiny_options()).unwrap();
                        assert_eq!(contents(&db), then[number as usize - 1], "{name} at {at}");
                    }
                }
            }
            assert!(refused > 0, "{name} at {at}");
        }
        io.write(path, &good[..good.len() - 1]);
        assert_eq!(backups.verify().unwrap().problems.len(), 1);
        io.take(path);
        let checked = backups.verify().unwrap();
        assert_eq!(checked.problems.len(), usize::from(name.ends_with(".run")));
        io.write(path, &good);
    }
    assert!(backups.verify().unwrap().problems.is_empty());
}

#[test]
fn no_file_is_removed_while_a_damaged_backup_record_exists() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let mut backups = backups(&io);
    for round in 0..3 {
        write_round(&db, round);
        db.compact().unwrap();
        backups.create(&db).unwrap();
    }
    let then = contents(&db);
    let mut bytes = io.read("/backups/backup-000002").unwrap();
    bytes[60] ^= 1;
    io.write("/backups/backup-000002", &bytes);
    let list = backups.list().unwrap();
    assert_eq!(list.backups.len(), 2);
    assert!(matches!(
        &list.damaged[..],
        [(2, Error::CorruptFile { .. })]
    ));
    // The damaged backup does not count, and its files stay because it is unknown which it needs.
    let before = files(&io, ".run");
    assert_eq!(backups.purge_old(2).unwrap().backups, []);
    assert_eq!(files(&io, ".run"), before);
    assert_eq!(backups.delete(1).unwrap().files, 0);
    let removed = backups.delete(2).unwrap();
    assert!(removed.files > 0);
    assert_eq!(restored(&io, &backups, None, "/restored"), then);
    // If the newest backup is damaged, no other is used instead.
    let mut bytes = io.read("/backups/backup-000003").unwrap();
    bytes[8] = 9;
    io.write("/backups/backup-000003", &bytes);
    assert!(matches!(
        backups.restore(None, "/no"),
        Err(Error::CorruptFile { .. })
    ));
}

#[test]
fn damage_in_the_store_does_not_become_a_backup() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    (0..4).for_each(|round| write_round(&db, round));
    db.compact().unwrap();
    db.close().unwrap();
    let is_run = |path: &PathBuf| {
        path.starts_with(STORE) && path.extension().is_some_and(|end| end == "run")
    };
    // Damages a leaf: the pages above it are read when the store is opened.
    let runs = io.files().into_iter().filter(is_run);
    let run = runs
        .max_by_key(|path| io.read(path).unwrap().len())
        .unwrap();
    let mut bytes = io.read(&run).unwrap();
    bytes[600] ^= 4;
    io.write(&run, &bytes);
    let db = open(&io, &tiny_options()).unwrap();
    let mut backups = backups(&io);
    let refused = backups.create(&db).unwrap_err();
    assert!(
        matches!(&refused, Error::CorruptFile { path, .. } if *path == run),
        "{refused}"
    );
    assert_eq!(backups.list().unwrap().backups, []);
    assert_eq!(files(&io, ".run"), Vec::<PathBuf>::new());
    db.close().unwrap();
    bytes[600] ^= 4;
    io.write(&run, &bytes);
    backups
        .create(&open(&io, &tiny_options()).unwrap())
        .unwrap();
}

#[test]
fn a_run_that_a_backup_has_lost_is_copied_again() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    write_round(&db, 0);
    let mut backups = backups(&io);
    backups.create(&db).unwrap();
    let runs = files(&io, ".run");
    io.take(&runs[0]);
    let cut = io.read(&runs[1]).unwrap();
    io.write(&runs[1], &cut[..50]);
    assert_eq!(backups.verify().unwrap().problems.len(), 2);
    backups.create(&db).unwrap();
    assert!(backups.verify().unwrap().problems.is_empty());
    assert_eq!(restored(&io, &backups, Some(1), "/restored"), contents(&db));
}

#[test]
fn a_store_without_a_log_and_one_without_entries_are_backed_up_too() {
    let io = FaultIo::new();
    let mut backups = backups(&io);
    let empty = open(&io, &tiny_options()).unwrap();
    let made = backups.create(&empty).unwrap();
    assert_eq!((made.runs, made.last_sequence), (0, 0));
    assert_eq!(restored(&io, &backups, None, "/empty"), contents(&empty));

    let options = tiny_options().wal(WalMode::Off);
    let db = Db::open_with_io(Arc::new(io.clone()), "/unlogged", options).unwrap();
    write_round(&db, 0);
    let then = contents(&db);
    backups.create(&db).unwrap();
    assert_eq!(restored(&io, &backups, None, "/restored"), then);
}

#[test]
fn a_backup_directory_is_recognised_and_opened_once() {
    let io = FaultIo::new();
    let open_at = |path: &str, create| Backups::open_with_io(Arc::new(io.clone()), path, create);
    let db = open(&io, &tiny_options()).unwrap();
    let refused = |path, create, why: &str| {
        let error = open_at(path, create).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(
        STORE,
        Create::IfMissing,
        "/store is not a directory of backups: it holds",
    );
    refused("/nowhere", Create::Never, "there is no such directory");
    let backups = open_at("/deep/er/backups", Create::IfMissing).unwrap();
    refused(
        "/deep/er/backups",
        Create::Never,
        "is already open (by process",
    );
    refused("/deep/er", Create::IfMissing, "it holds \"backups\"");
    drop(backups);
    refused("/deep/er/backups", Create::MustBeNew, "already");
    let mut backups = open_at("/deep/er/backups", Create::Never).unwrap();
    // The directory is not a store either, and a store is restored only to an empty place.
    assert!(matches!(
        Db::open_with_io(Arc::new(io.clone()), "/deep/er/backups", tiny_options()),
        Err(Error::NotAStore { .. })
    ));
    backups.create(&db).unwrap();
    assert!(matches!(
        backups.restore(None, STORE),
        Err(Error::AlreadyExists { .. })
    ));
    drop(backups);
    // Written by a newer release.
    let mut mark = io.read("/deep/er/backups/BACKUPS").unwrap();
    mark[8] = 2;
    let checksum = crc32c::crc32c(&mark[..12]);
    mark[12..16].copy_from_slice(&checksum.to_le_bytes());
    io.write("/deep/er/backups/BACKUPS", &mark);
    assert!(matches!(
        open_at("/deep/er/backups", Create::IfMissing),
        Err(Error::NewerFormat { found: 2, .. })
    ));
}

#[test]
fn work_reports_its_progress() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    write_round(&db, 0);
    let mut backups = backups(&io);
    let reported = Arc::new([const { AtomicU64::new(0) }; 2]);
    let watched = Arc::clone(&reported);
    let options = FileCopyOptions::default().on_progress(move |progress| {
        watched[0].store(progress.done_bytes, Ordering::Relaxed);
        watched[1].store(progress.total_bytes, Ordering::Relaxed);
    });
    backups.set_copy_options(options);
    let last = || [0, 1].map(|at| reported[at].swap(0, Ordering::Relaxed));
    backups.create(&db).unwrap();
    let [done, total] = last();
    assert!(done > 0 && done == total, "{done} of {total}");
    backups.verify().unwrap();
    assert_eq!(last(), [done, total]);
    backups.restore(None, "/restored").unwrap();
    assert_eq!(last(), [done, total]);
}

#[test]
fn writers_go_on_while_backups_are_made_and_each_has_whole_batches() {
    let io = FaultIo::new();
    let options = tiny_options()
        .memory_limit_bytes(1 << 20)
        .memtable_bytes(32 << 10)
        .background(Background::Threads);
    let db = open(&io, &options).unwrap();
    let mut backups = backups(&io);
    let users = db.keyspace("other").unwrap();
    forerun_core::sync::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0..600_u64 {
                let mut batch = WriteBatch::new();
                let key = (i % 50).to_be_bytes();
                batch
                    .put(&key, &[&i.to_le_bytes()[..], &[1; 80]].concat())
                    .unwrap();
                batch.keyspace(&users).put(&key, &i.to_le_bytes()).unwrap();
                db.write(&batch, forerun_db::Durability::Buffered).unwrap();
            }
        });
        while !writer.is_finished() {
            backups.create(&db).unwrap();
        }
    });
    let last = backups.create(&db).unwrap();
    for made in backups.list().unwrap().backups {
        let into = format!("/restored-{}", made.number);
        let contents = restored(&io, &backups, Some(made.number), &into);
        let firsts = |name: &str| -> Vec<(Vec<u8>, Vec<u8>)> {
            let of = contents[name].iter().cloned();
            of.map(|(key, value)| (key, value[..8].to_vec())).collect()
        };
        assert_eq!(firsts(""), firsts("other"), "{made:?}");
        if made.number == last.number {
            assert_eq!(contents[""].len(), 50);
        }
    }
}
