use super::*;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex, thread};

#[test]
fn a_lost_update_is_found() {
    fn with(is_atomic: bool) {
        let count = Arc::new(Mutex::new(0));
        let add = move |count: &Mutex<i32>| {
            if is_atomic {
                *count.lock().unwrap() += 1
            } else {
                let before = *count.lock().unwrap();
                *count.lock().unwrap() = before + 1;
            }
        };
        let also = count.clone();
        let other = thread::spawn(move || add(&also));
        add(&count);
        other.join().unwrap();
        assert_eq!(*count.lock().unwrap(), 2);
    }
    let end = fails(50, || with(false));
    assert!(matches!(end, End::Panicked(said) if said.contains("basics.rs")));
    never_fails(500, || with(true));
}

#[test]
fn equal_seeds_give_equal_traces() {
    fn body() {
        let count = Arc::new(Mutex::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let count = count.clone();
                thread::spawn(move || {
                    for _ in 0..20 {
                        *count.lock().unwrap() += random(10);
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
    let traces = || (0..50).map(|seed| outcome(seed, body).trace);
    let first: Vec<u64> = traces().collect();
    assert_eq!(first, traces().collect::<Vec<_>>());
    let distinct: std::collections::BTreeSet<_> = first.iter().collect();
    assert!(distinct.len() > 40, "{} schedules of 50", distinct.len());
}

#[test]
fn a_load_and_a_store_lose_an_update() {
    fn with(add: fn(&AtomicU64)) {
        let count = Arc::new(AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| add(&count));
            }
        });
        assert_eq!(count.load(Relaxed), 2);
    }
    never_fails(500, || with(|count| _ = count.fetch_add(1, Relaxed)));
    fails(1000, || {
        with(|count| count.store(count.load(Relaxed) + 1, Relaxed));
    });
}

/// A defect that shows only if one thread is held back between two steps while another takes
/// hundreds of steps.
fn held_back() {
    let work = Arc::new(Mutex::new(0));
    let worker = work.clone();
    let other = thread::spawn(move || {
        for _ in 0..300 {
            *worker.lock().unwrap() += 1;
        }
    });
    let before = *work.lock().unwrap();
    let after = *work.lock().unwrap();
    assert!(after - before < 250, "held back");
    other.join().unwrap();
}

#[test]
fn priorities_hold_a_thread_back_for_long() {
    let found = |policy| {
        let end = |seed| {
            let config = Config {
                policy,
                ..Config::new(seed)
            };
            run(config, held_back).end
        };
        (0..300)
            .map(end)
            .filter(|end| *end != End::Finished)
            .count()
    };
    let walk = found(Policy::RandomWalk { switch_every: 4 });
    let (changes, steps) = (1, 64);
    let priorities = found(Policy::Priorities { changes, steps });
    assert_eq!(walk, 0);
    assert!(priorities > 0);
}
