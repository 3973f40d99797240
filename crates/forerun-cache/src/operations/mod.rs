//! The writing operations of a cache. Each one makes a decision about the current item.

mod arithmetic;
mod compute;
mod delete;
mod fill;
mod store;
mod touch;

use crate::blocks::item_layout::Record;
use crate::cache::Cache;
use crate::options::ITEM_OVERHEAD_BYTES;
use crate::write::{NewBody, NewItem};

fn compares_unequal(compare_cas: Option<u64>, record: Record<'_>) -> bool {
    compare_cas.is_some_and(|cas| cas != record.cas())
}

impl Cache {
    fn is_key(&self, key: &[u8]) -> bool {
        key.len() <= self.key_bytes_max()
    }

    fn is_too_large(&self, key: &[u8], value_bytes: usize) -> bool {
        let item_bytes = value_bytes.saturating_add(key.len() + ITEM_OVERHEAD_BYTES);
        item_bytes > self.options().max_item_bytes
    }
}

/// A new item that equals the old one, for an operation that changes some of its fields.
fn rewritten(old: Record<'_>) -> NewItem<'_> {
    NewItem {
        value: match old.large() {
            Some(value) => NewBody::Large(value),
            None => NewBody::Bytes(old.value()),
        },
        flags: old.flags(),
        kind: old.kind(),
        deadline: old.deadline(),
        marks: old.marks(),
        cas: Some(old.cas()),
        is_unconditional: false,
    }
}
