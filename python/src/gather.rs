//! Copies of scattered rows from one array to scattered rows of another.

use std::num::NonZeroUsize;

use forerun::gpu::gather::cpu::{self, CopyOptions, CpuOptions};
use forerun::gpu::gather::{Absent, CopySpec};
use forerun::gpu::{DeviceInfo, Gpu};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cuda::{CallersStream, Host, Indices, Tensor, copy_rows, stream_of};
use crate::dlpack::is_on_cuda;
use crate::errors::{gather_exception, invalid, unknown};
use crate::numeric_arguments;
use crate::pairs::{Given, two_of};
use crate::rows::{readable_rows, writable_rows};
use crate::versions::count_change;

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

/// Which of the two arrays is the host's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Gather,
    Scatter,
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
            return self.run_on_device(py).map(|()| None);
        }
        if self.stream.is_some() {
            return Err(invalid(
                "`stream` is only for rows on a GPU, but `device` is in CPU memory",
            ));
        }
        self.run_on_host(py).map(Some)
    }

    fn spec(
        &self,
        [host_rows, host_bytes]: [u64; 2],
        [rows, bytes]: [u64; 2],
    ) -> PyResult<CopySpec> {
        if host_bytes != bytes {
            return Err(invalid(format!(
                "a row of `host` has {host_bytes} bytes, but one of `device` has {bytes}"
            )));
        }
        Ok(CopySpec::dense(bytes, host_rows, rows).absent(self.absent))
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
            Direction::Gather => self.spec(from_shape, to_shape)?,
            Direction::Scatter => self.spec(to_shape, from_shape)?,
        };
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

    fn run_on_device(self, py: Python<'py>) -> PyResult<()> {
        let stream = stream_of(self.stream, self.device)?;
        let tensor = Tensor::new(self.device, "device", stream)?;
        let (rows, bytes) = tensor.rows("device")?;
        let (tensors, given);
        let indices = match self.tensors_of_pairs(stream)? {
            Some(found) => {
                tensors = found;
                match &tensors {
                    (sources, Some(destinations)) => Indices::Split(sources, destinations),
                    (pairs, None) => Indices::Pairs(pairs),
                }
            }
            None => {
                given = Given::new(self.pairs)?.interleaved()?;
                Indices::Host(&given)
            }
        };
        indices.expect_device(tensor.device)?;
        if self.direction == Direction::Gather {
            tensor.expect_writable("device")?;
            count_change(self.device)?;
        }
        let device_shape = [rows, bytes];
        match self.direction {
            Direction::Gather => {
                let host = readable_rows(self.host, "host")?;
                let spec = self.spec(extents(host.shape()), device_shape)?;
                let host = Host::Source(host.as_slice()?);
                copy_rows(py, spec, host, &tensor, &indices, stream)
            }
            Direction::Scatter => {
                let mut host = writable_rows(self.host, "host")?;
                let spec = self.spec(extents(host.shape()), device_shape)?;
                let host = Host::Destination(host.as_slice_mut()?);
                copy_rows(py, spec, host, &tensor, &indices, stream)
            }
        }
    }

    /// The pairs, or sources and destinations, if they are tensors on a device.
    fn tensors_of_pairs(
        &self,
        stream: CallersStream,
    ) -> PyResult<Option<(Tensor<'py>, Option<Tensor<'py>>)>> {
        let (first, second) = match two_of(self.pairs)? {
            Some([sources, destinations]) => (sources, Some(destinations)),
            None => (self.pairs.clone(), None),
        };
        let is_on_gpu = is_on_cuda(&first, "pairs")?;
        if let Some(second) = &second
            && is_on_cuda(second, "pairs")? != is_on_gpu
        {
            return Err(invalid(
                "one of `pairs` is on a GPU and the other is not: both must be in the same place",
            ));
        }
        if !is_on_gpu {
            return Ok(None);
        }
        let tensor = |object| Tensor::new(object, "pairs", stream);
        let second = second.as_ref().map(tensor).transpose()?;
        Ok(Some((tensor(&first)?, second)))
    }
}

/// Number of rows, and bytes per row.
fn extents(shape: &[usize]) -> [u64; 2] {
    [shape[0] as u64, shape[1] as u64]
}

/// Copies rows of `host` to rows of `device`, by pairs of (host row, device row). The index -1
/// means no row. If `device` is a tensor on a GPU, `host` must be pinned, the copy runs on `stream`
/// (by default the current stream) instead of `threads`, and it is not counted.
#[pyfunction]
#[pyo3(signature = (host, device, pairs, *, absent="skip", threads=1, stream=None))]
pub(crate) fn gather(
    py: Python<'_>,
    host: &Bound<'_, PyAny>,
    device: &Bound<'_, PyAny>,
    pairs: &Bound<'_, PyAny>,
    absent: &str,
    #[pyo3(from_py_with = numeric_arguments::threads)] threads: usize,
    stream: Option<&Bound<'_, PyAny>>,
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
    }
    .run(py)
}

/// Copies rows of `device` to rows of `host`, by pairs of (device row, host row). Otherwise like
/// [`gather`].
#[pyfunction]
#[pyo3(signature = (device, host, pairs, *, absent="skip", threads=1, stream=None))]
pub(crate) fn scatter(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    host: &Bound<'_, PyAny>,
    pairs: &Bound<'_, PyAny>,
    absent: &str,
    #[pyo3(from_py_with = numeric_arguments::threads)] threads: usize,
    stream: Option<&Bound<'_, PyAny>>,
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
    }
    .run(py)
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
