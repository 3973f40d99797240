//! The bytes of a hash: its fields and values in the order in which the fields were added.
//!
//! ```text
//!   ┌───────────┬───────┬───────────┬───────┬───────────┬ …
//!   │ field_len │ field │ value_len │ value │ field_len │ …     lengths are LEB128: 7 bits a byte
//!   └───────────┴───────┴───────────┴───────┴───────────┴ …
//! ```
//!
//! A hash has as many bytes as an item may have, so a search reads it from the front. A change
//! writes it again. Searches for many fields build an index first, so that their time is not the
//! product of both numbers.

use std::collections::{HashMap, HashSet};

/// With more fields than this, a search builds an index.
const LINEAR_FIELDS_MAX: usize = 8;

/// A hash, read in place. Bytes that are not those of a hash end it early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash<'a>(&'a [u8]);

impl<'a> Hash<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The fields and their values.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (field, behind) = text(rest)?;
            let (value, behind) = text(behind)?;
            rest = behind;
            Some((field, value))
        })
    }

    /// The value of a field.
    pub(crate) fn get(self, field: &[u8]) -> Option<&'a [u8]> {
        let found = self.iter().find(|(name, _)| *name == field);
        found.map(|(_, value)| value)
    }

    /// The number of fields.
    pub(crate) fn len(self) -> usize {
        self.iter().count()
    }

    /// Calls `each` with the value of each of `fields`, in their order.
    pub(crate) fn get_all(self, fields: &[&[u8]], mut each: impl FnMut(Option<&'a [u8]>)) {
        if fields.len() <= LINEAR_FIELDS_MAX {
            fields.iter().for_each(|field| each(self.get(field)));
            return;
        }
        let index: HashMap<&[u8], &[u8]> = self.iter().collect();
        fields
            .iter()
            .for_each(|field| each(index.get(field).copied()));
    }

    /// The hash with these fields set. Of a field that is given twice, the last value counts. Also
    /// returns how many fields are new.
    pub(crate) fn with(self, pairs: &[(&[u8], &[u8])]) -> (Vec<u8>, usize) {
        let mut values = HashMap::with_capacity(pairs.len());
        for &(field, value) in pairs {
            values.insert(field, value);
        }
        let mut bytes = Vec::with_capacity(
            self.0.len()
                + pairs
                    .iter()
                    .map(|(field, value)| field.len() + value.len() + 6)
                    .sum::<usize>(),
        );
        for (field, value) in self.iter() {
            push_pair(&mut bytes, field, values.remove(field).unwrap_or(value));
        }
        let new = values.len();
        for &(field, _) in pairs {
            if let Some(value) = values.remove(field) {
                push_pair(&mut bytes, field, value);
            }
        }
        (bytes, new)
    }

    /// The hash without these fields. Also returns how many of them there were.
    pub(crate) fn without(self, fields: &[&[u8]]) -> (Vec<u8>, usize) {
        let removed_fields: HashSet<&[u8]> = fields.iter().copied().collect();
        let mut bytes = Vec::with_capacity(self.0.len());
        let mut removed = 0;
        for (field, value) in self.iter() {
            if removed_fields.contains(field) {
                removed += 1;
            } else {
                push_pair(&mut bytes, field, value);
            }
        }
        (bytes, removed)
    }
}

fn push_pair(bytes: &mut Vec<u8>, field: &[u8], value: &[u8]) {
    for text in [field, value] {
        let mut length = text.len();
        while length >= 0x80 {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend_from_slice(text);
    }
}

/// The text at the front, and what follows.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0_usize;
    for (index, &byte) in bytes.iter().enumerate().take(5) {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            let end = (index + 1).checked_add(length)?;
            return Some((bytes.get(index + 1..end)?, &bytes[end..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn slices(pairs: &Pairs) -> Vec<(&[u8], &[u8])> {
        pairs
            .iter()
            .map(|(field, value)| (&field[..], &value[..]))
            .collect()
    }

    fn some_pairs() -> impl Strategy<Value = Pairs> {
        let field = prop_oneof!["[a-e]{0,2}".prop_map(String::into_bytes), any::<Vec<u8>>()];
        let value = proptest::collection::vec(any::<u8>(), 0..300);
        proptest::collection::vec((field, value), 0..20)
    }

    proptest! {
        #[test]
        fn a_hash_is_a_map_that_keeps_the_order_of_its_fields(
            first in some_pairs(),
            second in some_pairs(),
            removed in proptest::collection::vec("[a-e]{0,2}".prop_map(String::into_bytes), 0..20),
        ) {
            let mut model = Pairs::new();
            let mut bytes = Vec::new();
            for pairs in [&first, &second] {
                let (next, new) = Hash::new(&bytes).with(&slices(pairs));
                let before = model.len();
                for (field, value) in pairs {
                    match model.iter_mut().find(|(name, _)| name == field) {
                        Some((_, old)) => old.clone_from(value),
                        None => model.push((field.clone(), value.clone())),
                    }
                }
                prop_assert_eq!(new, model.len() - before);
                bytes = next;
                prop_assert!(Hash::new(&bytes).iter().eq(slices(&model)));
            }
            let fields: Vec<&[u8]> = removed.iter().map(Vec::as_slice).collect();
            let mut got = Vec::new();
            Hash::new(&bytes).get_all(&fields, |value| got.push(value));
            let value_of = |field: &[u8]| {
                model.iter().find(|(name, _)| name == field).map(|(_, value)| &value[..])
            };
            let expected: Vec<_> = fields.iter().map(|field| value_of(field)).collect();
            prop_assert_eq!(got, expected);
            let (bytes, count) = Hash::new(&bytes).without(&fields);
            let before = model.len();
            model.retain(|(name, _)| !removed.contains(name));
            prop_assert_eq!(count, before - model.len());
            prop_assert!(Hash::new(&bytes).iter().eq(slices(&model)));
            prop_assert_eq!(Hash::new(&bytes).len(), model.len());
        }

        #[test]
        fn any_bytes_are_read(bytes in any::<Vec<u8>>()) {
            let pairs = Hash::new(&bytes).iter();
            let total: usize = pairs.map(|(field, value)| field.len() + value.len()).sum();
            prop_assert!(total <= bytes.len());
        }
    }
}
