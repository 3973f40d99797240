//! A listener is dropped with its last reference, whatever its drop does.

use crate::testing;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, DbEvent, Error, EventListener};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, open, small_options, wait_for};

/// Closes its store when it is dropped, and panics.
struct ClosesStore(Arc<Mutex<Option<Db>>>);

impl EventListener for ClosesStore {
    fn on_event(&self, _: &DbEvent) {}
}

impl Drop for ClosesStore {
    fn drop(&mut self) {
        let db = self.0.lock().unwrap().take();
        db.unwrap().close().unwrap();
        panic!("the store logs it");
    }
}

#[test]
fn a_listener_may_close_the_store_when_it_is_dropped() {
    let (io, store) = (FaultIo::new(), Arc::new(Mutex::new(None)));
    let listener = ClosesStore(Arc::clone(&store));
    let options = small_options().event_listener(Arc::new(listener));
    let db = open(&io, &options).unwrap();
    drop(options);
    *store.lock().unwrap() = Some(db.clone());
    db.close().unwrap();
    assert!(store.lock().unwrap().is_none());
    drop(open(&io, &small_options()).unwrap());
}

/// How far a write that waits, and the store, have come.
#[derive(Default)]
struct Steps {
    is_stalled: AtomicBool,
    is_closed: AtomicBool,
    is_dropped: AtomicBool,
}

/// Keeps a write that has waited until the store is closed, and panics when it is dropped.
struct Outlives(Arc<Steps>);

impl EventListener for Outlives {
    fn on_event(&self, event: &DbEvent) {
        match event {
            DbEvent::WriteStallBegun { .. } => self.0.is_stalled.store(true, SeqCst),
            DbEvent::WriteStallEnded { .. } => wait_for(&self.0.is_closed),
            _ => {}
        }
    }
}

impl Drop for Outlives {
    fn drop(&mut self) {
        self.0.is_dropped.store(true, SeqCst);
        panic!("the store logs it");
    }
}

#[test]
fn a_write_that_drops_a_listener_which_panics_goes_on() {
    let steps = Arc::new(Steps::default());
    let io = {
        let steps = Arc::clone(&steps);
        HookIo::new(&FaultIo::new(), move |change, _: &Path| {
            if change == Change::Create && thread::current().name() == Some("forerun-flush") {
                wait_for(&steps.is_stalled);
            }
            Ok(())
        })
    };
    let options = small_options()
        .background(Background::Threads)
        .memtable_bytes(64 << 10)
        .memory_limit_bytes(256 << 10)
        .event_listener(Arc::new(Outlives(Arc::clone(&steps))));
    let db = Db::open_with_io(Arc::new(io), STORE, options).unwrap();
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let put = |key: u32| db.put(key.to_be_bytes(), [7; 1_000]);
            (0..).find_map(|key| put(key).err()).unwrap()
        });
        wait_for(&steps.is_stalled);
        db.clone().close().unwrap();
        assert!(!steps.is_dropped.load(SeqCst), "the write has it");
        steps.is_closed.store(true, SeqCst);
        let ended = writing.join().expect("it has unwound");
        assert!(matches!(ended, Error::Closed), "{ended}");
    });
    assert!(steps.is_dropped.load(SeqCst));
}
