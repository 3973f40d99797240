//! The index by hash against a plain list.

use proptest::prelude::*;

use super::*;
use crate::run::filter::hash;

fn keys(range: std::ops::Range<u64>) -> Vec<(u64, RecordAddress)> {
    let place = |key: u64| RecordAddress {
        page: (key / 100) as u32,
        offset: 500 + (key % 100) as u32 * 120,
    };
    range
        .map(|key| (hash(&key.to_be_bytes()), place(key)))
        .collect()
}

fn build(keys: &[(u64, RecordAddress)], bits: LocationBits) -> RecordIndex {
    RecordIndex::build(keys.iter().copied(), bits).expect("every key has a slot")
}

#[test]
fn a_key_is_at_its_place_and_few_absent_ones_are_anywhere() {
    for count in [1, 8, 9, 10, 25, 200, 5000, 100_000] {
        let present = keys(0..count);
        let bits = LocationBits::new(count.div_ceil(100) as u32, 16 << 10);
        let index = build(&present, bits);
        assert_eq!(index.keys(), count);
        let mut elsewhere = 0;
        for (hash, place) in &present {
            assert!(index.has(*hash, *place));
            let found = index.find(*hash).expect("it is there");
            elsewhere += u64::from(found != *place);
        }
        assert!(elsewhere <= 3 + count / 50, "{elsewhere} of {count}");
        let other = RecordAddress { page: 0, offset: 1 };
        assert!(!index.has(present[0].0, other));
        let absent = keys(1 << 40..(1 << 40) + 20_000);
        let passed = absent.iter().filter(|key| index.find(key.0).is_some());
        let passed = passed.count();
        assert!(passed < 300, "{passed} of 20,000 pass, of {count} keys");
    }
}

#[test]
fn an_index_takes_a_ninth_of_a_line_for_a_key() {
    let index = build(&keys(0..18_000), LocationBits::new(180, 16 << 10));
    assert_eq!(index.bytes().len(), 2000 * 64);
    assert_eq!(RecordIndex::memory_bytes(2000 * 64), 2000 * 64);
}

#[test]
fn an_index_reads_back_and_a_piece_of_one_does_not() {
    let present = keys(0..1000);
    let bits = LocationBits::new(10, 16 << 10);
    let index = build(&present, bits);
    let bytes = index.bytes().to_vec();
    let again = RecordIndex::decode(&bytes, bits).unwrap();
    assert_eq!(again.bytes(), bytes);
    for (hash, _) in &present {
        assert_eq!(again.find(*hash), index.find(*hash));
    }
    assert!(RecordIndex::decode(&bytes[1..], bits).is_err());
    assert!(RecordIndex::decode(&[], bits).is_err());
    // The same locations in a run with fewer leaves.
    let fewer = LocationBits {
        leaf_pages: 9,
        ..bits
    };
    assert!(RecordIndex::decode(&bytes, fewer).is_err());
    let mut gap = bytes;
    gap[TAGS] = 0;
    assert!(RecordIndex::decode(&gap, bits).is_err());
}

#[test]
fn the_bytes_are_those_that_the_format_defines() {
    // Home bucket 1 of 2, tag 0x234, overflow bit 5.
    let hash = 0x8000_0000_0000_0000 | 5 << 10 | 0x234;
    let place = |page| RecordAddress { page, offset: 77 };
    let mut all: Vec<_> = (0..13).map(|page| (hash, place(page))).collect();
    // 12 fill the bucket, and the last one goes to bucket 0. A tag byte of 0 is stored as 1.
    all.push((0x100, place(13)));
    let bits = LocationBits::new(14, 4096);
    let index = build(&all, bits);
    let (home, next) = (&index.bytes()[64..], &index.bytes()[..64]);
    assert_eq!(index.bytes().len(), 128);
    for slot in 0..12 {
        let location = u32::from_le_bytes(home[4 * slot..][..4].try_into().unwrap());
        assert_eq!(location, (slot as u32) << 12 | 77);
    }
    assert_eq!(home[48..60], [0x34; 12]);
    assert_eq!(
        home[60..64],
        [0b1010_1010, 0b1010_1010, 0b1010_1010, 1 << 5]
    );
    assert_eq!(next[..8], [[77, 0xc0, 0, 0], [77, 0xd0, 0, 0]].concat());
    assert_eq!(next[48..50], [0x34, 1]);
    assert_eq!(next[60], 0b0110);
    assert_eq!(next[63], 0);
}

#[test]
fn keys_with_one_hash_fill_eight_buckets_and_no_more() {
    let same = |count: usize| {
        vec![
            (
                7 << 32 | 9,
                RecordAddress {
                    page: 0,
                    offset: 40
                }
            );
            count
        ]
    };
    let others = keys(0..1000);
    let bits = LocationBits::new(10, 4096);
    // They are all in bucket 0 and those after it.
    let some = [same(30), others.clone()].concat();
    let index = RecordIndex::build(some.into_iter(), bits).unwrap();
    assert_eq!(index.find(7 << 32 | 9).map(|place| place.page), Some(0));
    let many = [others, same(97)].concat();
    assert!(RecordIndex::build(many.into_iter(), bits).is_none());
    let none: Vec<(u64, RecordAddress)> = Vec::new();
    assert!(RecordIndex::build(none.into_iter(), bits).is_none());
}

#[test]
fn what_fits_no_location_is_left_out_of_it() {
    // 18 bits of page and 14 of offset fit.
    let widest = LocationBits::new(1 << 18, 16 << 10);
    assert_eq!(widest.offset, 14);
    let place = RecordAddress {
        page: (1 << 18) - 1,
        offset: 16_383,
    };
    assert_eq!(widest.place(widest.location(place)), place);
    let far = RecordAddress {
        offset: 16_384,
        ..place
    };
    assert_eq!(
        widest.place(widest.location(far)),
        RecordAddress { offset: 0, ..far }
    );
    let more = LocationBits::new((1 << 18) + 1, 16 << 10);
    assert_eq!(
        more.place(more.location(place)),
        RecordAddress { offset: 0, ..place }
    );
    for (leaves, page_bytes) in [(0, 0), (1, 1), (u32::MAX, u32::MAX), (1, u32::MAX)] {
        let bits = LocationBits::new(leaves, page_bytes);
        let last = RecordAddress {
            page: leaves.saturating_sub(1),
            offset: 0,
        };
        assert_eq!(bits.place(bits.location(last)), last);
    }
}

proptest! {
    #[test]
    fn no_key_is_missed(
        hashes in prop::collection::vec((any::<u8>(), any::<u16>()), 1..300),
    ) {
        // Few home buckets and few tags, so that buckets overflow.
        let keys: Vec<(u64, RecordAddress)> = hashes
            .iter()
            .enumerate()
            .map(|(at, (home, tag))| {
                let hash = u64::from(*home) << 56 | u64::from(*tag & 0x1fff);
                (hash, RecordAddress { page: at as u32, offset: 9 })
            })
            .collect();
        let bits = LocationBits::new(keys.len() as u32, 4096);
        if let Some(index) = RecordIndex::build(keys.iter().copied(), bits) {
            prop_assert_eq!(index.keys(), keys.len() as u64);
            for (hash, place) in &keys {
                prop_assert!(index.find(*hash).is_some() && index.has(*hash, *place));
            }
            let again = RecordIndex::decode(index.bytes(), bits);
            prop_assert!(again.is_ok());
        }
    }
}
