//! The benches run completely in quick mode: every workload, strategy and output.

use clap::Parser;
use forerun_bench::hash::HashRow;
use forerun_bench::workloads::WorkloadRow;
use forerun_bench::ycsb::YcsbRow;
use forerun_bench::{btree, hash, memtable, roofline, scan, workloads, ycsb};
use forerun_measure::progress::Progress;
use forerun_measure::report::check_html;
use forerun_measure::result_row::Row;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::path::Path;

#[derive(Parser)]
enum Bench {
    Roofline(roofline::Args),
    Memtable(memtable::Args),
    Btree(btree::Args),
    Hash(hash::Args),
    Ycsb(ycsb::Args),
    Scan(scan::Args),
    Workloads(workloads::Args),
}

/// Runs a bench by its command line and returns its output.
fn bench(line: &str) -> Result<String, String> {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    let args = Bench::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    let progress = Progress::hidden();
    match args {
        Bench::Roofline(args) => roofline::run_to(&args, &progress, &mut out),
        Bench::Memtable(args) => memtable::run_to(&args, &[], None, &progress, &mut out),
        Bench::Btree(args) => btree::run_to(&args, &[], None, &progress, &mut out),
        Bench::Hash(args) => hash::run_to(&args, &[], None, &progress, &mut out),
        Bench::Ycsb(args) => ycsb::run_to(&args, &[], None, &progress, &mut out),
        Bench::Scan(args) => scan::run_to(&args, &[], None, &progress, &mut out),
        Bench::Workloads(args) => workloads::run_to(&args, &[], &progress, &mut out),
    }
    .map_err(|error| format!("{error:#}"))?;
    Ok(String::from_utf8(out).expect("text"))
}

fn rows(line: &str) -> Vec<Row> {
    rows_with(line, &[])
}

/// The rows of a bench that has names besides the common ones.
fn rows_with<T: DeserializeOwned>(line: &str, names: &[&str]) -> Vec<T> {
    let text = bench(line).expect(line);
    let row = |line: &str| {
        let fields: serde_json::Map<_, _> = serde_json::from_str(line).expect(line);
        for name in Row::NAMES.iter().chain(names) {
            assert!(fields.contains_key(*name), "{name} in {line}");
        }
        serde_json::from_str(line).expect(line)
    };
    text.lines().map(row).collect()
}

fn check_page(path: &Path, charts: usize) {
    let html = std::fs::read_to_string(path).expect("the page is there");
    check_html(&html).expect("the page is well formed");
    assert!(html.matches("<svg").count() >= charts);
    assert!(html.contains("<table"));
}

#[test]
fn the_memtable_bench_measures_every_cell_by_every_strategy() {
    let rows = rows("memtable --quick --batch 1,8 --threads 1,2 --json");
    // Seven strategies, two batches, two numbers of threads, two hit rates, two workloads, and a
    // fill for each number of threads.
    assert_eq!(rows.len(), 7 * 2 * 2 * 2 * 2 + 2);
    for row in &rows {
        assert_eq!(
            (row.bench.as_str(), row.keys, row.key_bytes, row.value_bytes),
            ("memtable", 2000, 16, 100)
        );
        assert!(row.keys_per_second > 0.0 && row.ns_per_key > 0.0);
        if row.case != "fillrandom" {
            assert!(row.speedup_vs_single.is_some_and(|ratio| ratio > 0.0));
            assert!(row.roofline_share.is_some_and(|share| share > 0.0));
        }
    }
    let writing = rows
        .iter()
        .filter(|row| row.case == "multireadwhilewriting");
    assert!(writing.clone().count() > 0);
    assert!(
        writing
            .clone()
            .all(|row| row.inserts_per_second.is_some_and(|rate| rate > 0.0))
    );
}

