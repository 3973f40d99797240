//! Builds a table of a named design.

use super::build_error::BuildError;
use super::cuckoo::{Interleaved, Split};
use super::dlht::Dlht;
use super::memc3::MemC3;
use super::neighborhash::NeighborHash;
use super::tagged::Tagged;
use super::{Design, FixedTable, Word};
use forerun_core::arch::Isa;

/// Creates an empty table with at least `slots` slots, rounded up to whole buckets.
///
/// The seed determines the buckets of keys. Draw it at random if keys come from outside. If the
/// machine lacks the instruction set, the table uses the best one below it.
///
/// # Errors
/// More slots than [`SLOTS_MAX`](super::SLOTS_MAX), or than 65,535 for keys of two bytes; the
/// memory could not be allocated.
pub fn build<K: Word, V: Word>(
    design: Design,
    slots: usize,
    isa: Isa,
    seed: u64,
) -> Result<Box<dyn FixedTable<K, V>>, BuildError> {
    Ok(match design {
        Design::Cuckoo2 => Box::new(Split::<K, V, 2, 1>::new(slots, isa, seed)?),
        Design::Cuckoo3 => Box::new(Split::<K, V, 3, 1>::new(slots, isa, seed)?),
        Design::Cuckoo4 => Box::new(Split::<K, V, 4, 1>::new(slots, isa, seed)?),
        Design::Bucketized2x2 => Box::new(Split::<K, V, 2, 2>::new(slots, isa, seed)?),
        Design::Bucketized2x4 => Box::new(Split::<K, V, 2, 4>::new(slots, isa, seed)?),
        Design::Bucketized2x8 => Box::new(Split::<K, V, 2, 8>::new(slots, isa, seed)?),
        Design::Bucketized3x2 => Box::new(Split::<K, V, 3, 2>::new(slots, isa, seed)?),
        Design::Bucketized3x4 => Box::new(Split::<K, V, 3, 4>::new(slots, isa, seed)?),
        Design::Bucketized3x8 => Box::new(Split::<K, V, 3, 8>::new(slots, isa, seed)?),
        Design::Interleaved2x4 => Box::new(Interleaved::<K, V, 2, 4>::new(slots, isa, seed)?),
        Design::Interleaved2x8 => Box::new(Interleaved::<K, V, 2, 8>::new(slots, isa, seed)?),
        Design::Tagged8 => Box::new(Tagged::<K, V, u8>::new(slots, isa, seed)?),
        Design::Tagged16 => Box::new(Tagged::<K, V, u16>::new(slots, isa, seed)?),
        Design::NeighborHash => Box::new(NeighborHash::<K, V>::new(slots, isa, seed)?),
        Design::Dlht => Box::new(Dlht::<K, V>::new(slots, isa, seed)?),
        Design::MemC3 => Box::new(MemC3::<K, V>::new(slots, isa, seed)?),
    })
}
