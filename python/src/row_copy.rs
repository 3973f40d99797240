//! A prepared choice of the kernel for row copies from pinned memory to a GPU, with a slot map.

use forerun::gpu::gather::{Absent, Direction, KernelChoice, KernelVersion};
use pyo3::prelude::*;

use crate::cuda::Returns;
use crate::device_rows::{OnDevice, Words};
use crate::dlpack::is_on_cuda;
use crate::errors::{accepted, invalid, unknown};
use crate::numeric_arguments;

/// Copies rows of pinned memory to a GPU, by pairs of (host row, device row) on that GPU, and
/// notes in a map where each row now is. One launch does both, and the call does not wait.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct RowCopy {
    kernel: KernelChoice,
    version: Option<KernelVersion>,
}

#[pymethods]
impl RowCopy {
    #[new]
    #[pyo3(
        signature = (max_multiprocessors=Some(16), version=None),
        text_signature = "(max_multiprocessors=16, version=None)"
    )]
    fn new(
        #[pyo3(from_py_with = numeric_arguments::max_multiprocessors)] max_multiprocessors: Option<
            u32,
        >,
        version: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<RowCopy> {
        if max_multiprocessors == Some(0) {
            return Err(invalid("`max_multiprocessors` must be at least 1"));
        }
        let mut kernel = KernelChoice::default().multiprocessors(max_multiprocessors);
        let version = version.map(version_of).transpose()?;
        if let Some(version) = version {
            kernel = kernel.version(version);
        }
        Ok(RowCopy { kernel, version })
    }

    fn __repr__(&self) -> String {
        let text = |given: Option<String>| given.unwrap_or_else(|| "None".to_owned());
        format!(
            "forerun.RowCopy(max_multiprocessors={}, version={})",
            text(self.kernel.multiprocessors.map(|limit| limit.to_string())),
            text(self.version.map(|version| format!("\"{version}\""))),
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a RowCopy cannot be pickled: make one in each process",
        ))
    }

    /// Copies row `s` of `host` to row `d` of `device` for each pair `(s, d)`, and sets
    /// `slot_map[s] = d`.
    #[pyo3(signature = (
        host, device, slot_map, pairs, *, count=None, out_of_range=None, stream=None, wait=false
    ))]
    #[expect(
        clippy::too_many_arguments,
        reason = "the arguments of the Python function"
    )]
    fn __call__(
        &self,
        py: Python<'_>,
        host: &Bound<'_, PyAny>,
        device: &Bound<'_, PyAny>,
        slot_map: Option<&Bound<'_, PyAny>>,
        pairs: &Bound<'_, PyAny>,
        count: Option<&Bound<'_, PyAny>>,
        out_of_range: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        wait: bool,
    ) -> PyResult<()> {
        if !is_on_cuda(device, "device")? {
            return Err(invalid(
                "`device` must be on a GPU; `forerun.gather` copies between arrays in CPU memory",
            ));
        }
        let copy = OnDevice {
            direction: Direction::Gather,
            host,
            device,
            pairs,
            absent: Absent::Skip,
            stream,
            returns: Returns::of(wait),
            kernel: self.kernel,
            words: Words {
                slot_map,
                count,
                out_of_range,
            },
        };
        copy.run(py)
    }
}

/// The version of this name.
fn version_of(object: &Bound<'_, PyAny>) -> PyResult<KernelVersion> {
    let names = KernelVersion::ALL.map(|version| version.name()).join(", ");
    let name: Option<String> = accepted(object.py(), object.extract())?;
    let Some(name) = name else {
        return Err(invalid(format!("`version` must be one of {names}")));
    };
    let version = name.parse();
    version.map_err(|_| unknown("version", &name, &names))
}
