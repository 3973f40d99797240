//! Models of the list's memory orderings. Loom runs them through every interleaving and every weak
//! outcome it knows: `RUSTFLAGS="--cfg loom" cargo test -p forerun-db --release --lib
//! memtable::loom_tests`.

use std::sync::Arc as StdArc;

use forerun_core::Pages;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::arena::Arena;
use super::ascending_run::insert_run;
use super::descent::{Lookup, find_alone};
use super::insertion;
use super::list_shape::ListShape;
use super::memory_checks::{Paranoid, Trusting};
use super::node::{Draft, Node, Seal, Target};
use super::skip_list::SkipList;
use crate::comparator::{Bytewise, KeyOrder};
use crate::versions::Kind;

/// Runs a model with a list of each shape. Three preemptions reach every order of the few steps
/// that matter, in seconds instead of hours.
fn model(body: impl Fn(Arc<SkipList>) + Copy + Send + Sync + 'static) {
    model_with(3, body);
}

fn model_with(preemptions: usize, body: impl Fn(Arc<SkipList>) + Copy + Send + Sync + 'static) {
    for shape in [ListShape::SEARCHED, ListShape::BESIDE_A_HASH_INDEX] {
        forerun_core::sync::loom_model::check(preemptions, move || body(list(shape)));
    }
}

fn list(shape: ListShape) -> Arc<SkipList> {
    let order = KeyOrder::new(StdArc::new(Bytewise));
    let arena = Arena::new(1 << 16, Pages::Small, None).unwrap();
    Arc::new(SkipList::new(arena, order, Seal::Checksum, shape).unwrap())
}

/// A new node, with a tower of the given height.
fn node<'a>(list: &'a SkipList, key: &[u8], height: usize) -> Node<'a> {
    let draft = Draft {
        key,
        value: key,
        kind: Kind::Value,
        height,
        seal: Seal::Checksum,
    };
    let placement = list.shape().placement;
    let end_of = |start| draft.start(start, placement) + draft.size_bytes();
    let (place, len_bytes) = list.arena().allocate_with(end_of).unwrap();
    // SAFETY: the range was just allocated for this draft, which starts after the padding.
    let place = unsafe { place.add(len_bytes - draft.size_bytes()) };
    // SAFETY: as above.
    unsafe { draft.write(list.arena(), place) }
}

/// Inserts a key with a tower of the given height.
fn insert(list: &SkipList, key: &[u8], height: usize, sequence: u64) {
    // SAFETY: the node is new, and sequence numbers are not used twice in a model.
    unsafe { insertion::insert(list, None, node(list, key, height), sequence) };
}

/// Inserts a batch of keys, each with a tower of the given height and a sequence number.
fn insert_all(list: &SkipList, entries: &[(&[u8], usize, u64)]) {
    let nodes: Vec<_> = entries
        .iter()
        .map(|&(key, height, sequence)| (node(list, key, height), sequence))
        .collect();
    // SAFETY: as above.
    unsafe { insertion::insert_all(list, None, nodes.into_iter()) };
}

/// Counts entries, and builds an index if one is due.
fn count(list: &SkipList, entries: usize) {
    list.count(entries);
    list.build_index_if_due(&|_| true);
}

fn finds(list: &SkipList, key: &[u8]) -> bool {
    match find_alone::<Trusting>(list, key, crate::versions::ReadPoint::at(100)) {
        Ok(Lookup::Value(value)) => {
            assert_eq!(value, key, "a node that is found is whole");
            true
        }
        Ok(_) => false,
        Err(corrupt) => panic!("{corrupt:?}"),
    }
}

/// Walks level 0 with all checks on: the order, the checksums, and that exactly `keys` are there.
fn check_all(list: &SkipList, keys: &[&[u8]]) {
    for key in keys {
        assert!(finds(list, key), "{key:?}");
        assert!(matches!(
            find_alone::<Paranoid>(list, key, crate::versions::ReadPoint::at(100)),
            Ok(Lookup::Value(_))
        ));
    }
    let mut at = list.head();
    let mut seen = 0;
    loop {
        // SAFETY: every node has level 0.
        let link = unsafe { at.link(0) }.load();
        let Some(next) = link.next else { break };
        // The prefix beside a pointer never exceeds that of the key behind it.
        assert!(
            link.prefix
                <= Target::new(list.order(), next.key(), crate::versions::ReadPoint::at(0)).prefix
        );
        at = next;
        seen += 1;
    }
    assert_eq!(seen, keys.len());
}

#[test]
fn two_inserts_at_one_place_are_both_found() {
    model(|list| {
        let other = list.clone();
        let writer = thread::spawn(move || {
            insert(&other, b"b", 2, 1);
            assert!(finds(&other, b"b"), "a writer reads its own write");
        });
        insert(&list, b"c", 1, 2);
        assert!(finds(&list, b"c"), "a writer reads its own write");
        writer.join().unwrap();
        check_all(&list, &[b"b", b"c"]);
    });
}

