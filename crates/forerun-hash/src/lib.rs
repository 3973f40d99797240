//! Fixed-width hash tables built for batched lookups.
//!
//! - [`HashTable`]: the production table, `u64` to `u64`, shared by readers and writers;
//! - [`designs`]: the designs that it was chosen from, for comparison.

pub mod designs;
pub mod table;

pub use table::{Error, HashTable, Iter, Options, Pinned};
