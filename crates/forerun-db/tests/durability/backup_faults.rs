//! Backups under faults: a failure or a power loss at every call while a backup is made, while old
//! ones are removed and while one is restored. The existing backups stay, and each restores exactly
//! what it was made of.

use crate::testing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{Backups, Create, Db, Error, FileCopyOptions, Result};
use testing::{STORE, open, tiny_options};

const BACKUPS: &str = "/backups";

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// What is in both keyspaces.
fn contents(db: &Db) -> [Entries; 2] {
    let users = db.keyspace("users").unwrap();
    [db.iter(), users.iter()].map(|iter| iter.map(Result::unwrap).collect())
}

fn write(db: &Db, round: u8) {
    let users = db.keyspace("users").unwrap();
    for i in 0..12_u8 {
        let key = [(round * 5 + i) % 17];
        db.put(&key, &[round ^ i; 120]).unwrap();
        users.put(&[i], &[round; 60]).unwrap();
    }
}

fn backups(io: &FaultIo) -> Result<Backups> {
    Backups::open_with_io(Arc::new(io.clone()), BACKUPS, Create::IfMissing)
}

/// A store with this many backups, made at different times, and the contents of each. The store has
/// changed since.
fn backed_up(count: u8) -> (FaultIo, Vec<[Entries; 2]>) {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let mut then = Vec::new();
    for round in 0..count {
        write(&db, round);
        backups(&io).unwrap().create(&db).unwrap();
        then.push(contents(&db));
    }
    write(&db, count);
    db.close().unwrap();
    (io, then)
}

/// Checks that every existing backup restores its contents, that the needed ones exist and no
/// unexpected ones do, and that a new one can be made.
fn check(io: &FaultIo, then: &[[Entries; 2]], needed: &[u64], case: &str) {
    let mut backups = backups(io).unwrap_or_else(|error| panic!("{case}: {error}"));
    let list = backups.list().unwrap();
    assert!(list.damaged.is_empty(), "{case}: {:?}", list.damaged);
    let there: Vec<u64> = list.backups.iter().map(|of| of.number).collect();
    assert!(
        needed.iter().all(|number| there.contains(number)),
        "{case}: {there:?}"
    );
    let checked = backups.verify().unwrap();
    assert!(
        checked.problems.is_empty(),
        "{case}: {:?}",
        checked.problems
    );
    for number in there {
        let into = format!("/checked-{number}");
        backups
            .restore(Some(number), &into)
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let db = Db::open_with_io(Arc::new(io.clone()), &into, tiny_options()).unwrap();
        assert_eq!(
            contents(&db),
            then[number as usize - 1],
            "{case}: backup {number}"
        );
    }
    let db = open(io, &tiny_options()).unwrap_or_else(|error| panic!("{case}: {error}"));
    let made = backups.create(&db).unwrap();
    assert_eq!(backups.verify().unwrap().leftovers, 0, "{case}");
    backups.restore(Some(made.number), "/checked-new").unwrap();
    let new = Db::open_with_io(Arc::new(io.clone()), "/checked-new", tiny_options()).unwrap();
    assert_eq!(contents(&new), contents(&db), "{case}");
}

/// Runs `work` with a fault at each of its calls in turn, starting from the given call. `after`
/// receives the disk afterwards, whether `work` succeeded, and a name for the case.
fn sweep(
    base: &FaultIo,
    least_calls: u64,
    work: impl Fn(&FaultIo, &dyn Fn()) -> Result<()>,
    after: impl Fn(&FaultIo, bool, &str),
) {
    for call in 0.. {
        for fault in [
            Fault::Fail(EIO),
            Fault::TornWrite(EIO),
            Fault::ShortWrite,
            Fault::PowerLoss,
        ] {
            // A copy as a new process would find it; it shares nothing with the base.
            let io = base.kill();
            let done = work(&io, &|| io.fail_call(io.calls() + call, fault)).is_ok();
            let Some(hit) = io.hit() else {
                assert!(done);
                assert!(call > least_calls, "the sweep made {call} calls");
                return;
            };
            let case = format!("{fault:?} at call {call} ({hit})");
            let is_write = hit.starts_with("write");
            match fault {
                // Calls other than writes are not affected by these faults.
                Fault::TornWrite(_) | Fault::ShortWrite if !is_write => {}
                Fault::PowerLoss => {
                    // One extreme seed, and one that tears writes.
                    for seed in [call % 2, 2 + call % 5] {
                        after(&io.crash(seed), done, &format!("{case}, seed {seed}"));
                    }
                }
                _ => after(&io, done, &case),
            }
        }
    }
}

#[test]
fn a_failed_backup_is_complete_or_absent() {
    let (base, mut then) = backed_up(2);
    {
        let db = open(&base.kill(), &tiny_options()).unwrap();
        then.push(contents(&db));
    }
    let work = |io: &FaultIo, begin: &dyn Fn()| {
        let db = open(io, &tiny_options())?;
        begin();
        backups(io)?.create(&db).map(drop)
    };
    sweep(&base, 40, work, |io, done, case| {
        check(io, &then, if done { &[1, 2, 3] } else { &[1, 2] }, case);
    });
}

