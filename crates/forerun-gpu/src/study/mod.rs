//! Commands that only the benches use, and whose kernels a product build does not contain.
//!
//! - [`RandomReads`] measures how fast the device's memory answers reads at random places;
//! - [`LitmusTest`] looks for outcomes that the orders of the table's kernels forbid;
//! - [`MatrixProduct`] keeps a device busy while something else is measured.

mod litmus;
mod product;
mod random_reads;

pub use litmus::{LitmusOutcomes, LitmusTest};
pub use product::MatrixProduct;
pub use random_reads::{RandomReads, RequestBytes};
