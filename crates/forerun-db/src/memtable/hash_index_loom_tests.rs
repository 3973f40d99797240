//! Models of the hash index's memory orderings, run like those in `loom_tests.rs`. The index starts
//! with one bucket; a second one is split off it while others read or write. Its entries keep one
//! bit of the hash, so this split takes the next ones from the keys.

use forerun_core::Pages;
use loom::sync::Arc;
use loom::thread;

use super::arena::Arena;
use super::hash_addressing::bucket_of;
use super::hash_bucket::SLOTS;
use super::hash_index::{HashIndex, Indexed};
use super::loom_tests::model;
use super::node::{Draft, Node, Seal};
use crate::versions::Kind;

/// So many keys need a second bucket.
const TWO_BUCKETS: usize = 10;

struct Table {
    arena: Arena,
    index: HashIndex,
}

impl Table {
    fn new() -> Arc<Table> {
        let arena = Arena::new(1 << 16, Pages::Small).unwrap();
        let index = HashIndex::new(&arena, 1).unwrap().unwrap();
        Arc::new(Table { arena, index })
    }

    /// A key that moves to the second bucket, or one that does not.
    fn key(&self, moves: bool, number: u8) -> [u8; 2] {
        let keys = (0..=u8::MAX).map(|byte| [number, byte]);
        let bucket = |key: &[u8; 2]| bucket_of(self.index.hash(key), 2);
        let mut fitting = keys.filter(|key| bucket(key) == usize::from(moves));
        fitting.next().expect("half of the keys move")
    }

    fn insert(&self, key: &[u8], sequence: u64) {
        let draft = Draft {
            key,
            value: key,
            kind: Kind::Value,
            height: 1,
            seal: Seal::None,
        };
        let place = self.arena.allocate(draft.size_bytes()).unwrap();
        // SAFETY: the bytes were just allocated for this draft.
        let node: Node<'_> = unsafe { draft.write(&self.arena, place) };
        // SAFETY: the node is new.
        unsafe { node.number(sequence, Seal::None) };
        let located = self.index.locate(&self.arena, key);
        self.index.insert(&self.arena, located, node);
    }

    /// The sequence number of a key's newest version.
    fn find(&self, key: &[u8]) -> Option<u64> {
        match self.index.find(&self.arena, self.index.hash(key), key) {
            Indexed::At(node) => Some(node.sequence()),
            Indexed::Missing => None,
            Indexed::Unknown => panic!("the bucket has space"),
        }
    }

    fn grow(&self) {
        self.index
            .make_space(&self.arena, TWO_BUCKETS, 1, &|_| true);
    }
}

#[test]
fn a_reader_finds_every_entry_while_its_bucket_is_split() {
    model(|| {
        let table = Table::new();
        let (moving, staying) = (table.key(true, 0), table.key(false, 1));
        table.insert(&moving, 1);
        table.insert(&staying, 2);
        let (one, other) = (table.clone(), table.clone());
        let grower = thread::spawn(move || one.grow());
        let reader = thread::spawn(move || {
            assert_eq!(other.find(&moving), Some(1));
            assert_eq!(other.find(&staying), Some(2));
        });
        grower.join().unwrap();
        reader.join().unwrap();
        assert_eq!(table.index.buckets(), 2);
        assert_eq!(table.find(&moving), Some(1));
        assert_eq!(table.find(&staying), Some(2));
    });
}

#[test]
fn two_keys_inserted_together_are_both_found() {
    model(|| {
        let table = Table::new();
        let keys = [table.key(false, 0), table.key(false, 1)];
        let threads = keys.map(|key| {
            let table = table.clone();
            thread::spawn(move || {
                table.insert(&key, 1);
                assert_eq!(table.find(&key), Some(1));
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        for key in keys {
            assert_eq!(table.find(&key), Some(1));
        }
    });
}

#[test]
fn a_key_inserted_while_its_bucket_is_split_is_found_at_once_and_later() {
    for moves in [true, false] {
        model(move || {
            let table = Table::new();
            let key = table.key(moves, 0);
            let other = table.clone();
            let grower = thread::spawn(move || other.grow());
            table.insert(&key, 1);
            assert_eq!(table.find(&key), Some(1));
            grower.join().unwrap();
            assert_eq!(table.index.buckets(), 2);
            assert_eq!(table.find(&key), Some(1));
        });
    }
}

#[test]
fn of_two_versions_inserted_together_the_newer_stays() {
    model(|| {
        let table = Table::new();
        let key = table.key(false, 0);
        let other = table.clone();
        let writer = thread::spawn(move || {
            other.insert(&key, 2);
            assert_eq!(other.find(&key), Some(2));
        });
        table.insert(&key, 1);
        assert!(table.find(&key) >= Some(1));
        writer.join().unwrap();
        assert_eq!(table.find(&key), Some(2));
    });
}

#[test]
fn a_key_behind_a_full_line_is_found_while_it_moves_up_and_its_line_is_taken_again() {
    model(|| {
        let table = Table::new();
        let keys: [_; SLOTS] = std::array::from_fn(|at| table.key(at == 0, at as u8));
        let [overflowing, later] = [SLOTS, SLOTS + 1].map(|at| table.key(false, at as u8));
        for key in &keys {
            table.insert(key, 1);
        }
        table.insert(&overflowing, 1);
        let (one, other) = (table.clone(), table.clone());
        let grower = thread::spawn(move || {
            // One key moves to the second bucket, so that the line that follows is not needed; the
            // later key needs it again.
            one.grow();
            one.insert(&later, 1);
        });
        let reader = thread::spawn(move || assert_eq!(other.find(&overflowing), Some(1)));
        grower.join().unwrap();
        reader.join().unwrap();
        for key in keys.iter().chain([&overflowing, &later]) {
            assert_eq!(table.find(key), Some(1));
        }
    });
}
