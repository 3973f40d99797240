//! What happens while writes wait for the commit of an ingestion is little.

use crate::testing;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Compression, Db, Options, RunOptions, Stats};
use testing::hook_io::{Change, HookIo};
use testing::watched_io::WatchedIo;
use testing::{STORE, tiny_options};

/// A few entries make a run.
fn options() -> Options {
    let run = RunOptions::default().page_bytes(4 << 10);
    let options = tiny_options().run(run.compression(Compression::None));
    options.background(Background::Threads)
}

/// Ingests several runs.
fn ingest(db: &Db) {
    let mut ingestion = db.ingest();
    for number in 0..12_u8 {
        ingestion.add([number], [number; 3 << 10]).unwrap();
    }
    ingestion.commit().unwrap();
}

fn sum(stats: &Stats, of: impl Fn(&forerun_db::LevelStats) -> usize) -> usize {
    stats.levels.iter().map(of).sum()
}

#[test]
fn the_runs_of_an_ingestion_are_synced_several_at_a_time_while_writes_wait() {
    // How many are being synced, and the most there were.
    let syncing = Arc::new((Mutex::new((0, 0)), Condvar::new()));
    let has_number = AtomicBool::new(false);
    let hook = {
        let syncing = Arc::clone(&syncing);
        move |change, path: &Path| {
            let is_a = |extension: &str| path.extension().is_some_and(|of| of == extension);
            // The log has the number of the ingestion: from now on, writes wait.
            if change == Change::Sync && is_a("log") {
                has_number.store(true, SeqCst);
            }
            if change == Change::Sync && is_a("run") && has_number.load(SeqCst) {
                let (state, changed) = &*syncing;
                let mut state = state.lock().unwrap();
                state.0 += 1;
                state.1 = state.1.max(state.0);
                changed.notify_all();
                let is_alone = |state: &mut (usize, usize)| state.1 < 2;
                let wait = changed.wait_timeout_while(state, Duration::from_secs(20), is_alone);
                wait.unwrap().0.0 -= 1;
            }
            Ok(())
        }
    };
    let io = HookIo::new(&FaultIo::new(), hook);
    let db = Db::open_with_io(Arc::new(io), STORE, options()).unwrap();
    ingest(&db);
    assert!(sum(&db.stats(), |level| level.runs) >= 4);
    assert!(syncing.0.lock().unwrap().1 >= 2, "one after the other");
    assert_eq!(db.count().unwrap(), 12);
}

#[test]
fn writes_do_not_wait_until_the_indexes_of_an_ingestion_are_read() {
    let io = WatchedIo::new(&FaultIo::new());
    let db = Db::open_with_io(Arc::new(io.clone()), STORE, options()).unwrap();
    db.wait_idle().unwrap();
    io.hold_loader();
    ingest(&db);
    let stats = db.stats();
    let runs = sum(&stats, |level| level.runs);
    let loaded = |stats: &Stats| runs - sum(stats, |level| level.unfiltered_runs);
    assert!(loaded(&stats) <= 1, "{stats:?}");
    db.put([0], b"written").unwrap();
    assert_eq!(db.get([1]).unwrap().unwrap(), [1; 3 << 10]);
    io.release_loader();
    db.wait_idle().unwrap();
    assert_eq!(loaded(&db.stats()), runs);
}
