//! The options and outputs that every bench has besides its own lists: rounds, quick mode, JSON,
//! tables, pages.

use anyhow::{Context, Result, ensure};
use forerun_core::size::parse_size;
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
    /// Rounds; each measures every case once, and a result is the median [default: 5, or 7 to 20
    /// on a GPU; with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Use tiny sizes and times, to check that everything runs; the figures mean nothing
    #[arg(long)]
    pub quick: bool,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,

    /// Also writes a self-contained page with plots
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

/// The option of benches whose rounds last for a fixed time, not for a number of operations.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct Timing {
    /// How long a case is timed in a round, in milliseconds [default: 200; with --quick 1]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub duration_ms: Option<u32>,
}

/// The option of benches that vary the number of threads.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct Threads {
    /// Threads, each pinned to a core [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub threads: Vec<usize>,
}

impl Threads {
    /// The requested numbers of threads.
    ///
    /// # Errors
    /// A number of threads is 0.
    pub fn list(&self) -> Result<Vec<usize>> {
        let threads = or(&self.threads, &[1]);
        check_threads(&threads)?;
        Ok(threads)
    }
}

/// Refuses to measure without a thread.
pub(crate) fn check_threads(threads: &[usize]) -> Result<()> {
    ensure!(!threads.contains(&0), "at least one thread is required");
    Ok(())
}

/// A list from the command line, or its default if none was given.
pub(crate) fn or<T: Clone>(list: &[T], default: &[T]) -> Vec<T> {
    if list.is_empty() { default } else { list }.to_vec()
}

impl Output {
    /// The requested number of rounds: `usual` by default, and 2 for a quick run.
    pub fn rounds(&self, usual: usize) -> usize {
        let default = if self.quick { 2 } else { usual };
        self.rounds.map_or(default, |rounds| rounds as usize)
    }

    /// The requested rounds and times.
    pub fn plan(&self, timing: &Timing) -> Plan {
        let default = if self.quick { 1 } else { 200 };
        let duration_ms = timing.duration_ms.unwrap_or(default);
        Plan::new(self.rounds(5), Duration::from_millis(duration_ms.into()))
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
    fn an_unwritable_report_is_refused_before_the_run() {
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
        let timing = Timing::default();
        assert_eq!(quick.plan(&timing), Plan::new(2, Duration::from_millis(1)));
        let both = Output {
            rounds: Some(7),
            ..quick
        };
        assert_eq!((both.plan(&timing).rounds, both.rounds(20)), (7, 7));
        let usual = Output::default();
        assert_eq!(
            usual.plan(&timing),
            Plan::new(5, Duration::from_millis(200))
        );
        assert_eq!(usual.rounds(20), 20);
    }

    #[test]
    fn one_thread_is_the_default_and_none_is_refused() {
        assert_eq!(Threads::default().list().unwrap(), [1]);
        let none = Threads {
            threads: vec![1, 0],
        };
        assert!(none.list().unwrap_err().to_string().contains("thread"));
    }

    #[test]
    fn a_closed_pipe_is_a_quiet_end() {
        let closed = || Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        assert!(on_stdout(|_| closed()).is_ok());
        assert!(on_stdout(|_| anyhow::bail!("other")).is_err());
    }
}
