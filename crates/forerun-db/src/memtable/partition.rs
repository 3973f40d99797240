//! The partition strategy: a sorted batch moves through the list in groups, breadth first.
//!
//! ```text
//!   group: keys lo..hi, all between `before` and what follows it on `level`
//!
//!   before ──level──► next          keys < next  stay with `before`, one level down
//!     │ lo … cut │ cut … hi         the others   move on to `next`, same level
//! ```
//!
//! At first, keys that enter through the skip-list index at the same node are a group. Without the
//! index, all keys are one, behind the head.
//!
//! A round first prefetches the node that each group must be compared with, then compares them all.
//! The misses of a round therefore overlap, and a node is visited once however many keys of the
//! batch pass it.

use super::descent::{Lookup, entries, prefetch_value};
use super::key_batch::{BatchKey, KeyBatch, Sorted};
use super::memory_checks::{Checked, Visit};
use super::node::{Node, Stands, Target};
use super::skip_list::SkipList;
use super::skip_list_index::GROUP;

#[derive(Clone, Copy)]
struct Group<'a> {
    before: Node<'a>,
    /// The nearest node known to be at or behind every key of the group.
    behind: Option<Node<'a>>,
    level: usize,
    lo: usize,
    hi: usize,
}

/// A group, and the node it waits for.
type Pending<'a> = (Group<'a>, Node<'a>);

pub(super) fn partition<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    batch: &KeyBatch<'_, K>,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    let sorted = batch.sorted(list);
    if sorted.is_empty() {
        return;
    }
    let mut pending = Vec::with_capacity(sorted.len());
    let mut next_round = Vec::with_capacity(sorted.len());
    let mut hits: Vec<(usize, Node<'a>)> = Vec::with_capacity(sorted.len());
    let mut landed = |group: Group<'a>,
                      touched: Option<Node<'a>>,
                      sink: &mut dyn FnMut(usize, Checked<Lookup<'a>>)| {
        for key in &sorted[group.lo..group.hi] {
            match touched.filter(|node| node.has_key(list.order(), batch.key(key.position))) {
                Some(node) => hits.push((key.position, node)),
                None => sink(key.position, Ok(Lookup::Missing)),
            }
        }
    };
    for first in first_groups::<V, K>(list, batch, &sorted) {
        sink_down::<V>(first, &sorted, &mut pending, &mut |group, node| {
            landed(group, node, &mut sink)
        });
    }
    while !pending.is_empty() {
        for (group, next) in pending.drain(..) {
            if let Err(corrupt) = V::visit(list, group.before, next) {
                for key in &sorted[group.lo..group.hi] {
                    sink(key.position, Err(corrupt.clone()));
                }
                continue;
            }
            // For keys up to the cut, `next` is at or behind them.
            let is_behind = |key: &Sorted| {
                let target = Target {
                    key: batch.key(key.position),
                    prefix: key.prefix,
                    sequence: batch.read_point.sequence,
                    expired_sequence: batch.read_point.expired_sequence,
                };
                next.stands(list.order(), &target) != Stands::Before
            };
            let cut = group.lo + sorted[group.lo..group.hi].partition_point(is_behind);
            let mut go_on = |group| {
                sink_down::<V>(group, &sorted, &mut next_round, &mut |group, node| {
                    landed(group, node, &mut sink)
                })
            };
            if cut < group.hi {
                go_on(Group {
                    before: next,
                    behind: group.behind,
                    lo: cut,
                    ..group
                });
            }
            if cut > group.lo {
                go_on(Group {
                    behind: Some(next),
                    hi: cut,
                    ..group
                });
            }
        }
        std::mem::swap(&mut pending, &mut next_round);
    }
    let lookup = |position, node| {
        let expired_sequence = batch.read_point(position).expired_sequence;
        Lookup::of(node, expired_sequence)
    };
    for &(position, node) in &hits {
        if let Lookup::Value(value) = lookup(position, node) {
            prefetch_value(value);
        }
    }
    for (position, node) in hits {
        sink(position, Ok(lookup(position, node)));
    }
}

/// The groups of a sorted batch before its first round. The nodes behind which they stand are
/// prefetched.
fn first_groups<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    batch: &KeyBatch<'_, K>,
    sorted: &[Sorted],
) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut add = |at: usize, entry: Option<Node<'a>>| {
        let (before, level) = match entry {
            Some(node) => (node, list.shape().index_level),
            None => (list.head(), list.top_level()),
        };
        match groups.last_mut() {
            Some(last) if last.before == before => last.hi = at + 1,
            _ => groups.push(Group {
                before,
                behind: None,
                level,
                lo: at,
                hi: at + 1,
            }),
        }
    };
    let (whole, rest) = sorted.as_chunks::<GROUP>();
    for (turn, keys) in whole.iter().enumerate() {
        let targets = keys.each_ref().map(|key| batch.target(list, key.position));
        for (i, entry) in entries::<V, GROUP>(list, &targets).into_iter().enumerate() {
            add(turn * GROUP + i, entry);
        }
    }
    for (i, key) in rest.iter().enumerate() {
        let [entry] = entries::<V, 1>(list, &[batch.target(list, key.position)]);
        add(whole.len() * GROUP + i, entry);
    }
    groups
}

/// Takes a group down as far as links and prefixes alone decide. A node that must be compared is
/// prefetched and put into `pending`. Keys whose place is found are reported with the node read
/// there, if any.
fn sink_down<'a, V: Visit>(
    mut group: Group<'a>,
    sorted: &[Sorted],
    pending: &mut Vec<Pending<'a>>,
    landed: &mut dyn FnMut(Group<'a>, Option<Node<'a>>),
) {
    loop {
        // SAFETY: `before` was reached on this level or a higher one.
        let seen = unsafe { group.before.link(group.level) }.load();
        if let Some(next) = seen.next
            && seen.next != group.behind
        {
            let is_before = |key: &Sorted| !V::READS_ALL && key.prefix < seen.prefix;
            let cut = group.lo + sorted[group.lo..group.hi].partition_point(is_before);
            if cut < group.hi {
                next.prefetch(group.level);
                pending.push((Group { lo: cut, ..group }, next));
                group.hi = cut;
                if group.lo == group.hi {
                    return;
                }
            }
        }
        if group.level == 0 {
            let touched = seen.next.filter(|_| seen.next == group.behind);
            return landed(group, touched);
        }
        group.level -= 1;
    }
}
