//! `forerun demo --quick`: everything runs, and the page needs no other file.

use crate::testing;

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testing::Workspace;

#[test]
fn the_demo_runs_and_writes_its_page() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&["demo", "--quick", "--dir", "cities.db"]);
    assert!(
        reported.contains("GeoNames") && reported.contains("CC BY 4.0"),
        "{reported}"
    );
    assert!(
        reported.contains("2,000 records") && reported.contains("XX/Atlantis/0,0\n    not found"),
        "{reported}"
    );
    let rows = reported
        .lines()
        .filter(|line| line.trim_start().starts_with("1024 "))
        .count();
    assert_eq!(
        rows, 2,
        "a row of the longest batch for each of the two stores: {reported}"
    );
    assert!(
        reported.contains("5,000 entries (keys of 16 bytes, values of 100):"),
        "{reported}"
    );
    assert!(reported.contains("Every answer was checked"), "{reported}");
    let page =
        std::fs::read_to_string(workspace.path("forerun-demo.html")).expect("the page is there");
    forerun_measure::report::check_html(&page)
        .expect("the page is well formed and needs nothing else");
    assert!(page.contains("<svg") && page.contains("CC BY 4.0"));
    // A store with a given path is kept.
    assert_eq!(
        workspace
            .succeeds(&["scan", "cities.db", "--keys-only"])
            .lines()
            .count(),
        2000
    );
    assert!(
        workspace
            .fails(2, &["demo", "--quick", "--dir", "cities.db"])
            .contains("is not empty")
    );
}

#[test]
fn an_unwritable_page_is_reported_at_the_start() {
    let workspace = Workspace::new();
    let reported = workspace.fails(3, &["demo", "--quick", "--report", "no/such/folder.html"]);
    assert!(
        reported.contains("cannot write the page no/such/folder.html"),
        "{reported}"
    );
}

#[test]
fn an_interrupted_demo_leaves_no_files() {
    let workspace = Workspace::new();
    std::fs::create_dir(workspace.path("tmp")).expect("a directory can be made");
    let temporary = || {
        let entries = std::fs::read_dir(workspace.path("tmp")).expect("the directory is there");
        entries.count()
    };
    // Without `--quick` it runs for long enough to be interrupted.
    let mut demo = workspace
        .command(&["demo"])
        .env("TMPDIR", workspace.path("tmp"))
        .stdout(Stdio::null())
        .spawn()
        .expect("the command can be started");
    let deadline = Instant::now() + Duration::from_secs(60);
    while temporary() == 0 {
        assert!(Instant::now() < deadline, "no temporary directory appears");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The handler is installed right after the directory is created.
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&demo), Signal::INT).expect("the demo is running");
    let status = demo.wait().expect("the command can be waited for");
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status}");
    assert_eq!(temporary(), 0);
    assert!(!workspace.path("forerun-demo.html").exists());
}
