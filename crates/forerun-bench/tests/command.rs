//! Runs the benches at small size and checks their output.

mod testing;

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
        &["server", "--quick", "--json", "--alone", "--keys", "1,10"],
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
