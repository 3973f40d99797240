//! The options and outputs that every bench has besides its own lists: rounds, quick mode, JSON,
//! tables, pages.

use anyhow::{Context, Result};
use forerun_measure::harness::Plan;
use forerun_measure::machine;
use forerun_measure::report::Report;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// The options that all benches share.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Rounds; each measures every case once, and a result is the median [default: 5; with --quick
    /// 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// How long a case is timed in a round, in milliseconds [default: 200; with --quick 1]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub duration_ms: Option<u32>,

    /// Tiny sizes and times: shows that everything runs, not how fast
    #[arg(long)]
    pub quick: bool,

    /// Prints one JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,

    /// Also writes a self-contained page with plots
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

/// A list from the command line, or its default if none was given.
pub(crate) fn or<T: Clone>(list: &[T], default: &[T]) -> Vec<T> {
    if list.is_empty() { default } else { list }.to_vec()
}

/// The options of a bench whose rounds last a number of operations, not a time.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Rounds; each measures every case once, and a result is the median [default: 5; with --quick
    /// 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Tiny sizes: shows that everything runs, not how fast
    #[arg(long)]
    pub quick: bool,

    /// Prints one JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,

    /// Also writes a self-contained page with plots
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

impl Counted {
    /// The same options in the form of other benches.
    pub fn output(&self) -> Output {
        Output {
            rounds: self.rounds,
            duration_ms: None,
            quick: self.quick,
            json: self.json,
            report: self.report.clone(),
        }
    }
}

impl Output {
    /// The requested rounds and times.
    pub fn plan(&self) -> Plan {
        let (rounds, duration_ms) = if self.quick { (2, 1) } else { (5, 200) };
        Plan::new(
            self.rounds.unwrap_or(rounds) as usize,
            Duration::from_millis(self.duration_ms.unwrap_or(duration_ms).into()),
        )
    }

    /// Prints rows as JSON if requested. Returns whether it was.
    ///
    /// # Errors
    /// Errors of the stream.
    pub fn json_rows<T: Serialize>(&self, rows: &[T], out: &mut dyn Write) -> Result<bool> {
        if self.json {
            for row in rows {
                writeln!(out, "{}", serde_json::to_string(row)?)?;
            }
            out.flush()?;
        }
        Ok(self.json)
    }

    /// Writes the page if requested.
    ///
    /// # Errors
    /// The error of the file, with its name.
    pub fn write_report(&self, report: &Report) -> Result<()> {
        if let Some(path) = &self.report {
            std::fs::write(path, report.to_html())
                .with_context(|| format!("cannot write the report {}", path.display()))?;
        }
        Ok(())
    }

    /// Fails early if the page cannot be written, so that no measurement is lost to a mistyped
    /// directory.
    ///
    /// # Errors
    /// The error of the file, with its name.
    pub fn check(&self) -> Result<()> {
        if let Some(path) = &self.report {
            std::fs::File::options()
                .append(true)
                .create(true)
                .open(path)
                .with_context(|| format!("cannot write the report {}", path.display()))?;
        }
        Ok(())
    }
}

/// Runs a bench that prints to the standard output. A reader that closes it early (`| head`) ends
/// the run without an error.
pub(crate) fn on_stdout(bench: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    if let Some(warning) = machine::isa_warning() {
        eprintln!("{warning}");
    }
    let result = bench(&mut io::stdout().lock());
    match &result {
        Err(error) if is_broken_pipe(error) => Ok(()),
        _ => result,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes facts, one per line, with aligned names.
///
/// # Errors
/// Errors of the stream.
pub fn write_facts(out: &mut dyn Write, facts: &[(String, String)]) -> io::Result<()> {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max();
    let width = width.unwrap_or(0);
    for (name, text) in facts {
        writeln!(out, "{name:>width$}  {text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_cannot_be_written_is_told_before_the_run() {
        let output = Output {
            report: Some(PathBuf::from("no-such-folder/report.html")),
            ..Output::default()
        };
        let error = format!("{:#}", output.check().unwrap_err());
        assert!(error.contains("no-such-folder"), "{error}");
    }

    #[test]
    fn quick_changes_what_was_not_given() {
        let quick = Output {
            quick: true,
            ..Output::default()
        };
        assert_eq!(quick.plan(), Plan::new(2, Duration::from_millis(1)));
        let both = Output {
            rounds: Some(7),
            ..quick
        };
        assert_eq!(both.plan().rounds, 7);
        assert_eq!(
            Output::default().plan(),
            Plan::new(5, Duration::from_millis(200))
        );
    }

    #[test]
    fn a_closed_pipe_is_a_quiet_end() {
        let closed = || Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        assert!(on_stdout(|_| closed()).is_ok());
        assert!(on_stdout(|_| anyhow::bail!("other")).is_err());
    }
}
