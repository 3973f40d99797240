//! Insertion of ascending keys with no other key between them, such as those of a log or of a
//! sorted load: each insertion starts where the one before it ended.
//!
//! ```text
//!   level 2  head ───────────────► b ──────────────────────► end     before[2] = b
//!   level 1  head ───────────────► b ─────────► d ─────────► end     before[1] = d
//!   level 0  head ─► a ─► … ─────► b ───► c ──► d ───► e ──► end     before[0] = e, the last one
//! ```
//!
//! Keys ascend, so whatever is before the last key is before the next one. Where other writers put
//! keys between the two meanwhile, the insertion walks over them.

use super::descent::{Descent, Trail};
use super::hash_index::{HashIndex, Located};
use super::insertion::untroubled;
use super::memory_checks::Trusting;
use super::node::{HEIGHT_MAX, Node, Seen, Stands, Target};
use super::skip_list::SkipList;
use crate::versions::{ReadPoint, SEQUENCE_MAX};

/// The least number of entries of a batch that may be a run. To find out takes a search of the list
/// with nothing else in flight.
pub(super) const RUN_FROM: usize = 16;

/// How far ahead of the insertions the buckets of the hash index are asked for.
const AHEAD: usize = 12;

/// Inserts nodes under their sequence numbers if there is no other node between theirs, whose keys
/// ascend from `first` to `last`. Otherwise it takes none or only the first one from `nodes`.
/// Returns for how many of them the hash index has had a version of the key.
///
/// # Safety
/// The nodes must have been drafted in the list's arena, be in no list, and be held by no other
/// thread. The hash index must be the list's.
pub(super) unsafe fn insert_run<'a>(
    list: &'a SkipList,
    hash_index: Option<&'a HashIndex>,
    (first, last): (Node<'a>, Node<'a>),
    nodes: &mut impl Iterator<Item = (Node<'a>, u64)>,
) -> usize {
    if !is_likely(list, first, last) {
        return 0;
    }
    let mut located = nodes.map(|(node, sequence)| {
        let indexed = hash_index.map(|index| (index, index.locate(list.arena(), node.key())));
        (node, sequence, indexed)
    });
    let Some((node, sequence, indexed)) = located.next() else {
        return 0;
    };
    // SAFETY: the caller vouches for the node.
    let target = unsafe { list.number(node, sequence) };
    let mut run = AscendingRun::before(list, target);
    // SAFETY: as above; the run was made for the node.
    let mut with_other_version = usize::from(unsafe { run.insert(node, &target, indexed) });
    if !leads_beyond(list, first, last) {
        return with_other_version;
    }
    loop {
        let ahead: [_; AHEAD] = std::array::from_fn(|_| located.next());
        let is_end = ahead[AHEAD - 1].is_none();
        for (node, sequence, indexed) in ahead.into_iter().flatten() {
            // SAFETY: as above, and the keys ascend.
            let is_old = unsafe {
                let target = list.number(node, sequence);
                run.insert(node, &target, indexed)
            };
            with_other_version += usize::from(is_old);
        }
        if is_end {
            return with_other_version;
        }
    }
}

/// Whether the skip-list index has no node between two keys. It costs little to ask, and far more
/// to be wrong.
fn is_likely(list: &SkipList, first: Node<'_>, last: Node<'_>) -> bool {
    let newest = ReadPoint::at(SEQUENCE_MAX);
    let targets = [first, last].map(|node| Target::new(list.order(), node.key(), newest));
    list.index().is_none_or(|index| {
        let [before_first, before_last] = index.enter(list.order(), &targets);
        before_first == before_last
    })
}

/// Whether the node that follows one in the list has a greater key than another. It must not be a
/// version of that key: there may be thousands of them, and some may be newer than the one to come.
fn leads_beyond(list: &SkipList, node: Node<'_>, other: Node<'_>) -> bool {
    // SAFETY: every node has level 0.
    let next = unsafe { node.link(0) }.load().next;
    // Sequence numbers begin at 1.
    let behind_versions = Target::new(list.order(), other.key(), ReadPoint::at(0));
    next.is_none_or(|next| next.stands(list.order(), &behind_versions) != Stands::Before)
}

/// The place behind the last node that was inserted.
struct AscendingRun<'a> {
    list: &'a SkipList,
    /// On each level, the last node before that place.
    before: [Node<'a>; HEIGHT_MAX],
}

impl<'a> AscendingRun<'a> {
    /// The place of the first node.
    fn before(list: &'a SkipList, first: Target<'a>) -> Self {
        let mut run = AscendingRun {
            list,
            before: [list.head(); HEIGHT_MAX],
        };
        // From the top, because the path is needed on every level.
        let descent = Descent::new(list, first);
        let _ = untroubled(descent.land::<Trusting, _>(&mut run));
        run
    }

