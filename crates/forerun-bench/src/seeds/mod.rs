//! `forerun-bench seeds`: the tables of the five documents in which Forerun's methods began, each
//! row beside ours.
//!
//! ```text
//!   find_ptr, copy_operator, row_search, simd_hash, finger_search    the documents: figures of theirs, where ours are
//!   document            what a document is made of
//!   committed           docs/results, for what this machine cannot run
//!   conclusion          what follows from a row
//!   result_row, show    results
//!   section             a page of the documentation that has them
//! ```
//!
//! Nothing is measured here: each of our figures is a field of a row of another bench.

mod committed;
mod conclusion;
mod copy_operator;
mod document;
mod find_ptr;
mod finger_search;
mod result_row;
mod row_search;
mod section;
mod show;
mod simd_hash;

pub use document::Seed;
pub use result_row::{OurFigure, SeedRow, TheirFigure};

use crate::bench_rows::{Measured, Measurement, Runner, figures};
use crate::engine::Engine;
use crate::output::{Output, on_stdout, or, write_facts};
use crate::threads::Cores;
use anyhow::Result;
use document::{Column, Document, Scale, Table, TableRow};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use section::Page;
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;

/// The tables of the five documents in which Forerun's methods began, each row beside ours
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench seeds --report seeds.html                   all five, about 15 minutes
  forerun-bench seeds --seed 004 --json
  forerun-bench seeds --quick                               shows that everything runs
  forerun-bench seeds --rewrite docs/internals/performance.md --report docs/results/seeds.html

000: HierarchicalKV's pull request 251, pointers found in full GPU tables. 001: Fast H2D, rows \
gathered from pinned host memory. 002: WiredTiger's WT-16838, prefetches in the search of a page's \
rows. 003: SimdHT-Bench, vector instructions in hash tables. 004: RocksDB's pull request 14428, \
finger search in the memtable.

Our figures are measured here by other benches; each line of JSON names their commands. What this \
machine cannot run is taken from docs/results, marked with a letter, and the table names the file \
and the machine that measured it.")]
pub struct Args {
    /// Documents [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub seed: Vec<Seed>,

    /// Also rewrites this page's section between the comments `begin: seeds` and `end: seeds`, with
    /// a row for each headline and a link to the page of --report
    #[arg(long, value_name = "FILE.md", conflicts_with = "seed")]
    pub rewrite: Option<PathBuf>,

    /// Formats. Rounds are those of each bench.
    #[command(flatten)]
    pub output: Output,
}

/// Measures and prints to the standard output.
///
/// # Errors
/// The errors of the benches, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    run_with(args, &[])
}

/// [`run`] with peers measured along with the memtable, in seed 004.
///
/// # Errors
/// The errors of [`run`], and errors of a peer.
pub fn run_with(args: &Args, peers: &[&dyn Engine]) -> Result<()> {
    on_stdout(|out| run_to(args, peers, &Progress::on_terminal(), out))
}

/// [`run_with`], printing to `out`: each table as soon as its document was measured.
///
/// # Errors
/// The same as for [`run_with`].
pub fn run_to(
    args: &Args,
    peers: &[&dyn Engine],
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    args.output.check()?;
    let report = args.output.report.as_deref();
    let page = args.rewrite.as_deref();
    let mut page = page.map(|page| Page::open(page, report)).transpose()?;
    let scale = Scale {
        quick: args.output.quick,
        cores: Cores::available().count(),
        with_peers: !peers.is_empty(),
    };
    let runner = Runner {
        output: &args.output,
        peers,
        progress,
    };
    let mut report = Report::new("The seeds", show::INTRO);
    report.facts = machine::facts();
    if !args.output.json {
        write_facts(out, &report.facts)?;
    }
    for seed in or(&args.seed, &Seed::ALL) {
        let document = document(seed, &scale);
        let measured = runner.measure(&document.measurements)?;
        show::begin(&mut report, &document);
        if !args.output.json {
            writeln!(out, "\n{}", show::heading(&document))?;
        }
        for table in &document.tables {
            let rows = rows(&document, table, &measured, &scale)?;
            if !args.output.json_rows(&rows, out)? {
                writeln!(out, "\n{}", show::text(table, &rows))?;
                out.flush()?;
            }
            show::section(&mut report, table, &rows);
            if let Some(page) = &mut page {
                page.add(&document, table.title, &rows);
            }
        }
    }
    if let Some(page) = page {
        page.write(&report.facts)?;
    }
    args.output.write_report(&report)
}

