//! Keyspaces: each is a separate map with its own order; batches and snapshots span them, and they
//! share the memory of one store.

use crate::testing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Backups, Comparator, Create, Db, Durability, Error, Keyspace, KeyspaceOptions, Options,
    Snapshot, Values, WriteBatch,
};
use proptest::prelude::*;
use testing::{
    ByLength, STORE, entries, open, options_with_orders, reverse, small_options, tiny_options,
    with_and_without_index,
};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The entries of a map in the order of a keyspace.
fn in_order(map: &Map, keyspace: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all: Vec<_> = map.clone().into_iter().collect();
    match keyspace {
        "lengths" => all.sort_by(|a, b| ByLength.compare(&a.0, &b.0)),
        "reverse" => all.reverse(),
        _ => {}
    }
    all
}

#[derive(Clone, Debug)]
enum Step {
    /// A batch: keyspace, key, value or none.
    Write(Vec<(usize, u8, Option<u8>)>),
    DeleteRange(usize, u8, u8),
    Flush,
    Compact(usize),
    Snapshot,
    Drop(usize),
    Reopen,
    Checkpoint,
    Backup,
}

const NAMES: [&str; 4] = ["", "bytes", "reverse", "lengths"];

fn key(i: u8) -> Vec<u8> {
    vec![b'a' + i % 5; 1 + usize::from(i / 5)]
}

fn value(i: u8) -> Vec<u8> {
    vec![i; usize::from(i) * 3]
}

fn step() -> impl Strategy<Value = Step> {
    let op = (0..NAMES.len(), 0_u8..40, proptest::option::of(any::<u8>()));
    prop_oneof![
        12 => prop::collection::vec(op, 1..12).prop_map(Step::Write),
        2 => (0..NAMES.len(), 0_u8..40, 0_u8..40).prop_map(|(n, a, b)| Step::DeleteRange(n, a, b)),
        2 => Just(Step::Flush),
        1 => (0..NAMES.len()).prop_map(Step::Compact),
        2 => Just(Step::Snapshot),
        1 => (1..NAMES.len()).prop_map(Step::Drop),
        2 => Just(Step::Reopen),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Backup),
    ]
}

/// A store, and its expected contents.
struct ModelledStore {
    options: Options,
    io: FaultIo,
    db: Option<Db>,
    maps: [Map; 4],
    /// Snapshots, with the expected contents and the keyspaces that are unchanged since.
    snapshots: Vec<(Snapshot, [Option<Map>; 4])>,
    copies: usize,
}

impl ModelledStore {
    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    /// A copy of the store has the same contents as the store.
    fn check_copy(&self, path: &str) {
        let io = Arc::new(self.io.clone());
        let copy = Db::open_with_io(io, path, options_with_orders()).unwrap();
        check(&copy, &self.maps);
    }

