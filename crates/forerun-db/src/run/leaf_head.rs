//! What a lookup that begins with the index has to know of a leaf, in the word beside the leaf's
//! slot: the bytes with which all of its keys begin.
//!
//! ```text
//!   all keys of the run   │ shared  │
//!   all keys of the leaf  │ shared  │ more    │
//!   head                            │ more, 7 bytes, padded with zeros │ 1 + its length │
//! ```
//!
//! A leaf has no head (0) if more than 7 bytes follow, or if its prefix has more than 16 bytes.
//! Then lookups read the leaf's first line.

use super::page::{INLINE_PREFIX_BYTES, Page, PageKind};
use super::page_search::{mask, packed, shared_len};
use crate::comparator::KeyOrder;

/// Bytes of a leaf's prefix that a head has room for.
const MORE_BYTES_MAX: usize = 7;

/// Bytes that all keys of a run begin with.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedPrefix {
    /// Less than [`INLINE_PREFIX_BYTES`].
    len: usize,
    /// As [`packed`], and zeros.
    bytes: u128,
}

impl SharedPrefix {
    /// What the first and the last key of a run have in common.
    pub(super) fn of(order: &KeyOrder, smallest: &[u8], largest: &[u8]) -> SharedPrefix {
        let len = match order {
            KeyOrder::Bytewise => shared_len(smallest, largest).min(INLINE_PREFIX_BYTES - 1),
            // Keys between the two may begin with anything.
            KeyOrder::Custom(_) => 0,
        };
        SharedPrefix {
            len,
            bytes: packed(smallest) & mask(len),
        }
    }

    /// A page's head; 0 if it has none.
    pub(super) fn head_of(self, page: Page<'_>) -> u64 {
        let prefix_len = page.prefix_len();
        if page.kind() != PageKind::Leaf || prefix_len > INLINE_PREFIX_BYTES {
            return 0;
        }
        let prefix = u128::from_be_bytes(*page.inline_prefix()) & mask(prefix_len);
        match prefix_len.checked_sub(self.len) {
            Some(more) if more <= MORE_BYTES_MAX && prefix & mask(self.len) == self.bytes => {
                let bytes = prefix << (8 * self.len) >> u64::BITS;
                bytes as u64 | (1 + more as u64)
            }
            _ => 0,
        }
    }

    /// The length and the bytes, as [`packed`], of the prefix of a leaf with this head.
    #[inline(always)]
    pub(super) fn prefix(self, head: u64) -> Option<(usize, u128)> {
        let more_len = (head as u8).checked_sub(1)?;
        let more = u128::from(head & !0xff) << u64::BITS >> (8 * self.len);
        Some((self.len + usize::from(more_len), self.bytes | more))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::page::version_tag;
    use super::super::page_builder::{PageBuilder, Payload};
    use super::*;
    use crate::comparator::ReverseBytewise;
    use crate::versions::Kind;

    fn leaf(order: &KeyOrder, keys: &[&str]) -> Vec<u8> {
        let mut builder = PageBuilder::new(PageKind::Leaf, order.clone(), 4096);
        for key in keys {
            let tag = version_tag(1, Kind::Value);
            builder.add(key.as_bytes(), tag, Payload::Value(b"value"));
        }
        let mut page = Vec::new();
        builder.finish(0, &mut page);
        page
    }

    /// The prefix that the head of a leaf with these keys has, in a run with these ends.
    fn prefix(order: &KeyOrder, ends: [&str; 2], keys: &[&str]) -> Option<Vec<u8>> {
        let page = leaf(order, keys);
        let [smallest, largest] = ends.map(str::as_bytes);
        let shared = SharedPrefix::of(order, smallest, largest);
        let (len, bytes) = shared.prefix(shared.head_of(Page::new(&page)))?;
        Some(bytes.to_be_bytes()[..len].to_vec())
    }

    #[test]
    fn a_head_has_the_prefix_of_its_leaf_or_there_is_none() {
        let order = KeyOrder::Bytewise;
        for (smallest, largest, first, last, expected) in [
            ("a", "z", "bern", "bern", Some("bern")),
            ("a", "z", "bern", "bono", Some("b")),
            ("a", "z", "bern", "cork", Some("")),
            ("user1", "user9", "user123", "user129", Some("user12")),
            (
                "user1",
                "user9",
                "user12345678",
                "user12345679",
                Some("user1234567"),
            ),
            // Eight bytes more than the run's.
            ("user1", "user9", "user123456789", "user12345678a", None),
            // Of the run's prefix of 16 bytes, 15 are used.
            (
                "0123456789abcdef0",
                "0123456789abcdef9",
                "0123456789abcdef1",
                "0123456789abcdef2",
                Some("0123456789abcdef"),
            ),
            // 17 bytes.
            (
                "0123456789abcdef00",
                "0123456789abcdef09",
                "0123456789abcdef01",
                "0123456789abcdef02",
                None,
            ),
            // Damaged metadata: the leaf is not between the ends.
            ("user1", "user9", "bern", "bono", None),
            ("user1", "user9", "us1", "us2", None),
        ] {
            let expected = expected.map(|prefix| prefix.as_bytes().to_vec());
            let found = prefix(&order, [smallest, largest], &[first, last]);
            assert_eq!(found, expected, "{smallest} to {largest}: {first}, {last}");
        }
        // Another order stores whole keys.
        let reverse = KeyOrder::new(Arc::new(ReverseBytewise));
        let found = prefix(&reverse, ["user9", "user1"], &["user5", "user4"]);
        assert_eq!(found, Some(Vec::new()));
    }
}
