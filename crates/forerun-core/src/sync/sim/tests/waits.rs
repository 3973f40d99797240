//! Condition variables, channels, cells and deadlines.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::*;
use crate::sync::{Arc, Barrier, Condvar, Mutex, OnceLock, mpsc, thread, time};

/// How a thread waits for a flag.
#[derive(Clone, Copy, PartialEq)]
enum Waiting {
    Correct,
    /// Checks the flag once, and takes any wake-up for the right one.
    If,
    /// Checks the flag, unlocks, and locks again to wait.
    Unlocking,
}

fn wait_for_flag(waiting: Waiting) {
    let shared = Arc::new((Mutex::new(false), Condvar::new()));
    let setter = shared.clone();
    let other = thread::spawn(move || {
        *setter.0.lock().unwrap() = true;
        setter.1.notify_one();
    });
    let (flag, set) = &*shared;
    match waiting {
        Waiting::Correct => {
            let is_set = set.wait_while(flag.lock().unwrap(), |is_set| !*is_set);
            assert!(*is_set.unwrap());
        }
        Waiting::If => {
            let mut is_set = flag.lock().unwrap();
            if !*is_set {
                is_set = set.wait(is_set).unwrap();
            }
            assert!(*is_set, "woken for nothing");
        }
        Waiting::Unlocking => {
            while !*flag.lock().unwrap() {
                drop(set.wait(flag.lock().unwrap()).unwrap());
            }
        }
    }
    other.join().unwrap();
}

#[test]
fn a_notification_before_the_wait_has_no_effect() {
    never_fails(1000, || wait_for_flag(Waiting::Correct));
    let End::Deadlock(blocked) = fails(100, || wait_for_flag(Waiting::Unlocking)) else {
        panic!("it ends otherwise");
    };
    assert_eq!(blocked[0].waits_for, WaitsFor::Notification);
    assert!(blocked[0].at.file().ends_with("waits.rs"));
}

#[test]
fn a_spurious_wakeup_bug_is_found() {
    let end = fails(1000, || wait_for_flag(Waiting::If));
    assert!(
        matches!(&end, End::Panicked(said) if said.contains("woken for nothing")),
        "{end}"
    );
}

/// A queue for one item, with two consumers and two producers.
fn queue(notify_all: bool) {
    let shared = Arc::new((Mutex::new(None), Condvar::new()));
    let mut threads = Vec::new();
    for item in 0..2 {
        let producer = shared.clone();
        let notify = move |changed: &Condvar| {
            if notify_all {
                changed.notify_all()
            } else {
                changed.notify_one()
            }
        };
        threads.push(thread::spawn(move || {
            let (slot, changed) = &*producer;
            let full = changed.wait_while(slot.lock().unwrap(), |slot| slot.is_some());
            *full.unwrap() = Some(item);
            notify(changed);
        }));
        let consumer = shared.clone();
        threads.push(thread::spawn(move || {
            let (slot, changed) = &*consumer;
            let empty = changed.wait_while(slot.lock().unwrap(), |slot| slot.is_none());
            assert!(empty.unwrap().take().is_some());
            notify(changed);
        }));
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_notification_that_wakes_the_wrong_thread_is_found() {
    never_fails(500, || queue(true));
    assert!(matches!(fails(2000, || queue(false)), End::Deadlock(_)));
}

#[test]
fn a_barrier_lets_all_pass_together() {
    never_fails(200, || {
        let barrier = Arc::new((Barrier::new(3), Mutex::new(0)));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 1..4 {
                        *barrier.1.lock().unwrap() += 1;
                        barrier.0.wait();
                        assert!(*barrier.1.lock().unwrap() >= 3 * round);
                        barrier.0.wait();
                    }
                });
            }
        });
    });
}

#[test]
fn a_channel_is_disconnected_when_its_other_end_is_gone() {
    never_fails(300, || {
        let (sender, receiver) = mpsc::channel();
        let also = sender.clone();
        let threads = [
            thread::spawn(move || sender.send(1)),
            thread::spawn(move || also.send(2)),
        ];
        let mut received: Vec<i32> = receiver.iter().collect();
        received.sort_unstable();
        assert_eq!(received, [1, 2]);
        assert_eq!(receiver.recv(), Err(RecvError));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap().unwrap());

        let (sender, receiver) = mpsc::channel();
        drop(receiver);
        assert!(sender.send(3).is_err());
    });
}

#[test]
fn a_bounded_channel_makes_its_senders_wait() {
    never_fails(300, || {
        let (sender, receiver) = mpsc::sync_channel(1);
        let sent = Arc::new(Mutex::new(0));
        let counted = sent.clone();
        let other = thread::spawn(move || {
            for item in 0..5 {
                sender.send(item).unwrap();
                *counted.lock().unwrap() += 1;
            }
        });
        for item in 0..5 {
            assert!(*sent.lock().unwrap() <= item + 1);
            assert_eq!(receiver.recv(), Ok(item));
        }
        other.join().unwrap();
    });
}

