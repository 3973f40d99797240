//! The search loop of the skip list, used by single lookups, interleaved lookups, insertion and the
//! finger strategy.

use forerun_core::arch::prefetch_read;
use forerun_core::{CACHE_LINE_BYTES, suspend};

use super::memory_checks::{Checked, Visit};
use super::node::{Node, REST_BYTES, Seen, Stands, Target};
use super::skip_list::SkipList;
use crate::versions::{Kind, ReadPoint};

/// What a memtable knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// No version of the key is visible.
    Missing,
    /// The newest visible version is a deletion.
    Deleted,
    /// The newest visible value; it borrows from the memtable.
    Value(&'a [u8]),
}

/// Where a search keeps its path, if it keeps one.
pub(super) trait Trail<'a> {
    /// Whether every level must be recorded.
    const KEEPS_ALL: bool;

    /// Called once for each level, from the top down, with the last node before the target and the
    /// link that was seen there.
    fn record(&mut self, level: usize, before: Node<'a>, seen: Seen<'a>);
}

/// Keeps nothing.
pub(super) struct NoTrail;

impl<'a> Trail<'a> for NoTrail {
    const KEEPS_ALL: bool = false;

    #[inline(always)]
    fn record(&mut self, _: usize, _: Node<'a>, _: Seen<'a>) {}
}

/// A search on its way down. It stops wherever it must read a node, so that the caller can do
/// something else while the node's cache lines are fetched, or continue at once.
pub(super) struct Descent<'a, 'k> {
    list: &'a SkipList,
    target: Target<'k>,
    /// The last node known to be before the target.
    before: Node<'a>,
    /// The nearest node known to be at or behind the target. The next level down does not have to
    /// compare it again.
    behind: Option<Node<'a>>,
    /// That node, if it answers a lookup of the target.
    found: Option<Node<'a>>,
    /// The node at which the search stopped, to be compared when the search continues; after
    /// landing, the node that follows `before`.
    ahead: Option<Node<'a>>,
    level: u32,
    /// Steps that the search may still take along the index's level before it starts over from the
    /// top.
    patience: u32,
}

/// Where many entries were added behind one node of the index since it was built (ascending keys
/// are all added behind the last), the walk along the index's level is long. Beyond this many
/// steps, starting from the top is shorter.
const PATIENCE: u32 = 8;

/// What a search does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It reads a node, whose cache lines it has prefetched.
    Read,
    /// It has ended, on level 0.
    Land,
}

impl<'a, 'k> Descent<'a, 'k> {
    /// A search from the top.
    #[inline(always)]
    pub(super) fn new(list: &'a SkipList, target: Target<'k>) -> Self {
        // SAFETY: the head has every level and is before every target.
        unsafe { Descent::from(list, target, list.head(), list.top_level()) }
    }

    /// A search from the index's node, or from the top if there is none.
    ///
    /// # Safety
    /// `entry` must be what the list's index found for this target.
    #[inline(always)]
    pub(super) unsafe fn enter(
        list: &'a SkipList,
        target: Target<'k>,
        entry: Option<Node<'a>>,
    ) -> Self {
        match entry {
            Some(_) => {
                let level = list.shape().index_level;
                // SAFETY: the head has every level and is before every target.
                let descent = unsafe { Descent::from(list, target, list.head(), level) };
                // The first step is onto the index's node, which reaches up to this level.
                Descent {
                    ahead: entry,
                    ..descent
                }
            }
            None => Descent::new(list, target),
        }
    }

    /// A search that starts half-way down.
    ///
    /// # Safety
    /// `start` must be before the target and reach up to `level`.
    #[inline(always)]
    pub(super) unsafe fn from(
        list: &'a SkipList,
        target: Target<'k>,
        start: Node<'a>,
        level: usize,
    ) -> Self {
        Descent {
            list,
            target,
            before: start,
            behind: None,
            found: None,
            ahead: None,
            level: level as u32,
            patience: PATIENCE,
        }
    }

