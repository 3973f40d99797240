//! Entries expire to the second when they are read, wherever they are stored.

use crate::testing;

use std::collections::BTreeMap;
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, Error, Keyspace, KeyspaceOptions, Options, Snapshot, Values, WalMode};
use proptest::prelude::*;
use testing::{entries, open, small_options, tiny_options, with_and_without_index};

/// The time to live of the keyspace `mortal`, in seconds.
const TTL: u64 = 5;

fn lives(seconds: u64) -> KeyspaceOptions {
    KeyspaceOptions::default().ttl(Duration::from_secs(seconds))
}

fn options() -> Options {
    tiny_options().keyspaces(vec![("mortal".into(), lives(TTL))])
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads a keyspace in every way, and checks that the results are equal.
fn read(keyspace: &Keyspace, case: &str) -> Entries {
    let all = entries(keyspace.iter());
    let backwards: Entries = keyspace.iter().rev().map(Result::unwrap).collect();
    assert!(all.iter().eq(backwards.iter().rev()), "{case}: backwards");
    assert_eq!(
        keyspace.count().unwrap(),
        all.len() as u64,
        "{case}: a count"
    );
    assert_eq!(entries(keyspace.range("a".."z")), all, "{case}: a range");
    assert_eq!(entries(keyspace.prefix(b"key-")), all, "{case}: a prefix");
    let map: BTreeMap<_, _> = all.iter().cloned().collect();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    for key in &keys {
        assert_eq!(
            keyspace.get(key).unwrap().as_ref(),
            map.get(key),
            "{case}: get"
        );
    }
    let mut values = Values::new();
    keyspace.multi_get(&keys, &mut values).unwrap();
    for (place, key) in keys.iter().enumerate() {
        let value = values.get(place).unwrap();
        assert_eq!(value, map.get(key).map(Vec::as_slice), "{case}: a batch");
    }
    all
}

const KEYS: u8 = 12;

fn key(number: u8) -> Vec<u8> {
    format!("key-{number:02}").into_bytes()
}

#[derive(Clone, Debug)]
enum Step {
    Put(bool, u8),
    Delete(bool, u8),
    DeleteRange(u8, u8),
    Ingest(u8, u8),
    Pass(u64),
    Flush,
    Compact,
    TakeSnapshot,
    DropSnapshot,
    Reopen,
    Kill,
    PowerLoss,
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<bool>(), 0..KEYS).prop_map(|(is_mortal, key)| Step::Put(is_mortal, key)),
        3 => (any::<bool>(), 0..KEYS).prop_map(|(is_mortal, key)| Step::Delete(is_mortal, key)),
        1 => (0..KEYS, 1..4_u8).prop_map(|(from, count)| Step::DeleteRange(from, from + count)),
        1 => (0..KEYS, 1..4_u8)
            .prop_map(|(from, count)| Step::Ingest(from, (from + count).min(KEYS))),
        6 => (0..4_u64).prop_map(Step::Pass),
        2 => Just(Step::Flush),
        1 => Just(Step::Compact),
        2 => Just(Step::TakeSnapshot),
        1 => Just(Step::DropSnapshot),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        1 => Just(Step::PowerLoss),
    ]
}

