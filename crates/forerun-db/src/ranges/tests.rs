//! Range tombstones against a linear search.

use forerun_core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::cmp::Ordering;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{Comparator, ReverseBytewise};

/// Orders keys by their first byte only, so that different bytes may be the same key.
struct FirstByte;

impl Comparator for FirstByte {
    fn name(&self) -> &str {
        "test.first-byte"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.first().cmp(&b.first())
    }
}

fn orders() -> [KeyOrder; 3] {
    [
        KeyOrder::Bytewise,
        KeyOrder::new(Arc::new(ReverseBytewise)),
        KeyOrder::new(Arc::new(FirstByte)),
    ]
}

/// A list.
#[derive(Clone)]
struct Plain {
    order: KeyOrder,
    tombstones: Vec<RangeTombstone>,
}

impl Plain {
    fn covering(&self, key: &[u8]) -> impl Iterator<Item = u64> {
        let covering = self.tombstones.iter().filter(move |of| {
            self.order.compare(&of.start, key).is_le() && self.order.compare(key, &of.end).is_lt()
        });
        covering.map(|of| of.sequence)
    }

    fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        let seen = self.covering(key).filter(|sequence| *sequence <= snapshot);
        seen.max().unwrap_or(0)
    }
}

fn key(number: u8) -> Vec<u8> {
    match number % 3 {
        0 => vec![number],
        _ => vec![number - 1, number],
    }
}

/// Bounds of a range: nested, disjoint, arbitrary, equal to others, and empty or reversed.
fn bounds() -> impl Strategy<Value = (u8, u8)> {
    prop_oneof![
        (1_u8..60).prop_map(|end| (0, end)),
        (0_u8..30).prop_map(|start| (start, 60 - start)),
        (0_u8..59).prop_map(|start| (start, start + 1)),
        (0_u8..60, 0_u8..60),
        Just((20, 40)),
        (0_u8..60).prop_map(|bound| (bound, bound)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn every_reader_finds_the_newest_range_that_it_sees_over_a_key(
        // More than the scan limit, so that blocks have parts.
        bounds in prop::collection::vec(bounds(), 0..900),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()),
            0..20),
        split in any::<prop::sample::Index>(),
        asked in prop::collection::vec((0_u8..62, 0_u8..62, 0_u64..2000, 0_u64..2000), 40),
    ) {
        for order in orders() {
            let mut plain = Plain { order: order.clone(), tombstones: Vec::new() };
            for ((start, end), i) in bounds.iter().zip(1_u64..) {
                plain.tombstones.push(
                    RangeTombstone { start: key(*start), end: key(*end), sequence: 2 * i });
            }
            // Writers overtake each other.
            for (a, b) in &swaps {
                if !plain.tombstones.is_empty() {
                    let (a, b) = (a.index(plain.tombstones.len()), b.index(plain.tombstones.len()));
                    plain.tombstones.swap(a, b);
                }
            }
            let all = || plain.tombstones.iter().map(RangeTombstone::as_ref);
            let one_by_one = Ranges::new(order.clone());
            all().for_each(|tombstone| one_by_one.add([tombstone]));
            let at_once = Ranges::of(order.clone(), all());
            let at = match plain.tombstones.len() { 0 => 0, len => split.index(len) };
            let half = Ranges::new(order.clone());
            half.add(all().take(at));
            let shared = half.with(all().skip(at));
            prop_assert_eq!(half.len(), at);
            for ranges in [&one_by_one, &at_once, &shared] {
                prop_assert_eq!(ranges.len(), plain.tombstones.len());
                prop_assert_eq!(ranges.is_empty(), plain.tombstones.is_empty());
                let list = ranges.list();
                prop_assert!(list.iter().eq(all()));
                let largest = plain.tombstones.iter().map(|of| of.sequence).max();
                prop_assert_eq!(ranges.largest_sequence(), largest.unwrap_or(0));
                for (a, b, sequence, snapshot) in &asked {
                    let (a, b) = (key(*a), key(*b));
                    for snapshot in [*snapshot, u64::MAX] {
                        prop_assert_eq!(ranges.cover(&a, snapshot), plain.cover(&a, snapshot));
                    }
                    if order.compare(&a, &b).is_gt() {
                        continue;
                    }
                    let keys = (0..62).map(key).filter(|key| {
                        order.compare(&a, key).is_le() && order.compare(key, &b).is_le()
                    });
                    let covers: Vec<u64> = keys.map(|key| plain.cover(&key, u64::MAX)).collect();
                    let any = plain.tombstones.iter().any(|of| of.sequence > *sequence
                        && order.compare(&of.start, &of.end).is_lt()
                        && order.compare(&of.start, &b).is_le()
                        && order.compare(&a, &of.end).is_lt());
                    prop_assert_eq!(ranges.any_newer_within(&a, &b, *sequence), any);
                    // Every bound is among the keys, so the result holds for the keys between them
                    // too.
                    let all = covers.iter().all(|cover| cover > sequence);
                    prop_assert_eq!(ranges.covers_all(&a, &b, *sequence, u64::MAX), all);
                }
            }
        }
    }
}

