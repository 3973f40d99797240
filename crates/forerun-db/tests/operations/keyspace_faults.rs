//! Keyspaces under faults: a power loss at every call while batches span keyspaces and keyspaces
//! are created and dropped; damaged runs; a lost manifest. Also many threads: a snapshot sees all
//! of a batch or none of it, whatever its keyspaces.

use crate::testing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_db::io::fault::{Fault, FaultIo};
use forerun_db::{
    Background, Db, Durability, Error, KeyspaceOptions, Options, ReverseBytewise, TreeOptions,
    WriteBatch, check_with_io, repair_with_io,
};
use testing::{STORE, open, small_options, tiny_options, with_and_without_index};

const NAMES: [&str; 3] = ["a", "b", "reverse"];

fn keyspace(db: &Db, name: &str) -> forerun_db::Result<forerun_db::Keyspace> {
    let options = KeyspaceOptions::default()
        .run(tiny_options().run)
        .tree(tiny_options().tree);
    match name {
        "reverse" => {
            let comparator = Arc::new(ReverseBytewise);
            db.keyspace_with(name, options.comparator(comparator))
        }
        _ => db.keyspace(name),
    }
}

/// The results that the script got.
#[derive(Debug, Default)]
struct Acknowledged {
    /// For each batch: `None` if it failed, otherwise whether it was durable at the end.
    batches: Vec<Option<bool>>,
    /// Whether dropping the keyspace `gone` was acknowledged, and whether it was begun.
    dropped: bool,
    dropping: bool,
}

/// Batches across all keyspaces, each with one entry under its number in each keyspace; `gone`
/// exists for a while.
fn run(io: &FaultIo, options: &Options, acknowledged: &mut Acknowledged) {
    let Ok(db) = open(io, options) else { return };
    for i in 0..12_u8 {
        if i == 7 {
            acknowledged.dropping = true;
            acknowledged.dropped = db.drop_keyspace("gone").is_ok();
        }
        let durability = match i % 3 {
            1 => Durability::Synced,
            _ => Durability::Buffered,
        };
        let mut batch = WriteBatch::new();
        let mut add = || -> forerun_db::Result<()> {
            for name in NAMES {
                batch.keyspace(&keyspace(&db, name)?).put(&[i], &[i; 150])?;
            }
            if i < 7 {
                batch.keyspace(&db.keyspace("gone")?).put(&[i], &[i; 150])?;
            }
            batch.put(&[i], &[i; 150])?;
            db.write(&batch, durability).map(drop)
        };
        let written = add().is_ok();
        acknowledged.batches.push(written.then_some(false));
        if written && durability == Durability::Synced {
            acknowledged
                .batches
                .iter_mut()
                .flatten()
                .for_each(|durable| *durable = true);
        }
    }
    let _ = db.close();
}

/// Each batch is there completely or not at all, and every batch that `needed` selects is there.
fn check(db: &Db, acknowledged: &Acknowledged, needed: impl Fn(bool) -> bool, case: &str) {
    let is_there = |name: Option<&str>, i: u8| {
        let keyspace = match name {
            None => Some(db.default_keyspace()),
            Some(name) => db.find_keyspace(name),
        };
        let value = keyspace.and_then(|of| of.get(&[i]).unwrap());
        assert!(
            value.as_ref().is_none_or(|value| *value == [i; 150]),
            "{case}"
        );
        value.is_some()
    };
    for (i, outcome) in acknowledged.batches.iter().enumerate() {
        let own = is_there(None, i as u8);
        for name in NAMES {
            assert_eq!(
                is_there(Some(name), i as u8),
                own,
                "{case}: half of batch {i}"
            );
        }
        if i < 7 && db.find_keyspace("gone").is_some() {
            assert_eq!(
                is_there(Some("gone"), i as u8),
                own,
                "{case}: half of batch {i}"
            );
        }
        if outcome.is_some_and(&needed) {
            assert!(own, "{case}: batch {i} is lost");
        }
    }
    if acknowledged.dropped || !acknowledged.dropping && acknowledged.batches.is_empty() {
        assert!(db.find_keyspace("gone").is_none(), "{case}");
    }
    if !acknowledged.dropping && acknowledged.batches.first().is_some_and(Option::is_some) {
        assert!(
            db.find_keyspace("gone").is_some() || acknowledged.batches.len() < 2,
            "{case}"
        );
    }
}