/// The reference: each value with the second in which it was written.
#[derive(Clone, Default)]
struct Model {
    mortal: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    eternal: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Model {
    fn alive(&self, now: u64) -> Entries {
        let mortal = self.mortal.iter();
        let alive = mortal.filter(|(_, (_, written))| written + TTL >= now);
        alive
            .map(|(key, (value, _))| (key.clone(), value.clone()))
            .collect()
    }

    fn eternal(&self) -> Entries {
        self.eternal.clone().into_iter().collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn lookups_match_a_model_with_a_time_per_entry(
        steps in prop::collection::vec(step(), 1..60),
        is_indexed in any::<bool>(),
    ) {
        let indexed = |options: Options| {
            let [with, without] = with_and_without_index(&options);
            if is_indexed { with } else { without }
        };
        let mut io = FaultIo::new();
        let mut now = 1_000;
        io.set_unix_time_s(Some(now));
        let mut db = open(&io, &indexed(options())).unwrap();
        db.keyspace("mortal").unwrap();
        let mut model = Model::default();
        let mut snapshot: Option<(Snapshot, Entries)> = None;
        for (number, step) in steps.iter().enumerate() {
            let case = format!("step {number}, {step:?}");
            let mortal = db.keyspace("mortal").unwrap();
            let value = format!("value {number}").into_bytes();
            match step {
                Step::Put(true, of) => {
                    mortal.put(&key(*of), &value).unwrap();
                    model.mortal.insert(key(*of), (value, now));
                }
                Step::Put(false, of) => {
                    db.put(&key(*of), &value).unwrap();
                    model.eternal.insert(key(*of), value);
                }
                Step::Delete(true, of) => {
                    mortal.delete(&key(*of)).unwrap();
                    model.mortal.remove(&key(*of));
                }
                Step::Delete(false, of) => {
                    db.delete(&key(*of)).unwrap();
                    model.eternal.remove(&key(*of));
                }
                Step::DeleteRange(from, to) => {
                    mortal.delete_range(&key(*from), &key(*to)).unwrap();
                    model.mortal.retain(|of, _| !(key(*from)..key(*to)).contains(of));
                }
                Step::Ingest(from, to) => {
                    let mut ingestion = mortal.ingest();
                    for of in *from..*to {
                        ingestion.add(&key(of), &value).unwrap();
                        model.mortal.insert(key(of), (value.clone(), now));
                    }
                    ingestion.commit().unwrap();
                }
                Step::Pass(seconds) => {
                    now += seconds;
                    io.set_unix_time_s(Some(now));
                }
                Step::Flush => db.flush().unwrap(),
                Step::Compact => db.compact().unwrap(),
                Step::TakeSnapshot => snapshot = Some((db.snapshot(), model.alive(now))),
                Step::DropSnapshot => snapshot = None,
                Step::Reopen | Step::Kill | Step::PowerLoss => {
                    snapshot = None;
                    drop(mortal);
                    io = match step {
                        Step::Reopen => {
                            db.close().unwrap();
                            io.clone()
                        }
                        Step::Kill => io.kill(),
                        _ => {
                            db.flush_wal().unwrap();
                            io.crash(number as u64)
                        }
                    };
                    // The time to live belongs to the store, whatever the options of an opening
                    // say.
                    db = open(&io, &indexed(tiny_options())).unwrap();
                }
            }
            let mortal = db.keyspace("mortal").unwrap();
            prop_assert_eq!(read(&mortal, &case), model.alive(now), "{}", case);
            prop_assert_eq!(entries(db.iter()), model.eternal(), "{}", case);
            if let Some((snapshot, seen)) = &snapshot {
                prop_assert_eq!(&entries(snapshot.keyspace(&mortal).iter()), seen, "{}: the \
                    snapshot", case);
            }
        }
    }
}

/// Puts one key now, and sees it for as long as it lives.
fn lives_for_its_time(io: &FaultIo, db: &Db, keyspace: &Keyspace, begun: u64, case: &str) {
    io.set_unix_time_s(Some(begun));
    keyspace.put(&key(1), b"value").unwrap();
    let iter = keyspace.iter();
    for age in 0..=TTL {
        io.set_unix_time_s(Some(begun + age));
        assert_eq!(read(keyspace, case).len(), 1, "{case}: after {age} s");
    }
    let before = db.snapshot();
    io.set_unix_time_s(Some(begun + TTL + 1));
    assert_eq!(read(keyspace, case), [], "{case}");
    // What a snapshot and an iterator see does not expire.
    assert_eq!(entries(before.keyspace(keyspace).iter()).len(), 1, "{case}");
    assert_eq!(entries(iter).len(), 1, "{case}");
    assert_eq!(
        entries(db.snapshot().keyspace(keyspace).iter()),
        [],
        "{case}"
    );
}

#[test]
fn an_entry_in_a_memtable_expires_to_the_second_with_and_without_a_log() {
    for wal in [WalMode::On, WalMode::Off] {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(1_000));
        let db = open(&io, &options().wal(wal)).unwrap();
        let mortal = db.keyspace("mortal").unwrap();
        for begun in [1_000, 2_000, 2_006, 2_012] {
            lives_for_its_time(&io, &db, &mortal, begun, &format!("{wal:?}"));
        }
    }
    let io = FaultIo::new();
    io.set_unix_time_s(Some(3_000));
    let options = small_options().ttl(Duration::from_secs(TTL));
    let db = open(&io, &options).unwrap();
    lives_for_its_time(&io, &db, &db.default_keyspace(), 3_000, "the store's own");
}

#[test]
fn snapshots_have_the_same_view_id_until_something_is_written_or_expires() {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(1_000));
    let db = open(&io, &options()).unwrap();
    let mortal = db.keyspace("mortal").unwrap();
    let id = || db.snapshot().view_id();
    let empty = id();
    mortal.put(key(1), b"value").unwrap();
    let written = id();
    assert_ne!(written, empty);
    for age in 0..=TTL {
        io.set_unix_time_s(Some(1_000 + age));
        assert_eq!(id(), written, "after {age} s");
    }
    let before = db.snapshot();
    io.set_unix_time_s(Some(1_000 + TTL + 1));
    let expired = id();
    assert_ne!(expired, written);
    io.set_unix_time_s(Some(1_000 + TTL + 2));
    assert_eq!(id(), expired);
    assert_eq!(before.view_id(), written);
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(id(), expired);
}

