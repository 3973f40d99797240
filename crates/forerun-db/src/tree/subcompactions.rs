//! Parts of a compaction, by key range, which threads do at once: RocksDB's subcompactions.
//!
//! ```text
//!   level 0   │ ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ │     each run shows where its bytes are: by the keys of its
//!             │   ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ │     root page
//!   level 5   │ ▒▒▒ ▒▒▒ │▒▒▒ ▒▒▒ ▒│▒▒ ▒▒▒ │
//!   parts       ──────── ───────── ───────      about as many bytes each
//! ```
//!
//! Level 0 is compacted by one compaction at a time, for which writers may wait. All versions of a
//! key are in one part, so the parts together write what one would. A run that two parts meet is
//! read by both.

use crate::tree::key_bounds::KeySpan;
use crate::tree::pick::Compaction;

/// How many threads can work on a compaction of which each part has at least so many bytes: more
/// than one only on one of level 0.
pub(crate) fn threads_max(compaction: &Compaction, part_bytes_min: u64) -> usize {
    if compaction.from > 0 {
        return 1;
    }
    let parts = compaction.bytes() / part_bytes_min.max(1);
    usize::try_from(parts).unwrap_or(usize::MAX).max(1)
}

/// Divides a compaction into at most so many parts of about the same size: one for each thread that
/// [can work on it](threads_max).
pub(crate) fn split(
    compaction: &Compaction,
    parts_max: usize,
    part_bytes_min: u64,
) -> Vec<KeySpan> {
    let parts = threads_max(compaction, part_bytes_min).min(parts_max);
    let Some(first) = compaction.upper.first() else {
        return vec![KeySpan::default()];
    };
    if parts < 2 {
        return vec![KeySpan::default()];
    }
    let (order, runs) = (
        first.order(),
        compaction.upper.iter().chain(&compaction.lower),
    );
    let mut anchors: Vec<(Vec<u8>, u64)> = runs.flat_map(|run| run.anchors()).collect();
    anchors.sort_by(|a, b| order.compare(&a.0, &b.0));
    let share = anchors.iter().map(|(_, bytes)| bytes).sum::<u64>() / parts as u64;
    let mut spans = vec![KeySpan::default()];
    let mut bytes_in_part = anchors.first().map_or(0, |(_, bytes)| *bytes);
    for pair in anchors.windows(2) {
        let [(before, _), (key, bytes)] = pair else {
            continue;
        };
        if bytes_in_part >= share && spans.len() < parts && order.compare(before, key).is_lt() {
            if let Some(last) = spans.last_mut() {
                last.to = Some(key.as_slice().into());
            }
            spans.push(KeySpan {
                from: Some(key.as_slice().into()),
                to: None,
            });
            bytes_in_part = 0;
        }
        bytes_in_part += bytes;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cursor::RunCursor;
    use crate::testing::tree_fixture::{Fixture, KEYS};
    use crate::versions::VersionCursor;

    /// A compaction of three runs of level 0, above others.
    fn compaction(fixture: &mut Fixture) -> Compaction {
        fixture.options.run_bytes = 8 << 10;
        fixture.options.level0_runs = 3;
        for round in 0..4_u16 {
            (0..KEYS).for_each(|key| fixture.write(key, Some(300)));
            fixture.flush().unwrap();
            if round == 0 {
                fixture.compact_all().unwrap();
            }
        }
        fixture.pick().unwrap()
    }

    #[test]
    fn parts_follow_each_other_and_have_about_the_same_size() {
        for is_reverse in [false, true] {
            let mut fixture = Fixture::new(is_reverse);
            let compaction = compaction(&mut fixture);
            assert_eq!((compaction.from, compaction.upper.len()), (0, 3));
            assert!(compaction.bytes() > 150_000, "{}", compaction.bytes());
            for parts_max in [1, 2, 3, 7] {
                let parts = split(&compaction, parts_max, 8 << 10);
                assert_eq!(parts.len(), parts_max);
                assert!(parts[0].from.is_none() && parts[parts_max - 1].to.is_none());
                assert!(parts.windows(2).all(|pair| pair[0].to == pair[1].from));
                let order = &fixture.order;
                let entries = |part: &KeySpan| {
                    let run = &compaction.upper[0];
                    let mut cursor = RunCursor::new(run);
                    part.seek_first(&mut cursor).unwrap();
                    let mut entries = 0;
                    while cursor
                        .at()
                        .is_some_and(|at| !part.ends_before(order, at.key))
                    {
                        entries += 1;
                        cursor.next().unwrap();
                    }
                    entries
                };
                let entries: Vec<usize> = parts.iter().map(entries).collect();
                assert_eq!(entries.iter().sum::<usize>(), usize::from(KEYS));
                let share = usize::from(KEYS) / parts_max;
                assert!(
                    entries
                        .iter()
                        .all(|of_part| (share / 3..=3 * share).contains(of_part)),
                    "{entries:?}"
                );
            }
        }
    }

    #[test]
    fn small_compactions_and_deeper_ones_are_one_part() {
        let mut fixture = Fixture::new(false);
        let mut compaction = compaction(&mut fixture);
        let whole = vec![KeySpan::default()];
        assert_eq!(split(&compaction, 8, compaction.bytes()), whole);
        assert_eq!(split(&compaction, 8, u64::MAX), whole);
        assert_eq!(split(&compaction, 8, compaction.bytes() / 2).len(), 2);
        compaction.from = 1;
        assert_eq!(split(&compaction, 8, 1), whole);
    }
}
