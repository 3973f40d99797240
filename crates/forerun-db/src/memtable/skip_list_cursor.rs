//! All versions in the list, in order, in both directions.

use super::descent::{NoTrail, Trail, start};
use super::memory_checks::{Checked, Visit};
use super::node::{Node, Seen, Target};
use super::skip_list::SkipList;
use crate::versions::ReadPoint;

/// The first version.
pub(super) fn first<V: Visit>(list: &SkipList) -> Checked<Option<Node<'_>>> {
    step::<V>(list, list.head())
}

/// The last version.
pub(super) fn last<V: Visit>(list: &SkipList) -> Checked<Option<Node<'_>>> {
    let mut end = list.head();
    let mut level = list.top_level();
    loop {
        // SAFETY: `end` was reached on this level or a higher one.
        match unsafe { end.link(level) }.load().next {
            Some(next) => {
                V::visit(list, end, next)?;
                end = next;
            }
            None if level == 0 => break,
            None => level -= 1,
        }
    }
    Ok(Some(end).filter(|end| *end != list.head()))
}

/// The last version before a position.
pub(super) fn before<'a, V: Visit>(
    list: &'a SkipList,
    key: &[u8],
    sequence: u64,
) -> Checked<Option<Node<'a>>> {
    let before = seek::<V>(list, key, sequence)?.0;
    Ok(Some(before).filter(|before| *before != list.head()))
}

/// The most nodes that [`several_before`] returns.
const BEFORE_MAX: usize = 64;

/// Replaces `found` with some nodes in a row, in order, of which the last one is the last before a
/// position: those from the node on that the search passed last on `level`. On average, twice as
/// many with each level.
pub(super) fn several_before<'a, V: Visit>(
    list: &'a SkipList,
    (key, sequence): (&[u8], u64),
    level: usize,
    found: &mut Vec<Node<'a>>,
) -> Checked<()> {
    found.clear();
    let target = Target::new(list.order(), key, ReadPoint::at(sequence));
    let mut passed = PassedOn { level, node: None };
    let descent = start::<V>(list, target).land::<V, _>(&mut passed)?;
    let last = descent.place().0;
    let mut node = passed.node.unwrap_or(last);
    if node != list.head() {
        found.push(node);
    }
    // Nodes are never removed, so this reaches the last one.
    while node != last
        && let Some(next) = step::<V>(list, node)?
    {
        if found.len() == BEFORE_MAX {
            found.clear();
        }
        found.push(next);
        node = next;
    }
    Ok(())
}

/// Keeps the last node before the target on one level.
struct PassedOn<'a> {
    level: usize,
    node: Option<Node<'a>>,
}

impl<'a> Trail<'a> for PassedOn<'a> {
    const KEEPS_ALL: bool = true;

    fn record(&mut self, level: usize, before: Node<'a>, _: Seen<'a>) {
        if level == self.level {
            self.node = Some(before);
        }
    }
}

/// The first version at or behind a position.
pub(super) fn from<'a, V: Visit>(
    list: &'a SkipList,
    key: &[u8],
    sequence: u64,
) -> Checked<Option<Node<'a>>> {
    Ok(seek::<V>(list, key, sequence)?.1)
}

/// The node after `node` on the lowest level.
pub(super) fn step<'a, V: Visit>(list: &'a SkipList, node: Node<'a>) -> Checked<Option<Node<'a>>> {
    // SAFETY: every node has level 0.
    let next = unsafe { node.link(0) }.load().next;
    if let Some(next) = next {
        V::visit(list, node, next)?;
    }
    Ok(next)
}

/// The last node before a position and the first at or behind it.
fn seek<'a, V: Visit>(
    list: &'a SkipList,
    key: &[u8],
    sequence: u64,
) -> Checked<(Node<'a>, Option<Node<'a>>)> {
    let target = Target::new(list.order(), key, ReadPoint::at(sequence));
    let descent = start::<V>(list, target);
    Ok(descent.land::<V, _>(&mut NoTrail)?.place())
}
