//! Copies of scattered rows from one array to scattered rows of another.

use std::num::NonZeroUsize;

use forerun::gpu::gather::cpu::{self, CopyOptions, CpuOptions};
use forerun::gpu::gather::{Absent, Direction, KernelChoice};
use forerun::gpu::{DeviceInfo, Gpu};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cuda::{Returns, queue_of};
use crate::device_rows::{OnDevice, Words, dense, extents};
use crate::dlpack::is_on_cuda;
use crate::errors::{device_exception, gather_exception, invalid, unknown};
use crate::numeric_arguments;
use crate::pairs::Given;
use crate::rows::{readable_rows, writable_rows};

/// The result of a row copy.
#[pyclass(frozen, get_all, eq, module = "forerun")]
#[derive(PartialEq)]
pub(crate) struct CopyCounts {
    rows: u64,
    zeroed: u64,
    skipped: u64,
    out_of_range: u64,
}

#[pymethods]
impl CopyCounts {
    fn __repr__(&self) -> String {
        format!(
            "forerun.CopyCounts(rows={}, zeroed={}, skipped={}, out_of_range={})",
            self.rows, self.zeroed, self.skipped, self.out_of_range
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "the result of a copy cannot be pickled: pickle its numbers",
        ))
    }
}

/// Parses the arguments that both directions share.
fn parse_options(absent: &str, threads: usize) -> PyResult<(Absent, NonZeroUsize)> {
    let absent = match absent {
        "skip" => Absent::Skip,
        "zero" => Absent::Zero,
        other => return Err(unknown("absent", other, "skip, zero")),
    };
    let threads =
        NonZeroUsize::new(threads).ok_or_else(|| invalid("`threads` must be at least 1"))?;
    Ok((absent, threads))
}

/// The two sides of a copy and its arguments.
struct Copy<'a, 'py> {
    direction: Direction,
    host: &'a Bound<'py, PyAny>,
    device: &'a Bound<'py, PyAny>,
    pairs: &'a Bound<'py, PyAny>,
    absent: Absent,
    threads: NonZeroUsize,
    stream: Option<&'a Bound<'py, PyAny>>,
    returns: Returns,
}

impl<'py> Copy<'_, 'py> {
    /// Runs the copy on the device that holds the device rows.
    fn run(self, py: Python<'py>) -> PyResult<Option<CopyCounts>> {
        if is_on_cuda(self.device, "device")? {
            if self.threads.get() > 1 {
                return Err(invalid(
                    "`threads` is only for rows in CPU memory, but `device` is on a GPU",
                ));
            }
            let copy = OnDevice {
                direction: self.direction,
                host: self.host,
                device: self.device,
                pairs: self.pairs,
                absent: self.absent,
                stream: self.stream,
                returns: self.returns,
                kernel: KernelChoice::default(),
                words: Words::default(),
            };
            return copy.run(py).map(|()| None);
        }
        if self.stream.is_some() {
            return Err(invalid(
                "`stream` is only for rows on a GPU, but `device` is in CPU memory",
            ));
        }
        self.run_on_host(py).map(Some)
    }

    fn run_on_host(self, py: Python<'py>) -> PyResult<CopyCounts> {
        let [(source, source_name), (destination, destination_name)] = match self.direction {
            Direction::Gather => [(self.host, "host"), (self.device, "device")],
            Direction::Scatter => [(self.device, "device"), (self.host, "host")],
        };
        let (from, given) = (readable_rows(source, source_name)?, Given::new(self.pairs)?);
        let mut to = writable_rows(destination, destination_name)?;
        let (from_shape, to_shape) = (extents(from.shape()), extents(to.shape()));
        let spec = match self.direction {
            Direction::Gather => dense(from_shape, to_shape)?,
            Direction::Scatter => dense(to_shape, from_shape)?,
        };
        let spec = spec.absent(self.absent);
        let pairs = given.pairs()?;
        let (from, to) = (from.as_slice()?, to.as_slice_mut()?);
        let options = CopyOptions::default().cpu(CpuOptions::default().threads(self.threads));
        let copied = py.detach(|| match self.direction {
            Direction::Gather => cpu::gather(from, to, &spec, &pairs, options),
            Direction::Scatter => cpu::scatter(from, to, &spec, &pairs, options),
        });
        let copied = copied.map_err(gather_exception)?;
        Ok(CopyCounts {
            rows: copied.rows,
            zeroed: copied.zeroed,
            skipped: copied.skipped,
            out_of_range: copied.out_of_range,
        })
    }
}