    /// Inserts the next node at its place. Returns whether the hash index has had a version of its
    /// key.
    ///
    /// # Safety
    /// As for [`insert_run`]. The node must be numbered, and be the one that the run was made for
    /// or have a greater key than the last one inserted.
    unsafe fn insert(
        &mut self,
        node: Node<'a>,
        target: &Target<'a>,
        indexed: Option<(&HashIndex, Located<'a>)>,
    ) -> bool {
        // Bottom up: once a level leads to the node, every level below it does.
        for level in 0..node.height() {
            // SAFETY: the node reaches up to `level`, and so does the one before it, which is the
            // head, was reached on that level, or was inserted here. It is before the place that
            // the run was made for or has a smaller key, and is therefore before this one.
            unsafe {
                let (before, seen) = self.list.advance(self.before[level], level, target);
                self.list.link(node, target, level, before, seen);
            }
            self.before[level] = node;
        }
        let is_new = indexed.is_none_or(|(index, at)| index.insert(self.list.arena(), at, node));
        !is_new
    }
}

impl<'a> Trail<'a> for AscendingRun<'a> {
    const KEEPS_ALL: bool = true;

    fn record(&mut self, level: usize, before: Node<'a>, _: Seen<'a>) {
        self.before[level] = before;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use forerun_core::Pages;

    use super::*;
    use crate::Op;
    use crate::memtable::node::{Draft, Seal};
    use crate::memtable::{MemTable, MemTableConfig};
    use crate::versions::Kind;

    fn tables() -> [MemTable; 2] {
        [false, true].map(|hash_index| {
            let config = MemTableConfig::default()
                .limit_bytes(16 << 20)
                .hash_index(hash_index)
                .pages(Pages::Small);
            MemTable::new(config).unwrap()
        })
    }

    fn publish(table: &MemTable, keys: &[u64], first_sequence: u64) {
        let keys: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
        let ops = keys.iter().map(|key| Op::Put { key, value: b"" });
        table.prepare(ops).unwrap().publish(first_sequence);
    }

    fn new_node(list: &SkipList, key: u64) -> Node<'_> {
        let draft = Draft {
            key: &key.to_be_bytes(),
            value: b"",
            kind: Kind::Value,
            height: 1 + key as usize % 3,
            seal: Seal::None,
        };
        let placement = list.shape().placement;
        let end_of = |start| draft.start(start, placement) + draft.size_bytes();
        let (place, len_bytes) = list.arena().allocate_with(end_of).unwrap();
        // SAFETY: the range was just allocated for this draft, which starts after the padding.
        unsafe { draft.write(list.arena(), place.add(len_bytes - draft.size_bytes())) }
    }

    /// Offers ascending keys to the list of a table. Returns how many of them it has inserted.
    fn offer(table: &MemTable, keys: &[u64], first_sequence: u64) -> usize {
        let list = &table.list;
        let nodes: Vec<_> = keys.iter().map(|key| new_node(list, *key)).collect();
        let ends = (nodes[0], nodes[nodes.len() - 1]);
        let mut left = nodes.into_iter().zip(first_sequence..);
        // SAFETY: the nodes are new, and there are no others with their numbers.
        unsafe { insert_run(list, table.hash_index.as_ref(), ends, &mut left) };
        keys.len() - left.count()
    }

    fn row(first: u64, step: u64) -> Vec<u64> {
        (0..40).map(|nth| first + nth * step).collect()
    }

    #[test]
    fn keys_are_a_run_where_no_other_entry_lies_between_them() {
        for table in tables() {
            publish(&table, &[0, 1000, 2000, 2000], 1);
            assert_eq!(offer(&table, &row(10, 1), 100), 40, "before 1000");
            assert_eq!(offer(&table, &row(1010, 20), 200), 40, "up to 1790");
            assert_eq!(offer(&table, &row(3000, 1), 300), 40, "behind all others");
            assert_eq!(
                offer(&table, &row(1961, 1), 400),
                1,
                "up to a key that is there"
            );
            assert_eq!(offer(&table, &row(1800, 10), 500), 1, "beyond 2000");
            assert_eq!(
                offer(&table, &row(1000, 1), 600),
                1,
                "from a key that is there"
            );
        }
    }

    #[test]
    fn keys_that_the_skip_list_index_shows_to_be_apart_are_not_searched_for() {
        for table in tables() {
            let keys: Vec<_> = (0..4000).map(|nth| nth * 100).collect();
            publish(&table, &keys, 1);
            assert!(table.list.index().is_some());
            assert_eq!(offer(&table, &row(50, 5000), 10_000), 0);
            assert_eq!(offer(&table, &row(1_000_000, 5), 20_000), 40);
        }
    }

    #[test]
    fn a_run_begins_behind_newer_versions_of_its_first_key_and_goes_on_behind_its_last() {
        for table in tables() {
            publish(&table, &[7; 50], 101);
            let first = new_node(&table.list, 7);
            // SAFETY: the node is new, and there is no other with its number.
            let target = unsafe { table.list.number(first, 50) };
            let mut run = AscendingRun::before(&table.list, target);
            assert_eq!(run.before[0].sequence(), 101);
            // SAFETY: as above.
            unsafe { run.insert(first, &target, None) };
            assert_eq!(first.height(), 2);
            assert!(run.before[..2] == [first; 2]);
        }
    }
}
