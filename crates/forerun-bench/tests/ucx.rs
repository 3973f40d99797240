//! The commands that measure and stress the server over UCX.

#[path = "../../forerun-ucx/tests/testing/installed.rs"]
mod installed;
mod testing;

use installed::has_ucx;
use testing::Workspace;

#[test]
fn clients_over_ucx_leave_the_server_unchanged_and_its_memory_within_its_bound() {
    if !has_ucx() {
        return;
    }
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "stress",
        "--server",
        "--transport",
        "ucx",
        "--seconds",
        "4",
        "--connections",
        "40",
        "--memory",
        "32",
        "--seed",
        "3",
    ]);
    assert!(
        reported.starts_with("server: seed 3, 40 clients over ucx for "),
        "{reported}"
    );
    assert!(!reported.contains("stored     0,"), "{reported}");
    assert!(reported.contains("\n  memory     "), "{reported}");
}

#[test]
fn the_study_of_indexes_compares_each_index_within_its_transport() {
    if !has_ucx() {
        return;
    }
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "server",
        "--study",
        "index",
        "--quick",
        "--json",
        "--keys",
        "20",
        "--transport",
        "tcp,ucx",
        "--connections",
        "3",
        "--index",
        "table",
        "--memcached",
        "there-is-none",
    ]);
    let rows: Vec<forerun_bench::server::IndexRow> = reported
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    let measured: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row.common.engine.as_str(), row.transport.as_str()))
        .collect();
    let expected = ["study", "study", "forerun"].map(|name| [(name, "tcp"), (name, "ucx")]);
    assert_eq!(measured, expected.as_flattened());
    for row in &rows {
        assert_eq!((row.common.hit_rate, row.connections), (Some(1.0), 3));
        assert_eq!(row.client_wait, "sleep");
        assert_eq!(row.vs_tcp.is_some(), row.transport == "ucx", "{row:?}");
        assert_eq!(row.phases.is_none(), row.common.engine == "forerun");
        let is_memc3 = row.common.strategy == "memc3/get/scalar";
        // The baseline of a transport is MemC3's index over this transport.
        assert_eq!(row.rate_vs_memc3 == Some(1.0), is_memc3, "{row:?}");
    }
}
