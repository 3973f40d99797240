//! Pooled lookups: the rows of each bag of keys are dequantized and summed. This module defines the
//! formats of rows and every rounding step, for all tables and for the GPU's kernels alike, so that
//! all of them return the same bits.
//!
//! ```text
//!   keys       | a b c | d | | e f |        offsets 0 3 4 4 6: four bags; the third is empty
//!   weights    | 1 2 1 | 1 | | 3 3 |        optional, one f32 per key
//!
//!   row, f32, f16, bf16    | v0 | v1 | ... |                                dim = bytes / 4, bytes / 2
//!   row, qint8-rowwise     | v0 | v1 | ... | scale, f32 |                   i8;  dim = bytes - 4
//!   row, quint8-rowwise    | v0 | v1 | ... | scale, f32 | bias, f32 |       u8;  dim = bytes - 8
//! ```
//!
//! Everything is little-endian. Scale and bias follow the last value without padding, so they are
//! aligned only if `dim` is a multiple of four. The 8-bit formats are those of nv-embedding-cache
//! (`QInt8RowwiseF32`, `QUint8RowwiseF32`); the second is also FBGEMM's and PyTorch's
//! (`embedding_bag_byte_rowwise_offsets`).
//!
//! **Arithmetic.** All steps are IEEE 754 single precision, rounded to nearest even, with
//! subnormals, and never fused:
//!
//! ```text
//!   x    = value                      f32, f16, bf16: exact
//!        = value * scale              qint8-rowwise
//!        = value * scale + bias       quint8-rowwise, rounded twice
//!   sum  = 0, then sum + x * weight   rounded twice; the keys of the bag in order
//!   mean = sum / divisor              divisor: the number of the bag's keys; with weights, the sum of
//!                                     all their weights, in order. A divisor of 0 gives a mean of 0.
//! ```
//!
//! A key that is absent from the table has a row of zeros: it adds nothing to the sum, whatever its
//! weight, and counts in the divisor like any other key. The sum begins with +0, so it is never -0.
//! A NaN in the result is the positive quiet NaN without payload. Results in 16 bits are rounded
//! once more, to nearest even.

mod bag_sum;
mod bags;
mod float16;
mod row_format;

pub use bag_sum::BagSum;
pub use bags::{Bags, PoolingError};
pub use row_format::{
    PooledDtype, Pooling, PoolingOptions, RowFormat, UnknownPooledDtype, UnknownPooling,
    UnknownRowFormat,
};