#[test]
fn the_memtable_bench_takes_lists_of_shapes_and_adds_the_baseline() {
    let rows = rows(
        "memtable --quick --json --keys 500,1k --key-bytes 8,40 --value-bytes 0 --prefix-bytes 4 \
         --batch 7 --hit-rate 0 --strategy auto --workload multireadrandom --pages small \
         --rounds 1",
    );
    assert_eq!(rows.len(), 2 * 2 * 2);
    assert!(
        rows.iter()
            .all(|row| row.pages == "small" && row.rounds == 1 && row.prefix_bytes == 4)
    );
    let strategies: Vec<&str> = rows.iter().map(|row| row.strategy.as_str()).collect();
    assert_eq!(strategies[..2], ["single", "auto"]);
}

#[test]
fn the_memtable_is_measured_in_every_form_beside_several_writers() {
    let rows = rows(
        "memtable --quick --json --batch 8 --hit-rate 1 --without-index --paranoid --in-store \
         --workload multireadrandom,multireadwhilewriting --writers 1,3 --rounds 1 --strategy \
         single,finger,auto,multiget",
    );
    let forms = ["forerun", "without-index", "paranoid", "store"];
    let strategies = 3 * 3 + 2;
    assert_eq!(rows.len(), strategies * 3);
    for form in forms {
        let of_form = rows.iter().filter(|row| row.engine == form);
        let writers: BTreeSet<Option<u64>> = of_form.map(|row| row.writers).collect();
        assert_eq!(writers, BTreeSet::from([None, Some(1), Some(3)]), "{form}");
    }
    assert!(rows.iter().all(|row| row.keys_per_second > 0.0));
}

#[test]
fn the_btree_bench_measures_every_page_search_alone_and_batched_and_the_index() {
    for (shape, order) in [
        ("--key-bytes 9,16", "bytewise"),
        ("--key-bytes 60,100 --prefix-bytes 40", "bytewise"),
        ("--key-bytes 16,20 --page-bytes 4Ki", "reverse"),
    ] {
        let rows = rows(&format!(
            "btree --quick --json --batch 1,8 --threads 1,2 --access uniform,zipf:0.99 --order \
             {order} {shape}"
        ));
        // Four searches, alone and batched, and the index, with two batches, numbers of threads,
        // accesses, hit rates and key lengths.
        assert_eq!(rows.len(), (4 * 2 + 1) * 2 * 2 * 2 * 2 * 2);
        assert!(rows.iter().any(|row| row.strategy == "index"));
        for row in &rows {
            assert_eq!((row.bench.as_str(), row.keys), ("btree", 5000));
            assert!(row.keys_per_second > 0.0 && row.speedup_vs_single.is_some());
            assert!(row.access.is_some());
        }
        assert_eq!(rows[0].strategy, "plain");
    }
}

#[test]
fn the_benches_print_a_table_and_write_a_page() {
    let folder = tempfile::tempdir().expect("a folder");
    for (line, charts, word) in [
        ("memtable --quick --batch 1,4", 9, "partition"),
        (
            "memtable --quick --batch 4 --workload multireadrandom",
            2,
            "interleaved",
        ),
        ("btree --quick --batch 1,4", 4, "multiget-key-prefixes"),
        ("roofline --quick", 1, "in flight"),
        (
            "hash --quick --study 2",
            4,
            "Study 2: Load factor and hit rate",
        ),
        (
            "hash --quick --strategy all --design bucketized2x4",
            2,
            "staged",
        ),
        (
            "ycsb --quick --workload b,e --batch 8",
            2,
            "Workload E: 95% scans",
        ),
        ("scan --quick", 4, "us per scan"),
        (
            "workloads --quick --shape hot-keyspace,queue",
            5,
            "longest stall ms",
        ),
    ] {
        let path = folder.path().join("page.html");
        let text = bench(&format!("{line} --report {}", path.display())).expect(line);
        assert!(text.contains(word) && text.contains("CPU"), "{text}");
        check_page(&path, charts);
    }
}

