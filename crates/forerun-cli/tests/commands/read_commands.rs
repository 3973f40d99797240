//! `get`, `multiget`, `scan` and `stats`: existing entries are printed in order, and missing keys
//! are reported.

use crate::testing;

use testing::Workspace;

fn towns() -> Workspace {
    let workspace = Workspace::new();
    workspace.store(&[("a", "1"), ("b", "2"), ("b\tx", "tab"), ("c", "3")]);
    workspace
}

fn row(key: &str, value: &str) -> String {
    format!("{{\"k\":{key:?},\"v\":{value:?}}}")
}

#[test]
fn get_prints_values_and_reports_missing_keys() {
    let workspace = towns();
    assert_eq!(
        workspace.succeeds(&["get", "db", "a"]),
        row("a", "1") + "\n"
    );
    let ran = workspace.run(&["get", "db", "c", "nope", "a", "c"]);
    assert_eq!(ran.code, 1);
    let (a, c) = (row("a", "1"), row("c", "3"));
    assert_eq!(ran.text(), format!("c\t{c}\na\t{a}\nc\t{c}\n"));
    assert_eq!(ran.complaint(), "forerun: key \"nope\" not found");
    assert_eq!(
        workspace.fails(1, &["get", "db", ""]),
        "forerun: key \"\" not found"
    );
}

#[test]
fn json_and_hexadecimal_are_exact() {
    let workspace = towns();
    let ran = workspace.run(&["get", "db", "--json", "b\tx", "zz"]);
    let lines: Vec<serde_json::Value> = ran
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    assert_eq!(lines[0]["key"], "b\tx");
    assert_eq!(lines[0]["value"]["v"], "tab");
    assert_eq!(
        (lines[1]["key"].as_str(), lines[1]["value"].is_null()),
        (Some("zz"), true)
    );
    let digits: String = row("b\tx", "tab")
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        workspace.succeeds(&["get", "db", "--hex", "620978", "--hex-values"]),
        format!("{digits}\n")
    );
}

#[test]
fn multiget_keeps_the_order_of_the_list_for_every_batch() {
    let workspace = Workspace::new();
    let rows: String = (0..500)
        .map(|n| format!("{{\"k\":\"key{n:04}\",\"n\":{n}}}\n"))
        .collect();
    workspace
        .file("t.ndjson", rows)
        .succeeds(&["load", "db", "t.ndjson", "--key", "k"]);
    // Every third key is missing, and some keys occur twice.
    let wanted: Vec<usize> = (0..700).map(|n| n * 389 % 750).collect();
    let list: String = wanted.iter().map(|n| format!("key{n:04}\n")).collect();
    let expected: String = wanted
        .iter()
        .filter(|&&n| n < 500)
        .map(|n| format!("key{n:04}\t{{\"k\":\"key{n:04}\",\"n\":{n}}}\n"))
        .collect();
    workspace.file("wanted", &list);
    for batch in ["1", "7", "64", "1024"] {
        let ran = workspace.run(&["multiget", "db", "--keys", "wanted", "--batch", batch]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.text() == expected, "in batches of {batch}");
        let found = expected.lines().count();
        assert!(
            ran.complaint()
                .contains(&format!("700 keys: {found} found, {} missing", 700 - found)),
            "{ran:?}"
        );
    }
    let ran = workspace.run_with_input(
        &["multiget", "db", "--keys", "-", "--quiet"],
        b"key0001\nkey0002\n",
    );
    assert_eq!((ran.code, ran.text().as_str()), (0, ""));
    assert!(
        ran.complaint().contains("2 keys: 2 found, 0 missing"),
        "{ran:?}"
    );
}

#[test]
fn multiget_prints_json_with_null_for_missing_keys() {
    let workspace = towns();
    let ran = workspace.run_with_input(
        &["multiget", "db", "--keys", "-", "--json", "--hex"],
        b"61\nFFFE\n",
    );
    assert_eq!(ran.code, 1);
    let text = ran.text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("{\"key_hex\":\"61\",\"value\":"),
        "{lines:?}"
    );
    assert_eq!(lines[1], "{\"key_hex\":\"fffe\",\"value\":null}");
    let ran = workspace.run_with_input(&["multiget", "db", "--keys", "-", "--hex"], b"61\n6x\n");
    assert_eq!(ran.code, 3);
    assert!(
        ran.stderr
            .contains("standard input: byte 3: line 2: \"6x\" is not hexadecimal"),
        "{ran:?}"
    );
}

#[test]
fn scans_run_both_ways_within_prefix_and_limit() {
    let workspace = towns();
    let keys = |args: &[&str]| {
        let args = [&["scan", "db", "--keys-only"], args].concat();
        workspace
            .succeeds(&args)
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]), ["a", "b", "b\\x09x", "c"]);
    assert_eq!(keys(&["--reverse"]), ["c", "b\\x09x", "b", "a"]);
    assert_eq!(keys(&["--prefix", "b"]), ["b", "b\\x09x"]);
    assert_eq!(
        keys(&["--prefix", "b", "--reverse", "--limit", "1"]),
        ["b\\x09x"]
    );
    assert_eq!(keys(&["--prefix", "62", "--hex"]), ["62", "620978"]);
    assert_eq!(keys(&["--limit", "0"]), [""; 0]);
    assert_eq!(keys(&["--prefix", "zzz"]), [""; 0]);
    assert_eq!(
        workspace.succeeds(&["scan", "db", "--limit", "1"]),
        format!("a\t{}\n", row("a", "1"))
    );
}

