//! Lookups through the hash index, a batch in three stages.
//!
//! ```text
//!   key     the key's bytes          are prefetched sixteen keys before the hash
//!   hash    the key's hash           prefetches the bucket's line
//!   match   tags of the bucket       prefetches the node's lines
//!   answer  the key, the versions    passes the value on
//!
//!   turn    0   1   2  …  12  13  …  24  25
//!   hash    k0  k1  k2    k12 k13    k24 k25
//!   match                 k0  k1     k12 k13
//!   answer                           k0  k1       twelve keys apart, so their misses overlap
//! ```
//!
//! Every key takes the same few steps, so the stages run as one loop over the batch: there is no
//! barrier between them at which nothing is in flight.
//!
//! Keys that the index cannot decide, because it had no memory for all entries, are collected and
//! searched for in the list together.

use super::arena::Arena;
use super::descent::{Lookup, find_alone, prefetch_value};
use super::hash_addressing::tag;
use super::hash_bucket::Line;
use super::hash_index::{HashIndex, Indexed};
use super::key_batch::{BatchKey, KeyBatch};
use super::memory_checks::{Checked, Trusting};
use super::node::{Node, REST_BYTES};
use super::ordered_search::interleaved;
use super::skip_list::SkipList;
use crate::versions::ReadPoint;

/// How many keys a stage runs ahead of the next.
const AHEAD: usize = 12;

/// Keys between the first stage and the last, rounded up.
const RING: usize = 32;
const _: () = assert!(RING > 2 * AHEAD && RING.is_power_of_two());

/// Versions that a lookup walks back one by one. If the one that its snapshot sees is older still,
/// it is searched in the list.
const WALKED: usize = 8;

/// Keys that are collected before they are searched in the list.
const UNDECIDED: usize = 64;

/// Looks up one key.
#[inline(always)]
pub(super) fn find<'a>(
    list: &'a SkipList,
    index: &HashIndex,
    key: &[u8],
    read_point: ReadPoint,
) -> Checked<Lookup<'a>> {
    decided(list, index, index.hash(key), key, read_point)
        .unwrap_or_else(|| find_alone::<Trusting>(list, key, read_point))
}

/// What the index says of a key. `None` if it cannot decide.
#[inline(always)]
fn decided<'a>(
    list: &'a SkipList,
    index: &HashIndex,
    hash: u64,
    key: &[u8],
    read_point: ReadPoint,
) -> Option<Checked<Lookup<'a>>> {
    match index.find(list.arena(), hash, key) {
        Indexed::At(node) => Some(version(list, node, key, read_point)),
        Indexed::Missing => Some(Ok(Lookup::Missing)),
        Indexed::Unknown => None,
    }
}

/// A key on its way through the stages.
#[derive(Clone, Copy)]
struct InFlight<'a> {
    hash: u64,
    line: &'a Line,
    node: Option<Node<'a>>,
}

/// Looks up a batch.
pub(super) fn find_all<'a, K: BatchKey>(
    list: &'a SkipList,
    index: &HashIndex,
    batch: &KeyBatch<'_, K>,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    let arena = list.arena();
    let len = batch.keys.len();
    let buckets = index.buckets();
    let mut keys = batch.keys_ahead();
    let hash = |key: &[u8]| {
        let hash = index.hash(key);
        let line = index.bucket(arena, hash, buckets);
        line.prefetch();
        InFlight {
            hash,
            line,
            node: None,
        }
    };
    let Some(first) = keys.next() else {
        return;
    };
    let mut ring = [hash(first); RING];
    let mut undecided = [0; UNDECIDED];
    let mut undecided_len = 0;
    for turn in 0..len + 2 * AHEAD {
        // The first key's turn came before the loop.
        if turn > 0
            && let Some(key) = keys.next()
        {
            ring[turn % RING] = hash(key);
        }
        if let Some(position) = turn.checked_sub(AHEAD)
            && position < len
        {
            let key = &mut ring[position % RING];
            key.node = first_match(arena, index, key);
        }
        if let Some(position) = turn.checked_sub(2 * AHEAD) {
            let InFlight { hash, node, .. } = ring[position % RING];
            let (key, read_point) = (batch.key(position), batch.read_point(position));
            let found = match node {
                Some(node) if node.key() == key => version(list, node, key, read_point),
                // No tag matched, or one of another key: rarely more than one line is involved.
                _ => match decided(list, index, hash, key, read_point) {
                    Some(found) => found,
                    None => {
                        undecided[undecided_len] = position;
                        undecided_len += 1;
                        if undecided_len == UNDECIDED {
                            undecided_len = 0;
                            search_list(list, batch, &undecided, &mut sink);
                        }
                        continue;
                    }
                },
            };
            sink(position, found);
        }
    }
    search_list(list, batch, &undecided[..undecided_len], &mut sink);
}

/// Searches keys of a batch in the list.
#[inline(never)]
fn search_list<'a, K: BatchKey>(
    list: &'a SkipList,
    batch: &KeyBatch<'_, K>,
    positions: &[usize],
    sink: &mut impl FnMut(usize, Checked<Lookup<'a>>),
) {
    interleaved::<Trusting, K>(list, batch, positions.len(), |turn| positions[turn], sink);
}

/// The first node whose tag matches. Its lines are prefetched, or those where the search continues.
#[inline(always)]
fn first_match<'a>(arena: &'a Arena, index: &HashIndex, key: &InFlight<'a>) -> Option<Node<'a>> {
    let tags = key.line.tags();
    if let Some(slot) = tags.matching(tag(key.hash)).first() {
        let node = index.node(arena, key.line.entry(slot));
        node.prefetch_key();
        node.prefetch_rest();
        return Some(node);
    }
    match tags.overflow() {
        0 => {}
        next => index.overflow(arena, next).prefetch(),
    }
    None
}

/// The newest version of a key that the read point sees, from its newest version on.
#[inline(always)]
fn version<'a>(
    list: &'a SkipList,
    newest: Node<'a>,
    key: &[u8],
    read_point: ReadPoint,
) -> Checked<Lookup<'a>> {
    if newest.sequence() <= read_point.sequence {
        let lookup = Lookup::of(newest, read_point.expired_sequence);
        if let Lookup::Value(value) = lookup
            && value.len() > REST_BYTES
        {
            prefetch_value(value);
        }
        return Ok(lookup);
    }
    older_version(list, newest, key, read_point)
}

#[cold]
#[inline(never)]
fn older_version<'a>(
    list: &'a SkipList,
    newest: Node<'a>,
    key: &[u8],
    read_point: ReadPoint,
) -> Checked<Lookup<'a>> {
    let mut node = newest;
    for _ in 0..WALKED {
        // SAFETY: every node has level 0.
        match unsafe { node.link(0) }.load().next {
            Some(older) if older.key() == key => node = older,
            _ => return Ok(Lookup::Missing),
        }
        if node.sequence() <= read_point.sequence {
            return Ok(Lookup::of(node, read_point.expired_sequence));
        }
    }
    find_alone::<Trusting>(list, key, read_point)
}
