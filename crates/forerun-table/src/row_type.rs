//! The type of rows: a number of elements of one type.
//!
//! ```text
//!   row   | e0 | e1 | e2 | ... |        dim elements of dtype, little-endian, concatenated
//! ```

use half::{bf16, f16};
use std::fmt;

/// The type of a row's elements. A table copies bytes; only [`Update::Add`](crate::Update::Add)
/// looks at the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// Unsigned bytes; sums wrap.
    U8,
    /// Signed bytes; sums wrap.
    I8,
    /// Signed 32-bit integers; sums wrap.
    I32,
    /// Signed 64-bit integers; sums wrap.
    I64,
    /// IEEE 754 half precision; sums are computed in single precision and rounded to nearest, ties
    /// to even.
    F16,
    /// The upper half of single precision; sums as for half precision.
    Bf16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

impl Dtype {
    /// All types, in the order of their [codes](Dtype::code).
    pub const ALL: [Dtype; 8] = [
        Dtype::U8,
        Dtype::I8,
        Dtype::I32,
        Dtype::I64,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F32,
        Dtype::F64,
    ];

    /// The size of an element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::U8 | Dtype::I8 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::F64 => 8,
        }
    }

    /// NumPy's name for the type; `bfloat16` is PyTorch's.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::U8 => "uint8",
            Dtype::I8 => "int8",
            Dtype::I32 => "int32",
            Dtype::I64 => "int64",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::F32 => "float32",
            Dtype::F64 => "float64",
        }
    }

    /// The number of the type in files.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type with this code.
    pub fn from_code(code: u8) -> Option<Dtype> {
        Dtype::ALL.get(usize::from(code)).copied()
    }

    /// Adds rows to `to`, element by element. 16-bit elements are summed in 32 bits and rounded
    /// once: with rounding at each addition, 1,000 ones would sum to 256 in bfloat16.
    pub(crate) fn add<'r>(self, to: &mut [u8], rows: impl Iterator<Item = &'r [u8]> + Clone) {
        match self {
            Dtype::U8 | Dtype::I8 => each(to, rows, |[a], [b]| [u8::wrapping_add(a, b)]),
            Dtype::I32 => each(to, rows, |a, b| {
                i32::wrapping_add(i32::from_le_bytes(a), i32::from_le_bytes(b)).to_le_bytes()
            }),
            Dtype::I64 => each(to, rows, |a, b| {
                i64::wrapping_add(i64::from_le_bytes(a), i64::from_le_bytes(b)).to_le_bytes()
            }),
            Dtype::F16 => {
                let widen = |bytes| f16::from_le_bytes(bytes).to_f32();
                sum_wide(to, rows, widen, |sum| f16::from_f32(sum).to_le_bytes());
            }
            Dtype::Bf16 => {
                let widen = |bytes| bf16::from_le_bytes(bytes).to_f32();
                sum_wide(to, rows, widen, |sum| bf16::from_f32(sum).to_le_bytes());
            }
            Dtype::F32 => each(to, rows, |a, b| {
                (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes()
            }),
            Dtype::F64 => each(to, rows, |a, b| {
                (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes()
            }),
        }
    }
}

/// Adds the rows in order.
fn each<'r, const N: usize>(
    to: &mut [u8],
    rows: impl Iterator<Item = &'r [u8]>,
    add: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let (to, _) = to.as_chunks_mut::<N>();
    for row in rows {
        let (row, _) = row.as_chunks::<N>();
        for (to, by) in to.iter_mut().zip(row) {
            *to = add(*to, *by);
        }
    }
}

/// Sums each element over all rows before the next, so that no row of wide sums is needed.
fn sum_wide<'r>(
    to: &mut [u8],
    rows: impl Iterator<Item = &'r [u8]> + Clone,
    widen: impl Fn([u8; 2]) -> f32,
    round: impl Fn(f32) -> [u8; 2],
) {
    let (to, _) = to.as_chunks_mut::<2>();
    for (at, to) in to.iter_mut().enumerate() {
        let elements = rows
            .clone()
            .filter_map(|row| row.as_chunks::<2>().0.get(at));
        *to = round(elements.fold(widen(*to), |sum, by| sum + widen(*by)));
    }
}

