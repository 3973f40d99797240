//! Scattered rows from one array to scattered rows of another.

use std::num::NonZeroUsize;

use forerun::gpu::gather::cpu::{self, Extras, How, Indices, Pairs};
use forerun::gpu::gather::{Absent, Spec};
use forerun::gpu::{DeviceInfo, Gpu};
use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::{invalid, refusal, unknown};
use crate::rows::{readable_rows, writable_rows};

/// What a copy of rows has done.
#[pyclass(frozen, get_all, eq, module = "forerun")]
#[derive(PartialEq)]
pub(crate) struct Copied {
    rows: u64,
    zeroed: u64,
    skipped: u64,
    out_of_range: u64,
}

#[pymethods]
impl Copied {
    fn __repr__(&self) -> String {
        format!(
            "Copied(rows={}, zeroed={}, skipped={}, out_of_range={})",
            self.rows, self.zeroed, self.skipped, self.out_of_range
        )
    }
}

/// An array of indices of either width.
enum IndexArray<'py> {
    Narrow(PyReadonlyArray1<'py, i32>),
    Wide(PyReadonlyArray1<'py, i64>),
}

impl<'py> IndexArray<'py> {
    fn new(object: &Bound<'py, PyAny>) -> PyResult<IndexArray<'py>> {
        if let Ok(narrow) = object.extract() {
            return Ok(IndexArray::Narrow(narrow));
        }
        match object.extract() {
            Ok(wide) => Ok(IndexArray::Wide(wide)),
            Err(_) => Err(invalid(
                "indices are an array of int32 or int64: pairs of shape (n, 2), or two arrays of shape (n,)",
            )),
        }
    }

    fn indices(&self) -> PyResult<Indices<'_>> {
        Ok(match self {
            IndexArray::Narrow(array) => Indices::I32(array.as_slice()?),
            IndexArray::Wide(array) => Indices::I64(array.as_slice()?),
        })
    }
}

/// Pairs of (source row, destination row), as Python gave them.
enum Given<'py> {
    Interleaved(IndexArray<'py>),
    Split(IndexArray<'py>, IndexArray<'py>),
}

impl<'py> Given<'py> {
    fn new(object: &Bound<'py, PyAny>) -> PyResult<Given<'py>> {
        if let Ok(two) = object.cast::<PyTuple>()
            && two.len() == 2
        {
            return Ok(Given::Split(
                IndexArray::new(&two.get_item(0)?)?,
                IndexArray::new(&two.get_item(1)?)?,
            ));
        }
        let is_pairs = |shape: &[usize], is_contiguous| shape[1] == 2 && is_contiguous;
        let is_pairs = match object.extract::<PyReadonlyArray2<'py, i32>>() {
            Ok(array) => is_pairs(array.shape(), array.is_c_contiguous()),
            Err(_) => match object.extract::<PyReadonlyArray2<'py, i64>>() {
                Ok(array) => is_pairs(array.shape(), array.is_c_contiguous()),
                Err(_) => false,
            },
        };
        if !is_pairs {
            return Err(invalid(
                "pairs are a C-contiguous array of int32 or int64 of shape (n, 2), or a tuple of two arrays of shape (n,)",
            ));
        }
        Ok(Given::Interleaved(IndexArray::new(
            &object.call_method1("reshape", (-1,))?,
        )?))
    }

    fn pairs(&self) -> PyResult<Pairs<'_>> {
        match self {
            Given::Interleaved(both) => Pairs::interleaved(both.indices()?),
            Given::Split(source, destination) => {
                Pairs::split(source.indices()?, destination.indices()?)
            }
        }
        .map_err(refusal)
    }
}

/// How a copy is made: the part of the arguments that both directions share.
fn how(absent: &str, threads: usize) -> PyResult<(Absent, Extras<'static>)> {
    let absent = match absent {
        "skip" => Absent::Skip,
        "zero" => Absent::Zero,
        other => return Err(unknown("absent", other, "skip, zero")),
    };
    let threads = NonZeroUsize::new(threads).ok_or_else(|| invalid("`threads` is at least 1"))?;
    let extras = Extras {
        how: How {
            threads,
            ..How::default()
        },
        ..Extras::default()
    };
    Ok((absent, extras))
}