    fn keyspace(&self, number: usize) -> Keyspace {
        keyspace(self.db(), number)
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Write(ops) => {
                let mut batch = WriteBatch::new();
                for (number, i, put) in ops {
                    let keyspace = self.keyspace(*number);
                    let mut part = batch.keyspace(&keyspace);
                    match put {
                        Some(v) => {
                            part.put(&key(*i), &value(*v)).unwrap();
                            self.maps[*number].insert(key(*i), value(*v));
                        }
                        None => {
                            part.delete(&key(*i)).unwrap();
                            self.maps[*number].remove(&key(*i));
                        }
                    }
                }
                self.db().write(&batch, Durability::Buffered).unwrap();
            }
            Step::DeleteRange(number, a, b) => {
                let keyspace = self.keyspace(*number);
                let order = |a: &[u8], b: &[u8]| match NAMES[*number] {
                    "lengths" => ByLength.compare(a, b),
                    "reverse" => b.cmp(a),
                    _ => a.cmp(b),
                };
                let (start, end) = (key(*a), key(*b));
                let deleted = keyspace.delete_range(&start, &end);
                if order(&start, &end).is_ge() {
                    assert!(matches!(deleted, Err(Error::EmptyRange { .. })));
                } else {
                    deleted.unwrap();
                    let is_in = |key: &[u8]| order(&start, key).is_le() && order(key, &end).is_lt();
                    self.maps[*number].retain(|key, _| !is_in(key));
                }
            }
            Step::Flush => self.db().flush().unwrap(),
            Step::Compact(number) => self.keyspace(*number).compact().unwrap(),
            Step::Snapshot => {
                let seen = self.maps.clone().map(Some);
                self.snapshots.push((self.db().snapshot(), seen));
            }
            Step::Drop(number) => {
                let handle = self.keyspace(*number);
                self.db().drop_keyspace(NAMES[*number]).unwrap();
                assert!(matches!(
                    handle.get(b"a"),
                    Err(Error::KeyspaceDropped { .. })
                ));
                self.maps[*number].clear();
                for (_, seen) in &mut self.snapshots {
                    seen[*number] = None;
                }
            }
            Step::Reopen => {
                self.snapshots.clear();
                self.db.take().unwrap().close().unwrap();
                self.db = Some(open(&self.io, &self.options).unwrap());
            }
            Step::Checkpoint => {
                self.copies += 1;
                let into = format!("/copy{}", self.copies);
                self.db().checkpoint(&into).unwrap();
                self.check_copy(&into);
            }
            Step::Backup => {
                self.copies += 1;
                let io = Arc::new(self.io.clone());
                let mut backups = Backups::open_with_io(io, "/backups", Create::IfMissing).unwrap();
                backups.create(self.db()).unwrap();
                let into = format!("/copy{}", self.copies);
                backups.restore(None, &into).unwrap();
                self.check_copy(&into);
            }
        }
    }
}

fn keyspace(db: &Db, number: usize) -> Keyspace {
    match NAMES[number] {
        "" => db.default_keyspace(),
        "reverse" => db.keyspace_with("reverse", reverse()).unwrap(),
        name => db.keyspace(name).unwrap(),
    }
}

