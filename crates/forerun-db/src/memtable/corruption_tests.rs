//! Planted corruption: every strategy finds it, reports it with the key, and fails only the keys
//! whose search meets it.

use std::ops::Range;
use std::sync::Arc;

use forerun_core::Pages;

use super::arena::Arena;
use super::descent::{NoTrail, Step, start};
use super::list_shape::ListShape;
use super::memory_checks::Trusting;
use super::node::{Node, Seal, Target};
use super::skip_list::SkipList;
use super::{Bytewise, MemTable, MemoryChecks, Strategy};
use crate::comparator::KeyOrder;
use crate::{Error, Op};

const ALL: u64 = u64::MAX >> 8;

/// A checked table has no hash index, but its list can have the shape of one beside it.
const SHAPES: [ListShape; 2] = [ListShape::SEARCHED, ListShape::BESIDE_A_HASH_INDEX];

fn paranoid(shape: ListShape, writes: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> MemTable {
    let order = KeyOrder::new(Arc::new(Bytewise));
    let arena = Arena::new(16 << 20, Pages::Small, None).unwrap();
    let list = SkipList::new(arena, order, Seal::Checksum, shape);
    let table = MemTable {
        list: list.unwrap(),
        hash_index: None,
        checks: MemoryChecks::Paranoid,
    };
    for (sequence, (key, value)) in (1..).zip(writes) {
        let op = Op::Put {
            key: &key,
            value: &value,
        };
        table.prepare([op].into_iter()).unwrap().publish(sequence);
    }
    table
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n:06}").into_bytes()
}

/// A table of `n` entries, and their keys in order.
fn numbered(shape: ListShape, n: u32) -> (MemTable, Vec<Vec<u8>>) {
    let writes = (0..n).map(|i| (key(i * 7919 % n), vec![i as u8; 40]));
    (paranoid(shape, writes), (0..n).map(key).collect())
}

/// Picks a node to damage by the height of its tower, and not one of the first.
fn victim<'a>(table: &'a MemTable, keys: &[Vec<u8>], heights: Range<usize>) -> (usize, Node<'a>) {
    let nodes = (100..keys.len()).map(|n| (n, node(table, &keys[n], ALL)));
    let fits = |(_, node): &(usize, Node<'_>)| heights.contains(&node.height());
    nodes
        .into_iter()
        .find(fits)
        .expect("a table of hundreds has such a node")
}

/// The newest version of a key that a snapshot sees, found without checks.
fn node<'a>(table: &'a MemTable, key: &[u8], snapshot: u64) -> Node<'a> {
    let mut descent = start::<Trusting>(
        &table.list,
        Target::new(
            table.list.order(),
            key,
            crate::versions::ReadPoint::at(snapshot),
        ),
    );
    while descent.step::<Trusting, _>(&mut NoTrail).unwrap() == Step::Read {}
    descent.hit().expect("the key is there")
}

/// Overwrites bytes of a node, counted from its header.
fn overwrite(node: Node<'_>, offset: usize, bytes: &[u8]) {
    let place = node.into_raw().as_ptr().cast::<u8>();
    // SAFETY: the test is single-threaded and holds no reference into the node; the bytes lie
    // within the entry.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.add(offset), bytes.len()) };
}

/// Which keys fail under a strategy. Every failure must name `named`.
fn failures(table: &MemTable, keys: &[Vec<u8>], strategy: Strategy, named: &[u8]) -> Vec<usize> {
    let mut failed = Vec::new();
    table.multi_get_with(keys, ALL, strategy, |position, lookup| match lookup {
        Ok(_) => {}
        Err(Error::CorruptEntry { key, .. }) => {
            assert_eq!(key, named, "{strategy}");
            failed.push(position);
        }
        Err(other) => panic!("{strategy}: {other}"),
    });
    failed.sort_unstable();
    failed
}

/// Checks that some keys meet the damage, the damaged key among them, and that each strategy fails
/// the same keys.
fn check(table: &MemTable, keys: &[Vec<u8>], victim: usize, named: &[u8]) {
    let expected = failures(table, keys, Strategy::Single, named);
    assert!(
        expected.contains(&victim),
        "the damaged entry itself must be found"
    );
    assert!(
        expected.len() < keys.len() / 2,
        "{} of {} keys fail",
        expected.len(),
        keys.len()
    );
    for strategy in Strategy::ALL {
        let failed = failures(table, keys, strategy, named);
        if strategy == Strategy::Finger {
            // A search that starts from its finger walks over fewer nodes, so it may meet fewer
            // damaged ones, but never more.
            assert!(failed.contains(&victim) && failed.iter().all(|key| expected.contains(key)));
        } else {
            assert_eq!(failed, expected, "{strategy}");
        }
    }
    for (position, key) in keys.iter().enumerate() {
        assert_eq!(table.get(key, ALL).is_err(), expected.contains(&position));
    }
}

