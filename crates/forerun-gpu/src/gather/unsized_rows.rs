//! How many rows there are in memory whose size is unknown, such as that behind an address in a
//! table.
//!
//! ```text
//!   allocation   | layer 0 | layer 1 |  another tensor  |
//!   rows              <--->     up to the next neighbour, or to the end of the allocation
//!                               |<---------------------->|
//!                               the layer with the fewest counts: all have equally many
//! ```
//!
//! An allocator may place many tensors into one allocation of the driver, so the end of the
//! allocation alone is not enough: the rows of one layer would reach into the next.

use super::known_memory::Locate;
use crate::gather_error::GatherError;

/// The number of rows, `stride_bytes` apart, that fit into each piece of memory from its address in
/// `starts` on, without going beyond its allocation or to an address in `neighbours`. An address
/// that is itself in `neighbours` is not its own neighbour.
///
/// ```
/// use forerun_gpu::gather::{KnownMemory, MemoryType, rows_that_fit};
///
/// let mut memory = KnownMemory::default();
/// memory.add(0x1000, 100, MemoryType::Pinned, 0x1000);
/// // Two layers of 5 rows of 8 bytes, and 20 bytes that belong to neither.
/// let layers = [0x1000, 0x1000 + 40];
/// assert_eq!(rows_that_fit(&layers, 8, &layers, &memory)?, 5);
/// assert_eq!(rows_that_fit(&layers, 8, &[], &memory)?, 7);
/// # Ok::<(), forerun_gpu::gather::GatherError>(())
/// ```
///
/// # Errors
/// [`GatherError::Unknown`] if there is no allocation at an address.
pub fn rows_that_fit(
    starts: &[u64],
    stride_bytes: u64,
    neighbours: &[u64],
    memory: &dyn Locate,
) -> Result<u64, GatherError> {
    let mut neighbours = neighbours.to_vec();
    neighbours.sort_unstable();
    let mut fewest = u64::MAX;
    for &start in starts {
        let Some((first, len)) = memory.locate(start)?.range else {
            return Err(GatherError::Unknown {
                address: start,
                text: "no allocation of pinned memory or of the device is there".to_owned(),
            });
        };
        let next = neighbours.partition_point(|&address| address <= start);
        let next = neighbours.get(next).copied().unwrap_or(u64::MAX);
        let end = first.saturating_add(len).min(next);
        fewest = fewest.min(end.saturating_sub(start) / stride_bytes.max(1));
    }
    Ok(fewest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::KnownMemory;
    use crate::memory_type::MemoryType;

    const STRIDE: u64 = 16;

    #[test]
    fn layers_in_one_allocation_end_where_the_next_begins() {
        let mut memory = KnownMemory::default();
        let device = MemoryType::Device { ordinal: 0 };
        // An allocator's segment with three layers of 10 rows and much room after them.
        memory.add(0x10_000, 0x1000, device, 0x10_000);
        memory.add(0x20_000, 10 * STRIDE, device, 0x20_000);
        let layers = [0x10_000, 0x10_000 + 10 * STRIDE, 0x10_000 + 20 * STRIDE];
        let fit = |starts: &[u64], neighbours: &[u64]| {
            rows_that_fit(starts, STRIDE, neighbours, &memory).unwrap()
        };
        assert_eq!(fit(&layers, &layers), 10);
        // In any order.
        let reversed: Vec<u64> = layers.iter().rev().copied().collect();
        assert_eq!(fit(&reversed, &reversed), 10);
        // Sources may overlap each other, but not what is written.
        assert_eq!(fit(&layers, &[]), (0x1000 - 20 * STRIDE) / STRIDE);
        assert_eq!(fit(&layers, &[layers[2] + 3 * STRIDE]), 3);
        // An allocation of exactly these rows has all of them.
        assert_eq!(fit(&[0x20_000], &[0x20_000]), 10);
        assert_eq!(fit(&[0x20_000 + 1], &[]), 9);
        assert_eq!(fit(&[layers[0], 0x20_000], &[]), 10);
    }

    #[test]
    fn an_address_outside_all_allocations_is_refused() {
        let memory = KnownMemory::default();
        let error = rows_that_fit(&[0x10_000], STRIDE, &[], &memory).unwrap_err();
        assert!(error.to_string().contains("0x10000"), "{error}");
    }
}