fn check(db: &Db, maps: &[Map; 4]) {
    for (number, map) in maps.iter().enumerate() {
        let keyspace = keyspace(db, number);
        let keys: Vec<_> = (0..40).map(key).collect();
        let mut values = Values::new();
        keyspace.multi_get(&keys, &mut values).unwrap();
        for (key, found) in keys.iter().zip(values.iter()) {
            let wanted = map.get(key).map(Vec::as_slice);
            assert_eq!(found.unwrap(), wanted, "{}", NAMES[number]);
            assert_eq!(keyspace.get(key).unwrap().as_deref(), wanted);
        }
        let wanted = in_order(map, NAMES[number]);
        assert_eq!(entries(keyspace.iter()), wanted, "{}", NAMES[number]);
        let backwards: Vec<_> = keyspace.iter().rev().map(Result::unwrap).collect();
        assert!(backwards.into_iter().rev().eq(wanted));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn keyspaces_are_independent_maps(
        steps in prop::collection::vec(step(), 1..60),
        is_indexed in any::<bool>(),
    ) {
        let io = FaultIo::new();
        let [with, without] = with_and_without_index(&options_with_orders());
        let options = if is_indexed { with } else { without };
        let db = Some(open(&io, &options).unwrap());
        let mut world = ModelledStore {
            options,
            io,
            db,
            maps: Default::default(),
            snapshots: Vec::new(),
            copies: 0,
        };
        for step in &steps {
            world.run(step);
            check(world.db(), &world.maps);
            for (snapshot, seen) in &world.snapshots {
                for (number, map) in seen.iter().enumerate() {
                    let Some(map) = map else { continue };
                    let keyspace = world.keyspace(number);
                    let found = entries(snapshot.keyspace(&keyspace).iter());
                    prop_assert_eq!(found, in_order(map, NAMES[number]), "as of {}",
                        snapshot.sequence());
                }
            }
        }
        let verified = world.db().verify().unwrap();
        prop_assert!(verified.problems.is_empty(), "{:?}", verified.problems);
    }
}

#[test]
fn a_hundred_keyspaces_share_the_memory_of_one() {
    let io = FaultIo::new();
    let options = tiny_options()
        .memory_limit_bytes(1 << 20)
        .memtable_bytes(256 << 10);
    let db = open(&io, &options).unwrap();
    let keyspaces: Vec<_> = (0..100)
        .map(|i| db.keyspace(&format!("keyspace {i}")).unwrap())
        .collect();
    let mut max = 0;
    for round in 0..60_u32 {
        for (i, keyspace) in keyspaces.iter().enumerate() {
            keyspace.put(&round.to_be_bytes(), &[i as u8; 100]).unwrap();
        }
        max = max.max(db.stats().memtables_used_bytes);
    }
    assert!(max <= options.memory_limit_bytes, "{max} bytes");
    assert!(db.stats().tree.flushes > 2);
    for (i, keyspace) in keyspaces.iter().enumerate() {
        assert_eq!(keyspace.iter().count(), 60, "keyspace {i}");
    }
    let stats = db.stats();
    assert_eq!(stats.keyspaces.len(), 101);
    let entries = |of: &forerun_db::KeyspaceStats| {
        of.memtable_entries as u64 + of.levels.iter().map(|level| level.entries).sum::<u64>()
    };
    assert!(stats.keyspaces[1..].iter().all(|of| entries(of) == 60));
}

#[test]
fn a_batch_larger_than_a_memtable_is_accepted() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let keyspaces = [
        db.default_keyspace(),
        db.keyspace("a").unwrap(),
        db.keyspace("b").unwrap(),
    ];
    let mut batch = WriteBatch::new();
    for i in 0..90_u8 {
        let keyspace = &keyspaces[usize::from(i % 3)];
        batch.keyspace(keyspace).put(&[i], &[i; 200]).unwrap();
    }
    assert!(batch.encoded().len() > 4 * tiny_options().memtable_bytes);
    db.write(&batch, Durability::Synced).unwrap();
    drop((db, keyspaces));
    let db = open(&io.kill(), &tiny_options()).unwrap();
    for (number, name) in ["", "a", "b"].iter().enumerate() {
        let keyspace = match number {
            0 => db.default_keyspace(),
            _ => db.find_keyspace(name).unwrap(),
        };
        let keys: Vec<_> = keyspace.iter().map(|entry| entry.unwrap().0[0]).collect();
        let wanted: Vec<u8> = (0..90).filter(|i| usize::from(i % 3) == number).collect();
        assert_eq!(keys, wanted, "{name}");
    }
    // A write that does not fit at all leaves nothing behind.
    let keyspace = db.find_keyspace("a").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(b"x", b"y").unwrap();
    batch
        .keyspace(&keyspace)
        .put(b"x", &vec![0; 300 << 10])
        .unwrap();
    let refused = db.write(&batch, Durability::Buffered);
    assert!(
        matches!(refused, Err(Error::MemoryLimit { .. })),
        "{refused:?}"
    );
    assert_eq!(db.get(b"x").unwrap(), None);
}

#[test]
fn batches_of_any_number_of_short_entries_fit_beside_the_indexes_of_their_memtables() {
    for (entries, value_bytes) in [(1, 3000), (4, 1000), (30, 100), (300, 0), (20_000, 0)] {
        for memtable_bytes in [1 << 10, 4 << 10, 64 << 10] {
            let (done, is_done) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let options = tiny_options()
                    .memory_limit_bytes(16 << 20)
                    .memtable_bytes(memtable_bytes);
                let db = open(&FaultIo::new(), &options).unwrap();
                let keyspaces: Vec<_> = ["a", "b", "c"]
                    .map(|name| db.keyspace(name).unwrap())
                    .into();
                for round in 0..3_u32 {
                    let mut batch = WriteBatch::new();
                    batch.put(b"in the store's own", b"").unwrap();
                    for i in 0..entries {
                        let key = (i + round).to_be_bytes();
                        for keyspace in &keyspaces {
                            let value = vec![0; value_bytes];
                            batch.keyspace(keyspace).put(&key, &value).unwrap();
                        }
                    }
                    db.write(&batch, Durability::Buffered).unwrap();
                }
                let count = |keyspace: &forerun_db::Keyspace| keyspace.iter().count() as u32;
                assert!(
                    keyspaces
                        .iter()
                        .all(|keyspace| count(keyspace) == entries + 2)
                );
                done.send(()).unwrap();
            });
            let what = format!("{entries} of {value_bytes} bytes, {memtable_bytes} a memtable");
            let waited = is_done.recv_timeout(std::time::Duration::from_secs(120));
            assert!(waited.is_ok(), "{what}: {waited:?}");
        }
    }
}

