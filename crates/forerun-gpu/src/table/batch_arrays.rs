//! The arrays of a batch in device memory: buffers of this crate, or addresses of any library's
//! memory.
//!
//! ```text
//!   BatchArrays<&DeviceBuffer>  = DeviceBatch     the borrow keeps the memory alive; its length is known
//!   BatchArrays<u64>            = RawBatch        the caller keeps the memory alive and knows its length
//! ```
//!
//! [`PooledArrays`] and [`EntryArrays`] likewise.

use crate::driver::DeviceBuffer;
use crate::gather::Locate;
use crate::memory_type::{MemoryType, PointerAttributes};
use crate::{Gpu, GpuError};

/// A batch in device memory. Each array has u64 elements unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub struct BatchArrays<A> {
    /// Number of keys, or their maximum if `count_at` is set.
    pub count: u64,
    /// One u64, read when the operation runs: the number of keys. For example, it can be the
    /// [`EntryArrays::count`] of the previous operation, which passes missing keys on to the next
    /// operation without the host.
    pub count_at: Option<A>,
    /// The keys.
    pub keys: A,
    /// Input rows, concatenated.
    pub rows: Option<A>,
    /// Input scores.
    pub scores: Option<A>,
    /// Input flags, one byte each.
    pub flags: Option<A>,
    /// The epoch of the epoch strategies.
    pub epoch: u64,
    /// Output rows. Those of absent keys are as in [`Answers::rows`](super::Answers::rows).
    pub rows_out: Option<A>,
    /// Output scores.
    pub scores_out: Option<A>,
    /// Output slots, `u64::MAX` for absent keys.
    pub slots_out: Option<A>,
    /// Addresses of rows, 0 for absent keys.
    pub pointers_out: Option<A>,
    /// The outcome for each key, one byte: the number of a [`Status`](super::Status).
    pub status_out: Option<A>,
    /// Output for evicted or missing entries.
    pub entries_out: Option<EntryArrays<A>>,
}

impl<A> BatchArrays<A> {
    /// A batch of `count` keys without other arrays.
    pub fn new(keys: A, count: u64) -> BatchArrays<A> {
        BatchArrays {
            count,
            count_at: None,
            keys,
            rows: None,
            scores: None,
            flags: None,
            epoch: 0,
            rows_out: None,
            scores_out: None,
            slots_out: None,
            pointers_out: None,
            status_out: None,
            entries_out: None,
        }
    }
}

/// Output for evicted and refused entries or missing keys, with space for one entry per key of the
/// batch.
#[derive(Clone, Copy, Debug)]
pub struct EntryArrays<A> {
    /// One u64 to which their number is added. Set it to zero first.
    pub count: A,
    /// Their keys.
    pub keys: A,
    /// Their rows (not for missing keys).
    pub rows: Option<A>,
    /// Their scores (not for missing keys).
    pub scores: Option<A>,
    /// Their positions in the batch.
    pub positions: Option<A>,
}

/// Bags in device memory.
#[derive(Clone, Copy, Debug)]
pub struct PooledArrays<A> {
    /// Number of keys, or their maximum if `count_at` is set.
    pub count: u64,
    /// One u64, read when the operation runs: the number of keys.
    pub count_at: Option<A>,
    /// The keys, u64.
    pub keys: A,
    /// Number of bags.
    pub bags: u64,
    /// One u64 per bag and one more: bag `b` has the keys from `offsets[b]` to `offsets[b + 1]`. An
    /// offset beyond the number of keys counts as that number, and a bag that ends before it begins
    /// is empty.
    pub offsets: A,
    /// One f32 per key. Without them, each is 1.
    pub weights: Option<A>,
    /// Output: one pooled row per bag, concatenated.
    pub rows_out: A,
    /// Output: one u32 per bag, the number of its keys that were found.
    pub found_out: Option<A>,
    /// Memory for sums, which the lookup overwrites: see
    /// [`GpuTable::pooled_sums_bytes`](super::GpuTable::pooled_sums_bytes).
    pub sums: Option<A>,
}

