//! Tensors on a CUDA device, and copies of rows between them and the host's memory on the caller's
//! stream.
//!
//! ```text
//!   stream       given, or the current one of the tensor's library
//!   tensor       tensor.__dlpack__(stream=...)  ->  capsule "dltensor"  ->  address, shape, type
//!                the producer makes what it has under way on it come before what is put on the stream
//!   rows         checked, the driver asked what lies where, one kernel put on the stream and waited for
//!   lookup       what is on the stream waited for; when the call returns, all rows are in the tensor
//! ```
//!
//! What is wrong with a request is told before a device is opened. The capsules are kept until the
//! copy is done, and with them the memory: when they go, the producer has it back, since nobody has
//! marked them used.
//!
//! This is the one file of the package with `unsafe`: DLPack hands over a C structure, and the
//! device an address.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

use forerun::PerProcess;
use forerun::gpu::gather::{Direction, Integer, PairsAt, Request, RowCopy, Spec};
use forerun::gpu::{DeviceBuffer, DeviceSlice, Gpu, GpuError, Stream};
use forerun::table::{Dtype, Table};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};

use zerocopy::IntoBytes;

use crate::borrows::{Access, Borrow};
use crate::errors::{device_exception, gather_exception, invalid, table_exception};

/// `DLTensor` of DLPack's header.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_kind: i32,
    device_number: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The name of a capsule whose pointer is a `DLManagedTensor`, which begins with a `DLTensor`.
const DLTENSOR: &CStr = c"dltensor";

/// The most dimensions that are believed.
const DIMENSIONS_MAX: i32 = 64;

/// DLPack's codes of types.
const SIGNED: u8 = 0;
const UNSIGNED: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;

/// A tensor's memory on a device, contiguous, for as long as this is kept.
pub(crate) struct Tensor<'py> {
    _capsule: Bound<'py, PyCapsule>,
    /// The device's number.
    pub(crate) device: usize,
    pub(crate) address: u64,
    pub(crate) shape: Vec<u64>,
    element_bytes: u64,
    code: u8,
}

impl<'py> Tensor<'py> {
    /// What an object gives of its memory on a CUDA device, for use on `stream`.
    pub(crate) fn new(
        object: &Bound<'py, PyAny>,
        what: &str,
        stream: CallersStream,
    ) -> PyResult<Self> {
        let keywords = PyDict::new(object.py());
        keywords.set_item("stream", stream.0)?;
        let capsule = object.call_method("__dlpack__", (), Some(&keywords));
        let capsule = capsule
            .and_then(|capsule| Ok(capsule.cast_into::<PyCapsule>()?))
            .map_err(|error| invalid(format!("`{what}` cannot be taken by DLPack: {error}")))?;
        let pointer = capsule.pointer_checked(Some(DLTENSOR)).map_err(|_| {
            invalid(format!(
                "`{what}` gave no capsule \"dltensor\" by __dlpack__"
            ))
        })?;
        // SAFETY: a capsule of this name holds a `DLManagedTensor`, whose first member is a
        // `DLTensor`, by the contract of DLPack; it lives as long as the capsule, and no Python
        // runs while it is read.
        let tensor = unsafe { pointer.cast::<DlTensor>().as_ref() };
        let wrong = |why: String| Err(invalid(format!("`{what}`: {why}")));
        let dimensions = match tensor.dimensions {
            0..=DIMENSIONS_MAX => tensor.dimensions as usize,
            other => return wrong(format!("a tensor of {other} dimensions")),
        };
        if dimensions > 0 && tensor.shape.is_null() {
            return wrong("a tensor without a shape".to_owned());
        }
        let extents = |from: *const i64| match dimensions {
            0 => &[][..],
            // SAFETY: as above: there are as many extents, and strides where they are not null, as
            // dimensions.
            _ => unsafe { std::slice::from_raw_parts(from, dimensions) },
        };
        let shape: Option<Vec<u64>> = extents(tensor.shape)
            .iter()
            .map(|&extent| u64::try_from(extent).ok())
            .collect();
        let Some(shape) = shape else {
            return wrong("a tensor with a negative extent".to_owned());
        };
        if !tensor.strides.is_null() && !is_contiguous(&shape, extents(tensor.strides)) {
            return wrong("it is not contiguous, and is used where it lies".to_owned());
        }
        let element_bits = u64::from(tensor.bits) * u64::from(tensor.lanes);
        let Ok(device) = usize::try_from(tensor.device_number) else {
            return wrong(format!("a device numbered {}", tensor.device_number));
        };
        Ok(Tensor {
            device,
            address: (tensor.data as u64).wrapping_add(tensor.byte_offset),
            shape,
            element_bytes: element_bits.div_ceil(8),
            code: tensor.code,
            _capsule: capsule,
        })
    }

