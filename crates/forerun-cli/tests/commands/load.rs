//! `forerun load`: tables become entries, bad rows are reported, and good rows stay.

use crate::testing;

use testing::{Workspace, gzip};

#[test]
fn a_csv_row_is_stored_as_json_under_its_key() {
    let workspace = Workspace::new();
    workspace.file(
        "towns.csv",
        "id,name,country\n7,\"Biel, BE\",CH\n8,Köln,DE\n",
    );
    let reported = workspace.succeeds(&[
        "load",
        "db",
        "towns.csv",
        "--key",
        "country",
        "--key",
        "id",
        "--separator",
        ":",
    ]);
    assert!(
        reported.contains("loaded 2 rows") && reported.contains("2 new keys, 0 replaced"),
        "{reported}"
    );
    let found = workspace.succeeds(&["get", "db", "CH:7"]);
    assert_eq!(
        found,
        "{\"id\":\"7\",\"name\":\"Biel, BE\",\"country\":\"CH\"}\n"
    );
    assert_eq!(
        workspace.succeeds(&["scan", "db", "--prefix", "D"]),
        "DE:8\t{\"id\":\"8\",\"name\":\"Köln\",\"country\":\"DE\"}\n"
    );
}

#[test]
fn tsv_and_ndjson_load_from_compressed_files_and_pipes() {
    let workspace = Workspace::new();
    let rows: String = (0..3000).map(|n| format!("{n}\tvalue {n}\n")).collect();
    workspace.file("t.tsv.gz", gzip(format!("id\ttext\n{rows}").as_bytes()));
    let reported = workspace.succeeds(&["load", "db", "t.tsv.gz", "--key", "id"]);
    assert!(reported.contains("loaded 3,000 rows"), "{reported}");
    assert_eq!(
        workspace.succeeds(&["get", "db", "2999"]),
        "{\"id\":\"2999\",\"text\":\"value 2999\"}\n"
    );

    let line = r#"{"id": 5,  "more": [1, 2]}"#;
    let ran = workspace.run_with_input(
        &["load", "db", "-", "--format", "ndjson", "--key", "id"],
        format!("{line}\n").as_bytes(),
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.text().contains("0 new keys, 1 replaced"), "{ran:?}");
    assert_eq!(workspace.succeeds(&["get", "db", "5"]), format!("{line}\n"));
    assert_eq!(
        workspace
            .succeeds(&["scan", "db", "--keys-only"])
            .lines()
            .count(),
        3000
    );
}

#[test]
fn a_semicolon_or_a_tab_may_delimit_the_fields_of_csv() {
    let workspace = Workspace::new();
    workspace.file("a.csv", "id;name\n1;\"a;b\"\n");
    workspace.file("b.csv", "id\tname\n2\t\"c\td\"\n");
    let complaint = workspace.fails(3, &["load", "db", "a.csv", "--key", "id"]);
    assert!(complaint.contains("--delimiter ';'"), "{complaint}");
    workspace.succeeds(&["load", "db", "a.csv", "--key", "id", "--delimiter", ";"]);
    workspace.succeeds(&["load", "db", "b.csv", "--key", "id", "--delimiter", "tab"]);
    assert_eq!(
        workspace.succeeds(&["get", "db", "1"]),
        "{\"id\":\"1\",\"name\":\"a;b\"}\n"
    );
    assert_eq!(
        workspace.succeeds(&["get", "db", "2"]),
        "{\"id\":\"2\",\"name\":\"c\\td\"}\n"
    );
    workspace.file("c.ndjson", "{\"id\":\"1\"}\n");
    let complaint = workspace.fails(
        2,
        &["load", "db", "c.ndjson", "--key", "id", "--delimiter", ";"],
    );
    assert!(complaint.contains("--format csv"), "{complaint}");
}

#[test]
fn rows_of_one_key_are_counted_as_replaced() {
    let workspace = Workspace::new();
    workspace.file("a.csv", "id,v\n1,a\n2,b\n1,c\n1,d\n");
    let reported = workspace.succeeds(&["load", "db", "a.csv", "--key", "id"]);
    assert!(reported.contains("2 new keys, 2 replaced"), "{reported}");
    assert!(
        workspace
            .succeeds(&["get", "db", "1"])
            .contains("\"v\":\"d\""),
        "the last row counts"
    );
}

#[test]
fn the_first_bad_row_is_named_and_the_rows_before_it_stay() {
    let workspace = Workspace::new();
    workspace.file("bad.csv", "id,name\r\n1,a\r\n2,b\r\n3\r\n4,d\r\n");
    let reported = workspace.fails(3, &["load", "db", "bad.csv", "--key", "id"]);
    assert_eq!(
        reported,
        "forerun: stopped after 2 rows: bad.csv: row 3 (line 4): it has 1 field, but the header \
         has 2"
    );
    assert_eq!(workspace.succeeds(&["scan", "db", "--keys-only"]), "1\n2\n");

    workspace.file("bad.ndjson", "{\"id\":\"x\"}\n{\"id\":\n");
    let reported = workspace.fails(3, &["load", "db", "bad.ndjson", "--key", "id"]);
    assert!(
        reported.contains("bad.ndjson: row 2 (line 2): it is not JSON"),
        "{reported}"
    );
    assert_eq!(
        workspace.succeeds(&["scan", "db", "--keys-only"]),
        "1\n2\nx\n"
    );
}