#[test]
fn entries_of_a_quiet_keyspace_expire_across_flushes_of_others_and_reopening() {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(1_000));
    let db = open(&io, &options()).unwrap();
    let mortal = db.keyspace("mortal").unwrap();
    mortal.put(&key(1), b"value").unwrap();
    db.put(b"a", b"").unwrap();
    db.flush().unwrap();
    mortal.put(&key(2), b"value").unwrap();
    io.set_unix_time_s(Some(1_003));
    mortal.put(&key(3), b"value").unwrap();
    drop((mortal, db));
    // Recovery takes the times from the log, and much later writes do not change them.
    io.set_unix_time_s(Some(1_005));
    let db = open(&io, &tiny_options()).unwrap();
    let mortal = db.keyspace("mortal").unwrap();
    assert_eq!(read(&mortal, "all are alive").len(), 3);
    io.set_unix_time_s(Some(1_006));
    db.put(b"b", b"").unwrap();
    assert_eq!(
        read(&mortal, "the last is alive"),
        [(key(3), b"value".to_vec())]
    );
    db.flush().unwrap();
    assert_eq!(read(&mortal, "flushed"), [(key(3), b"value".to_vec())]);
    io.set_unix_time_s(Some(1_009));
    assert_eq!(read(&mortal, "none is alive"), []);
    drop((mortal, db));
    let db = open(&io.kill(), &tiny_options()).unwrap();
    assert_eq!(read(&db.keyspace("mortal").unwrap(), "opened again"), []);
}

#[test]
fn an_entry_written_while_the_clock_is_behind_lives_its_time_when_the_clock_is_set_right() {
    let right = 1_000_000;
    for wal in [WalMode::On, WalMode::Off] {
        for reopens in [false, true] {
            let io = FaultIo::new();
            let case = format!("{wal:?}, {reopens}");
            io.set_unix_time_s(Some(right));
            let options = options().wal(wal);
            let db = open(&io, &options).unwrap();
            let mortal = db.keyspace("mortal").unwrap();
            mortal.put(&key(1), b"first").unwrap();
            db.flush().unwrap();

            io.set_unix_time_s(Some(right - 86_400));
            drop(mortal);
            let db = if reopens {
                drop(db);
                open(&io, &options).unwrap()
            } else {
                db
            };
            let mortal = db.keyspace("mortal").unwrap();
            io.pass_time_s(TTL + 2);
            assert_eq!(read(&mortal, &case), [], "the store's clock does not stand");
            mortal.put(&key(2), b"second").unwrap();
            assert_eq!(read(&mortal, &case).len(), 1, "{case}");

            io.set_unix_time_s(Some(right + TTL + 2));
            assert_eq!(read(&mortal, &case).len(), 1, "{case}: set right");
            io.pass_time_s(TTL);
            assert_eq!(read(&mortal, &case).len(), 1, "{case}: at its time to live");
            // It was dated to the second while the clock was behind.
            io.pass_time_s(2);
            assert_eq!(read(&mortal, &case), [], "{case}: later");
        }
    }
}

