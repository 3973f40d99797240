//! Pages against a sorted list: every search, in every order, over pages of every shape.

use std::cmp::Ordering;
use std::sync::Arc;

use proptest::prelude::*;

use super::codec::{Compressor, Dictionary};
use super::page::{Page, PageKind, separator_tag, version_tag};
use super::page_builder::{PageBuilder, Payload};
use super::stored::PageLocation;
use super::stored::unstore;
use super::{PageSearch, ZstdOptions};
use crate::comparator::{Bytewise, Comparator, KeyOrder, ReverseBytewise};
use crate::versions::{Kind, SEQUENCE_MAX};

/// An order in which different bytes may be the same key and the prefixes carry no information.
struct IgnoresCase;

impl Comparator for IgnoresCase {
    fn name(&self) -> &str {
        "test.ignores-case"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }
}

pub(super) fn orders() -> [KeyOrder; 3] {
    [
        KeyOrder::Bytewise,
        KeyOrder::new(Arc::new(ReverseBytewise)),
        KeyOrder::new(Arc::new(IgnoresCase)),
    ]
}

/// A version in a test's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) sequence: u64,
    pub(super) value: Option<Vec<u8>>,
}

impl Entry {
    pub(super) fn compare(&self, order: &KeyOrder, key: &[u8], sequence: u64) -> Ordering {
        order
            .compare(&self.key, key)
            .then(sequence.cmp(&self.sequence))
    }
}

/// Sorts entries, and keeps one of each key and sequence number.
pub(super) fn sorted(mut entries: Vec<Entry>, order: &KeyOrder) -> Vec<Entry> {
    entries.sort_by(|a, b| a.compare(order, &b.key, b.sequence));
    entries.dedup_by(|a, b| a.compare(order, &b.key, b.sequence).is_eq());
    entries
}

/// Keys of a page, made of few different bytes so that they share much; some empty, some long, some
/// in upper case.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0_u8), Just(b'a'), Just(b'A'), Just(b'b'), Just(255)];
    prop_oneof![
        8 => prop::collection::vec(byte.clone(), 0..7),
        4 => prop::collection::vec(byte.clone(), 0..24),
        2 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (byte, 0_usize..5000).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

/// The common prefix of a page's keys: often empty, sometimes longer than the header's part.
fn prefix() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(97..99_u8, 0..16),
        prop::collection::vec(97..99_u8, 16..40),
    ]
}

pub(super) fn entries(max: usize) -> impl Strategy<Value = Vec<Entry>> {
    let value = prop::option::weighted(0.9, prop::collection::vec(any::<u8>(), 0..20));
    let entry = (key(), 0..6_u64, value);
    (prefix(), prop::collection::vec(entry, 1..max)).prop_map(|(prefix, entries)| {
        let whole = |(key, sequence, value): (Vec<u8>, u64, Option<Vec<u8>>)| Entry {
            key: [prefix.as_slice(), &key].concat(),
            sequence,
            value,
        };
        entries.into_iter().map(whole).collect()
    })
}

fn leaf(entries: &[Entry], order: &KeyOrder) -> Vec<u8> {
    let mut builder = PageBuilder::new(PageKind::Leaf, order.clone(), usize::MAX / 8);
    for entry in entries {
        let (kind, value) = match &entry.value {
            Some(value) => (Kind::Value, value.as_slice()),
            None => (Kind::Deletion, [].as_slice()),
        };
        let payload = Payload::Value(value);
        assert!(builder.fits(&entry.key, &payload));
        builder.add(&entry.key, version_tag(entry.sequence, kind), payload);
    }
    let mut page = Vec::new();
    builder.finish(0, &mut page);
    Page::check(&page).expect("a built page must be valid");
    Page::new(&page).verify_order(order).expect("in order");
    page
}

fn location(row: usize) -> PageLocation {
    PageLocation {
        offset: 1000 * row as u64,
        stored_len: 900,
        raw_len: 1000 + row as u32,
    }
}

