//! Runs the benches at small size and checks their output.

mod testing;

use forerun_bench::count_lookups::CountRow;
use forerun_bench::seeds::SeedRow;
use std::collections::BTreeSet;
use testing::Workspace;

#[test]
fn benches_print_one_object_per_line() {
    let workspace = Workspace::new();
    for args in [
        &["roofline", "--quick", "--json", "--threads", "1"][..],
        &[
            "memtable",
            "--quick",
            "--json",
            "--batch",
            "8",
            "--hit-rate",
            "1",
            "--strategy",
            "single,interleaved",
        ],
        &[
            "hash",
            "--quick",
            "--json",
            "--load-factor",
            "0.3",
            "--strategy",
            "find",
        ],
        &["workloads", "--quick", "--json", "--shape", "queue"],
        &[
            "server",
            "--quick",
            "--json",
            "--alone",
            "--protocol",
            "memcached,resp",
            "--keys",
            "1,10",
        ],
        &[
            "server",
            "--study",
            "memory",
            "--quick",
            "--json",
            "--alone",
            "--protocol",
            "memcached,resp",
        ],
        &[
            "client",
            "--quick",
            "--json",
            "--servers",
            "1,3",
            "--keys",
            "1,20",
        ],
        &[
            "table",
            "--quick",
            "--json",
            "--budget",
            "1,0.1",
            "--batch",
            "64",
            "--evict-strategy",
            "lru,lfu",
        ],
        &[
            "table", "--quick", "--json", "--replay", "--budget", "0.1", "--batch", "64",
        ],
    ] {
        let reported = workspace.succeeds(args);
        assert!(!reported.is_empty());
        for line in reported.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
            assert_eq!(line["bench"], args[0]);
            assert!(
                line["keys_per_second"]
                    .as_f64()
                    .is_some_and(|rate| rate > 0.0),
                "{line}"
            );
        }
    }
}

#[test]
fn a_bench_writes_a_page() {
    let workspace = Workspace::new();
    for line in [
        "memtable --quick --batch 8 --report page.html",
        "hash --quick --study 4 --report page.html",
        "table --quick --access zipf:1 --batch 64 --report page.html",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        workspace.succeeds(&args);
        let page = std::fs::read_to_string(workspace.path("page.html")).expect("the page is there");
        forerun_measure::report::check_html(&page).expect("it is well formed");
    }
}

#[test]
fn the_gather_bench_succeeds_without_a_gpu() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&["gather", "--quick", "--study", "seed"]);
    assert!(
        reported.contains("Total Copies: 132") && reported.contains(" GiB/s ("),
        "{reported}"
    );
    // Every report has one or the other.
    let without = reported.starts_with("No GPU was found: ");
    assert_eq!(without, reported.contains("the CPU, no GPU"), "{reported}");
    assert_eq!(
        !without,
        reported.contains("multiprocessors, "),
        "{reported}"
    );
    workspace.succeeds(&["gather", "--check", "--quick"]);
}

#[test]
fn the_gpu_benches_succeed_without_a_gpu() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&["gpu-table", "--quick", "--study", "seed"]);
    assert!(
        reported.contains("Study: seed") && reported.contains("find_ptr"),
        "{reported}"
    );
    let without = reported.starts_with("No GPU was found: ");
    assert_eq!(
        without,
        reported.contains("all figures are for the CPU"),
        "{reported}"
    );
    let reported = workspace.succeeds(&["gpu-roofline", "--quick"]);
    assert_eq!(
        without,
        reported.contains("all figures are for the CPU"),
        "{reported}"
    );
    workspace.succeeds(&["gpu-table", "--once", "--quick"]);
}

#[test]
fn sets_are_measured_under_each_disturbance() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "server", "--study", "tail", "--quick", "--json", "--alone", "--rate", "500",
    ]);
    let rows: Vec<serde_json::Value> = reported
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    let cases: Vec<&str> = rows.iter().filter_map(|row| row["case"].as_str()).collect();
    assert_eq!(
        cases,
        [
            "none",
            "gat",
            "snapshot",
            "slow_snapshot",
            "flush_all",
            "expiry"
        ]
    );
    for row in &rows {
        assert_eq!(row["sets"], 100, "500 a second for 200 ms: {row}");
        assert_eq!(row["refused"], 0, "{row}");
        let latency = |name: &str| row[name].as_f64().expect("a number");
        assert!(
            latency("p50_us") > 0.0 && latency("p50_us") <= latency("p999_us"),
            "{row}"
        );
        assert!(latency("p999_us") <= latency("max_us") * 1.01, "{row}");
        let is_disturbed = ["gat", "snapshot", "slow_snapshot", "flush_all"]
            .contains(&row["case"].as_str().expect("text"));
        assert_eq!(
            row["disturbances"].as_u64() > Some(0),
            is_disturbed,
            "{row}"
        );
    }
}

