//! Tests `forerun-bench gpu-table` and `gpu-roofline` in quick mode. Without a GPU they say so,
//! measure the CPU, and print no GPU figures.

#[path = "testing/gpu.rs"]
mod gpu;

use clap::Parser;
use forerun_bench::gpu_roofline::{self, GpuRooflineRow};
use forerun_bench::gpu_table::{self, GpuTableRow, Op};
use forerun_measure::progress::Progress;
use forerun_measure::report::check_html;
use gpu::has_gpu;

#[derive(Parser)]
enum Bench {
    GpuTable(Box<gpu_table::Args>),
    GpuRoofline(gpu_roofline::Args),
}

fn bench(line: &str) -> Result<String, String> {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    let bench = Bench::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    let hidden = Progress::hidden();
    match &bench {
        Bench::GpuTable(args) => gpu_table::run_to(args, &hidden, &mut out),
        Bench::GpuRoofline(args) => gpu_roofline::run_to(args, &hidden, &mut out),
    }
    .map_err(|error| format!("{error:#}"))?;
    Ok(String::from_utf8(out).expect("text"))
}

fn rows<T: serde::de::DeserializeOwned>(line: &str) -> Vec<T> {
    let text = bench(line).expect(line);
    let row = |line: &str| serde_json::from_str(line).expect(line);
    text.lines().map(row).collect()
}