fn document(seed: Seed, scale: &Scale) -> Document {
    match seed {
        Seed::FindPtr => find_ptr::document(scale),
        Seed::CopyOperator => copy_operator::document(scale),
        Seed::RowSearch => row_search::document(scale),
        Seed::SimdHash => simd_hash::document(scale),
        Seed::FingerSearch => finger_search::document(scale),
    }
}

/// The rows of a table, with our figures.
fn rows(
    document: &Document,
    table: &Table,
    measured: &Measured,
    scale: &Scale,
) -> Result<Vec<SeedRow>> {
    let filled = table.rows.iter().map(|row| {
        let theirs = table.theirs.iter().zip(&row.theirs);
        let theirs = theirs.map(|((column, _), value)| TheirFigure {
            column: (*column).to_owned(),
            value: Some(*value).filter(|value| value.is_finite()),
        });
        let ours = table.columns.iter();
        let ours: Result<Vec<OurFigure>> = ours
            .map(|column| figure(document, column, row, measured))
            .collect();
        let ours = ours?;
        let is_missing = ours.iter().any(|figure| figure.value.is_none());
        let note = match row.note {
            "" if is_missing && row.cores > scale.cores => {
                format!("this machine has {} of {} cores", scale.cores, row.cores)
            }
            note => note.to_owned(),
        };
        let mut filled = SeedRow {
            bench: "seeds".to_owned(),
            seed: document.seed.number().to_owned(),
            source: document.source.to_owned(),
            table: table.title.to_owned(),
            row: row.name.clone(),
            unit: table.unit.to_owned(),
            conditions: table.conditions.to_owned(),
            theirs: theirs.collect(),
            ours,
            note,
            follows: String::new(),
        };
        filled.follows = conclusion::conclusion(table, row, &filled);
        Ok(filled)
    });
    filled.collect()
}

