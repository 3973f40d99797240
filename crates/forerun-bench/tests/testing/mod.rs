//! Shared code of the tests of the command.

// Each test file is its own program and uses only some of these helpers.
#![allow(dead_code)]

use std::io::{self, Write};

#[path = "../../../forerun-cli/tests/testing/workspace.rs"]
mod workspace;

#[allow(unused_imports)]
pub use workspace::{Ran, Workspace, files};

/// The command under test, and its name in error messages.
const PROGRAM: &str = env!("CARGO_BIN_EXE_forerun-bench");
const NAME: &str = "forerun-bench";

/// Whether UCX is installed. Without it, says so: the test that asks is skipped.
pub fn has_ucx() -> bool {
    match forerun_ucx::version() {
        Ok(_) => true,
        Err(error) => {
            // The test harness hides the output of `eprintln!` in a passing test.
            let _ = writeln!(io::stderr(), "skipped: {error}");
            false
        }
    }
}
