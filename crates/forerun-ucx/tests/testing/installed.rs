//! Whether UCX is installed. The tests of other crates use this file.

use std::io::{self, Write};

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
