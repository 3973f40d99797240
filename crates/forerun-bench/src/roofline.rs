//! `forerun-bench roofline`: prints the machine's random-access rate.
//!
//! In the rows, a line of the buffer counts as a key: `batch` is the number of lines in flight per
//! thread, `strategy` is `chase`, `case` is `dependent` for one line in flight and `independent`
//! for more, `speedup_vs_single` is the ratio to one line in flight, and `roofline_share` is the
//! share of the best rate with the same number of threads. One more row, `resume`, is the cost of
//! suspending a lookup and resuming it when its line is already cached (`strategy` is
//! `interleaved`; a key is one suspension).

use crate::output::{Output, Timing, on_stdout, write_facts};
use anyhow::{Context, Result};
use forerun_core::size::parse_size;
use forerun_core::{Pages, arch};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
use forerun_measure::result_row::Row;
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;
use forerun_studies::roofline::{Cell, Config, IN_FLIGHT, Resume, Roofline, measure, resume};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// The kind of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PagesArg {
    /// The system's ordinary pages.
    Small,
    /// Huge pages by advice.
    Huge,
}

impl From<PagesArg> for Pages {
    fn from(pages: PagesArg) -> Pages {
        match pages {
            PagesArg::Small => Pages::Small,
            PagesArg::Huge => Pages::Huge,
        }
    }
}

/// The machine's random-access rate: the latency of a dependent miss, and lines per second by how
/// many are in flight
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Example: forerun-bench roofline --threads 1,2 --pages huge --report roofline.html

Every case reads random cache lines of a buffer far larger than the caches. One chase in flight \
pays the whole latency for each line; several overlap their misses.")]
pub struct Args {
    /// Size of the buffer, one for each kind of page [default: 1Gi; with --quick 4Mi]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub buffer: Option<usize>,

    /// Lines in flight per thread, of 1, 2, 4, 8, 16, 32, 64 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub in_flight: Vec<usize>,

    /// Threads, each pinned to a core [default: 1 and the number of cores]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub threads: Vec<usize>,

    /// Kinds of pages for the buffer [default: huge,small]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub pages: Vec<PagesArg>,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, a buffer that cannot be allocated, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// Measures and prints to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
    let config = args.config();
    let roofline = measure_with(&config, progress)?;
    let resume = resume(config.rounds);
    let mut rows = rows(&roofline, &config);
    rows.push(resume_row(&resume, &config));
    if !args.output.json_rows(&rows, out)? {
        write_facts(out, &facts(&roofline))?;
        writeln!(out, "\n{}", table(&roofline).to_text())?;
        writeln!(
            out,
            "resume: {} ns ({} - {}) to suspend a lookup and resume it when its line is already \
             cached.",
            digits(resume.ns),
            digits(resume.ns_min),
            digits(resume.ns_max)
        )?;
        writeln!(
            out,
            "Medians of {} rounds; slowest-fastest in the last column. A line is {} bytes.",
            config.rounds,
            arch::CACHE_LINE_BYTES
        )?;
    }
    args.output
        .write_report(&report(&roofline, &resume, &config))
}

impl Args {
    /// The lists, with defaults filled in.
    fn config(&self) -> Config {
        let plan = self.output.plan(&self.timing);
        let defaults = Config::default();
        let or = |list: &[usize], default: Vec<usize>| match list {
            [] => default,
            list => list.to_vec(),
        };
        let buffer_bytes = if self.output.quick { 4 << 20 } else { 1 << 30 };
        Config {
            buffer_bytes: self.buffer.unwrap_or(buffer_bytes),
            pages: match &self.pages[..] {
                [] => defaults.pages,
                list => list.iter().map(|&pages| pages.into()).collect(),
            },
            threads: or(&self.threads, defaults.threads),
            in_flight: or(&self.in_flight, IN_FLIGHT.to_vec()),
            rounds: plan.rounds,
            // A rate of lines becomes stable sooner than the rate of a store.
            duration: match self.timing.duration_ms {
                Some(_) => plan.duration,
                None => plan.duration / 4,
            },
        }
    }
}

/// The highest rates of random lines per second by number of threads, measured in a second or two,
/// for lookup benches to compare with.
///
/// # Errors
/// A buffer that cannot be allocated.
pub fn lines_per_second(
    threads: &[usize],
    quick: bool,
    progress: &Progress,
) -> Result<BTreeMap<usize, f64>> {
    let config = Config {
        buffer_bytes: if quick { 4 << 20 } else { 512 << 20 },
        pages: vec![Pages::Huge],
        threads: threads.to_vec(),
        in_flight: vec![16, 32, 64],
        rounds: if quick { 1 } else { 5 },
        duration: Duration::from_millis(if quick { 1 } else { 30 }),
    };
    let roofline = measure_with(&config, progress)?;
    let rates = threads
        .iter()
        .filter_map(|&n| Some((n, roofline.lines_per_second(n)?)));
    Ok(rates.collect())
}

fn measure_with(config: &Config, progress: &Progress) -> Result<Roofline> {
    let cells = config.pages.len() * config.threads.len() * config.in_flight.len();
    let bar = progress.steps("roofline", (config.rounds * cells) as u64);
    measure(config, |done, _| bar.at(done as u64)).context("measuring the random-access rate")
}

/// The rate of the same pages and threads with one line in flight.
fn one_in_flight(roofline: &Roofline, cell: &Cell) -> Option<f64> {
    let same = |other: &&Cell| {
        other.pages == cell.pages && other.threads == cell.threads && other.in_flight == 1
    };
    Some(roofline.cells.iter().find(same)?.lines_per_second)
}