#[test]
fn the_first_backup_may_fail_anywhere_too() {
    let (base, then) = {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        write(&db, 0);
        let then = vec![contents(&db)];
        db.close().unwrap();
        (io, then)
    };
    let work = |io: &FaultIo, begin: &dyn Fn()| {
        let db = open(io, &tiny_options())?;
        begin();
        backups(io)?.create(&db).map(drop)
    };
    sweep(&base, 40, work, |io, done, case| {
        check(io, &then, if done { &[1] } else { &[] }, case);
    });
}

#[test]
fn removing_old_ones_may_fail_anywhere_and_the_newest_stay() {
    let (base, then) = backed_up(4);
    let work = |io: &FaultIo, begin: &dyn Fn()| {
        begin();
        backups(io)?.purge_old(2).map(drop)
    };
    sweep(&base, 15, work, |io, done, case| {
        check(io, &then, &[3, 4], case);
        if done {
            assert!(
                backups(io).unwrap().restore(Some(1), "/gone").is_err(),
                "{case}"
            );
        }
    });
}

#[test]
fn a_failed_restore_leaves_a_complete_store_or_none() {
    let (base, then) = backed_up(2);
    let work = |io: &FaultIo, begin: &dyn Fn()| {
        begin();
        backups(io)?.restore(None, "/restored").map(drop)
    };
    sweep(&base, 30, work, |io, done, case| {
        match Db::open_with_io(
            Arc::new(io.clone()),
            "/restored",
            tiny_options().create(Create::Never),
        ) {
            Ok(db) => assert_eq!(contents(&db), then[1], "{case}"),
            Err(error) => assert!(!done, "{case}: {error}"),
        }
        assert!(io.read(format!("{STORE}/MANIFEST")).is_some());
        check(io, &then, &[1, 2], case);
    });
}

#[test]
fn an_interrupted_call_leaves_no_new_store_and_no_new_backup() {
    let (base, mut then) = backed_up(2);
    {
        let db = open(&base.kill(), &tiny_options()).unwrap();
        then.push(contents(&db));
    }
    type Call = fn(&FaultIo, &mut Backups) -> Result<()>;
    let calls: [(&str, Call); 3] = [
        ("create", |io, backups| {
            backups.create(&open(io, &tiny_options())?).map(drop)
        }),
        ("verify", |_, backups| backups.verify().map(drop)),
        ("restore", |_, backups| {
            backups.restore(None, "/restored").map(drop)
        }),
    ];
    for (name, call) in calls {
        for question in 0.. {
            let io = base.kill();
            let mut backups = backups(&io).unwrap();
            let asked = Arc::new(AtomicU64::new(0));
            let count = Arc::clone(&asked);
            let interrupt = move || count.fetch_add(1, Ordering::Relaxed) == question;
            backups.set_copy_options(FileCopyOptions::default().interrupt_if(interrupt));
            let case = format!("{name}, interrupted at question {question}");
            match call(&io, &mut backups) {
                Err(Error::Interrupted) => {}
                done => {
                    done.unwrap();
                    // A compaction in the meantime may have left fewer files to copy, so that the
                    // call asks fewer times than the one before.
                    assert!(asked.load(Ordering::Relaxed) <= question, "{case}");
                    assert!(question >= 2, "{name} asked {question} times");
                    break;
                }
            }
            assert_eq!(backups.list().unwrap().backups.len(), 2, "{case}");
            let left = io.files().into_iter();
            let left: Vec<_> = left.filter(|path| path.starts_with("/restored")).collect();
            assert_eq!(left, Vec::<PathBuf>::new(), "{case}");
            // The same handle works afterwards.
            call(&io, &mut backups).unwrap();
            let made = if name == "create" { 3 } else { 2 };
            drop(backups);
            check(&io, &then, &[1, 2, 3][..made], &case);
        }
    }
}

#[test]
fn a_users_function_that_panics_ends_the_work_and_leaves_nothing() {
    for is_interrupt in [false, true] {
        let case = format!("the function that panics is interrupt_if: {is_interrupt}");
        let (io, then) = backed_up(2);
        let mut backups = backups(&io).unwrap();
        let options = FileCopyOptions::default();
        backups.set_copy_options(if is_interrupt {
            options.interrupt_if(|| panic!("the user's function"))
        } else {
            options.on_progress(|_| panic!("the user's function"))
        });
        let db = open(&io, &tiny_options()).unwrap();
        let assert_panicked = |error: Error| match error {
            Error::Panicked { message, .. } => assert_eq!(message, "the user's function"),
            other => panic!("{case}: {other}"),
        };
        assert_panicked(backups.create(&db).unwrap_err());
        assert_panicked(backups.restore(Some(1), "/restored").unwrap_err());
        assert_panicked(backups.verify().unwrap_err());
        drop((backups, db));
        let backups = Backups::open_with_io(Arc::new(io.clone()), BACKUPS, Create::Never).unwrap();
        backups.restore(Some(1), "/restored").unwrap();
        drop(backups);
        check(&io, &then, &[1, 2], &case);
    }
}
