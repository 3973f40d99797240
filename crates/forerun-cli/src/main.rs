//! The `forerun` command; the library of this crate has all of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    forerun_cli::main()
}
