//! Code that is only measured, and that no product contains.
//!
//! - [`designs`]: the hash tables that `forerun_hash::HashTable` was chosen from;
//! - [`roofline`]: the machine's random-access rate, the upper bound on lookups per second.
//!
//! They are a separate crate for two reasons: both need `unsafe`, which `forerun-bench` forbids;
//! and the designs have loom models, which build only with few dependencies.

pub mod designs;
pub mod roofline;
