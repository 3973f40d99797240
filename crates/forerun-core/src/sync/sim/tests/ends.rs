//! The ends of threads and simulations: deadlocks, limits, panics, thread-locals, leaked threads.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::sync::{Arc, Mutex, RwLock, thread};

/// Two threads take two locks, in the same order or in opposite orders.
fn two_locks(is_ordered: bool) {
    let locks = Arc::new((Mutex::new(()), Mutex::new(())));
    let also = locks.clone();
    let other = thread::Builder::new().name("other".into()).spawn(move || {
        let (first, second) = if is_ordered {
            (&also.0, &also.1)
        } else {
            (&also.1, &also.0)
        };
        let _first = first.lock().unwrap();
        let _second = second.lock().unwrap();
    });
    {
        let _first = locks.0.lock().unwrap();
        let _second = locks.1.lock().unwrap();
    }
    other.unwrap().join().unwrap();
}

#[test]
fn a_lock_order_deadlock_is_found_and_explained() {
    never_fails(500, || two_locks(true));
    let end = fails(50, || two_locks(false));
    let End::Deadlock(blocked) = &end else {
        panic!("it ends otherwise: {end}");
    };
    assert_eq!(blocked.len(), 2);
    let [main, other] = &blocked[..] else {
        panic!("two threads wait");
    };
    assert_eq!((&*main.thread, &*other.thread), ("main", "other"));
    assert_eq!(
        (main.waits_for, other.waits_for),
        (WaitsFor::Lock, WaitsFor::Lock)
    );
    assert_eq!(main.held_by[0].0, "other");
    assert_eq!(other.held_by[0].0, "main");
    assert!(
        end.to_string().contains("main: waits for a mutex since"),
        "{end}"
    );
}

#[test]
fn a_thread_that_locks_twice_deadlocks() {
    let End::Deadlock(blocked) = fails(1, || {
        let lock = Mutex::new(());
        let _held = lock.lock().unwrap();
        let _again = lock.lock().unwrap();
    }) else {
        panic!("it ends otherwise");
    };
    assert_eq!(blocked[0].held_by[0].0, "main");
}

/// A thread takes one read lock, or two at once, while another thread writes.
fn read(is_nested: bool) {
    let lock = Arc::new(RwLock::new(0));
    let writer = lock.clone();
    let other = thread::spawn(move || *writer.write().unwrap() += 1);
    {
        let outer = lock.read().unwrap();
        if is_nested {
            assert_eq!(*lock.read().unwrap(), *outer);
        }
    }
    other.join().unwrap();
    assert_eq!(*lock.read().unwrap(), 1);
}

#[test]
fn a_reader_that_reads_again_behind_a_writer_is_found() {
    never_fails(500, || read(false));
    assert!(matches!(fails(100, || read(true)), End::Deadlock(_)));
}

#[test]
fn readers_do_not_starve_a_writer() {
    never_fails(100, || {
        let lock = Arc::new(RwLock::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| while !*lock.read().unwrap() {});
            }
            scope.spawn(|| *lock.write().unwrap() = true);
        });
    });
}

#[test]
fn an_upgrade_in_two_steps_loses_updates() {
    assert!(matches!(
        fails(100, || {
            let lock = Arc::new(RwLock::new(0));
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let before = *lock.read().unwrap();
                        *lock.write().unwrap() = before + 1;
                    });
                }
            });
            assert_eq!(*lock.read().unwrap(), 2);
        }),
        End::Panicked(_)
    ));
}

#[test]
fn a_thread_that_never_ends_reaches_the_step_limit() {
    let end = fails(1, || {
        loop {
            thread::yield_now();
        }
    });
    assert!(
        matches!(&end, End::StepLimit(left) if left.len() == 1),
        "{end}"
    );
}

#[test]
fn a_thread_that_reaches_no_yield_point_is_detected() {
    static GO_ON: AtomicUsize = AtomicUsize::new(0);
    let mut config = Config::new(1);
    config.silence_max = Duration::from_millis(50);
    let outcome = run(config, || {
        while GO_ON.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        point();
    });
    GO_ON.store(1, Ordering::Relaxed);
    assert!(matches!(outcome.end, End::Silent(_)), "{}", outcome.end);
}

#[test]
fn a_panic_reaches_the_joining_thread() {
    let joined = outcome(1, || {
        let other = thread::spawn(|| panic!("on purpose"));
        let payload = other.join().unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"on purpose"));
    });
    assert_eq!((joined.end, joined.panics), (End::Finished, Vec::new()));

    let dropped = outcome(1, || drop(thread::spawn(|| panic!("on {}", "purpose"))));
    assert_eq!(dropped.end, End::Finished);
    assert_eq!(dropped.panics.len(), 1);
    assert!(dropped.panics[0].message.starts_with("on purpose, at "));
    assert_eq!(dropped.panics[0].thread, "thread 1");
}

