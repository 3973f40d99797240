//! Benchmarks and stress tests belong to `forerun-bench`. This command reports that and shows the
//! command to run.

use std::process::Command;

#[test]
fn benches_are_refused_with_the_command_that_runs_them() {
    for (args, command) in [
        (
            &["bench", "hash", "--quick"][..],
            "forerun-bench -- hash --quick",
        ),
        (
            &["stress", "--seconds", "5"],
            "forerun-bench -- stress --seconds 5",
        ),
        (&["bench", "--help"], "forerun-bench -- --help"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_forerun-lab"))
            .args(args)
            .output()
            .expect("forerun-lab can be started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.trim_end().ends_with(command), "{args:?}: {stderr}");
    }
}
