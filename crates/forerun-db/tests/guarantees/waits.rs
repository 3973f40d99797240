//! No thread waits forever, and a thread that must wait does.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Comparator, Durability, Error};

use crate::testing::hook_io::{Change, HookIo};
use crate::testing::{open, small_options, tiny_options};
use crate::{holds, open_hooked};

/// Orders by bytes; panics at the key "boom", or in threads with a given name.
#[derive(Default)]
struct Panicking {
    thread: Mutex<Option<&'static str>>,
}

impl Comparator for Panicking {
    fn name(&self) -> &str {
        "test.panicking"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        let thread = *self.thread.lock().unwrap();
        let is_it = thread.is_some() && std::thread::current().name() == thread;
        if is_it || [a, b].contains(&b"boom".as_slice()) {
            panic!("the user's comparator");
        }
        a.cmp(b)
    }
}

#[test]
fn a_write_behind_a_comparator_that_panicked_is_refused() {
    holds(|| {
        let options = small_options().comparator(Arc::new(Panicking::default()));
        let db = open(&FaultIo::new(), &options).unwrap();
        db.put(b"a", b"1").unwrap();
        db.put(b"boom", b"2").unwrap_err();
        db.put(b"later", b"3").is_err()
    });
}

#[test]
fn threads_that_wait_for_a_panicked_worker_get_an_error() {
    holds(|| {
        let comparator = Arc::new(Panicking::default());
        let options = small_options()
            .comparator(Arc::clone(&comparator) as Arc<dyn Comparator>)
            .background(Background::Threads);
        let db = open(&FaultIo::new(), &options).unwrap();
        for round in 0..2 {
            for key in [b"a", b"b", b"c"] {
                db.put(key, b"value").unwrap();
            }
            if round == 0 {
                db.flush().unwrap();
            }
        }
        *comparator.thread.lock().unwrap() = Some("forerun-flush");
        db.flush().is_err()
    });
}

#[test]
fn a_write_that_waits_for_a_failing_flush_gets_its_error() {
    holds(|| {
        let io = HookIo::new(&FaultIo::new(), |change, path| {
            let is_run = path.extension().is_some_and(|of| of == "run");
            if change == Change::Create && is_run {
                return Err(std::io::Error::other("no runs today"));
            }
            Ok(())
        });
        let db = open_hooked(&io, tiny_options().background(Background::Threads));
        let mut puts = (0..10_000_u32).map(|i| db.put(&i.to_be_bytes(), &[0; 50]));
        matches!(puts.find_map(Result::err), Some(Error::Io { .. }))
    });
}

#[test]
fn all_writers_of_a_group_are_woken() {
    holds(|| {
        let io = HookIo::new(&FaultIo::new(), |change, path| {
            let is_log = path.extension().is_some_and(|of| of == "log");
            if change == Change::Sync && is_log {
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(())
        });
        let db = open_hooked(&io, small_options());
        std::thread::scope(|scope| {
            for i in 0..8_u8 {
                let db = &db;
                scope.spawn(move || db.put_with(&[i], b"value", Durability::Synced).unwrap());
            }
        });
        true
    });
}

#[test]
fn closing_waits_for_a_compaction_in_another_thread() {
    holds(|| {
        let disk = FaultIo::new();
        let (is_held, is_open) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(true)),
        );
        let (held, open) = (Arc::clone(&is_held), Arc::clone(&is_open));
        let io = HookIo::new(&disk, move |change, path| {
            let is_run = path.extension().is_some_and(|of| of == "run");
            while change == Change::Create && is_run && !open.load(SeqCst) {
                held.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let options = tiny_options().tree(tiny_options().tree.level0_runs(10));
        let db = open_hooked(&io, options);
        for value in [b"1", b"2"] {
            db.put(b"key", value).unwrap();
            db.flush().unwrap();
        }
        is_open.store(false, SeqCst);
        std::thread::scope(|scope| {
            let compacting = scope.spawn(|| db.compact());
            while !is_held.load(SeqCst) && !compacting.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!compacting.is_finished(), "there was nothing to compact");
            let closing = scope.spawn(|| db.clone().close());
            let begun = Instant::now();
            while !closing.is_finished() && begun.elapsed() < Duration::from_millis(200) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let has_waited = !closing.is_finished();
            is_open.store(true, SeqCst);
            has_waited
        })
    });
}