#[test]
fn a_flipped_byte_in_a_value_is_found_by_its_checksum() {
    for shape in SHAPES {
        let (table, keys) = numbered(shape, 3000);
        // A node of one level is visited by the searches that end behind it, up to the next taller
        // node.
        let (victim, entry) = victim(&table, &keys, 1..2);
        overwrite(entry, 12 + keys[victim].len() + 5, &[0xff]);
        check(&table, &keys, victim, &keys[victim]);
        let failed = failures(&table, &keys, Strategy::Single, &keys[victim]);
        let taller = (victim + 1..3000).find(|&n| node(&table, &keys[n], ALL).height() > 1);
        assert_eq!(failed, (victim..=taller.unwrap()).collect::<Vec<_>>());
    }
}

#[test]
fn a_flipped_byte_in_a_tall_node_fails_the_keys_that_pass_it_only() {
    for shape in SHAPES {
        let (table, keys) = numbered(shape, 3000);
        let tall = shape.index_level..shape.index_level + 2;
        let (victim, entry) = victim(&table, &keys, tall);
        overwrite(entry, 12 + keys[victim].len(), &[0xff]);
        check(&table, &keys, victim, &keys[victim]);
    }
}

#[test]
fn a_length_beyond_the_memtable_is_found_without_being_followed() {
    for shape in SHAPES {
        let (table, keys) = numbered(shape, 500);
        let (victim, entry) = victim(&table, &keys, 1..2);
        let lens = (keys[victim].len() as u32) << 20 | 0xf_fffe;
        overwrite(entry, 8, &lens.to_ne_bytes());
        check(&table, &keys, victim, &keys[victim]);
        // These lengths are said to be before the links, where something else is. The entry is
        // named by what lies there, or by nothing.
        overwrite(entry, 8, &u32::MAX.to_ne_bytes());
        for strategy in Strategy::ALL {
            let mut failed = false;
            table.multi_get_with(&keys, ALL, strategy, |position, lookup| match lookup {
                Ok(_) => {}
                Err(Error::CorruptEntry { .. }) => failed |= position == victim,
                Err(other) => panic!("{strategy}: {other}"),
            });
            assert!(failed, "{strategy}");
        }
    }
}

#[test]
fn an_entry_out_of_order_is_found_though_its_checksum_is_right() {
    for shape in SHAPES {
        let (table, keys) = numbered(shape, 500);
        let (victim, entry) = victim(&table, &keys, 1..2);
        let sequence = entry.sequence();
        overwrite(entry, 12, b"aaa");
        overwrite(entry, 1, &[0; 7]);
        // SAFETY: only this test holds the table; the sequence number was cleared and is set again.
        unsafe { entry.number(sequence, Seal::Checksum) };
        let mut misplaced = keys[victim].clone();
        misplaced[..3].copy_from_slice(b"aaa");
        for strategy in Strategy::ALL {
            assert!(
                failures(&table, &keys, strategy, &misplaced).contains(&victim),
                "{strategy}"
            );
        }
    }
}

#[test]
fn damage_among_the_versions_of_a_key_is_met_on_the_way_to_an_older_one() {
    for shape in SHAPES {
        let mut writes = vec![(b"a".to_vec(), vec![1]), (b"z".to_vec(), vec![2])];
        writes.extend((0..200_u8).map(|n| (b"chain".to_vec(), vec![n; 30])));
        let table = paranoid(shape, writes);
        // The version with sequence number 100, of one level.
        let damaged = (60..120)
            .find(|&sequence| node(&table, b"chain", sequence).height() == 1)
            .unwrap();
        overwrite(node(&table, b"chain", damaged), 12 + 8, &[0xee]);
        let is_reported =
            |error: Error| matches!(error, Error::CorruptEntry { key, .. } if key == b"chain");
        assert!(is_reported(table.get(b"chain", damaged).unwrap_err()));
        for strategy in Strategy::ALL {
            table.multi_get_with(
                &[&b"a"[..], b"chain", b"z"],
                damaged,
                strategy,
                |position, lookup| match position {
                    1 => assert!(is_reported(lookup.unwrap_err()), "{strategy}"),
                    _ => assert!(lookup.is_ok(), "{strategy}, key {position}"),
                },
            );
        }
        // A cursor that steps over the versions one by one meets it too.
        let mut cursor = table.cursor(damaged + 3);
        assert_eq!(
            cursor.next().unwrap().map(|entry| entry.key),
            Some(&b"a"[..])
        );
        assert_eq!(
            cursor.next().unwrap().map(|entry| entry.key),
            Some(&b"chain"[..])
        );
        assert!(is_reported(cursor.next().unwrap_err()));
    }
}

#[test]
fn an_undamaged_table_passes_every_check() {
    for shape in SHAPES {
        let (table, keys) = numbered(shape, 3000);
        for strategy in Strategy::ALL {
            assert!(
                failures(&table, &keys, strategy, b"").is_empty(),
                "{strategy}"
            );
        }
    }
}