#[test]
fn readers_find_what_is_visible_while_others_add() {
    const COUNT: u64 = 3_000;
    let ranges = Ranges::new(KeyOrder::Bytewise);
    let visible = AtomicU64::new(0);
    // Range n is from 0 up to n, excluded, and each reader must see it as the newest over key n -
    // 1.
    forerun_core::sync::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 1..=COUNT {
                let end = sequence.to_be_bytes();
                ranges.add([RangeRef {
                    start: &[],
                    end: &end,
                    sequence,
                }]);
                visible.store(sequence, Release);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seen = visible.load(Acquire);
                    assert!(ranges.len() as u64 >= seen);
                    for snapshot in [seen, seen / 2, seen / 7] {
                        let over = |key: u64| ranges.cover(&key.to_be_bytes(), snapshot);
                        assert_eq!(over(snapshot), 0, "as of {snapshot}");
                        if snapshot > 0 {
                            assert_eq!(over(snapshot - 1), snapshot);
                            assert_eq!(over(0), snapshot);
                        }
                    }
                    if seen == COUNT {
                        break;
                    }
                }
            });
        }
    });
}

#[test]
fn a_range_is_charged_at_least_its_size() {
    const COUNT: u64 = 20_000;
    let order = KeyOrder::Bytewise;
    let random = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    for name in ["growing", "shrinking", "disjoint", "scattered"] {
        let ranges = Ranges::new(order.clone());
        for i in 0..COUNT {
            let (start, end) = match name {
                "growing" => (0, i + 1),
                "shrinking" => (i, 4 * COUNT - i),
                "disjoint" => (2 * i, 2 * i + 1),
                _ => (random(i), random(i) + 1),
            };
            ranges.add([RangeRef {
                start: &start.to_be_bytes(),
                end: &end.to_be_bytes(),
                sequence: i + 1,
            }]);
        }
        let (counted, taken) = (ranges.used_bytes(), ranges.list().taken_bytes());
        assert!(taken <= counted, "{name}: {taken} of {counted} bytes");
        assert!(taken >= 16 * COUNT as usize, "{name}: {taken} bytes");
    }
}

#[test]
fn ranges_written_in_small_batches_take_no_more_memory() {
    const FLUSHES: u64 = 150;
    let bound = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let mut ranges = Ranges::new(KeyOrder::Bytewise);
    for flush in 0..FLUSHES {
        let sequences = flush * 40 + 1..=(flush + 1) * 40;
        let bounds: Vec<_> = sequences.map(|of| (bound(of), of)).collect();
        ranges = ranges.with(bounds.iter().map(|(start, sequence)| RangeRef {
            start,
            end: &[0xff; 9],
            sequence: *sequence,
        }));
    }
    let (counted, taken) = (ranges.used_bytes(), ranges.list().taken_bytes());
    assert_eq!(ranges.len() as u64, FLUSHES * 40);
    assert!(taken <= counted, "{taken} of {counted} bytes");
    for snapshot in (1..FLUSHES * 40).step_by(97) {
        assert_eq!(ranges.cover(&[0xff; 8], snapshot), snapshot);
    }
}
