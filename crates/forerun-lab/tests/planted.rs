//! The simulator finds defects that are put back: here those that it finds within a few seeds. All of them:
//! `cargo run --release -p forerun-lab --features planted -- sim --planted all`.

#![cfg(feature = "planted")]

use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun-lab"));
    command.arg("sim").args(args).output().unwrap()
}

#[test]
fn defects_of_each_part_are_found() {
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
fn names_are_listed_and_others_refused() {
    let Output { status, stdout, .. } = sim(&["--planted", "list"]);
    assert!(status.success());
    let said = String::from_utf8(stdout).unwrap();
    assert!(said.lines().count() >= 17, "{said}");
    assert!(said.contains("close-beside-work"), "{said}");
    let Output { status, stderr, .. } = sim(&["--planted", "nothing"]);
    assert_eq!(status.code(), Some(2));
    let said = String::from_utf8(stderr).unwrap();
    assert!(said.contains("--planted list"), "{said}");
}