#[test]
fn the_bench_of_servers_runs_with_and_without_memcached() {
    let workspace = Workspace::new();
    let quick = [
        "server",
        "--quick",
        "--json",
        "--keys",
        "1,20",
        "--access",
        "zipf:0.99",
    ];
    let reported =
        workspace.succeeds(&[&quick[..], &["--alone", "--report", "page.html"]].concat());
    let mut rows = 0;
    for line in reported.lines() {
        let row: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        assert_eq!(row["engine"], "forerun");
        assert!(
            row["keys_per_second"]
                .as_f64()
                .is_some_and(|rate| rate > 0.0),
            "{row}"
        );
        assert!(
            row["client_share"]
                .as_f64()
                .is_some_and(|share| share > 0.0),
            "{row}"
        );
        let is_compared = row["vs_get"].as_f64().is_some_and(|ratio| ratio > 0.0);
        let is_other_read = row["case"] == "mg" || row["case"] == "multi_get";
        assert_eq!(is_compared, is_other_read, "{row}");
        rows += 1;
    }
    assert_eq!(
        rows, 8,
        "classic gets, meta gets, multi-gets and sets, of 1 and of 20 keys"
    );
    let page = std::fs::read_to_string(workspace.path("page.html")).expect("the page is there");
    forerun_measure::report::check_html(&page).expect("it is well formed");
    let reported = workspace.succeeds(&[
        "server",
        "--quick",
        "--protocol",
        "resp",
        "--peer",
        "there-is-none",
    ]);
    assert!(
        reported.contains("not measured: there is no there-is-none"),
        "{reported}"
    );
    let reported = workspace.succeeds(&["server", "--quick", "--memcached", "there-is-none"]);
    assert!(
        reported.contains("not measured: there is no there-is-none"),
        "{reported}"
    );
}