/// Our figure for a column and a row: of this machine, or else a committed one.
fn figure(
    document: &Document,
    column: &Column,
    row: &TableRow,
    measured: &Measured,
) -> Result<OurFigure> {
    let value = |found: Option<&Value>| {
        let value = found?[row.value.unwrap_or(column.value)].as_f64()?;
        Some(value * column.scale)
    };
    let mut figure = OurFigure {
        column: column.name.to_owned(),
        ..OurFigure::default()
    };
    if let Some((name, fields)) = &column.here {
        let name = row.measurement.unwrap_or(*name);
        let rows = measured.get(name).map_or(&[][..], Vec::as_slice);
        figure.value = value(figures::find(rows, [fields, &row.fields])?);
        let used = document.measurements.iter().find(|used| used.name == name);
        figure.command = used
            .filter(|_| figure.value.is_some())
            .map(Measurement::command);
    }
    if let (None, Some((file, fields))) = (figure.value, &column.committed) {
        let rows = file.rows();
        // A file may have several runs of one command; the last counts.
        figure.value = value(figures::matching(&rows, [fields, &row.fields]).last());
        if figure.value.is_some() {
            figure.file = Some(file.path().to_owned());
            figure.device = Some(file.device().to_owned());
        }
    }
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use document::Headline;

    const WHOLE: Scale = Scale {
        quick: false,
        cores: 2,
        with_peers: false,
    };

    /// The tables of the documents: how many rows each has, and the sum of all of their figures, so
    /// that none is lost or mistyped. The sums were made from the documents, not from the code.
    #[test]
    fn every_row_of_every_table_of_the_documents_is_there() {
        for (seed, title, rows, sum) in [
            (Seed::FindPtr, "find* by load", 3, 44.61),
            (
                Seed::FindPtr,
                "find* after the change over before",
                3,
                0.617,
            ),
            (Seed::CopyOperator, "V0 to V4", 5, 252.2131),
            (
                Seed::RowSearch,
                "the profile of a search of one key",
                10,
                14_543.673,
            ),
            (
                Seed::SimdHash,
                "multi-get end to end, with MemC3's index in the same server",
                6,
                6.0 * 4.15,
            ),
            (
                Seed::FingerSearch,
                "multireadrandom, one thread",
                4,
                2_978_078.0,
            ),
            (
                Seed::FingerSearch,
                "multireadrandom, batches of 64, several threads",
                4,
                689_859.0,
            ),
            (
                Seed::FingerSearch,
                "small batches, multireadrandom",
                4,
                6_930_332.0,
            ),
            (
                Seed::FingerSearch,
                "multireadwhilewriting, batches of 64",
                3,
                809_775.0,
            ),
            (
                Seed::FingerSearch,
                "small batches, multireadwhilewriting",
                6,
                5_855_476.0,
            ),
        ] {
            let document = document(seed, &WHOLE);
            let table = document.tables.iter().find(|table| table.title == title);
            let table = table.expect(title);
            assert_eq!(table.rows.len(), rows, "{title}");
            // The changes of seed 004 are computed from its rates, so they are left out.
            let columns = table.theirs.iter().map(|(name, _)| *name);
            let rates: Vec<bool> = columns
                .map(|name| seed != Seed::FingerSearch || name != "change")
                .collect();
            let figures = table.rows.iter().flat_map(|row| {
                let figures = row.theirs.iter().zip(&rates);
                figures
                    .filter(|(_, counts)| **counts)
                    .map(|(value, _)| *value)
            });
            let found: f64 = figures.filter(|value| value.is_finite()).sum();
            assert!(
                (found - sum).abs() < 1e-6 * sum,
                "{title}: {found}, not {sum}"
            );
        }
    }

    #[test]
    fn rows_and_columns_fit_together() {
        for seed in Seed::ALL {
            let document = document(seed, &WHOLE);
            assert!(!document.headlines.is_empty());
            let titles: Vec<&str> = document.tables.iter().map(|one| one.title).collect();
            assert!(
                document
                    .headlines
                    .iter()
                    .all(|one| titles.contains(&one.table))
            );
            let names: Vec<&str> = document.measurements.iter().map(|one| one.name).collect();
            for table in &document.tables {
                assert!(
                    !table.follows.is_empty() && !table.lacks.is_empty(),
                    "{}",
                    table.title
                );
                assert!(table.follows.matches('.').count() >= 2, "{}", table.follows);
                let known = |table: &Table, headline: &Headline| {
                    let rows = table.rows.iter().any(|row| row.name == headline.row);
                    let theirs = table
                        .theirs
                        .iter()
                        .any(|(name, _)| *name == headline.theirs);
                    let ours = table.columns.iter().any(|one| one.name == headline.ours);
                    rows && (theirs || headline.theirs.is_empty()) && ours
                };
                let of_table = document.headlines.iter();
                let mut of_table = of_table.filter(|one| one.table == table.title);
                assert!(of_table.all(|one| known(table, one)), "{}", table.title);
                for row in &table.rows {
                    let len = row.theirs.len();
                    assert!(len == table.theirs.len() || len == 0, "{}", row.name);
                    for (name, _) in table.columns.iter().flat_map(|column| &column.here) {
                        let name = row.measurement.unwrap_or(*name);
                        assert!(names.contains(&name), "{}: {name}", table.title);
                    }
                }
            }
        }
    }

    /// Without any measurement, the committed figures are there, and only those.
    #[test]
    fn committed_results_have_the_figures_that_their_columns_name() {
        let mut files = Vec::new();
        for seed in Seed::ALL {
            let document = document(seed, &WHOLE);
            for table in &document.tables {
                let rows = rows(&document, table, &Measured::new(), &WHOLE).unwrap();
                for (at, column) in table.columns.iter().enumerate() {
                    let figures: Vec<&OurFigure> = rows.iter().map(|row| &row.ours[at]).collect();
                    let found = figures.iter().filter(|figure| figure.value.is_some());
                    let is_committed = column.committed.is_some();
                    assert_eq!(found.clone().count() > 0, is_committed, "{}", column.name);
                    for figure in found {
                        assert!(figure.value.is_some_and(|value| value > 0.0));
                        assert!(figure.device.is_some() && figure.command.is_none());
                        files.push(figure.file.clone().unwrap());
                    }
                }
            }
        }
        for file in committed::CommittedResults::ALL {
            assert!(
                files.iter().any(|used| used == file.path()),
                "{}",
                file.path()
            );
        }
        // The GPU's tables are complete, but for the row of a rate that has no ratio.
        let document = document(Seed::CopyOperator, &WHOLE);
        let rows = rows(&document, &document.tables[0], &Measured::new(), &WHOLE).unwrap();
        assert!(
            rows.iter()
                .all(|row| row.ours.iter().all(|ours| ours.value.is_some()))
        );
    }
}
