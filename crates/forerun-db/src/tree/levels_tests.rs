//! Levels against a linear search over all runs.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::ReverseBytewise;
use crate::io::fault::FaultIo;
use crate::ranges::RangeRef;
use crate::testing::runs::run_of;
use crate::testing::version_list::held;

/// Keys that share their first eight bytes, and keys that do not.
fn key(number: u8) -> Vec<u8> {
    match number % 2 {
        0 => vec![b'k', b'e', b'y', number / 40],
        _ => [b"long prefix ".as_slice(), &[number]].concat(),
    }
}

fn sorted(order: &KeyOrder, numbers: impl IntoIterator<Item = u8>) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = numbers.into_iter().map(key).collect();
    keys.sort_by(|a, b| order.compare(a, b));
    keys.dedup();
    keys
}

proptest! {
    #[test]
    fn candidates_are_the_runs_whose_range_holds_the_key_newest_first(
        level0 in prop::collection::vec(prop::collection::btree_set(any::<u8>(), 1..4), 0..5),
        deep in prop::collection::vec(prop::collection::btree_set(any::<u8>(), 0..12), 2),
        cuts in 1_usize..4,
        is_reverse in any::<bool>(),
    ) {
        let order =
            if is_reverse { KeyOrder::new(Arc::new(ReverseBytewise)) } else { KeyOrder::Bytewise };
        let io = FaultIo::new();
        let mut placed = Vec::new();
        let mut number = 0;
        let mut add = |level: usize, keys: &[Vec<u8>]| {
            number += 1;
            let sequence = number + if level == 0 { 100 } else { 0 };
            let versions = keys.iter().map(|key| held(key, sequence, Some(b"v"))).collect();
            placed.push((level, run_of(&io, &order, number, versions)));
        };
        for (i, keys) in deep.iter().enumerate() {
            let keys = sorted(&order, keys.iter().copied());
            keys.chunks(cuts).for_each(|keys| add(6 - 3 * i, keys));
        }
        for keys in &level0 {
            add(0, &sorted(&order, keys.iter().copied()));
        }
        // The order of insertion does not matter.
        placed.reverse();
        let levels = Levels::with_runs(order.clone(), placed.clone());
        prop_assert_eq!(levels.run_count(), placed.len());
        prop_assert!(levels.overlap().is_none());
        let all: Vec<u64> = levels.runs().map(|(_, run)| run.number()).collect();
        for number in 0..=u8::MAX {
            let key = key(number);
            let holds = |run: &Run| order.compare(smallest(run), &key).is_le()
                && order.compare(largest(run), &key).is_ge();
            let expected: Vec<u64> =
                levels.runs().filter(|(_, run)| holds(run)).map(|(_, run)| run.number()).collect();
            let found: Vec<u64> = levels.candidates(&key).map(Run::number).collect();
            prop_assert_eq!(&found, &expected);
            for first in 0..=LEVELS {
                let expected = levels.runs().any(|(level, run)| level >= first && holds(run));
                prop_assert_eq!(levels.may_hold_from(first, &key), expected, "from level {}",
                    first);
            }
        }

        // A run needs a range deletion if it is older and overlaps the range.
        let needs = levels.needed_ranges();
        let bounds = (0..=u8::MAX).step_by(23).map(key);
        for (start, end) in bounds.clone()
            .flat_map(|start| bounds.clone().map(move |end| (start.clone(), end))) {
            if order.compare(&start, &end).is_ge() {
                continue;
            }
            for sequence in [1, 2, 3, 6, 100, 103, 200] {
                let range = RangeRef { start: &start, end: &end, sequence };
                let is_needed = |run: &Run| {
                    run.meta().smallest_sequence < sequence
                        && order.compare(&start, largest(run)).is_le()
                        && order.compare(smallest(run), &end).is_lt()
                };
                let expected = levels.runs().any(|(_, run)| is_needed(run));
                prop_assert_eq!(needs.holds(range), expected, "{:?}", range);
                let alone = Ranges::of(order.clone(), [range]);
                for (_, run) in levels.runs() {
                    prop_assert_eq!(levels.run_needs_any(run, &alone), is_needed(run));
                }
                prop_assert_eq!(levels.need_none(&alone), !expected);
            }
        }

        // Removing half of the runs gives the same result in one edit as in one edit for each.
        let removed: Vec<u64> = all.iter().copied().step_by(2).collect();
        let once = levels.edit(&Edit { removed: removed.clone(), ..Edit::default() });
        let each = removed.iter().fold(levels.clone(), |levels, number| {
            levels.edit(&Edit { removed: vec![*number], ..Edit::default() })
        });
        prop_assert_eq!(once.records(), each.records());
        let left: BTreeSet<u64> = once.runs().map(|(_, run)| run.number()).collect();
        prop_assert_eq!(left, all.iter().copied().filter(|number| !removed.contains(number))
            .collect());
        let back = placed.iter().filter(|(_, run)| removed.contains(&run.number())).cloned()
            .collect();
        let again = once.edit(&Edit { added: back, ..Edit::default() });
        prop_assert_eq!(again.records(), levels.records());
    }
}
