//! Small scenarios, each of which shows one guarantee of the store. The defects that the laboratory
//! plants (`crates/forerun-lab/planted`) break them.

mod damage;
mod log;
mod reads;
mod tree;
mod waits;

#[path = "../testing/mod.rs"]
mod testing;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, Options, RunOptions, TreeOptions};
use testing::hook_io::HookIo;
use testing::{STORE, open, tiny_options};

/// A scenario that takes longer is considered stuck.
const DEADLINE: Duration = Duration::from_secs(30);

/// Asserts that the store behaves correctly in a scenario. A scenario that waits forever fails the
/// test too.
#[track_caller]
fn holds(scenario: fn() -> bool) {
    let (ended, is_ended) = mpsc::channel();
    let running = thread::spawn(move || ended.send(scenario()));
    match is_ended.recv_timeout(DEADLINE) {
        Ok(held) => assert!(held, "the scenario does not hold"),
        Err(RecvTimeoutError::Timeout) => panic!("it is stuck after {DEADLINE:?}"),
        Err(RecvTimeoutError::Disconnected) => {
            let panic = running
                .join()
                .expect_err("it sends a result unless it panics");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Small pages and memtables, and a level 0 that takes many runs before they are compacted.
fn many_runs() -> Options {
    tiny_options()
        .memtable_bytes(64 << 10)
        .run(RunOptions::default().page_bytes(4 << 10))
        .tree(
            TreeOptions::default()
                .level0_runs(90)
                .level0_slow_runs(100)
                .level0_stop_runs(101),
        )
}

/// A store on a file system that the scenario can hook.
fn open_hooked(io: &HookIo, options: Options) -> Db {
    Db::open_with_io(Arc::new(io.clone()), STORE, options).unwrap()
}

/// The value of a key after each of several power losses and a reopening.
fn after_power_loss(io: &FaultIo, key: &[u8]) -> Vec<Option<Vec<u8>>> {
    let after = |seed| open(&io.crash(seed), &tiny_options()).unwrap().get(key);
    (0..60).map(|seed| after(seed).unwrap()).collect()
}

/// The value of a key after the process died and the store was reopened.
fn after_kill(io: &FaultIo, key: &[u8]) -> Option<Vec<u8>> {
    open(&io.kill(), &tiny_options()).unwrap().get(key).unwrap()
}
