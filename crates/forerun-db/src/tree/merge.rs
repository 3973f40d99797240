//! Merges many cursors into one.
//!
//! ```text
//!              winner ── the cursor whose version is next
//!            ┌───┴───┐
//!          loser   loser      each inner node keeps its loser. To advance the winner, its new version
//!         ┌──┴─┐  ┌──┴─┐      plays against the losers on its way up, one comparison per level
//!         0    1  2    3      cursors
//! ```
//!
//! Moving forward, every cursor except the winner is at its first version after the winner's;
//! moving backward, at its last one before. A change of direction seeks all other cursors to the
//! other side of the winner's version. The seeks take time, but do not rely on unchanged contents:
//! a memtable grows. After an error the merge has no position until the next seek.
//!
//! Cursors of a store's reader seek together: while one waits for a cache line, the
//! others go on. Otherwise they seek one after the other. A cursor that knows its key without
//! reading it reads the version when it wins, unless the scan ends before that key.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use forerun_core::interleave_with;

use super::scan_limit::{Direction, ScanLimit};
use crate::Result;
use crate::cache::driver::Reads;
use crate::cache::{PageCache, pin, reclaim};
use crate::comparator::KeyOrder;
use crate::io::ReadBackend;
use crate::run::interleaved_seek::InterleavedSeek;
use crate::versions::{SeekSide, SeekTarget, Version, VersionCursor};

/// Searches in flight: as many as most stores have memtables, runs of level 0, and levels. Their
/// states are on the stack.
const SEARCHES_IN_FLIGHT: usize = 8;

/// The versions of many cursors, in order.
///
/// Cursors must not share a version with the same key and sequence number. If they do, the merge
/// returns both, the earlier cursor's first.
pub(crate) struct Merge<C> {
    order: KeyOrder,
    sources: Vec<Source<C>>,
    /// A loser tree: `tree[0]` is the winner, `tree[1..]` the losers at the inner nodes. The parent
    /// of node `n` is `n / 2`, and cursor `i` is node `sources.len() + i`.
    tree: Vec<usize>,
    direction: Direction,
    /// Whether there is a winner with a position.
    is_positioned: bool,
    /// The key at which the direction changes.
    pivot: Vec<u8>,
    /// Buffer for the winners of all nodes while every match is played.
    winners: Vec<usize>,
    /// The cache of the cursors' pages, if the cursors seek together.
    cache: Option<Arc<PageCache>>,
    limit: ScanLimit,
}

struct Source<C> {
    cursor: C,
    /// Decides most comparisons without a call: [`KeyOrder::long_prefix`] of the current key;
    /// `None` if the cursor has no position.
    prefix: Option<u128>,
    /// During a seek, whether the cursor has to search.
    has_to_search: bool,
}

impl<C: InterleavedSeek> Merge<C> {
    /// The number of cursors.
    pub(crate) fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Merges cursors that share this order. The merge starts without a position.
    pub(crate) fn new(order: KeyOrder, cursors: Vec<C>) -> Merge<C> {
        let tree = vec![0; cursors.len()];
        let sources = cursors
            .into_iter()
            .map(|cursor| Source {
                cursor,
                prefix: None,
                has_to_search: false,
            })
            .collect();
        Merge {
            order,
            sources,
            tree,
            direction: Direction::Forward,
            is_positioned: false,
            pivot: Vec::new(),
            winners: Vec::new(),
            cache: None,
            limit: ScanLimit::default(),
        }
    }

    /// The same merge, with cursors that seek together. All of them read pages through `cache`.
    pub(crate) fn interleaved(self, cache: &Arc<PageCache>) -> Merge<C> {
        Merge {
            cache: Some(Arc::clone(cache)),
            ..self
        }
    }

    /// Sets where scans in `direction` end: behind it, the merge may have no position. Scans in the
    /// other direction have no limit.
    pub(crate) fn set_limit(&mut self, direction: Direction, bound: Bound<&[u8]>) {
        self.limit.set(direction, bound);
    }

