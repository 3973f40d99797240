//! Runs the benches at small size and checks their output.

mod common;

use common::Place;

#[test]
fn benches_print_one_object_a_line() {
    let place = Place::new();
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
            "find_batch",
        ],
        &["server", "--quick", "--json", "--alone", "--keys", "1,10"],
        &[
            "table", "--quick", "--json", "--budget", "1,0.1", "--batch", "64", "--score",
            "lru,lfu",
        ],
        &[
            "table", "--quick", "--json", "--replay", "--budget", "0.1", "--batch", "64",
        ],
    ] {
        let told = place.succeeds(args);
        assert!(!told.is_empty());
        for line in told.lines() {
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
    let place = Place::new();
    for line in [
        "memtable --quick --batch 8 --report page.html",
        "hash --quick --study 4 --report page.html",
        "table --quick --access zipf:1 --batch 64 --report page.html",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        place.succeeds(&args);
        let page = std::fs::read_to_string(place.path("page.html")).expect("the page is there");
        forerun_measure::report::check_html(&page).expect("it is well formed");
    }
}

#[test]
fn the_row_gather_tells_whether_there_is_a_gpu_and_ends_well_without_one() {
    let place = Place::new();
    let told = place.succeeds(&["gather", "--quick", "--study", "seed"]);
    assert!(
        told.contains("Total Copies: 132") && told.contains(" GiB/s ("),
        "{told}"
    );
    // Every report has one or the other.
    let without = told.starts_with("No GPU was found: ");
    assert_eq!(without, told.contains("the CPU, no GPU"), "{told}");
    assert_eq!(!without, told.contains("multiprocessors, "), "{told}");
    place.succeeds(&["gather", "--check", "--quick"]);
}

#[test]
fn the_gpu_benches_tell_whether_there_is_a_gpu_and_end_well_without_one() {
    let place = Place::new();
    let told = place.succeeds(&["gpu-table", "--quick", "--study", "seed"]);
    assert!(
        told.contains("Study: seed") && told.contains("find_ptr"),
        "{told}"
    );
    let without = told.starts_with("No GPU was found: ");
    assert_eq!(
        without,
        told.contains("all figures are for the CPU"),
        "{told}"
    );
    let told = place.succeeds(&["gpu-roofline", "--quick"]);
    assert_eq!(
        without,
        told.contains("all figures are for the CPU"),
        "{told}"
    );
    place.succeeds(&["gpu-table", "--once", "--quick"]);
}

#[test]
fn sets_are_measured_beside_each_disturbance() {
    let place = Place::new();
    let told = place.succeeds(&[
        "server", "--study", "tail", "--quick", "--json", "--alone", "--rate", "500",
    ]);
    let rows: Vec<serde_json::Value> = told
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
    let place = Place::new();
    let quick = [
        "server",
        "--quick",
        "--json",
        "--keys",
        "1,20",
        "--access",
        "zipf:0.99",
    ];
    let told = place.succeeds(&[&quick[..], &["--alone", "--report", "page.html"]].concat());
    let mut rows = 0;
    for line in told.lines() {
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
        rows += 1;
    }
    assert_eq!(
        rows, 6,
        "classic gets, meta gets and sets, of 1 and of 20 keys"
    );
    let page = std::fs::read_to_string(place.path("page.html")).expect("the page is there");
    forerun_measure::report::check_html(&page).expect("it is well formed");
    let told = place.succeeds(&["server", "--quick", "--memcached", "there-is-none"]);
    assert!(
        told.contains("not measured: there is no there-is-none"),
        "{told}"
    );
}