#[test]
fn the_six_studies_measure_every_design_and_check_its_answers() {
    let rows: Vec<HashRow> = rows_with("hash --quick --all --json", &HashRow::NAMES);
    let studies: BTreeSet<Option<u8>> = rows.iter().map(|row| row.study).collect();
    assert_eq!(studies, (1..=6).map(Some).collect());
    let designs: BTreeSet<&str> = rows.iter().map(|row| row.design.as_str()).collect();
    for design in forerun_studies::designs::Design::ALL {
        assert!(designs.contains(design.name()), "{design}");
    }
    assert!(designs.contains("table") && designs.contains("frozen"));
    let written = rows.iter().filter(|row| row.study == Some(6));
    let written: BTreeSet<(&str, &str)> = written
        .map(|row| (row.design.as_str(), row.common.case.as_str()))
        .collect();
    assert_eq!(written.len(), 2 * designs.len());
    let widths: BTreeSet<u64> = rows.iter().map(|row| row.common.key_bytes).collect();
    assert_eq!(widths, BTreeSet::from([2, 4, 8]));
    let updated: BTreeSet<&str> = rows
        .iter()
        .filter(|row| row.updates > 0.0)
        .map(|row| row.design.as_str())
        .collect();
    assert_eq!(updated, BTreeSet::from(["memc3", "table"]));
    for row in &rows {
        let common = &row.common;
        assert_eq!(common.bench, "hash");
        // A design may be full below the requested load factor; then that is reported instead.
        assert_eq!(common.keys_per_second > 0.0, row.full_at.is_none());
        assert!(row.full_at.is_none_or(|full| full < row.load_factor));
    }
    let full = rows.iter().filter(|row| row.full_at.is_some());
    assert!(full.clone().any(|row| row.design == "cuckoo2"));
    assert!(full.clone().all(|row| row.load_factor > 0.4));
    let measured = || rows.iter().filter(|row| row.full_at.is_none());
    assert!(measured().all(|row| row.common.roofline_share.is_some_and(|share| share > 0.0)));
    assert!(
        measured().all(|row| row.bytes_per_entry.is_some_and(|bytes| bytes >= 8.0)
            && (row.lines_per_lookup.is_some()
                || row.study == Some(6)
                || ["table", "frozen"].contains(&row.design.as_str())))
    );
}

#[test]
fn the_hash_bench_prints_one_row_per_cell_design_and_isa() {
    let rows: Vec<HashRow> = rows_with(
        "hash --quick --json --size 32KiB --load-factor 0.6 --hit-rate 0.5 --batch 7 --threads 2 \
         --skew zipf:0.99 --strategy find --design bucketized2x4,cuckoo3 --isa scalar \
         --key-bytes 4 --rounds 1",
        &HashRow::NAMES,
    );
    let designs: Vec<&str> = rows.iter().map(|row| row.design.as_str()).collect();
    assert_eq!(designs, ["cuckoo3", "bucketized2x4"]);
    for row in &rows {
        let common = &row.common;
        assert_eq!((common.key_bytes, common.value_bytes), (4, 8));
        assert_eq!(
            (common.batch, common.threads, common.hit_rate),
            (7, 2, Some(0.5))
        );
        assert_eq!((common.isa.as_str(), common.rounds), ("scalar", 1));
        assert_eq!(
            (row.skew.as_str(), row.load_factor, row.size_bytes),
            ("zipf:0.99", 0.6, 32 << 10)
        );
        assert_eq!(row.study, None);
    }
}

#[test]
fn the_roofline_bench_gives_its_rows_the_same_names() {
    let rows = rows("roofline --quick --threads 1 --pages huge --in-flight 1,8 --json");
    let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(cases, ["dependent", "independent", "resume"]);
    assert_eq!(rows[0].speedup_vs_single, Some(1.0));
    assert!(rows[..2].iter().all(|row| row.backing.is_some()));
    assert!(rows[2].ns_per_key > 0.0);
}

