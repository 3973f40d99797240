//! The first seeds are clean, and a seed always gives the same run.

use super::plan::Plan;
use super::play;

fn is_clean(seed: u64) {
    let played = play(&Plan::draw(seed)).expect("it can be simulated");
    if let Err(failure) = played.ended {
        panic!("seed {seed}: {failure}\n{}", played.trace.join("\n"));
    }
}

#[test]
fn the_first_seeds_are_clean() {
    (0..25).for_each(is_clean);
}

/// Seed 38: a TLS client that sent a part of a record within each idle timeout was closed as silent.
#[test]
fn seeds_that_found_a_defect_are_clean() {
    is_clean(38);
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..6 {
        let run = || {
            let played = play(&Plan::draw(seed)).expect("it can be simulated");
            let counts = played.ended.map(|counts| (counts.steps, counts.answers));
            (counts.map_err(|failure| failure.to_string()), played.trace)
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}
