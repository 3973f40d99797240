//! How the command ends: exit codes, and errors as one line on standard error.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | partial success: a key is missing, or rows were skipped |
//! | 2 | usage error |
//! | 3 | the data or the store cannot be read or written |
//! | 4 | check failed: damage or a wrong answer |
//!
//! If the reader closes the pipe early (`forerun scan db | head`), that is not an error: the
//! command ends silently with 0.

use std::fmt;
use std::process::ExitCode;

/// The exit codes as help text. A test compares them with the table above.
pub const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  success
  1  partial success: a key is missing, or rows were skipped
  2  usage error
  3  the data or the store cannot be read or written
  4  check failed: damage or a wrong answer";

/// The result of a command that had no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command did everything.
    Done,
    /// The command ran to its end, but a key was missing or a row was skipped.
    Partial,
}

impl Outcome {
    /// [`Outcome::Partial`] if `partial` is true, otherwise `Done`.
    pub fn partial_if(partial: bool) -> Outcome {
        if partial {
            Outcome::Partial
        } else {
            Outcome::Done
        }
    }

    /// The process's exit code.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Outcome::Done => ExitCode::SUCCESS,
            Outcome::Partial => ExitCode::from(1),
        }
    }
}

/// A usage error that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The store is damaged or returned a wrong answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CheckFailed(pub String);

/// The reader of standard output has gone. Nothing is left to do, and this is not an error.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub struct OutputClosed;

/// Prints `error` as one line on standard error, after the program's name, and returns the exit
/// code for it.
pub fn report(program: &str, error: &anyhow::Error) -> ExitCode {
    if error.is::<OutputClosed>() || is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    write_line(program, format_args!("{}", one_line(error)));
    ExitCode::from(code(error))
}

/// Prints one line, `forerun: …`, on standard error.
pub fn warn(message: fmt::Arguments<'_>) {
    write_line("forerun", message);
}

fn write_line(program: &str, message: fmt::Arguments<'_>) {
    use std::io::Write;
    // If standard error is closed, the message cannot be shown.
    let _ = writeln!(std::io::stderr(), "{program}: {message}");
}

fn code(error: &anyhow::Error) -> u8 {
    if error.is::<UsageError>() {
        2
    } else if error.is::<CheckFailed>() {
        4
    } else {
        3
    }
}

/// Detects a closed standard output in code that writes to it directly (the benchmarks). Inputs are
/// files and the store never writes to a pipe, so no other pipe can be the cause.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The error and its causes on one line, joined by colons. A cause is left out if the text before
/// already ends with it.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if line.ends_with(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line.split(['\n', '\r'])
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_on_one_line_without_repeats() {
        let inner = anyhow::anyhow!("disk is full\n(device 3)");
        let outer = inner
            .context("cannot write run 7: disk is full\n(device 3)")
            .context("cannot load");
        assert_eq!(
            one_line(&outer),
            "cannot load: cannot write run 7: disk is full; (device 3)"
        );
    }

    #[test]
    fn each_kind_of_error_has_its_code() {
        assert_eq!(code(&anyhow::Error::new(UsageError("x".into()))), 2);
        assert_eq!(code(&anyhow::Error::new(CheckFailed("x".into()))), 4);
        assert_eq!(
            code(&anyhow::Error::new(CheckFailed("x".into())).context("while looking")),
            4
        );
        assert_eq!(code(&anyhow::anyhow!("anything else")), 3);
    }

    #[test]
    fn the_help_lists_the_codes_of_the_table() {
        let here = include_str!("exit.rs");
        for line in EXIT_CODES_HELP.lines().skip(1) {
            let (code, meaning) = line
                .trim()
                .split_once("  ")
                .expect("a code and its meaning");
            assert!(
                here.contains(&format!("//! | {code} | {meaning} |")),
                "{line}"
            );
        }
    }
}
