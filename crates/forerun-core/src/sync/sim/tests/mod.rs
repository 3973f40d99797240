//! Classic concurrency bugs are found within a few seeds, and the correct versions never fail.

mod basics;
mod ends;
mod waits;

use super::*;

/// The outcome of `body` with the default configuration for `seed`.
fn outcome(seed: u64, body: impl FnOnce() + Send + 'static) -> Outcome {
    let mut config = Config::new(seed);
    config.steps_max = 20_000;
    run(config, body)
}

/// The first end other than `Finished` within this many seeds.
fn first_failure(seeds: u64, body: fn()) -> Option<(u64, End)> {
    let ends = (0..seeds).map(|seed| (seed, outcome(seed, body).end));
    ends.into_iter().find(|(_, end)| *end != End::Finished)
}

/// The program has a bug: one of the seeds must show it.
#[track_caller]
fn fails(seeds: u64, body: fn()) -> End {
    match first_failure(seeds, body) {
        Some((_, end)) => end,
        None => panic!("{seeds} seeds show no failure"),
    }
}

/// The program is correct: no seed may show a failure.
#[track_caller]
fn never_fails(seeds: u64, body: fn()) {
    if let Some((seed, end)) = first_failure(seeds, body) {
        panic!("seed {seed}: {end}");
    }
}