    /// Rows along the first dimension, and bytes a row.
    pub(crate) fn rows(&self, what: &str) -> PyResult<(u64, u64)> {
        let Some((&rows, rest)) = self.shape.split_first() else {
            return Err(invalid(format!(
                "`{what}` has no dimension, and so no rows"
            )));
        };
        let bytes = self.bytes_of(rest, what)?;
        Ok((rows, bytes))
    }

    /// That its elements are a table's.
    pub(crate) fn expect_elements(&self, dtype: Dtype, what: &str) -> PyResult<()> {
        let code = match dtype {
            Dtype::I8 | Dtype::I32 | Dtype::I64 => SIGNED,
            Dtype::U8 => UNSIGNED,
            Dtype::Bf16 => BFLOAT,
            _ => FLOAT,
        };
        // Libraries without bfloat16 have its bits, as NumPy does.
        let fits = self.code == code || dtype == Dtype::Bf16 && self.code == UNSIGNED;
        if fits && self.element_bytes == dtype.bytes() as u64 {
            return Ok(());
        }
        Err(invalid(format!(
            "`{what}` has elements of {} bytes of DLPack's type {}, and the table's are {dtype}",
            self.element_bytes, self.code
        )))
    }

    /// Its bytes.
    pub(crate) fn bytes(&self, what: &str) -> PyResult<usize> {
        Ok(self.bytes_of(&self.shape, what)? as usize)
    }

    fn bytes_of(&self, extents: &[u64], what: &str) -> PyResult<u64> {
        let mut extents = extents.iter();
        let bytes = extents.try_fold(self.element_bytes, |bytes, &extent| {
            bytes.checked_mul(extent)
        });
        bytes.ok_or_else(|| invalid(format!("`{what}` is larger than memory")))
    }

    /// The type of its integers, if they can be indices.
    pub(crate) fn integer(&self) -> PyResult<Integer> {
        match (self.code, self.element_bytes) {
            (SIGNED, 4) => Ok(Integer::I32),
            (SIGNED, 8) => Ok(Integer::I64),
            (code, bytes) => Err(invalid(format!(
                "indices are int32 or int64, not {bytes} bytes of DLPack's type {code}"
            ))),
        }
    }
}

/// Whether strides, in elements, are those of a contiguous tensor.
fn is_contiguous(shape: &[u64], strides: &[i64]) -> bool {
    let mut expected = 1;
    let is_empty = shape.contains(&0);
    is_empty
        || shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || u64::try_from(stride) == Ok(expected);
            expected = expected.saturating_mul(extent);
            fits
        })
}

/// A stream of the caller's, by its handle; the default one is 1, as DLPack counts, since 0 would
/// be ambiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallersStream(i64);

impl CallersStream {
    /// What it is known by to DLPack.
    pub(crate) fn number(self) -> i64 {
        self.0
    }

    /// What the driver knows it by.
    fn handle(self) -> *mut c_void {
        match self.0 {
            DEFAULT_STREAM => std::ptr::null_mut(),
            handle => handle as *mut c_void,
        }
    }
}

const DEFAULT_STREAM: i64 = 1;

