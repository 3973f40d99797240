//! Keyspaces: each is a map of its own in an order of its own; batches and snapshots go across them; they come and go,
//! and what is wrong with them is told by name.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{STORE, open, small_options, tiny_options};
use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{
    Comparator, Db, Durability, Error, Keyspace, KeyspaceOptions, MAX_KEYSPACE_NAME_BYTES,
    MAX_KEYSPACES, Options, ReverseBytewise, Snapshot, TreeOptions, Values, WriteBatch,
};
use proptest::prelude::*;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Shorter keys first: an order of one's own.
struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &str {
        "test.by-length"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
}

fn by_length() -> KeyspaceOptions {
    KeyspaceOptions {
        comparator: Arc::new(ByLength),
        tree: tiny_options().tree,
        run: tiny_options().run,
        ..KeyspaceOptions::default()
    }
}

fn reverse() -> KeyspaceOptions {
    KeyspaceOptions {
        comparator: Arc::new(ReverseBytewise),
        ..by_length()
    }
}

/// Options that know all comparators of the tests.
fn options() -> Options {
    Options {
        keyspaces: vec![("lengths".into(), by_length())],
        ..tiny_options()
    }
}

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

fn entries(iter: forerun_db::Iter) -> Vec<(Vec<u8>, Vec<u8>)> {
    iter.map(Result::unwrap).collect()
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
    ]
}

/// A store, and what should be in it.
struct World {
    io: FaultIo,
    db: Option<Db>,
    maps: [Map; 4],
    /// Snapshots, with what they should see and the keyspaces that are the same since.
    snapshots: Vec<(Snapshot, [Option<Map>; 4])>,
    copies: usize,
}

impl World {
    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
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
                self.db = Some(open(&self.io, &options()).unwrap());
            }
            Step::Checkpoint => {
                self.copies += 1;
                let into = format!("/copy{}", self.copies);
                self.db().checkpoint(&into).unwrap();
                let io = Arc::new(self.io.clone());
                let copy = Db::open_with_io(io, into, options()).unwrap();
                check(&copy, &self.maps);
            }
        }
    }
}