    /// Gives up the position.
    pub(crate) fn leave(&mut self) {
        self.is_positioned = false;
    }

    /// Whether a scan to `side` needs neither this key nor those that follow.
    pub(crate) fn is_limited_before(&self, key: &[u8], side: SeekSide) -> bool {
        self.limit.is_passed(&self.order, Direction::to(side), key)
    }

    /// Moves those cursors to a target ahead that have only versions older than `sequence` on the
    /// way. Returns whether the merge has moved.
    pub(crate) fn skip_older(&mut self, to: SeekTarget<'_>, sequence: u64) -> Result<bool> {
        let is_ahead = |at: Version<'_>| match to.side {
            SeekSide::AtOrAfter => self.order.compare(at.key, to.key).is_lt(),
            SeekSide::Before => self.order.compare(at.key, to.key).is_ge(),
        };
        if !self.is_positioned || self.direction != Direction::to(to.side) {
            return Ok(false);
        }
        let (winner, mut is_moved, mut is_winner_moved) = (self.tree[0], false, false);
        for (at, source) in self.sources.iter_mut().enumerate() {
            if source.cursor.at().is_some_and(is_ahead) && source.cursor.is_older(to, sequence) {
                self.is_positioned = false;
                to.seek(&mut source.cursor)?;
                source.note(&self.order);
                is_moved = true;
                is_winner_moved |= at == winner;
            }
        }
        if is_moved {
            self.play_all();
            self.read_winner()?;
        }
        Ok(is_winner_moved)
    }

    /// Moves every cursor with `seek`, then finds the winner.
    fn position(
        &mut self,
        direction: Direction,
        seek: impl Fn(&mut C) -> Result<()>,
    ) -> Result<()> {
        self.is_positioned = false;
        self.direction = direction;
        for source in &mut self.sources {
            seek(&mut source.cursor)?;
            source.note(&self.order);
        }
        self.play_all();
        self.read_winner()
    }

    /// Moves every cursor to a target, then finds the winner.
    fn position_at(&mut self, to: SeekTarget<'_>) -> Result<()> {
        self.is_positioned = false;
        self.direction = Direction::to(to.side);
        seek_all(&mut self.sources, None, self.cache.as_ref(), to)?;
        for source in &mut self.sources {
            source.note(&self.order);
        }
        self.play_all();
        self.read_winner()
    }

    /// Moves one version in `direction`.
    #[inline]
    fn advance(&mut self, direction: Direction) -> Result<()> {
        if !std::mem::replace(&mut self.is_positioned, false) {
            return Ok(());
        }
        let winner = self.tree[0];
        if self.direction != direction {
            self.change_direction(winner, direction)?;
        }
        let source = &mut self.sources[winner];
        match direction {
            Direction::Forward => source.cursor.next_unread()?,
            Direction::Backward => source.cursor.prev_unread()?,
        }
        source.note(&self.order);
        if self.direction == direction {
            self.play(winner);
        } else {
            self.direction = direction;
            self.play_all();
        }
        self.read_winner()
    }

    /// Lets the winner read its version, if it has not done so, until a cursor has won that has, or
    /// until the scan has ended.
    #[inline]
    fn read_winner(&mut self) -> Result<()> {
        if self.is_winner_unread() {
            self.read_winners()
        } else {
            Ok(())
        }
    }

    #[inline]
    fn is_winner_unread(&self) -> bool {
        self.is_positioned && self.sources[self.tree[0]].cursor.is_unread()
    }

    #[inline(never)]
    fn read_winners(&mut self) -> Result<()> {
        while self.is_winner_unread() {
            let winner = self.tree[0];
            self.is_positioned = false;
            if self.is_behind_limit(winner) {
                break;
            }
            self.sources[winner].cursor.read()?;
            self.sources[winner].note(&self.order);
            self.play(winner);
        }
        Ok(())
    }

    /// Whether the scan ends before a cursor's version.
    fn is_behind_limit(&self, source: usize) -> bool {
        let at = self.sources[source].cursor.at();
        at.is_some_and(|at| self.limit.is_passed(&self.order, self.direction, at.key))
    }

    /// Moves all cursors except the winner to the other side of the winner's version.
    fn change_direction(&mut self, winner: usize, direction: Direction) -> Result<()> {
        let Some(version) = self.sources[winner].cursor.at() else {
            return Ok(());
        };
        let sequence = version.sequence;
        self.pivot.clear();
        self.pivot.extend_from_slice(version.key);
        let to = SeekTarget {
            key: &self.pivot,
            sequence,
            side: match direction {
                Direction::Forward => SeekSide::AtOrAfter,
                Direction::Backward => SeekSide::Before,
            },
        };
        seek_all(&mut self.sources, Some(winner), self.cache.as_ref(), to)?;
        for source in &mut self.sources {
            source.note(&self.order);
        }
        Ok(())
    }

    /// Plays every match.
    fn play_all(&mut self) {
        let count = self.sources.len();
        if count == 0 {
            return;
        }
        // Winners move up the tree; each node keeps its loser.
        let mut winners = std::mem::take(&mut self.winners);
        winners.resize(2 * count, 0);
        for (i, winner) in winners[count..].iter_mut().enumerate() {
            *winner = i;
        }
        for node in (1..count).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            let (winner, loser) = if self.beats(a, b) { (a, b) } else { (b, a) };
            winners[node] = winner;
            self.tree[node] = loser;
        }
        self.tree[0] = winners[1];
        self.winners = winners;
        self.is_positioned = self.sources[self.tree[0]].prefix.is_some();
    }

    /// Replays the matches of the former winner after its cursor has moved.
    #[inline]
    fn play(&mut self, mut player: usize) {
        let mut node = (self.sources.len() + player) / 2;
        while node > 0 {
            if self.beats(self.tree[node], player) {
                std::mem::swap(&mut self.tree[node], &mut player);
            }
            node /= 2;
        }
        self.tree[0] = player;
        self.is_positioned = self.sources[player].prefix.is_some();
    }

    /// Whether two cursors are at versions of the same key.
    fn have_same_key(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.sources[a], &self.sources[b]);
        a.prefix == b.prefix
            && match (a.cursor.at(), b.cursor.at()) {
                (Some(a), Some(b)) => self.order.compare(a.key, b.key).is_eq(),
                _ => false,
            }
    }

    /// Whether cursor `a` comes before cursor `b`. Cursors without a position come last.
    #[inline]
    fn beats(&self, a: usize, b: usize) -> bool {
        let (Some(a_prefix), Some(b_prefix)) = (self.sources[a].prefix, self.sources[b].prefix)
        else {
            return self.sources[a].prefix.is_some();
        };
        let order = a_prefix
            .cmp(&b_prefix)
            .then_with(|| {
                match (self.sources[a].cursor.at(), self.sources[b].cursor.at()) {
                    (Some(a), Some(b)) => a.compare(&self.order, &b),
                    // Unreachable: both have a prefix.
                    _ => Ordering::Equal,
                }
            })
            .then(a.cmp(&b));
        match self.direction {
            Direction::Forward => order == Ordering::Less,
            Direction::Backward => order == Ordering::Greater,
        }
    }
}

