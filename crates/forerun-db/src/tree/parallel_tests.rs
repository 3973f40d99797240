//! Work is shared by threads, and comes out in order.

use std::path::Path;

use forerun_core::sync::Mutex;

use super::*;

fn threads(count: usize) -> Threads {
    Threads {
        count,
        name: "test",
        doing: "testing",
    }
}

/// The results for all numbers below `count`.
fn all_of<T: Send>(
    count: usize,
    of_threads: usize,
    make: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let mut made = Vec::new();
    in_order(0..count, threads(of_threads), make, &mut made).map(|()| made)
}

fn failure(at: usize) -> Error {
    Error::corrupt_file(Path::new("run"), at as u64, "it is damaged")
}

#[test]
fn results_come_in_order_and_of_several_failures_the_first_is_returned() {
    for threads in [1, 2, 5, 16] {
        for failing in [&[][..], &[0], &[7, 3], &[199], &[50, 51, 198]] {
            for _ in 0..20 {
                let made = Mutex::new(Vec::new());
                let result = all_of(200, threads, |at| {
                    made.lock().unwrap().push(at);
                    if failing.contains(&at) {
                        Err(failure(at))
                    } else {
                        Ok(2 * at)
                    }
                });
                let mut made = made.into_inner().unwrap();
                made.sort_unstable();
                let first = failing.iter().min();
                match (result, first) {
                    (Ok(all), None) => {
                        assert!(all.into_iter().eq((0..200).map(|at| 2 * at)));
                        assert!(made.into_iter().eq(0..200), "each once");
                    }
                    (Err(Error::CorruptFile { offset, .. }), Some(first)) => {
                        assert_eq!(offset as usize, *first);
                        let expected = 0..made.len();
                        assert!(made.len() > *first && made.into_iter().eq(expected));
                    }
                    (result, _) => panic!("{failing:?}: {result:?}"),
                }
            }
        }
    }
}

#[test]
fn after_a_failure_little_more_is_done() {
    let made = AtomicUsize::new(0);
    let result: Result<Vec<()>> = all_of(1_000_000, 4, |at| {
        made.fetch_add(1, Ordering::Relaxed);
        Err(failure(at))
    });
    assert!(result.is_err() && made.into_inner() <= 4);
}

#[test]
fn a_panic_in_any_thread_is_an_error() {
    let result = all_of(100, 4, |at| match at {
        40.. => panic!("number {at}"),
        _ => Ok(at),
    });
    match result {
        Err(Error::Panicked { message, .. }) => assert_eq!(message, "number 40"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_came_before_a_failure_is_kept_and_the_rest_can_follow() {
    let mut made = vec![0, 1, 2];
    let fails = AtomicUsize::new(50);
    let make = |at| {
        if at == fails.load(Ordering::Relaxed) {
            Err(failure(at))
        } else {
            Ok(at)
        }
    };
    assert!(in_order(3..200, threads(5), make, &mut made).is_err());
    assert!(made.iter().copied().eq(0..50));
    fails.store(usize::MAX, Ordering::Relaxed);
    in_order(50..200, threads(1), make, &mut made).unwrap();
    assert!(made.into_iter().eq(0..200));
}

#[test]
fn no_error_hides_a_panic_or_that_the_store_closes() {
    let both = std::sync::Barrier::new(2);
    for panics in [true, false] {
        let result: Result<Vec<()>> = all_of(2, 2, |at| {
            // Both have begun before one fails.
            both.wait();
            match at {
                0 => Err(failure(at)),
                _ if panics => panic!("number {at}"),
                _ => Err(Error::Closed),
            }
        });
        match result {
            Err(Error::Panicked { message, .. }) if panics => assert_eq!(message, "number 1"),
            Err(Error::Closed) if !panics => {}
            other => panic!("{other:?}"),
        }
    }
}
