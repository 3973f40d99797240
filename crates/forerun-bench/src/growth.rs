//! `forerun-bench growth`: what a lookup costs as a structure grows, for the memtable, a run, the
//! hash table and the cache, beside random lines of memory.
//!
//! ```text
//!   entries      100k         1M         10M …      each structure alone in memory, by its own bench
//!   lines        one line for each entry, read at random: the most that the machine can do at that size
//! ```
//!
//! Nothing is measured here: each figure is a field of a row of another bench.

use crate::bench_rows::figures::{Fields, fields, matching};
use crate::bench_rows::{Measurement, Runner};
use crate::output::{Output, on_stdout, or, write_facts};
use crate::panels::{distinct, push_series};
use anyhow::{Context, Result, ensure};
use forerun_core::size::{parse_count, parse_size};
use forerun_core::{CACHE_LINE_BYTES, memory_limit};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::{Chart, Report, Scale, Section, Shape};
use forerun_measure::result_row::Row;
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Write;

/// What a lookup costs as memtable, run, hash table and cache grow, beside the machine's line rate
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench growth --report growth.html               100,000 to 100 M entries, half an hour
  forerun-bench growth --structure hash,lines --entries 1M,2M,4M
  forerun-bench growth --batch 1024 --value-bytes 100 --json

Keys have 16 bytes; those of the hash table, and its values, have 8. Every lookup finds its key. A \
structure that would not fit into --memory at some size is left out there. \"lines\" reads a \
random cache line of a buffer with one line for each entry: the most lookups that the machine \
could do at that size if each read one line.")]
pub struct Args {
    /// Numbers of entries [default: 100k,1M,10M,30M,100M; with --quick 5k,20k]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    pub entries: Vec<u64>,

    /// Structures [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub structure: Vec<Structure>,

    /// Keys per batch
    #[arg(long, value_name = "N", default_value = "64", value_parser = parse_size)]
    pub batch: usize,

    /// Bytes per value, except in the hash table
    #[arg(long, value_name = "BYTES", default_value = "16", value_parser = parse_size)]
    pub value_bytes: usize,

    /// Memory that a bench may use [default: three quarters of what the process may]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub memory: Option<usize>,

    /// Formats. Rounds are those of each bench.
    #[command(flatten)]
    pub output: Output,
}

/// A structure that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Structure {
    /// Random lines of memory
    Lines,
    /// The hash table
    Hash,
    /// The memtable, by its hash index
    Memtable,
    /// A run in the page cache, by its index
    Run,
    /// The cache
    Cache,
}

/// The load factor of hash tables.
const LOAD: f64 = 0.7;

impl Structure {
    const ALL: [Structure; 5] = [
        Structure::Lines,
        Structure::Hash,
        Structure::Memtable,
        Structure::Run,
        Structure::Cache,
    ];

    fn name(self) -> &'static str {
        match self {
            Structure::Lines => "random lines",
            Structure::Hash => "hash table",
            Structure::Memtable => "memtable",
            Structure::Run => "run",
            Structure::Cache => "cache",
        }
    }

    /// The memory that its bench takes for each entry, roughly: the structure, and what is measured
    /// along with it.
    fn bytes_per_entry(self, value_bytes: usize) -> usize {
        match self {
            Structure::Lines => CACHE_LINE_BYTES,
            Structure::Hash => (16.0 / LOAD) as usize,
            Structure::Memtable => 16 + value_bytes + 77,
            Structure::Run => 16 + value_bytes + 24,
            // MemC3's items and index are there, too.
            Structure::Cache => 5 * (16 + value_bytes + 64) / 2,
        }
    }

    /// The bench that measures it, and the fields of the row with the figure.
    fn bench(self, entries: u64, args: &Args) -> (Measurement, Fields) {
        let Args {
            batch, value_bytes, ..
        } = args;
        let lookups = format!(
            "--keys {entries} --value-bytes {value_bytes} --batch {batch} --hit-rate 1 --strategy"
        );
        let (line, fields) = match self {
            Structure::Lines => {
                let buffer_bytes = entries * CACHE_LINE_BYTES as u64;
                let line = format!(
                    "roofline --buffer {buffer_bytes} --threads 1 --pages huge --in-flight 16,32,64"
                );
                (line, fields! {strategy: "chase"})
            }
            Structure::Hash => {
                let size_bytes = (entries as f64 / LOAD * 16.0).ceil() as u64;
                let line = format!(
                    "hash --size {size_bytes} --load-factor {LOAD} --batch {batch} --design table \
                     --strategy find"
                );
                (line, fields! {design: "table"})
            }
            Structure::Memtable => (
                format!("memtable {lookups} auto --workload multireadrandom"),
                fields! {engine: "forerun", strategy: "auto"},
            ),
            Structure::Run => (
                format!("btree {lookups} index"),
                fields! {engine: "forerun", strategy: "index"},
            ),
            Structure::Cache => (
                format!(
                    "cache --part multiget --items {entries} --value {value_bytes} --batch {batch}"
                ),
                fields! {strategy: "multiget"},
            ),
        };
        (Measurement::new(self.name(), line), fields)
    }
}