/// A batch whose arrays begin at the first bytes of buffers of this crate.
pub type DeviceBatch<'a> = BatchArrays<&'a DeviceBuffer>;
/// Output entries whose arrays begin at the first bytes of buffers of this crate.
pub type EntryBuffers<'a> = EntryArrays<&'a DeviceBuffer>;
/// Bags whose arrays begin at the first bytes of buffers of this crate.
pub type PooledBatch<'a> = PooledArrays<&'a DeviceBuffer>;

/// A batch by addresses, such as those of PyTorch's tensors: see
/// [`TableCommand::from_raw`](super::TableCommand::from_raw).
pub type RawBatch = BatchArrays<u64>;
/// Output entries by addresses.
pub type RawEntries = EntryArrays<u64>;
/// Bags by addresses.
pub type RawPooledBatch = PooledArrays<u64>;

/// What an operation needs of an array.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayUse {
    /// Its name in errors.
    pub(super) what: &'static str,
    pub(super) bytes: u64,
    /// What divides its address.
    pub(super) align: u64,
}

impl ArrayUse {
    pub(super) fn words(what: &'static str, count: u64) -> ArrayUse {
        ArrayUse::elements(what, count, 8)
    }

    pub(super) fn elements(what: &'static str, count: u64, bytes_each: u64) -> ArrayUse {
        ArrayUse {
            what,
            bytes: count.saturating_mul(bytes_each),
            align: bytes_each,
        }
    }

    /// Bytes that the kernels reach in any alignment.
    pub(super) fn bytes(what: &'static str, bytes: u64) -> ArrayUse {
        ArrayUse {
            what,
            bytes,
            align: 1,
        }
    }

    /// Checks an address as far as numbers show it.
    pub(super) fn expect_address(&self, address: u64) -> Result<(), GpuError> {
        let (what, bytes) = (self.what, self.bytes);
        if address == 0 {
            return Err(GpuError::NullAddress { what });
        }
        if !address.is_multiple_of(self.align) {
            return Err(GpuError::Misaligned {
                what,
                address,
                align: self.align,
            });
        }
        if address.checked_add(bytes).is_none() {
            return Err(GpuError::PastMemory {
                what,
                address,
                bytes,
            });
        }
        Ok(())
    }

    /// Checks that an address is that of memory which this device can use, and returns it as the
    /// device sees it. Not all of the memory can be checked: the driver may know an allocation as
    /// several pieces, and a library that allocates much memory at once gives out parts of it.
    pub(super) fn place(
        &self,
        address: u64,
        memory: &dyn Locate,
        ordinal: usize,
    ) -> Result<u64, GpuError> {
        if self.bytes == 0 {
            return Ok(address);
        }
        self.expect_address(address)?;
        let first = memory.locate(address)?;
        self.expect_usable(address, &first, ordinal)?;
        let last = address + (self.bytes - 1);
        match first.range {
            Some((start, len)) if last - start < len => {}
            _ => {
                let end = memory.locate(last)?;
                self.expect_usable(last, &end, ordinal)?;
                let distance = end.device_address.wrapping_sub(first.device_address);
                if distance != last - address {
                    return Err(GpuError::PastMemory {
                        what: self.what,
                        address,
                        bytes: self.bytes,
                    });
                }
            }
        }
        Ok(first.device_address)
    }

    fn expect_usable(
        &self,
        address: u64,
        found: &PointerAttributes,
        ordinal: usize,
    ) -> Result<(), GpuError> {
        match found.memory {
            MemoryType::Pinned => Ok(()),
            MemoryType::Device { ordinal: of } if of == ordinal => Ok(()),
            MemoryType::Device { ordinal: of } => Err(GpuError::OtherDevice {
                what: self.what,
                found: of,
                expected: ordinal,
            }),
            other => Err(GpuError::WrongMemory {
                what: self.what,
                address,
                found: other.description(),
            }),
        }
    }
}

