//! Reads at random places of a device's memory: the rate that no lookup can exceed
//! (`kernels/roofline.cu`).

use crate::driver::{Command, DeviceBuffer, Kernel, Launch, Stream, sealed};
use crate::table::mix;
use crate::{Gpu, GpuError};
use std::fmt;
use std::marker::PhantomData;

/// Bytes of a request: what the device's memory gives together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestBytes {
    /// A sector, the least.
    B32,
    /// Two.
    B64,
    /// A line.
    B128,
}

impl RequestBytes {
    /// All, the smallest first.
    pub const ALL: [RequestBytes; 3] = [RequestBytes::B32, RequestBytes::B64, RequestBytes::B128];

    /// As a number.
    pub fn bytes(self) -> u64 {
        match self {
            RequestBytes::B32 => 32,
            RequestBytes::B64 => 64,
            RequestBytes::B128 => 128,
        }
    }

    fn kernel(self) -> &'static str {
        match self {
            RequestBytes::B32 => "random_reads_b32",
            RequestBytes::B64 => "random_reads_b64",
            RequestBytes::B128 => "random_reads_b128",
        }
    }
}

/// `kernels/roofline.cu` has the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RandomReadParams {
    buffer: u64,
    pieces: u64,
    count: u64,
    seed: u64,
    sum: u64,
}

const _: () = assert!(size_of::<RandomReadParams>() == 40);

/// Threads a block, as `kernels/roofline.list` has them, and blocks a multiprocessor: as many as it
/// holds.
const THREADS: u32 = 256;
const BLOCKS_EACH: u32 = 8;

/// Reads `count` pieces of a buffer at places that follow from `seed`, and adds up what they hold.
pub struct RandomReads<'a> {
    gpu: Gpu,
    kernel: Kernel,
    blocks: u32,
    params: RandomReadParams,
    _memory: PhantomData<&'a ()>,
}

/// The word at each place of a buffer that [`RandomReads`] reads: so the sum can be checked.
fn word(place: u64) -> u64 {
    mix(place)
}

/// The piece that a request names.
fn piece(request: u64, pieces: u64) -> u64 {
    ((u128::from(mix(request)) * u128::from(pieces)) >> 64) as u64
}

impl<'a> RandomReads<'a> {
    /// Fills a buffer with what is to be read.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(buffer: &'a DeviceBuffer) -> Result<RandomReads<'a>, GpuError> {
        let params = RandomReadParams {
            buffer: buffer.address(),
            pieces: buffer.len() as u64 / 8,
            count: 0,
            seed: 0,
            sum: 0,
        };
        RandomReads::prepared(buffer.gpu(), "random_reads_fill", params)
    }

    /// Prepares reads of a buffer that was filled; `sum` is a u64, to which the sum of all words
    /// read is added.
    ///
    /// # Errors
    /// A buffer shorter than a request; another device's; the driver's.
    pub fn new(
        buffer: &'a DeviceBuffer,
        sum: &'a DeviceBuffer,
        request: RequestBytes,
        count: u64,
        seed: u64,
    ) -> Result<RandomReads<'a>, GpuError> {
        buffer.expect_bytes(request.bytes())?;
        sum.expect_bytes(8)?;
        buffer.gpu().expect(sum.gpu(), "the sum")?;
        let params = RandomReadParams {
            buffer: buffer.address(),
            pieces: buffer.len() as u64 / request.bytes(),
            count,
            seed,
            sum: sum.address(),
        };
        RandomReads::prepared(buffer.gpu(), request.kernel(), params)
    }

    fn prepared(
        gpu: &Gpu,
        kernel: &'static str,
        params: RandomReadParams,
    ) -> Result<RandomReads<'a>, GpuError> {
        Ok(RandomReads {
            gpu: gpu.clone(),
            kernel: gpu.kernels()?.kernel(kernel)?,
            blocks: gpu.info().multiprocessors * BLOCKS_EACH,
            params,
            _memory: PhantomData,
        })
    }

    /// What the sum must be of `count` reads of a filled buffer of that length.
    ///
    /// ```
    /// use forerun_gpu::{RandomReads, RequestBytes};
    ///
    /// let words: Vec<u64> = RandomReads::words().take(512).collect();
    /// let sum = RandomReads::on_cpu(&words, RequestBytes::B64, 1000, 7);
    /// assert_eq!(sum, RandomReads::expected(512 * 8, RequestBytes::B64, 1000, 7));
    /// ```
    pub fn expected(buffer_bytes: u64, request: RequestBytes, count: u64, seed: u64) -> u64 {
        let words = request.bytes() / 8;
        let pieces = buffer_bytes / request.bytes();
        (seed..seed + count)
            .flat_map(|r| {
                let first = piece(r, pieces) * words;
                first..first + words
            })
            .fold(0, |sum, place| sum.wrapping_add(word(place)))
    }

    /// What a filled buffer holds, word by word.
    pub fn words() -> impl Iterator<Item = u64> {
        (0..).map(word)
    }

    /// The same reads on the CPU, of words that [`RandomReads::words`] gave; at least a request of
    /// them.
    pub fn on_cpu(words: &[u64], request: RequestBytes, count: u64, seed: u64) -> u64 {
        let each = (request.bytes() / 8) as usize;
        let pieces = (words.len() / each) as u64;
        (seed..seed + count).fold(0u64, |sum, r| {
            let first = piece(r, pieces) as usize * each;
            let read = &words[first..first + each];
            read.iter().fold(sum, |sum, word| sum.wrapping_add(*word))
        })
    }
}

impl fmt::Debug for RandomReads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RandomReads")
            .field("blocks", &self.blocks)
            .field("params", &self.params)
            .finish()
    }
}

impl sealed::Sealed for RandomReads<'_> {}

impl Command for RandomReads<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the random reads")?;
        let launch = Launch {
            blocks: self.blocks,
            threads: THREADS,
            shared_bytes: 0,
        };
        // SAFETY: the argument has the kernel's layout; pieces lie within the buffer's length, the
        // sum is a u64, and the caller keeps both alive.
        unsafe { self.kernel.launch(stream, launch, &self.params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpus_sum_is_the_one_that_is_expected_of_every_request() {
        let words: Vec<u64> = RandomReads::words().take(1000).collect();
        for request in RequestBytes::ALL {
            let sum = RandomReads::on_cpu(&words, request, 333, 5);
            assert_eq!(sum, RandomReads::expected(8000, request, 333, 5));
            assert_ne!(sum, RandomReads::on_cpu(&words, request, 333, 6));
        }
    }

    #[test]
    fn the_kernels_are_those_of_the_list() {
        let list = include_str!("../kernels/roofline.list");
        for request in RequestBytes::ALL {
            let line = format!(
                "KERNEL({}, {}, {THREADS},",
                request.kernel(),
                request.bytes()
            );
            assert!(list.contains(&line), "{line}");
        }
    }
}
