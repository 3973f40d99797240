//! UCX in tests, over several transports. The tests of `forerun-server` use this file, too.

use std::io::{self, Write};
use std::process::Command;

use forerun_ucx::{Context, ContextOptions, UcxError};

/// UCX, or `None` with a message if it is not installed.
pub fn ucx() -> Option<Context> {
    match Context::open(&ContextOptions::default()) {
        Ok(context) => Some(context),
        Err(error @ UcxError::NoLibrary { .. }) => {
            // The test harness hides the output of `eprintln!` in a passing test.
            let _ = writeln!(io::stderr(), "skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs tests of this executable again with another `UCX_TLS`: UCX reads it once per process.
pub fn again_with(transports: &str, tests: &[&str]) {
    let program = std::env::current_exe().expect("this executable");
    let ran = Command::new(program)
        .args(["--exact", "--nocapture", "--test-threads", "1"])
        .args(tests)
        .env("UCX_TLS", transports)
        .output()
        .expect("it runs");
    let output = format!(
        "{}{}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
    assert!(ran.status.success(), "UCX_TLS={transports}: {output}");
    assert!(
        output.contains(&format!("{} passed", tests.len())),
        "{output}"
    );
}