/// Moves all cursors to a target, except the one at an index.
fn seek_all<C: InterleavedSeek>(
    sources: &mut [Source<C>],
    except: Option<usize>,
    cache: Option<&Arc<PageCache>>,
    to: SeekTarget<'_>,
) -> Result<()> {
    let Some(cache) = cache else {
        let sources = sources.iter_mut().enumerate();
        let mut others = sources.filter(|(at, _)| Some(*at) != except);
        return others.try_for_each(|(_, source)| to.seek(&mut source.cursor));
    };
    let mut searches = 0;
    for (at, source) in sources.iter_mut().enumerate() {
        source.has_to_search = Some(at) != except && !source.cursor.seek_by_bounds(to);
        searches += usize::from(source.has_to_search);
    }
    if searches == 0 {
        return Ok(());
    }
    let mut searching = sources.iter_mut().filter(|source| source.has_to_search);
    if searches == 1 {
        // A search alone has nothing to do while it waits.
        let _pin = pin();
        return searching.try_for_each(|source| source.cursor.search(to));
    }
    while searches > 0 {
        searches -= search_together(&mut searching, cache, to)?;
    }
    Ok(())
}

/// Lets cursors search for a target together, and returns how many: it stops early if the cache is
/// so small that these searches fill it. After a failure, no further search begins.
fn search_together<'c, C: InterleavedSeek + 'c>(
    searching: &mut impl Iterator<Item = &'c mut Source<C>>,
    cache: &Arc<PageCache>,
    to: SeekTarget<'_>,
) -> Result<usize> {
    // All searches find their pages under this pin.
    let pin = pin();
    // Read one by one: pages that the system has cached, as those of most stores are, take longer
    // by way of its queues.
    let reads = Reads::new(cache, &pin, ReadBackend::Sync);
    let (mut begun, failure) = (0, OnceCell::new());
    let searches = std::iter::from_fn(|| {
        if (begun > 0 && reads.should_end_batch()) || failure.get().is_some() {
            return None;
        }
        let source = searching.next()?;
        begun += 1;
        Some(source.cursor.search_interleaved(&reads, to))
    });
    interleave_with::<SEARCHES_IN_FLIGHT, _, _>(&reads, searches, |_, found| {
        if let Err(error) = found {
            // The first one is reported.
            let _ = failure.set(error);
        }
    });
    let is_full = reads.should_end_batch();
    drop(reads);
    drop(pin);
    if is_full {
        reclaim();
    }
    failure.into_inner().map_or(Ok(begun), Err)
}