#[test]
fn the_first_ttl_in_a_store_with_runs_is_exact_to_the_second() {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(900));
    let db = open(&io, &options()).unwrap();
    db.put(b"a", b"").unwrap();
    db.flush().unwrap();
    io.set_unix_time_s(Some(1_000));
    db.keyspace("mortal")
        .unwrap()
        .put(&key(1), b"value")
        .unwrap();
    drop(db);
    io.set_unix_time_s(Some(1_005));
    let db = open(&io, &tiny_options()).unwrap();
    let mortal = db.keyspace("mortal").unwrap();
    assert_eq!(read(&mortal, "alive").len(), 1);
    io.set_unix_time_s(Some(1_006));
    assert_eq!(read(&mortal, "expired"), []);
}

#[test]
fn a_repaired_manifest_keeps_ttls_and_expires_nothing_early() {
    // With the time of the repair, and the second that its entries then seem to be written in.
    for (repaired, written) in [(1_003, 1_003), (500, 1_000)] {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(1_000));
        let db = open(&io, &options()).unwrap();
        db.keyspace("mortal")
            .unwrap()
            .put(&key(1), b"value")
            .unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        io.take("/store/MANIFEST");
        io.set_unix_time_s(Some(repaired));
        let store = std::sync::Arc::new(io.clone());
        forerun_db::repair_with_io(store, testing::STORE, &options()).unwrap();
        let db = open(&io, &options()).unwrap();
        let mortal = db.keyspace("mortal").unwrap();
        io.set_unix_time_s(Some(written + TTL));
        assert_eq!(read(&mortal, "alive").len(), 1, "repaired at {repaired}");
        io.set_unix_time_s(Some(written + TTL + 1));
        assert_eq!(read(&mortal, "expired"), [], "repaired at {repaired}");
    }
}

#[test]
fn expired_entries_leave_the_disk_and_older_values_stay_hidden() {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(1_000));
    let db = open(&io, &options()).unwrap();
    let mortal = db.keyspace("mortal").unwrap();
    mortal.put(&key(1), b"first").unwrap();
    db.compact().unwrap();
    io.set_unix_time_s(Some(1_001));
    mortal.delete(&key(1)).unwrap();
    io.set_unix_time_s(Some(1_020));
    // The memtable's deletion has expired together with what it hides, and is left out of the run.
    db.flush().unwrap();
    io.set_unix_time_s(Some(1_000));
    assert_eq!(read(&mortal, "the clock was set back"), []);
    drop((mortal, db));
    let db = open(&io, &options()).unwrap();
    let mortal = db.keyspace("mortal").unwrap();
    assert_eq!(read(&mortal, "opened again"), []);
    io.set_unix_time_s(Some(1_020));
    db.compact().unwrap();
    let held = |level: &forerun_db::LevelStats| level.entries;
    assert_eq!(mortal.stats().levels.iter().map(held).sum::<u64>(), 0);
}

#[test]
fn an_invalid_time_to_live_is_refused() {
    let io = FaultIo::new();
    for ttl in [Duration::ZERO, Duration::from_millis(1_500)] {
        let own = small_options().ttl(ttl);
        let of_keyspace = KeyspaceOptions::default().ttl(ttl);
        let listed = small_options().keyspaces(vec![("a".into(), of_keyspace.clone())]);
        for options in [own, listed] {
            let refused = open(&io, &options);
            assert!(
                matches!(refused, Err(Error::BadOption { option: "ttl", .. })),
                "{refused:?}"
            );
        }
        assert_eq!(io.files(), [] as [std::path::PathBuf; 0]);
        let db = open(&FaultIo::new(), &small_options()).unwrap();
        let refused = db.keyspace_with("a", of_keyspace);
        assert!(
            matches!(refused, Err(Error::BadOption { option: "ttl", .. })),
            "{refused:?}"
        );
        assert_eq!(db.keyspaces(), [] as [&str; 0]);
    }
}

