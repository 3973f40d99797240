//! The structure of a list after threads have inserted versions of the same keys.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::sync::thread;

use super::node::Node;
use super::skip_list::SkipList;
use super::*;
use crate::testing::random::Random;

/// Walks every level: it has the nodes that are tall enough, in order, behind prefixes that bound
/// theirs. Returns how many nodes each level has.
fn check_levels(list: &SkipList) -> Vec<usize> {
    let mut below: Option<Vec<Node<'_>>> = None;
    let mut lens = Vec::new();
    for level in 0..=list.top_level() {
        let mut nodes: Vec<Node<'_>> = Vec::new();
        let mut at = list.head();
        loop {
            // SAFETY: the head has every level, and the others were reached on this one.
            let seen = unsafe { at.link(level) }.load();
            let Some(next) = seen.next else {
                break;
            };
            assert!(next.height() > level);
            assert!(seen.prefix <= list.order().prefix(next.key()));
            if at != list.head() {
                let order = list.order().compare(at.key(), next.key());
                let order = order.then(next.sequence().cmp(&at.sequence()));
                assert!(order.is_lt(), "level {level} is not in order");
            }
            nodes.push(next);
            at = next;
        }
        if let Some(below) = below {
            let tall: Vec<_> = below
                .into_iter()
                .filter(|node| node.height() > level)
                .collect();
            assert!(tall == nodes, "level {level} lacks a node");
        }
        lens.push(nodes.len());
        below = Some(nodes);
    }
    lens
}

#[test]
fn threads_that_write_the_same_keys_leave_every_level_whole() {
    const THREADS: u64 = 4;
    const ENTRIES: u64 = 6_000;
    for hash_index in [false, true] {
        let config = MemTableConfig::default()
            .limit_bytes(64 << 20)
            .hash_index(hash_index)
            .pages(Pages::Small);
        let table = MemTable::new(config).unwrap();
        let last = AtomicU64::new(0);
        thread::scope(|scope| {
            for seed in 0..THREADS {
                let (table, last) = (&table, &last);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    let mut left = ENTRIES;
                    while left > 0 {
                        let len = (1 + random.below(24)).min(left);
                        left -= len;
                        // Few keys, some of which begin alike, often several times in a batch.
                        let keys: Vec<_> = (0..len)
                            .map(|_| match random.below(4) {
                                0 => vec![random.below(3) as u8],
                                1 => format!("a long key {}", random.below(40)).into_bytes(),
                                _ => random.below(1 << 12).to_be_bytes().to_vec(),
                            })
                            .collect();
                        let ops = keys.iter().map(|key| Op::Put { key, value: key });
                        let prepared = table.prepare(ops).unwrap();
                        let first = 1 + last.fetch_add(len, Ordering::Relaxed);
                        prepared.publish(first);
                        let snapshot = u64::MAX >> 8;
                        for key in &keys {
                            let found = table.get(key, snapshot).unwrap();
                            assert_eq!(found, Lookup::Value(key));
                        }
                    }
                });
            }
        });
        let lens = check_levels(&table.list);
        assert_eq!(lens[0] as u64, THREADS * ENTRIES);
        let share = |level: usize| lens[level] as f64 / lens[level - 1] as f64;
        let first = if hash_index { 0.25 } else { 0.5 };
        assert!(
            (share(1) - first).abs() < 0.03 && (share(2) - 0.5).abs() < 0.05,
            "{lens:?}"
        );
        let sequences: HashSet<_> = {
            let mut at = table.list.head();
            std::iter::from_fn(|| {
                // SAFETY: every node has level 0.
                at = unsafe { at.link(0) }.load().next?;
                Some(at.sequence())
            })
            .collect()
        };
        assert_eq!(sequences.len() as u64, THREADS * ENTRIES);
    }
}

#[test]
fn entries_whose_lengths_the_header_does_not_hold_are_found_and_scanned() {
    let key = |len: usize, value_len: usize| {
        let mut key = (value_len as u64).to_be_bytes().to_vec();
        key.resize(len, b'k');
        key
    };
    let lens: Vec<(usize, usize)> = [8, 4094, 4095, 4096, crate::KEY_BYTES_MAX]
        .into_iter()
        .flat_map(|key| [0, 100, 0xf_fffe, 0xf_ffff, 0x10_0005].map(|value| (key, value)))
        .collect();
    for (hash_index, checks) in [
        (true, MemoryChecks::Off),
        (false, MemoryChecks::Off),
        (false, MemoryChecks::Paranoid),
    ] {
        let config = MemTableConfig::default()
            .limit_bytes(64 << 20)
            .hash_index(hash_index)
            .checks(checks)
            .pages(Pages::Small);
        let table = MemTable::new(config).unwrap();
        for (sequence, (key_len, value_len)) in (1..).zip(&lens) {
            let (key, value) = (key(*key_len, *value_len), vec![*key_len as u8; *value_len]);
            let op = Op::Put {
                key: &key,
                value: &value,
            };
            table.prepare([op].into_iter()).unwrap().publish(sequence);
        }
        for (key_len, value_len) in &lens {
            let found = table
                .get(&key(*key_len, *value_len), u64::MAX >> 8)
                .unwrap();
            let Lookup::Value(value) = found else {
                panic!("{key_len}, {value_len}: {found:?}");
            };
            assert!(value.len() == *value_len && value.iter().all(|b| *b == *key_len as u8));
        }
        let mut sorted: Vec<_> = lens.iter().map(|(k, v)| (key(*k, *v), *v)).collect();
        sorted.sort();
        let mut at = table.list.head();
        for (key, value_len) in sorted {
            // SAFETY: every node has level 0.
            let next = unsafe { at.link(0) }.load().next.unwrap();
            assert!(next.key() == key && next.value().len() == value_len);
            at = next;
        }
    }
}
