//! How much compactions write while a store is loaded in no order of keys.

use std::collections::BTreeSet;

use crate::TreeOptions;
use crate::testing::tree_fixture::Fixture;
use crate::tree::manifest::LEVELS;

const RUN_BYTES: u64 = 64 << 10;

/// A thousandth of the default shape.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new(false);
    fixture.options = TreeOptions {
        level1_bytes: 512 << 10,
        run_bytes: RUN_BYTES,
        ..TreeOptions::default()
    };
    fixture
}

/// Flushes as many memtables, each of about a run's bytes and with keys of the whole range, and
/// runs every compaction that is due at once. Returns the bytes that flushes and that compactions
/// wrote.
fn load(fixture: &mut Fixture, memtables: u16) -> (u64, u64) {
    let (mut flushed, mut written) = (0, 0);
    for memtable in 0..memtables {
        for n in 0..60 {
            // Each key once: the prime is above the number of keys.
            let key = u64::from(memtable * 60 + n) * 7919 % 3001;
            fixture.write(key as u16, Some(1000));
        }
        let mut before = fixture.numbers();
        fixture.flush().unwrap();
        flushed += new_bytes(fixture, &before);
        before = fixture.numbers();
        while fixture.compact().unwrap() {
            written += new_bytes(fixture, &before);
            before = fixture.numbers();
        }
        assert!(fixture.levels().level0_depth() < fixture.options.level0_runs);
    }
    (flushed, written)
}

fn new_bytes(fixture: &Fixture, before: &BTreeSet<u64>) -> u64 {
    let runs = fixture.levels().runs().map(|(_, run)| run);
    let new = runs.filter(|run| !before.contains(&run.number()));
    new.map(|run| run.meta().file_bytes).sum()
}

#[test]
fn compactions_write_little_while_a_store_is_loaded() {
    for (memtables, percent) in [(17, 170), (34, 270)] {
        let (flushed, written) = load(&mut fixture(), memtables);
        assert!(
            written * 100 < flushed * percent,
            "{memtables} memtables: {written} for {flushed}"
        );
    }
}

#[test]
fn neighbors_move_together_where_that_rewrites_less() {
    let mut fixture = fixture();
    load(&mut fixture, 17);
    let levels = fixture.levels();
    let from = (1..LEVELS).find(|level| levels.bytes(*level) > 0).unwrap();
    assert!(from < LEVELS - 1 && levels.level(from).runs().len() > 3);
    fixture.options.level1_bytes = RUN_BYTES;
    // All but the last runs of the level exceed its target.
    let compaction = fixture.pick().unwrap();
    assert_eq!(compaction.from, from);
    assert!(compaction.upper.len() > 1, "{compaction:?}");
    assert!(compaction.bytes() <= 12 * RUN_BYTES, "{compaction:?}");
    fixture.run(&compaction).unwrap();
    // If it exceeds it by little, one is enough.
    let bytes = fixture.levels().bytes(from);
    fixture.options.level1_bytes = bytes - 1;
    if let Some(compaction) = fixture.pick().filter(|of| of.from == from) {
        assert_eq!(compaction.upper.len(), 1, "{compaction:?}");
    }
}
