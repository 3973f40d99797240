//! Litmus tests of a device's memory (`kernels/litmus.cu`): they look for outcomes that the memory
//! orders of the table's kernels forbid.

use crate::driver::{Command, DeviceBuffer, Kernel, Launch, Stream, sealed};
use crate::{Gpu, GpuError};
use std::fmt;
use std::marker::PhantomData;

/// What a writer and a reader do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LitmusTest {
    /// A row, then the digest by which it is found.
    Publish,
    /// A row between two versions of its bucket's word.
    Row,
    /// The same, and another lane than the word's stores the row.
    Lanes,
}

impl LitmusTest {
    /// All tests.
    pub const ALL: [LitmusTest; 3] = [LitmusTest::Publish, LitmusTest::Row, LitmusTest::Lanes];

    fn kernel(self, ordered: bool) -> &'static str {
        match (self, ordered) {
            (LitmusTest::Publish, true) => "litmus_publish",
            (LitmusTest::Publish, false) => "litmus_publish_weak",
            (LitmusTest::Row, true) => "litmus_row",
            (LitmusTest::Row, false) => "litmus_row_weak",
            (LitmusTest::Lanes, true) => "litmus_lanes",
            (LitmusTest::Lanes, false) => "litmus_lanes_weak",
        }
    }
}

/// How often the readers of one or more launches saw each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LitmusOutcomes {
    /// The reader saw none of the writer's stores.
    pub nothing: u64,
    /// The reader saw all of the writer's stores.
    pub all: u64,
    /// The reader saw a forbidden outcome.
    pub forbidden: u64,
    /// The writer was active: a reader of the table would search again.
    pub active: u64,
}

/// `kernels/litmus.cu` declares the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct LitmusParams {
    cells: u64,
    count: u64,
    outcomes: u64,
    writers: u64,
}

const _: () = assert!(size_of::<LitmusParams>() == 32);

/// Bytes per cell: two lines.
const CELL_BYTES: usize = 256;
const WARP_LANES: usize = 32;
/// Threads per block, as in `kernels/litmus.list`, and blocks per multiprocessor.
const THREADS: u32 = 128;
const BLOCKS_EACH: u32 = 8;

/// One launch: half of the blocks write the cells, the others read them.
struct Litmus<'a> {
    gpu: Gpu,
    kernel: Kernel,
    blocks: u32,
    params: LitmusParams,
    _memory: PhantomData<&'a ()>,
}

impl LitmusTest {
    /// Runs the test on `cells` cells, rounded up to whole warps, `launches` times. With `ordered`,
    /// the writer and the reader use the memory orders of the table's kernels.
    ///
    /// # Errors
    /// Out of memory; the driver's error.
    pub fn run(
        self,
        gpu: &Gpu,
        ordered: bool,
        cells: usize,
        launches: u32,
    ) -> Result<LitmusOutcomes, GpuError> {
        let cells = cells.next_multiple_of(WARP_LANES);
        let memory = DeviceBuffer::new(gpu, cells * CELL_BYTES)?;
        let outcomes = DeviceBuffer::from_slice(gpu, &[0; 4 * 8])?;
        let stream = Stream::new(gpu)?;
        let mut launch = Litmus {
            gpu: gpu.clone(),
            kernel: gpu.kernel(self.kernel(ordered))?,
            blocks: gpu.info().multiprocessors * BLOCKS_EACH,
            params: LitmusParams {
                cells: memory.address(),
                count: cells as u64,
                outcomes: outcomes.address(),
                writers: 0,
            },
            _memory: PhantomData,
        };
        for turn in 0..launches {
            launch.params.writers = u64::from(turn % 2);
            memory.fill(0)?;
            gpu.scope(|scope| scope.enqueue(&stream, &launch))?;
        }
        let bytes = outcomes.to_vec()?;
        let mut counts = bytes.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b));
        let mut next = || counts.next().unwrap_or_default();
        Ok(LitmusOutcomes {
            nothing: next(),
            all: next(),
            forbidden: next(),
            active: next(),
        })
    }
}

impl fmt::Debug for Litmus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Litmus")
            .field("blocks", &self.blocks)
            .field("params", &self.params)
            .finish()
    }
}

impl sealed::Sealed for Litmus<'_> {}

impl Command for Litmus<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the litmus test")?;
        let launch = Launch {
            blocks: self.blocks,
            threads: THREADS,
            shared_bytes: 0,
        };
        // SAFETY: the argument has the kernel's layout. The cells and the outcomes have the lengths
        // that it states, and the caller keeps both alive.
        unsafe { self.kernel.launch(stream, launch, &self.params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_are_those_of_the_list() {
        let list = include_str!("../../kernels/litmus.list");
        for test in LitmusTest::ALL {
            for ordered in [true, false] {
                let line = format!(
                    "KERNEL({}, {}, {}, {THREADS},",
                    test.kernel(ordered),
                    test as u32,
                    u32::from(ordered)
                );
                assert!(list.contains(&line), "{line}");
            }
        }
    }
}
