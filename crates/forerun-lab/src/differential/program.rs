//! Programs to compare with, and what they print about themselves.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// What `program` prints with this option. `None` if there is no such program.
pub(super) fn output_of(program: &Path, option: &str) -> Result<Option<String>> {
    match Command::new(program).arg(option).output() {
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("start {program:?}")),
    }
}
