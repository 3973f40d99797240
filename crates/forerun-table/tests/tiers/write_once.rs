//! Writes with a client's number are applied once, whatever is repeated and whatever fails.

use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{Background, Db, Options, ReadBackend};
use forerun_table::{Dtype, Error, Table, Update, Write, WriteId, WritePolicy};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// So few rows in memory that a batch takes several chunks.
const CAPACITY: usize = 64;

fn open(path: &Path) -> Table {
    let builder = Table::builder(Dtype::I64, 1).host_capacity(CAPACITY);
    builder.path(path).open().unwrap()
}

fn open_on(io: &FaultIo) -> Table {
    let options = Options::default().background(Background::Caller);
    let options = options.reads(ReadBackend::Sync);
    let db = Db::open_with_io(Arc::new(io.clone()), "store", options).unwrap();
    let builder = Table::builder(Dtype::I64, 1).host_capacity(CAPACITY);
    builder
        .db(db)
        .background(Background::Caller)
        .open()
        .unwrap()
}

fn row(number: i64) -> [u8; 8] {
    number.to_le_bytes()
}

fn rows(numbers: impl IntoIterator<Item = i64>) -> Vec<u8> {
    numbers.into_iter().flat_map(row).collect()
}

fn value(table: &Table, key: u64) -> Option<i64> {
    let (mut row, mut found) = ([0; 8], [false]);
    table.find(&[key], &mut row, &mut found).unwrap();
    found[0].then(|| i64::from_le_bytes(row))
}

fn id(client: u128, sequence: u64) -> WriteId {
    WriteId { client, sequence }
}

fn add(table: &Table, id: WriteId, keys: &[u64], number: i64) -> Result<Vec<bool>, Error> {
    let rows = rows(keys.iter().map(|_| number));
    let mut found = vec![false; keys.len()];
    table.write_once(id, keys, Write::Update(&rows, Update::Add), &mut found)?;
    Ok(found)
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u64>, i64),
    Assign(Vec<u64>, i64),
    Add(Vec<u64>, i64),
    Erase(Vec<u64>),
}

fn ops() -> impl Strategy<Value = Vec<(u128, Op, usize, bool)>> {
    let keys = || vec(0..200u64, 0..300);
    let op = prop_oneof![
        (keys(), -9..9i64).prop_map(|(keys, number)| Op::Insert(keys, number)),
        (keys(), -9..9i64).prop_map(|(keys, number)| Op::Assign(keys, number)),
        (keys(), -9..9i64).prop_map(|(keys, number)| Op::Add(keys, number)),
        keys().prop_map(Op::Erase),
    ];
    // The client, how often the write is repeated, and whether the table is opened again before.
    vec((0..3u128, op, 0..3usize, prop::bool::weighted(0.2)), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_repeated_write_has_the_effect_and_the_answer_of_one(ops in ops()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows");
        let mut table = open(&path);
        let mut model: HashMap<u64, i64> = HashMap::new();
        let mut sequences = [0u64; 3];
        let mut in_all = [0u64; 3];
        for (client, op, repeats, is_reopened) in ops {
            let sequence = &mut sequences[client as usize];
            *sequence += 1;
            let id = id(client, *sequence);
            let (keys, number) = match &op {
                Op::Insert(keys, n) | Op::Assign(keys, n) | Op::Add(keys, n) => (keys, *n),
                Op::Erase(keys) => (keys, 0),
            };
            let bytes = rows(keys.iter().map(|_| number));
            // Duplicates in one batch apply in order, but flags are those of the beginning of a
            // chunk, so only inserted keys differ between chunks, and updates insert none.
            let expected: Vec<bool> = match &op {
                Op::Insert(..) | Op::Erase(_) => vec![true; keys.len()],
                _ => keys.iter().map(|key| model.contains_key(key)).collect(),
            };
            for key in keys {
                match &op {
                    Op::Insert(..) => {
                        model.insert(*key, number);
                    }
                    Op::Assign(..) => {
                        model.entry(*key).and_modify(|value| *value = number);
                    }
                    Op::Add(..) => {
                        model.entry(*key).and_modify(|value| *value += number);
                    }
                    Op::Erase(_) => {
                        model.remove(key);
                    }
                }
            }
            for repeat in 0..=repeats {
                if is_reopened && repeat == 1 {
                    table.close().unwrap();
                    table = open(&path);
                }
                let write = match &op {
                    Op::Insert(..) => Write::Insert(&bytes),
                    Op::Assign(..) => Write::Update(&bytes, Update::Assign),
                    Op::Add(..) => Write::Update(&bytes, Update::Add),
                    Op::Erase(_) => Write::Erase,
                };
                let mut found = vec![false; keys.len()];
                table.write_once(id, keys, write, &mut found).unwrap();
                prop_assert_eq!(&found, &expected);
            }
            in_all[client as usize] += keys.len() as u64;
            let applied = table.applied(client).unwrap().unwrap();
            prop_assert_eq!((applied.sequence, &applied.found), (id.sequence, &expected));
            let in_all = in_all[client as usize];
            prop_assert_eq!((applied.keys, applied.keys_in_all), (keys.len(), in_all));
            for key in 0..200 {
                prop_assert_eq!(value(&table, key), model.get(&key).copied());
            }
            prop_assert_eq!(table.count().unwrap(), model.len() as u64);
        }
    }
}

#[test]
fn a_write_that_fails_halfway_continues_after_the_keys_that_are_done() {
    let keys: Vec<u64> = (0..1000).collect();
    let mut has_stopped_halfway = false;
    for fails_after in 0..12 {
        let io = FaultIo::new();
        let table = open_on(&io);
        table.insert(&keys, &rows(keys.iter().map(|_| 0))).unwrap();
        table.flush().unwrap();
        add(&table, id(7, 1), &keys[..1], 0).unwrap();
        io.fail_call(io.calls() + fails_after, Fault::Fail(EIO));
        let first = add(&table, id(7, 2), &keys, 1);
        if let Err(Error::Keys(failures)) = &first {
            let done = failures.served();
            let failed: Vec<usize> = failures.iter().map(|(at, ..)| at).collect();
            assert_eq!(failed, (done..keys.len()).collect::<Vec<_>>());
            has_stopped_halfway |= done > 0;
        }
        let io = io.kill();
        drop(table);
        let table = open_on(&io);
        assert_eq!(add(&table, id(7, 2), &keys, 1).unwrap(), vec![true; 1000]);
        for &key in &keys {
            assert_eq!(
                value(&table, key),
                Some(1),
                "key {key}, failure after {fails_after}"
            );
        }
    }
    assert!(has_stopped_halfway);
}

#[test]
fn threads_that_repeat_one_write_apply_it_once() {
    let directory = tempfile::tempdir().unwrap();
    let table = open(&directory.path().join("rows"));
    let keys: Vec<u64> = (0..200).collect();
    table.insert(&keys, &rows(keys.iter().map(|_| 0))).unwrap();
    for sequence in 1..=20 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| add(&table, id(9, sequence), &keys, 1).unwrap());
            }
        });
    }
    assert!(keys.iter().all(|&key| value(&table, key) == Some(20)));
}

