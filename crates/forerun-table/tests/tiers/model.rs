//! A table behaves like a map, whatever its capacities and policies.

use crate::testing;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, Options};
use forerun_table::{
    Admission, Dtype, Error, EvictStrategy, Promotion, Rows, Table, Update, WhenHostFull,
    WritePolicy,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use testing::{check_all, find, find_to_device, to_device};

const KEYS: u64 = 60;
const WORDS: u32 = 3;

#[derive(Clone, Debug)]
enum Op {
    Find(Vec<u64>),
    FindToDevice(Vec<u64>),
    Insert(Vec<(u64, u64)>),
    Update(Update, Vec<(u64, u64)>),
    Erase(Vec<u64>),
    Prefetch(Vec<u64>),
    FindPtr(Vec<u64>),
    Import(Vec<(u64, u64)>),
    Flush,
    Snapshot,
    Reopen,
}

#[derive(Clone, Debug)]
struct Shape {
    /// 0: no device tier. 1: one bucket.
    device_rows: usize,
    rows: usize,
    strategy: EvictStrategy,
    admission: Admission,
    promotion: Promotion,
    writes: WritePolicy,
    background: Background,
    /// Whether the store's memtables have an index.
    is_indexed: bool,
}

fn shapes() -> impl Strategy<Value = Shape> {
    (
        prop_oneof![Just(0usize), Just(1), 1usize..100, Just(300)],
        prop_oneof![1usize..8, 8usize..80],
        prop_oneof![
            Just(EvictStrategy::Lru),
            Just(EvictStrategy::Lfu),
            Just(EvictStrategy::Customized)
        ],
        prop_oneof![
            Just(Admission::Always),
            Just(Admission::SecondTouch),
            Just(Admission::ByScore)
        ],
        prop_oneof![3 => Just(Promotion::OnFind), 1 => Just(Promotion::OnPrefetch)],
        prop_oneof![
            Just(WritePolicy::WriteThrough),
            Just(WritePolicy::WriteBack)
        ],
        prop_oneof![Just(Background::Caller), Just(Background::Threads)],
        any::<bool>(),
    )
        .prop_map(
            |(
                device_rows,
                rows,
                strategy,
                admission,
                promotion,
                writes,
                background,
                is_indexed,
            )| Shape {
                device_rows,
                rows,
                strategy,
                admission,
                promotion,
                writes,
                background,
                is_indexed,
            },
        )
}

/// Keys from both ends of the range.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![0..KEYS / 2, (0..KEYS / 2).prop_map(|n| u64::MAX - n)]
}

fn all_keys() -> Vec<u64> {
    (0..KEYS / 2)
        .chain((0..KEYS / 2).map(|n| u64::MAX - n))
        .collect()
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let pairs = || vec((key(), any::<u64>()), 0..40);
    let how = prop_oneof![Just(Update::Assign), Just(Update::Add)];
    let op = prop_oneof![
        3 => vec(key(), 0..50).prop_map(Op::Find),
        3 => vec(key(), 0..50).prop_map(Op::FindToDevice),
        4 => pairs().prop_map(Op::Insert),
        3 => (how, pairs()).prop_map(|(how, pairs)| Op::Update(how, pairs)),
        2 => vec(key(), 0..10).prop_map(Op::Erase),
        2 => vec(key(), 0..30).prop_map(Op::Prefetch),
        1 => vec(key(), 0..30).prop_map(Op::FindPtr),
        1 => pairs().prop_map(Op::Import),
        1 => Just(Op::Flush),
        1 => Just(Op::Snapshot),
        1 => Just(Op::Reopen),
    ];
    vec(op, 1..40)
}

/// Keys, rows of three words, and scores.
fn batch(pairs: &[(u64, u64)]) -> Rows {
    let row = |value: u64| value.to_le_bytes().repeat(WORDS as usize);
    Rows {
        keys: pairs.iter().map(|&(key, _)| key).collect(),
        rows: pairs.iter().flat_map(|&(_, value)| row(value)).collect(),
        scores: pairs.iter().map(|&(_, value)| value % 16).collect(),
    }
}