#[test]
fn power_loss_at_any_call_keeps_a_batch_across_keyspaces_atomic() {
    let [with, without] = with_and_without_index(&small_options());
    for (options, least_calls, step) in [(with, 80, 1), (without, 80, 1), (tiny_options(), 200, 3)]
    {
        let mut call = 0;
        loop {
            let io = FaultIo::new();
            io.fail_call(call, Fault::PowerLoss);
            let mut acknowledged = Acknowledged::default();
            run(&io, &options, &mut acknowledged);
            let Some(hit) = io.hit() else { break };
            let case = format!("power lost at call {call} ({hit})");
            let killed = open(&io.kill(), &options).unwrap_or_else(|e| panic!("{case}: {e}"));
            check(&killed, &acknowledged, |_| true, &case);
            for seed in 0..4 {
                let case = format!("{case}, seed {seed}");
                let after = io.crash(seed);
                let db = open(&after, &options).unwrap_or_else(|e| panic!("{case}: {e}"));
                check(&db, &acknowledged, |durable| durable, &case);
                // The store still works.
                let keyspace = db.keyspace("gone").unwrap();
                keyspace.put(b"more", b"value").unwrap();
                db.flush().unwrap();
                drop((keyspace, db));
                let checked = check_with_io(Arc::new(after), STORE, &options).unwrap();
                assert!(
                    checked.problems.is_empty(),
                    "{case}: {:?}",
                    checked.problems
                );
            }
            call += step;
        }
        assert!(call > least_calls, "the sweep made {call} calls");
    }
}

type Maps = BTreeMap<&'static str, BTreeMap<Vec<u8>, Vec<u8>>>;

