//! Forerun's foundation: what the parts that look things up are built from.
//!
//! - [`touch`] and [`interleave`]: a miss is an await, and several lookups wait together;
//! - [`arch`]: prefetch, the cache line, and the instruction set chosen at run time;
//! - [`hashing`]: a seeded permutation of 64-bit keys;
//! - [`Owner`], [`ProcessBound`] and [`PerProcess`]: which process a handle belongs to; [`epoch`]: reclamation that survives a fork;
//! - [`region`]: zeroed memory by `mmap`, with huge pages where the kernel gives them;
//! - [`sync`]: the locks, threads and clocks that every crate takes from here, so that a test build can replace them;
//! - [`roofline`]: the machine's random-access rate, the bound that lookups are measured against.

#![cfg_attr(tsan, feature(test))]

pub mod arch;
pub mod epoch;
pub mod hashing;
mod interleave;
mod process;
pub mod region;
pub mod roofline;
pub mod sync;
mod touch;

pub use arch::CACHE_LINE_BYTES;
pub use interleave::{Driver, MemoryOnly, Wait, alone, alone_with, interleave, interleave_with};
pub use process::{Forked, LeakedInFork, Owner, PerProcess, ProcessBound};
pub use region::{Atomics, Backing, Pages, Region, RegionError, physical_memory_bytes};
pub use touch::{Touch, suspend, touch};
