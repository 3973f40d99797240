//! The table's kernels as a device for tests, on the CPU.

use crate::shim_process::{ShimLaunch, ShimProcess};
use forerun_gpu::Gpu;
use forerun_gpu::table::params::TableOp;
use forerun_gpu::table::{Backend, BufferKind, TableError, TableLaunch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How kernels are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One warp, which processes keys that share a bucket in batch order.
    OneWarp,
    /// Several blocks, with a seed that changes on every launch.
    Seeded(u64),
}

pub struct Shim {
    process: ShimProcess,
    launches: AtomicU64,
    order: Order,
}

impl Shim {
    /// Returns `None` without a C++ compiler, which has been reported by then.
    pub fn start(order: Order) -> Option<Arc<Shim>> {
        Some(Arc::new(Shim {
            process: ShimProcess::start("table")?,
            launches: AtomicU64::new(0),
            order,
        }))
    }

    /// Launches kernels at the same time, each on its own blocks. Panics with the failure.
    pub fn beside(&self, threads: u32, seed: u64, kernels: &[(&str, u32, TableOp)]) {
        let launch = ShimLaunch {
            threads,
            shared_bytes: threads * 128,
            resident: 2 + (seed % 3) as u32,
            seed,
        };
        let with_bytes: Vec<_> = kernels
            .iter()
            .map(|(name, blocks, op)| (*name, *blocks, op_bytes(op)))
            .collect();
        let failure = self.process.launch(launch, &with_bytes);
        assert!(failure.is_empty(), "{kernels:?}, seed {seed}: {failure}");
    }

    /// A new array on the device.
    pub fn array(&self, bytes: &[u8]) -> u64 {
        let address = self.process.allocate(bytes.len() as u64, false);
        self.process.write(address, bytes);
        address
    }
}

fn op_bytes(op: &TableOp) -> Vec<u8> {
    let t = &op.table;
    let mut bytes = Vec::with_capacity(size_of::<TableOp>());
    let mut words = |all: &[u64]| all.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    words(&[
        t.digests,
        t.keys,
        t.scores,
        t.words,
        t.pins,
        t.control,
        t.rows,
        t.rows_host,
    ]);
    words(&[t.rows_split, t.buckets, t.row_bytes, t.row_stride_bytes]);
    let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    const { assert!(cfg!(target_endian = "little")) };
    words(&[pair(t.width, t.candidates), pair(t.score_bytes, t.policy)]);
    words(&[
        op.count,
        op.keys,
        op.rows_in,
        op.rows_out,
        op.scores_in,
        op.scores_out,
    ]);
    words(&[
        op.slots_out,
        op.pointers_out,
        op.status_out,
        op.flags,
        op.out_count,
        op.out_keys,
    ]);
    words(&[
        op.out_rows,
        op.out_scores,
        op.out_places,
        op.epoch,
        op.first_slot,
    ]);
    words(&[op.score_min, op.score_max, op.key_mask, op.key_value]);
    words(&[
        pair(op.actions, op.scan),
        pair(op.element, op.lookup),
        pair(op.concurrent_writers, op.row_format),
        op.count_at,
    ]);
    words(&[op.bags, op.offsets, op.weights, op.found_out, op.sums]);
    words(&[pair(op.pooling, op.output)]);
    assert_eq!(bytes.len(), size_of::<TableOp>());
    bytes
}

impl Backend for Shim {
    fn allocate(&self, bytes: u64, kind: BufferKind) -> Result<u64, TableError> {
        Ok(self.process.allocate(bytes, kind == BufferKind::Zeroed))
    }

    fn free(&self, address: u64) {
        self.process.free(address);
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), TableError> {
        self.process.write(address, bytes);
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), TableError> {
        self.process.read(address, bytes);
        Ok(())
    }

    fn launch(&self, launch: TableLaunch, op: &TableOp) -> Result<(), TableError> {
        // Only a number: nothing else is ordered by it.
        let launches = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        match self.order {
            Order::OneWarp => self.beside(32, launches, &[(launch.kernel, 1, *op)]),
            Order::Seeded(seed) => {
                let seed = seed.wrapping_mul(1_000_003).wrapping_add(launches);
                let threads = if seed.is_multiple_of(2) { 32 } else { 64 };
                let blocks = 1 + (seed / 2 % 3) as u32;
                self.beside(threads, seed, &[(launch.kernel, blocks, *op)]);
            }
        }
        Ok(())
    }

    fn blocks_max(&self) -> u32 {
        4
    }

    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}
