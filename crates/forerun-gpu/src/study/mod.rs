//! Commands that only the benches use, and whose kernels a product build does not contain.
//!
//! - [`RandomReads`] measures how fast the device's memory answers reads at random places;
//! - [`MatrixProduct`] keeps a device busy while something else is measured.

mod product;
mod random_reads;

pub use product::MatrixProduct;
pub use random_reads::{RandomReads, RequestBytes};
