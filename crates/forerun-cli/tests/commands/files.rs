//! `check`, `compact`, `checkpoint`, `backup` and `dump`: contents, damage and copies of a store's
//! files.

use crate::testing;

use std::path::PathBuf;
use testing::{Workspace, files};

const ROWS: usize = 2000;

/// A store whose entries are in runs of one level, and the output of a scan.
fn in_runs() -> (Workspace, String) {
    let workspace = Workspace::new();
    let row = |n: usize| {
        format!(
            "key{n:05},{}\n",
            format!("{:x}", n * 2_654_435_761).repeat(9)
        )
    };
    let rows: String = (0..ROWS).map(row).collect();
    workspace
        .file("t.csv", format!("id,v\n{rows}"))
        .succeeds(&["load", "db", "t.csv", "--key", "id"]);
    let reported = workspace.succeeds(&["compact", "db"]);
    assert!(reported.contains("after      1 run, "), "{reported}");
    let scan = workspace.succeeds(&["scan", "db"]);
    assert_eq!(scan.lines().count(), ROWS);
    (workspace, scan)
}

fn run_file(workspace: &Workspace) -> PathBuf {
    let is_run = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "run");
    let mut runs = files(&workspace.path("db")).into_iter().filter(is_run);
    let run = runs.next().expect("there is a run");
    assert_eq!(runs.next(), None);
    run
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("it is JSON")
}

#[test]
fn a_sound_store_is_reported_sound_and_left_unchanged() {
    let (workspace, scan) = in_runs();
    let reported = workspace.succeeds(&["check", "db"]);
    assert!(
        reported.contains("runs       1, 2,000 versions in "),
        "{reported}"
    );
    assert!(reported.contains("found      no damage"), "{reported}");
    assert_eq!(workspace.succeeds(&["check", "db", "--repair"]), reported);
    let object = json(&workspace.succeeds(&["check", "db", "--json"]));
    assert_eq!(object["versions"], ROWS);
    assert_eq!(object["problems"], serde_json::json!([]));
    assert_eq!(workspace.succeeds(&["scan", "db"]), scan);
    assert!(
        workspace
            .fails(3, &["check", "nowhere"])
            .contains("nowhere is not a Forerun store")
    );
}

