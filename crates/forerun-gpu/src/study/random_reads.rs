//! Random reads of device memory: their rate is an upper bound for lookups (`kernels/roofline.cu`).

use crate::driver::{Command, DeviceBuffer, Kernel, Launch, Stream, sealed};
use crate::table::mix;
use crate::{Gpu, GpuError};
use std::fmt;
use std::marker::PhantomData;

/// Bytes per request, which device memory delivers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestBytes {
    /// One sector, the minimum.
    B32,
    /// Two sectors.
    B64,
    /// One line.
    B128,
}

impl RequestBytes {
    /// All sizes, the smallest first.
    pub const ALL: [RequestBytes; 3] = [RequestBytes::B32, RequestBytes::B64, RequestBytes::B128];

    /// The size as a number.
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

/// `kernels/roofline.cu` declares the same layout.
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

/// Threads per block, as in `kernels/roofline.list`, and as many blocks per multiprocessor as fit.
const THREADS: u32 = 256;
const BLOCKS_EACH: u32 = 8;

/// Reads `count` pieces of a buffer at places derived from `seed`, and sums their content.
pub struct RandomReads<'a> {
    gpu: Gpu,
    kernel: Kernel,
    blocks: u32,
    params: RandomReadParams,
    _memory: PhantomData<&'a ()>,
}

/// The word at each place of a buffer for [`RandomReads`], so that the sum can be verified.
fn word(place: u64) -> u64 {
    mix(place)
}

/// The piece that a request reads.
fn piece(request: u64, pieces: u64) -> u64 {
    ((u128::from(mix(request)) * u128::from(pieces)) >> 64) as u64
}

impl<'a> RandomReads<'a> {
    /// Prepares to fill a buffer with the words to be read.
    ///
    /// # Errors
    /// The driver's error.
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

    /// Prepares reads of a filled buffer. `sum` is a u64 to which the sum of all words read is
    /// added.
    ///
    /// # Errors
    /// The buffer is shorter than a request, a buffer is on another device, or the driver failed.
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
            kernel: gpu.kernel(kernel)?,
            blocks: gpu.info().multiprocessors * BLOCKS_EACH,
            params,
            _memory: PhantomData,
        })
    }

    /// The sum that `count` reads of a filled buffer of this length must return.
    ///
    /// ```
    /// use forerun_gpu::study::{RandomReads, RequestBytes};
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

    /// The content of a filled buffer, word by word.
    pub fn words() -> impl Iterator<Item = u64> {
        (0..).map(word)
    }

    /// The same reads on the CPU, over words that [`RandomReads::words`] returned. The words must
    /// be enough for one request.
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
        // SAFETY: the argument has the kernel's layout. All pieces are within the buffer's length,
        // the sum is a u64, and the caller keeps both alive.
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
        let list = include_str!("../../kernels/roofline.list");
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
