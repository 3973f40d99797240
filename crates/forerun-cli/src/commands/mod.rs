//! The subcommands, one per file. Each file has its `Args` and a `run` function.

pub mod backup;
pub mod check;
pub mod checkpoint;
pub mod compact;
pub mod completions;
pub mod delete;
pub mod demo;
pub mod dump;
pub mod get;
pub mod load;
pub mod man;
pub mod memcached;
pub mod multiget;
pub mod put;
pub mod replay;
pub mod scan;
pub mod serve;
pub mod stats;
pub mod top;
pub mod warm;
