//! The bytes of a hash: its fields and values in the order in which the fields were added.
//!
//! ```text
//!   ┌───────────┬───────┬───────────┬───────┬───────────┬ …
//!   │ field_len │ field │ value_len │ value │ field_len │ …     lengths are LEB128: 7 bits a byte
//!   └───────────┴───────┴───────────┴───────┴───────────┴ …
//! ```
//!
//! A hash has at most [`HASH_BYTES_MAX`], so a search reads it from the front. A change
//! writes it again. Both read it once: if they are about many fields, they index these first, so
//! that the time is not the product of both numbers.

use std::collections::HashMap;

/// With more fields than this, a search builds an index.
const LINEAR_FIELDS_MAX: usize = 8;

/// The most bytes of a hash. A command reads and writes all of it, within one turn of its worker.
pub(crate) const HASH_BYTES_MAX: usize = 4 << 20;

/// The least bytes of a field and its value beside their own.
pub(crate) const PAIR_OVERHEAD_BYTES: usize = 2;

/// The most bytes of a length.
const LENGTH_BYTES_MAX: usize = 5;

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

    /// The value of each of `fields`, in their order. Reads the hash once, up to the last of them.
    pub(crate) fn get_all(self, fields: &[&[u8]]) -> Vec<Option<&'a [u8]>> {
        // Each field once, and which of them is asked for each time.
        let mut wanted: Vec<(&[u8], &[u8])> = Vec::with_capacity(fields.len());
        let mut index = FieldIndex::new(fields.len());
        let mut asked = Vec::with_capacity(fields.len());
        for &field in fields {
            let at = index.position(field, &wanted).unwrap_or_else(|| {
                index.add(field, wanted.len());
                wanted.push((field, field));
                wanted.len() - 1
            });
            asked.push(at);
        }
        let (mut values, mut left) = (vec![None; wanted.len()], wanted.len());
        for (field, value) in self.iter() {
            if left == 0 {
                break;
            }
            if let Some(at) = index.position(field, &wanted)
                && values[at].is_none()
            {
                values[at] = Some(value);
                left -= 1;
            }
        }
        asked.into_iter().map(|at| values[at]).collect()
    }

    /// The hash with these fields set. Of a field that is given twice, the last value counts. Also
    /// returns how many fields are new.
    pub(crate) fn with(self, pairs: &[(&[u8], &[u8])]) -> (Vec<u8>, usize) {
        // Each field once, with its last value.
        let mut changes: Vec<(&[u8], &[u8])> = Vec::with_capacity(pairs.len());
        let mut index = FieldIndex::new(pairs.len());
        for &(field, value) in pairs {
            match index.position(field, &changes) {
                Some(at) => changes[at].1 = value,
                None => {
                    index.add(field, changes.len());
                    changes.push((field, value));
                }
            }
        }
        let added =
            |(field, value): &(&[u8], &[u8])| field.len() + value.len() + 2 * LENGTH_BYTES_MAX;
        let more_bytes: usize = changes.iter().map(added).sum();
        let mut bytes = Vec::with_capacity(self.0.len() + more_bytes);
        let mut is_present = vec![false; changes.len()];
        self.copy(&mut bytes, |field| {
            let at = index.position(field, &changes)?;
            is_present[at] = true;
            Some(Replacement::Value(changes[at].1))
        });
        let new = changes
            .iter()
            .zip(&is_present)
            .filter(|(_, is_present)| !**is_present);
        let mut count = 0;
        for ((field, value), _) in new {
            count += 1;
            push_pair(&mut bytes, field, value);
        }
        (bytes, count)
    }

    /// The hash without these fields. Also returns how many of them there were.
    pub(crate) fn without(self, fields: &[&[u8]]) -> (Vec<u8>, usize) {
        let removed_fields: Vec<(&[u8], &[u8])> =
            fields.iter().map(|&field| (field, field)).collect();
        let mut index = FieldIndex::new(fields.len());
        for (at, field) in fields.iter().enumerate() {
            index.add(field, at);
        }
        let mut bytes = Vec::with_capacity(self.0.len());
        let mut removed = 0;
        self.copy(&mut bytes, |field| {
            index.position(field, &removed_fields)?;
            removed += 1;
            Some(Replacement::Nothing)
        });
        (bytes, removed)
    }

    /// Copies the fields, in runs between those that `replace` removes or gives another value.
    fn copy<'v>(
        self,
        bytes: &mut Vec<u8>,
        mut replace: impl FnMut(&[u8]) -> Option<Replacement<'v>>,
    ) {
        let mut rest = self.0;
        // The run of fields that are kept begins here.
        let mut run = rest;
        while let Some((field, behind)) = text(rest)
            && let Some((_, behind)) = text(behind)
        {
            if let Some(replacement) = replace(field) {
                bytes.extend_from_slice(&run[..run.len() - rest.len()]);
                if let Replacement::Value(value) = replacement {
                    push_pair(bytes, field, value);
                }
                run = behind;
            }
            rest = behind;
        }
        bytes.extend_from_slice(&run[..run.len() - rest.len()]);
    }
}

/// What takes the place of a field.
enum Replacement<'v> {
    /// The field with this value.
    Value(&'v [u8]),
    Nothing,
}

/// The positions of fields in a list.
struct FieldIndex<'a>(Option<HashMap<&'a [u8], usize>>);

impl<'a> FieldIndex<'a> {
    /// An index of up to so many fields. A search for few of them compares each. Fields that repeat
    /// take no memory.
    fn new(fields: usize) -> Self {
        Self((fields > LINEAR_FIELDS_MAX).then(HashMap::new))
    }

    fn add(&mut self, field: &'a [u8], at: usize) {
        if let Some(index) = &mut self.0 {
            index.insert(field, at);
        }
    }

    fn position(&self, field: &[u8], list: &[(&[u8], &[u8])]) -> Option<usize> {
        match &self.0 {
            Some(index) => index.get(field).copied(),
            None => list.iter().position(|(name, _)| *name == field),
        }
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
    for (index, &byte) in bytes.iter().enumerate().take(LENGTH_BYTES_MAX) {
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
            let got = Hash::new(&bytes).get_all(&fields);
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
