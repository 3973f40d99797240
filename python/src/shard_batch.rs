//! A batch of a table in shards: split by shard, and put together in the caller's arrays.
//!
//! ```text
//!   keys ──split──> keys of shard 0 │ of shard 1 │ ...      positions: where each was
//!   rows ──gather──> rows of a shard                        for writes
//!   answers of a shard ──scatter──> out, found              by position
//! ```
//!
//! A batch records the use of the caller's memory from its creation until it is dropped, as a call
//! of a table does while it runs.

use forerun::table::Dtype;
use forerun::table::partition::{self, Buckets, MapError};
use numpy::{
    PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;

use crate::arrays::{as_array, as_rows, bytes_of, expect_contiguous, memory, refused, zeros};
use crate::borrows::{Access, Borrow};
use crate::dlpack::is_on_cuda;
use crate::errors::{invalid, too_large};
use crate::interrupt;
use crate::new_objects::collected;
use crate::numbers::Numbers;
use crate::numeric_arguments;
use crate::table::access::{expect_rows, expect_shape};
use crate::table::options;
use crate::versions::count_change;

/// Keys, their positions in the batch, and where each shard's keys begin.
type Parts<'py> = (
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<u64>>,
    Vec<u64>,
);

/// A batch of keys, and the arrays that it reads or fills.
#[pyclass(frozen, name = "_ShardBatch", module = "forerun._forerun")]
pub(crate) struct ShardBatch {
    keys: Vec<u64>,
    row_bytes: usize,
    /// The bytes of the rows to read or to fill.
    rows: Option<Py<PyArrayDyn<u8>>>,
    /// The array that `find` returns.
    out: Option<Py<PyAny>>,
    found: Py<PyArrayDyn<bool>>,
    given_found: Option<Py<PyAny>>,
    _borrow: Borrow,
}

/// What a call does with rows.
enum Rows<'a, 'py> {
    /// It has none.
    None,
    /// It reads these.
    Read(&'a Bound<'py, PyAny>),
    /// It fills these, or a new array.
    Fill(Option<&'a Bound<'py, PyAny>>),
}

#[pymethods]
impl ShardBatch {
    /// `fills` is whether rows are looked up, into `out` or a new array.
    #[new]
    #[pyo3(signature = (keys, dim, dtype, *, rows=None, out=None, found=None, fills=false))]
    fn new<'py>(
        keys: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::dim)] dim: u32,
        dtype: &Bound<'py, PyAny>,
        rows: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        found: Option<&Bound<'py, PyAny>>,
        fills: bool,
    ) -> PyResult<ShardBatch> {
        let dtype = options::dtype(dtype)?;
        let numbers = Numbers::unnoted(keys)?;
        let rows = match (rows, fills) {
            (_, true) => Rows::Fill(out),
            (Some(rows), false) => Rows::Read(rows),
            (None, false) => Rows::None,
        };
        ShardBatch::of(&numbers, dim, dtype, rows, found, keys.py())
    }

    fn __len__(&self) -> usize {
        self.keys.len()
    }

    /// Splits the keys at some positions, by default all of them.
    #[pyo3(signature = (map, seed, shards, positions=None))]
    fn split<'py>(
        &self,
        py: Python<'py>,
        map: PyReadonlyArray1<'py, u16>,
        seed: u64,
        shards: usize,
        positions: Option<PyReadonlyArray1<'py, u64>>,
    ) -> PyResult<Parts<'py>> {
        let positions = positions.as_ref().map(|some| some.as_slice()).transpose()?;
        self.expect_positions(positions.unwrap_or_default())?;
        let map = map.as_slice()?;
        let split = || Buckets::from_seed(seed).split(&self.keys, positions, map, shards);
        let split = interrupt::detach(py, "splitting a batch", split);
        let split = split.map_err(|error| match error {
            MapError::Memory(_) => too_large(&error.to_string()),
            _ => invalid(error.to_string()),
        })?;
        let keys = PyArray1::from_vec(py, split.keys);
        Ok((keys, PyArray1::from_vec(py, split.positions), split.starts))
    }

    /// The rows at some positions, as bytes.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        positions: PyReadonlyArray1<'py, u64>,
    ) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let positions = positions.as_slice()?;
        self.expect_positions(positions)?;
        let rows = self
            .rows
            .as_ref()
            .ok_or_else(|| invalid("`rows` is missing"))?;
        let rows = rows.bind(py).try_readonly();
        let rows = rows.map_err(|error| refused("rows", "read", error))?;
        let rows = rows.as_slice()?;
        let part_bytes = positions.len().saturating_mul(self.row_bytes);
        let mut part = collected(std::iter::repeat_n(0, part_bytes))?;
        py.detach(|| partition::gather(positions, rows, self.row_bytes, &mut part));
        Ok(PyArray1::from_vec(py, part))
    }

    /// Copies answers to their positions: flags, and the rows of `find`.
    #[pyo3(signature = (positions, flags, rows=None))]
    fn scatter<'py>(
        &self,
        py: Python<'py>,
        positions: PyReadonlyArray1<'py, u64>,
        flags: PyReadonlyArray1<'py, u8>,
        rows: Option<PyReadonlyArray1<'py, u8>>,
    ) -> PyResult<()> {
        let (positions, flags) = (positions.as_slice()?, flags.as_slice()?);
        self.expect_positions(positions)?;
        let found = self.found.bind(py).try_readwrite();
        let mut found = found.map_err(|error| refused("found", "written", error))?;
        let found = found.as_slice_mut()?;
        let (row_bytes, answers) = match &rows {
            Some(rows) => (self.row_bytes, rows.as_slice()?),
            None => (0, &[][..]),
        };
        if flags.len() != positions.len() || answers.len() != positions.len() * row_bytes {
            return Err(invalid(format!(
                "a shard answered with {} flags and {} bytes of rows for {} keys",
                flags.len(),
                answers.len(),
                positions.len()
            )));
        }
        if row_bytes == 0 {
            for (&at, &flag) in positions.iter().zip(flags) {
                found[at as usize] = flag != 0;
            }
            return Ok(());
        }
        let out = self
            .rows
            .as_ref()
            .ok_or_else(|| invalid("`out` is missing"))?;
        let out = out.bind(py).try_readwrite();
        let mut out = out.map_err(|error| refused("out", "written", error))?;
        let out = out.as_slice_mut()?;
        py.detach(|| partition::scatter(positions, flags, answers, row_bytes, out, found));
        Ok(())
    }

    /// The array of rows that was given or created, and the flags.
    fn results<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Option<Bound<'py, PyAny>>, Bound<'py, PyAny>)> {
        let out = self.out.as_ref().map(|out| out.bind(py).clone());
        // PyTorch counts changes of a tensor in place.
        for written in [&self.out, &self.given_found].into_iter().flatten() {
            count_change(written.bind(py))?;
        }
        Ok((out, self.found.bind(py).clone().into_any()))
    }
}

