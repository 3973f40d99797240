//! The memory of buckets: a [`Slab`](super::super::slab::Slab) of mapped memory. Loom's atomics are
//! more than their bytes, so its models use an array instead.

#[cfg(not(loom))]
pub(super) use super::super::slab::Slab as Memory;

/// An array of buckets with the operations of a slab.
#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Memory<T>(Box<[T]>);

#[cfg(loom)]
impl<T: Default> Memory<T> {
    pub(super) fn new(len: u32) -> Result<Memory<T>, forerun_core::RegionError> {
        Ok(Memory((0..len.max(1)).map(|_| T::default()).collect()))
    }

    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(super) fn get(&self, index: u32) -> &T {
        &self.0[index as usize]
    }

    pub(super) fn prefetch(&self, _: u32) {}
}
