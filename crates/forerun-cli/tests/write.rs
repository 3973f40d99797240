//! `put` and `delete`: the next command sees what they write, and invalid input is refused before
//! the store changes.

mod common;

use common::Place;

#[test]
fn what_is_put_is_found_and_what_is_deleted_is_not() {
    let place = Place::new();
    place.succeeds(&["put", "db", "a", "1", "b", "2", "c", "3", "--create"]);
    assert_eq!(place.succeeds(&["scan", "db"]), "a\t1\nb\t2\nc\t3\n");
    place.succeeds(&["put", "db", "b", "20", "b", "21"]);
    place.succeeds(&["delete", "db", "a", "nothing"]);
    assert_eq!(place.succeeds(&["scan", "db"]), "b\t21\nc\t3\n");
    place.succeeds(&["delete", "db", "--range", "b", "c"]);
    assert_eq!(place.succeeds(&["scan", "db"]), "c\t3\n");
    place.succeeds(&["put", "db", "d", "4", "e", "5", "x", "1", "--", "y", "-2"]);
    place.succeeds(&["delete", "db", "--range", "a", "d", "--range", "e", "f"]);
    assert_eq!(place.succeeds(&["scan", "db"]), "d\t4\nx\t1\ny\t-2\n");
}

#[test]
fn bytes_come_as_digits_or_from_standard_input() {
    let place = Place::new();
    place.succeeds(&[
        "put",
        "db",
        "--hex",
        "00ff",
        "--hex-values",
        "0a0d",
        "--create",
    ]);
    let bytes: Vec<u8> = (0..=255).collect();
    let ran = place.run_with_input(&["put", "db", "picture", "-"], &bytes);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        place.succeeds(&["get", "db", "--hex", "00ff", "--hex-values"]),
        "0a0d\n"
    );
    let picture = place.run(&["get", "db", "picture"]).stdout;
    assert_eq!(picture.strip_suffix(b"\n"), Some(&bytes[..]));
    place.succeeds(&["delete", "db", "--hex", "00ff"]);
    assert_eq!(place.run(&["get", "db", "--hex", "00ff"]).code, 1);
}

#[test]
fn keyspaces_are_created_only_when_asked_for() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let refused = place.fails(3, &["put", "db", "--keyspace", "towns", "Bern", "1"]);
    assert!(refused.contains("towns"), "{refused}");
    place.succeeds(&["put", "db", "--keyspace", "towns", "--create", "Bern", "1"]);
    assert_eq!(
        place.succeeds(&["get", "db", "--keyspace", "towns", "Bern"]),
        "1\n"
    );
    place.succeeds(&["delete", "db", "--keyspace", "towns", "Bern"]);
    assert_eq!(
        place
            .run(&["get", "db", "--keyspace", "towns", "Bern"])
            .code,
        1
    );
}

#[test]
fn a_wrong_command_line_changes_nothing() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let before = place.succeeds(&["scan", "db"]);
    for args in [
        &["put", "db", "a", "2", "b"][..],
        &["put", "db", "a", "-", "b", "-"],
        &["put", "db", "a"],
        &["put", "db", "--hex", "xy", "1"],
        &["delete", "db"],
        &["delete", "db", "a", "--range", "a", "b"],
        &["delete", "db", "--range", "a"],
    ] {
        assert_eq!(place.run(args).code, 2, "{args:?}");
    }
    for args in [
        &["put", "missing", "a", "1"][..],
        &["delete", "missing", "a"],
        &["delete", "db", "--range", "b", "a"],
    ] {
        assert_eq!(place.run(args).code, 3, "{args:?}");
    }
    assert_eq!(place.succeeds(&["scan", "db"]), before);
    assert!(!place.path("missing").exists());
}

#[test]
fn loads_compactions_and_checkpoints_report_as_json() {
    let place = Place::new();
    place.file(
        "t.ndjson",
        "{\"k\":\"a\"}\n{\"k\":\"b\"}\n{\"k\":\"a\"}\nbad\n",
    );
    let object = |ran: common::Ran| -> serde_json::Value {
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
    let loaded = object(place.run(&load));
    assert_eq!(loaded["rows"], 3);
    assert_eq!(loaded["new_keys"], 2);
    assert_eq!(loaded["replaced"], 1);
    assert_eq!(loaded["skipped"], 1);
    let compacted = object(place.run(&["compact", "db", "--json"]));
    assert_eq!(compacted["after"]["runs"], 1);
    assert!(
        compacted["after"]["bytes"].as_u64() > Some(0),
        "{compacted}"
    );
    let copied = object(place.run(&["checkpoint", "db", "copy", "--json"]));
    assert_eq!(copied["path"], "copy");
    assert_eq!(place.run(&["get", "copy", "a"]).code, 0);
}
