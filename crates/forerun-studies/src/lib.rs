//! Code that the benches measure and no product contains.
//!
//! - [`designs`]: the hash tables that `forerun_hash::HashTable` was chosen from;
//! - [`roofline`]: the machine's random-access rate, the upper bound on lookups per second.
//!
//! Both need `unsafe`, which `forerun-bench` forbids, and the designs have loom models, which build
//! only with few dependencies. Therefore they have a crate of their own.

pub mod designs;
pub mod roofline;