#[test]
fn entries_of_one_keyspace_expire_and_those_of_another_stay() {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(1_000));
    let mortal = KeyspaceOptions::default().ttl(Duration::from_secs(3));
    let options = tiny_options().keyspaces(vec![("sessions".into(), mortal)]);
    let db = open(&io, &options).unwrap();
    let (sessions, users) = (
        db.keyspace("sessions").unwrap(),
        db.keyspace("users").unwrap(),
    );
    for keyspace in [&sessions, &users] {
        keyspace.put(b"old", b"value").unwrap();
    }
    // Before anything has expired.
    let before = db.snapshot();
    db.flush().unwrap();
    io.set_unix_time_s(Some(1_004));
    sessions.put(b"new", b"value").unwrap();
    sessions.compact().unwrap();
    assert_eq!(sessions.get(b"old").unwrap(), None);
    assert_eq!(sessions.iter().count(), 1);
    assert!(users.get(b"old").unwrap().is_some());
    // What a snapshot sees is kept.
    assert!(before.keyspace(&sessions).get(b"old").unwrap().is_some());
    drop(before);
    sessions.compact().unwrap();
    assert_eq!(
        sessions
            .stats()
            .levels
            .iter()
            .map(|level| level.entries)
            .sum::<u64>(),
        1
    );
    drop((sessions, users, db));
    let db = open(&io, &options).unwrap();
    assert_eq!(db.keyspace("sessions").unwrap().iter().count(), 1);
}

#[test]
fn sorted_input_is_ingested_into_one_keyspace() {
    let io = FaultIo::new();
    let db = open(&io, &options_with_orders()).unwrap();
    let lengths = db.keyspace("lengths").unwrap();
    lengths.put(b"bbbb", b"before").unwrap();
    let mut ingestion = lengths.ingest();
    for key in ["z", "aa", "bbbb", "ccccc"] {
        ingestion.add(key.as_bytes(), b"ingested").unwrap();
    }
    let before = db.snapshot();
    ingestion.commit().unwrap();
    lengths.put(b"aa", b"after").unwrap();
    drop(db.snapshot());
    assert_eq!(entries(before.keyspace(&lengths).iter()).len(), 1);
    drop((before, lengths, db));
    let db = open(&io.kill(), &options_with_orders()).unwrap();
    let found = entries(db.keyspace("lengths").unwrap().iter());
    let found: Vec<_> = found
        .iter()
        .map(|(key, value)| (&key[..], &value[..]))
        .collect();
    let wanted: [(&[u8], &[u8]); 4] = [
        (b"z", b"ingested"),
        (b"aa", b"after"),
        (b"bbbb", b"ingested"),
        (b"ccccc", b"ingested"),
    ];
    assert_eq!(found, wanted);
    assert_eq!(db.iter().count(), 0);
}

#[test]
fn the_store_path_is_where_its_keyspaces_are() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    db.keyspace("x").unwrap();
    assert!(io.files().iter().all(|path| path.starts_with(STORE)));
    let closed = db.clone();
    db.close().unwrap();
    assert!(matches!(closed.keyspace("y"), Err(Error::Closed)));
    assert!(matches!(closed.drop_keyspace("x"), Err(Error::Closed)));
}