/// The stream that an object stands for: the argument if there is one, else the current stream of
/// the library that the tensor is of, else the default one.
pub(crate) fn stream_of(
    argument: Option<&Bound<'_, PyAny>>,
    tensor: &Bound<'_, PyAny>,
) -> PyResult<CallersStream> {
    let handle: i64 = match argument {
        Some(stream) => {
            let refuse = |_| {
                invalid(
                    "`stream` is a number, or has one as `cuda_stream` (PyTorch) or `ptr` (CuPy)",
                )
            };
            if let Ok(handle) = stream.extract() {
                handle
            } else if stream.hasattr("cuda_stream")? {
                stream.getattr("cuda_stream")?.extract().map_err(refuse)?
            } else {
                let handle = stream.getattr("ptr").and_then(|handle| handle.extract());
                handle.map_err(refuse)?
            }
        }
        None => current_stream(tensor)?.unwrap_or(0),
    };
    Ok(CallersStream(if handle == 0 {
        DEFAULT_STREAM
    } else {
        handle
    }))
}

/// The current stream of the library that a tensor is of, where that is known to have one.
fn current_stream(tensor: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let module = tensor.get_type().module()?;
    let library = module.to_str()?.split('.').next().unwrap_or_default();
    let cuda = match library {
        "torch" => tensor.py().import("torch.cuda")?,
        "cupy" => tensor.py().import("cupy.cuda")?,
        _ => return Ok(None),
    };
    let (stream, handle) = if library == "torch" {
        let device = tensor.getattr("device")?;
        (
            cuda.call_method1("current_stream", (device,))?,
            "cuda_stream",
        )
    } else {
        (cuda.call_method0("get_current_stream")?, "ptr")
    };
    stream.getattr(handle)?.extract().map(Some)
}

/// The indices of a copy.
pub(crate) enum Indices<'a, 'py> {
    /// Pairs by turns, in the host's memory, to be brought to the device.
    Host(&'a [i64]),
    /// Pairs, in a tensor of shape (n, 2).
    Pairs(&'a Tensor<'py>),
    /// Sources and destinations, in a tensor each.
    Split(&'a Tensor<'py>, &'a Tensor<'py>),
}

impl Indices<'_, '_> {
    /// That all are on one device.
    pub(crate) fn expect_device(&self, number: usize) -> PyResult<()> {
        let tensors = match self {
            Indices::Host(_) => &[][..],
            Indices::Pairs(pairs) => &[*pairs],
            Indices::Split(sources, destinations) => &[*sources, *destinations],
        };
        match tensors.iter().find(|tensor| tensor.device != number) {
            None => Ok(()),
            Some(tensor) => Err(invalid(format!(
                "`pairs` are on CUDA device {}, and the rows on CUDA device {number}",
                tensor.device
            ))),
        }
    }

    /// Where tensors of them lie.
    fn on_device(&self) -> PyResult<Option<PairsAt>> {
        let length = |tensor: &Tensor<'_>| match tensor.shape[..] {
            [length] => Ok(length),
            _ => Err(invalid("two tensors of indices have one dimension each")),
        };
        let at = match self {
            Indices::Host(_) => return Ok(None),
            Indices::Pairs(pairs) => {
                PairsAt::interleaved(pairs.address, pairs.integer()?, &pairs.shape)
            }
            Indices::Split(sources, destinations) => {
                let integer = sources.integer()?;
                if destinations.integer()? != integer {
                    return Err(invalid("two tensors of indices are of one type"));
                }
                let sources = (sources.address, length(sources)?);
                PairsAt::split(
                    integer,
                    sources,
                    (destinations.address, length(destinations)?),
                )
            }
        };
        at.map(Some).map_err(gather_exception)
    }
}

