//! The patches of the planted defects fit the present sources. `.ci/run planted` builds them and
//! checks that each defect is found.

use std::path::Path;
use std::process::{Command, Output};

fn planted(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun-lab"));
    command.arg("planted").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_patch_applies_to_the_present_sources() {
    let Output { status, stderr, .. } = planted(&["check"]);
    assert!(status.success(), "{}", text(&stderr));
}

#[test]
fn the_simulators_and_the_warm_up_tests_have_defects_to_find() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("planted");
    let patches: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "patch")
        })
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let found_by = |finder: &str| {
        let line = format!("\nFound by: {finder}");
        patches.iter().filter(|patch| patch.contains(&line)).count()
    };
    assert!(found_by("sim\n") >= 51, "{}", found_by("sim\n"));
    assert!(
        found_by("server-sim\n") >= 19,
        "{}",
        found_by("server-sim\n")
    );
    let warm_up = found_by("forerun-server session warm_up::");
    assert!(warm_up >= 3, "{warm_up}");
}

#[test]
fn defects_are_listed_and_unknown_names_rejected() {
    let Output { status, stdout, .. } = planted(&["list"]);
    let listed = text(&stdout);
    assert!(status.success(), "{listed}");
    let line = listed
        .lines()
        .find(|line| line.starts_with("close-beside-work "));
    assert!(line.is_some_and(|line| line.ends_with('.')), "{listed}");
    let Output { status, stderr, .. } = planted(&["hunt", "nothing"]);
    let said = text(&stderr);
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("forerun-lab planted list"), "{said}");
}
