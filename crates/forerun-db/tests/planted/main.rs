//! Each planted defect breaks a small scenario that holds without it. This shows that no defect is
//! dead code and that the simulator has something to find.

#![cfg(feature = "planted")]

mod damage;
mod log;
mod read_defects;
mod tree;
mod waits;

#[path = "../testing/mod.rs"]
mod testing;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::planted::{Defect, plant};
use forerun_db::{Db, Options, RunOptions, TreeOptions};
use testing::hook_io::HookIo;
use testing::{STORE, open, tiny_options};

/// Whether the store behaves correctly.
type Scenario = fn() -> bool;

/// A scenario with a defect that takes longer is considered stuck.
const STUCK_AFTER: Duration = Duration::from_secs(8);

/// Without a defect, a scenario may take longer: the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);

/// Defects apply to the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Asserts that a scenario holds, and that it fails with the defect.
fn breaks(defect: Defect, scenario: Scenario) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    plant(None);
    assert!(
        holds(scenario, DEADLINE),
        "{}: without the defect",
        defect.name()
    );
    plant(Some(defect));
    let holds = holds(scenario, STUCK_AFTER);
    plant(None);
    assert!(!holds, "{}: {}", defect.name(), defect.description());
}

/// A panic fails the scenario like a wrong answer, and so does waiting forever.
fn holds(scenario: Scenario, deadline: Duration) -> bool {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let held = catch_unwind(AssertUnwindSafe(scenario));
        let _ = done.send(held.unwrap_or(false));
    });
    is_done.recv_timeout(deadline).unwrap_or(false)
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

#[test]
fn names_differ_and_sentences_end() {
    let mut names: Vec<_> = Defect::ALL.iter().map(|defect| defect.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Defect::ALL.len());
    for defect in Defect::ALL {
        assert!(defect.description().ends_with('.'), "{defect:?}");
    }
}
