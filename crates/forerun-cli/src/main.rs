//! The `forerun` command. Its code is in this crate's library.

use std::process::ExitCode;

fn main() -> ExitCode {
    forerun_cli::main()
}
