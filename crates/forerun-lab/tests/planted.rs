//! The simulators find planted defects. These tests cover the defects that they find within a few
//! seeds. To search for all of them: `cargo run --release -p forerun-lab --features planted -- sim
//! --planted all`, and the same with `server-sim`.

#![cfg(feature = "planted")]

use std::process::{Command, Output};

fn lab(simulator: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun-lab"));
    command.arg(simulator).args(args).output().unwrap()
}

fn sim(args: &[&str]) -> Output {
    lab("sim", args)
}

#[test]
fn planted_defects_of_the_server_are_found() {
    for name in [
        "turn-unbounded",
        "full-answer-forgotten",
        "output-unbounded",
        "drain-cuts-answers",
        "frame-key-skipped",
    ] {
        let Output { status, stdout, .. } = lab("server-sim", &["--planted", name]);
        let said = String::from_utf8(stdout).unwrap();
        assert!(status.success(), "{said}");
        assert!(said.starts_with(name), "{said}");
        assert!(said.ends_with("\nfound 1 of 1\n"), "{said}");
    }
}

/// A client whose pipe is full in the middle of a request is owed nothing yet.
#[test]
fn a_server_that_stops_reading_in_the_middle_of_a_request_is_found() {
    let seed = |more: &[&str]| {
        let args = [&["--first", "5", "--count", "1"], more].concat();
        let Output { stdout, .. } = lab("server-sim-worker", &args);
        String::from_utf8(stdout).unwrap()
    };
    let said = seed(&["--plant", "block-forgotten"]);
    assert!(said.contains("\"finding\":\"unread: "), "{said}");
    let said = seed(&[]);
    assert!(said.contains("\"finding\":null"), "{said}");
}

#[test]
fn planted_defects_of_each_part_of_the_store_are_found() {
    for name in [
        "last-record-dropped",
        "run-unsynced",
        "manifest-unsynced",
        "failed-manifest-leaves-runs",
        "ranges-uncounted",
        "run-end-excluded",
        "ttl-ignored-in-memtable",
        "backup-unsynced",
        "lock-not-exclusive",
    ] {
        let Output { status, stdout, .. } = sim(&["--planted", name]);
        let said = String::from_utf8(stdout).unwrap();
        assert!(status.success(), "{said}");
        assert!(said.starts_with(name), "{said}");
        assert!(said.ends_with("\nfound 1 of 1\n"), "{said}");
    }
}

#[test]
fn defects_are_listed_and_unknown_names_rejected() {
    let Output { status, stdout, .. } = sim(&["--planted", "list"]);
    assert!(status.success());
    let said = String::from_utf8(stdout).unwrap();
    assert!(said.lines().count() >= 50, "{said}");
    assert!(said.contains("close-beside-work"), "{said}");
    let Output { status, stderr, .. } = sim(&["--planted", "nothing"]);
    assert_eq!(status.code(), Some(2));
    let said = String::from_utf8(stderr).unwrap();
    assert!(said.contains("--planted list"), "{said}");
}
