//! The rows of other benches, which are run by their own command lines.
//!
//! ```text
//!   "hash --size 1GiB …" ─ Runner ─> hash::run_to ─> lines of JSON ─> rows
//!   figures.rs                                      a figure among rows
//! ```

pub(crate) mod figures;

use crate::engine::Engine;
use crate::output::Output;
use crate::{btree, cache, count_lookups, gather, gpu_table, hash, memtable, roofline, server};
use anyhow::{Context, Result, bail};
use clap::{ArgMatches, Command};
use figures::parse_lines;
use forerun_measure::progress::Progress;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;

/// Rows that are measured together.
pub(crate) struct Measurement {
    /// Its name in the columns.
    pub(crate) name: &'static str,
    /// The command line after `forerun-bench`, without the options of all benches.
    pub(crate) line: String,
}

impl Measurement {
    pub(crate) fn new(name: &'static str, line: impl Into<String>) -> Measurement {
        Measurement {
            name,
            line: line.into(),
        }
    }

    /// The command that repeats it.
    pub(crate) fn command(&self) -> String {
        format!("forerun-bench {}", self.line)
    }
}

/// How the measurements run.
pub(crate) struct Runner<'a> {
    /// The options of the whole run.
    pub(crate) output: &'a Output,
    /// Measured along with the memtable.
    pub(crate) peers: &'a [&'a dyn Engine],
    pub(crate) progress: &'a Progress,
}

/// The rows of measurements, by their names.
pub(crate) type Measured = BTreeMap<&'static str, Vec<Value>>;

impl Runner<'_> {
    /// Runs the measurements one after the other.
    ///
    /// # Errors
    /// Those of the benches.
    pub(crate) fn measure(&self, measurements: &[Measurement]) -> Result<Measured> {
        let mut measured = Measured::new();
        for measurement in measurements {
            let rows = self
                .rows(&measurement.line)
                .with_context(|| measurement.command())?;
            measured.insert(measurement.name, rows);
        }
        Ok(measured)
    }

    /// The rows of one command line.
    ///
    /// # Errors
    /// Those of the bench.
    pub(crate) fn rows(&self, line: &str) -> Result<Vec<Value>> {
        let mut words = line.split_whitespace();
        let bench = words.next().unwrap_or_default();
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        words.push("--json".to_owned());
        words.extend(self.output.quick.then(|| "--quick".to_owned()));
        if let Some(rounds) = self.output.rounds {
            // The run's option replaces the line's own.
            if let Some(at) = words.iter().position(|word| word == "--rounds") {
                words.drain(at..at + 2);
            }
            words.extend(["--rounds".to_owned(), rounds.to_string()]);
        }
        let mut out = Vec::new();
        self.run(bench, &words, &mut out)?;
        parse_lines(std::str::from_utf8(&out).context("a bench printed other bytes than text")?)
    }

    fn run(&self, bench: &str, words: &[String], out: &mut dyn Write) -> Result<()> {
        let progress = self.progress;
        match bench {
            "memtable" => memtable::run_to(&parse(words)?, self.peers, None, progress, out),
            "btree" => btree::run_to(&parse(words)?, &[], None, progress, out),
            "hash" => hash::run_to(&parse(words)?, &[], None, progress, out),
            "cache" => cache::run_to(&parse(words)?, progress, out),
            "roofline" => roofline::run_to(&parse(words)?, progress, out),
            "gather" => gather::run_to(&parse(words)?, progress, out),
            "gpu-table" => gpu_table::run_to(&parse(words)?, progress, out),
            "server" => server::run_to(&parse(words)?, progress, out),
            "count-lookups" => count_lookups::run_to(&parse(words)?, progress, out),
            _ => bail!("there is no bench {bench}"),
        }
    }
}

/// The arguments of a bench.
fn parse<A: clap::Args>(words: &[String]) -> Result<A> {
    let command = A::augment_args(Command::new("bench").no_binary_name(true));
    let matches: ArgMatches = command.try_get_matches_from(words)?;
    Ok(A::from_arg_matches(&matches)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_run_by_the_bench_that_it_names() {
        let runner = Runner {
            output: &Output {
                quick: true,
                rounds: Some(1),
                ..Output::default()
            },
            peers: &[],
            progress: &Progress::hidden(),
        };
        let line =
            "memtable --batch 8 --hit-rate 1 --strategy auto --workload multireadrandom --rounds 9";
        let rows = runner.rows(line).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (&rows[1]["bench"], &rows[1]["batch"]),
            (&"memtable".into(), &8.into())
        );
        for (line, word) in [("table", "no bench"), ("memtable --lines 3", "--lines")] {
            let error = runner.rows(line).unwrap_err();
            assert!(format!("{error:#}").contains(word), "{error:#}");
        }
    }
}