/// A structure at a size: a line of JSON with the names of [`Row`] and these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GrowthRow {
    /// The fields that every bench's rows have. `case` is the structure, and `roofline_share` the
    /// share of the random lines of a buffer with one line for each entry.
    #[serde(flatten)]
    pub common: Row,
    /// The command that measured it.
    pub command: String,
}

/// Measures and prints to the standard output.
///
/// # Errors
/// The errors of the benches, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// Measures and prints to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
    let default: &[u64] = if args.output.quick {
        &[5000, 20_000]
    } else {
        &[100_000, 1_000_000, 10_000_000, 30_000_000, 100_000_000]
    };
    let entries = or(&args.entries, default);
    ensure!(args.batch > 0, "a batch needs at least one key");
    ensure!(
        entries.iter().all(|entries| *entries >= 1000),
        "a structure of fewer than 1,000 entries is not measured"
    );
    let memory = args.memory.map(|bytes| bytes as u64);
    let memory = memory.or_else(|| Some(memory_limit()?.bytes / 4 * 3));
    let runner = Runner {
        output: &args.output,
        peers: &[],
        progress,
    };
    let mut rows: Vec<GrowthRow> = Vec::new();
    let mut left_out = Vec::new();
    for structure in or(&args.structure, &Structure::ALL) {
        for &entries in &entries {
            let bytes = entries.saturating_mul(structure.bytes_per_entry(args.value_bytes) as u64);
            if memory.is_some_and(|limit| bytes > limit) {
                left_out.push(format!(
                    "{} of {} entries would take about {}B",
                    structure.name(),
                    count(entries),
                    short(bytes as f64)
                ));
                continue;
            }
            rows.push(measure(&runner, structure, entries, args)?);
        }
    }
    let lines: Vec<Row> = rows
        .iter()
        .filter(|row| row.common.case == Structure::Lines.name())
        .map(|row| row.common.clone())
        .collect();
    for row in rows.iter_mut().map(|row| &mut row.common) {
        let of_size = lines.iter().find(|lines| lines.keys == row.keys);
        row.roofline_share = of_size.map(|lines| row.keys_per_second / lines.keys_per_second);
    }
    let facts = machine::facts();
    if !args.output.json_rows(&rows, out)? {
        write_facts(out, &facts)?;
        writeln!(out, "\n{}", table(&rows).to_text())?;
        for text in &left_out {
            writeln!(out, "Left out: {text}.")?;
        }
    }
    args.output
        .write_report(&report(&rows, &left_out, facts, args.batch))
}

/// Runs the bench of a structure.
fn measure(
    runner: &Runner<'_>,
    structure: Structure,
    entries: u64,
    args: &Args,
) -> Result<GrowthRow> {
    let (measurement, fields) = structure.bench(entries, args);
    let command = measurement.command();
    let rows = runner
        .rows(&measurement.line)
        .with_context(|| command.clone())?;
    let rate = |row: &&Value| row["keys_per_second"].as_f64().unwrap_or_default();
    // Of the numbers of lines in flight the best counts; other benches have one such row.
    let row = matching(&rows, [&fields, &Fields::new()])
        .max_by(|a, b| rate(a).total_cmp(&rate(b)))
        .with_context(|| format!("`{command}` printed no row with {fields:?}"))?;
    let mut common: Row =
        serde_json::from_value(row.clone()).with_context(|| format!("a row of `{command}`"))?;
    common.bench = "growth".to_owned();
    common.case = structure.name().to_owned();
    common.keys = entries;
    // The cache's own bench does not count single lookups in the same field.
    common.speedup_vs_single = None;
    common.share_of_best = None;
    Ok(GrowthRow { common, command })
}

