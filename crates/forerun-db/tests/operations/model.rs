//! The store against a `BTreeMap`: random writes, every kind of read, snapshots and reopenings in
//! between.

use crate::testing;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Bytewise, Comparator, Db, Durability, Error, Iter, Options, ReverseBytewise, Snapshot, Values,
    WriteBatch,
};
use proptest::prelude::*;
use testing::{open, small_options, tiny_options, with_and_without_index};

type Key = Vec<u8>;

#[derive(Clone, Debug)]
enum Step {
    Put(Key, Vec<u8>),
    Delete(Key),
    Write(Vec<(Key, Option<Vec<u8>>)>, bool),
    /// Writes so many of all keys, each with the same value.
    Fill(usize, Vec<u8>),
    Get(Key),
    MultiGet(Vec<Key>),
    Range(Bound<Key>, Bound<Key>, Vec<bool>),
    Prefix(Key, Vec<bool>),
    Snapshot,
    /// Drops a snapshot.
    Forget(usize),
    DeleteRange(Key, Key),
    /// Sorted entries, in which a key may occur several times, and whether they are committed.
    Ingest(Vec<(Key, Option<Vec<u8>>)>, bool),
    Flush,
    Compact,
    Close,
    Kill,
}

/// Few and short keys made of few different bytes, so that they collide, nest, and touch the ends
/// of the order.
fn key() -> impl Strategy<Value = Key> {
    prop::collection::vec(prop::sample::select(vec![0, b'a', b'b', 0xff]), 0..4)
}

/// The keys that [`key`] may draw, in an order that is not theirs.
fn all_keys() -> impl Iterator<Item = Key> {
    const BYTES: [u8; 4] = [0, b'a', b'b', 0xff];
    const KEYS: usize = 1 + 4 + 16 + 64;
    let nth = |mut at: usize| {
        let mut key = Vec::new();
        while at > 0 {
            key.push(BYTES[(at - 1) % 4]);
            at = (at - 1) / 4;
        }
        key
    };
    (0..KEYS).map(move |at| nth(at * 37 % KEYS))
}

fn bound() -> impl Strategy<Value = Bound<Key>> {
    prop_oneof![
        Just(Bound::Unbounded),
        key().prop_map(Bound::Included),
        key().prop_map(Bound::Excluded)
    ]
}

/// From which end each step of an iteration is taken.
fn ends() -> impl Strategy<Value = Vec<bool>> {
    prop_oneof![
        Just(vec![false; 60]),
        Just(vec![true; 60]),
        prop::collection::vec(any::<bool>(), 60),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let value = || prop::collection::vec(any::<u8>(), 0..40);
    // Half of them have large values, so that there are several runs with many possible places.
    let large = || prop::collection::vec(any::<u8>(), 600..3000);
    let some = |value: BoxedStrategy<Vec<u8>>| prop::option::weighted(0.8, value);
    let ingested = prop_oneof![
        prop::collection::vec((key(), some(value().boxed())), 0..12),
        prop::collection::vec((key(), some(large().boxed())), 0..12),
    ];
    let write = prop::collection::vec((key(), prop::option::weighted(0.7, value())), 0..8);
    prop_oneof![
        6 => (key(), value()).prop_map(|(key, value)| Step::Put(key, value)),
        3 => key().prop_map(Step::Delete),
        4 => (write, any::<bool>()).prop_map(|(ops, sync)| Step::Write(ops, sync)),
        1 => (40..120_usize, value()).prop_map(|(count, value)| Step::Fill(count, value)),
        3 => key().prop_map(Step::Get),
        3 => prop::collection::vec(key(), 0..20).prop_map(Step::MultiGet),
        4 => (bound(), bound(), ends())
            .prop_map(|(start, end, ends)| Step::Range(start, end, ends)),
        3 => (key(), ends()).prop_map(|(key, ends)| Step::Prefix(key, ends)),
        1 => Just(Step::Snapshot),
        1 => any::<usize>().prop_map(Step::Forget),
        2 => (key(), key()).prop_map(|(start, end)| Step::DeleteRange(start, end)),
        2 => (ingested, prop::bool::weighted(0.8))
            .prop_map(|(entries, commits)| Step::Ingest(entries, commits)),
        1 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Close),
        1 => Just(Step::Kill),
    ]
}

/// The reference: a map, read in the order of a comparator.
#[derive(Clone, Default)]
struct Model(BTreeMap<Key, Vec<u8>>);