#[test]
fn paranoid_checks_change_no_answer() {
    let workspace = towns();
    assert_eq!(
        workspace.succeeds(&["scan", "db", "--paranoid"]),
        workspace.succeeds(&["scan", "db"])
    );
    assert_eq!(
        workspace.succeeds(&["get", "db", "a", "--paranoid"]),
        row("a", "1") + "\n"
    );
}

#[test]
fn stats_count_the_entries() {
    let workspace = towns();
    assert!(!workspace.succeeds(&["stats", "db"]).is_empty());
    let stats: serde_json::Value =
        serde_json::from_str(&workspace.succeeds(&["stats", "db", "--json"])).expect("it is JSON");
    assert_eq!(
        (stats["keys"].as_u64(), stats["key_bytes"].as_u64()),
        (Some(4), Some(6))
    );
}

#[test]
fn stats_in_json_have_every_figure_of_the_text() {
    let workspace = towns();
    let text = workspace.succeeds(&["stats", "db"]);
    let json = workspace.succeeds(&["stats", "db", "--json"]);
    let stats: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    // A line of the text, and the JSON pointers of its metrics.
    for (line, pointers) in [
        ("keys", &["/keys", "/key_bytes", "/value_bytes"][..]),
        (
            "memtable",
            &[
                "/memtable/entries",
                "/memtable/used_bytes",
                "/memtable/limit_bytes",
            ],
        ),
        ("sequence", &["/last_sequence"]),
        (
            "writes",
            &[
                "/write_batches",
                "/log_written_bytes",
                "/log_groups",
                "/log_syncs",
            ],
        ),
        ("lookups", &["/lookup_keys", "/lookup_batches"]),
        (
            "opened",
            &[
                "/recovery/operations",
                "/recovery/batches",
                "/recovery/log_bytes",
            ],
        ),
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{text}");
        for pointer in pointers {
            let metric = stats.pointer(pointer).and_then(serde_json::Value::as_u64);
            assert!(metric.is_some(), "{pointer}: {json}");
        }
    }
    // Metrics that the text shows only if they are not zero.
    for pointer in [
        "/levels",
        "/keyspaces",
        "/cache/hits",
        "/tree/flushes",
        "/write_stalls/stalls",
        "/background_failure",
        "/poisoned",
        "/recovery/dropped_tail",
    ] {
        assert!(stats.pointer(pointer).is_some(), "{pointer}: {json}");
    }
}

/// `forerun scan db | head -1` must end silently, however many entries remain.
#[cfg(unix)]
#[test]
fn a_closed_pipe_is_not_an_error() {
    use std::io::Read;
    use std::process::Stdio;
    let workspace = Workspace::new();
    let rows: String = (0..5000)
        .map(|n| format!("{n},{}\n", "v".repeat(200)))
        .collect();
    workspace
        .file("t.csv", format!("id,v\n{rows}"))
        .succeeds(&["load", "db", "t.csv", "--key", "id"]);
    let mut child = workspace
        .command(&["scan", "db"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let mut head = [0; 10];
    child
        .stdout
        .take()
        .expect("asked for")
        .read_exact(&mut head)
        .expect("there is more");
    let output = child.wait_with_output().expect("it can be waited for");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_reported() {
    let workspace = towns();
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("Linux has /dev/full");
    let output = workspace
        .command(&["scan", "db"])
        .stdout(full)
        .output()
        .expect("it can be started");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(
        reported.starts_with("forerun: cannot write to standard output: No space left"),
        "{reported}"
    );
}

#[test]
fn keyspaces_are_separate_and_an_unknown_one_is_reported() {
    let workspace = towns();
    workspace.file("rows.ndjson", "{\"k\":\"a\",\"v\":\"other\"}\n");
    let load = [
        "load",
        "db",
        "rows.ndjson",
        "--key",
        "k",
        "--keyspace",
        "others",
    ];
    workspace.succeeds(&load);
    let of_others = |command: &str, more: &[&str]| {
        let args = [&[command, "db", "--keyspace", "others"], more].concat();
        workspace.succeeds(&args)
    };
    assert_eq!(of_others("get", &["a"]), row("a", "other") + "\n");
    assert_eq!(of_others("scan", &["--keys-only"]), "a\n");
    assert_eq!(
        workspace.succeeds(&["get", "db", "a"]),
        row("a", "1") + "\n"
    );
    assert!(
        workspace
            .succeeds(&["stats", "db"])
            .contains("keyspace   \"others\": 1 entry in memory")
    );
    assert!(
        workspace
            .succeeds(&["check", "db"])
            .contains("keyspaces  [\"others\"]")
    );
    let unknown = workspace.fails(3, &["get", "db", "--keyspace", "nope", "a"]);
    assert_eq!(unknown, "forerun: there is no keyspace \"nope\"");
}