/// An internal page with these entries as separators, except for the first.
fn internal(entries: &[Entry], order: &KeyOrder) -> Vec<u8> {
    let mut builder = PageBuilder::new(PageKind::Internal, order.clone(), usize::MAX / 8);
    for (row, entry) in entries.iter().enumerate() {
        let tag = match row {
            0 => separator_tag(SEQUENCE_MAX),
            _ => separator_tag(entry.sequence),
        };
        builder.add(&entry.key, tag, Payload::Child(location(row)));
    }
    let mut page = Vec::new();
    builder.finish(70, &mut page);
    Page::check(&page).expect("a built page must be valid");
    Page::new(&page).verify_order(order).expect("in order");
    page
}

/// Search targets: every key, its close neighbors, and the extra ones.
fn sought(entries: &[Entry], more: &[(Vec<u8>, u64)]) -> Vec<(Vec<u8>, u64)> {
    let mut sought = more.to_vec();
    for entry in entries {
        let mut longer = entry.key.clone();
        longer.push(0);
        let mut shorter = entry.key.clone();
        shorter.pop();
        let mut other = entry.key.clone();
        if let Some(last) = other.last_mut() {
            *last = last.wrapping_add(1);
        }
        for key in [&entry.key, &longer, &shorter, &other] {
            for sequence in [entry.sequence, entry.sequence + 1, 0, SEQUENCE_MAX] {
                sought.push((key.clone(), sequence));
            }
        }
    }
    sought
}

fn check_leaf(entries: &[Entry], order: &KeyOrder, more: &[(Vec<u8>, u64)]) {
    let bytes = leaf(entries, order);
    let page = Page::new(&bytes);
    assert_eq!((page.kind(), page.rows()), (PageKind::Leaf, entries.len()));
    let mut key = Vec::new();
    for (row, entry) in entries.iter().enumerate() {
        page.key_into(row, &mut key);
        let value = entry.value.as_deref();
        assert_eq!((&key, page.sequence(row)), (&entry.key, entry.sequence));
        assert_eq!(page.value(row), value.unwrap_or_default());
        assert_eq!(page.version_kind(row) == Kind::Value, value.is_some());
    }
    for (key, sequence) in sought(entries, more) {
        let expected = entries.partition_point(|e| e.compare(order, &key, sequence).is_lt());
        let same = |e: &&Entry| order.compare(&e.key, &key).is_eq();
        let found = entries.get(expected).filter(same).map(|_| expected);
        for search in PageSearch::ALL {
            let row = search.lower_bound(page, order, &key, sequence);
            assert_eq!(row, expected, "{key:?} @{sequence} by {search}");
            let row = search.find(page, order, &key, sequence);
            assert_eq!(row, found, "{key:?} @{sequence} by {search}");
        }
    }
}

