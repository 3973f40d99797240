//! Lookups of one key or of a batch: through the hash index (`hash_lookup.rs`), or where there is
//! none, in the list (`ordered_search.rs`).

use super::descent::{Lookup, find_alone};
use super::hash_index::HashIndex;
use super::key_batch::{BatchKey, KeyBatch};
use super::memory_checks::{Checked, Visit};
use super::skip_list::SkipList;
use super::{hash_lookup, ordered_search};
use crate::versions::ReadPoint;

/// Looks up one key. `index` is the table's hash index, if it has one.
#[inline(always)]
pub(super) fn find<'a, V: Visit>(
    list: &'a SkipList,
    index: Option<&HashIndex>,
    key: &[u8],
    read_point: ReadPoint,
) -> Checked<Lookup<'a>> {
    match index {
        Some(index) => hash_lookup::find(list, index, key, read_point),
        None => find_alone::<V>(list, key, read_point),
    }
}

/// Looks up a batch. The sink receives each answer with the position of its key.
pub(super) fn find_all<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    index: Option<&HashIndex>,
    batch: &KeyBatch<'_, K>,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    match (index, batch.keys) {
        (_, []) => {}
        (_, [_]) => sink(0, find::<V>(list, index, batch.key(0), batch.read_point(0))),
        (Some(index), _) => hash_lookup::find_all(list, index, batch, sink),
        (None, _) => ordered_search::find_all::<V, K>(list, batch, sink),
    }
}
