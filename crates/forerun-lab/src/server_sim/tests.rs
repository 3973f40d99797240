//! Tests that the first seeds and the seeds that once failed pass, and that a seed always gives the
//! same run.

use super::plan::Plan;
use super::play;

fn is_clean(seed: u64, message: &str) {
    let played = play(&Plan::draw(seed)).expect("it can be simulated");
    if let Err(failure) = played.ended {
        let trace = played.trace.join("\n");
        panic!("seed {seed} ({message}): {failure}\n{trace}");
    }
}

#[test]
fn the_first_seeds_are_clean() {
    (0..25).for_each(|seed| is_clean(seed, "one of the first"));
}

#[test]
fn seeds_that_failed_once_are_clean() {
    let seeds = include_str!("../../seeds/server-found.txt");
    let mut run = 0;
    for line in seeds.lines().filter(|line| !line.starts_with('#')) {
        let (seed, message) = line.split_once(' ').expect("a seed and what it found");
        is_clean(seed.parse().expect("a number"), message.trim());
        run += 1;
    }
    assert!(run > 5, "only {run} seeds were run");
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..6 {
        let run = || {
            let played = play(&Plan::draw(seed)).expect("it can be simulated");
            let counts = played.ended.map_err(|failure| failure.to_string());
            (counts, played.trace)
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}
