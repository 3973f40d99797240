//! The limiter beside plain rules: nobody exceeds the rate, and each class keeps its share of it.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

#[test]
fn writers_respect_the_rate_limit() {
    let limiter = RateLimiter::new(Some(1 << 20));
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let classes = [IoClass::Flush, IoClass::Compaction, IoClass::Copy];
    for class in classes.repeat(3) {
        limiter.take(32 << 10, class, &stop).unwrap();
    }
    // The last one has not waited for what it wrote itself.
    let expected = Duration::from_millis(250) - BURST;
    assert!(start.elapsed() >= expected, "{:?}", start.elapsed());
    limiter.set(None);
    let start = Instant::now();
    limiter.take(1 << 40, IoClass::Copy, &stop).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_sleeper_wakes_when_it_is_to_stop_or_when_the_limit_is_gone() {
    for stops in [true, false] {
        let limiter = Arc::new(RateLimiter::new(Some(1)));
        let stop = Arc::new(AtomicBool::new(false));
        let (sleeper, flag) = (Arc::clone(&limiter), Arc::clone(&stop));
        let thread = std::thread::spawn(move || sleeper.take(1 << 30, IoClass::Copy, &flag));
        if stops {
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(thread.join().unwrap(), Err(Error::Closed)));
        } else {
            limiter.set(None);
            thread.join().unwrap().unwrap();
        }
    }
}

#[test]
fn nobody_waits_for_one_that_looks_whether_to_stop() {
    let limiter = RateLimiter::new(Some(1 << 20));
    let stop = AtomicBool::new(false);
    let mut asked = 0;
    let ended = limiter.take_while(1 << 20, IoClass::Flush, || {
        asked += 1;
        let waiting = &limiter.lock().waiting;
        assert!(waiting.iter().all(VecDeque::is_empty));
        if asked < 4 {
            Ok(())
        } else {
            check(&AtomicBool::new(true))
        }
    });
    assert!(matches!(ended, Err(Error::Closed)));
    limiter.take(1, IoClass::Copy, &stop).unwrap();
}

const CLASSES: usize = 5;

/// How much each class writes in `lasts`, as time at the full rate, if all writers always have a
/// piece to write.
fn simulate(writers: &[(usize, u64)], lasts: Duration) -> [Duration; CLASSES] {
    let mut state = LimiterState::<CLASSES>::new(Some(1));
    let mut now = state.paid_at;
    let end = now + lasts;
    let mut written = [Duration::ZERO; CLASSES];
    let cost = |place: usize| Duration::from_millis(writers[place].1);
    let join =
        |state: &mut LimiterState<CLASSES>, place: usize| state.join(writers[place].0, cost(place));
    let mut tickets: Vec<Waiter> = (0..writers.len())
        .map(|place| join(&mut state, place))
        .collect();
    while now < end {
        let mut waits = Vec::new();
        let paid = (0..writers.len()).find(|place| {
            let wait = state.pay(now, writers[*place].0, tickets[*place]);
            waits.extend(wait);
            wait.is_none()
        });
        match paid {
            Some(place) => {
                written[writers[place].0] += cost(place);
                tickets[place] = join(&mut state, place);
            }
            None => now += *waits.iter().min().unwrap(),
        }
    }
    written
}

proptest! {
    #[test]
    fn all_classes_keep_their_share_and_together_the_rate(
        writers in proptest::collection::vec((0..CLASSES, 1..=100_u64), 1..12),
    ) {
        let lasts = Duration::from_secs(300);
        let written = simulate(&writers, lasts);
        let share = |class: usize| written[class].as_secs_f64() / lasts.as_secs_f64();
        let total: f64 = (0..CLASSES).map(share).sum();
        prop_assert!((0.999..=1.001).contains(&total), "{total} of {written:?}");
        let mut busy: Vec<usize> = writers.iter().map(|of| of.0).collect();
        busy.sort_unstable();
        busy.dedup();
        let weight = |class: usize| f64::from(SHARE).powi(-((class - busy[0]) as i32));
        let weights: f64 = busy.iter().map(|class| weight(*class)).sum();
        for class in &busy {
            let (due, got) = (weight(*class) / weights, share(*class));
            prop_assert!(got >= 0.95 * due, "{class}: {got} of {due}, {written:?}");
        }
    }
}

#[test]
fn a_class_that_wrote_nothing_for_long_does_not_catch_up() {
    let mut state = LimiterState::<2>::new(Some(1));
    let mut now = state.paid_at;
    let pay = |state: &mut LimiterState<2>, now: &mut Instant, class, waiter| loop {
        match state.pay(*now, class, waiter) {
            None => return true,
            Some(STOP_CHECK_INTERVAL) => return false,
            Some(wait) => *now += wait,
        }
    };
    for _ in 0..10_000 {
        let urgent = state.join(0, PIECE);
        assert!(pay(&mut state, &mut now, 0, urgent));
    }
    let _urgent = state.join(0, PIECE);
    let mut first = 0;
    loop {
        let rest = state.join(1, PIECE);
        if !pay(&mut state, &mut now, 1, rest) {
            break;
        }
        first += 1;
    }
    assert_eq!(PIECE * first, CREDIT_MAX);
}