fn rows(roofline: &Roofline, config: &Config) -> Vec<Row> {
    let row = |cell: &Cell| {
        let buffer = roofline.buffers.iter().find(|b| b.pages == cell.pages);
        let best = roofline.lines_per_second(cell.threads);
        Row {
            bench: "roofline".into(),
            case: if cell.in_flight == 1 {
                "dependent".into()
            } else {
                "independent".into()
            },
            engine: "forerun".into(),
            strategy: "chase".into(),
            keys: buffer.map_or(0, |b| b.len_bytes / arch::CACHE_LINE_BYTES) as u64,
            key_bytes: size_of::<usize>() as u64,
            value_bytes: (arch::CACHE_LINE_BYTES - size_of::<usize>()) as u64,
            batch: cell.in_flight as u64,
            threads: cell.threads as u64,
            hit_rate: Some(1.0),
            pages: cell.pages.to_string(),
            isa: arch::isa().to_string(),
            rounds: config.rounds as u64,
            speedup_vs_single: one_in_flight(roofline, cell).map(|one| cell.lines_per_second / one),
            roofline_share: best.map(|best| cell.lines_per_second / best),
            backing: buffer.map(|buffer| buffer.backing.to_string()),
            ..Row::default()
        }
        .with_rates(
            cell.lines_per_second,
            cell.lines_per_second_min,
            cell.lines_per_second_max,
        )
    };
    roofline.cells.iter().map(row).collect()
}

fn resume_row(resume: &Resume, config: &Config) -> Row {
    Row {
        bench: "roofline".into(),
        case: "resume".into(),
        engine: "forerun".into(),
        strategy: "interleaved".into(),
        batch: 32,
        threads: 1,
        isa: arch::isa().to_string(),
        rounds: config.rounds as u64,
        ..Row::default()
    }
    .with_rates(1e9 / resume.ns, 1e9 / resume.ns_max, 1e9 / resume.ns_min)
}

fn facts(roofline: &Roofline) -> Vec<(String, String)> {
    let mut facts = machine::facts();
    for buffer in &roofline.buffers {
        let huge = match buffer.huge_bytes {
            Some(bytes) => format!(
                ", {:.0}% in huge pages",
                100.0 * bytes as f64 / buffer.len_bytes as f64
            ),
            None => String::new(),
        };
        let text = format!(
            "{}B, {}{huge}",
            count(buffer.len_bytes as u64),
            buffer.backing
        );
        facts.push((format!("{} buffer", buffer.pages), text));
    }
    facts
}

fn table(roofline: &Roofline) -> TextTable {
    let mut table = TextTable::new([
        "pages",
        "threads",
        "in flight",
        "lines/s",
        "ns per line",
        "vs one",
        "slowest-fastest",
    ]);
    for cell in &roofline.cells {
        let vs_one = one_in_flight(roofline, cell).map(|one| cell.lines_per_second / one);
        table.push([
            cell.pages.to_string(),
            cell.threads.to_string(),
            cell.in_flight.to_string(),
            short(cell.lines_per_second),
            digits(cell.ns_per_line()),
            vs_one.map_or("-".into(), |ratio| format!("{}x", digits(ratio))),
            spread(cell.lines_per_second_min, cell.lines_per_second_max),
        ]);
    }
    table
}

fn report(roofline: &Roofline, resume: &Resume, config: &Config) -> Report {
    let mut report = Report::new(
        "Random-access rate",
        "How fast this machine reads random cache lines, by the number of reads in flight. One at \
         a time pays the whole memory latency for each line; many overlap their latencies.",
    );
    report.facts = facts(roofline);
    if let Some(ns) = roofline.dependent_ns() {
        report
            .tiles
            .push(Tile::new("a dependent miss", format!("{} ns", digits(ns))));
    }
    for &threads in &config.threads {
        if let Some(rate) = roofline.lines_per_second(threads) {
            let what = match threads {
                1 => "independent lines per second, 1 thread".to_owned(),
                n => format!("independent lines per second, {n} threads"),
            };
            report.tiles.push(Tile::new(what, short(rate)));
        }
    }
    report.tiles.push(Tile::new(
        "to suspend a lookup and resume it",
        format!("{} ns", digits(resume.ns)),
    ));
    let mut chart = Chart::new("Random lines per second", Shape::Lines);
    chart.x_label = "lines in flight per thread".into();
    chart.y_label = "lines per second".into();
    chart.x = config.in_flight.iter().map(usize::to_string).collect();
    for group in roofline
        .cells
        .chunk_by(|a, b| (a.pages, a.threads) == (b.pages, b.threads))
    {
        let threads = match group[0].threads {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        };
        let values = group.iter().map(|cell| {
            Some((
                cell.lines_per_second,
                cell.lines_per_second_min,
                cell.lines_per_second_max,
            ))
        });
        chart.push(format!("{threads}, {} pages", group[0].pages), values);
    }
    report.sections.push(Section::Chart(chart));
    report.sections.push(Section::Table {
        caption: format!("Medians of {} rounds", config.rounds),
        table: table(roofline),
    });
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_runs_every_cell_and_prints_a_table() {
        let args = Args {
            output: Output {
                quick: true,
                ..Output::default()
            },
            threads: vec![1, 2],
            ..Args::default()
        };
        let mut out = Vec::new();
        run_to(&args, &Progress::hidden(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let cells = text
            .lines()
            .filter(|line| line.contains('x') && line.contains(" - "))
            .count();
        assert_eq!(cells, 2 * 2 * 7, "{text}");
        assert!(text.contains("instruction set") && text.contains("huge buffer"));
    }

    #[test]
    fn the_rate_for_other_benches_covers_their_threads() {
        let rates = lines_per_second(&[2, 1], true, &Progress::hidden()).unwrap();
        assert_eq!(rates.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert!(rates.values().all(|&rate| rate > 0.0));
    }
}
