//! Measures what fills our columns: the benches, by their own command lines.

use super::figures::parse_lines;
use crate::engine::Engine;
use crate::output::Output;
use crate::{btree, count_lookups, gather, gpu_table, hash, memtable, server};
use anyhow::{Context, Result, bail};
use clap::{ArgMatches, Command};
use forerun_measure::progress::Progress;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;

/// Rows that are measured together.
pub(super) struct Measurement {
    /// Its name in the columns.
    pub(super) name: &'static str,
    /// The command line after `forerun-bench`, without the options of all benches.
    pub(super) line: String,
}

impl Measurement {
    pub(super) fn new(name: &'static str, line: impl Into<String>) -> Measurement {
        Measurement {
            name,
            line: line.into(),
        }
    }

    /// The command that repeats it.
    pub(super) fn command(&self) -> String {
        format!("forerun-bench {}", self.line)
    }
}

/// How the measurements run.
pub(super) struct Runner<'a> {
    /// The options of the whole run.
    pub(super) output: &'a Output,
    /// Measured along with the memtable.
    pub(super) peers: &'a [&'a dyn Engine],
    pub(super) progress: &'a Progress,
}

/// The rows of measurements, by their names.
pub(super) type Measured = BTreeMap<&'static str, Vec<Value>>;

impl Runner<'_> {
    /// Runs the measurements one after the other.
    ///
    /// # Errors
    /// Those of the benches.
    pub(super) fn measure(&self, measurements: &[Measurement]) -> Result<Measured> {
        let mut measured = Measured::new();
        for measurement in measurements {
            let rows = self
                .rows(&measurement.line)
                .with_context(|| measurement.command())?;
            measured.insert(measurement.name, rows);
        }
        Ok(measured)
    }

    fn rows(&self, line: &str) -> Result<Vec<Value>> {
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