#[test]
fn a_reader_finds_an_entry_or_its_writer_sees_what_the_reader_did_before_it_synchronized() {
    model(|list| {
        let is_done = Arc::new(AtomicBool::new(false));
        let (other, is_done_before) = (list.clone(), is_done.clone());
        let writer = thread::spawn(move || {
            insert(&other, b"b", 1, 1);
            other.count(1);
            is_done_before.load(Ordering::Relaxed)
        });
        is_done.store(true, Ordering::Relaxed);
        list.synchronize();
        let is_found = finds(&list, b"b");
        assert!(writer.join().unwrap() || is_found);
    });
}

#[test]
fn a_run_of_ascending_keys_walks_over_what_another_writer_puts_between_them() {
    // With three, this model takes minutes, six times as long as all others.
    let has_time = std::env::var_os("FORERUN_ALL_CASES").is_some();
    model_with(if has_time { 3 } else { 2 }, |list| {
        let other = list.clone();
        let writer = thread::spawn(move || insert(&other, b"b", 1, 1));
        let [first, last] =
            [(&b"a"[..], 1), (b"c", 2)].map(|(key, height)| node(&list, key, height));
        let mut nodes = [(first, 2), (last, 3)].into_iter();
        // SAFETY: the nodes are new, and their keys ascend.
        unsafe { insert_run(&list, None, (first, last), &mut nodes) };
        for (node, sequence) in nodes {
            // The other writer was here before the second node.
            // SAFETY: the node was left.
            unsafe { insertion::insert(&list, None, node, sequence) };
        }
        assert!(finds(&list, b"c"), "a writer reads its own write");
        writer.join().unwrap();
        check_all(&list, &[b"a", b"b", b"c"]);
    });
}

#[test]
fn a_search_that_enters_through_an_index_finds_what_was_there_before() {
    model(|list| {
        insert(&list, b"m", 1, 1);
        let (one, other) = (list.clone(), list.clone());
        let writer = thread::spawn(move || {
            insert(&one, b"c", 3, 2);
            count(&one, 2);
        });
        let reader = thread::spawn(move || assert!(finds(&other, b"m")));
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(list.index().is_some());
        check_all(&list, &[b"c", b"m"]);
    });
}

#[test]
fn an_index_is_built_while_another_thread_adds_keys_beyond_its_ends_and_builds_the_next() {
    model(|list| {
        insert_all(&list, &[(b"user:1", 3, 1), (b"user:2", 3, 2)]);
        count(&list, 2);
        let other = list.clone();
        let writer = thread::spawn(move || {
            // It does not begin like those before it.
            insert(&other, b"v", 3, 3);
            count(&other, 4);
        });
        count(&list, 2);
        writer.join().unwrap();
        check_all(&list, &[b"user:1", b"user:2", b"v"]);
    });
}

#[test]
fn a_reader_sees_a_node_whole_or_not_at_all_while_the_list_grows_taller() {
    model(|list| {
        insert(&list, b"m", 1, 1);
        let (one, other) = (list.clone(), list.clone());
        let writer = thread::spawn(move || insert(&one, b"c", 2, 2));
        let reader = thread::spawn(move || {
            finds(&other, b"c");
            assert!(finds(&other, b"m"), "what was there stays found");
        });
        writer.join().unwrap();
        reader.join().unwrap();
        check_all(&list, &[b"c", b"m"]);
    });
}

#[test]
fn what_a_thread_has_published_any_later_search_finds() {
    use loom::sync::atomic::{AtomicBool, Ordering};
    model(|list| {
        let is_written = Arc::new(AtomicBool::new(false));
        let (other, tell) = (list.clone(), is_written.clone());
        let writer = thread::spawn(move || {
            insert(&other, b"b", 1, 1);
            tell.store(true, Ordering::Release);
        });
        if is_written.load(Ordering::Acquire) {
            assert!(finds(&list, b"b"));
        }
        writer.join().unwrap();
    });
}

#[test]
fn versions_of_one_key_come_out_newest_first() {
    model(|list| {
        let other = list.clone();
        let writer = thread::spawn(move || insert(&other, b"k", 1, 1));
        insert(&list, b"k", 1, 2);
        writer.join().unwrap();
        let mut at = list.head();
        let mut sequences = Vec::new();
        // SAFETY: every node has level 0.
        while let Some(next) = unsafe { at.link(0) }.load().next {
            sequences.push(next.sequence());
            at = next;
        }
        assert_eq!(sequences, [2, 1]);
    });
}
