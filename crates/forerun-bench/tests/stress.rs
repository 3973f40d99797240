//! `forerun-bench stress`: short runs of each kind through the real command.

mod testing;

use testing::{Workspace, files};

#[test]
fn ten_kills_lose_nothing() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "stress",
        "--crash",
        "--cycles",
        "10",
        "--threads",
        "3",
        "--seed",
        "11",
        "--dir",
        "work",
    ]);
    assert!(
        reported.starts_with("crash: seed 11, 3 threads, 10 cycles\n10 kills in "),
        "{reported}"
    );
    let acknowledged = reported
        .lines()
        .nth(1)
        .and_then(|line| line.split(": ").nth(1));
    let writes: u64 = acknowledged
        .and_then(|reported| reported.split(' ').next())
        .and_then(|count| count.replace(',', "").parse().ok())
        .unwrap_or_else(|| panic!("no count in {reported}"));
    assert!(
        writes > 50,
        "children must live long enough to write: {reported}"
    );
    assert!(
        !files(&workspace.path("work")).is_empty(),
        "a directory that was named is kept"
    );
}

#[test]
fn kills_lose_nothing_with_requested_checks_strategy_and_index() {
    let workspace = Workspace::new();
    for options in [
        ["paranoid", "partition", "false"],
        ["off", "finger", "true"],
    ] {
        let [checks, strategy, index] = options;
        let reported = workspace.succeeds(&[
            "stress",
            "--crash",
            "--cycles",
            "4",
            "--threads",
            "2",
            "--checks",
            checks,
            "--strategy",
            strategy,
            "--memtable-index",
            index,
        ]);
        assert!(reported.contains("4 kills in "), "{reported}");
    }
    let ran = workspace.run(&["stress", "--crash", "--strategy", "guess"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("interleaved-sorted"),
        "{ran:?}"
    );
    assert_eq!(workspace.run(&["stress", "--checks", "off"]).code, 2);
}

#[test]
fn kills_during_ingestions_backups_checkpoints_and_keyspace_drops_lose_nothing() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "stress",
        "--crash",
        "--cycles",
        "15",
        "--threads",
        "2",
        "--seed",
        "12",
    ]);
    // "of the kills, 3 during ingestion (14 done), …"
    let during = |operation: &str| -> (u64, u64) {
        let (before, behind) = reported
            .split_once(&format!(" during {operation} ("))
            .unwrap_or_else(|| panic!("no {operation} in {reported}"));
        let kills = before
            .rsplit(' ')
            .next()
            .and_then(|kills| kills.parse().ok());
        let done = behind.split(' ').next().map(|done| done.replace(',', ""));
        let done = done.and_then(|done| done.parse().ok());
        kills
            .zip(done)
            .unwrap_or_else(|| panic!("no counts in {reported}"))
    };
    let all = ["ingestion", "backup", "checkpoint", "keyspace-drop"].map(during);
    let kills: u64 = all.iter().map(|(kills, _)| kills).sum();
    assert!(
        kills >= 4,
        "most kills are to fall into operations: {reported}"
    );
    let done: u64 = all.iter().map(|(_, done)| done).sum();
    assert!(
        done >= 4,
        "children must live long enough to finish some: {reported}"
    );
}

#[test]
fn mixed_work_of_several_threads_has_no_wrong_answer() {
    let workspace = Workspace::new();
    let reported =
        workspace.succeeds(&["stress", "--ops", "6000", "--threads", "3", "--seed", "5"]);
    assert!(
        reported.contains("seed 5") && reported.contains("no wrong answer"),
        "{reported}"
    );
}

#[test]
fn a_directory_in_use_is_left_alone() {
    let workspace = Workspace::new();
    workspace.file("precious", "x");
    assert!(
        workspace
            .fails(2, &["stress", "--ops", "10", "--dir", "."])
            .contains("is not empty")
    );
    assert_eq!(files(&workspace.path(".")).len(), 1);
}

#[test]
fn lanes_of_work_on_one_gpu_table_have_no_wrong_answer() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "stress",
        "--gpu-table",
        "--ops",
        "60000",
        "--threads",
        "4",
        "--seed",
        "9",
    ]);
    assert!(reported.starts_with("gpu-table: seed 9, 4 "), "{reported}");
    assert!(
        reported.contains("looked up concurrently") && reported.contains("no wrong answer"),
        "{reported}"
    );
}

#[test]
fn clients_of_every_kind_leave_the_server_unchanged() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "stress",
        "--server",
        "--seconds",
        "4",
        "--connections",
        "40",
        "--memory",
        "64",
        "--seed",
        "3",
    ]);
    assert!(
        reported.starts_with("server: seed 3, 40 clients over tcp for "),
        "{reported}"
    );
    assert!(reported.contains("every value checked"), "{reported}");
    assert!(!reported.contains("stored     0,"), "{reported}");
    assert!(reported.contains("\n  memory     "), "{reported}");
    // Copies begin at 1, 2 and perhaps 3 seconds. A copy counts when the next one begins.
    assert!(
        !reported.contains("\n  meanwhile  0 snapshots"),
        "{reported}"
    );
    assert!(!reported.contains(", 0 new certificates"), "{reported}");
    assert!(
        !reported.contains(" 0 changes of the memory limit"),
        "{reported}"
    );
}

#[test]
fn a_server_that_evicts_nothing_keeps_what_it_acknowledged_and_its_limits() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "stress",
        "--server",
        "--disable-evictions",
        "--seconds",
        "4",
        "--connections",
        "40",
        "--memory",
        "16",
        "--seed",
        "5",
    ]);
    assert!(reported.contains("every value checked"), "{reported}");
    assert!(!reported.contains("stored     0,"), "{reported}");
}
