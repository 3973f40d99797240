//! Tests of seeds that once failed, and of the output of a simulation.

use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forerun-lab"))
        .arg("sim")
        .args(args)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn seeds_that_failed_once_pass() {
    let seeds = include_str!("../seeds/found.txt");
    let seeds = seeds.lines().filter(|line| !line.starts_with('#'));
    let mut run = 0;
    for line in seeds {
        let (seed, what) = line.split_once(' ').unwrap();
        let output = sim(&["--seed", seed, "--no-shrink"]);
        assert!(
            output.status.success(),
            "seed {seed} ({what}): {}",
            text(&output)
        );
        run += 1;
    }
    assert!(run > 5, "only {run} seeds were run");
}

#[test]
fn a_run_ends_with_a_summary_line() {
    let output = sim(&["--from", "1", "--seeds", "20", "--jobs", "2"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("20 seeds, ") && last.ends_with("all passed"),
        "{last}"
    );
}

#[test]
fn a_seed_takes_the_same_steps_in_every_process() {
    // The history, and a hash of every step that the scheduler took.
    let history = || {
        let output = Command::new(env!("CARGO_BIN_EXE_forerun-lab"))
            .args(["sim-worker", "--first", "7", "--count", "10", "--trace"])
            .output()
            .unwrap();
        text(&output)
    };
    let first = history();
    assert_eq!(first.lines().count(), 20, "{first}");
    assert_eq!(first.matches("hash of all steps: ").count(), 10, "{first}");
    assert!(first == history(), "another process took different steps");
}

#[test]
fn a_seed_takes_the_same_steps_after_other_seeds_and_after_itself() {
    let ends = |first: &str, step: &str, count: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_forerun-lab"))
            .args(["sim-worker", "--trace", "--first", first])
            .args(["--step", step, "--count", count])
            .output()
            .unwrap();
        let text = text(&output);
        let ends = text.lines().filter(|line| line.starts_with("{\"End\""));
        ends.map(str::to_owned).collect::<Vec<_>>()
    };
    let (alone, after_others) = (ends("27", "1", "1"), ends("18", "1", "10"));
    let twice = ends("27", "0", "2");
    assert_eq!((alone.len(), after_others.len(), twice.len()), (1, 10, 2));
    assert!(alone[0] == after_others[9], "after other seeds");
    assert!(alone[0] == twice[0] && alone[0] == twice[1], "after itself");
}

#[test]
fn an_invalid_command_line_is_rejected() {
    for args in [
        &["--seed", "x"][..],
        &["--only", "3-7"],
        &["--seed", "1", "--seeds", "2"],
        &["--seeds", "0"],
    ] {
        assert_eq!(sim(args).status.code(), Some(2), "{args:?}");
    }
}