fn table(rows: &[GrowthRow]) -> TextTable {
    let mut table = TextTable::new([
        "structure",
        "entries",
        "keys/s",
        "ns per key",
        "slowest-fastest",
        "of lines",
    ]);
    for row in rows.iter().map(|row| &row.common) {
        let share = row
            .roofline_share
            .filter(|_| row.case != Structure::Lines.name());
        table.push([
            row.case.clone(),
            count(row.keys),
            short(row.keys_per_second),
            digits(row.ns_per_key),
            spread(row.keys_per_second_min, row.keys_per_second_max),
            share.map_or_else(
                || "-".to_owned(),
                |share| format!("{}%", digits(100.0 * share)),
            ),
        ]);
    }
    table
}

fn report(
    rows: &[GrowthRow],
    left_out: &[String],
    facts: Vec<(String, String)>,
    batch: usize,
) -> Report {
    let lead = format!(
        "Lookups in batches of {batch} as a structure grows, each structure alone in memory, \
         beside random lines of a buffer with one line for each entry."
    );
    let mut report = Report::new("Growth", lead);
    report.facts = facts;
    let rows_by_size: Vec<&GrowthRow> = rows.iter().collect();
    let mut sizes = distinct(rows.iter().map(|row| row.common.keys));
    sizes.sort_unstable();
    type Figure = fn(&Row) -> (f64, f64, f64);
    let nanoseconds: Figure = |row| {
        let ns = |rate: f64| 1e9 / rate;
        let (median, slowest, fastest) = row.rates();
        (ns(median), ns(fastest), ns(slowest))
    };
    for (title, unit, figure, format) in [
        (
            "Keys per second",
            "keys per second, logarithmic",
            Row::rates as Figure,
            short as fn(f64) -> String,
        ),
        (
            "Nanoseconds per key",
            "nanoseconds, logarithmic",
            nanoseconds,
            digits,
        ),
    ] {
        let mut chart = Chart::new(title, Shape::Lines);
        chart.x_label = "entries".into();
        chart.y_label = unit.into();
        chart.scale = Scale::Log;
        chart.format = format;
        chart.x = sizes.iter().map(|&size| count(size)).collect();
        push_series(
            &mut chart,
            &rows_by_size,
            |row| row.common.case.clone(),
            |row| count(row.common.keys),
            |row| Some(figure(&row.common)),
        );
        report.sections.push(Section::Chart(chart));
    }
    report.sections.push(Section::Table {
        caption: "of lines: keys per second over the random lines of that size".to_owned(),
        table: table(rows),
    });
    for row in rows {
        report.sections.push(Section::Text(row.command.clone()));
    }
    for text in left_out {
        report
            .sections
            .push(Section::Text(format!("Left out: {text}.")));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_measure::report::check_html;

    fn quick(change: impl FnOnce(&mut Args)) -> Result<String> {
        let mut args = Args {
            batch: 64,
            value_bytes: 16,
            output: Output {
                quick: true,
                json: true,
                rounds: Some(1),
                ..Output::default()
            },
            ..Args::default()
        };
        change(&mut args);
        let mut out = Vec::new();
        run_to(&args, &Progress::hidden(), &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn each_structure_is_measured_at_each_size_and_compared_with_lines() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("growth.html");
        let text = quick(|args| args.output.report = Some(page.clone())).unwrap();
        let rows: Vec<GrowthRow> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let found: Vec<(&str, u64)> = rows
            .iter()
            .map(|row| (row.common.case.as_str(), row.common.keys))
            .collect();
        let expected: Vec<(&str, u64)> = Structure::ALL
            .iter()
            .flat_map(|structure| [5000, 20_000].map(|entries| (structure.name(), entries)))
            .collect();
        assert_eq!(found, expected);
        for row in &rows {
            assert!(
                row.common.keys_per_second > 0.0 && row.common.ns_per_key > 0.0,
                "{row:?}"
            );
            assert!(row.common.roofline_share.is_some_and(|share| share > 0.0));
            assert!(row.command.starts_with("forerun-bench "));
        }
        let html = std::fs::read_to_string(page).unwrap();
        check_html(&html).unwrap();
        assert_eq!(html.matches("<svg").count(), 2);
    }

    #[test]
    fn what_does_not_fit_into_memory_is_left_out_and_said() {
        let text = quick(|args| {
            args.structure = vec![Structure::Hash, Structure::Lines];
            args.entries = vec![5000];
            args.memory = Some(200_000);
            args.output.json = false;
        });
        let text = text.unwrap();
        assert!(
            text.contains("hash table") && text.contains("Left out: random lines of 5k"),
            "{text}"
        );
        let error = quick(|args| args.entries = vec![10]).unwrap_err();
        assert!(error.to_string().contains("1,000"), "{error}");
    }
}
