//! Which compaction begins first.

use std::sync::Arc;

use forerun_core::Pages;
use forerun_core::sync::Mutex;

use crate::events::{CompactionReason, DbEvent};
use crate::io::fault::FaultIo;
use crate::{Background, Db, KeyspaceOptions, Options, TreeOptions};

/// Cold entries, each between two range deletions.
const COLD: u32 = 4_000;

/// Why the first compaction is due in a store with so many range deletions over cold data, and four
/// runs of a key that is overwritten.
fn first_reason(ranges: u32, tree: TreeOptions) -> CompactionReason {
    let begun: Arc<Mutex<Vec<CompactionReason>>> = Arc::default();
    let listener = {
        let begun = Arc::clone(&begun);
        move |event: &DbEvent| {
            if let DbEvent::CompactionBegun { reason, .. } = event {
                begun.lock().unwrap().push(*reason);
            }
        }
    };
    let quiet = TreeOptions::default()
        .level0_runs(50)
        .level0_slow_runs(90)
        .level0_stop_runs(100);
    let options = Options::default()
        .pages(Pages::Small)
        .memtable_bytes(4 << 20)
        .background(Background::Caller)
        .event_listener(Arc::new(listener))
        .tree(quiet);
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    let key = |number: u32| number.to_be_bytes();
    (0..COLD).for_each(|number| db.put(key(2 * number), b"cold").unwrap());
    db.compact().unwrap();
    let snapshot = db.snapshot();
    for number in 0..ranges {
        let (start, end) = (key(2 * number + 1), key(2 * number + 2));
        db.delete_range(start, end).unwrap();
    }
    for round in 0..4_u8 {
        db.put(b"hot", [round]).unwrap();
        db.flush().unwrap();
    }
    drop(snapshot);
    let inner = db.inner().unwrap();
    let keyspace = Arc::clone(&inner.keyspaces.own);
    let due = KeyspaceOptions::clone(&keyspace.options.load()).tree(tree);
    keyspace.set_options(due);
    begun.lock().unwrap().clear();
    assert!(inner.compact_one().unwrap());
    begun.lock().unwrap()[0]
}

#[test]
fn range_deletions_that_exceed_their_memory_further_than_the_levels_exceed_their_size_go_first() {
    let tree = TreeOptions::default().level0_stop_runs(100);
    // Level 0 has twice as many runs as it may have, and could have 50 times as many.
    let tree = tree.level0_runs(2);
    assert_eq!(first_reason(COLD, tree), CompactionReason::RangeDeletions);
    assert_eq!(first_reason(COLD / 4, tree), CompactionReason::Level);
    // Level 0 is full, and writes wait for it.
    let full = tree.level0_runs(1).level0_stop_runs(4);
    assert_eq!(first_reason(COLD, full), CompactionReason::Level);
}
