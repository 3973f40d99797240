//! Models of the hash index's memory orderings, run like those in `loom_tests.rs`. The index starts
//! with one bucket; a second one is split off it while others read or write. Its entries keep one
//! bit of the hash, so this split takes the next ones from the keys.

use std::collections::HashMap;

use forerun_core::Pages;
use forerun_core::sync::loom_model::check;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::arena::Arena;
use super::hash_addressing::{KeyHasher, bucket_of, tag};
use super::hash_bucket::SLOTS;
use super::hash_index::{HashIndex, Indexed};
use super::node::{Draft, Node, Seal};
use crate::versions::Kind;

/// So many keys need a second bucket.
const TWO_BUCKETS: usize = 10;

/// Sequence numbers of a model.
const SEQUENCES: usize = SLOTS + 4;

/// The hash function of the models.
const SEED: u64 = 1;

struct Table {
    arena: Arena,
    index: HashIndex,
    /// One for each node, by its sequence number, written before the node is indexed and read by
    /// whoever finds it. Loom watches these cells, but not the bytes of the arena.
    contents: [UnsafeCell<u64>; SEQUENCES],
}

// SAFETY: arena and index are shared as in a memtable. Loom fails a model in which a cell is read
// by a thread that does not know of its write.
unsafe impl Sync for Table {}

impl Table {
    fn new() -> Arc<Table> {
        let arena = Arena::new(1 << 16, Pages::Small, None).unwrap();
        let index = HashIndex::new(&arena, SEED).unwrap().unwrap();
        Arc::new(Table {
            arena,
            index,
            contents: std::array::from_fn(|_| UnsafeCell::new(0)),
        })
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
        // SAFETY: nobody reads the cell before the node is indexed.
        self.contents[sequence as usize].with_mut(|contents| unsafe { *contents = sequence });
        let located = self.index.locate(&self.arena, key);
        self.index.insert(&self.arena, located, node);
    }

    /// The sequence number of a key's newest version.
    fn find(&self, key: &[u8]) -> Option<u64> {
        loop {
            match self.index.find(&self.arena, self.index.hash(key), key) {
                Indexed::At(node) => {
                    let sequence = node.sequence();
                    // SAFETY: nobody writes to it any more.
                    let contents =
                        self.contents[sequence as usize].with(|contents| unsafe { *contents });
                    assert_eq!(contents, sequence, "a node that is found is whole");
                    return Some(sequence);
                }
                Indexed::Missing => return None,
                // A writer has the bucket. A memtable searches its list, which the model lacks.
                Indexed::Unknown => thread::yield_now(),
            }
        }
    }

    fn grow(&self) {
        self.index
            .make_space(&self.arena, TWO_BUCKETS, 1, &|_| true);
    }
}

