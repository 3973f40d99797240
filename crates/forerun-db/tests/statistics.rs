//! Statistics can be read at any time.

mod testing;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forerun_core::sync::{Barrier, thread};
use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, small_options};

#[test]
fn statistics_do_not_wait_for_the_commit_of_an_ingestion() {
    let barrier = Arc::new(Barrier::new(2));
    let is_committing = Arc::new(AtomicBool::new(false));
    let hook = {
        let (barrier, is_committing) = (Arc::clone(&barrier), Arc::clone(&is_committing));
        move |change, path: &Path| {
            // No write is possible while the manifest names the new runs.
            let is_install = change == Change::Rename && path.ends_with("MANIFEST");
            if is_install && is_committing.swap(false, SeqCst) {
                barrier.wait();
                barrier.wait();
            }
            Ok(())
        }
    };
    let io = HookIo::new(&FaultIo::new(), hook);
    let options = small_options().background(Background::Threads);
    let db = Db::open_with_io(Arc::new(io), STORE, options).unwrap();
    db.put("written", "value").unwrap();
    db.flush().unwrap();
    let mut ingestion = db.ingest();
    ingestion.add("ingested", "value").unwrap();
    is_committing.store(true, SeqCst);
    thread::scope(|scope| {
        let commit = scope.spawn(|| ingestion.commit());
        barrier.wait();
        let read = scope.spawn(|| db.stats());
        let begun = Instant::now();
        while !read.is_finished() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let has_read = read.is_finished();
        barrier.wait();
        commit.join().unwrap().unwrap();
        let stats = read.join().unwrap();
        assert!(has_read, "it waited for the commit");
        assert_eq!((stats.tree.ingestions, stats.memtables), (0, 1));
        assert!(stats.memtables_used_bytes > 0);
    });
    let stats = db.stats();
    assert_eq!((stats.tree.ingestions, stats.memtables), (1, 1));
    assert_eq!(stats.memtables_used_bytes, stats.memtable.used_bytes);
}