forerun_core::names! {
    Dtype, "element type";
    /// A name that no element type has.
    UnknownDtype
}

/// The type and length of a table's rows.
///
/// ```
/// use forerun_table::{Dtype, RowType};
///
/// let row = RowType::new(Dtype::F32, 64);
/// assert_eq!((row.bytes(), row.to_string()), (256, "64 x float32".to_owned()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowType {
    /// The elements' type.
    pub dtype: Dtype,
    /// The number of elements.
    pub dim: u32,
}

impl RowType {
    /// Rows of `dim` elements.
    pub const fn new(dtype: Dtype, dim: u32) -> RowType {
        RowType { dtype, dim }
    }

    /// The size of a row in bytes.
    pub const fn bytes(self) -> usize {
        self.dtype.bytes() * self.dim as usize
    }
}

impl fmt::Display for RowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.dim, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(dtype: Dtype, a: &[u8], b: &[u8]) -> Vec<u8> {
        let mut to = a.to_vec();
        dtype.add(&mut to, std::iter::once(b));
        to
    }

    #[test]
    fn types_round_trip_through_names_and_codes() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(Dtype::from_code(8), None);
        assert!(
            "complex64"
                .parse::<Dtype>()
                .unwrap_err()
                .to_string()
                .contains("complex64")
        );
    }

    #[test]
    fn integers_wrap_and_carry_within_their_element() {
        assert_eq!(sum(Dtype::U8, &[255, 1], &[2, 3]), [1, 4]);
        assert_eq!(sum(Dtype::I8, &[0x80], &[0xff]), [0x7f]);
        let (a, b) = (i32::MAX.to_le_bytes(), 1i32.to_le_bytes());
        assert_eq!(sum(Dtype::I32, &a, &b), i32::MIN.to_le_bytes());
        let (a, b) = ((-1i64).to_le_bytes(), 3i64.to_le_bytes());
        assert_eq!(sum(Dtype::I64, &a, &b), 2i64.to_le_bytes());
    }

    #[test]
    fn floats_are_rounded_to_nearest_even_in_their_own_precision() {
        let (a, b) = (1.5f32.to_le_bytes(), (-0.25f32).to_le_bytes());
        assert_eq!(sum(Dtype::F32, &a, &b), 1.25f32.to_le_bytes());
        let (a, b) = (1e300f64.to_le_bytes(), 1e300f64.to_le_bytes());
        assert_eq!(sum(Dtype::F64, &a, &b), 2e300f64.to_le_bytes());
        // Half precision has 11 bits: 2048 + 1 lies between 2048 and 2050, and the even one is
        // 2048.
        let (a, b) = (f16::from_f32(2048.0).to_le_bytes(), f16::ONE.to_le_bytes());
        assert_eq!(sum(Dtype::F16, &a, &b), a);
        // bfloat16 has 8 bits: 256 + 1 likewise rounds to 256.
        let (a, b) = (bf16::from_f32(256.0).to_le_bytes(), bf16::ONE.to_le_bytes());
        assert_eq!(sum(Dtype::Bf16, &a, &b), a);
        assert_eq!(sum(Dtype::Bf16, &b, &b), bf16::from_f32(2.0).to_le_bytes());
    }

    #[test]
    fn many_rows_of_16_bits_are_summed_before_they_are_rounded() {
        let one = bf16::ONE.to_le_bytes();
        let mut sum = bf16::ZERO.to_le_bytes();
        Dtype::Bf16.add(&mut sum, std::iter::repeat_n(&one[..], 1000));
        assert_eq!(sum, bf16::from_f32(1000.0).to_le_bytes());
        let one = f16::ONE.to_le_bytes();
        let mut sum = [f16::ZERO.to_le_bytes(), f16::ONE.to_le_bytes()].concat();
        let row = [one, one].concat();
        Dtype::F16.add(&mut sum, std::iter::repeat_n(&row[..], 4095));
        let expected = [4095.0, 4096.0].map(|sum| f16::from_f32(sum).to_le_bytes());
        assert_eq!(sum, expected.concat());
    }
}