#[test]
fn the_outcome_has_every_panic_caught_or_not() {
    let outcome = outcome(1, || {
        std::panic::catch_unwind(|| panic!("first")).unwrap_err();
        thread::spawn(|| panic!("second")).join().unwrap_err();
        drop(thread::spawn(|| panic!("third")));
    });
    assert_eq!(outcome.end, End::Finished);
    let raised = outcome.raised.iter();
    let raised = raised.map(|one| (&*one.thread, one.message.split(',').next().unwrap()));
    let expected = [
        ("main", "first"),
        ("thread 1", "second"),
        ("thread 2", "third"),
    ];
    assert_eq!(raised.collect::<Vec<_>>(), expected);
    assert_eq!(outcome.panics.len(), 1, "{:?}", outcome.panics);
}

#[test]
fn a_panic_in_the_body_ends_the_simulation_despite_waiting_threads() {
    let outcome = outcome(1, || {
        let (sender, receiver) = crate::sync::mpsc::channel::<()>();
        thread::spawn(move || receiver.recv());
        std::mem::forget(sender);
        panic!("on purpose");
    });
    assert!(matches!(outcome.end, End::Panicked(said) if said.starts_with("on purpose")));
}

#[test]
fn a_panic_poisons_what_it_holds() {
    never_fails(100, || {
        let shared = Arc::new((Mutex::new(1), RwLock::new(2)));
        let other = shared.clone();
        let panicked = thread::spawn(move || {
            let _written = other.1.write().unwrap();
            let _locked = other.0.lock().unwrap();
            panic!("on purpose");
        });
        // A thread that waits at that time learns of the panic too.
        let before = shared.0.lock().map(|value| *value);
        assert_eq!(before.unwrap_or_else(|poisoned| *poisoned.into_inner()), 1);
        panicked.join().unwrap_err();
        assert!(shared.0.is_poisoned() && shared.1.is_poisoned());
        assert_eq!(*shared.0.lock().unwrap_err().into_inner(), 1);
        assert_eq!(*shared.1.read().unwrap_err().into_inner(), 2);
        shared.0.clear_poison();
        assert_eq!(*shared.0.lock().unwrap(), 1);
    });
}

#[test]
fn a_scope_waits_for_its_threads_and_reports_their_panics() {
    never_fails(200, || {
        let count = Mutex::new(0);
        let sum = thread::scope(|scope| {
            let nested = scope.spawn(|| {
                scope.spawn(|| *count.lock().unwrap() += 1);
                20
            });
            scope.spawn(|| *count.lock().unwrap() += 1);
            nested.join().unwrap() + 1
        });
        assert_eq!((sum, *count.lock().unwrap()), (21, 2));
        let panicked = std::panic::catch_unwind(|| {
            thread::scope(|scope| {
                scope.spawn(|| panic!("on purpose"));
            });
        });
        assert!(panicked.is_err());
    });
}

thread_local!(static LAST_WORDS: RefCell<Option<LastWords>> = const { RefCell::new(None) });

/// Increments a counter when it is dropped.
struct LastWords(Arc<Mutex<usize>>);

impl Drop for LastWords {
    fn drop(&mut self) {
        for _ in 0..10 {
            *self.0.lock().unwrap() += 1;
        }
    }
}

#[test]
fn thread_locals_are_destroyed_inside_the_simulation() {
    fn body() {
        let count = Arc::new(Mutex::new(0));
        let keep = |count: &Arc<Mutex<usize>>| {
            assert!(LAST_WORDS.take().is_none(), "an earlier thread left it");
            LAST_WORDS.set(Some(LastWords(count.clone())));
        };
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let count = count.clone();
                thread::spawn(move || keep(&count))
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(*count.lock().unwrap(), 30);
        keep(&count);
    }
    never_fails(100, body);
    let traces = || (0..20).map(|seed| outcome(seed, body).trace);
    assert!(traces().eq(traces()));
}

#[test]
fn deferred_work_runs_before_the_simulation_ends() {
    fn body() {
        let count = Arc::new(Mutex::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let count = count.clone();
                        crate::epoch::pin().defer(move || *count.lock().unwrap() += 1);
                    }
                });
            }
        });
        let done = Done(count);
        crate::epoch::pin().defer(move || drop(done));
    }
    /// Dropped together with the collector.
    struct Done(Arc<Mutex<usize>>);
    impl Drop for Done {
        fn drop(&mut self) {
            assert!(is_running() && *self.0.lock().unwrap() <= 600);
            SEEN.fetch_add(1, Ordering::Relaxed);
        }
    }
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let traces = || (0..20).map(|seed| outcome(seed, body).trace);
    assert!(traces().eq(traces()));
    assert_eq!(SEEN.load(Ordering::Relaxed), 40);
}

#[test]
fn other_threads_use_the_same_types_meanwhile() {
    let outside = std::thread::spawn(|| {
        for _ in 0..200 {
            let (sender, receiver) = crate::sync::mpsc::channel();
            let count = Arc::new(Mutex::new(0));
            thread::scope(|scope| {
                scope.spawn(|| *count.lock().unwrap() += 1);
                scope.spawn(|| sender.send(1).unwrap());
                assert_eq!(receiver.recv(), Ok(1));
            });
            assert_eq!(*count.lock().unwrap(), 1);
            assert!(!is_running());
        }
    });
    never_fails(200, || two_locks(true));
    outside.join().unwrap();
}
