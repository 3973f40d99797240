//! The sum of one bag, in plain loops that the compiler vectorizes for each instruction set.

use super::bags::{Bags, PoolingError};
use super::float16::{round_bf16, round_f16, widen_bf16, widen_f16};
use super::row_format::{PooledDtype, Pooling, PoolingOptions, RowFormat};
use crate::arch::{Simd, WithSimd, dispatch, isa};

/// Sums the rows of a bag. One is reused for all bags of a batch.
///
/// ```
/// use forerun_core::pooling::{BagSum, Bags, Pooling, PoolingOptions};
///
/// let (one, two) = (1_f32.to_le_bytes(), 2_f32.to_le_bytes());
/// let bags = Bags::new(&[7, 8, 9], &[0, 3]);
/// let mut sum = BagSum::new(&PoolingOptions::default().pooling(Pooling::Mean), 4)?;
/// sum.add(&bags, 0..3, |at| [Some(&one[..]), None, Some(&two)][at]);
/// let mut mean = [0; 4];
/// assert_eq!(sum.end(&bags, 0, &mut mean), 2);
/// assert_eq!(f32::from_le_bytes(mean), 1.0);
/// # Ok::<(), forerun_core::pooling::PoolingError>(())
/// ```
#[derive(Debug)]
pub struct BagSum {
    options: PoolingOptions,
    sums: Vec<f32>,
    found: u32,
}

impl BagSum {
    /// For a table with rows of this size.
    ///
    /// # Errors
    /// The rows do not have the format.
    pub fn new(options: &PoolingOptions, row_bytes: u64) -> Result<BagSum, PoolingError> {
        let dim = options.dim(row_bytes)?;
        Ok(BagSum {
            options: *options,
            sums: vec![0.0; dim as usize],
            found: 0,
        })
    }

    /// The size of a pooled row.
    pub fn output_bytes(&self) -> usize {
        self.sums.len() * self.options.output.bytes() as usize
    }

    /// Adds the rows of the keys at these positions, which are the next ones of the bag. `row_at`
    /// returns a key's row, or nothing for an absent key.
    pub fn add<'r>(
        &mut self,
        bags: &Bags<'_>,
        positions: std::ops::Range<usize>,
        mut row_at: impl FnMut(usize) -> Option<&'r [u8]>,
    ) {
        let found = &mut self.found;
        let rows = positions.filter_map(|at| {
            let row = row_at(at)?;
            *found = found.saturating_add(1);
            Some((row, bags.weight(at)))
        });
        let sums = &mut self.sums[..];
        match self.options.format {
            RowFormat::F32 => sum_rows(sums, rows, Float32),
            RowFormat::F16 => sum_rows(sums, rows, Float16),
            RowFormat::Bf16 => sum_rows(sums, rows, BFloat16),
            RowFormat::QInt8Rowwise => sum_rows(sums, rows, Signed8),
            RowFormat::QUint8Rowwise => sum_rows(sums, rows, Unsigned8),
        }
    }

    /// Writes the bag's result, returns how many of its keys were found, and begins the next bag.
    ///
    /// # Panics
    /// `out` is not [`output_bytes`](BagSum::output_bytes) long, or there is no such bag.
    pub fn end(&mut self, bags: &Bags<'_>, bag: usize, out: &mut [u8]) -> u32 {
        assert_eq!(out.len(), self.output_bytes(), "a pooled row");
        if self.options.pooling == Pooling::Mean {
            let keys = bags.range(bag);
            let divisor = match bags.weights {
                None => keys.len() as f32,
                Some(weights) => weights[keys].iter().fold(0.0, |sum, weight| sum + weight),
            };
            let mean = |sum: f32| if divisor == 0.0 { 0.0 } else { sum / divisor };
            self.sums.iter_mut().for_each(|sum| *sum = mean(*sum));
        }
        match self.options.output {
            PooledDtype::F32 => {
                for (to, sum) in out.as_chunks_mut().0.iter_mut().zip(&self.sums) {
                    *to = without_payload(*sum).to_le_bytes();
                }
            }
            PooledDtype::F16 => {
                for (to, sum) in out.as_chunks_mut().0.iter_mut().zip(&self.sums) {
                    *to = round_f16(*sum).to_le_bytes();
                }
            }
            PooledDtype::Bf16 => {
                for (to, sum) in out.as_chunks_mut().0.iter_mut().zip(&self.sums) {
                    *to = round_bf16(*sum).to_le_bytes();
                }
            }
        }
        self.sums.fill(0.0);
        std::mem::take(&mut self.found)
    }
}

