//! How many rows there are in memory whose size is unknown, such as that behind an address in a
//! table.
//!
//! ```text
//!   memory   | layer 0 | layer 1 |  another tensor  |
//!   rows         <--->     up to the next neighbour, or to the end of the memory
//!                          |<---------------------->|
//!                          the layer with the fewest counts: all have equally many
//! ```
//!
//! An allocator may place many tensors into one allocation of the driver, so the end of the
//! allocation alone is not enough: the rows of one layer would reach into the next. Nor does a
//! layer end where an allocation does, because the memory of PyTorch's expandable segments is
//! mapped in pieces of 2 or 20 MiB, of which the driver may report one. An allocation of
//! `cudaMalloc` is whole, and may have another one behind it.

use super::known_memory::{Locate, end_of_pieces};
use crate::gather_error::GatherError;

/// The number of rows, `stride_bytes` apart, that fit into each piece of memory from its address in
/// `starts` on, but at most `rows_max`, without going beyond the memory there or to an address in
/// `neighbours`. An address that is itself in `neighbours` is not its own neighbour. Memory of a
/// device that was mapped piece by piece goes on where another piece follows without a gap.
///
/// ```
/// use forerun_gpu::gather::{KnownMemory, MemoryType, rows_that_fit};
///
/// let mut memory = KnownMemory::default();
/// memory.add(0x1000, 100, MemoryType::Pinned, 0x1000);
/// // Two layers of 5 rows of 8 bytes, and 20 bytes that belong to neither.
/// let layers = [0x1000, 0x1000 + 40];
/// assert_eq!(rows_that_fit(&layers, 8, &layers, u64::MAX, &memory)?, 5);
/// assert_eq!(rows_that_fit(&layers, 8, &[], u64::MAX, &memory)?, 7);
/// assert_eq!(rows_that_fit(&layers, 8, &[], 3, &memory)?, 3);
/// # Ok::<(), forerun_gpu::gather::GatherError>(())
/// ```
///
/// # Errors
/// [`GatherError::Unknown`] if there is no allocation at an address.
pub fn rows_that_fit(
    starts: &[u64],
    stride_bytes: u64,
    neighbours: &[u64],
    rows_max: u64,
    memory: &dyn Locate,
) -> Result<u64, GatherError> {
    let stride_bytes = stride_bytes.max(1);
    let mut neighbours = neighbours.to_vec();
    neighbours.sort_unstable();
    // The last layer has the least memory after it, and limits how far the others look.
    let mut starts = starts.to_vec();
    starts.sort_unstable();
    let mut fewest = rows_max;
    for &start in starts.iter().rev() {
        let at = memory.locate(start)?;
        let Some(range) = at.range else {
            return Err(GatherError::Unknown {
                address: start,
                text: "no allocation of pinned memory or of the device is there".to_owned(),
            });
        };
        let next = neighbours.partition_point(|&address| address <= start);
        let next = neighbours.get(next).copied().unwrap_or(u64::MAX);
        let wanted = start.saturating_add(fewest.saturating_mul(stride_bytes));
        let wanted = wanted.min(next);
        let end = end_of_pieces(memory, &at, range, wanted)?.min(wanted);
        fewest = fewest.min(end.saturating_sub(start) / stride_bytes);
    }
    Ok(fewest)
}

#[cfg(test)]
mod tests {
    use super::super::known_memory::{KnownMemory, LocatedRanges};
    use super::*;
    use crate::memory_type::{MemoryType, PointerAttributes};
    use std::cell::Cell;

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
            rows_that_fit(starts, STRIDE, neighbours, u64::MAX, &memory).unwrap()
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

    /// Memory that is mapped piece by piece. Counts the questions.
    struct Counted(KnownMemory, Cell<u64>);

    impl Locate for Counted {
        fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError> {
            self.1.set(self.1.get() + 1);
            let at = self.0.locate(address)?;
            Ok(PointerAttributes {
                is_piece: at.range.is_some(),
                ..at
            })
        }
    }

    #[test]
    fn layers_reach_over_the_pieces_of_their_memory_and_each_is_asked_for_once() {
        let mut memory = Counted(KnownMemory::default(), Cell::new(0));
        let device = MemoryType::Device { ordinal: 0 };
        for piece in 0..40 {
            let start = 0x10_000 + piece * 0x100;
            memory.0.add(start, 0x100, device, start);
        }
        // Layers of 50 rows that begin within a piece, and rows of the next layer after them.
        let layers: [u64; 10] = std::array::from_fn(|layer| 0x10_010 + layer as u64 * 50 * STRIDE);
        let fit = |neighbours: &[u64], rows_max| {
            memory.1.set(0);
            let known = KnownMemory::default();
            let found = LocatedRanges::new(&known, &memory);
            let rows = rows_that_fit(&layers, STRIDE, neighbours, rows_max, &found).unwrap();
            (rows, memory.1.get())
        };
        // One question more, whether there is something after the last piece.
        assert_eq!(fit(&layers, u64::MAX), (50, 41));
        let to_the_end = (40 * 0x100 - 0x10 - 9 * 50 * STRIDE) / STRIDE;
        assert_eq!(fit(&[], u64::MAX), (to_the_end, 41));
        // No more is asked than the rows need: these are in one piece each.
        assert_eq!(fit(&[], 1), (1, 10));
    }

    #[test]
    fn rows_do_not_reach_into_the_next_allocation() {
        let mut memory = KnownMemory::default();
        let device = MemoryType::Device { ordinal: 0 };
        memory.add(0x10_000, 0x100, device, 0x10_000);
        memory.add(0x10_100, 0x100, device, 0x10_100);
        let known = KnownMemory::default();
        let found = LocatedRanges::new(&known, &memory);
        // Also once both were found.
        for _ in 0..2 {
            let fit = |start| rows_that_fit(&[start], STRIDE, &[], u64::MAX, &found).unwrap();
            assert_eq!(fit(0x10_000), 0x100 / STRIDE);
            assert_eq!(fit(0x10_140), 0xc0 / STRIDE);
        }
    }

    #[test]
    fn an_address_outside_all_allocations_is_refused() {
        let memory = KnownMemory::default();
        let error = rows_that_fit(&[0x10_000], STRIDE, &[], u64::MAX, &memory).unwrap_err();
        assert!(error.to_string().contains("0x10000"), "{error}");
    }
}
