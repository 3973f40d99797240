//! Keys divided into bags.

use super::row_format::{PoolingOptions, RowFormat};
use crate::size::counted;
use std::ops::Range;

/// Why a pooled lookup was refused. Nothing was looked up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolingError {
    /// There are no offsets, not even the last one.
    #[error("offsets are one per bag and the number of keys at the end, but there are none")]
    NoOffsets,
    /// The first bag does not begin at the first key.
    #[error("offset 0 is {offset}, but the first bag begins at key 0")]
    FirstOffset {
        /// The first offset.
        offset: u64,
    },
    /// An offset is lower than the one before.
    #[error("offset {index} is {offset}, below the one before, {before}")]
    DescendingOffset {
        /// The position in the offsets.
        index: u64,
        /// The offset there.
        offset: u64,
        /// The previous offset.
        before: u64,
    },
    /// The last offset is not the number of keys.
    #[error("the last offset is {offset}, but there are {}", counted(.keys, "key"))]
    LastOffset {
        /// The last offset.
        offset: u64,
        /// Number of keys.
        keys: u64,
    },
    /// An array has the wrong length.
    #[error("{what}: {found} {unit}, {expected} expected")]
    Length {
        /// The array.
        what: &'static str,
        /// The unit of its length.
        unit: &'static str,
        /// Its length.
        found: u64,
        /// The length it must have.
        expected: u64,
    },
    /// The table's rows do not have the format.
    #[error("rows of {} are not rows of {format}", counted(.row_bytes, "byte"))]
    Format {
        /// The format.
        format: RowFormat,
        /// The table's row size.
        row_bytes: u64,
    },
}

/// Keys in bags, as `torch.nn.EmbeddingBag` takes them with `include_last_offset=True`: bag `b`
/// has the keys from `offsets[b]` to `offsets[b + 1]`.
///
/// ```
/// use forerun_core::pooling::{Bags, PoolingOptions};
///
/// let bags = Bags::new(&[7, 8, 9], &[0, 2, 2, 3]);
/// assert_eq!((bags.len(), bags.range(0), bags.range(1)), (3, 0..2, 2..2));
/// // Rows of two floats: three results of 8 bytes.
/// assert_eq!(bags.check(&PoolingOptions::default(), 8, 24, 3), Ok(2));
/// assert!(Bags::new(&[7, 8], &[0, 3]).check(&PoolingOptions::default(), 8, 8, 1).is_err());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Bags<'a> {
    /// Any keys; they may repeat.
    pub keys: &'a [u64],
    /// One per bag, in ascending order from 0, and the number of keys at the end.
    pub offsets: &'a [u64],
    /// One weight per key. Without them, each is 1.
    pub weights: Option<&'a [f32]>,
}

impl<'a> Bags<'a> {
    /// Bags without weights.
    pub fn new(keys: &'a [u64], offsets: &'a [u64]) -> Bags<'a> {
        Bags {
            keys,
            offsets,
            weights: None,
        }
    }

    /// The bags with weights.
    pub fn with_weights(self, weights: &'a [f32]) -> Bags<'a> {
        Bags {
            weights: Some(weights),
            ..self
        }
    }

    /// Number of bags.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there are no bags.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The positions of a bag's keys.
    ///
    /// # Panics
    /// There is no such bag.
    pub fn range(&self, bag: usize) -> Range<usize> {
        self.offsets[bag] as usize..self.offsets[bag + 1] as usize
    }

    /// The weight of a key.
    pub fn weight(&self, position: usize) -> f32 {
        self.weights.map_or(1.0, |weights| weights[position])
    }

    /// Checks the bags, and the lengths of the arrays for their results, against a table with rows
    /// of this size. Returns the number of values in a row.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(
        &self,
        options: &PoolingOptions,
        row_bytes: u64,
        rows_out_bytes: usize,
        found_len: usize,
    ) -> Result<u64, PoolingError> {
        let dim = dim_of(options, row_bytes)?;
        let keys = self.keys.len() as u64;
        let (Some(&first), Some(&last)) = (self.offsets.first(), self.offsets.last()) else {
            return Err(PoolingError::NoOffsets);
        };
        if first != 0 {
            return Err(PoolingError::FirstOffset { offset: first });
        }
        if let Some(at) = self.offsets.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(PoolingError::DescendingOffset {
                index: at as u64 + 1,
                offset: self.offsets[at + 1],
                before: self.offsets[at],
            });
        }
        if last != keys {
            return Err(PoolingError::LastOffset { offset: last, keys });
        }
        let bags = self.len() as u64;
        let bytes = bags
            .saturating_mul(dim)
            .saturating_mul(options.output.bytes());
        let weights = self.weights.map_or(keys, |weights| weights.len() as u64);
        expect("weights", "numbers", weights, keys)?;
        expect("pooled rows", "bytes", rows_out_bytes as u64, bytes)?;
        expect("counts of found keys", "numbers", found_len as u64, bags)?;
        Ok(dim)
    }
}

