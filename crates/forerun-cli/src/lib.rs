//! The `forerun` command: load data into a store, look at it, look up batches of keys in it, and
//! serve a cache.
//!
//! ```text
//! main ── cli (the command line) ── commands/*  one file a subcommand
//!                                       ├── input/*   what comes in: CSV, TSV, NDJSON, key lists, traces; plain, gzip, xz
//!                                       ├── output    what goes out: standard output, escaping, numbers for people
//!                                       ├── progress  a bar on a terminal, nothing in a pipe
//!                                       ├── store     opening a store as the options say
//!                                       └── exit      how it ends: outcomes, errors, exit codes
//! ```
//!
//! Nothing that comes from outside makes the command panic: each fault is an error of one line,
//! `forerun: …`, that names the thing and the place, and an exit code that says which kind of fault
//! it was.
//!
//! It is a library so that `forerun-bench` starts the same server and reports in the same way.
//! Nothing else is meant to depend on it.

#![forbid(unsafe_code)]
#![allow(
    rustdoc::invalid_html_tags,
    reason = "comments on arguments are help texts, where key<TAB>value stands as it is"
)]

mod cli;
mod commands;
pub mod exit;
mod input;
mod measure;
pub mod output;
pub mod progress;
mod store;

use std::process::ExitCode;

use clap::Parser;

pub use commands::serve;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // A wrong command line ends here, with clap's own message and exit code 2.
    let cli = cli::Cli::parse();
    match commands::run(cli) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => exit::report("forerun", &error),
    }
}