#[test]
fn the_ycsb_bench_loads_a_store_and_runs_every_workload_on_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows: Vec<YcsbRow> = rows_with(
        &format!(
            "ycsb --quick --json --check --batch 7,64 --threads 1,2 --dir {}",
            folder.path().display()
        ),
        &YcsbRow::NAMES,
    );
    let cases: Vec<&str> = rows.iter().map(|row| row.common.case.as_str()).collect();
    // Three batches (a batch of one is added) of five workloads and one of scans, each by one
    // thread and by two.
    let mut expected = vec!["load"];
    for case in ["a", "b", "c", "f", "d"] {
        expected.extend([case; 6]);
    }
    expected.extend(["e"; 2]);
    assert_eq!(cases, expected);
    let loaded = rows[0].loaded.as_ref().expect("what the load tells");
    assert!(loaded.data_bytes > 2_000_000);
    assert!(loaded.disk_bytes_per_byte.is_some_and(|bytes| bytes >= 1.0));
    for row in &rows[1..] {
        let common = &row.common;
        assert_eq!((row.operations, common.keys), (400, 2000));
        assert!(common.keys_per_second > 0.0);
        assert!(row.batch_p50_us > 0.0 && row.batch_p99_us >= row.batch_p50_us);
        assert!(common.speedup_vs_single.is_some_and(|ratio| ratio > 0.0));
        let by = if common.batch == 1 {
            "single"
        } else {
            "multiget"
        };
        assert_eq!(common.strategy, by);
    }
    let left = std::fs::read_dir(folder.path())
        .expect("the folder")
        .count();
    assert_eq!(left, 0, "the store is removed");
}

#[test]
fn each_cache_size_of_the_ycsb_bench_loads_a_store_of_its_own() {
    let rows: Vec<YcsbRow> = rows_with(
        "ycsb --quick --json --workload c --batch 1 --cache 1Mi,4Mi --records 500 --ops 50 \
         --rounds 1",
        &YcsbRow::NAMES,
    );
    let caches: Vec<Option<u64>> = rows.iter().map(|row| row.cache_bytes).collect();
    assert_eq!(caches, [1 << 20, 1 << 20, 4 << 20, 4 << 20].map(Some));
}

#[test]
fn the_scan_bench_measures_both_directions_in_both_states_of_the_store() {
    let rows = rows("scan --quick --json --threads 1,2");
    // Two states, numbers of threads, directions and lengths.
    assert_eq!(rows.len(), 2 * 2 * 2 * 2);
    for row in &rows {
        assert_eq!(
            (row.bench.as_str(), row.keys, row.value_bytes),
            ("scan", 2000, 1000)
        );
        assert!(row.keys_per_second > 0.0 && [1, 100].contains(&row.batch));
    }
    let cases: BTreeSet<(&str, &str)> = rows
        .iter()
        .map(|row| (row.case.as_str(), row.strategy.as_str()))
        .collect();
    assert_eq!(cases.len(), 4);
}

#[test]
fn the_workloads_bench_runs_every_shape_and_every_class() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows: Vec<WorkloadRow> = rows_with(
        &format!("workloads --quick --json --dir {}", folder.path().display()),
        &WorkloadRow::NAMES,
    );
    let classes: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row.common.case.as_str(), row.common.strategy.as_str()))
        .collect();
    assert_eq!(
        classes,
        [
            ("hot-keyspace", "hot batches"),
            ("hot-keyspace", "cold puts"),
            ("hot-keyspace", "reads"),
            ("nightly-load", "load"),
            ("nightly-load", "puts"),
            ("nightly-load", "reads"),
            ("queue", "pushes"),
            ("queue", "pops"),
            ("range-deletes", "range deletes"),
            ("range-deletes", "reads"),
            ("range-deletes", "scans"),
            ("time-series", "batches"),
            ("time-series", "reads"),
            ("time-series", "scans"),
            ("overwrite", "puts"),
        ]
    );
    for row in &rows {
        let common = &row.common;
        assert_eq!((&*common.engine, common.rounds), ("forerun", 1));
        assert!(
            common.keys_per_second > 0.0 && row.operations > 0,
            "{row:?}"
        );
        assert!(row.p50_us > 0.0 && row.p50_us <= row.p99_us && row.p99_us <= row.p999_us);
        assert!(
            row.p999_us <= row.max_us && row.longest_call_ms > 0.0,
            "{row:?}"
        );
        let in_time: u64 = row.over_time.iter().map(|point| point.operations).sum();
        assert_eq!(in_time, row.operations);
        assert!(row.store.put_bytes > 0 && row.store.longest_stall_ms > 0.0);
        assert!(row.store.files.is_some_and(|files| files > 0));
    }
    let row_of = |class| rows.iter().find(|row| row.common.strategy == class);
    let per_call = |class| row_of(class).map(|row| row.common.batch);
    assert_eq!(per_call("hot batches"), Some(100));
    assert_eq!(per_call("cold puts"), Some(1));
    assert_eq!(per_call("reads"), Some(64));
    assert_eq!(row_of("range deletes").map(|row| row.operations), Some(500));
    assert_eq!(rows.last().map(|row| row.common.threads), Some(2));
    let left = std::fs::read_dir(folder.path())
        .expect("the folder")
        .count();
    assert_eq!(left, 0, "the stores are removed");
}

