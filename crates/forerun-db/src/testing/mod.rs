//! What unit tests share, and the entry points of the fuzz targets.

pub mod fuzz;
#[cfg(test)]
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod runs;
#[cfg(test)]
pub(crate) mod small_cache;
#[cfg(test)]
pub(crate) mod tree_fixture;
#[cfg(test)]
pub(crate) mod version_list;

/// How many cases of a test run: all of them with `FORERUN_ALL_CASES`, as every night.
#[cfg(test)]
pub(crate) fn cases(usual: u32, all: u32) -> u32 {
    match std::env::var_os("FORERUN_ALL_CASES") {
        Some(_) => all,
        None => usual,
    }
}
