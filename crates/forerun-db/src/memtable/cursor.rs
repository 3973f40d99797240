//! A cursor: the visible entries of one snapshot, in key order, both ways.

use super::check::{Checked, Visit};
use super::list::SkipList;
use super::node::{MAX_SEQUENCE, Node, Target};
use crate::versions::Kind;
use super::search::{NoTrail, start};

/// A visible entry, where it lies in the memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The user key.
    pub key: &'a [u8],
    /// Its newest visible value.
    pub value: &'a [u8],
}

/// How many older versions are walked over before a search for the next key is the shorter way.
const WALK_LIMIT: usize = 8;

/// The sequence number of a position behind all versions of a key: real ones start at 1.
const BEHIND_ALL: u64 = 0;

/// Which side of a key a cursor starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// The key itself, if it is there.
    At,
    /// What comes after it.
    Behind,
}

/// The first visible entry from `key` on.
pub(super) fn first_from<'a, V: Visit>(
    list: &'a SkipList,
    key: &[u8],
    from: From,
    snapshot: u64,
) -> Checked<Option<Node<'a>>> {
    let sequence = match from {
        From::At => MAX_SEQUENCE,
        From::Behind => BEHIND_ALL,
    };
    visible_from::<V>(list, seek::<V>(list, key, sequence)?.1, snapshot)
}

/// The visible entry of the next key after a version.
pub(super) fn following<'a, V: Visit>(
    list: &'a SkipList,
    version: Node<'a>,
    snapshot: u64,
) -> Checked<Option<Node<'a>>> {
    visible_from::<V>(list, next_key::<V>(list, version)?, snapshot)
}

/// The first visible entry of the list.
pub(super) fn first<V: Visit>(list: &SkipList, snapshot: u64) -> Checked<Option<Node<'_>>> {
    let node = step::<V>(list, list.head())?;
    visible_from::<V>(list, node, snapshot)
}

/// The last visible entry whose key is strictly before `key`.
pub(super) fn last_before<'a, V: Visit>(
    list: &'a SkipList,
    key: &[u8],
    snapshot: u64,
) -> Checked<Option<Node<'a>>> {
    let mut before = seek::<V>(list, key, MAX_SEQUENCE)?.0;
    while before != list.head() {
        if let Some(node) = visible_at::<V>(list, before.key(), snapshot)? {
            return Ok(Some(node));
        }
        before = seek::<V>(list, before.key(), MAX_SEQUENCE)?.0;
    }
    Ok(None)
}

/// The last visible entry of the list.
pub(super) fn last<V: Visit>(list: &SkipList, snapshot: u64) -> Checked<Option<Node<'_>>> {
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
    if end == list.head() {
        return Ok(None);
    }
    match visible_at::<V>(list, end.key(), snapshot)? {
        Some(node) => Ok(Some(node)),
        None => last_before::<V>(list, end.key(), snapshot),
    }
}

/// The visible value of exactly this key.
fn visible_at<'a, V: Visit>(
    list: &'a SkipList,
    key: &[u8],
    snapshot: u64,
) -> Checked<Option<Node<'a>>> {
    let newest = seek::<V>(list, key, snapshot)?.1;
    Ok(newest.filter(|node| node.has_key(list.order(), key) && node.kind() == Kind::Value))
}

/// From `node` on, the first version that is visible, is the newest such of its key, and is no deletion.
fn visible_from<'a, V: Visit>(
    list: &'a SkipList,
    mut node: Option<Node<'a>>,
    snapshot: u64,
) -> Checked<Option<Node<'a>>> {
    while let Some(version) = node {
        node = if version.sequence() > snapshot {
            // Too new: an older version of the same key may do. A long chain of them is searched.
            older::<V>(list, version, snapshot)?
        } else if version.kind() == Kind::Value {
            return Ok(Some(version));
        } else {
            next_key::<V>(list, version)?
        };
    }
    Ok(None)
}

/// The next node that is visible or of another key.
fn older<'a, V: Visit>(
    list: &'a SkipList,
    version: Node<'a>,
    snapshot: u64,
) -> Checked<Option<Node<'a>>> {
    let mut node = version;
    for _ in 0..WALK_LIMIT {
        match step::<V>(list, node)? {
            Some(next)
                if next.sequence() > snapshot && next.has_key(list.order(), version.key()) =>
            {
                node = next
            }
            other => return Ok(other),
        }
    }
    Ok(seek::<V>(list, version.key(), snapshot)?.1)
}

/// The first node of the next key.
fn next_key<'a, V: Visit>(list: &'a SkipList, version: Node<'a>) -> Checked<Option<Node<'a>>> {
    let mut node = version;
    for _ in 0..WALK_LIMIT {
        match step::<V>(list, node)? {
            Some(next) if next.has_key(list.order(), version.key()) => node = next,
            other => return Ok(other),
        }
    }
    Ok(seek::<V>(list, version.key(), BEHIND_ALL)?.1)
}

/// The node after `node` on the lowest level.
fn step<'a, V: Visit>(list: &'a SkipList, node: Node<'a>) -> Checked<Option<Node<'a>>> {
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
    let target = Target::new(list.order(), key, sequence);
    let descent = start::<V>(list, target);
    Ok(descent.land::<V, _>(&mut NoTrail)?.place())
}