/// Copies rows of `host` to rows of `device`, by pairs of (host row, device row). The index -1
/// means no row. If `device` is a tensor on a GPU, `host` must be pinned, and the copy is put on
/// `stream` (by default the current stream) and not counted here. With `wait`, the call returns
/// when it has run.
#[pyfunction]
#[pyo3(signature = (host, device, pairs, *, absent="skip", threads=1, stream=None, wait=false))]
#[expect(
    clippy::too_many_arguments,
    reason = "the arguments of the Python function"
)]
pub(crate) fn gather(
    py: Python<'_>,
    host: &Bound<'_, PyAny>,
    device: &Bound<'_, PyAny>,
    pairs: &Bound<'_, PyAny>,
    absent: &str,
    #[pyo3(from_py_with = numeric_arguments::threads)] threads: usize,
    stream: Option<&Bound<'_, PyAny>>,
    wait: bool,
) -> PyResult<Option<CopyCounts>> {
    let (absent, threads) = parse_options(absent, threads)?;
    let direction = Direction::Gather;
    Copy {
        direction,
        host,
        device,
        pairs,
        absent,
        threads,
        stream,
        returns: Returns::of(wait),
    }
    .run(py)
}

/// Copies rows of `device` to rows of `host`, by pairs of (device row, host row). Otherwise like
/// [`gather`].
#[pyfunction]
#[pyo3(signature = (device, host, pairs, *, absent="skip", threads=1, stream=None, wait=false))]
#[expect(
    clippy::too_many_arguments,
    reason = "the arguments of the Python function"
)]
pub(crate) fn scatter(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    host: &Bound<'_, PyAny>,
    pairs: &Bound<'_, PyAny>,
    absent: &str,
    #[pyo3(from_py_with = numeric_arguments::threads)] threads: usize,
    stream: Option<&Bound<'_, PyAny>>,
    wait: bool,
) -> PyResult<Option<CopyCounts>> {
    let (absent, threads) = parse_options(absent, threads)?;
    let direction = Direction::Scatter;
    Copy {
        direction,
        host,
        device,
        pairs,
        absent,
        threads,
        stream,
        returns: Returns::of(wait),
    }
    .run(py)
}

/// How many indices were neither a row nor -1 in the copies on a GPU that have run: those of
/// `gather`, `scatter`, `RowCopy` without a counter of its own, and `forerun.kvcacheio`.
#[pyfunction]
#[pyo3(signature = (device=0))]
pub(crate) fn out_of_range_count(
    py: Python<'_>,
    #[pyo3(from_py_with = numeric_arguments::device)] device: usize,
) -> PyResult<u64> {
    let count = py.detach(|| queue_of(device)?.out_of_range());
    count.map_err(device_exception)
}

/// Describes this machine: the CPU instruction set in use, and its GPUs, or why there are none.
#[pyfunction]
pub(crate) fn device_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = py.detach(|| {
        let gpus = (0..Gpu::count()?).map(|ordinal| Ok(Gpu::open(ordinal)?.info().clone()));
        gpus.collect::<Result<Vec<DeviceInfo>, forerun::gpu::GpuError>>()
    });
    let info = PyDict::new(py);
    info.set_item("isa", forerun::machine::isa().to_string())?;
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