#[test]
fn the_study_of_indexes_measures_each_index_and_its_phases() {
    let workspace = Workspace::new();
    let quick = ["server", "--study", "index", "--quick", "--keys", "1,20"];
    let page = ["--json", "--alone", "--report", "page.html"];
    let reported = workspace.succeeds(&[&quick[..], &page].concat());
    let rows: Vec<forerun_bench::server::IndexRow> = reported
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    let (first, second) = rows.split_at(rows.len() / 2);
    let indexes = |rows: &[forerun_bench::server::IndexRow]| {
        let names = rows.iter().map(|row| row.common.strategy.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(indexes(first), indexes(second));
    assert_eq!(first[0].common.strategy, "memc3/get/scalar");
    assert!(first.len() >= 8 && first.iter().all(|row| row.common.batch == 1));
    assert!(second.iter().all(|row| row.common.batch == 20));
    for row in &rows {
        assert_eq!(
            (
                row.study.as_str(),
                row.transport.as_str(),
                row.common.hit_rate
            ),
            ("index", "tcp", Some(1.0))
        );
        assert!(row.common.keys_per_second > 0.0 && row.p50_us <= row.p99_us);
        assert!(row.rate_vs_memc3.is_some_and(|ratio| ratio > 0.0));
        assert!(row.p50_vs_memc3.is_some_and(|ratio| ratio > 0.0));
        // The server of this project is measured too, without phases.
        assert_eq!(row.phases.is_none(), row.common.engine == "forerun");
        if let Some(phases) = &row.phases {
            assert!(phases.probe_ns > 0.0 && phases.send_ns > 0.0);
            assert!(phases.table_vs_memc3 > 0.0 && phases.server_vs_memc3 > 0.0);
        }
    }
    assert_eq!(
        first.last().map(|row| row.common.engine.as_str()),
        Some("forerun")
    );
    let page = std::fs::read_to_string(workspace.path("page.html")).expect("the page is there");
    forerun_measure::report::check_html(&page).expect("it is well formed");

    let named = ["--index", "bucketized2x8/vertical-all,cache/get", "--alone"];
    let reported = workspace.succeeds(&[&quick[..], &named].concat());
    for name in [
        "memc3/get/scalar",
        "bucketized2x8/vertical-all/",
        "cache/get/",
    ] {
        assert!(reported.contains(name), "{reported}");
    }
    for (wrong, reason) in [
        (["--index", "robin"], "bucketized2x4"),
        (["--keys", "1000"], "at most 900"),
        (["--threads", "2"], "--threads"),
    ] {
        let ran = workspace.run(&[&quick[..4], &wrong].concat());
        assert!(ran.code != 0 && ran.stderr.contains(reason), "{ran:?}");
    }
}

#[test]
fn every_row_of_the_seeds_has_a_figure_of_ours_or_says_why_not() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&["seeds", "--quick", "--json", "--rounds", "1"]);
    let rows: Vec<SeedRow> = reported
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    let seeds: BTreeSet<&str> = rows.iter().map(|row| row.seed.as_str()).collect();
    assert_eq!(seeds, BTreeSet::from(["000", "001", "002", "003", "004"]));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for row in &rows {
        assert_eq!(row.bench, "seeds");
        let here = row.ours.iter().filter(|ours| ours.command.is_some());
        let committed = row.ours.iter().filter(|ours| ours.file.is_some());
        let is_measured = here.count() + committed.count() > 0;
        // The profile of 002 needs counters that many machines lack, and its rows say what.
        let is_profile = row.table == "the profile of a search of one key" || row.seed == "002";
        let is_known = is_measured || !row.note.is_empty() || is_profile;
        // A copy on the CPU is not measured where there is a GPU.
        let is_other = row.table.contains("copied by this CPU");
        assert!(is_known || is_other, "{row:?}");
        for ours in &row.ours {
            assert!(ours.value.is_none_or(f64::is_finite), "{row:?}");
            assert_eq!(
                ours.value.is_some(),
                ours.command.is_some() != ours.file.is_some(),
                "{row:?}"
            );
        }
    }
    // What any machine measures, is measured: all of seed 004 that it has cores for.
    let of_004 = rows.iter().filter(|row| row.seed == "004");
    let measured = of_004.filter(|row| row.ours[0].command.is_some()).count();
    assert!(measured >= if cores >= 2 { 12 } else { 9 }, "{measured}");
    let suspensions = |row: &&SeedRow| row.seed == "002" && row.row == "suspensions";
    let suspensions: Vec<&SeedRow> = rows.iter().filter(suspensions).collect();
    assert_eq!(suspensions.len(), 2);
    assert!(suspensions.iter().all(|row| row.ours[0].value > Some(0.9)));
}

#[test]
fn a_seed_is_shown_as_tables_and_on_a_page() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&[
        "seeds",
        "--quick",
        "--seed",
        "000,001",
        "--rounds",
        "1",
        "--report",
        "page.html",
    ]);
    for part in [
        "Seed 000: HierarchicalKV",
        "load 1.00",
        "V4, at most 16 multiprocessors",
        "docs/results/2026-11-26-nvidia-h200/gather-seed.jsonl",
        "seed: throughput",
    ] {
        assert!(reported.contains(part), "{part} in {reported}");
    }
    let page = std::fs::read_to_string(workspace.path("page.html")).expect("the page is there");
    forerun_measure::report::check_html(&page).expect("it is well formed");
    assert!(page.contains("<svg"));
}

#[test]
fn lookups_are_counted_as_far_as_the_system_allows() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&["count-lookups", "--quick", "--json", "--batch", "1,4"]);
    let rows: Vec<CountRow> = reported
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    assert_eq!(rows.len(), 10);
    for row in &rows {
        assert_eq!(row.suspensions_per_key.is_none(), row.strategy == "index");
        assert_eq!(
            row.instructions_per_key.is_some(),
            row.lines_per_key.is_some()
        );
        if let Some(instructions) = row.instructions_per_key {
            assert!((50.0..1e6).contains(&instructions), "{row:?}");
            assert!(
                row.lines_per_key.is_some_and(|lines| lines > 0.9),
                "{row:?}"
            );
        }
    }
}