impl<C: VersionCursor> Source<C> {
    #[inline]
    fn note(&mut self, order: &KeyOrder) {
        let at = self.cursor.at();
        self.prefix = at.map(|version| order.long_prefix(version.key));
    }
}

impl<C: InterleavedSeek> VersionCursor for Merge<C> {
    fn seek_first(&mut self) -> Result<()> {
        self.position(Direction::Forward, InterleavedSeek::seek_first_unread)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.position(Direction::Backward, InterleavedSeek::seek_last_unread)
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.position_at(SeekTarget {
            key,
            sequence,
            side: SeekSide::AtOrAfter,
        })
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.position_at(SeekTarget {
            key,
            sequence,
            side: SeekSide::Before,
        })
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.advance(Direction::Forward)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.advance(Direction::Backward)
    }

    #[inline(always)]
    fn at(&self) -> Option<Version<'_>> {
        if self.is_positioned {
            self.sources[self.tree[0]].cursor.at()
        } else {
            None
        }
    }

    /// Moving backward, every other cursor is at its last version before the winner's. The one that
    /// wins next has lost to the winner itself.
    fn is_newest_of_key(&self) -> bool {
        if !self.is_positioned || self.direction != Direction::Backward {
            return false;
        }
        let winner = self.tree[0];
        if !self.sources[winner].cursor.is_newest_of_key() {
            return false;
        }
        let mut node = (self.sources.len() + winner) / 2;
        while node > 0 {
            if self.have_same_key(self.tree[node], winner) {
                return false;
            }
            node /= 2;
        }
        true
    }

    fn is_limit_passed(&self) -> bool {
        self.is_positioned && self.is_behind_limit(self.tree[0])
    }

    fn reset(&mut self) {
        self.is_positioned = false;
        self.limit.reset();
        for source in &mut self.sources {
            source.cursor.reset();
            source.prefix = None;
        }
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
