//! Forerun's foundation: what the parts that look things up are built from.
//!
//! - [`arch`]: prefetch, the cache line, and the instruction set chosen at run time;
//! - [`region`]: zeroed memory by `mmap`, with huge pages where the kernel gives them;
//! - [`roofline`]: the machine's random-access rate, the bound that lookups are measured against.

pub mod arch;
pub mod region;
pub mod roofline;

pub use region::{Backing, Pages, Region, RegionError};