    /// Runs to the next node that must be read, or to the end.
    #[inline(always)]
    pub(super) fn step<V: Visit, T: Trail<'a>>(&mut self, trail: &mut T) -> Checked<Step> {
        let mut before = self.before;
        let mut level = self.level as usize;
        if let Some(next) = self.ahead {
            V::visit(self.list, before, next)?;
            match next.stands(self.list.order(), &self.target) {
                Stands::Before => {
                    before = next;
                    // Without a branch: the level of a search is as unpredictable as a coin toss.
                    let index_level = self.list.shape().index_level;
                    self.patience = self.patience.wrapping_sub(u32::from(level == index_level));
                    if self.patience == 0 {
                        (before, level) = (self.list.head(), self.list.top_level());
                        self.patience = u32::MAX;
                    }
                }
                Stands::At => (self.behind, self.found) = (self.ahead, self.ahead),
                Stands::Behind => (self.behind, self.found) = (self.ahead, None),
            }
        }
        let step = loop {
            if !V::READS_ALL && !T::KEEPS_ALL {
                // SAFETY: `before` was reached on this level or a higher one.
                let past = unsafe { before.levels_past(level, self.target.prefix) };
                level = level.saturating_sub(past);
            }
            // SAFETY: as above.
            let seen = unsafe { before.link(level) }.load();
            if let Some(next) = seen.next
                && seen.next != self.behind
                && (V::READS_ALL || seen.prefix <= self.target.prefix)
            {
                self.ahead = seen.next;
                next.prefetch(level);
                if !T::KEEPS_ALL && seen.prefix == self.target.prefix {
                    // This is most likely the entry sought, so its value will be wanted.
                    next.prefetch_rest();
                }
                break Step::Read;
            }
            trail.record(level, before, seen);
            if level == 0 {
                self.ahead = seen.next;
                break Step::Land;
            }
            level -= 1;
        };
        self.level = level as u32;
        self.before = before;
        Ok(step)
    }

    /// Runs the search to its end without suspending: a lone search has nothing else to do while it
    /// waits.
    #[inline(always)]
    pub(super) fn land<V: Visit, T: Trail<'a>>(mut self, trail: &mut T) -> Checked<Self> {
        while self.step::<V, T>(trail)? == Step::Read {}
        Ok(self)
    }

    /// What the search seeks.
    #[inline(always)]
    pub(super) fn target(&self) -> &Target<'k> {
        &self.target
    }

    /// After landing: the last node before the target, and the node that follows it.
    pub(super) fn place(&self) -> (Node<'a>, Option<Node<'a>>) {
        (self.before, self.ahead)
    }

    /// After landing: the node that answers a lookup of the target's key, if there is one.
    ///
    /// It is the last node met at the target. If a newer version stood before it on level 0, the
    /// search would have met that version later.
    #[inline(always)]
    pub(super) fn hit(&self) -> Option<Node<'a>> {
        self.found
    }

    /// After landing: what the table knows of the key.
    #[inline(always)]
    pub(super) fn answer(&self) -> Lookup<'a> {
        match self.hit() {
            None => Lookup::Missing,
            Some(node) => Lookup::of(node, self.target.expired_sequence),
        }
    }
}

/// Looks up one key alone and returns the newest visible version.
#[inline(always)]
pub(super) fn find_alone<'a, V: Visit>(
    list: &'a SkipList,
    key: &[u8],
    read_point: ReadPoint,
) -> Checked<Lookup<'a>> {
    let target = Target::new(list.order(), key, read_point);
    let descent = start::<V>(list, target).land::<V, _>(&mut NoTrail)?;
    Ok(descent.answer())
}

/// Where the searches for some targets begin: at the index's nodes, whose cache lines are
/// prefetched, if there is an index.
#[inline(always)]
pub(super) fn entries<'a, V: Visit, const N: usize>(
    list: &'a SkipList,
    targets: &[Target<'_>; N],
) -> [Option<Node<'a>>; N] {
    let entries = match list.index() {
        // A search that checks every node it passes starts from the head.
        Some(index) if !V::READS_ALL => index.enter(list.order(), targets),
        _ => return [None; N],
    };
    for node in entries.iter().flatten() {
        node.prefetch(list.shape().index_level);
    }
    entries
}

/// Starts one search.
#[inline(always)]
pub(super) fn start<'a, 'k, V: Visit>(list: &'a SkipList, target: Target<'k>) -> Descent<'a, 'k> {
    let [entry] = entries::<V, 1>(list, &[target]);
    // SAFETY: the entry was found for this target.
    unsafe { Descent::enter(list, target, entry) }
}

/// [`find_alone`] as a coroutine, which awaits each node before reading it.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn moves its argument once more when it is first polled: 8 ns a lookup"
)]
#[inline(always)]
pub(super) fn find<'a, 'k, V: Visit>(
    mut descent: Descent<'a, 'k>,
) -> impl Future<Output = Checked<Lookup<'a>>> + use<'a, 'k, V> {
    async move {
        while descent.step::<V, _>(&mut NoTrail)? == Step::Read {
            suspend().await;
        }
        let lookup = descent.answer();
        // `prefetch_rest` has already fetched this much with the node; a longer value is worth
        // another wait.
        if let Lookup::Value(value) = lookup
            && value.len() > REST_BYTES
        {
            prefetch_value(value);
            suspend().await;
        }
        Ok(lookup)
    }
}

impl<'a> Lookup<'a> {
    /// What a node answers if everything up to a sequence number has expired. Whatever is older has
    /// expired too.
    #[inline(always)]
    pub(super) fn of(node: Node<'a>, expired_sequence: u64) -> Self {
        match node.kind() {
            Kind::Value if node.sequence() > expired_sequence => Lookup::Value(node.value()),
            Kind::Value | Kind::Deletion => Lookup::Deleted,
        }
    }
}

/// Prefetches the beginning of a value; the hardware prefetcher follows a long one by itself.
#[inline(always)]
pub(super) fn prefetch_value(value: &[u8]) {
    const BYTES_MAX: usize = 4 * CACHE_LINE_BYTES;
    let mut at = CACHE_LINE_BYTES;
    while at < value.len().min(BYTES_MAX) {
        prefetch_read(value.as_ptr().wrapping_add(at));
        at += CACHE_LINE_BYTES;
    }
    prefetch_read(
        value
            .as_ptr()
            .wrapping_add(value.len().min(BYTES_MAX).saturating_sub(1)),
    );
}