#[test]
fn a_reader_finds_every_entry_while_its_bucket_is_split() {
    check(3, || {
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
fn a_reader_finds_an_entry_that_moved_although_another_took_its_slot() {
    check(3, || {
        let table = Table::new();
        let (moving, staying) = (table.key(true, 0), table.key(false, 1));
        table.insert(&moving, 1);
        let (one, other) = (table.clone(), table.clone());
        let writer = thread::spawn(move || {
            one.grow();
            one.insert(&staying, 2);
        });
        let reader = thread::spawn(move || {
            assert_eq!(other.find(&moving), Some(1));
            other.find(&staying);
        });
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(table.find(&moving), Some(1));
        assert_eq!(table.find(&staying), Some(2));
    });
}

#[test]
fn two_keys_inserted_together_are_both_found() {
    check(3, || {
        let table = Table::new();
        let keys = [table.key(false, 0), table.key(false, 1)];
        let mut sequence = 0;
        let threads = keys.map(|key| {
            let table = table.clone();
            sequence += 1;
            thread::spawn(move || {
                table.insert(&key, sequence);
                assert_eq!(table.find(&key), Some(sequence));
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(keys.map(|key| table.find(&key)), [Some(1), Some(2)]);
    });
}

#[test]
fn a_key_inserted_while_its_bucket_is_split_is_found_at_once_and_later() {
    for moves in [true, false] {
        check(3, move || {
            let table = Table::new();
            let key = table.key(moves, 0);
            let (one, other) = (table.clone(), table.clone());
            let grower = thread::spawn(move || one.grow());
            let writer = thread::spawn(move || {
                other.insert(&key, 1);
                assert_eq!(other.find(&key), Some(1));
            });
            grower.join().unwrap();
            writer.join().unwrap();
            assert_eq!(table.index.buckets(), 2);
            assert_eq!(table.find(&key), Some(1));
        });
    }
}

#[test]
fn a_key_that_was_acknowledged_is_found_by_every_later_lookup_while_its_bucket_is_split() {
    check(2, || {
        let table = Table::new();
        let key = table.key(true, 0);
        let is_acknowledged = Arc::new(AtomicBool::new(false));
        let (one, other) = (table.clone(), table.clone());
        let acknowledge = is_acknowledged.clone();
        let grower = thread::spawn(move || one.grow());
        let writer = thread::spawn(move || {
            other.insert(&key, 1);
            acknowledge.store(true, Ordering::Release);
        });
        let before = is_acknowledged.load(Ordering::Acquire);
        let found = table.find(&key);
        assert!(found.is_some() || !before);
        grower.join().unwrap();
        writer.join().unwrap();
        assert_eq!(table.find(&key), Some(1));
    });
}

#[test]
fn of_two_versions_inserted_together_the_newer_stays() {
    check(3, || {
        let table = Table::new();
        let key = table.key(false, 0);
        let (one, other) = (table.clone(), table.clone());
        let newer = thread::spawn(move || {
            one.insert(&key, 2);
            assert_eq!(one.find(&key), Some(2));
        });
        let older = thread::spawn(move || {
            other.insert(&key, 1);
            assert!(other.find(&key) >= Some(1));
        });
        newer.join().unwrap();
        older.join().unwrap();
        assert_eq!(table.find(&key), Some(2));
    });
}

#[test]
fn a_reader_sees_one_version_or_the_next_while_the_key_is_overwritten_and_moves() {
    for moves in [true, false] {
        check(1, move || {
            let table = Table::new();
            let key = table.key(moves, 0);
            table.insert(&key, 1);
            let (one, other, third) = (table.clone(), table.clone(), table.clone());
            let grower = thread::spawn(move || one.grow());
            let writer = thread::spawn(move || other.insert(&key, 2));
            let reader = thread::spawn(move || assert!(third.find(&key) >= Some(1)));
            grower.join().unwrap();
            writer.join().unwrap();
            reader.join().unwrap();
            assert_eq!(table.find(&key), Some(2));
        });
    }
}

/// A table whose one bucket is full.
fn full_table() -> (Arc<Table>, [[u8; 2]; SLOTS]) {
    let table = Table::new();
    let keys = std::array::from_fn(|at| table.key(at % 2 == 0, at as u8));
    for (at, key) in keys.iter().enumerate() {
        table.insert(key, at as u64 + 1);
    }
    (table, keys)
}

#[test]
fn a_key_that_overflows_its_bucket_is_found_whole_or_not_at_all() {
    check(3, || {
        let (table, keys) = full_table();
        let key = table.key(true, SLOTS as u8);
        let sequence = SLOTS as u64 + 1;
        let (one, other) = (table.clone(), table.clone());
        let writer = thread::spawn(move || {
            one.insert(&key, sequence);
            assert_eq!(one.find(&key), Some(sequence));
        });
        let reader = thread::spawn(move || {
            other.find(&key);
            assert_eq!(other.find(&keys[SLOTS - 1]), Some(SLOTS as u64));
        });
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(table.find(&key), Some(sequence));
    });
}

#[test]
fn a_reader_finds_keys_of_an_overflowed_bucket_while_it_is_split() {
    for moves in [true, false] {
        check(2, move || {
            let (table, _) = full_table();
            let key = table.key(moves, SLOTS as u8);
            let sequence = SLOTS as u64 + 1;
            table.insert(&key, sequence);
            let (one, other) = (table.clone(), table.clone());
            let grower = thread::spawn(move || one.grow());
            let reader = thread::spawn(move || assert_eq!(other.find(&key), Some(sequence)));
            grower.join().unwrap();
            reader.join().unwrap();
            assert_eq!(table.find(&key), Some(sequence));
        });
    }
}

/// Two keys with one tag, of which the first moves to the second bucket and the other stays.
fn keys_of_one_tag() -> [[u8; 2]; 2] {
    let hasher = KeyHasher::new(SEED);
    let mut by_tag = HashMap::<u16, [Option<[u8; 2]>; 2]>::new();
    for number in 0..=u16::MAX {
        let key = number.to_be_bytes();
        let hash = hasher.hash(&key);
        let of_tag = by_tag.entry(tag(hash)).or_default();
        of_tag[bucket_of(hash, 2)] = Some(key);
        if let [Some(staying), Some(moving)] = *of_tag {
            return [moving, staying];
        }
    }
    panic!("no two keys have the same tag");
}

#[test]
fn a_key_that_moves_up_to_the_slot_of_another_with_its_tag_is_found() {
    let [moving, overflowing] = keys_of_one_tag();
    check(3, move || {
        let table = Table::new();
        table.insert(&moving, 1);
        for at in 1..SLOTS {
            table.insert(&table.key(false, 200 + at as u8), at as u64 + 1);
        }
        table.insert(&overflowing, SLOTS as u64 + 1);
        let (one, other) = (table.clone(), table.clone());
        let grower = thread::spawn(move || one.grow());
        let reader = thread::spawn(move || {
            assert_eq!(other.find(&overflowing), Some(SLOTS as u64 + 1));
        });
        grower.join().unwrap();
        reader.join().unwrap();
        assert_eq!(table.find(&moving), Some(1));
    });
}

#[test]
fn a_key_behind_a_full_line_is_found_while_it_moves_up_and_its_line_is_taken_again() {
    check(3, || {
        let table = Table::new();
        // One key moves to the second bucket, so that the second line is not needed any more; the
        // later key needs it again.
        let keys: [_; SLOTS + 2] = std::array::from_fn(|at| table.key(at == 0, at as u8));
        let [overflowing, later] = [SLOTS, SLOTS + 1];
        for (at, key) in keys[..later].iter().enumerate() {
            table.insert(key, at as u64 + 1);
        }
        let (one, other) = (table.clone(), table.clone());
        let grower = thread::spawn(move || {
            one.grow();
            one.insert(&keys[later], later as u64 + 1);
        });
        let reader = thread::spawn(move || {
            assert_eq!(other.find(&keys[overflowing]), Some(overflowing as u64 + 1));
        });
        grower.join().unwrap();
        reader.join().unwrap();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(table.find(key), Some(at as u64 + 1));
        }
    });
}
