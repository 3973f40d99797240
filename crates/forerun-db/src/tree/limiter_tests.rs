//! The limiter beside plain rules: nobody exceeds the rate, and each class keeps its share of it.

use std::sync::Arc;

use forerun_core::sync::atomic::AtomicUsize;
use proptest::prelude::*;

use super::*;

const CLASSES: [IoClass; 4] = [
    IoClass::Flush,
    IoClass::Compaction,
    IoClass::Copy,
    IoClass::Scrub,
];

#[test]
fn writers_respect_the_rate_limit() {
    let limiter = RateLimiter::new(Some(1 << 20));
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    for class in CLASSES.repeat(3) {
        limiter.take(32 << 10, class, &stop).unwrap();
    }
    // The last ones may have been paid for with credit, and not have waited.
    let expected = Duration::from_millis(200) - BURST;
    assert!(start.elapsed() >= expected, "{:?}", start.elapsed());
    for unlimited in [None, Some(0)] {
        limiter.set(unlimited);
        let start = Instant::now();
        limiter.take(1 << 40, IoClass::Copy, &stop).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_class_does_not_wait_for_those_below() {
    let limiter = Arc::new(RateLimiter::new(Some(1 << 10)));
    let stop = Arc::new(AtomicBool::new(false));
    let mut sleepers = Vec::new();
    for class in [IoClass::Copy, IoClass::Compaction] {
        let (limiter, stop) = (Arc::clone(&limiter), Arc::clone(&stop));
        sleepers.push(std::thread::spawn(move || {
            limiter.take(1 << 20, class, &stop)
        }));
    }
    while limiter.lock().paid_at[1] < Instant::now() + Duration::from_secs(100) {
        std::thread::yield_now();
    }
    let start = Instant::now();
    limiter.take(64, IoClass::Flush, &stop).unwrap();
    assert!(start.elapsed() < Duration::from_secs(60));
    stop.store(true, Ordering::Relaxed);
    for sleeper in sleepers {
        assert!(matches!(sleeper.join().unwrap(), Err(Error::Closed)));
    }
}

#[test]
fn a_sleeper_wakes_when_it_is_to_stop() {
    let limiter = Arc::new(RateLimiter::new(Some(1)));
    let stop = Arc::new(AtomicBool::new(false));
    let (sleeper, flag) = (Arc::clone(&limiter), Arc::clone(&stop));
    let thread = std::thread::spawn(move || sleeper.take(1 << 30, IoClass::Copy, &flag));
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(thread.join().unwrap(), Err(Error::Closed)));
}

#[test]
fn what_is_forgiven_is_forgiven_to_all_sleepers() {
    let limiter = Arc::new(RateLimiter::new(Some(1)));
    let stop = Arc::new(AtomicBool::new(false));
    let sleepers = CLASSES.map(|class| {
        let (limiter, stop) = (Arc::clone(&limiter), Arc::clone(&stop));
        std::thread::spawn(move || limiter.take(1 << 20, class, &stop))
    });
    while limiter.lock().paid_at[3] < Instant::now() + Duration::from_secs(7 << 19) {
        std::thread::yield_now();
    }
    limiter.set(Some(1));
    // A new debt is not theirs.
    limiter
        .lock()
        .charge(time::now(), Duration::from_secs(1 << 20), 0);
    for sleeper in sleepers {
        sleeper.join().unwrap().unwrap();
    }
}

#[test]
fn a_copy_keeps_its_share_beside_a_thread_that_always_flushes() {
    let limiter = RateLimiter::new(Some(16 << 20));
    let (stop, flushed) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while limiter.take(128 << 10, IoClass::Flush, &stop).is_ok() {
                flushed.fetch_add(1, Ordering::Relaxed);
            }
        });
        while flushed.load(Ordering::Relaxed) < 10 {
            std::thread::yield_now();
        }
        let start = Instant::now();
        for _ in 0..16 {
            // Asks whether to stop, as a copy does, and still gets its turn.
            limiter
                .take_while(128 << 10, IoClass::Copy, || Ok(()))
                .unwrap();
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        assert!(took < Duration::from_secs(30), "a tenth, for 2 MiB");
    });
    // Nine to one, if both threads always run.
    let flushed = flushed.into_inner();
    assert!(flushed >= 32, "{flushed} of a flush beside 16 of a copy");
}

/// A thread that writes pieces of a class and does something else between them, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Writer {
    class: usize,
    cost: u64,
    thinks: u64,
}