fn keyspace(db: &Db, number: usize) -> Keyspace {
    match NAMES[number] {
        "" => db.own_keyspace(),
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
    fn keyspaces_are_maps_of_their_own(steps in prop::collection::vec(step(), 1..60)) {
        let io = FaultIo::new();
        let db = Some(open(&io, &options()).unwrap());
        let mut world = World { io, db, maps: Default::default(), snapshots: Vec::new(), copies: 0 };
        for step in &steps {
            world.run(step);
            check(world.db(), &world.maps);
            for (snapshot, seen) in &world.snapshots {
                for (number, map) in seen.iter().enumerate() {
                    let Some(map) = map else { continue };
                    let keyspace = world.keyspace(number);
                    let found = entries(snapshot.keyspace(&keyspace).iter());
                    prop_assert_eq!(found, in_order(map, NAMES[number]), "as of {}", snapshot.sequence());
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
    let options = Options {
        memory_limit_bytes: 1 << 20,
        memtable_bytes: 256 << 10,
        ..tiny_options()
    };
    let db = open(&io, &options).unwrap();
    let keyspaces: Vec<_> = (0..100)
        .map(|i| db.keyspace(&format!("keyspace {i}")).unwrap())
        .collect();
    let mut most = 0;
    for round in 0..60_u32 {
        for (i, keyspace) in keyspaces.iter().enumerate() {
            keyspace.put(&round.to_be_bytes(), &[i as u8; 100]).unwrap();
        }
        most = most.max(db.stats().memtables_used_bytes);
    }
    assert!(most <= options.memory_limit_bytes, "{most} bytes");
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
fn a_batch_that_takes_more_than_a_memtable_is_let_in_whole() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let keyspaces = [
        db.own_keyspace(),
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
            0 => db.own_keyspace(),
            _ => db.find_keyspace(name).unwrap(),
        };
        let keys: Vec<_> = keyspace.iter().map(|entry| entry.unwrap().0[0]).collect();
        let wanted: Vec<u8> = (0..90).filter(|i| usize::from(i % 3) == number).collect();
        assert_eq!(keys, wanted, "{name}");
    }
    // One that does not fit at all leaves nothing.
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
fn names_are_bounded_and_so_is_their_number() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let long = "x".repeat(MAX_KEYSPACE_NAME_BYTES + 1);
    for name in ["", &long] {
        assert!(matches!(db.keyspace(name), Err(Error::KeyspaceName { .. })));
    }
    let longest = &long[1..];
    assert_eq!(db.keyspace(longest).unwrap().name(), longest);
    for i in 2..MAX_KEYSPACES {
        db.keyspace(&i.to_string()).unwrap();
    }
    let error = db.keyspace("one more").unwrap_err();
    assert!(matches!(error, Error::TooManyKeyspaces { .. }), "{error}");
    db.keyspace("2").unwrap().put(b"key", b"value").unwrap();
    db.drop_keyspace("3").unwrap();
    db.keyspace("one more").unwrap();
    db.close().unwrap();
    let db = open(&io, &small_options()).unwrap();
    assert_eq!(db.keyspaces().len(), MAX_KEYSPACES - 1);
    assert_eq!(
        db.keyspace("2").unwrap().get(b"key").unwrap().as_deref(),
        Some(&b"value"[..])
    );
}

#[test]
fn a_comparator_is_kept_and_a_wrong_or_missing_one_is_refused_by_name() {
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    db.keyspace("lengths").unwrap().put(b"aaa", b"").unwrap();
    db.keyspace_with("reverse", reverse())
        .unwrap()
        .put(b"b", b"")
        .unwrap();
    let wrong = db.keyspace_with("lengths", reverse()).unwrap_err();
    assert!(wrong.to_string().contains("\"test.by-length\""), "{wrong}");
    assert!(
        wrong.to_string().contains("\"forerun.reverse-bytewise\""),
        "{wrong}"
    );
    db.close().unwrap();

    // Not among the options: the store cannot know what the name means.
    let missing = open(&io, &tiny_options()).unwrap_err();
    assert!(
        matches!(&missing, Error::KeyspaceComparator { keyspace, given: None, .. } if keyspace == "lengths"),
        "{missing}"
    );
    let wrong = Options {
        keyspaces: vec![("lengths".into(), reverse())],
        ..tiny_options()
    };
    let wrong = open(&io, &wrong).unwrap_err();
    assert!(
        matches!(wrong, Error::KeyspaceComparator { given: Some(_), .. }),
        "{wrong}"
    );
    // The reverse order is known without being told.
    let db = open(&io, &options()).unwrap();
    assert_eq!(db.find_keyspace("reverse").unwrap().iter().count(), 1);
}

#[test]
fn options_that_make_no_sense_are_refused_with_words() {
    let tree = TreeOptions {
        level0_runs: 8,
        level0_stop_runs: 8,
        ..TreeOptions::default()
    };
    let io = FaultIo::new();
    let options = Options {
        tree,
        ..small_options()
    };
    let refused = open(&io, &options).unwrap_err();
    assert!(
        refused.to_string().contains("level0_stop_runs"),
        "{refused}"
    );
    let db = open(&io, &small_options()).unwrap();
    let with_tree = KeyspaceOptions {
        tree,
        ..KeyspaceOptions::default()
    };
    let refused = db.keyspace_with("x", with_tree).unwrap_err();
    assert!(matches!(refused, Error::BadOption { .. }), "{refused}");
    assert!(db.keyspaces().is_empty());
}

#[test]
fn a_keyspace_of_another_store_is_refused() {
    let (a, b) = (FaultIo::new(), FaultIo::new());
    let (a, b) = (
        open(&a, &small_options()).unwrap(),
        open(&b, &small_options()).unwrap(),
    );
    let (of_a, of_b) = (a.keyspace("x").unwrap(), b.keyspace("x").unwrap());
    let mut batch = WriteBatch::new();
    batch.keyspace(&of_a).put(b"k", b"v").unwrap();
    let mixed = batch.keyspace(&of_b).put(b"k", b"v");
    assert!(
        matches!(mixed, Err(Error::ForeignKeyspace { .. })),
        "{mixed:?}"
    );
    assert_eq!(batch.len(), 1);
    let foreign = b.write(&batch, Durability::Buffered);
    assert!(
        matches!(foreign, Err(Error::ForeignKeyspace { .. })),
        "{foreign:?}"
    );
    let snapshot = b.snapshot();
    let read = snapshot.keyspace(&of_a).get(b"k");
    assert!(
        matches!(read, Err(Error::ForeignKeyspace { .. })),
        "{read:?}"
    );
    let mut iter = snapshot.keyspace(&of_a).iter();
    assert!(matches!(
        iter.next(),
        Some(Err(Error::ForeignKeyspace { .. }))
    ));
    assert!(iter.next().is_none());
    a.write(&batch, Durability::Buffered).unwrap();
    assert_eq!(of_b.get(b"k").unwrap(), None);
}

/// Names of the files of runs.
fn run_files(io: &FaultIo) -> Vec<String> {
    let files = io.files();
    let names = files.iter().filter_map(|path| path.to_str());
    names
        .filter(|name| name.ends_with(".run"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_dropped_keyspace_is_read_to_the_end_by_who_began_and_then_its_files_go() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let (kept, gone) = (db.keyspace("kept").unwrap(), db.keyspace("gone").unwrap());
    for i in 0..200_u32 {
        let mut batch = WriteBatch::new();
        batch
            .keyspace(&kept)
            .put(&i.to_be_bytes(), &[1; 50])
            .unwrap();
        batch
            .keyspace(&gone)
            .put(&i.to_be_bytes(), &[2; 50])
            .unwrap();
        db.write(&batch, Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    let (all, snapshot) = (run_files(&io).len(), db.snapshot());
    let mut reader = gone.iter();
    assert!(reader.next().is_some());

    db.drop_keyspace("gone").unwrap();
    assert_eq!(db.keyspaces(), ["kept"]);
    assert_eq!(run_files(&io).len(), all, "somebody reads them");
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 199);
    let is_dropped =
        |error: Error| matches!(error, Error::KeyspaceDropped { name } if name == "gone");
    assert!(is_dropped(gone.get(b"k").unwrap_err()));
    assert!(is_dropped(gone.put(b"k", b"v").unwrap_err()));
    assert!(is_dropped(gone.delete_range(b"a", b"b").unwrap_err()));
    assert!(is_dropped(gone.iter().next().unwrap().unwrap_err()));
    assert!(is_dropped(
        gone.ingest()
            .commit()
            .map(|_| gone.get(b"k").unwrap_err())
            .unwrap()
    ));
    assert!(is_dropped(snapshot.keyspace(&gone).get(b"k").unwrap_err()));
    assert!(is_dropped(
        gone.multi_get(&["k"], &mut Values::new()).unwrap_err()
    ));
    drop(reader);
    let left = run_files(&io).len();
    assert!(left < all && left > 0, "{left} of {all}");
    let unknown = db.drop_keyspace("gone").unwrap_err();
    assert!(
        matches!(unknown, Error::UnknownKeyspace { .. }),
        "{unknown}"
    );

    // Another one of the name is another one.
    let again = db.keyspace("gone").unwrap();
    assert!(again.id() > gone.id());
    assert_eq!(again.iter().count(), 0);
    again.put(b"new", b"1").unwrap();
    assert_eq!(kept.iter().count(), 200);
    drop((db, kept, gone, again, snapshot));
    let db = open(&io.kill(), &tiny_options()).unwrap();
    assert_eq!(db.find_keyspace("kept").unwrap().iter().count(), 200);
    assert_eq!(
        entries(db.find_keyspace("gone").unwrap().iter()),
        [(b"new".to_vec(), b"1".to_vec())]
    );
}

#[test]
fn what_the_log_has_of_a_dropped_keyspace_is_passed_over() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let (kept, gone) = (db.keyspace("kept").unwrap(), db.keyspace("gone").unwrap());
    for i in 0..10_u8 {
        let mut batch = WriteBatch::new();
        batch.keyspace(&gone).put(&[i], b"gone").unwrap();
        batch.keyspace(&kept).put(&[i], b"kept").unwrap();
        batch.keyspace(&gone).delete_range(&[i], &[i + 1]).unwrap();
        batch.put(&[i], b"own").unwrap();
        db.write(&batch, Durability::Synced).unwrap();
    }
    gone.put(b"alone", b"in its record").unwrap();
    db.drop_keyspace("gone").unwrap();
    drop((db, kept, gone));
    let db = open(&io.kill(), &small_options()).unwrap();
    assert_eq!(db.recovery().operations, 41);
    assert_eq!(db.find_keyspace("kept").unwrap().iter().count(), 10);
    assert_eq!(db.iter().count(), 10);
    assert!(db.find_keyspace("gone").is_none());
    assert_eq!(db.stats().last_sequence, 41);
    // Nor does its successor get any of it.
    assert_eq!(db.keyspace("gone").unwrap().iter().count(), 0);
}

#[test]
fn a_creation_that_fails_makes_nothing_and_a_drop_that_fails_stops_writes() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    io.fail_call(io.calls(), Fault::Fail(EIO));
    assert!(matches!(db.keyspace("x"), Err(Error::Io { .. })));
    assert!(db.find_keyspace("x").is_none());
    let x = db.keyspace("x").unwrap();
    x.put(b"k", b"v").unwrap();
    io.fail_call(io.calls(), Fault::Fail(EIO));
    assert!(matches!(db.drop_keyspace("x"), Err(Error::Io { .. })));
    // It may be gone, so nothing more may be promised.
    assert!(matches!(
        x.put(b"k", b"w"),
        Err(Error::KeyspaceDropped { .. })
    ));
    assert_eq!(x.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.drop_keyspace("x").unwrap();
    assert!(db.keyspaces().is_empty());
}

#[test]
fn entries_of_one_keyspace_expire_and_those_of_another_stay() {
    let io = FaultIo::new();
    let mortal = KeyspaceOptions {
        ttl: Some(Duration::from_secs(1)),
        ..KeyspaceOptions::default()
    };
    let options = Options {
        keyspaces: vec![("sessions".into(), mortal)],
        ..tiny_options()
    };
    let db = open(&io, &options).unwrap();
    let (sessions, users) = (
        db.keyspace("sessions").unwrap(),
        db.keyspace("users").unwrap(),
    );
    for keyspace in [&sessions, &users] {
        keyspace.put(b"old", b"value").unwrap();
    }
    db.flush().unwrap();
    let before = db.snapshot();
    std::thread::sleep(Duration::from_millis(2100));
    sessions.put(b"new", b"value").unwrap();
    sessions.compact().unwrap();
    assert_eq!(sessions.get(b"old").unwrap(), None);
    assert_eq!(sessions.iter().count(), 1);
    assert!(users.get(b"old").unwrap().is_some());
    // What a snapshot sees is kept for it.
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
    let db = open(&io, &options()).unwrap();
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
    let db = open(&io.kill(), &options()).unwrap();
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

#[test]
fn an_iterator_that_is_begun_again_sees_what_was_written_meanwhile() {
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    let keyspaces: Vec<_> = (0..20)
        .map(|i| db.keyspace(&format!("{i}")).unwrap())
        .collect();
    let mut maps = vec![Map::new(); 20];
    for round in 0..600_usize {
        // More keyspaces than a thread keeps cursors of, a few of them often; and now and then other runs.
        let number = if round % 3 == 0 {
            round % 20
        } else {
            round % 4
        };
        let (keyspace, map) = (&keyspaces[number], &mut maps[number]);
        let first = key((round % 40) as u8);
        keyspace.put(&first, &value(round as u8)).unwrap();
        map.insert(first, value(round as u8));
        if round % 50 == 7 {
            let start = key((round % 30) as u8);
            keyspace.delete_range(&start, b"d").unwrap_or_default();
            map.retain(|key, _| !(start[..] <= key[..] && &key[..] < b"d"));
        }
        if round % 97 == 0 {
            db.flush().unwrap();
        }
        let start = key((round * 7 % 40) as u8);
        let mut iter = keyspace.range(start.clone()..);
        let mut wanted = map.range(start..);
        for _ in 0..round % 5 {
            let found = iter.next_entry().unwrap();
            let found = found.map(|entry| (entry.key, entry.value));
            assert_eq!(
                found,
                wanted.next().map(|(key, value)| (&key[..], &value[..]))
            );
            let found = iter.next_entry_back().unwrap();
            let found = found.map(|entry| (entry.key, entry.value));
            assert_eq!(
                found,
                wanted
                    .next_back()
                    .map(|(key, value)| (&key[..], &value[..]))
            );
        }
    }
}

#[test]
fn what_a_thread_keeps_of_an_iterator_holds_no_file_and_no_memory_of_before() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let keyspace = db.keyspace("x").unwrap();
    for round in 0..20_u8 {
        for i in 0..20_u8 {
            keyspace.put(&[i], &[round; 100]).unwrap();
        }
        assert_eq!(keyspace.iter().count(), 20);
    }
    keyspace.compact().unwrap();
    assert_eq!(db.stats().memtables, 1);
    assert_eq!(
        run_files(&io).len(),
        keyspace.stats().levels.iter().map(|level| level.runs).sum()
    );
}