/// A closed store with runs in several keyspaces and some entries in the log, and its contents.
fn filled() -> (FaultIo, Maps) {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let mut maps = Maps::new();
    for i in 0..400_u64 {
        let name = ["", "a", "reverse"][(i % 3) as usize];
        let key = format!("key{:03}", i * 37 % 150).into_bytes();
        let words = (0..1 + i % 31).map(|word| (i << 8 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let value: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        match name {
            "" => db.put(&key, &value).unwrap(),
            name => keyspace(&db, name).unwrap().put(&key, &value).unwrap(),
        }
        maps.entry(name).or_default().insert(key, value);
    }
    db.flush().unwrap();
    let late = db.keyspace("late").unwrap();
    late.put(b"in the log", b"alone").unwrap();
    db.close().unwrap();
    (io, maps)
}

fn contents(db: &Db, name: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let iter = match name {
        "" => db.iter(),
        name => db.find_keyspace(name).unwrap().iter(),
    };
    iter.map(Result::unwrap).collect()
}

#[test]
fn a_sound_store_of_several_keyspaces_is_found_sound() {
    let (io, maps) = filled();
    let io: Arc<FaultIo> = Arc::new(io);
    let checked = check_with_io(io.clone(), STORE, &tiny_options()).unwrap();
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert_eq!(checked.keyspaces, ["a", "reverse", "late"]);
    assert!(
        repair_with_io(io.clone(), STORE, &tiny_options())
            .unwrap()
            .was_sound()
    );
    let db = open(&io, &tiny_options()).unwrap();
    for (name, map) in &maps {
        assert_eq!(contents(&db, name), *map);
    }
    // A store ordered by a comparator that the options do not have is not touched.
    struct Other;
    impl forerun_db::Comparator for Other {
        fn name(&self) -> &str {
            "test.other"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            a.cmp(b)
        }
    }
    let other = KeyspaceOptions::default().comparator(Arc::new(Other));
    drop(db.keyspace_with("other", other));
    db.close().unwrap();
    for refused in [
        check_with_io(io.clone(), STORE, &tiny_options()).err(),
        repair_with_io(io.clone(), STORE, &tiny_options()).err(),
    ] {
        assert!(
            matches!(refused, Some(Error::KeyspaceComparator { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn a_lost_manifest_is_rebuilt_from_runs_that_name_their_keyspace() {
    for damage in [None, Some(b"no manifest".as_slice())] {
        let (io, maps) = filled();
        let path = format!("{STORE}/MANIFEST");
        match damage {
            None => forerun_db::io::Io::remove(&io, path.as_ref()).unwrap(),
            Some(bytes) => io.write(path, bytes),
        }
        assert!(open(&io, &tiny_options()).is_err());
        let repaired = repair_with_io(Arc::new(io.clone()), STORE, &tiny_options()).unwrap();
        assert!(repaired.rebuilt_manifest);
        // A name that was only in the manifest is lost, and this is reported; the entries are not
        // lost.
        assert_eq!(repaired.losses.len(), 1, "{:?}", repaired.losses);
        let db = open(&io, &tiny_options()).unwrap();
        for (name, map) in &maps {
            assert_eq!(contents(&db, name), *map, "keyspace {name:?}");
        }
        let recovered = contents(&db, "recovered-3");
        assert_eq!(
            recovered.into_iter().collect::<Vec<_>>(),
            [(b"in the log".to_vec(), b"alone".to_vec())]
        );
        // No number is reused.
        assert_eq!(db.keyspace("new").unwrap().id(), 4);
    }
}

#[test]
fn a_damaged_run_affects_only_its_keyspace() {
    let (io, maps) = filled();
    let (mut costs, runs) = (0, io.files());
    for path in runs
        .iter()
        .filter(|path| path.extension().is_some_and(|of| of == "run"))
    {
        let io = io.crash(0);
        let mut bytes = io.read(path).unwrap();
        bytes[100] ^= 0x40;
        io.write(path, &bytes);
        let checked = check_with_io(Arc::new(io.clone()), STORE, &tiny_options()).unwrap();
        assert_eq!(checked.problems.len(), 1, "{:?}", checked.problems);
        let repaired = repair_with_io(Arc::new(io.clone()), STORE, &tiny_options()).unwrap();
        assert!(!repaired.losses.is_empty());
        let db = open(&io, &tiny_options()).unwrap();
        let differs = maps
            .iter()
            .filter(|(name, map)| contents(&db, name) != **map)
            .count();
        assert!(differs <= 1, "{}", path.display());
        costs += differs;
    }
    assert!(costs > 0);
}

#[test]
fn log_records_of_an_unknown_keyspace_are_damage() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let manifest = io.read(format!("{STORE}/MANIFEST")).unwrap();
    db.keyspace("x").unwrap().put(b"k", b"v").unwrap();
    db.put(b"own", b"v").unwrap();
    db.close().unwrap();
    io.write(format!("{STORE}/MANIFEST"), &manifest);
    let error = open(&io, &small_options()).unwrap_err();
    assert!(error.to_string().contains("keyspace"), "{error}");
    let checked = check_with_io(Arc::new(io.clone()), STORE, &small_options()).unwrap();
    assert_eq!(checked.problems.len(), 1);
    let repaired = repair_with_io(Arc::new(io.clone()), STORE, &small_options()).unwrap();
    assert_eq!(repaired.losses.len(), 1, "{:?}", repaired.losses);
    assert!(
        open(&io, &small_options())
            .unwrap()
            .get(b"own")
            .unwrap()
            .is_some()
    );
}

/// Small memtables and runs, and the store's own background threads.
fn busy_options() -> Options {
    small_options()
        .memory_limit_bytes(1 << 20)
        .memtable_bytes(32 << 10)
        .background(Background::Threads)
        .tree(
            TreeOptions::default()
                .level1_bytes(64 << 10)
                .level_factor(4)
                .run_bytes(16 << 10),
        )
}

#[test]
fn a_snapshot_sees_each_batch_whole_or_not_at_all_across_keyspaces() {
    let io = FaultIo::new();
    let db = open(&io, &busy_options()).unwrap();
    let keyspaces: Vec<_> = ["a", "b", "c"]
        .map(|name| db.keyspace(name).unwrap())
        .into();
    let done = AtomicBool::new(false);
    forerun_core::sync::thread::scope(|scope| {
        let writers: Vec<_> = (0..2_u64)
            .map(|writer| {
                let (db, keyspaces) = (&db, &keyspaces);
                scope.spawn(move || {
                    for round in 1..=400_u64 {
                        // The writer's key holds the round's number in all keyspaces.
                        let mut batch = WriteBatch::new();
                        for keyspace in keyspaces {
                            let mut value = round.to_le_bytes().to_vec();
                            value.resize(64, 0);
                            let key = [writer as u8];
                            batch.keyspace(keyspace).put(&key, &value).unwrap();
                            let filler = [&key[..], &round.to_be_bytes()].concat();
                            batch.keyspace(keyspace).put(&filler, &value).unwrap();
                        }
                        db.write(&batch, Durability::Buffered).unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let (db, keyspaces, done) = (&db, &keyspaces, &done);
            scope.spawn(move || {
                let mut last = [0; 2];
                while !done.load(Ordering::Relaxed) {
                    let snapshot = db.snapshot();
                    for writer in 0..2_u8 {
                        let rounds: Vec<u64> = keyspaces
                            .iter()
                            .map(|keyspace| {
                                let of = snapshot.keyspace(keyspace);
                                let value = of.get(&[writer]).unwrap();
                                let round = value.map_or(0, |value| {
                                    u64::from_le_bytes(value[..8].try_into().unwrap())
                                });
                                // All fillers up to the round, and none beyond it.
                                let from = [&[writer][..], &[0; 8]].concat();
                                let to = [&[writer][..], &[0xff; 8]].concat();
                                let mut fillers = of.range(from..to);
                                let newest = fillers.next_back().map(|entry| entry.unwrap().0);
                                let newest = newest.map_or(0, |key| {
                                    u64::from_be_bytes(key[1..].try_into().unwrap())
                                });
                                assert_eq!(newest, round);
                                round
                            })
                            .collect();
                        assert!(rounds.windows(2).all(|two| two[0] == two[1]), "{rounds:?}");
                        assert!(rounds[0] >= last[usize::from(writer)]);
                        last[usize::from(writer)] = rounds[0];
                    }
                }
            });
        }
        // Current iterators, again and again, while memtables and runs change beneath them.
        let (keyspaces, done) = (&keyspaces, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for keyspace in keyspaces {
                    let was_there = keyspace.get(&[0]).unwrap().is_some();
                    let found = keyspace.range([0].as_slice()..[1].as_slice()).take(3);
                    assert!(!was_there || found.count() > 0);
                }
            }
        });
        // Keyspaces are created and dropped while they are read and written.
        let (db, stop) = (&db, done);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let keyspace = db.keyspace("comes and goes").unwrap();
                forerun_core::sync::thread::scope(|scope| {
                    scope.spawn(|| {
                        for i in 0..50_u8 {
                            match keyspace.put(&[i], &[i; 100]) {
                                Ok(()) => {}
                                Err(Error::KeyspaceDropped { .. }) => return,
                                Err(other) => panic!("{other}"),
                            }
                        }
                    });
                    scope.spawn(|| {
                        for entry in keyspace.iter() {
                            match entry {
                                Ok((key, value)) => assert_eq!(value, [key[0]; 100]),
                                Err(Error::KeyspaceDropped { .. }) => return,
                                Err(other) => panic!("{other}"),
                            }
                        }
                    });
                    db.drop_keyspace("comes and goes").unwrap();
                });
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    for keyspace in &keyspaces {
        assert_eq!(keyspace.iter().count(), 2 * 401);
    }
}
