//! Which writes wait while level 0 of a keyspace is full.

use std::sync::Arc;
use std::time::Duration;

use forerun_core::Pages;
use forerun_core::sync::{atomic::AtomicBool, atomic::Ordering, thread};

use crate::io::fault::FaultIo;
use crate::{Db, Options, TreeOptions};

#[test]
fn a_full_level_0_stops_writes_to_its_keyspace_only() {
    let tree = TreeOptions::default().level0_runs(2).level0_slow_runs(3);
    let options = Options::default()
        .pages(Pages::Small)
        .memtable_bytes(16 << 10)
        .memory_limit_bytes(256 << 10)
        .tree(tree.level0_stop_runs(4));
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    let [full, other] = ["full", "other"].map(|name| db.keyspace(name).unwrap());
    let compacting = db.inner().unwrap().tree.lock_picking();
    for round in 0..4_u8 {
        full.put([round], b"value").unwrap();
        full.put([100 + round], b"value").unwrap();
        full.flush().unwrap();
    }
    let has_written = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            full.put(b"key", b"value").unwrap();
            has_written.store(true, Ordering::Relaxed);
        });
        // More than fits into the memtables at a time.
        for i in 0..1_000_u32 {
            other.put(i.to_be_bytes(), [7; 500]).unwrap();
        }
        thread::sleep(Duration::from_millis(20));
        assert!(!has_written.load(Ordering::Relaxed));
        drop(compacting);
    });
    let stalls = db.stats().write_stalls;
    assert!(
        stalls.stalls > 0 && stalls.stalled_us >= 20_000,
        "{stalls:?}"
    );
}
