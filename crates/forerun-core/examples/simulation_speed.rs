//! Measures the CPU time of a simulation per scheduling point, per switch to another thread, and
//! per thread. Also measures the overhead of a build that can simulate outside of simulations.
//!
//! `cargo run --release -p forerun-core --features sim --example simulation_speed`

use std::time::Duration;

use forerun_core::sync::sim::{self, Config, End, Policy};
use forerun_core::sync::{Arc, Mutex, thread};

/// The CPU time of this process.
fn used() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Runs a body and returns its nanoseconds, steps and switches.
fn measure(switch_every: u64, body: impl FnOnce() + Send + 'static) -> (f64, f64, f64) {
    let mut config = Config::new(1);
    config.policy = Policy::RandomWalk { switch_every };
    config.steps_max = u64::MAX;
    let begun = used();
    let outcome = sim::run(config, body);
    assert_eq!(outcome.end, End::Finished);
    (
        (used() - begun).as_nanos() as f64,
        outcome.steps as f64,
        outcome.switches as f64,
    )
}

/// Runs a number of threads that each pass a number of scheduling points.
fn points(threads: u64, count: u64) {
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(move || (0..count).for_each(|_| sim::point()));
        }
    });
}

fn report(place: &str) {
    let (ns, steps, _) = measure(u64::MAX, || points(1, 2_000_000));
    println!("{place}: {:.0} ns per point without a switch", ns / steps);
    let (ns, steps, _) = measure(u64::MAX, || {
        let lock = Mutex::new(0_u64);
        (0..1_000_000).for_each(|_| *lock.lock().unwrap() += 1);
    });
    println!("{place}: {:.0} ns per point of a mutex", ns / steps);
    let (ns, _, switches) = measure(1, || points(4, 50_000));
    println!("{place}: {:.0} ns per switch", ns / switches);
    let begun = used();
    let simulations = 2000;
    for seed in 0..simulations {
        let outcome = sim::run(Config::new(seed), || {
            let count = Arc::new(Mutex::new(0));
            points(4, 1);
            *count.lock().unwrap() += 1;
        });
        assert_eq!(outcome.end, End::Finished);
    }
    let us = (used() - begun).as_micros() as f64 / simulations as f64;
    println!("{place}: {us:.0} µs per simulation of five threads that do almost nothing");
}

/// A lock and an addition outside a simulation, with the standard library's mutex and with the
/// mutex that can be simulated.
fn report_outside() {
    let rounds = 5_000_000_u32;
    let plain = std::sync::Mutex::new(0_u64);
    let begun = used();
    (0..rounds).for_each(|_| *std::hint::black_box(&plain).lock().unwrap() += 1);
    let plain = used() - begun;
    let both = Mutex::new(0_u64);
    let begun = used();
    (0..rounds).for_each(|_| *std::hint::black_box(&both).lock().unwrap() += 1);
    let both = used() - begun;
    println!(
        "outside: {:.1} ns per lock of the standard library, {:.1} ns per lock that can be \
         simulated",
        plain.as_nanos() as f64 / f64::from(rounds),
        both.as_nanos() as f64 / f64::from(rounds),
    );
}

fn main() {
    report_outside();
    report("any CPU");
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied())
        && core_affinity::set_for_current(core)
    {
        report("one CPU");
    }
}
