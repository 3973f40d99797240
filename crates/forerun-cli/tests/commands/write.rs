//! `put` and `delete`: the next command sees what they write, and invalid input is refused before
//! the store changes.

use crate::testing;

use testing::Workspace;

#[test]
fn put_keys_are_found_and_deleted_ones_are_not() {
    let workspace = Workspace::new();
    workspace.succeeds(&["put", "db", "a", "1", "b", "2", "c", "3", "--create"]);
    assert_eq!(workspace.succeeds(&["scan", "db"]), "a\t1\nb\t2\nc\t3\n");
    workspace.succeeds(&["put", "db", "b", "20", "b", "21"]);
    workspace.succeeds(&["delete", "db", "a", "nothing"]);
    assert_eq!(workspace.succeeds(&["scan", "db"]), "b\t21\nc\t3\n");
    workspace.succeeds(&["delete", "db", "--range", "b", "c"]);
    assert_eq!(workspace.succeeds(&["scan", "db"]), "c\t3\n");
    workspace.succeeds(&["put", "db", "d", "4", "e", "5", "x", "1", "--", "y", "-2"]);
    workspace.succeeds(&["delete", "db", "--range", "a", "d", "--range", "e", "f"]);
    assert_eq!(workspace.succeeds(&["scan", "db"]), "d\t4\nx\t1\ny\t-2\n");
}

#[test]
fn bytes_come_as_digits_or_from_standard_input() {
    let workspace = Workspace::new();
    workspace.succeeds(&[
        "put",
        "db",
        "--hex",
        "00ff",
        "--hex-values",
        "0a0d",
        "--create",
    ]);
    let bytes: Vec<u8> = (0..=255).collect();
    let ran = workspace.run_with_input(&["put", "db", "picture", "-"], &bytes);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        workspace.succeeds(&["get", "db", "--hex", "00ff", "--hex-values"]),
        "0a0d\n"
    );
    let picture = workspace.run(&["get", "db", "picture"]).stdout;
    assert_eq!(picture.strip_suffix(b"\n"), Some(&bytes[..]));
    workspace.succeeds(&["delete", "db", "--hex", "00ff"]);
    assert_eq!(workspace.run(&["get", "db", "--hex", "00ff"]).code, 1);
}

#[test]
fn keyspaces_are_created_only_when_asked_for() {
    let workspace = Workspace::new();
    workspace.store(&[("a", "1")]);
    let refused = workspace.fails(3, &["put", "db", "--keyspace", "towns", "Bern", "1"]);
    assert_eq!(
        refused,
        "forerun: there is no keyspace \"towns\"; --create creates it"
    );
    let refused = workspace.fails(3, &["put", "missing", "a", "1"]);
    assert!(
        refused.ends_with("there is no such directory; --create creates it"),
        "{refused}"
    );
    workspace.succeeds(&["put", "db", "--keyspace", "towns", "--create", "Bern", "1"]);
    assert_eq!(
        workspace.succeeds(&["get", "db", "--keyspace", "towns", "Bern"]),
        "1\n"
    );
    workspace.succeeds(&["delete", "db", "--keyspace", "towns", "Bern"]);
    assert_eq!(
        workspace
            .run(&["get", "db", "--keyspace", "towns", "Bern"])
            .code,
        1
    );
}

#[test]
fn a_wrong_command_line_changes_nothing() {
    let workspace = Workspace::new();
    workspace.store(&[("a", "1")]);
    let before = workspace.succeeds(&["scan", "db"]);
    for args in [
        &["put", "db", "a", "2", "b"][..],
        &["put", "db", "a", "-", "b", "-"],
        &["put", "db", "a"],
        &["put", "db", "--hex", "xy", "1"],
        &["delete", "db"],
        &["delete", "db", "a", "--range", "a", "b"],
        &["delete", "db", "--range", "a"],
    ] {
        assert_eq!(workspace.run(args).code, 2, "{args:?}");
    }
    for args in [
        &["put", "missing", "a", "1"][..],
        &["delete", "missing", "a"],
        &["delete", "db", "--range", "b", "a"],
    ] {
        assert_eq!(workspace.run(args).code, 3, "{args:?}");
    }
    assert_eq!(workspace.succeeds(&["scan", "db"]), before);
    assert!(!workspace.path("missing").exists());
}

#[test]
fn loads_compactions_and_checkpoints_report_as_json() {
    let workspace = Workspace::new();
    workspace.file(
        "t.ndjson",
        "{\"k\":\"a\"}\n{\"k\":\"b\"}\n{\"k\":\"a\"}\nbad\n",
    );
    let object = |ran: testing::Ran| -> serde_json::Value {
        serde_json::from_str(&ran.text()).expect("one JSON object")
    };
    let load = [
        "load",
        "db",
        "t.ndjson",
        "--key",
        "k",
        "--skip-bad",
        "--json",
    ];
    let loaded = object(workspace.run(&load));
    assert_eq!(loaded["rows"], 3);
    assert_eq!(loaded["new_keys"], 2);
    assert_eq!(loaded["replaced"], 1);
    assert_eq!(loaded["skipped"], 1);
    let compacted = object(workspace.run(&["compact", "db", "--json"]));
    assert_eq!(compacted["after"]["runs"], 1);
    assert!(
        compacted["after"]["bytes"].as_u64() > Some(0),
        "{compacted}"
    );
    let copied = object(workspace.run(&["checkpoint", "db", "copy", "--json"]));
    assert_eq!(copied["path"], "copy");
    assert_eq!(workspace.run(&["get", "copy", "a"]).code, 0);
}