#[test]
fn opening_a_keyspace_with_another_ttl_reports_its_ttl() {
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    db.keyspace("mortal").unwrap();
    db.keyspace("eternal").unwrap();
    let ttl = |name| db.keyspace(name).unwrap().ttl();
    assert_eq!(ttl("mortal"), Some(Duration::from_secs(TTL)));
    assert_eq!(ttl("eternal"), None);
    let ask = |db: &Db, name: &str| db.keyspace_with(name, lives(7)).map(drop);
    let is_refused = |asked: Result<(), Error>, name: &str, has: Option<u64>| match asked {
        Err(Error::KeyspaceTtl {
            keyspace,
            stored,
            given,
        }) => {
            assert_eq!(keyspace, name);
            assert_eq!(
                (stored, given),
                (has.map(Duration::from_secs), Duration::from_secs(7))
            );
        }
        other => panic!("{other:?}"),
    };
    is_refused(ask(&db, "mortal"), "mortal", Some(TTL));
    is_refused(ask(&db, "eternal"), "eternal", None);
    db.keyspace_with("mortal", lives(TTL)).unwrap();
    db.keyspace_with("mortal", KeyspaceOptions::default())
        .unwrap();
    drop(db);
    let listed = small_options().keyspaces(vec![("mortal".into(), lives(7))]);
    is_refused(open(&io, &listed).map(drop), "mortal", Some(TTL));
    let own = small_options().ttl(Duration::from_secs(7));
    let refused = open(&io, &own).unwrap_err();
    let reported =
        "the store's own keyspace has no time to live, but was opened with a time to live of 7 s";
    assert_eq!(refused.to_string(), reported);
    let db = open(&io, &small_options()).unwrap();
    is_refused(ask(&db, "mortal"), "mortal", Some(TTL));
}

#[test]
fn expired_entries_are_not_found_and_their_runs_removed_unread() {
    let io = FaultIo::new();
    let options = tiny_options().ttl(Duration::from_secs(3));
    let db = open(&io, &options).unwrap();
    let name = |i: u64| format!("{i:05}").into_bytes();
    for i in 0..200 {
        db.put(&name(i), [7; 50]).unwrap();
    }
    assert_eq!(db.iter().count(), 200, "nothing is old enough yet");
    let before = db.snapshot();
    db.flush().unwrap();
    std::thread::sleep(Duration::from_millis(4100));
    db.put(&name(7), b"new").unwrap();
    db.compact().unwrap();
    let check = |db: &Db| {
        let keys: Vec<_> = (0..200).map(name).collect();
        let mut values = Values::new();
        db.multi_get(&keys, &mut values).unwrap();
        assert_eq!(values.found(), 1);
        assert_eq!(values.get(7).unwrap(), Some(&b"new"[..]));
        assert_eq!(db.get(&name(8)).unwrap(), None);
        assert_eq!(db.iter().count(), 1);
        assert_eq!(db.iter().rev().count(), 1);
    };
    check(&db);
    assert_eq!(
        before.iter().count(),
        200,
        "an older snapshot sees what it saw"
    );
    drop(before);
    let read = db.stats().tree.compaction_read_bytes;
    db.put(&name(7), b"new").unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    check(&db);
    let entries: u64 = db.stats().levels.iter().map(|level| level.entries).sum();
    assert!(entries <= 2, "{}", db.stats());
    assert!(
        db.stats().tree.compaction_read_bytes - read < 2_000,
        "{}",
        db.stats()
    );
    db.close().unwrap();
    check(&open(&io, &tiny_options()).unwrap());
}