/// Which NaN an operation returns differs from CPU to CPU.
fn without_payload(value: f32) -> f32 {
    if value.is_nan() {
        f32::from_bits(0x7fc0_0000)
    } else {
        value
    }
}

/// Values of one format.
trait Values: Copy {
    /// Calls `each` with every value of a row.
    fn each(self, row: &[u8], sums: &mut [f32], each: impl Fn(&mut f32, f32));
}

#[derive(Clone, Copy)]
struct Float32;
#[derive(Clone, Copy)]
struct Float16;
#[derive(Clone, Copy)]
struct BFloat16;
#[derive(Clone, Copy)]
struct Signed8;
#[derive(Clone, Copy)]
struct Unsigned8;

impl Values for Float32 {
    #[inline(always)]
    fn each(self, row: &[u8], sums: &mut [f32], each: impl Fn(&mut f32, f32)) {
        for (sum, value) in sums.iter_mut().zip(row.as_chunks().0) {
            each(sum, f32::from_le_bytes(*value));
        }
    }
}
impl Values for Float16 {
    #[inline(always)]
    fn each(self, row: &[u8], sums: &mut [f32], each: impl Fn(&mut f32, f32)) {
        for (sum, value) in sums.iter_mut().zip(row.as_chunks().0) {
            each(sum, widen_f16(u16::from_le_bytes(*value)));
        }
    }
}
impl Values for BFloat16 {
    #[inline(always)]
    fn each(self, row: &[u8], sums: &mut [f32], each: impl Fn(&mut f32, f32)) {
        for (sum, value) in sums.iter_mut().zip(row.as_chunks().0) {
            each(sum, widen_bf16(u16::from_le_bytes(*value)));
        }
    }
}
impl Values for Signed8 {
    #[inline(always)]
    fn each(self, row: &[u8], sums: &mut [f32], each: impl Fn(&mut f32, f32)) {
        let (values, parameters) = row.split_at(sums.len().min(row.len()));
        let [scale] = numbers(parameters);
        for (sum, value) in sums.iter_mut().zip(values) {
            each(sum, f32::from(value.cast_signed()) * scale);
        }
    }
}
impl Values for Unsigned8 {
    #[inline(always)]
    fn each(self, row: &[u8], sums: &mut [f32], each: impl Fn(&mut f32, f32)) {
        let (values, parameters) = row.split_at(sums.len().min(row.len()));
        let [scale, bias] = numbers(parameters);
        for (sum, value) in sums.iter_mut().zip(values) {
            each(sum, f32::from(*value) * scale + bias);
        }
    }
}

/// The floats at the start of some bytes.
#[inline(always)]
fn numbers<const N: usize>(bytes: &[u8]) -> [f32; N] {
    let mut all = [0.0; N];
    for (to, from) in all.iter_mut().zip(bytes.as_chunks().0) {
        *to = f32::from_le_bytes(*from);
    }
    all
}

struct SumRows<'s, R, V> {
    sums: &'s mut [f32],
    rows: R,
    values: V,
}

impl<'r, R: Iterator<Item = (&'r [u8], f32)>, V: Values> WithSimd for SumRows<'_, R, V> {
    type Output = ();

    /// The instruction set only decides how the loops are vectorized. No operation is fused, so the
    /// result does not depend on it.
    #[inline(always)]
    fn with<S: Simd>(self, _: S) {
        let SumRows { sums, rows, values } = self;
        for (row, weight) in rows {
            values.each(row, sums, |sum, value| *sum += value * weight);
        }
    }
}

fn sum_rows<'r>(
    sums: &mut [f32],
    rows: impl Iterator<Item = (&'r [u8], f32)>,
    values: impl Values,
) {
    dispatch(isa(), SumRows { sums, rows, values });
}
