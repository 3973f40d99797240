//! Pooled lookups: the rows of bags of keys, summed.

use forerun::table::{Bags, Dtype, PooledDtype, Pooling, PoolingOptions, RowFormat};
use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::{Table, options};
use crate::arrays::{Read, Written, as_array, expect_contiguous, zeros};
use crate::borrows::Access;
use crate::errors::{invalid, table_exception, unknown};
use crate::new_objects::{self, collected};
use crate::numbers::Numbers;
use crate::versions::count_change;

/// The pooled rows, and how many keys of each bag were found.
pub(super) type PooledAndFound<'py> = (Bound<'py, PyAny>, Bound<'py, PyArray1<u32>>);

/// The arguments besides the keys.
pub(super) struct Arguments<'a, 'py> {
    pub(super) offsets: &'a Bound<'py, PyAny>,
    pub(super) weights: Option<&'a Bound<'py, PyAny>>,
    pub(super) mode: &'a str,
    pub(super) dtype: Option<&'a Bound<'py, PyAny>>,
    pub(super) out: Option<Bound<'py, PyAny>>,
}

impl Table {
    /// Looks up bags of keys: see `find_pooled`.
    pub(super) fn pool<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<PooledAndFound<'py>> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let offsets = Numbers::unsigned(arguments.offsets, "offsets")?;
        let weights = arguments.weights.map(weights_of).transpose()?;
        let output = arguments.dtype.map_or(Ok(Dtype::F32), options::dtype)?;
        let options = self.pooling_options(arguments.mode, output)?;
        let dim = options.dim(self.row_bytes() as u64);
        let dim = dim.map_err(|error| table_exception(error.into()))? as usize;
        let bags = Bags {
            weights: weights.as_deref(),
            ..Bags::new(keys.as_slice()?, offsets.as_slice()?)
        };
        let rows = match arguments.out {
            Some(out) => out,
            None => zeros(py, output, &[bags.len(), dim])?,
        };
        let array = as_array(&rows, "out")?;
        expect_contiguous(&array, Access::Write, "out")?;
        if array.shape() != [bags.len(), dim] {
            return Err(invalid(format!(
                "`out` must have the shape ({}, {dim}), one row per bag, not {:?}",
                bags.len(),
                array.shape()
            )));
        }
        let found = new_objects::zeros(py, numpy::dtype::<u32>(py), &[bags.len()])?;
        let found = found.cast_into::<PyArray1<u32>>()?;
        {
            count_change(&rows)?;
            let mut written = Written::new(&array, output, "out", None)?;
            let mut counts = found.try_readwrite()?;
            let (bytes, counts) = (written.bytes()?, counts.as_slice_mut()?);
            self.aside(py, bags.keys.len(), || {
                table.find_pooled(&bags, &options, bytes, counts)
            })
            .map_err(table_exception)?;
        }
        Ok((rows, found))
    }

    fn row_bytes(&self) -> usize {
        self.dtype.bytes() * self.dim as usize
    }

    fn pooling_options(&self, mode: &str, output: Dtype) -> PyResult<PoolingOptions> {
        let format = match self.dtype {
            Dtype::F32 => RowFormat::F32,
            Dtype::F16 => RowFormat::F16,
            Dtype::Bf16 => RowFormat::Bf16,
            Dtype::I8 => RowFormat::QInt8Rowwise,
            Dtype::U8 => RowFormat::QUint8Rowwise,
            other => {
                return Err(invalid(format!(
                    "rows of {} cannot be pooled, only those of float32, float16, bfloat16, int8 \
                     and uint8",
                    other.name()
                )));
            }
        };
        let pooling: Pooling = mode
            .parse()
            .map_err(|_| unknown("mode", mode, "sum, mean"))?;
        let output = match output {
            Dtype::F32 => PooledDtype::F32,
            Dtype::F16 => PooledDtype::F16,
            Dtype::Bf16 => PooledDtype::Bf16,
            other => {
                let known = PooledDtype::ALL.map(PooledDtype::name).join(", ");
                return Err(unknown("dtype", other.name(), &known));
            }
        };
        Ok(PoolingOptions::new(format).pooling(pooling).output(output))
    }
}

/// One weight per key, copied: half of the keys' bytes.
fn weights_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    let array = as_array(object, "weights")?;
    expect_contiguous(&array, Access::Read, "weights")?;
    let read = Read::new(&array, Dtype::F32, "weights")?;
    let numbers = read.bytes()?.as_chunks().0.iter();
    collected(numbers.map(|number| f32::from_le_bytes(*number)))
}
