//! The search: one loop, for a single lookup, for interleaved ones, for insertion, and for the finger.

use std::ops::RangeInclusive;

use forerun_core::arch::prefetch_read;
use forerun_core::{CACHE_LINE_BYTES, touch};

use super::check::{Checked, Visit};
use super::list::SkipList;
use super::node::{Kind, Node, Seen, Target};

/// What a memtable knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// No version of the key is visible.
    Missing,
    /// The newest visible version is a deletion.
    Deleted,
    /// The newest visible value, where it lies in the memtable.
    Value(&'a [u8]),
}

/// Where a search keeps its path, if it keeps it.
pub(super) trait Trail<'a> {
    /// Called once a level, from the top down: the last node before the target, and the link that was seen there.
    fn record(&mut self, level: usize, before: Node<'a>, seen: Seen<'a>);
}

/// Keeps nothing.
pub(super) struct NoTrail;

impl<'a> Trail<'a> for NoTrail {
    #[inline(always)]
    fn record(&mut self, _: usize, _: Node<'a>, _: Seen<'a>) {}
}

/// Where a search ended.
#[derive(Clone, Copy)]
pub(super) struct Landing<'a> {
    /// The last node before the target on the lowest level searched.
    pub(super) before: Node<'a>,
    /// What follows it: the first node at or behind the target, or the end.
    pub(super) seen: Seen<'a>,
    /// Whether that node was touched. If not, its prefix alone proved its key larger than the target's.
    pub(super) touched: bool,
}

/// Finds the place of `target`, starting at `start` on the highest of `levels`, ending on the lowest.
///
/// `start` must be before the target and have been reached on the highest level (the head is, and has).
/// Awaits each node before it is read.
#[inline(always)]
pub(super) async fn descend<'a, V: Visit, T: Trail<'a>>(
    list: &'a SkipList,
    target: &Target<'_>,
    start: Node<'a>,
    levels: RangeInclusive<usize>,
    trail: &mut T,
) -> Checked<Landing<'a>> {
    let (floor, mut level) = levels.into_inner();
    let mut before = start;
    // The nearest node known to be at or behind the target: on the next level down it need not be asked again.
    let mut behind: Option<Node<'a>> = None;
    loop {
        // SAFETY: `before` was reached on this level or a higher one.
        let seen = unsafe { before.link(level) }.load();
        if let Some(next) = seen.next
            && seen.next != behind
            && (V::READS_ALL || seen.prefix <= target.prefix)
        {
            arrive(next, level).await;
            V::visit(list, before, next)?;
            if next.compare(list.order(), target).is_lt() {
                before = next;
                continue;
            }
            behind = seen.next;
        }
        trail.record(level, before, seen);
        if level == floor {
            let touched = seen.next.is_some() && seen.next == behind;
            return Ok(Landing {
                before,
                seen,
                touched,
            });
        }
        level -= 1;
    }
}

/// Awaits the lines of a node that a comparison and the next step on `level` read: its key, and its link.
#[inline(always)]
async fn arrive(node: Node<'_>, level: usize) {
    prefetch_read(node.link_address(level));
    touch(node.address()).await;
}

/// Looks one key up: the newest version that `snapshot` sees.
#[inline(always)]
pub(super) async fn find<'a, V: Visit>(
    list: &'a SkipList,
    key: &[u8],
    snapshot: u64,
) -> Checked<Lookup<'a>> {
    let target = Target::new(list.order(), key, snapshot);
    let levels = 0..=list.top_level();
    let landing = descend::<V, _>(list, &target, list.head(), levels, &mut NoTrail).await?;
    match landing.hit(list, key) {
        Some(node) => Ok(answer(node).await),
        None => Ok(Lookup::Missing),
    }
}

impl<'a> Landing<'a> {
    /// The node that answers a lookup of `key`, if the search ended at one.
    #[inline(always)]
    pub(super) fn hit(&self, list: &SkipList, key: &[u8]) -> Option<Node<'a>> {
        self.seen
            .next
            .filter(|node| self.touched && node.has_key(list.order(), key))
    }
}

/// What a node answers, after awaiting the lines of its value.
#[inline(always)]
pub(super) async fn answer(node: Node<'_>) -> Lookup<'_> {
    match node.kind() {
        Kind::Deletion => Lookup::Deleted,
        Kind::Value => {
            let value = node.value();
            let line = node.address().addr() / CACHE_LINE_BYTES;
            if value.as_ptr_range().end.addr().saturating_sub(1) / CACHE_LINE_BYTES > line {
                prefetch_value(value);
                touch(value.as_ptr()).await;
            }
            Lookup::Value(value)
        }
    }
}

/// Prefetches the beginning of a value; the hardware follows a long one by itself.
#[inline(always)]
pub(super) fn prefetch_value(value: &[u8]) {
    const MOST_BYTES: usize = 4 * CACHE_LINE_BYTES;
    let mut at = CACHE_LINE_BYTES;
    while at < value.len().min(MOST_BYTES) {
        prefetch_read(value.as_ptr().wrapping_add(at));
        at += CACHE_LINE_BYTES;
    }
    prefetch_read(
        value
            .as_ptr()
            .wrapping_add(value.len().min(MOST_BYTES).saturating_sub(1)),
    );
}
