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

use std::cmp::Ordering;

use crate::Result;
use crate::comparator::KeyOrder;
use crate::versions::{Version, VersionCursor};

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
}

struct Source<C> {
    cursor: C,
    /// Decides most comparisons without a call: [`KeyOrder::long_prefix`] of the current key;
    /// `None` if the cursor has no position.
    prefix: Option<u128>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

impl<C: VersionCursor> Merge<C> {
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
        }
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
        Ok(())
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
            Direction::Forward => source.cursor.next()?,
            Direction::Backward => source.cursor.prev()?,
        }
        source.note(&self.order);
        if self.direction == direction {
            self.play(winner);
        } else {
            self.direction = direction;
            self.play_all();
        }
        Ok(())
    }

    /// Moves all cursors except the winner to the other side of the winner's version.
    fn change_direction(&mut self, winner: usize, direction: Direction) -> Result<()> {
        let Some(version) = self.sources[winner].cursor.at() else {
            return Ok(());
        };
        let sequence = version.sequence;
        self.pivot.clear();
        self.pivot.extend_from_slice(version.key);
        for (i, source) in self.sources.iter_mut().enumerate() {
            if i != winner {
                match direction {
                    Direction::Forward => source.cursor.seek(&self.pivot, sequence)?,
                    Direction::Backward => source.cursor.seek_before(&self.pivot, sequence)?,
                }
                source.note(&self.order);
            }
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

impl<C: VersionCursor> Source<C> {
    #[inline]
    fn note(&mut self, order: &KeyOrder) {
        let at = self.cursor.at();
        self.prefix = at.map(|version| order.long_prefix(version.key));
    }
}

impl<C: VersionCursor> VersionCursor for Merge<C> {
    fn seek_first(&mut self) -> Result<()> {
        self.position(Direction::Forward, |cursor| cursor.seek_first())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.position(Direction::Backward, |cursor| cursor.seek_last())
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.position(Direction::Forward, |cursor| cursor.seek(key, sequence))
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.position(Direction::Backward, |cursor| {
            cursor.seek_before(key, sequence)
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
        match self.is_positioned {
            true => self.sources[self.tree[0]].cursor.at(),
            false => None,
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

    fn reset(&mut self) {
        self.is_positioned = false;
        for source in &mut self.sources {
            source.cursor.reset();
            source.prefix = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::ReverseBytewise;
    use crate::testing::version_list::{Held, Sorted, held};
    use crate::versions::SEQUENCE_MAX;

    #[derive(Clone, Debug)]
    enum Move {
        First,
        Last,
        Seek(u8, u64),
        SeekBefore(u8, u64),
        Next,
        Prev,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let sequence = || prop_oneof![Just(0), Just(SEQUENCE_MAX), 0_u64..60];
        let one = prop_oneof![
            1 => Just(Move::First),
            1 => Just(Move::Last),
            1 => (0_u8..10, sequence()).prop_map(|(key, sequence)| Move::Seek(key, sequence)),
            1 => (0_u8..10, sequence()).prop_map(|(key, sequence)| Move::SeekBefore(key, sequence)),
            6 => Just(Move::Next),
            6 => Just(Move::Prev),
        ];
        prop::collection::vec(one, 1..80)
    }

    fn walk(cursor: &mut dyn VersionCursor, step: &Move) -> Result<()> {
        match *step {
            Move::First => cursor.seek_first(),
            Move::Last => cursor.seek_last(),
            Move::Seek(key, sequence) => cursor.seek(&[key; 9], sequence),
            Move::SeekBefore(key, sequence) => cursor.seek_before(&[key; 9], sequence),
            Move::Next => cursor.next(),
            Move::Prev => cursor.prev(),
        }
    }

    /// Whether the current version is the newest of its key.
    fn is_newest(plain: &mut Sorted) -> bool {
        let Some(at) = plain.at() else {
            return false;
        };
        let (key, sequence) = (at.key.to_vec(), at.sequence);
        plain.prev().unwrap();
        let is_newest = plain.at().is_none_or(|before| before.key != key);
        plain.seek(&key, sequence).unwrap();
        is_newest
    }

    proptest! {
        /// Keys of nine bytes tie in their prefix and need the call; shorter ones do not.
        #[test]
        fn a_merge_walks_like_one_sorted_list(
            keys in prop::collection::vec((0_u8..8, 0_usize..5, any::<bool>()), 0..50),
            sources in 0_usize..6,
            moves in moves(),
            reverse in any::<bool>(),
        ) {
            let order =
                if reverse { KeyOrder::new(Arc::new(ReverseBytewise)) } else { KeyOrder::Bytewise };
            let mut parts: Vec<Vec<Held>> = vec![Vec::new(); sources];
            let mut all = Vec::new();
            for (i, (key, source, long)) in keys.into_iter().enumerate() {
                if let Some(part) = parts.get_mut(source) {
                    let key = if long { vec![key; 9] } else { vec![key] };
                    let version = held(&key, i as u64 + 1, Some(format!("{i}").as_bytes()));
                    part.push(version.clone());
                    all.push(version);
                }
            }
            let cursors = parts.into_iter()
                .map(|part| Box::new(Sorted::new(order.clone(), part)) as Box<dyn VersionCursor>)
                    .collect();
            let mut merge = Merge::new(order.clone(), cursors);
            let mut plain = Sorted::new(order, all);
            for step in &moves {
                walk(&mut merge, step).unwrap();
                walk(&mut plain, step).unwrap();
                prop_assert_eq!(merge.at(), plain.at(), "after {:?}", step);
                if let Move::Last | Move::SeekBefore(..) | Move::Prev = step
                    && merge.is_newest_of_key()
                {
                    prop_assert!(is_newest(&mut plain), "after {:?}", step);
                }
            }
        }
    }

    #[test]
    fn after_a_failed_cursor_a_merge_has_no_position_until_the_next_seek() {
        let part = |from: u64| {
            let versions = (0..4)
                .map(|i| held(&[i as u8], from + i, Some(b"v")))
                .collect();
            Sorted::new(KeyOrder::Bytewise, versions)
        };
        for broken_at in 0..12 {
            let mut bad = part(10);
            bad.fail_call(broken_at);
            let mut merge = Merge::new(
                KeyOrder::Bytewise,
                vec![Box::new(part(1)), Box::new(bad), Box::new(part(20))],
            );
            let mut failed = merge.seek_first().is_err();
            for step in 0..10 {
                if failed {
                    break;
                }
                failed = if step % 4 < 3 {
                    merge.next()
                } else {
                    merge.prev()
                }
                .is_err();
            }
            if failed {
                assert!(merge.at().is_none());
                merge.next().unwrap();
                assert!(merge.at().is_none());
                merge.seek(&[1], SEQUENCE_MAX).unwrap();
                assert_eq!(merge.at().map(|version| version.sequence), Some(21));
            } else {
                assert!(broken_at > 4, "call {broken_at} was never made");
            }
        }
    }

    #[test]
    fn a_cursor_that_grows_meanwhile_does_not_turn_the_order_around() {
        let (mut early, mut late) = (Vec::new(), Vec::new());
        for i in 0..10_u8 {
            if i % 2 == 0 { &mut early } else { &mut late }.push(held(
                &[i],
                1 + u64::from(i),
                Some(b"v"),
            ));
        }
        let shared = Sorted::new(KeyOrder::Bytewise, late);
        let handle = shared.handle();
        let cursors: Vec<Box<dyn VersionCursor>> = vec![
            Box::new(Sorted::new(KeyOrder::Bytewise, early)),
            Box::new(shared),
        ];
        let mut merge = Merge::new(KeyOrder::Bytewise, cursors);
        merge.seek(&[4], SEQUENCE_MAX).unwrap();
        merge.prev().unwrap();
        merge.next().unwrap();
        handle.insert(held(&[4, 1], 100, Some(b"new")));
        handle.insert(held(&[3, 1], 101, Some(b"new")));
        let mut keys = Vec::new();
        merge.prev().unwrap();
        while let Some(version) = merge.at() {
            keys.push(version.key.to_vec());
            merge.next().unwrap();
        }
        assert!(keys.is_sorted(), "{keys:?}");
        assert!(keys.contains(&vec![4, 1]));
    }
}
