//! Stores and keyspaces that do not have the default order or options.

use crate::testing;

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use forerun_db::{Bytewise, Comparator, Db, KeyspaceOptions, Options, ReverseBytewise};
use testing::{Workspace, files};

/// An order that only a program has.
struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &str {
        "test.by-length"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        (a.len(), a).cmp(&(b.len(), b))
    }
}

/// A store `db` in the given order, with two runs, a log, and keyspaces of either order.
fn store(workspace: &Workspace, comparator: Arc<dyn Comparator>) {
    let options = Options::default()
        .comparator(comparator)
        .ttl(Duration::from_secs(86_400));
    let db = Db::open(workspace.path("db"), options).expect("the store opens");
    let reverse = KeyspaceOptions::default().comparator(Arc::new(ReverseBytewise));
    let last = db.keyspace_with("last", reverse).expect("it is made");
    let first = db.keyspace("first").expect("it is made");
    for number in 0..300 {
        let (key, value) = (format!("key{number:03}"), "v".repeat(number));
        db.put(&key, &value).expect("it is written");
        last.put(&key, &value).expect("it is written");
        first.put(&key, &value).expect("it is written");
        if number % 100 == 99 && number < 299 {
            db.flush().expect("it is flushed");
        }
    }
    drop((first, last));
    db.close().expect("the store closes");
}

#[test]
fn every_command_takes_the_order_of_the_store() {
    for (comparator, first_key) in [
        (Arc::new(ReverseBytewise) as Arc<dyn Comparator>, "key299"),
        (Arc::new(Bytewise), "key000"),
    ] {
        let workspace = Workspace::new();
        store(&workspace, comparator);
        let run = |args: &[&str]| workspace.succeeds(args);
        let scan = run(&["scan", "db", "--keys-only"]);
        assert_eq!(scan.lines().next(), Some(first_key));
        assert_eq!(scan.lines().count(), 300);
        assert_eq!(run(&["get", "db", "key003"]), "vvv\n");
        for (keyspace, first_key) in [("first", "key000"), ("last", "key299")] {
            let scan = run(&["scan", "db", "--keys-only", "--keyspace", keyspace]);
            assert_eq!(scan.lines().next(), Some(first_key));
        }
        workspace.file("keys", "key001\nkey002\n");
        assert_eq!(
            run(&["multiget", "db", "--keys", "keys"]).lines().count(),
            2
        );
        assert!(run(&["stats", "db"]).contains("300"));
        assert!(run(&["check", "db"]).contains("no damage"));
        assert!(run(&["dump", "db"]).contains("bytewise"));
        let dumped = run(&["dump", "db", "--json"]);
        let dumped: serde_json::Value = serde_json::from_str(&dumped).expect("it is JSON");
        let levels = &dumped["manifest"]["keyspaces"][0]["levels"];
        let number = levels[0][0]["number"].as_u64().expect("there is a run");
        run(&["dump", "db", "--run", &number.to_string(), "--page", "0"]);
        run(&["put", "db", "key000", "new"]);
        run(&["delete", "db", "key001"]);
        workspace.file("more.csv", "id,v\nkey300,x\n");
        run(&["load", "db", "more.csv", "--key", "id"]);
        run(&["compact", "db"]);
        run(&["checkpoint", "db", "copy"]);
        run(&["backup", "db", "backups"]);
        run(&["restore", "backups", "again"]);
        run(&["replay", "db", "keys", "--rounds", "1"]);
        for copy in ["db", "copy", "again"] {
            assert!(run(&["check", copy]).contains("no damage"));
            assert_eq!(run(&["scan", copy]).lines().count(), 300);
        }
    }
}

#[test]
fn a_repair_keeps_the_order_of_the_store() {
    let workspace = Workspace::new();
    store(&workspace, Arc::new(ReverseBytewise));
    let is_run = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "run");
    let run = files(&workspace.path("db")).into_iter().find(is_run);
    let run = run.expect("a store has a run");
    let mut bytes = std::fs::read(&run).expect("it can be read");
    bytes[100] ^= 1;
    std::fs::write(&run, bytes).expect("it can be written");
    let ran = workspace.run(&["check", "db", "--repair", "--json"]);
    assert!(ran.code <= 1, "{ran:?}");
    let object: serde_json::Value = serde_json::from_str(&ran.text()).expect("it is JSON");
    assert!(object["repaired"]["new_runs"].is_u64(), "{object}");
    assert!(workspace.succeeds(&["check", "db"]).contains("no damage"));
    let scan = workspace.succeeds(&["scan", "db", "--keys-only", "--limit", "1"]);
    assert_eq!(scan, "key299\n");
}

#[test]
fn an_order_that_only_a_program_has_is_named() {
    let workspace = Workspace::new();
    store(&workspace, Arc::new(ByLength));
    for command in [&["check", "db"][..], &["get", "db", "k"], &["dump", "db"]] {
        let reported = workspace.fails(3, command);
        assert!(reported.contains("test.by-length"), "{reported}");
        assert_eq!(reported.matches("db").count(), 1, "{reported}");
    }
}

/// Numbers, not texts.
#[test]
fn every_command_that_reports_can_report_json_with_typed_values() {
    let workspace = Workspace::new();
    workspace.store(&[("a", "1"), ("b", "2")]);
    let object = |args: &[&str]| -> serde_json::Value {
        let text = workspace.succeeds(args);
        let line = text.lines().next().expect("there is a line");
        serde_json::from_str(line).expect("it is JSON")
    };
    assert_eq!(
        object(&["put", "db", "c", "3", "d", "4", "--json"])["entries"],
        2
    );
    let deleted = object(&["delete", "db", "a", "b", "--json"]);
    assert_eq!(
        (&deleted["keys"], &deleted["ranges"]),
        (&2.into(), &0.into())
    );
    let deleted = object(&["delete", "db", "--range", "c", "d", "--json"]);
    assert_eq!(
        (&deleted["keys"], &deleted["ranges"]),
        (&0.into(), &1.into())
    );
    assert_eq!(object(&["stats", "db", "--json"])["keys"], 1);
    assert!(object(&["check", "db", "--json"])["log_bytes"].is_u64());
    assert!(object(&["compact", "db", "--json"])["after"]["runs"].is_u64());
    assert!(object(&["checkpoint", "db", "copy", "--json"])["seconds"].is_f64());
    assert_eq!(object(&["backup", "db", "backups", "--json"])["backup"], 1);
    assert!(object(&["backup", "backups", "--list", "--json"])["bytes"].is_u64());
    assert!(object(&["backup", "backups", "--verify", "--json"])["runs"].is_u64());
    let restored = object(&["restore", "backups", "again", "--json"]);
    assert_eq!(
        (&restored["backup"], &restored["path"]),
        (&1.into(), &"again".into())
    );
    assert!(restored["bytes"].is_u64() && restored["seconds"].is_f64());
    assert!(object(&["dump", "db", "--json"])["manifest"]["next_run"].is_u64());
    assert_eq!(object(&["scan", "db", "--json"])["value"], "4");
}
