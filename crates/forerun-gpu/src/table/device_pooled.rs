//! Pooled lookups in a table on a device, of bags in host memory.
//!
//! ```text
//!   staging   │ keys │ offsets │ weights │ pooled rows │ counts │ sums │
//!             └──────── copied in ───────┘             │        │        sums: see find_pooled.cuh
//!                                        └─── copied back ──────┘
//! ```
//!
//! A part of a batch is one launch: as many whole bags as fit into staging memory, at least one.

use super::backend::HostBatch;
use super::device_table::{DeviceTable, STAGING_BYTES};
use super::error::TableError;
use super::host_batch::put_words;
use super::kernel;
use super::params::{LOOKUP_BY_LOAD, TableOp};
use super::staging::Layout;
use forerun_core::pooling::{Bags, PooledDtype, PoolingOptions};
use std::ops::Range;

/// Values of a row whose sums a warp keeps in registers: `part_values` of
/// `kernels/table/find_pooled.cuh`.
const PART_VALUES: u64 = 256;

/// The bytes of memory for sums that a pooled lookup of this many bags needs, apart from its
/// output. Only long rows with results in 16 bits need any.
pub(super) fn sums_bytes(options: &PoolingOptions, dim: u64, bags: u64) -> u64 {
    match options.output {
        PooledDtype::F32 => 0,
        _ if dim <= PART_VALUES => 0,
        _ => bags.saturating_mul(dim).saturating_mul(4),
    }
}

/// The arguments of the kernel that do not depend on the bags.
pub(super) fn op_of(options: &PoolingOptions) -> TableOp {
    TableOp {
        row_format: options.format as u32,
        pooling: options.pooling as u32,
        output: options.output as u32,
        lookup: LOOKUP_BY_LOAD,
        ..TableOp::default()
    }
}

/// The bytes of staging memory for this many keys and bags, without padding.
fn staged_bytes(bags: &Bags<'_>, options: &PoolingOptions, dim: u64, keys: u64, n: u64) -> u64 {
    let a_key = if bags.weights.is_some() { 12 } else { 8 };
    let a_bag = 8 + dim * options.output.bytes() + 4 + sums_bytes(options, dim, 1);
    keys * a_key + n.saturating_mul(a_bag)
}

impl DeviceTable {
    /// Looks up bags that have been checked.
    pub(crate) fn find_pooled(
        &self,
        bags: &Bags<'_>,
        options: &PoolingOptions,
        dim: u64,
        rows_out: &mut [u8],
        found: &mut [u32],
    ) -> Result<(), TableError> {
        let row_bytes = (dim * options.output.bytes()) as usize;
        let mut first = 0;
        while first < bags.len() {
            let mut end = first + 1;
            let fits = |end: usize| {
                let keys = bags.offsets[end] - bags.offsets[first];
                staged_bytes(bags, options, dim, keys, (end - first) as u64) <= STAGING_BYTES
            };
            while end < bags.len() && fits(end + 1) {
                end += 1;
            }
            let rows_out = &mut rows_out[first * row_bytes..end * row_bytes];
            self.pool_part(
                bags,
                first..end,
                options,
                dim,
                rows_out,
                &mut found[first..end],
            )?;
            first = end;
        }
        Ok(())
    }

    fn pool_part(
        &self,
        bags: &Bags<'_>,
        part: Range<usize>,
        options: &PoolingOptions,
        dim: u64,
        rows_out: &mut [u8],
        found: &mut [u32],
    ) -> Result<(), TableError> {
        let offsets = &bags.offsets[part.start..=part.end];
        let first_key = offsets[0];
        let positions = first_key as usize..offsets[part.len()] as usize;
        let (keys, n) = (&bags.keys[positions.clone()], part.len() as u64);
        let weights = bags.weights.map(|weights| &weights[positions]);
        let mut layout = Layout::default();
        let keys_at = layout.take(keys.len() as u64 * 8);
        let offsets_at = layout.take((n + 1) * 8);
        let weights_at = layout.take_if(weights.is_some(), keys.len() as u64 * 4);
        let input_bytes = layout.bytes;
        let rows_at = layout.take(rows_out.len() as u64);
        let found_at = layout.take(n * 4);
        let output = input_bytes..layout.bytes;
        let sums = sums_bytes(options, dim, n);
        let sums_at = layout.take_if(sums != 0, sums);
        self.staged_lookup(layout.bytes, |base| {
            let op = TableOp {
                table: *self.state(),
                count: keys.len() as u64,
                keys: base + keys_at,
                bags: n,
                offsets: base + offsets_at,
                weights: Layout::place(base, weights_at),
                rows_out: base + rows_at,
                found_out: base + found_at,
                sums: Layout::place(base, sums_at),
                // Operations on streams may change the table at the same time.
                concurrent_writers: 1,
                ..op_of(options)
            };
            let launch = kernel::find_pooled(self.state().width, n, self.backend().blocks_max());
            self.backend().run(
                launch,
                &op,
                HostBatch {
                    address: base,
                    input_bytes,
                    output: output.clone(),
                    fill: &mut |bytes| {
                        put_words(keys.iter().copied(), bytes, keys_at);
                        let offsets = offsets.iter().map(|offset| offset - first_key);
                        put_words(offsets, bytes, offsets_at);
                        if let (Some(weights), Some(at)) = (weights, weights_at) {
                            let places = bytes[at as usize..].as_chunks_mut().0;
                            for (to, weight) in places.iter_mut().zip(weights) {
                                *to = weight.to_ne_bytes();
                            }
                        }
                    },
                    take: &mut |bytes| {
                        let from = |at: u64| &bytes[(at - output.start) as usize..];
                        rows_out.copy_from_slice(&from(rows_at)[..rows_out.len()]);
                        for (to, count) in found.iter_mut().zip(from(found_at).as_chunks().0) {
                            *to = u32::from_ne_bytes(*count);
                        }
                    },
                },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::pooling::RowFormat;

    #[test]
    fn the_kernel_has_the_same_parts() {
        let kernel = include_str!("../../kernels/table/find_pooled.cuh");
        assert!(kernel.contains("constexpr u32 lane_values = 8;"));
        assert!(kernel.contains("constexpr u32 part_values = lane_values * warp_lanes;"));
        assert_eq!(PART_VALUES, 8 * 32);
        let options = PoolingOptions::new(RowFormat::F16);
        assert_eq!(sums_bytes(&options, 1 << 20, 9), 0);
        let half = options.output(PooledDtype::F16);
        assert_eq!(
            (sums_bytes(&half, 256, 9), sums_bytes(&half, 257, 9)),
            (0, 257 * 9 * 4)
        );
    }
}
