//! `forerun replay`: the reads of a trace are answered, and an error in a trace is reported with
//! its byte.

use crate::testing;

use testing::{Workspace, gzip};

fn numbers(count: u32) -> Vec<u8> {
    (0..count)
        .flat_map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24).to_be_bytes())
        .collect()
}

#[test]
fn a_filled_store_answers_every_read() {
    let workspace = Workspace::new();
    workspace.file("t.trace.gz", gzip(&numbers(5000)));
    let reported = workspace.succeeds(&[
        "replay",
        "db",
        "t.trace.gz",
        "--format",
        "u32be",
        "--fill",
        "--value-bytes",
        "40",
        "--batch",
        "8,64",
        "--rounds",
        "2",
    ]);
    assert!(
        reported.starts_with(
            "5,000 reads of 256 distinct keys, 100.0% found; the median of 2 rounds\n"
        ),
        "{reported}"
    );
    // Two header lines, then `get` and `multiget` for each of two batch sizes.
    assert_eq!(reported.lines().count(), 2 + 4, "{reported}");
    assert_eq!(
        workspace
            .succeeds(&["scan", "db", "--keys-only", "--hex"])
            .lines()
            .next(),
        Some("00000000")
    );
    assert_eq!(
        workspace
            .succeeds(&["get", "db", "--hex", "000000ff", "--hex-values"])
            .trim()
            .len(),
        80
    );
}

#[test]
fn json_has_one_object_a_figure() {
    let workspace = Workspace::new();
    let list: String = (0..1000).map(|n| format!("key{}\n", n % 50)).collect();
    workspace
        .file("keys.txt", &list)
        .store(&[("key1", "x"), ("key2", "x")]);
    let reported = workspace.succeeds(&[
        "replay", "db", "keys.txt", "--rounds", "1", "--json", "--batch", "16",
    ]);
    let lines: Vec<serde_json::Value> = reported
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    assert_eq!(lines.len(), 2);
    for (line, strategy) in lines.iter().zip(["get", "multiget"]) {
        assert_eq!(line["bench"], "replay");
        assert_eq!(line["case"], "keys.txt");
        assert_eq!(line["strategy"], strategy);
        assert_eq!(
            (line["key_bytes"].as_u64(), line["keys"].as_u64()),
            (Some(4), Some(50))
        );
        assert_eq!(
            (line["batch"].as_u64(), line["threads"].as_u64()),
            (Some(16), Some(1))
        );
        assert_eq!(line["hit_rate"], 0.04);
        assert!(
            line["keys_per_second"]
                .as_f64()
                .is_some_and(|rate| rate > 0.0)
        );
        assert!(line["ns_per_key"].as_f64().is_some_and(|ns| ns > 0.0));
        assert!(
            line["speedup_vs_single"]
                .as_f64()
                .is_some_and(|ratio| ratio > 0.0)
        );
    }
    assert_eq!(lines[0]["speedup_vs_single"], 1.0);
}

#[test]
fn an_invalid_trace_is_reported_with_its_byte_offset() {
    let workspace = Workspace::new();
    let whole = numbers(5000);
    let compressed = gzip(&whole);
    let mut damaged = compressed.clone();
    damaged[compressed.len() / 2] ^= 0x10;
    workspace
        .file("short", &whole[..4003])
        .file("cut.gz", &compressed[..compressed.len() / 2])
        .file("damaged.gz", damaged)
        .file("empty", b"")
        .file("binary", [b"text\n".as_slice(), &[0, 1, 2]].concat())
        .file("renamed.xz", &whole)
        .file("badxz", b"\xfd7zXZ\0 this is no xz");
    let reported =
        |args: &[&str]| workspace.fails(3, &[&["replay", "db"], args, &["--fill"]].concat());
    assert_eq!(
        reported(&["short", "--format", "u32be"]),
        "forerun: short: byte 4000: the trace ends within a key, after 3 of 4 bytes"
    );
    assert!(reported(&["cut.gz", "--format", "u32be"]).contains("cannot read cut.gz after byte "));
    assert!(
        reported(&["damaged.gz", "--format", "u32be"])
            .contains("cannot read damaged.gz after byte ")
    );
    assert!(
        reported(&["empty", "--format", "u64be"])
            .contains("empty: byte 0: the trace contains no key")
    );
    assert!(reported(&["binary"]).contains("binary: byte 5: a NUL byte"));
    assert!(
        reported(&["badxz"]).contains("cannot read badxz after byte 0 of the uncompressed data")
    );
    let renamed = reported(&["renamed.xz", "--format", "u32be"]);
    assert!(
        renamed.contains("renamed.xz: byte 0: its name says that it is compressed"),
        "{renamed}"
    );
    assert!(reported(&["nowhere"]).contains("cannot open nowhere"));
    assert!(
        !workspace.path("db").exists(),
        "a trace that cannot be read creates no store"
    );
    workspace.file("keys", "a\nb\n");
    workspace.fails(3, &["replay", "db", "keys"]);
}
