//! Tests of the hot pool. They run random programs on the pool in host memory, on the kernels,
//! which run on the host, and on a plain reference, and compare answers, rows, counts and tables.

#![cfg(unix)]

#[path = "hot_pool/host_rows.rs"]
mod host_rows;
#[path = "hot_pool/programs.rs"]
mod programs;
#[path = "hot_pool/reference.rs"]
mod reference;
#[path = "hot_pool/refusals.rs"]
mod refusals;
#[path = "hot_pool/sglang_tables.rs"]
mod sglang_tables;
#[path = "hot_pool/shim_pool.rs"]
mod shim_pool;
#[path = "testing/shim_process.rs"]
mod shim_process;
mod testing;

/// How many of `all` programs run: all of them, or an eighth.
fn cases(all: u64) -> u64 {
    match std::env::var_os("FORERUN_ALL_CASES") {
        Some(_) => all,
        None => all.div_ceil(8),
    }
}

/// The bytes of integers.
macro_rules! bytes_of {
    ($integers:expr) => {
        $integers
            .iter()
            .flat_map(|integer| integer.to_ne_bytes())
            .collect::<Vec<u8>>()
    };
}
pub(crate) use bytes_of;