#[test]
fn a_live_sender_keeps_the_receiver_waiting() {
    let End::Deadlock(blocked) = fails(1, || {
        let (sender, receiver) = mpsc::channel::<()>();
        let _ = receiver.recv();
        drop(sender);
    }) else {
        panic!("it ends otherwise");
    };
    assert_eq!(blocked[0].waits_for, WaitsFor::Message);
}

#[test]
fn a_cell_is_initialised_once() {
    never_fails(300, || {
        let shared = Arc::new((OnceLock::new(), Mutex::new(0)));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let value = shared.0.get_or_init(|| {
                        *shared.1.lock().unwrap() += 1;
                        7
                    });
                    assert_eq!(*value, 7);
                });
            }
        });
        assert_eq!(*shared.1.lock().unwrap(), 1);
        assert_eq!(shared.0.set(8), Err(8));
    });
}

#[test]
fn a_cell_that_initialises_itself_deadlocks() {
    let End::Deadlock(blocked) = fails(1, || {
        let cell = OnceLock::new();
        cell.get_or_init(|| *cell.get_or_init(|| 1));
    }) else {
        panic!("it ends otherwise");
    };
    assert_eq!(blocked[0].waits_for, WaitsFor::Initialisation);
}

#[test]
fn an_hour_takes_no_time() {
    let begun = Instant::now();
    let outcome = outcome(1, || {
        let hour = Duration::from_secs(3600);
        let (start, wall) = (time::now(), time::system_now());
        thread::sleep(hour);
        assert!(time::elapsed(start) >= hour);
        assert!(time::system_now().duration_since(wall).unwrap() >= hour);

        let pair = (Mutex::new(()), Condvar::new());
        let mut left = hour;
        let start = time::now();
        while !left.is_zero() {
            drop(pair.1.wait_timeout(pair.0.lock().unwrap(), left).unwrap());
            left = left.saturating_sub(time::elapsed(start));
        }

        let (_sender, receiver) = mpsc::channel::<()>();
        assert_eq!(receiver.recv_timeout(hour), Err(RecvTimeoutError::Timeout));

        thread::park_timeout(hour);
        advance(hour);
        assert!(time::elapsed(start) >= 4 * hour);
    });
    assert_eq!(outcome.end, End::Finished);
    assert!(outcome.elapsed >= Duration::from_secs(5 * 3600));
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_shorter_sleep_ends_first() {
    // Time may pass beside threads that can run. So a sleep may begin late, and never ends early.
    let in_order = Arc::new(AtomicUsize::new(0));
    for seed in 0..200 {
        let in_order = in_order.clone();
        let end = outcome(seed, move || {
            let woken = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for seconds in [3, 1, 2] {
                    let woken = &woken;
                    scope.spawn(move || {
                        let (begun, slept) = (time::now(), Duration::from_secs(seconds));
                        thread::sleep(slept);
                        assert!(time::elapsed(begun) >= slept);
                        woken.lock().unwrap().push(seconds);
                    });
                }
            });
            let is_in_order = *woken.lock().unwrap() == [1, 2, 3];
            in_order.fetch_add(usize::from(is_in_order), Ordering::Relaxed);
        });
        assert_eq!(end.end, End::Finished, "seed {seed}");
    }
    let in_order = in_order.load(Ordering::Relaxed);
    assert!(in_order > 180, "in {in_order} of 200 simulations");
}

#[test]
fn a_thread_that_spins_lets_the_others_and_time_pass() {
    never_fails(500, || {
        let shared = Arc::new(Mutex::new(false));
        let also = shared.clone();
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_secs(60));
            *also.lock().unwrap() = true;
        });
        while !*shared.lock().unwrap() {
            hint::spin_loop();
        }
        while !other.is_finished() {}
        let try_locked = || shared.try_lock().is_ok();
        let also = shared.clone();
        let holder = thread::spawn(move || {
            let _held = also.lock().unwrap();
            thread::sleep(Duration::from_secs(1));
        });
        while !try_locked() {}
        holder.join().unwrap();
    });
}

#[test]
fn an_unpark_before_the_park_is_kept() {
    never_fails(200, || {
        let main = thread::current();
        let other = thread::spawn(move || main.unpark());
        thread::park();
        other.join().unwrap();
    });
}

#[test]
fn a_sleep_may_end_while_others_run() {
    // The loop takes 5 ms of simulated time, unless time passes beside it.
    let ends_in_the_loop = || {
        let is_over = Arc::new(AtomicBool::new(false));
        let also = is_over.clone();
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(500));
            also.store(true, Ordering::Relaxed);
        });
        let ended = (0..10_000).any(|_| {
            point();
            is_over.load(Ordering::Relaxed)
        });
        other.join().unwrap();
        assert!(!ended, "the sleep ended in the loop");
    };
    let mut config = Config::new(0);
    let ended = (0..50).filter(|seed| {
        config.seed = *seed;
        matches!(run(config.clone(), ends_in_the_loop).end, End::Panicked(_))
    });
    let ended = ended.count();
    assert!((10..45).contains(&ended), "in {ended} of 50 simulations");
}