impl ShardBatch {
    fn of<'py>(
        numbers: &Numbers<'py>,
        dim: u32,
        dtype: Dtype,
        rows: Rows<'_, 'py>,
        found: Option<&Bound<'py, PyAny>>,
        py: Python<'py>,
    ) -> PyResult<ShardBatch> {
        let row_bytes = dtype.bytes() * dim as usize;
        let (what, access) = match rows {
            Rows::Fill(_) => ("out", Access::Write),
            _ => ("rows", Access::Read),
        };
        let (array, out) = match rows {
            Rows::None => (None, None),
            Rows::Read(rows) => (Some(as_rows(rows, dtype, what)?), None),
            Rows::Fill(Some(out)) => {
                if is_on_cuda(out, "out")? {
                    return Err(invalid(
                        "`out` is on a GPU, but rows of other processes arrive in CPU memory",
                    ));
                }
                (Some(as_array(out, what)?), Some(out.clone()))
            }
            Rows::Fill(None) => {
                let out = zeros(py, dtype, &numbers.shape_of_rows(dim))?;
                (Some(out.cast::<PyUntypedArray>()?.clone()), Some(out))
            }
        };
        let bytes = array.map(|array| {
            expect_contiguous(&array, access, what)?;
            expect_shape(&array, dtype, dim, what)?;
            let bytes = bytes_of(&array, dtype, what)?;
            expect_rows(numbers.len(), bytes.len(), dtype, dim, what)?;
            if access == Access::Write {
                // A read-only array is refused before anything is sent.
                let written = bytes.try_readwrite();
                written.map_err(|error| refused(what, "written", error))?;
            }
            PyResult::Ok(bytes)
        });
        let bytes = bytes.transpose()?;
        let found_array = numbers.flags_or(py, found)?;
        let borrow = match &bytes {
            Some(bytes) => Borrow::all([memory(bytes, access, what), found_array.memory()])?,
            None => Borrow::all([found_array.memory()])?,
        };
        Ok(ShardBatch {
            keys: collected(numbers.as_slice()?.iter().copied())?,
            row_bytes,
            rows: bytes.map(Bound::unbind),
            out: out.map(Bound::unbind),
            given_found: found.map(|found| found.clone().unbind()),
            found: found_array.array.unbind(),
            _borrow: borrow,
        })
    }

    fn expect_positions(&self, positions: &[u64]) -> PyResult<()> {
        let keys = self.keys.len() as u64;
        match positions.iter().find(|&&at| at >= keys) {
            None => Ok(()),
            Some(at) => Err(invalid(format!(
                "position {at} is outside a batch of {keys} keys"
            ))),
        }
    }
}

/// The bucket of each key.
#[pyfunction]
pub(crate) fn _buckets<'py>(
    py: Python<'py>,
    keys: PyReadonlyArray1<'py, u64>,
    seed: u64,
) -> PyResult<Bound<'py, PyArray1<u16>>> {
    let (keys, buckets) = (keys.as_slice()?, Buckets::from_seed(seed));
    let numbers = collected(keys.iter().map(|&key| buckets.of(key)))?;
    Ok(PyArray1::from_vec(py, numbers))
}
