//! The registry: all benches, each with one name. The name on the command line is the module's,
//! with `-` for `_`, and the help text is that of the module's `Args`. A new bench is a module of
//! this crate with `Args` and `run`, and one name here.

use anyhow::Result;
use clap::Subcommand;
use forerun_bench::{
    btree, cache, client, count_lookups, gather, gpu_roofline, gpu_table, growth, hash, memtable,
    pressure, roofline, scan, seeds, server, table, workloads, ycsb,
};

macro_rules! benches {
    ($($module:ident),* $(,)?) => {
        /// A bench and its arguments.
        #[derive(Debug, Subcommand)]
        #[allow(non_camel_case_types, reason = "variants have the names of their modules")]
        pub enum Bench {
            $($module(Box<$module::Args>),)*
        }

        impl Bench {
            /// Measures and prints.
            pub fn run(&self) -> Result<()> {
                match self {
                    $(Bench::$module(args) => $module::run(args),)*
                }
            }
        }

        #[cfg(test)]
        pub const MODULES: &[&str] = &[$(stringify!($module)),*];
    };
}

benches! {
    roofline,
    memtable,
    btree,
    count_lookups,
    ycsb,
    scan,
    workloads,
    pressure,
    hash,
    gather,
    gpu_table,
    gpu_roofline,
    server,
    client,
    cache,
    table,
    growth,
    seeds,
}