/// The number of values in a row of a table.
pub(super) fn dim_of(options: &PoolingOptions, row_bytes: u64) -> Result<u64, PoolingError> {
    let format = options.format;
    let dim = format.dim(row_bytes);
    dim.ok_or(PoolingError::Format { format, row_bytes })
}

fn expect(
    what: &'static str,
    unit: &'static str,
    found: u64,
    expected: u64,
) -> Result<(), PoolingError> {
    if found == expected {
        return Ok(());
    }
    Err(PoolingError::Length {
        what,
        unit,
        found,
        expected,
    })
}

impl PoolingOptions {
    /// The number of values in a row of a table, and so in a pooled row.
    ///
    /// # Errors
    /// Rows of this size do not have the format.
    pub fn dim(&self, row_bytes: u64) -> Result<u64, PoolingError> {
        dim_of(self, row_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pooling::PooledDtype;

    #[test]
    fn wrong_bags_are_refused_with_the_place() {
        let options = PoolingOptions::default();
        let refused = |bags: &Bags<'_>, out, found| {
            bags.check(&options, 4, out, found).unwrap_err().to_string()
        };
        let keys = [1, 2, 3];
        let of = |offsets| Bags::new(&keys, offsets);
        assert!(refused(&of(&[]), 0, 0).contains("there are none"));
        assert!(refused(&of(&[1, 3]), 4, 1).contains("offset 0 is 1"));
        let text = refused(&of(&[0, 2, 1, 3]), 12, 3);
        assert_eq!(text, "offset 2 is 1, below the one before, 2");
        let text = refused(&of(&[0, 2]), 4, 1);
        assert_eq!(text, "the last offset is 2, but there are 3 keys");
        assert!(refused(&of(&[0, u64::MAX]), 4, 1).contains("the last offset"));
        assert!(refused(&of(&[0, 3]), 8, 1).contains("pooled rows: 8 bytes, 4 expected"));
        assert!(refused(&of(&[0, 3]), 4, 2).contains("found keys: 2 numbers, 1 expected"));
        let weighted = of(&[0, 3]).with_weights(&[1.0]);
        assert!(refused(&weighted, 4, 1).contains("weights: 1 numbers, 3 expected"));
        assert_eq!(of(&[0, 3]).check(&options, 4, 4, 1), Ok(1));
        let half = options.output(PooledDtype::F16);
        assert_eq!(of(&[0, 1, 3]).check(&half, 12, 12, 2), Ok(3));
    }

    #[test]
    fn rows_without_values_or_with_a_rest_have_no_format() {
        for format in RowFormat::ALL {
            assert_eq!(format.dim(format.parameter_bytes()), None, "{format}");
            assert_eq!(format.dim(0), None, "{format}");
            assert_eq!(format.name().parse(), Ok(format));
            for dim in [1, 3, 1 << 20] {
                assert_eq!(format.dim(format.row_bytes(dim)), Some(dim), "{format}");
            }
        }
        let error = dim_of(&PoolingOptions::new(RowFormat::QUint8Rowwise), 8).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rows of 8 bytes are not rows of quint8-rowwise"
        );
    }
}
