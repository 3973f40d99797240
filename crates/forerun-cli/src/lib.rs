//! The `forerun` command: loads data into a store, inspects it, looks up batches of keys, and
//! serves a cache.
//!
//! ```text
//! main ── cli (the command line) ── commands/*  one file per subcommand
//!                                       ├── open_store  opens a store with the options
//!                                       ├── measure     compares gets with batches, and shows them
//!                                       ├── input/*     inputs: CSV, TSV, NDJSON, key lists, traces; plain, gzip, xz
//!                                       ├── output      standard output, escaping, readable numbers
//!                                       └── exit        outcomes, errors, exit codes
//! ```
//!
//! No input can make the command panic. Each error is one line, `forerun: …`, that names the object
//! and the position, and the exit code tells the kind of error.
//!
//! This is a library so that `forerun-bench` can start the same server and report in the same way.
//! Nothing else should depend on it.

#![forbid(unsafe_code)]
#![allow(
    rustdoc::invalid_html_tags,
    reason = "comments on arguments are help texts, which contain key<TAB>value"
)]

mod cli;
mod commands;
pub mod exit;
mod input;
mod login;
mod measure;
mod open_store;
pub mod output;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

pub use commands::serve;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next();
    if name.is_some_and(|name| Path::new(&name).file_name() == Some("memcached".as_ref())) {
        return match commands::memcached::run_as_memcached(words) {
            Ok(outcome) => outcome.exit_code(),
            Err(error) => exit::report("memcached", &error),
        };
    }
    // On a usage error, clap prints its message here and exits with code 2.
    let cli = cli::Cli::parse();
    match cli::run(cli) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => exit::report("forerun", &error),
    }
}