#[test]
fn repairing_a_damaged_page_loses_only_that_page() {
    let (workspace, scan) = in_runs();
    let run = run_file(&workspace);
    let mut bytes = std::fs::read(&run).expect("it can be read");
    bytes[20_000] ^= 1;
    std::fs::write(&run, bytes).expect("it can be written");

    let ran = workspace.run(&["check", "db"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    let name = run
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    assert!(
        ran.stderr
            .contains(&format!("{name} is corrupt at offset ")),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("db is damaged: 1 problem"), "{ran:?}");
    workspace.fails(3, &["scan", "db"]);

    let ran = workspace.run(&["check", "db", "--repair"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let reported = ran.text();
    assert!(
        reported.contains("repaired   0 runs kept, 1 rewritten"),
        "{reported}"
    );
    assert!(
        reported.contains("lost       ") && reported.contains(&format!("{name}.bad")),
        "{reported}"
    );

    let kept = workspace.succeeds(&["scan", "db"]);
    let lost = scan.lines().filter(|line| !kept.contains(line)).count();
    assert!((1..ROWS / 2).contains(&lost), "{lost} rows are lost");
    assert!(
        kept.lines().all(|line| scan.contains(line)),
        "nothing is made up"
    );
    assert!(workspace.succeeds(&["check", "db"]).contains("no damage"));
}

#[test]
fn a_lost_manifest_and_a_damaged_log_are_repaired() {
    let (workspace, scan) = in_runs();
    std::fs::remove_file(workspace.path("db/MANIFEST")).expect("it is there");
    let reported = workspace.fails(3, &["scan", "db"]);
    assert!(
        reported.contains("MANIFEST is corrupt") && reported.contains("repair"),
        "{reported}"
    );
    let ran = workspace.run(&["check", "db", "--repair"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.text()
            .contains("repaired   the manifest, from the runs"),
        "{ran:?}"
    );
    assert_eq!(workspace.succeeds(&["scan", "db"]), scan);

    workspace
        .file("more.csv", "id,v\nmore1,x\n")
        .succeeds(&["load", "db", "more.csv", "--key", "id"]);
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let log = files(&workspace.path("db"))
        .into_iter()
        .rfind(is_log)
        .expect("a store has a log");
    let mut bytes = std::fs::read(&log).expect("it can be read");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&log, bytes).expect("it can be written");
    let ran = workspace.run(&["check", "db"]);
    assert!(
        ran.code == 4 && ran.stderr.contains(".log is corrupt at offset "),
        "{ran:?}"
    );
    let ran = workspace.run(&["check", "db", "--repair"]);
    assert!(
        ran.code == 1 && ran.text().contains("lost       "),
        "{ran:?}"
    );
    assert_eq!(workspace.succeeds(&["scan", "db"]), scan);
    assert!(workspace.succeeds(&["check", "db"]).contains("no damage"));
}

#[test]
fn compaction_gives_back_the_space_of_what_was_overwritten() {
    let (workspace, scan) = in_runs();
    let length = || {
        std::fs::metadata(run_file(&workspace))
            .expect("it is there")
            .len()
    };
    let before = length();
    workspace.succeeds(&["load", "db", "t.csv", "--key", "id"]);
    workspace.succeeds(&["compact", "db"]);
    // Sequence numbers differ, so the pages are not byte for byte the same size.
    assert!(
        length().abs_diff(before) < before / 50,
        "{} and {before} bytes",
        length()
    );
    assert_eq!(workspace.succeeds(&["scan", "db"]), scan);
}

#[test]
fn a_checkpoint_is_a_store_that_stays_as_it_was() {
    let (workspace, scan) = in_runs();
    workspace
        .file("more.csv", "id,v\nmore1,x\n")
        .succeeds(&["load", "db", "more.csv", "--key", "id"]);
    let with_more = workspace.succeeds(&["scan", "db"]);
    assert!(with_more.starts_with(&scan));
    assert!(
        workspace
            .succeeds(&["checkpoint", "db", "copy", "--rate", "1GiB"])
            .contains("created the store copy")
    );
    workspace.file("t.csv", "id,v\nkey00000,changed\n");
    workspace.succeeds(&["load", "db", "t.csv", "--key", "id"]);
    workspace.succeeds(&["compact", "db"]);
    assert_eq!(workspace.succeeds(&["scan", "copy"]), with_more);
    assert!(workspace.succeeds(&["check", "copy"]).contains("no damage"));
    assert!(
        workspace
            .fails(3, &["checkpoint", "db", "copy"])
            .contains("copy already holds")
    );
}

#[test]
fn backups_are_made_shown_checked_removed_and_restored() {
    let (workspace, scan) = in_runs();
    assert!(
        workspace
            .fails(3, &["backup", "nothing", "backups"])
            .contains("nothing is not a Forerun store")
    );
    assert!(!workspace.path("backups").exists());
    let reported = workspace.succeeds(&["backup", "db", "backups", "--rate", "50MiB"]);
    assert!(reported.starts_with("created backup 1: "), "{reported}");
    workspace
        .file("more.csv", "id,v\nmore1,x\n")
        .succeeds(&["load", "db", "more.csv", "--key", "id"]);
    let with_more = workspace.succeeds(&["scan", "db"]);
    let object = json(&workspace.succeeds(&["backup", "db", "backups", "--json"]));
    assert_eq!(object["backup"], 2);
    assert!(
        object["own_bytes"].as_u64() < Some(5000) && object["bytes"].as_u64() > Some(50_000),
        "{object}"
    );
    let reported = workspace.succeeds(&["backup", "backups", "--list"]);
    assert_eq!(reported.lines().count(), 3, "{reported}");
    let reported = workspace.succeeds(&["backup", "backups", "--verify"]);
    assert!(reported.contains("found      no damage"), "{reported}");

    let reported = workspace.succeeds(&["restore", "backups", "first", "--backup", "1"]);
    assert!(
        reported.starts_with("first was restored from backup 1 of 20"),
        "{reported}"
    );
    assert_eq!(workspace.succeeds(&["scan", "first"]), scan);
    workspace.succeeds(&["restore", "backups", "newest"]);
    assert_eq!(workspace.succeeds(&["scan", "newest"]), with_more);
    assert!(
        workspace
            .fails(3, &["restore", "backups", "newest"])
            .contains("newest already holds")
    );
    assert!(
        workspace
            .fails(3, &["restore", "backups", "none", "--backup", "9"])
            .contains("backups holds no backup 9")
    );
    assert!(
        workspace
            .fails(3, &["restore", "db", "none"])
            .contains("db is not a directory of backups")
    );

    let reported = workspace.succeeds(&["backup", "db", "backups", "--keep", "1"]);
    assert!(
        reported.contains("created backup 3: ") && reported.contains("removed 2 backups"),
        "{reported}"
    );
    let reported = workspace.succeeds(&["backup", "backups", "--list", "--json"]);
    assert_eq!(json(&reported)["backup"], 3);

    let is_run = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "run");
    let run = files(&workspace.path("backups")).into_iter().find(is_run);
    let run = run.expect("it has runs");
    let mut bytes = std::fs::read(&run).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&run, bytes).expect("it can be written");
    let ran = workspace.run(&["backup", "backups", "--verify"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("needed by backup 3"), "{ran:?}");
    assert!(
        ran.stderr
            .contains("backups in backups are damaged: 1 problem"),
        "{ran:?}"
    );
    assert_eq!(workspace.run(&["restore", "backups", "none"]).code, 3);
    assert!(!workspace.path("none/FORMAT").exists());
}

#[test]
fn the_files_are_shown_down_to_the_page() {
    let (workspace, _) = in_runs();
    let reported = workspace.succeeds(&["dump", "db"]);
    assert!(reported.contains("  level 6      1 run, "), "{reported}");
    assert!(
        reported.contains("2000 versions") && reported.contains("\"key00000\" .. \"key01999\""),
        "{reported}"
    );
    let name = run_file(&workspace);
    let digits = name
        .file_stem()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let number = digits.trim_start_matches("run-").trim_start_matches('0');
    let reported = workspace.succeeds(&["dump", "db", "--run", number]);
    assert!(
        reported.contains("versions       2000, 0 of them deletions"),
        "{reported}"
    );
    let reported =
        workspace.succeeds(&["dump", "db", "--run", number, "--page", "0", "--rows", "3"]);
    assert!(
        reported.contains(": leaf of ")
            && reported.contains("key00002")
            && !reported.contains("key00003"),
        "{reported}"
    );
    let json = |arguments: &[&str]| -> serde_json::Value {
        let arguments = [&["dump", "db", "--json"], arguments].concat();
        serde_json::from_str(&workspace.succeeds(&arguments)).unwrap()
    };
    let manifest = &json(&[])["manifest"];
    let run = &manifest["keyspaces"][0]["levels"][6][0];
    assert_eq!(run["number"].to_string(), number);
    assert_eq!(
        (&run["entries"], &run["largest_key"]),
        (&2000.into(), &"key01999".into())
    );
    assert_eq!(json(&["--run", number])["run"]["deletions"], 0);
    let page = &json(&["--run", number, "--page", "0", "--rows", "3"])["page"];
    assert_eq!(
        (&page["kind"], page["rows"].as_array().unwrap().len()),
        (&"leaf".into(), 3)
    );
    assert_eq!(page["rows"][2]["key"], "key00002");
    let above = json(&["--run", number])["run"]["leaf_pages"].to_string();
    let root = &json(&["--run", number, "--page", &above])["page"];
    assert_eq!(
        (&root["kind"], &root["rows"][0]["key"]),
        (&"internal".into(), &serde_json::Value::Null)
    );
    assert!(root["rows"][0]["page"]["stored_bytes"].as_u64().unwrap() > 0);
    // A run or a page that does not exist is the user's mistake, not damage.
    let no_page = workspace.fails(3, &["dump", "db", "--run", number, "--page", "9999"]);
    assert!(
        no_page.contains("option `page` is invalid: run ") && !no_page.contains("corrupt"),
        "{no_page}"
    );
    let no_run = workspace.fails(3, &["dump", "db", "--run", "77777"]);
    assert!(no_run.contains("there is no db/run-077777.run"), "{no_run}");
    let rows_of_no_page = workspace.run(&["dump", "db", "--run", number, "--rows", "3"]);
    assert_eq!(rows_of_no_page.code, 2, "{rows_of_no_page:?}");
}