/// A table and the map with which its answers are compared.
struct CheckedTable {
    shape: Shape,
    io: Arc<FaultIo>,
    table: Option<Table>,
    model: HashMap<u64, Vec<u8>>,
}

impl CheckedTable {
    fn new(shape: Shape) -> CheckedTable {
        let io = Arc::new(FaultIo::new());
        let mut checked = CheckedTable {
            shape,
            io,
            table: None,
            model: HashMap::new(),
        };
        checked.open();
        checked
    }

    fn open(&mut self) {
        let options = Options::default()
            .memtable_bytes(64 << 10)
            .memtable_index(self.shape.is_indexed)
            .background(Background::Caller);
        let shape = &self.shape;
        let db = Db::open_with_io(self.io.clone(), "store", options).unwrap();
        let table = Table::builder(Dtype::I64, WORDS)
            .device_capacity(shape.device_rows)
            .host_capacity(shape.rows)
            .db(db)
            .evict_strategy(shape.strategy)
            .admission(shape.admission)
            .promotion(shape.promotion)
            .writes(shape.writes)
            .background(shape.background)
            .open();
        self.table = Some(table.unwrap());
    }

    fn table(&self) -> &Table {
        self.table.as_ref().unwrap()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Find(keys) => {
                for (key, answer) in keys.iter().zip(find(self.table(), &keys)) {
                    assert_eq!(answer.unwrap().as_ref(), self.model.get(key), "key {key}");
                }
            }
            Op::FindToDevice(keys) if self.shape.device_rows > 0 => {
                for (key, answer) in keys.iter().zip(find_to_device(self.table(), &keys)) {
                    assert_eq!(answer.unwrap().as_ref(), self.model.get(key), "key {key}");
                }
            }
            Op::FindToDevice(keys) => {
                let (mut rows, mut found) = (vec![0; keys.len() * 24], vec![true; keys.len()]);
                let answer = to_device(self.table(), &keys, &mut rows, &mut found);
                assert!(matches!(answer, Err(Error::NoDeviceTier { .. })));
            }
            Op::Insert(pairs) => {
                let rows = batch(&pairs);
                if self.shape.strategy == EvictStrategy::Customized {
                    let table = self.table();
                    table
                        .insert_with_scores(&rows.keys, &rows.rows, &rows.scores)
                        .unwrap();
                } else {
                    self.table().insert(&rows.keys, &rows.rows).unwrap();
                }
                self.put(&rows);
            }
            Op::Import(pairs) => {
                let rows = batch(&pairs);
                self.table().import_rows(&rows.keys, &rows.rows).unwrap();
                self.put(&rows);
            }
            Op::Update(how, pairs) => self.update(how, &batch(&pairs)),
            Op::Erase(keys) => {
                self.table().erase(&keys).unwrap();
                self.model.retain(|key, _| !keys.contains(key));
            }
            Op::Prefetch(keys) => self.table().prefetch(&keys).unwrap(),
            Op::FindPtr(keys) => match self.table().find_ptr(&keys) {
                Ok(rows) => {
                    assert_eq!(rows.len(), keys.len());
                    for (key, _) in keys.iter().zip(&*rows).filter(|(_, row)| **row != 0) {
                        assert!(self.model.contains_key(key), "key {key}");
                    }
                }
                Err(error) => {
                    assert!(matches!(error, Error::NoDeviceTier { .. }), "{error}");
                    assert_eq!(self.shape.device_rows, 0);
                }
            },
            Op::Flush => self.table().flush().unwrap(),
            Op::Snapshot => self.snapshot(),
            Op::Reopen => {
                if let Some(table) = self.table.take() {
                    table.close().unwrap();
                }
                self.open();
            }
        }
    }

    fn put(&mut self, rows: &Rows) {
        let each = rows
            .keys
            .iter()
            .zip(rows.rows.chunks_exact(WORDS as usize * 8));
        self.model
            .extend(each.map(|(&key, row)| (key, row.to_vec())));
    }

    fn update(&mut self, how: Update, rows: &Rows) {
        let mut found = vec![false; rows.keys.len()];
        let updated = self
            .table()
            .update(&rows.keys, &rows.rows, how, &mut found)
            .unwrap();
        assert_eq!(updated, found.iter().filter(|&&found| found).count());
        let each = rows
            .keys
            .iter()
            .zip(rows.rows.chunks_exact(WORDS as usize * 8));
        for ((key, row), found) in each.zip(found) {
            let present = self.model.get_mut(key);
            assert_eq!(found, present.is_some(), "key {key}");
            let Some(present) = present else { continue };
            match how {
                Update::Assign => present.copy_from_slice(row),
                Update::Add => {
                    for (to, by) in present
                        .as_chunks_mut::<8>()
                        .0
                        .iter_mut()
                        .zip(row.as_chunks::<8>().0)
                    {
                        *to = i64::from_le_bytes(*to)
                            .wrapping_add(i64::from_le_bytes(*by))
                            .to_le_bytes();
                    }
                }
            }
        }
    }

    fn snapshot(&self) {
        let snapshot = self.table().snapshot().unwrap();
        let mut all = HashMap::new();
        for rows in snapshot.export(7) {
            let rows = rows.unwrap();
            assert!(rows.keys.is_sorted() && (1..=7).contains(&rows.keys.len()));
            let each = rows.rows.chunks_exact(WORDS as usize * 8);
            all.extend(rows.keys.iter().copied().zip(each.map(<[u8]>::to_vec)));
        }
        assert_eq!(all, self.model);
        assert_eq!(self.table().count().unwrap(), self.model.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_table_over_a_store_behaves_like_a_map(shape in shapes(), ops in ops()) {
        let mut checked = CheckedTable::new(shape);
        for op in ops {
            checked.apply(op);
        }
        check_all(checked.table(), &checked.model, &all_keys());
        checked.table().wait_idle();
        let stats = checked.table().stats();
        prop_assert!(stats.host_rows <= stats.host_capacity_rows);
        if let Some(device) = &stats.device {
            prop_assert!(device.rows <= device.capacity_rows && device.failure.is_none());
        }
        prop_assert_eq!(stats.counts.failed_keys + stats.counts.failed_moves, 0);
        check_all(checked.table(), &checked.model, &all_keys());
    }

    #[test]
    fn evicted_rows_reach_the_sink_before_they_are_dropped(
        device_rows in prop_oneof![Just(0usize), 1usize..40],
        rows in 1usize..30,
        pairs in vec((0..200u64, any::<u64>()), 1..400),
    ) {
        let handed: Arc<Mutex<HashMap<u64, Vec<u8>>>> = Arc::default();
        let collected = Arc::clone(&handed);
        let table = Table::builder(Dtype::I64, WORDS)
            .device_capacity(device_rows)
            .host_capacity(rows)
            .background(Background::Caller)
            .when_full(WhenHostFull::Callback(Arc::new(move |keys, rows| {
                let each = rows.chunks_exact(WORDS as usize * 8).map(<[u8]>::to_vec);
                collected.lock().unwrap().extend(keys.iter().copied().zip(each));
            })))
            .open()
            .unwrap();
        let mut model = HashMap::new();
        for pairs in pairs.chunks(25) {
            let rows = batch(pairs);
            table.insert(&rows.keys, &rows.rows).unwrap();
            for (&key, row) in rows.keys.iter().zip(rows.rows.chunks_exact(24)) {
                model.insert(key, row.to_vec());
            }
            // Some of them are promoted to the device, and lookups find them there from then on.
            let used: Vec<u64> = rows.keys.iter().copied().filter(|key| key % 3 == 0).collect();
            for _ in 0..3 {
                find(&table, &used);
            }
            prop_assert!(table.host_len() <= table.stats().host_capacity_rows as usize);
            prop_assert!(table.device_len() <= table.host_len());
        }
        let keys: Vec<u64> = model.keys().copied().collect();
        let handed = handed.lock().unwrap();
        let mut there = 0;
        for (key, answer) in keys.iter().zip(find(&table, &keys)) {
            let answer = answer.unwrap();
            there += usize::from(answer.is_some());
            // The newest row is in the table, or it was the last one passed to the callback.
            prop_assert_eq!(answer.as_ref().or(handed.get(key)), model.get(key));
        }
        prop_assert_eq!(there, table.host_len());
        prop_assert_eq!(table.count().unwrap(), there as u64);
    }
}