/// An array of a batch: a buffer or an address.
pub(super) trait DeviceArray: Copy {
    /// Checks the array, and returns its address as the device sees it. A backend without a `gpu`
    /// has addresses of its own.
    fn place(self, gpu: Option<&Gpu>, needs: &ArrayUse) -> Result<u64, GpuError>;
}

impl DeviceArray for &DeviceBuffer {
    fn place(self, gpu: Option<&Gpu>, needs: &ArrayUse) -> Result<u64, GpuError> {
        self.expect_bytes(needs.bytes)?;
        if let Some(gpu) = gpu {
            gpu.expect(self.gpu(), needs.what)?;
        }
        Ok(self.address())
    }
}

impl DeviceArray for u64 {
    fn place(self, gpu: Option<&Gpu>, needs: &ArrayUse) -> Result<u64, GpuError> {
        match gpu {
            Some(gpu) => needs.place(self, gpu, gpu.info().ordinal),
            None => Ok(self),
        }
    }
}

/// The address of an array that may be absent: then 0.
pub(super) fn place_optional<A: DeviceArray>(
    gpu: Option<&Gpu>,
    array: Option<A>,
    needs: ArrayUse,
) -> Result<u64, GpuError> {
    array.map_or(Ok(0), |array| array.place(gpu, &needs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::KnownMemory;

    fn memory() -> KnownMemory {
        let mut memory = KnownMemory::default();
        memory.add(0x1000, 0x100, MemoryType::Device { ordinal: 1 }, 0x1000);
        // A second piece of the same allocation.
        memory.add(0x1100, 0x100, MemoryType::Device { ordinal: 1 }, 0x1100);
        memory.add(0x3000, 0x100, MemoryType::Device { ordinal: 0 }, 0x3000);
        memory.add(0x5000, 0x100, MemoryType::Pinned, 0x9000);
        memory.add(0x6000, 0x100, MemoryType::Managed, 0x6000);
        memory
    }

    #[test]
    fn memory_of_the_device_and_pinned_memory_have_the_device_s_addresses() {
        let memory = memory();
        let keys = |count| ArrayUse::words("the keys", count);
        assert_eq!(keys(32).place(0x1000, &memory, 1), Ok(0x1000));
        assert_eq!(keys(4).place(0x5020, &memory, 1), Ok(0x9020));
        // Both pieces.
        assert_eq!(keys(64).place(0x1000, &memory, 1), Ok(0x1000));
        // Nothing is used there.
        assert_eq!(keys(0).place(0, &memory, 1), Ok(0));
    }

    #[test]
    fn an_address_that_cannot_be_right_is_refused_by_name() {
        let memory = memory();
        for (needs, address, expected) in [
            (
                ArrayUse::words("the keys", 1),
                0,
                "the keys: the address is null",
            ),
            (
                ArrayUse::words("the keys", 1),
                0x1004,
                "the keys: 0x1004 is not a multiple of 8 bytes",
            ),
            (
                ArrayUse::words("the keys", 1),
                0x3000,
                "the keys belongs to device 0, but the work runs on device 1",
            ),
            (
                ArrayUse::words("the keys", 1),
                0x7000,
                "the keys: 0x7000 is ordinary host memory, which the device cannot use",
            ),
            (
                ArrayUse::bytes("the rows", 1),
                0x6000,
                "the rows: 0x6000 is managed memory, which the device cannot use",
            ),
            (
                ArrayUse::bytes("the rows", 0x300),
                0x1000,
                "the rows: 0x12ff is ordinary host memory, which the device cannot use",
            ),
            (
                ArrayUse::bytes("the rows", u64::MAX),
                0x1000,
                "the rows: 18446744073709551615 bytes at 0x1000 are not one piece of memory",
            ),
        ] {
            let error = needs.place(address, &memory, 1).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }
}
