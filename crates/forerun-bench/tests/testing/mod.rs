//! Shared code of the tests of the command.

// Each test file is its own program and uses only some of these helpers.
#![allow(dead_code)]

#[path = "../../../forerun-cli/tests/testing/workspace.rs"]
mod workspace;

#[allow(unused_imports)]
pub use workspace::{Ran, Workspace, files};

/// The command under test, and its name in error messages.
const PROGRAM: &str = env!("CARGO_BIN_EXE_forerun-bench");
const NAME: &str = "forerun-bench";
