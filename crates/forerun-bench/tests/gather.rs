//! Tests `forerun-bench gather` in quick mode. Without a GPU it says so, copies on the CPU, and
//! prints no GPU figures.

#[path = "testing/gpu.rs"]
mod gpu;

use clap::Parser;
use forerun_bench::gather::{self, GatherRow, Study};
use forerun_measure::progress::Progress;
use forerun_measure::report::check_html;
use gpu::has_gpu;

#[derive(Parser)]
struct Bench {
    #[command(flatten)]
    args: gather::Args,
}

fn bench(line: &str) -> Result<String, String> {
    let words = std::iter::once("gather").chain(line.split_whitespace());
    let bench = Bench::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    gather::run_to(&bench.args, &Progress::hidden(), &mut out)
        .map_err(|error| format!("{error:#}"))?;
    Ok(String::from_utf8(out).expect("text"))
}

fn rows(line: &str) -> Vec<GatherRow> {
    let text = bench(line).expect(line);
    let row = |line: &str| serde_json::from_str(line).expect(line);
    text.lines().map(row).collect()
}

#[test]
fn all_studies_run_and_the_published_setting_comes_first() {
    let text = bench("--quick").unwrap();
    let seed = text.find("Study: seed").expect("the seed's study");
    for line in [
        "  BS: 4",
        "  TopK: 33",
        "  Total Copies: 132",
        "  Data Size: 0.08 MB",
        "Check Passed: 196800 bytes compared",
    ] {
        assert!(text[seed..].contains(line), "{line}: {text}");
    }
    assert!(text.contains(" GiB/s (") && text.contains(" GB/s)"));
    for study in ["indices", "row-bytes", "direction", "offset"] {
        assert!(text.contains(&format!("\nStudy: {study}\n")), "{study}");
    }
    if !has_gpu() {
        assert!(text.starts_with("No GPU was found: "), "{text}");
        assert!(text.contains("all figures are for the CPU"));
        assert!(text.contains("Study: multiprocessors\nnot measured: it needs a GPU"));
        assert!(text.contains("Study: matrix-product\nnot measured: it needs a GPU"));
        assert!(!text.contains("default:"), "{text}");
    }
}

#[test]
fn without_a_gpu_no_row_has_gpu_figures() {
    let rows = rows(
        "--quick --json --study seed,direction,row-bytes --row-bytes 64,656 --ahead 0,2 --threads \
         2 --no-pytorch",
    );
    assert!(!rows.is_empty());
    for row in &rows {
        assert_eq!((row.bench.as_str(), row.rounds), ("gather", 2));
        assert!(row.gib_per_second > 0.0 && row.gb_per_second > row.gib_per_second);
        assert_eq!(row.bytes_checked > 0, row.method != "contiguous", "{row:?}");
        assert!(row.method == "contiguous" || row.share_of_contiguous.is_some());
    }
    if !has_gpu() {
        assert!(
            rows.iter()
                .all(|row| row.engine == "cpu" && row.device.is_none() && row.blocks.is_none())
        );
        let methods: Vec<&str> = rows.iter().take(5).map(|row| row.method.as_str()).collect();
        let all = [
            "contiguous",
            "memcpy",
            "ahead-2",
            "memcpy-2-threads",
            "ahead-2-2-threads",
        ];
        assert_eq!(methods, all);
        // One seed, two directions, two sizes.
        assert_eq!(rows.len(), 5 * 5);
    }
}

#[test]
fn a_page_has_a_chart_for_each_study() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gather.html");
    bench(&format!("--quick --no-pytorch --report {}", path.display())).unwrap();
    let html = std::fs::read_to_string(&path).expect("the page");
    check_html(&html).expect("well formed");
    let charts = html.matches("<svg").count();
    assert!(
        charts >= Study::ALL.len() - if has_gpu() { 0 } else { 2 },
        "{charts}"
    );
}

#[test]
fn once_and_check_report_their_result_or_the_reason() {
    let once = bench("--quick --once --direction scatter").unwrap();
    bench("--quick --once --within-device --row-bytes 64").unwrap();
    bench("--quick --once --pages huge").unwrap();
    let check = bench("--quick --check").unwrap();
    if has_gpu() {
        assert!(once.contains("Launched once") && check.contains("checked: "));
    } else {
        assert!(
            once.contains("on the CPU") && once.contains("no launch"),
            "{once}"
        );
        assert!(
            check.contains("Nothing was checked: this needs a GPU"),
            "{check}"
        );
    }
}

#[test]
fn wrong_arguments_get_a_message() {
    for (line, word) in [
        ("--study sideways", "row-bytes"),
        ("--version v9", "v5-r2"),
        ("--unit 2", "1, 4, 8, 16"),
        ("--multiprocessors none", "write 8, or all"),
        ("--indices odd", "repeated"),
        ("--direction up", "scatter"),
        ("--quick --slots 5", "do not fit 5 slots"),
        ("--quick --row-bytes 0", "at least one byte"),
        ("--quick --once --slots 5", "do not fit 5 slots"),
        ("--once --check", "cannot be used with"),
        ("--within-device", "--once"),
    ] {
        let error = bench(line).expect_err(line);
        assert!(error.contains(word), "{line}: {error}");
    }
}