/// The host's side of a copy.
pub(crate) enum Host<'a> {
    Source(&'a [u8]),
    Destination(&'a mut [u8]),
}

/// Devices that were opened: their kernels are loaded once.
static OPENED: PerProcess<Mutex<Vec<Gpu>>> = PerProcess::new();

fn opened(number: usize) -> Result<Gpu, GpuError> {
    let opened = OPENED.get_or_init(Mutex::default);
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = opened.iter().find(|gpu| gpu.info().ordinal == number) {
        return Ok(gpu.clone());
    }
    let gpu = Gpu::open(number)?;
    opened.push(gpu.clone());
    Ok(gpu)
}

/// Copies rows between the host and a device, on a stream of that device, and waits for it while
/// other Python threads run. `spec` tells of dense rows that lie within both sides.
pub(crate) fn copy_rows(
    py: Python<'_>,
    spec: Spec,
    host: Host<'_>,
    device: &Tensor<'_>,
    indices: &Indices<'_, '_>,
    stream: CallersStream,
) -> PyResult<()> {
    let (direction, host_address) = match &host {
        Host::Source(bytes) => (Direction::Gather, bytes.as_ptr() as u64),
        Host::Destination(bytes) => (Direction::Scatter, bytes.as_ptr() as u64),
    };
    let access = match direction {
        Direction::Gather => Access::Write,
        Direction::Scatter => Access::Read,
    };
    let _borrow = Borrow::new(
        device.address as usize,
        device.bytes("device")?,
        access,
        "device",
    )?;
    let at = indices.on_device()?;
    let brought: &[i64] = match indices {
        Indices::Host(pairs) => pairs,
        _ => &[],
    };
    let (number, device_address) = (device.device, device.address);
    let copy = || {
        let gpu = opened(number)?;
        let buffer = DeviceBuffer::of(&gpu, brought.as_bytes())?;
        let pairs = match at {
            Some(at) => at,
            None => {
                let count = brought.len() as u64 / 2;
                PairsAt::interleaved(buffer.address(), Integer::I64, &[count, 2])?
            }
        };
        let request = Request {
            direction,
            spec,
            host: host_address,
            device: device_address,
            pairs,
            count: None,
            map: None,
            out_of_range: None,
        };
        // SAFETY: the host's bytes are borrowed until this function returns, mutably if they are
        // written; the tensors' memory is kept by their capsules, which outlive it too; `buffer`
        // lies in this closure, and the scope below ends when the copy is done. On the device the
        // copy comes behind what the producers had under way, as they were told the stream, and no
        // reference of Rust's is to a tensor's memory.
        let copy = unsafe { RowCopy::from_request(&gpu, &request) }?;
        // SAFETY: the stream is of the device's primary context and lives as long as this call: the
        // word of whoever calls from Python, as of every library that takes streams. Of one that is
        // being captured the driver refuses the scope's waiting.
        let stream = unsafe { Stream::borrowed(&gpu, stream.handle()) };
        gpu.scope(|scope| scope.put(&stream, &copy))
    };
    py.detach(copy).map_err(device_exception)
}

/// Looks keys up in a table whose device tier is on the tensor's device: rows go there, behind what
/// is on the caller's stream. Other Python threads run meanwhile.
pub(crate) fn find_rows(
    py: Python<'_>,
    table: &Table,
    keys: &[u64],
    out: &Tensor<'_>,
    found: &mut [bool],
    stream: CallersStream,
) -> PyResult<usize> {
    let bytes = out.bytes("out")?;
    let _borrow = Borrow::new(out.address as usize, bytes, Access::Write, "out")?;
    let (number, address) = (out.device, out.address);
    let Some(gpu) = table.gpu() else {
        return Err(invalid(format!(
            "`out` is on CUDA device {number}, and the table has no device tier on a GPU: rows go to the CPU's memory"
        )));
    };
    let tier = gpu.info().ordinal;
    if tier != number {
        return Err(invalid(format!(
            "`out` is on CUDA device {number}, and the table's device tier on CUDA device {tier}"
        )));
    }
    let stream = stream.handle() as usize;
    let find = || {
        // SAFETY: as in `copy_rows`: a stream of the device's primary context that outlives the
        // call, by the caller's word.
        let stream = unsafe { Stream::borrowed(&gpu, stream as *mut c_void) };
        stream.synchronize().map_err(device_exception)?;
        // SAFETY: the tensor's memory, of which its capsule says so many bytes, is kept by that
        // capsule, which outlives the call; the table is done with it when the lookup returns. No
        // reference of Rust's is to it.
        let rows = unsafe { DeviceSlice::from_raw(&gpu, address, bytes) };
        let found = table.find_to_device(keys, rows, found);
        found.map_err(table_exception)
    };
    py.detach(find)
}