#[test]
fn bad_rows_are_skipped_and_counted_when_asked() {
    let workspace = Workspace::new();
    let rows: String = (0..40)
        .map(|n| {
            if n % 4 == 0 {
                "half\n".to_owned()
            } else {
                format!("{n},v\n")
            }
        })
        .collect();
    workspace.file("bad.csv", format!("id,name\n{rows}"));
    let ran = workspace.run(&["load", "db", "bad.csv", "--key", "id", "--skip-bad"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.text().contains("loaded 30 rows"), "{ran:?}");
    assert!(
        ran.stderr.contains("skipped: bad.csv: row 1 (line 2)"),
        "{ran:?}"
    );
    assert!(
        ran.stderr.ends_with("forerun: skipped 10 bad rows\n"),
        "{ran:?}"
    );
    assert!(
        ran.stderr.lines().count() < 10,
        "not each of many is named: {ran:?}"
    );
    assert_eq!(
        workspace
            .succeeds(&["scan", "db", "--keys-only"])
            .lines()
            .count(),
        30
    );
}

#[test]
fn a_table_that_ends_in_a_quoted_field_fails_even_if_bad_rows_are_skipped() {
    let workspace = Workspace::new();
    let rest: String = (3..1000).map(|n| format!("{n},row {n}\n")).collect();
    workspace
        .file("lost.csv", format!("id,name\n1,a\n2,\"b\n{rest}"))
        .file("cut.csv", format!("id,name\n1,a\n{rest}1000,\"unfinis"));
    for (file, rows, place) in [
        ("lost.csv", "1 row", "byte 14: row 2 (line 3)"),
        ("cut.csv", "998 rows", "row 999 (line 1000)"),
    ] {
        for more in [&[][..], &["--skip-bad"]] {
            let command = [&["load", "db", file, "--key", "id"], more].concat();
            let reported = workspace.fails(3, &command);
            assert!(
                reported.contains(&format!("stopped after {rows}")),
                "{reported}"
            );
            assert!(reported.contains(place), "{reported}");
        }
    }
}

#[test]
fn a_key_over_the_limit_is_a_bad_row() {
    let workspace = Workspace::new();
    let long = "k".repeat(65_537);
    workspace.file(
        "long.csv",
        format!("id,v\n{},fits\n{long},does not\nlast,v\n", &long[..65_536]),
    );
    let reported = workspace.fails(3, &["load", "db", "long.csv", "--key", "id"]);
    assert!(
        reported.contains("long.csv: row 2 (line 3)") && reported.contains("65537 bytes"),
        "{reported}"
    );
    let ran = workspace.run(&["load", "db", "long.csv", "--key", "id", "--skip-bad"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let keys = workspace.succeeds(&["scan", "db", "--keys-only"]);
    assert_eq!(keys.lines().map(str::len).collect::<Vec<_>>(), [65_536, 4]);
}

#[test]
fn an_input_that_cannot_be_read_makes_no_store() {
    let workspace = Workspace::new();
    workspace
        .file("empty.csv", "")
        .file("a.csv", "a,b\n1,2\n")
        .file("cut.csv.gz", &gzip(&[b'x'; 5000])[..20]);
    let reported = workspace.fails(3, &["load", "db", "missing.csv", "--key", "id"]);
    assert!(
        reported.contains("cannot open missing.csv: No such file"),
        "{reported}"
    );
    let reported = workspace.fails(3, &["load", "db", ".", "--format", "csv", "--key", "id"]);
    assert!(
        reported.contains("cannot open .") && reported.contains("directory"),
        "{reported}"
    );
    assert!(
        workspace
            .fails(3, &["load", "db", "empty.csv", "--key", "id"])
            .contains("the input is empty")
    );
    let reported = workspace.fails(3, &["load", "db", "a.csv", "--key", "id"]);
    assert!(
        reported.contains("no column is named \"id\"; the header has a, b"),
        "{reported}"
    );
    let reported = workspace.fails(3, &["load", "db", "cut.csv.gz", "--key", "id"]);
    assert!(
        reported.contains("cannot read cut.csv.gz after byte 0 of the uncompressed data"),
        "{reported}"
    );
    assert!(!workspace.path("db").exists());
}

#[test]
fn loading_twice_gives_the_same_store() {
    let workspace = Workspace::new();
    let rows: String = (0..2000)
        .map(|n| format!("{},{n}\n", n * 7919 % 2000))
        .collect();
    workspace.file("t.csv", format!("id,n\n{rows}"));
    workspace.succeeds(&[
        "load",
        "db",
        "t.csv",
        "--key",
        "id",
        "--durability",
        "synced",
    ]);
    let first = workspace.succeeds(&["scan", "db"]);
    let reported = workspace.succeeds(&["load", "db", "t.csv", "--key", "id"]);
    assert!(
        reported.contains("0 new keys, 2,000 replaced"),
        "{reported}"
    );
    assert_eq!(workspace.succeeds(&["scan", "db"]), first);
    assert_eq!(first.lines().count(), 2000);
}

#[test]
fn a_batch_over_the_memory_limit_is_a_worded_error() {
    let workspace = Workspace::new();
    let rows: String = (0..600)
        .map(|n| format!("{n},{}\n", "v".repeat(1000)))
        .collect();
    // The second batch has one row that does not fit in any memtable within the limit.
    let large = "v".repeat(3 << 20);
    workspace.file("t.csv", format!("id,v\n{rows}600,{large}\n"));
    let reported = workspace.fails(
        3,
        &[
            "load",
            "db",
            "t.csv",
            "--key",
            "id",
            "--memory-limit",
            "2MiB",
        ],
    );
    assert!(
        reported.contains("cannot write rows") && reported.contains("limit"),
        "{reported}"
    );
    // All rows before it are in the store.
    let kept = workspace
        .succeeds(&["scan", "db", "--keys-only"])
        .lines()
        .count();
    let counted = reported
        .split(' ')
        .nth(3)
        .and_then(|rows| rows.replace(',', "").parse().ok());
    assert!(kept > 0 && Some(kept) == counted, "{kept}: {reported}");
}

#[test]
fn rows_whose_keys_ascend_go_past_the_log_until_one_does_not() {
    let workspace = Workspace::new();
    let row = |n: u32, text: &str| format!("{n:06},{text}\n");
    let mut rows: String = (0..20_000).map(|n| row(n, "first")).collect();
    workspace.file("sorted.csv", format!("id,v\n{rows}"));
    rows.extend((0..3).map(|n| row(19_999 - n, "second")));
    rows.extend((20_000..20_600).map(|n| row(n, "third")));
    workspace.file("nearly.csv", format!("id,v\n{rows}"));

    let log_bytes = |store: &str| -> u64 {
        let files = std::fs::read_dir(workspace.path(store))
            .unwrap()
            .map(Result::unwrap);
        let logs = files.filter(|file| file.file_name().to_str().unwrap().ends_with(".log"));
        logs.map(|file| file.metadata().unwrap().len()).sum()
    };
    let reported = workspace.succeeds(&["load", "sorted", "sorted.csv", "--key", "id"]);
    assert!(
        reported.contains("20,000 new keys, 0 replaced"),
        "{reported}"
    );
    workspace.succeeds(&[
        "load",
        "synced",
        "sorted.csv",
        "--key",
        "id",
        "--durability",
        "synced",
    ]);
    let (ingested, put) = (log_bytes("sorted"), log_bytes("synced"));
    assert!(
        ingested < put / 2,
        "{ingested} bytes of log, and {put} where all are put"
    );

    for store in ["sorted", "nearly"] {
        let reported = workspace.succeeds(&["load", store, "nearly.csv", "--key", "id"]);
        let replaced = if store == "sorted" {
            "600 new keys, 20,003"
        } else {
            "20,600 new keys, 3"
        };
        assert!(reported.contains(replaced), "{reported}");
        let lines = workspace.succeeds(&["scan", store]);
        assert_eq!(lines.lines().count(), 20_600);
        for (n, line) in lines.lines().enumerate() {
            let text = match n {
                0..19_997 => "first",
                19_997..20_000 => "second",
                _ => "third",
            };
            assert_eq!(
                line,
                format!("{n:06}\t{{\"id\":\"{n:06}\",\"v\":\"{text}\"}}")
            );
        }
        workspace.succeeds(&["check", store]);
    }
}

#[test]
fn a_load_compresses_as_it_is_told_and_the_statistics_tell_it() {
    let workspace = Workspace::new();
    let rows: String = (0..5000).map(|n| format!("{n},value {n}\n")).collect();
    workspace.file("t.csv", format!("id,text\n{rows}"));
    let with = [
        "--compression",
        "none",
        "--bottommost-compression",
        "zstd:6:4KiB",
    ];
    let load = ["load", "db", "t.csv", "--key", "id"];
    workspace.succeeds(&[&load[..], &with].concat());
    workspace.succeeds(&[&["compact", "db"][..], &with].concat());
    let stats = workspace.succeeds(&["stats", "db"]);
    assert!(stats.contains("uncompressed; 1 with zstd)"), "{stats}");
    let json = workspace.succeeds(&["stats", "db", "--json"]);
    let stats: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(stats["levels"][6]["zstd_runs"], 1, "{json}");
    let refused = workspace.run(&["compact", "db", "--compression", "zstd:40"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(
        refused.stderr.contains("zstd has no level 40"),
        "{refused:?}"
    );
}