#[test]
fn late_and_altered_writes_are_refused_and_records_can_be_removed() {
    let directory = tempfile::tempdir().unwrap();
    let table = open(&directory.path().join("rows"));
    table.insert(&[1, 2], &rows([0, 0])).unwrap();
    add(&table, id(1, 5), &[1, 2], 1).unwrap();
    let late = add(&table, id(1, 4), &[1, 2], 1);
    assert!(matches!(
        late,
        Err(Error::Superseded {
            sequence: 4,
            last: 5
        })
    ));
    assert!(matches!(
        add(&table, id(1, 5), &[1], 1),
        Err(Error::Length { .. })
    ));
    assert_eq!(value(&table, 1), Some(1));

    assert_eq!(table.forget_clients(Duration::from_secs(3600)).unwrap(), 0);
    assert!(table.applied(1).unwrap().is_some());
    assert!(table.forget_client(1).unwrap() && !table.forget_client(1).unwrap());
    assert_eq!(table.applied(1).unwrap(), None);
    add(&table, id(2, 1), &[1], 1).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(table.forget_clients(Duration::from_secs(1)).unwrap(), 1);
}

#[test]
fn a_checkpoint_has_the_records_of_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    let table = open(&directory.path().join("rows"));
    table.insert(&[1], &row(0)).unwrap();
    add(&table, id(1, 1), &[1], 1).unwrap();
    let copy = directory.path().join("copy");
    table.checkpoint(&copy).unwrap();
    add(&table, id(1, 2), &[1], 1).unwrap();
    let copy = open(&copy);
    assert_eq!(copy.applied(1).unwrap().unwrap().sequence, 1);
    add(&copy, id(1, 1), &[1], 1).unwrap();
    assert_eq!(value(&copy, 1), Some(1));
    assert_eq!(copy.count().unwrap(), 1);
    assert_eq!(
        copy.export(10)
            .unwrap()
            .map(|rows| rows.unwrap().keys.len())
            .sum::<usize>(),
        1
    );
}

#[test]
fn a_table_that_cannot_record_writes_refuses_them() {
    let without = Table::builder(Dtype::I64, 1).open().unwrap();
    assert!(matches!(
        add(&without, id(1, 1), &[1], 1),
        Err(Error::NoStore { .. })
    ));
    let directory = tempfile::tempdir().unwrap();
    let builder = Table::builder(Dtype::I64, 1).path(directory.path().join("rows"));
    let back = builder.writes(WritePolicy::WriteBack).open().unwrap();
    assert!(matches!(
        add(&back, id(1, 1), &[1], 1),
        Err(Error::Conflict(_))
    ));
    assert!(matches!(back.applied(1), Err(Error::Conflict(_))));
}
