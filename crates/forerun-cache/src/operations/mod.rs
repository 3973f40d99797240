//! The writing operations of a cache. Each one makes a decision about the current item.

mod arithmetic;
mod delete;
mod fill;
mod store;
mod touch;

use crate::blocks::item_layout::Record;
use crate::options::KEY_BYTES_MAX;
use crate::write::{NewBody, NewItem};
use std::borrow::Cow;

fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

fn compares_unequal(compare_cas: Option<u64>, record: Record<'_>) -> bool {
    compare_cas.is_some_and(|cas| cas != record.cas())
}

/// A new item that equals the old one, for an operation that changes some of its fields.
fn rewritten(old: Record<'_>) -> NewItem<'_> {
    NewItem {
        value: match old.large() {
            Some(value) => NewBody::Large(value),
            None => NewBody::Parts(Cow::Owned(vec![old.value()])),
        },
        flags: old.flags(),
        expiry: old.expiry(),
        marks: old.marks(),
        cas: Some(old.cas()),
        is_unconditional: false,
    }
}