/// Which of the two arrays is the host's.
enum Direction {
    Gather,
    Scatter,
}

fn copy(
    py: Python<'_>,
    direction: Direction,
    arrays: [(&Bound<'_, PyAny>, &str); 2],
    pairs: &Bound<'_, PyAny>,
    (absent, extras): (Absent, Extras<'static>),
) -> PyResult<Copied> {
    let [(source, source_name), (destination, destination_name)] = arrays;
    let (from, given) = (readable_rows(source, source_name)?, Given::new(pairs)?);
    let mut to = writable_rows(destination, destination_name)?;
    let [from_rows, row_bytes] = [from.shape()[0] as u64, from.shape()[1] as u64];
    let [to_rows, to_bytes] = [to.shape()[0] as u64, to.shape()[1] as u64];
    if row_bytes != to_bytes {
        return Err(invalid(format!(
            "a row of `{source_name}` has {row_bytes} bytes, and one of `{destination_name}` {to_bytes}"
        )));
    }
    let (host_rows, device_rows) = match direction {
        Direction::Gather => (from_rows, to_rows),
        Direction::Scatter => (to_rows, from_rows),
    };
    let spec = Spec {
        absent,
        ..Spec::dense(row_bytes, host_rows, device_rows)
    };
    let pairs = given.pairs()?;
    let (from, to) = (from.as_slice()?, to.as_slice_mut()?);
    let copied = py.detach(|| match direction {
        Direction::Gather => cpu::gather(from, to, &spec, &pairs, extras),
        Direction::Scatter => cpu::scatter(from, to, &spec, &pairs, extras),
    });
    let copied = copied.map_err(refusal)?;
    Ok(Copied {
        rows: copied.rows,
        zeroed: copied.zeroed,
        skipped: copied.skipped,
        out_of_range: copied.out_of_range,
    })
}

/// Copies rows of `host` to rows of `device`, by pairs of (host row, device row). Index -1 names no row.
#[pyfunction]
#[pyo3(signature = (host, device, pairs, *, absent="skip", threads=1))]
pub(crate) fn gather(
    py: Python<'_>,
    host: &Bound<'_, PyAny>,
    device: &Bound<'_, PyAny>,
    pairs: &Bound<'_, PyAny>,
    absent: &str,
    threads: usize,
) -> PyResult<Copied> {
    let arrays = [(host, "host"), (device, "device")];
    copy(py, Direction::Gather, arrays, pairs, how(absent, threads)?)
}

/// Copies rows of `device` to rows of `host`, by pairs of (device row, host row). Index -1 names no row.
#[pyfunction]
#[pyo3(signature = (device, host, pairs, *, absent="skip", threads=1))]
pub(crate) fn scatter(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    host: &Bound<'_, PyAny>,
    pairs: &Bound<'_, PyAny>,
    absent: &str,
    threads: usize,
) -> PyResult<Copied> {
    let arrays = [(device, "device"), (host, "host")];
    copy(py, Direction::Scatter, arrays, pairs, how(absent, threads)?)
}

/// What this machine has: the processor's instruction set that is used, and its GPUs, or why there are none.
#[pyfunction]
pub(crate) fn device_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = py.detach(|| {
        let gpus = (0..Gpu::count()?).map(|ordinal| Ok(Gpu::open(ordinal)?.info().clone()));
        gpus.collect::<Result<Vec<DeviceInfo>, forerun::gpu::GpuError>>()
    });
    let info = PyDict::new(py);
    info.set_item("isa", forerun::isa().to_string())?;
    let (gpus, reason) = match found {
        Ok(gpus) => (gpus, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let gpus = gpus.iter().map(|gpu| {
        let figures = PyDict::new(py);
        figures.set_item("name", &gpu.name)?;
        figures.set_item("compute_capability", gpu.compute_capability)?;
        figures.set_item("multiprocessors", gpu.multiprocessors)?;
        figures.set_item("memory_bytes", gpu.memory_bytes)?;
        figures.set_item("pci_address", &gpu.pci_address)?;
        PyResult::Ok(figures)
    });
    info.set_item("gpus", gpus.collect::<PyResult<Vec<_>>>()?)?;
    info.set_item("no_gpu_because", reason)?;
    Ok(info)
}
