//! Forerun's foundation: what the parts that look things up are built from.
//!
//! - [`touch`] and [`interleave`]: a miss is an await, and several lookups wait together;
//! - [`arch`]: prefetch, the cache line, and the instruction set chosen at run time;
//! - [`hashing`]: a seeded permutation of 64-bit keys;
//! - [`region`]: zeroed memory by `mmap`, with huge pages where the kernel gives them;
//! - [`roofline`]: the machine's random-access rate, the bound that lookups are measured against.

pub mod arch;
pub mod hashing;
mod interleave;
pub mod region;
pub mod roofline;
mod touch;

pub use arch::CACHE_LINE_BYTES;
pub use interleave::{Driver, MemoryOnly, Wait, alone, alone_with, interleave, interleave_with};
pub use region::{Backing, Pages, Region, RegionError};
pub use touch::{Touch, suspend, touch};