/// How much each class writes in `lasts`, as time at the full rate.
fn simulate(writers: &[Writer], lasts: Duration) -> [Duration; 3] {
    let mut state = LimiterState::<3>::new(Some(1));
    let begun = state.paid_at[0];
    // When each writer wakes, and when the piece is paid for, if it sleeps after one.
    let mut wakes: Vec<(Instant, Option<Instant>)> = vec![(begun, None); writers.len()];
    let mut written = [Duration::ZERO; 3];
    loop {
        let by_time = |place: &usize| (wakes[*place].0, writers[*place].class);
        let place = (0..writers.len()).min_by_key(by_time).unwrap();
        let ((now, sleeps), writer) = (wakes[place], writers[place]);
        if now >= begun + lasts {
            return written;
        }
        let cost = Duration::from_millis(writer.cost);
        let paid_at = match sleeps {
            None => {
                written[writer.class] += cost;
                state.charge(now, cost, writer.class)
            }
            Some(paid_at)
                if paid_at > now + BURST && state.pay_with_credit(now, cost, writer.class) =>
            {
                now
            }
            Some(paid_at) => paid_at,
        };
        assert!(state.paid_at.is_sorted());
        let left = paid_at.saturating_duration_since(now + BURST);
        wakes[place] = if left.is_zero() {
            (now + Duration::from_millis(writer.thinks), None)
        } else {
            (now + left.min(STOP_CHECK_INTERVAL), Some(paid_at))
        };
    }
}

const LASTS: Duration = Duration::from_secs(300);

/// The parts of the rate that classes get.
fn shares(writers: &[Writer]) -> [f64; 3] {
    simulate(writers, LASTS).map(|of| of.as_secs_f64() / LASTS.as_secs_f64())
}

proptest! {
    #[test]
    fn classes_keep_their_shares_and_together_the_rate(
        mut writers in proptest::collection::vec(
            (0..3_usize, 1..=100_u64, prop_oneof![Just(0), 0..=200_u64])
                .prop_map(|(class, cost, thinks)| Writer { class, cost, thinks }),
            1..8,
        ),
    ) {
        writers.sort_by_key(|of| of.class);
        let got = shares(&writers);
        let total: f64 = got.iter().sum();
        prop_assert!(total <= 1.1, "{total} of {got:?}");
        if writers.iter().any(|of| of.thinks == 0) {
            prop_assert!(total >= 0.99, "{total} of {got:?}");
        }
        let weight = |class: usize| f64::from(SHARE).powi(-(class as i32));
        for class in 0..3 {
            let among = |least: usize| -> Vec<Writer> {
                let is_one = |of: &&Writer| (least..=class).contains(&of.class);
                writers.iter().filter(is_one).copied().collect()
            };
            let (above, own) = (among(0), among(class));
            if own.is_empty() {
                continue;
            }
            // Beside those below, it loses at most what they earn.
            let before = shares(&above)[class];
            prop_assert!(got[class] >= 0.6 * before, "{class}: {} of {before}", got[class]);
            // Beside those above, it has its share or all that it wants.
            let busy = (0..3).filter(|class| writers.iter().any(|of| of.class == *class));
            let due = weight(class) / busy.map(weight).sum::<f64>();
            let alone = shares(&own)[class];
            prop_assert!(got[class] >= 0.6 * due.min(alone), "{class}: {got:?}, {due}, {alone}");
        }
    }
}

#[test]
fn classes_that_always_write_share_nine_to_three_to_one_or_two() {
    for cost in [6, 60, 600] {
        let busy = |class| Writer {
            class,
            cost,
            thinks: 0,
        };
        let got = shares(&[busy(0), busy(1), busy(2)]);
        // Copies earn from flushes, and from compactions that had to wait.
        for (got, (due, most)) in got.into_iter().zip([(9.0, 9.5), (3.0, 3.5), (1.0, 2.2)]) {
            let got = got * 13.0;
            assert!(
                (0.9 * due..most).contains(&got),
                "{got} of {due} at {cost} ms"
            );
        }
        let got = shares(&[busy(0), busy(1)]);
        assert!((0.2..0.3).contains(&got[1]), "{got:?}");
    }
}

#[test]
fn a_flush_that_is_not_always_waiting_goes_first_all_the_same() {
    // Pieces of 4 MiB at 64 MiB/s.
    let flush = Writer {
        class: 0,
        cost: 62,
        thinks: 20,
    };
    let compaction = Writer {
        class: 1,
        cost: 62,
        thinks: 0,
    };
    let copy = Writer {
        class: 2,
        cost: 62,
        thinks: 0,
    };
    let beside = shares(&[flush, compaction, compaction, copy]);
    assert!(beside[0] > 0.6, "{beside:?}");
}

#[test]
fn a_class_that_wrote_nothing_for_long_does_not_catch_up() {
    let mut state = LimiterState::<3>::new(Some(1));
    let mut now = state.paid_at[0];
    let piece = Duration::from_millis(100);
    for _ in 0..10_000 {
        now = now.max(state.charge(now, piece, 0) - BURST);
    }
    assert_eq!(state.credit[1..], [CREDIT_MAX; 2]);
}
