//! Huge pages for the peers, which take their memory from the allocator of the C library.
//!
//! glibc asks for huge pages by advice, as Forerun's tables do, where `GLIBC_TUNABLES` says so when
//! a program starts (since 2.35). So this one starts itself again with it. Elsewhere the variable
//! changes nothing.

use anyhow::{Context, Result};
use std::env;
use std::process::Command;

/// Which pages the peers' memory is to lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peers {
    /// Huge pages by advice.
    Huge,
    /// What the allocator does by itself.
    Small,
}

const VARIABLE: &str = "GLIBC_TUNABLES";
const SETTING: &str = "glibc.malloc.hugetlb=1";

impl Peers {
    /// Starts the program again with the allocator set, if it is not.
    ///
    /// # Errors
    /// When the program cannot be started again.
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
