//! Batches with rows of ascending keys, with range deletions and single deletions between them,
//! across keyspaces with other orders and with a time to live, and with too little memory now and
//! then.

use crate::testing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Background, Db, Durability, Error, Keyspace, KeyspaceOptions, ReverseBytewise, Snapshot,
    WriteBatch,
};
use testing::random::Random;
use testing::{entries, open, small_options, with_and_without_index};

/// The time to live of one of the keyspaces, in seconds.
const TTL: u64 = 4;

const NAMES: [&str; 3] = ["", "reverse", "mortal"];

/// For each keyspace, its values and when they were written.
#[derive(Clone, Default)]
struct Model([BTreeMap<u32, (Vec<u8>, u64)>; 3]);

impl Model {
    /// What a keyspace holds at a time, in its order.
    fn entries(&self, keyspace: usize, now: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let is_alive = |written: u64| NAMES[keyspace] != "mortal" || now <= written + TTL;
        let alive = self.0[keyspace]
            .iter()
            .filter(|(_, value)| is_alive(value.1));
        let mut all: Vec<_> = alive
            .map(|(key, (value, _))| (key.to_be_bytes().to_vec(), value.clone()))
            .collect();
        if NAMES[keyspace] == "reverse" {
            all.reverse();
        }
        all
    }
}

/// Adds a row of puts to a batch, with deletions between and behind them.
fn add_row(random: &mut Random, db: &Db, batch: &mut WriteBatch, model: &mut Model, now: u64) {
    let number = random.below(3) as usize;
    let keyspace = keyspace(db, NAMES[number]);
    let mut batch = batch.keyspace(&keyspace);
    let model = &mut model.0[number];
    let (first, step) = (random.below(500) as u32, 1 + random.below(3) as u32);
    for nth in 0..20 + random.below(60) as u32 {
        let key = first + nth * step;
        let value = vec![random.below(256) as u8; random.below(30) as usize];
        batch.put(key.to_be_bytes(), &value).unwrap();
        model.insert(key, (value, now));
        let start = first + random.below(1 + u64::from(nth * step)) as u32;
        match random.below(30) {
            // Over what has just been put, or beyond it.
            0 => {
                let (low, high) = (start, start + 1 + random.below(60) as u32);
                let [from, to] = match NAMES[number] {
                    "reverse" => [high, low],
                    _ => [low, high],
                };
                batch
                    .delete_range(from.to_be_bytes(), to.to_be_bytes())
                    .unwrap();
                model.retain(|key, _| match NAMES[number] {
                    "reverse" => *key <= low || *key > high,
                    _ => *key < low || *key >= high,
                });
            }
            1 => {
                batch.delete(start.to_be_bytes()).unwrap();
                model.remove(&start);
            }
            _ => {}
        }
    }
}

/// Checks what a snapshot of the store holds.
fn check(db: &Db, snapshot: &Snapshot, model: &Model, now: u64, case: &str) {
    for (number, name) in NAMES.iter().enumerate() {
        let keyspace = keyspace(db, name);
        let expected = model.entries(number, now);
        let view = snapshot.keyspace(&keyspace);
        assert_eq!(entries(view.iter()), expected, "{case}: {name:?}");
        let found = (0..800_u32).filter_map(|key| {
            let key = key.to_be_bytes();
            let value = view.get(key).unwrap()?;
            Some((key.to_vec(), value))
        });
        let mut found: Vec<_> = found.collect();
        if *name == "reverse" {
            found.reverse();
        }
        assert_eq!(found, expected, "{case}: {name:?}, alone");
    }
}

fn keyspace(db: &Db, name: &str) -> Keyspace {
    match name {
        "" => db.default_keyspace(),
        name => db.keyspace(name).unwrap(),
    }
}

#[test]
fn rows_with_deletions_between_them_equal_those_of_a_map() {
    let reverse = KeyspaceOptions::default().comparator(Arc::new(ReverseBytewise));
    let mortal = KeyspaceOptions::default().ttl(Duration::from_secs(TTL));
    let options = small_options()
        .memtable_bytes(48 << 10)
        .background(Background::Caller)
        .keyspaces(vec![("reverse".into(), reverse), ("mortal".into(), mortal)]);
    for (seed, options) in (1..).zip(with_and_without_index(&options)) {
        let mut io = FaultIo::new();
        let mut db = open(&io, &options).unwrap();
        let (mut random, mut model, mut now) = (Random(seed), Model::default(), 1000);
        let mut refused = 0;
        let mut kept: Option<(Snapshot, Model, u64)> = None;
        for round in 0..150 {
            // An entry is never read in the second in which it expires.
            now += 3 * random.below(2);
            io.set_unix_time_s(Some(now));
            let (mut batch, mut written) = (WriteBatch::new(), model.clone());
            for _ in 0..1 + random.below(4) {
                add_row(&mut random, &db, &mut batch, &mut written, now);
            }
            if random.below(8) == 0 {
                // It fits into some memtables and not into all.
                let name = NAMES[random.below(3) as usize];
                let keyspace = keyspace(&db, name);
                batch
                    .keyspace(&keyspace)
                    .put("long", [7; 300 << 10])
                    .unwrap();
            }
            let case = format!("seed {seed}, round {round}");
            match db.write(&batch, Durability::Buffered) {
                Ok(_) => model = written,
                Err(Error::MemoryLimit { .. }) => refused += 1,
                Err(error) => panic!("{case}: {error}"),
            }
            let snapshot = db.snapshot();
            check(&db, &snapshot, &model, now, &case);
            if let Some((snapshot, model, now)) = &kept {
                check(&db, snapshot, model, *now, &format!("{case}, before"));
            }
            match random.below(20) {
                0 => kept = Some((snapshot, model.clone(), now)),
                1 => {
                    drop((kept.take(), snapshot, db));
                    io = io.kill();
                    io.set_unix_time_s(Some(now));
                    db = open(&io, &options).unwrap();
                }
                _ => {}
            }
        }
        assert!(refused > 5, "{refused}");
    }
}
