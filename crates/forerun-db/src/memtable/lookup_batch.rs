//! A batch of lookups: through the hash index (`hash_lookup.rs`), or where there is none, in the
//! list (`ordered_search.rs`).

use super::descent::Lookup;
use super::hash_index::HashIndex;
use super::key_batch::{BatchKey, KeyBatch};
use super::memory_checks::{Checked, Visit};
use super::skip_list::SkipList;
use super::{hash_lookup, ordered_search};

/// Looks up a batch. The sink receives each answer with the position of its key.
pub(super) fn find_all<'a, V: Visit, K: BatchKey>(
    list: &'a SkipList,
    index: Option<&HashIndex>,
    batch: &KeyBatch<'_, K>,
    mut sink: impl FnMut(usize, Checked<Lookup<'a>>),
) {
    match (index, batch.keys) {
        (_, []) => {}
        (Some(index), [_]) => {
            let (key, read_point) = (batch.key(0), batch.read_point(0));
            sink(0, hash_lookup::find(list, index, key, read_point));
        }
        (Some(index), _) => hash_lookup::find_all(list, index, batch, sink),
        (None, _) => ordered_search::find_all::<V, K>(list, batch, sink),
    }
}
