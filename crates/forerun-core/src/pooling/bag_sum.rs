//! The sum of one bag, in plain loops that the compiler vectorizes for each instruction set.

use super::bags::{Bags, PoolingError};
use super::float16::{round_bf16, round_f16, widen_bf16, widen_f16};
use super::row_format::{PooledDtype, Pooling, PoolingOptions, RowFormat};
use crate::arch::{Isa, Simd, WithSimd, dispatch, isa};

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
        sum_rows(isa(), self.options.format, &mut self.sums, rows);
    }

    /// Adds the rows of the keys at the positions of a block, whatever their bags, and writes the
    /// results of the bags that end in it, from bag `next` on. Returns the first bag that does not.
    /// Blocks come in order, without a gap.
    ///
    /// # Panics
    /// `rows_out` or `found` is shorter than the bags need.
    pub fn add_block<'r>(
        &mut self,
        bags: &Bags<'_>,
        block: std::ops::Range<usize>,
        next: usize,
        mut row_at: impl FnMut(usize) -> Option<&'r [u8]>,
        rows_out: &mut [u8],
        found: &mut [u32],
    ) -> usize {
        let output_bytes = self.output_bytes();
        for bag in next..bags.len() {
            let range = bags.range(bag);
            let here = range.start.max(block.start)..range.end.min(block.end);
            if !here.is_empty() {
                self.add(bags, here, &mut row_at);
            }
            if range.end > block.end {
                return bag;
            }
            let row_out = &mut rows_out[bag * output_bytes..][..output_bytes];
            found[bag] = self.end(bags, bag, row_out);
        }
        bags.len()
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
    isa: Isa,
    format: RowFormat,
    sums: &mut [f32],
    rows: impl Iterator<Item = (&'r [u8], f32)>,
) {
    macro_rules! of {
        ($values:expr) => {{
            let values = $values;
            dispatch(isa, SumRows { sums, rows, values })
        }};
    }
    match format {
        RowFormat::F32 => of!(Float32),
        RowFormat::F16 => of!(Float16),
        RowFormat::Bf16 => of!(BFloat16),
        RowFormat::QInt8Rowwise => of!(Signed8),
        RowFormat::QUint8Rowwise => of!(Unsigned8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_returns_the_same_bits() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(7);
            (state >> 32) as u32
        };
        for format in RowFormat::ALL {
            for dim in [1, 3, 8, 31, 64, 100] {
                let bytes = format.row_bytes(dim) as usize;
                // Any bits: subnormal numbers, infinities and NaNs are among them.
                let rows: Vec<Vec<u8>> = (0..40)
                    .map(|_| (0..bytes).map(|_| random() as u8).collect())
                    .collect();
                let weights: Vec<f32> = (0..40).map(|_| random() as f32 / 1e9 - 2.0).collect();
                let sums_by = |isa| {
                    let mut sums = vec![0.0; dim as usize];
                    let rows = rows.iter().map(|row| &row[..]).zip(weights.iter().copied());
                    sum_rows(isa, format, &mut sums, rows);
                    sums.into_iter()
                        .map(|sum| without_payload(sum).to_bits())
                        .collect::<Vec<u32>>()
                };
                let expected = sums_by(Isa::Scalar);
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                    assert_eq!(sums_by(isa), expected, "{format}, {dim} values, {isa}");
                }
            }
        }
    }
}
