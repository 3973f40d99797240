//! Insertion: what the levels of the list hold after batches of every kind, by several threads.

use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::sync::thread;

use super::node::{HEIGHT_MAX, Node};
use super::skip_list_index::INDEXED_ENTRIES_MIN;
use super::*;
use crate::testing::random::Random;
use crate::versions::SEQUENCE_MAX;

fn tables() -> [MemTable; 3] {
    [
        (false, MemoryChecks::Off),
        (false, MemoryChecks::Paranoid),
        (true, MemoryChecks::Off),
    ]
    .map(|(hash_index, checks)| {
        let config = MemTableConfig::default()
            .limit_bytes(64 << 20)
            .checks(checks)
            .hash_index(hash_index)
            .pages(Pages::Small);
        MemTable::new(config).unwrap()
    })
}

/// The nodes of a level, in the order of its links.
fn level(list: &SkipList, level: usize) -> Vec<Node<'_>> {
    let (mut nodes, mut at) = (Vec::new(), list.head());
    // SAFETY: the head has every level, and the others were reached on this one.
    while let Some(next) = unsafe { at.link(level) }.load().next {
        nodes.push(next);
        at = next;
    }
    nodes
}

/// Checks that level 0 is in order and has so many nodes, and that every other level has those of
/// them that reach it.
fn check_levels(list: &SkipList, entries: usize) {
    let all = level(list, 0);
    assert_eq!(all.len(), entries);
    for pair in all.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        let order = before.key().cmp(after.key());
        assert!(order.then(after.sequence().cmp(&before.sequence())).is_lt());
    }
    for at in 1..HEIGHT_MAX {
        let tall: Vec<_> = all
            .iter()
            .copied()
            .filter(|node| node.height() > at)
            .collect();
        assert!(level(list, at) == tall, "level {at}");
    }
    assert!(list.top_level() > 3, "the towers are tall enough to tell");
}

/// The keys of a batch: scattered, repeated, or in a row.
fn keys(random: &mut Random) -> Vec<[u8; 8]> {
    let len_max = [3, 40][random.index(2)];
    let len = 1 + random.below(len_max);
    let (first, kind) = (random.below(4000), random.below(3));
    let numbers = (0..len).map(|at| match kind {
        0 => random.below(4000).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        1 => first + random.below(3),
        _ => first + at,
    });
    numbers.map(u64::to_be_bytes).collect()
}

#[test]
fn every_level_holds_the_nodes_that_reach_it_while_threads_insert_batches() {
    const THREADS: u64 = 3;
    const ENTRIES: u64 = 3 * INDEXED_ENTRIES_MIN as u64;
    for table in tables() {
        let sequences = AtomicU64::new(1);
        let write = |mut random: Random| loop {
            let keys = keys(&mut random);
            let first = sequences.fetch_add(keys.len() as u64, Ordering::Relaxed);
            if first > ENTRIES {
                return;
            }
            let ops = keys.iter().map(|key| Op::Put { key, value: key });
            table.prepare(ops).unwrap().publish(first);
            // A writer finds what it wrote.
            for key in &keys {
                let found = table.get(key, SEQUENCE_MAX).unwrap();
                assert_eq!(found, Lookup::Value(key));
            }
        };
        thread::scope(|scope| {
            for number in 0..THREADS {
                let write = &write;
                scope.spawn(move || write(Random(number)));
            }
        });
        assert!(table.list.index().is_some());
        check_levels(&table.list, table.stats().entries);
    }
}