fn check_internal(entries: &[Entry], order: &KeyOrder, more: &[(Vec<u8>, u64)]) {
    let bytes = internal(entries, order);
    let page = Page::new(&bytes);
    for (row, _) in entries.iter().enumerate() {
        assert_eq!(page.child(row), (70 + row as u32, location(row)));
    }
    for (key, sequence) in sought(entries, more) {
        let after = entries[1..].partition_point(|e| e.compare(order, &key, sequence).is_le());
        for search in PageSearch::ALL {
            let row = search.child(page, order, &key, sequence);
            assert_eq!(row, after, "{key:?} @{sequence} by {search}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 64 } else { 1024 }))]

    #[test]
    fn every_search_finds_in_a_leaf_what_a_list_does(
        entries in entries(60),
        more in prop::collection::vec((key(), 0..8_u64), 0..8),
    ) {
        for order in orders() {
            check_leaf(&sorted(entries.clone(), &order), &order, &more);
        }
    }

    #[test]
    fn every_search_finds_the_child_that_a_list_does(
        entries in entries(60),
        more in prop::collection::vec((key(), 0..8_u64), 0..8),
    ) {
        for order in orders() {
            check_internal(&sorted(entries.clone(), &order), &order, &more);
        }
    }

    #[test]
    fn bytes_that_pass_the_check_are_searched_without_a_panic(
        entries in entries(40),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        key in key(),
    ) {
        let order = KeyOrder::Bytewise;
        let entries = sorted(entries, &order);
        for mut page in [leaf(&entries, &order), internal(&entries, &order)] {
            for (at, byte) in &changes {
                *at.get_mut(&mut page) = *byte;
            }
            crate::run::testing::fuzz::read_page(&page, &key);
        }
    }
}

/// `count` keys that differ only in their last bytes.
fn numbered(count: u32, prefix: &[u8]) -> Vec<Entry> {
    let entry = |n: u32| Entry {
        key: [prefix, &n.to_be_bytes()].concat(),
        sequence: 9,
        value: Some(n.to_le_bytes().to_vec()),
    };
    (0..count).map(|n| entry(3 * n)).collect()
}

#[test]
fn a_page_of_many_groups_is_searched_whole() {
    // One, two and more lines of fences; full and partial last groups; a tie across several groups.
    let long = b"a long beginning that all share";
    for count in [1, 15, 16, 17, 127, 128, 129, 500, 2000] {
        check_leaf(&numbered(count, b""), &KeyOrder::Bytewise, &[]);
        check_internal(&numbered(count, long), &KeyOrder::Bytewise, &[]);
    }
    for outlier in [b"".as_slice(), b"b"] {
        let mut entries = numbered(100, long);
        entries.push(Entry {
            key: outlier.to_vec(),
            sequence: 1,
            value: None,
        });
        let entries = sorted(entries, &KeyOrder::Bytewise);
        check_leaf(&entries, &KeyOrder::Bytewise, &[]);
        check_internal(&entries, &KeyOrder::Bytewise, &[]);
    }
}

#[test]
fn many_versions_of_one_key_are_distinguished() {
    for order in orders() {
        let version = |sequence| Entry {
            key: b"key".to_vec(),
            sequence,
            value: (sequence % 3 != 0).then(|| vec![7; sequence as usize % 5]),
        };
        let entries: Vec<Entry> = (0..100).rev().map(|n| version(2 * n)).collect();
        check_leaf(&entries, &order, &[(b"key".to_vec(), 1 << 50)]);
    }
}

#[test]
fn keys_of_every_length_and_all_bits_set_are_kept() {
    let entry = |len| Entry {
        key: vec![255; len],
        sequence: SEQUENCE_MAX,
        value: Some(vec![1; 3]),
    };
    let lengths = (0..40).chain([4094, 4095, 4096, 4999, 65_535, 65_536]);
    let entries: Vec<Entry> = lengths.map(entry).collect();
    check_leaf(&entries, &KeyOrder::Bytewise, &[]);
    // The longest key is longer than the longest prefix.
    check_leaf(&entries[45..], &KeyOrder::Bytewise, &[]);
    let reverse: Vec<Entry> = entries.iter().rev().cloned().collect();
    check_leaf(&reverse, &KeyOrder::new(Arc::new(ReverseBytewise)), &[]);
}

#[test]
fn a_builder_says_before_it_is_full() {
    for limit_bytes in [4096, 16_384] {
        let mut builder = PageBuilder::new(PageKind::Leaf, KeyOrder::Bytewise, limit_bytes);
        let mut page = Vec::new();
        let mut n = 0_u32;
        loop {
            // The common prefix becomes shorter as rows are added.
            let key = [[b'x'; 30].as_slice(), &(n * n).to_be_bytes()].concat();
            let payload = Payload::Value(&[1; 33]);
            if !builder.fits(&key, &payload) {
                break;
            }
            builder.add(&key, version_tag(1, Kind::Value), payload);
            n += 1;
        }
        builder.finish(0, &mut page);
        assert!(page.len() <= limit_bytes && page.len() + 200 > limit_bytes);
        assert_eq!(Page::check(&page), Ok(()));
        // A page always takes one row, however large.
        assert!(builder.fits(&[1; 5000], &Payload::Value(&[2; 100_000])));
    }
}

#[test]
fn what_is_stored_comes_back_and_a_changed_byte_anywhere_is_seen() {
    let page = leaf(&numbered(20, b"k"), &KeyOrder::Bytewise);
    // A dictionary need not come from the trainer.
    let dictionary = page[page.len() / 2..].to_vec();
    let zstd = ZstdOptions::default();
    for (compressor, dictionary) in [
        (Compressor::None, &[][..]),
        (Compressor::Lz4, &[][..]),
        (Compressor::with_dictionary(zstd, &[]).unwrap(), &[][..]),
        (
            Compressor::with_dictionary(zstd, &dictionary).unwrap(),
            &dictionary[..],
        ),
    ] {
        let mut compressor = compressor;
        let dictionary = Dictionary::decode(dictionary).unwrap();
        let unstore = |salt, location, stored: &[u8], into: &mut [u8]| {
            unstore(salt, location, dictionary.as_ref(), stored, into)
        };
        let is_compressed = !matches!(compressor, Compressor::None);
        let mut file = Vec::new();
        let stored_len = super::stored::store(77, 4000, &page, &mut compressor, &mut file) as u32;
        assert_eq!(stored_len as usize, file.len());
        assert_eq!(is_compressed, file.len() < page.len());
        let raw_len = page.len() as u32;
        let location = PageLocation {
            offset: 4000,
            stored_len,
            raw_len,
        };
        let mut into = vec![0; page.len()];
        unstore(77, location, &file, &mut into).unwrap();
        assert_eq!(into, page);
        let elsewhere = PageLocation {
            offset: 4001,
            ..location
        };
        assert!(unstore(77, elsewhere, &file, &mut into).is_err());
        assert!(unstore(78, location, &file, &mut into).is_err());
        for at in 0..file.len() {
            file[at] ^= 1 << (at % 8);
            assert!(
                unstore(77, location, &file, &mut into).is_err(),
                "byte {at}"
            );
            file[at] ^= 1 << (at % 8);
        }
    }
}

#[test]
fn a_page_is_checked_in_all_its_parts() {
    let entries = numbered(20, b"0123456789abcdefgh");
    let good = leaf(&entries, &KeyOrder::Bytewise);
    let rows = Page::new(&good).rows();
    assert_eq!(rows, 20);
    let groups = 64;
    for (at, change, what) in [
        (0, 4, "kind"),
        (0, 3, "an internal page with a leaf's records"),
        (1, 1, "zero"),
        (2, 1, "prefix length"),
        (4, 1, "rows"),
        (8, 1, "first child"),
        (12, 1, "records' start"),
        (20, 1, "prefix in the header"),
        (35, 1, "first fence"),
        (43, 1, "fence of no group"),
        (groups + 3, 128, "key prefix"),
        (groups + 64, 1, "entry"),
        (groups + 128 + 32, 1, "key prefix of no row"),
        (groups + 128 + 64 + 32, 1, "entry of no row"),
    ] {
        let mut bad = good.clone();
        bad[at] ^= change;
        assert!(Page::check(&bad).is_err(), "{what}");
    }
    assert!(Page::check(&good[..good.len() - 1]).is_err());
    assert!(Page::check(&[good.as_slice(), &[0]].concat()).is_err());
    assert!(Page::check(&[]).is_err());
    let wrong_order = KeyOrder::new(Arc::new(ReverseBytewise));
    assert!(Page::new(&good).verify_order(&wrong_order).is_err());
    assert_eq!(Bytewise.name(), "forerun.bytewise");
}