impl Model {
    fn entries(
        &self,
        comparator: &dyn Comparator,
        keep: impl Fn(&[u8]) -> bool,
    ) -> Vec<(Key, Vec<u8>)> {
        let mut entries: Vec<_> = self
            .0
            .iter()
            .filter(|(key, _)| keep(key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        entries.sort_by(|a, b| comparator.compare(&a.0, &b.0));
        entries
    }

    fn apply(&mut self, key: &[u8], value: &Option<Vec<u8>>) {
        match value {
            Some(value) => self.0.insert(key.to_vec(), value.clone()),
            None => self.0.remove(key),
        };
    }
}

fn is_inside(
    comparator: &dyn Comparator,
    key: &[u8],
    start: &Bound<Key>,
    end: &Bound<Key>,
) -> bool {
    let order = |bound: &Key| comparator.compare(key, bound);
    let behind_start = match start {
        Bound::Unbounded => true,
        Bound::Included(bound) => order(bound) != Ordering::Less,
        Bound::Excluded(bound) => order(bound) == Ordering::Greater,
    };
    let before_end = match end {
        Bound::Unbounded => true,
        Bound::Included(bound) => order(bound) != Ordering::Greater,
        Bound::Excluded(bound) => order(bound) == Ordering::Less,
    };
    behind_start && before_end
}

/// Takes entries from the given ends, lending and owning in turn, and compares each with the
/// reference.
fn check_iter(mut iter: Iter, wanted: Vec<(Key, Vec<u8>)>, ends: &[bool]) {
    let mut wanted = wanted.into_iter();
    for (i, from_back) in ends.iter().enumerate() {
        let (found, wanted) = match (from_back, i % 3 == 0) {
            (false, false) => (iter.next().map(Result::unwrap), wanted.next()),
            (true, false) => (iter.next_back().map(Result::unwrap), wanted.next_back()),
            (false, true) => (
                iter.next_entry()
                    .unwrap()
                    .map(|e| (e.key.to_vec(), e.value.to_vec())),
                wanted.next(),
            ),
            (true, true) => (
                iter.next_entry_back()
                    .unwrap()
                    .map(|e| (e.key.to_vec(), e.value.to_vec())),
                wanted.next_back(),
            ),
        };
        assert_eq!(
            found,
            wanted,
            "step {i} from the {}",
            if *from_back { "back" } else { "front" }
        );
    }
}

/// The entries that a snapshot returned, to be checked again later.
struct Remembered {
    snapshot: Snapshot,
    model: Model,
}

fn check_snapshot(Remembered { snapshot, model }: &Remembered, comparator: &dyn Comparator) {
    check_iter(
        snapshot.iter(),
        model.entries(comparator, |_| true),
        &[false; 60],
    );
    check_iter(
        snapshot.prefix(b"a"),
        model.entries(comparator, |key| key.starts_with(b"a")),
        &[true; 60],
    );
    assert_eq!(snapshot.count().unwrap(), model.0.len() as u64);
    let keys: Vec<_> = model.0.keys().cloned().chain([b"aaaa".to_vec()]).collect();
    let mut values = Values::new();
    snapshot.multi_get(&keys, &mut values).unwrap();
    for (key, value) in keys.iter().zip(values.iter()) {
        assert_eq!(value.unwrap(), model.0.get(key).map(Vec::as_slice));
        assert_eq!(snapshot.get(key).unwrap().as_ref(), model.0.get(key));
    }
}

fn run(steps: &[Step], options: &Options) {
    let comparator = &*options.comparator;
    let mut io = FaultIo::new();
    let mut db: Db = open(&io, options).unwrap();
    let mut model = Model::default();
    let mut snapshots: Vec<Remembered> = Vec::new();
    for step in steps {
        match step {
            Step::Put(key, value) => {
                db.put(key, value).unwrap();
                model.apply(key, &Some(value.clone()));
            }
            Step::Delete(key) => {
                db.delete(key).unwrap();
                model.apply(key, &None);
            }
            Step::Write(ops, sync) => {
                let mut batch = WriteBatch::new();
                for (key, value) in ops {
                    match value {
                        Some(value) => batch.put(key, value).unwrap(),
                        None => batch.delete(key).unwrap(),
                    }
                    model.apply(key, value);
                }
                let durability = if *sync {
                    Durability::Synced
                } else {
                    Durability::Buffered
                };
                let last = db.write(&batch, durability).unwrap();
                assert_eq!(last, db.stats().last_sequence);
            }
            Step::Fill(count, value) => {
                for key in all_keys().take(*count) {
                    db.put(&key, value).unwrap();
                    model.apply(&key, &Some(value.clone()));
                }
            }
            Step::Get(key) => assert_eq!(db.get(key).unwrap().as_ref(), model.0.get(key)),
            Step::MultiGet(keys) => {
                let mut values = Values::new();
                db.multi_get(keys, &mut values).unwrap();
                assert_eq!(values.len(), keys.len());
                for (key, value) in keys.iter().zip(values.iter()) {
                    assert_eq!(value.unwrap(), model.0.get(key).map(Vec::as_slice));
                }
            }
            Step::Range(start, end, ends) => {
                let wanted =
                    model.entries(comparator, |key| is_inside(comparator, key, start, end));
                check_iter(db.range((start.clone(), end.clone())), wanted, ends);
            }
            Step::Prefix(prefix, ends) => {
                check_iter(
                    db.prefix(prefix),
                    model.entries(comparator, |key| key.starts_with(prefix)),
                    ends,
                );
            }
            Step::Snapshot => snapshots.push(Remembered {
                snapshot: db.snapshot(),
                model: model.clone(),
            }),
            Step::Forget(which) => {
                if !snapshots.is_empty() {
                    snapshots.swap_remove(which % snapshots.len());
                }
            }
            Step::DeleteRange(start, end) => {
                let deleted = db.delete_range(start, end);
                match comparator.compare(start, end) {
                    Ordering::Less => deleted.unwrap(),
                    _ => assert!(matches!(deleted, Err(Error::EmptyRange { .. }))),
                }
                let (start, end) = (Bound::Included(start.clone()), Bound::Excluded(end.clone()));
                model
                    .0
                    .retain(|key, _| !is_inside(comparator, key, &start, &end));
            }
            Step::Ingest(entries, commits) => {
                let mut entries = entries.clone();
                entries.sort_by(|a, b| comparator.compare(&a.0, &b.0));
                let last = db.stats().last_sequence;
                let mut ingestion = db.ingest();
                let mut before = None;
                for (key, value) in &entries {
                    let added = match value {
                        Some(value) => ingestion.add(key, value),
                        None => ingestion.delete(key),
                    };
                    if before.replace(key) == Some(key) {
                        assert!(matches!(added, Err(Error::OutOfOrder { .. })));
                        continue;
                    }
                    added.unwrap();
                    if *commits {
                        model.apply(key, value);
                    }
                }
                if *commits {
                    let sequence = ingestion.commit().unwrap();
                    assert_eq!(sequence, last + u64::from(!entries.is_empty()));
                    assert_eq!(sequence, db.stats().last_sequence);
                } else {
                    drop(ingestion)
                }
            }
            Step::Flush => db.flush().unwrap(),
            Step::Compact => db.compact().unwrap(),
            Step::Close => {
                db.close().unwrap();
                db = open(&io, options).unwrap();
                assert!(db.recovery().clean_close);
            }
            Step::Kill => {
                // Snapshots die with the process.
                for remembered in snapshots.drain(..) {
                    check_snapshot(&remembered, comparator);
                }
                io = io.kill();
                db = open(&io, options).unwrap();
                assert_eq!(
                    db.recovery().lost_bytes(),
                    0,
                    "a process that dies between writes leaves no torn tail"
                );
            }
        }
        assert_eq!(db.count().unwrap(), model.0.len() as u64, "after {step:?}");
    }
    check_iter(db.iter(), model.entries(comparator, |_| true), &[false; 60]);
    let verified = db.verify().unwrap();
    assert!(verified.problems.is_empty(), "{:?}", verified.problems);
    // Snapshots see the same as before, whatever was written since, even after their store was
    // closed.
    snapshots
        .iter()
        .for_each(|remembered| check_snapshot(remembered, comparator));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_store_behaves_like_a_map(
        steps in prop::collection::vec(step(), 1..60),
        reverse in any::<bool>(),
        tiny in any::<bool>(),
        is_indexed in any::<bool>(),
    ) {
        let comparator: Arc<dyn Comparator> =
            if reverse { Arc::new(ReverseBytewise) } else { Arc::new(Bytewise) };
        let options = if tiny { tiny_options() } else { small_options() };
        let [with, without] = with_and_without_index(&options.comparator(comparator));
        run(&steps, if is_indexed { &with } else { &without });
    }
}
