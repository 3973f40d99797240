//! Transparent huge pages for the peers, which allocate their memory through the C library.
//!
//! glibc requests huge pages by advice, as Forerun's tables do, if `GLIBC_TUNABLES` says so when a
//! program starts (since 2.35). So this program restarts itself with the variable set. On other
//! systems it has no effect.

use anyhow::{Context, Result};
use std::env;
use std::process::Command;

/// The kind of pages for the peers' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peers {
    /// Huge pages by advice.
    Huge,
    /// The allocator's default.
    Small,
}

const VARIABLE: &str = "GLIBC_TUNABLES";
const SETTING: &str = "glibc.malloc.hugetlb=1";

impl Peers {
    /// Restarts the program with the allocator set, unless it already is.
    ///
    /// # Errors
    /// If the program cannot be restarted.
    pub fn apply(self) -> Result<()> {
        let set = env::var(VARIABLE).is_ok_and(|value| value.contains("malloc.hugetlb"));
        if self == Peers::Small || set || !cfg!(target_os = "linux") {
            return Ok(());
        }
        let program = env::current_exe().context("this program's own file")?;
        let mut again = Command::new(program);
        again.args(env::args_os().skip(1)).env(VARIABLE, SETTING);
        let status = again.status().context("starting again with huge pages")?;
        std::process::exit(status.code().unwrap_or(1));
    }
}
