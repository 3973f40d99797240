//! Shared code of the tests of the command.

// Each test file is its own program and uses only some of these helpers.
#![allow(dead_code)]

mod workspace;

#[allow(unused_imports)]
pub use workspace::{Ran, Workspace, files};

use std::io::Write;

/// The command under test, and its name in error messages.
const PROGRAM: &str = env!("CARGO_BIN_EXE_forerun");
const NAME: &str = "forerun";

impl Workspace {
    /// Creates a store `db` with the given entries by `forerun load`.
    pub fn store(&self, entries: &[(&str, &str)]) -> &Workspace {
        let rows: String = entries
            .iter()
            .map(|(key, value)| format!("{{\"k\":{key:?},\"v\":{value:?}}}\n"))
            .collect();
        self.file("entries.ndjson", rows)
            .succeeds(&["load", "db", "entries.ndjson", "--key", "k"]);
        self
    }
}

/// `bytes` in gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory can be written");
    encoder.finish().expect("memory can be written")
}