#[test]
fn the_workloads_bench_counts_all_rounds_and_all_readers_together() {
    let rows: Vec<WorkloadRow> = rows_with(
        "workloads --quick --json --shape c,d --steps 30 --ranges 40 --readers 2 --rounds 2",
        &WorkloadRow::NAMES,
    );
    let row_of = |class| rows.iter().find(|row| row.common.strategy == class);
    assert_eq!(row_of("pops").map(|row| row.operations), Some(60));
    assert_eq!(row_of("range deletes").map(|row| row.operations), Some(80));
    // Two readers, two rounds, 200 a second for 0.1 s.
    assert_eq!(row_of("reads").map(|row| row.operations), Some(80));
    assert_eq!(row_of("reads").map(|row| row.common.threads), Some(2));
}

#[test]
fn rows_of_a_time_series_expire_in_the_workloads_bench() {
    let rows: Vec<WorkloadRow> = rows_with(
        "workloads --quick --json --shape e --seconds 3.2 --rate 1M",
        &WorkloadRow::NAMES,
    );
    let scans = rows.iter().find(|row| row.common.strategy == "scans");
    assert!(scans.is_some_and(|row| row.over_time.len() >= 3));
}

#[test]
fn wrong_arguments_get_a_message() {
    for (line, word) in [
        ("memtable --keys lots", "lots"),
        ("memtable --hit-rate 2", "share"),
        ("memtable --quick --strategy fast", "interleaved"),
        ("memtable --quick --threads 0", "thread"),
        ("memtable --quick --batch 0", "batch"),
        ("memtable --quick --key-bytes 1", "keys of 1 bytes"),
        ("memtable --workload sleeping", "multireadrandom"),
        ("memtable --rounds 0", "rounds"),
        (
            "memtable --quick --report no-such-folder/x.html",
            "no-such-folder",
        ),
        ("hash --quick --design robin", "bucketized2x4"),
        ("hash --quick --strategy guess", "find"),
        ("hash --quick --skew zipf", "zipf:0.99"),
        ("hash --quick --updates 100", "percentage"),
        ("hash --quick --key-bytes 16", "2, 4 or 8 bytes"),
        ("hash --quick --size 64", "fewer than 16 entries"),
        ("hash --quick --threads 0", "thread"),
        ("hash --quick --batch 0", "batch"),
        ("hash --quick --isa sse9", "avx2"),
        ("hash --study 7", "7"),
        ("hash --quick --study 6 --batch 512", "an eighth"),
        ("hash --study 1 --all", "--all"),
        ("hash --quick --design cuckoo2 --updates 5", "updates"),
        ("ycsb --quick --workload g", "a, b, c"),
        ("ycsb --quick --batch 0", "batch"),
        ("ycsb --quick --threads 0", "thread"),
        ("ycsb --quick --records 0", "record"),
        ("ycsb --quick --cache 1M --cache-share 1", "--cache"),
        ("ycsb --quick --dir no-such-folder", "no-such-folder"),
        ("scan --quick --length 0", "at least one entry"),
        ("scan --quick --length 3k", "as many keys"),
        ("workloads --quick --shape stack", "hot-keyspace"),
        ("workloads --quick --seconds 0", "seconds"),
        ("workloads --quick --value-bytes 16", "32 bytes"),
        ("workloads --quick --dir no-such-folder", "no-such-folder"),
        ("roofline --quick --in-flight 3", "3 chases"),
        ("roofline --quick --buffer 1k", "too small"),
    ] {
        let error = bench(line).expect_err(line);
        assert!(error.contains(word), "{line}: {error}");
    }
}