#[test]
fn all_studies_run_and_write_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let text = bench(&format!("gpu-table --quick --report {}", page.display())).unwrap();
    for study in [
        "seed",
        "operations",
        "buckets",
        "dim",
        "hit-rate",
        "batch",
        "skew",
        "bags",
    ] {
        assert!(
            text.contains(&format!("\nStudy: {study}\n")),
            "{study}: {text}"
        );
    }
    if !has_gpu() {
        assert!(text.starts_with("No GPU was found: "), "{text}");
        assert!(text.contains("all figures are for the CPU"));
        assert!(!text.contains("of ceiling"), "{text}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    check_html(&page).expect("it is well formed");
    assert!(page.contains("<svg") && page.contains("Study: operations"));
}

#[test]
fn each_row_is_an_object_and_every_operation_has_one_at_every_load() {
    let rows: Vec<GpuTableRow> = rows("gpu-table --quick --json --study operations --load 0.5,1");
    for load in [0.5, 1.0] {
        for op in Op::ALL {
            let mut of = rows
                .iter()
                .filter(|row| row.load == load && row.op == op.name());
            let row = of.next().unwrap_or_else(|| panic!("{op} at {load}"));
            assert_eq!(
                (row.bench.as_str(), row.study.as_str(), row.rounds),
                ("gpu-table", "operations", 2)
            );
            assert_eq!(
                (row.buckets.as_str(), row.dim, row.hit_rate),
                ("1x128", 8, 0.6)
            );
            assert!(
                row.keys_per_second > 0.0 && row.keys_per_second_wall > 0.0,
                "{row:?}"
            );
            assert!(row.keys_per_second_min <= row.keys_per_second, "{row:?}");
            let decimal = row.bkv_per_second * (1u64 << 30) as f64;
            assert!((decimal / row.keys_per_second - 1.0).abs() < 1e-9);
            assert!(row.found >= 0.58, "{row:?}");
            let lookup = op.name().starts_with("find")
                && !op.name().contains("insert")
                && op.name() != "find_and_update";
            let weighed = lookup || op.name() == "contains";
            assert_eq!(row.bag_keys, 32);
            assert_eq!(row.bytes_per_lookup.is_some(), weighed, "{row:?}");
            if !has_gpu() {
                assert_eq!(
                    (row.engine.as_str(), &row.device, row.share_of_ceiling),
                    ("cpu", &None, None)
                );
            }
        }
    }
    let bytes = |op: &str, load: f64| {
        let row = rows.iter().find(|row| row.op == op && row.load == load);
        row.and_then(|row| row.bytes_per_lookup).unwrap()
    };
    // Lookups read more if the table is full, and rows cost more than their addresses.
    assert!(bytes("find_ptr", 1.0) > bytes("find_ptr", 0.5));
    assert!(bytes("find", 0.5) > bytes("find_ptr", 0.5));
}

#[test]
fn other_forms_rows_rates_and_skews_are_taken_from_the_command_line() {
    let line = "gpu-table --quick --json --study buckets --buckets 1x64,2x32 --load 0.5 --op \
        find_ptr --dim 32";
    let of: Vec<GpuTableRow> = rows(line);
    let forms: Vec<&str> = of.iter().map(|row| row.buckets.as_str()).collect();
    assert_eq!(forms, ["1x64", "2x32"]);
    assert!(of.iter().all(|row| row.dim == 32 && row.op == "find_ptr"));
    let line = "gpu-table --quick --json --study skew,hit-rate --skew zipf:0.99 --hit-rate 1,0 \
        --op find --batch 100 --slots 2Ki";
    let of: Vec<GpuTableRow> = rows(line);
    assert_eq!(of.len(), 3);
    assert_eq!((of[0].skew.as_str(), of[0].found), ("zipf:0.99", 1.0));
    assert_eq!((of[1].found, of[2].found, of[2].batch), (1.0, 0.0, 100));
    let of: Vec<GpuTableRow> =
        rows("gpu-table --quick --json --study bags --bag 1,7,1000 --op find_pooled --dim 5");
    let bags: Vec<u64> = of.iter().map(|row| row.bag_keys).collect();
    assert_eq!(bags, [1, 7, 1000]);
    // A pooled row and its count are shared by the keys of a bag.
    assert!(of[0].bytes_per_lookup > of[1].bytes_per_lookup);
    for (line, word) in [
        ("gpu-table --op fly", "not an operation of the table"),
        ("gpu-table --lookup magic", "by-load, narrow"),
        ("gpu-table --buckets 3x7", "2x128"),
        ("gpu-table --quick --load 0", "load of 0"),
        ("gpu-table --quick --slots 8", "at least 256"),
        ("gpu-table --quick --bag 0", "a bag of no keys"),
        ("gpu-table --check --once", "cannot be used with"),
        ("gpu-roofline --request 16", "32, 64 or 128"),
        (
            "gpu-roofline --quick --report no-such-folder/x.html",
            "no-such-folder",
        ),
    ] {
        let error = bench(line).expect_err(line);
        assert!(error.contains(word), "{line}: {error}");
    }
}

#[test]
fn once_runs_every_operation_and_check_states_its_needs() {
    // Full tables of every width too, as in the sanitizers' runs.
    for form in ["1x128", "2x128", "1x64", "2x64", "2x32", "1x16"] {
        bench(&format!(
            "gpu-table --once --quick --load 1 --buckets {form}"
        ))
        .expect(form);
    }
    bench("gpu-table --once --quick --dim 33 --bag 1000").unwrap();
    let reported = bench("gpu-table --once --quick").unwrap();
    for op in Op::ALL {
        assert!(reported.contains(op.name()), "{op}: {reported}");
    }
    if !has_gpu() {
        assert!(reported.contains("without a launch"), "{reported}");
        assert!(
            bench("gpu-table --check")
                .unwrap()
                .contains("Nothing was checked: this needs a GPU")
        );
        let reported =
            bench("gpu-table --quick --study seed --load 0.5 --peer /no/such/peer").unwrap();
        assert!(
            reported.contains("not measured: /no/such/peer: it needs a GPU"),
            "{reported}"
        );
    }
}

#[test]
fn random_reads_are_checked_and_reported_by_request_size() {
    let of: Vec<GpuRooflineRow> = rows("gpu-roofline --quick --json --buffer 64Ki,1Mi");
    let each: Vec<(u64, u64)> = of
        .iter()
        .map(|row| (row.buffer_bytes >> 16, row.request_bytes))
        .collect();
    assert_eq!(
        each,
        [(1, 32), (1, 64), (1, 128), (16, 32), (16, 64), (16, 128)]
    );
    for row in &of {
        assert!(row.requests_per_second_min <= row.requests_per_second && row.gb_per_second > 0.0);
        if !has_gpu() {
            assert_eq!((row.engine.as_str(), &row.device), ("cpu", &None));
        }
    }
    let text = bench("gpu-roofline --quick --request 64").unwrap();
    assert!(text.contains("Medians of 2 rounds."), "{text}");
    if !has_gpu() {
        assert!(
            text.starts_with("No GPU was found: ") && text.contains("all figures are for the CPU")
        );
        assert!(
            bench("gpu-roofline --check")
                .unwrap()
                .contains("Nothing was launched")
        );
    }
}
