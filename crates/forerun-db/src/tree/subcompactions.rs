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
use crate::tree::part::Part;
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
pub(crate) fn split(compaction: &Compaction, parts_max: usize, part_bytes_min: u64) -> Vec<Part> {
    let Some(first) = compaction.upper.first() else {
        return vec![Part::default()];
    };
    let parts_max = threads_max(compaction, part_bytes_min).min(parts_max.max(1));
    let order = first.order();
    let runs = compaction.upper.iter().chain(&compaction.lower);
    let mut anchors: Vec<(Vec<u8>, u64)> = runs.flat_map(|run| run.anchors()).collect();
    anchors.sort_by(|a, b| order.compare(&a.0, &b.0));
    let share = anchors.iter().map(|(_, bytes)| bytes).sum::<u64>() / parts_max as u64;
    let (mut parts, mut from) = (Vec::new(), None);
    let (mut in_part, mut bytes_in_part) = (Vec::<(Vec<u8>, u64)>::new(), 0);
    for (key, bytes) in anchors {
        let is_behind = |(last, _): &(Vec<u8>, u64)| order.compare(last, &key).is_lt();
        if bytes_in_part >= share
            && parts.len() + 1 < parts_max
            && in_part.last().is_some_and(is_behind)
        {
            let to: Box<[u8]> = key.as_slice().into();
            let keys = KeySpan {
                from: from.replace(to.clone()),
                to: Some(to),
            };
            parts.push(Part::new(keys, std::mem::take(&mut in_part)));
            bytes_in_part = 0;
        }
        bytes_in_part += bytes;
        in_part.push((key, bytes));
    }
    parts.push(Part::new(KeySpan { from, to: None }, in_part));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cursor::RunCursor;
    use crate::testing::tree_fixture::{Fixture, KEYS};
    use crate::versions::VersionCursor;

    /// A compaction of three runs of level 0, above others.
    fn compaction(fixture: &mut Fixture, run_bytes: u64, value_bytes: usize) -> Compaction {
        fixture.options.run_bytes = run_bytes;
        fixture.options.level0_runs = 3;
        for round in 0..4_u16 {
            (0..KEYS).for_each(|key| fixture.write(key, Some(value_bytes)));
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
            let compaction = compaction(&mut fixture, 8 << 10, 300);
            assert_eq!((compaction.from, compaction.upper.len()), (0, 3));
            assert!(compaction.bytes() > 150_000, "{}", compaction.bytes());
            for parts_max in [1, 2, 3, 7] {
                let parts = split(&compaction, parts_max, 8 << 10);
                assert_eq!(parts.len(), parts_max);
                let bytes: u64 = parts.iter().map(Part::bytes).sum();
                assert!(bytes <= compaction.bytes() && bytes > compaction.bytes() * 9 / 10);
                let keys: Vec<&KeySpan> = parts.iter().map(|part| &part.keys).collect();
                assert!(keys[0].from.is_none() && keys[parts_max - 1].to.is_none());
                assert!(keys.windows(2).all(|pair| pair[0].to == pair[1].from));
                let order = &fixture.order;
                let entries = |keys: &&KeySpan| {
                    let run = &compaction.upper[0];
                    let mut cursor = RunCursor::new(run);
                    keys.seek_first(&mut cursor).unwrap();
                    let mut entries = 0;
                    while cursor
                        .at()
                        .is_some_and(|at| !keys.ends_before(order, at.key))
                    {
                        entries += 1;
                        cursor.next().unwrap();
                    }
                    entries
                };
                let entries: Vec<usize> = keys.iter().map(entries).collect();
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
        let mut compaction = compaction(&mut fixture, 8 << 10, 300);
        let is_whole = |parts: &[Part]| {
            let keys = parts.iter().map(|part| &part.keys);
            keys.eq([&KeySpan::default()]) && parts[0].bytes() > 0
        };
        assert!(is_whole(&split(&compaction, 8, compaction.bytes())));
        assert!(is_whole(&split(&compaction, 8, u64::MAX)));
        assert!(is_whole(&split(&compaction, 0, 1)));
        assert_eq!(split(&compaction, 8, compaction.bytes() / 2).len(), 2);
        compaction.from = 1;
        assert!(is_whole(&split(&compaction, 8, 1)));
    }

    #[test]
    fn no_part_ends_with_a_tiny_run() {
        const RUN_BYTES: u64 = 64 << 10;
        for parts_max in 1..8 {
            let mut fixture = Fixture::new(false);
            let compaction = compaction(&mut fixture, RUN_BYTES, 3000);
            fixture.parts_max = parts_max;
            fixture.run(&compaction).unwrap();
            let into = compaction.into;
            // It holds the runs that it has merged.
            drop(compaction);
            fixture.check();
            let levels = fixture.levels();
            let runs = levels.level(into).runs();
            let bytes: Vec<u64> = runs.iter().map(|run| run.meta().file_bytes).collect();
            // An eighth is what a run takes, but that is estimated by the anchors.
            let is_sound = |bytes: &u64| (RUN_BYTES / 16..RUN_BYTES * 3 / 2).contains(bytes);
            assert!(
                runs.len() >= parts_max && bytes.iter().all(is_sound),
                "{bytes:?}"
            );
        }
    }
}
