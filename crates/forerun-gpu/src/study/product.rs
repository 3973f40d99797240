//! A matrix product that keeps the multiprocessors busy, to measure the effect of a copy that runs
//! at the same time.

use crate::driver::{Command, DeviceBuffer, Kernel, Launch, Stream, sealed};
use crate::{Gpu, GpuError};
use std::marker::PhantomData;

/// `kernels/busy.cu` declares the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ProductParams {
    a: u64,
    b: u64,
    c: u64,
    n: u64,
}

const _: () = assert!(size_of::<ProductParams>() == 32);

/// Rows and columns that a block computes; `n` is a multiple of it.
const TILE: u64 = 64;
/// Threads per block.
const THREADS: u32 = 256;

/// `c = a * b`, each `n` x `n` numbers of type `f32` in row-major order. It is bound by arithmetic,
/// on ordinary (not tensor) cores.
pub struct MatrixProduct<'a> {
    gpu: Gpu,
    kernel: Kernel,
    params: ProductParams,
    _memory: PhantomData<&'a ()>,
}

impl<'a> MatrixProduct<'a> {
    /// Size of an `n` x `n` matrix in bytes.
    pub fn matrix_bytes(n: u32) -> usize {
        n as usize * n as usize * size_of::<f32>()
    }

    /// Prepares the product.
    ///
    /// # Errors
    /// `n` is not a multiple of 64 or exceeds 2^20; a buffer is too short; the driver's error.
    pub fn new(
        a: &'a DeviceBuffer,
        b: &'a DeviceBuffer,
        c: &'a DeviceBuffer,
        n: u32,
    ) -> Result<MatrixProduct<'a>, GpuError> {
        let gpu = a.gpu();
        if n == 0 || !u64::from(n).is_multiple_of(TILE) || n > 1 << 20 {
            return Err(GpuError::Kernels(format!(
                "a matrix product takes a multiple of {TILE} rows up to 2^20, not {n}"
            )));
        }
        for buffer in [a, b, c] {
            buffer.expect_bytes(MatrixProduct::matrix_bytes(n) as u64)?;
            gpu.expect(buffer.gpu(), "a matrix")?;
        }
        Ok(MatrixProduct {
            gpu: gpu.clone(),
            kernel: gpu.kernel("busy_product")?,
            params: ProductParams {
                a: a.address(),
                b: b.address(),
                c: c.address(),
                n: n.into(),
            },
            _memory: PhantomData,
        })
    }
}

impl sealed::Sealed for MatrixProduct<'_> {}

impl Command for MatrixProduct<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the matrix product")?;
        let across = self.params.n / TILE;
        let launch = Launch {
            // One block per tile: when a block ends, blocks of other kernels can start.
            blocks: (across * across) as u32,
            threads: THREADS,
            shared_bytes: 0,
        };
        // SAFETY: the argument has the kernel's layout. The three n x n matrices are in buffers
        // that are long enough and that the caller keeps alive.
        unsafe { self.kernel.launch(stream, launch, &self.params) }
    }
}
