//! Fixed-width hash tables whose every lookup is a batch.
//!
//! - [`HashTable`]: the table to use, `u64` to `u64`, shared by readers and writers;
//! - [`designs`]: the designs it was chosen from, to be studied against each other.

pub mod designs;
pub mod table;

pub use table::{Error, HashTable, Iter, Options, Pinned};
