//! Tensors on a CUDA device, and row copies between them and host memory on the caller's stream.
//!
//! ```text
//!   stream       given, or the current one of the tensor's library
//!   tensor       exported with DLPack (dlpack.rs) for that stream;
//!                the producer orders its pending work on the tensor before work on this stream
//!   rows         checked; the driver locates all memory; one kernel is put on the stream and waited for
//!   lookup       waits for the stream; when the call returns, all rows are in the tensor
//! ```
//!
//! Errors in a request are reported before a device is opened. The capsules, and with them the
//! memory, are kept until the copy is done. They keep their name, so the producer gets the memory
//! back when they are dropped.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use forerun::gpu::gather::{CopySpec, Direction, IndexType, PairsAt, Request, RowCopy};
use forerun::gpu::{DeviceBuffer, DeviceSlice, Gpu, GpuError, Stream};
use forerun::process::PerProcess;
use forerun::table::{Dtype, Table};
use pyo3::intern;
use pyo3::prelude::*;
use zerocopy::IntoBytes;

use crate::borrows::{Access, Borrow};
use crate::dlpack::{BFLOAT, Exported, FLOAT, SIGNED, UNSIGNED};
use crate::errors::{accepted, device_exception, gather_exception, invalid, table_exception};
use crate::python_calls::call_method;

/// A contiguous tensor's memory on a device. It stays valid as long as this exists.
pub(crate) struct Tensor<'py> {
    exported: Exported<'py>,
    /// The device's number.
    pub(crate) device: usize,
    pub(crate) address: u64,
    element_bytes: u64,
}

impl<'py> Tensor<'py> {
    /// Imports an object's memory on a CUDA device, for use on `stream`.
    pub(crate) fn new(
        object: &Bound<'py, PyAny>,
        what: &str,
        stream: CallersStream,
    ) -> PyResult<Self> {
        let exported = Exported::new(object, what, Some(stream.0))?;
        let wrong = |why: String| Err(invalid(format!("`{what}`: {why}")));
        if !exported.is_contiguous() {
            return wrong("it is used in place but is not contiguous".to_owned());
        }
        let Ok(device) = usize::try_from(exported.device_number) else {
            return wrong(format!("a device numbered {}", exported.device_number));
        };
        Ok(Tensor {
            device,
            address: exported.address(),
            element_bytes: exported.element_bits.div_ceil(8),
            exported,
        })
    }

    /// Checks that its memory may be written.
    pub(crate) fn expect_writable(&self, what: &str) -> PyResult<()> {
        if self.exported.is_read_only {
            Err(invalid(format!(
                "`{what}` cannot be written: it is read-only"
            )))
        } else {
            Ok(())
        }
    }

    fn shape(&self) -> &[u64] {
        &self.exported.shape
    }

    /// Number of rows along the first dimension, and bytes per row.
    pub(crate) fn rows(&self, what: &str) -> PyResult<(u64, u64)> {
        let Some((&rows, rest)) = self.shape().split_first() else {
            return Err(invalid(format!(
                "`{what}` has 0 dimensions, so it has no rows"
            )));
        };
        let bytes = self.bytes_of(rest, what)?;
        Ok((rows, bytes))
    }

    /// Checks that its elements have the table's type.
    pub(crate) fn expect_elements(&self, dtype: Dtype, what: &str) -> PyResult<()> {
        let code = match dtype {
            Dtype::I8 | Dtype::I32 | Dtype::I64 => SIGNED,
            Dtype::U8 => UNSIGNED,
            Dtype::Bf16 => BFLOAT,
            _ => FLOAT,
        };
        // Libraries without bfloat16 hold its bits as integers, as NumPy does.
        let given = self.exported.code;
        let fits = given == code || dtype == Dtype::Bf16 && given == UNSIGNED;
        if fits && self.element_bytes == dtype.bytes() as u64 {
            return Ok(());
        }
        Err(invalid(format!(
            "`{what}` has elements of {} bytes of DLPack's type {}, but the table's are {dtype}",
            self.element_bytes, given
        )))
    }

    /// Its size in bytes.
    pub(crate) fn bytes(&self, what: &str) -> PyResult<usize> {
        Ok(self.bytes_of(self.shape(), what)? as usize)
    }

    fn bytes_of(&self, extents: &[u64], what: &str) -> PyResult<u64> {
        let mut extents = extents.iter();
        let bytes = extents.try_fold(self.element_bytes, |bytes, &extent| {
            bytes.checked_mul(extent)
        });
        bytes.ok_or_else(|| invalid(format!("`{what}` is larger than memory")))
    }

    /// Its integer type, if the elements can be indices.
    pub(crate) fn integer(&self) -> PyResult<IndexType> {
        match (self.exported.code, self.element_bytes) {
            (SIGNED, 4) => Ok(IndexType::I32),
            (SIGNED, 8) => Ok(IndexType::I64),
            (code, bytes) => Err(invalid(format!(
                "indices must be int32 or int64, not {bytes} bytes of DLPack's type {code}"
            ))),
        }
    }
}

/// A handle of the caller's stream. The default stream is 1, as in DLPack, because 0 would be
/// ambiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallersStream(i64);

impl CallersStream {
    /// The default stream.
    pub(crate) const DEFAULT: CallersStream = CallersStream(DEFAULT_STREAM);

    /// The stream's number in DLPack.
    pub(crate) fn number(self) -> i64 {
        self.0
    }

    /// The stream's handle for the driver.
    pub(crate) fn handle(self) -> *mut c_void {
        match self.0 {
            DEFAULT_STREAM => std::ptr::null_mut(),
            handle => handle as *mut c_void,
        }
    }
}

const DEFAULT_STREAM: i64 = 1;

/// The stream for an object: the argument if there is one, otherwise the current stream of the
/// tensor's library, otherwise the default stream.
pub(crate) fn stream_of(
    argument: Option<&Bound<'_, PyAny>>,
    tensor: &Bound<'_, PyAny>,
) -> PyResult<CallersStream> {
    let handle: i64 = match argument {
        Some(stream) => {
            let py = stream.py();
            let number = match accepted(py, stream.extract())? {
                Some(number) => Some(number),
                None => {
                    let handle = match stream.getattr_opt("cuda_stream")? {
                        Some(handle) => Some(handle),
                        None => stream.getattr_opt("ptr")?,
                    };
                    let number = handle.map(|handle| accepted(py, handle.extract()));
                    number.transpose()?.flatten()
                }
            };
            number.ok_or_else(|| {
                invalid(
                    "`stream` must be a number, or have one as `cuda_stream` (PyTorch) or `ptr` \
                     (CuPy)",
                )
            })?
        }
        None => current_stream(tensor)?.unwrap_or(0),
    };
    Ok(CallersStream(if handle == 0 {
        DEFAULT_STREAM
    } else {
        handle
    }))
}

/// The library that an object belongs to.
fn library_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let module = object.get_type().module()?;
    Ok(module
        .to_str()?
        .split('.')
        .next()
        .unwrap_or_default()
        .to_owned())
}

/// Whether the object's library reuses its memory in the order of its current stream, so that work
/// put there needs no more to use it. So does memory that this package allocates: freeing it waits.
pub(crate) fn is_in_stream_order(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(matches!(
        &*library_of(object)?,
        "torch" | "cupy" | "forerun"
    ))
}

/// The current stream of a tensor's library, if that library is known to have one.
fn current_stream(tensor: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let library = library_of(tensor)?;
    let py = tensor.py();
    let cuda = match &*library {
        "torch" => py.import("torch.cuda")?,
        "cupy" => py.import("cupy.cuda")?,
        _ => return Ok(None),
    };
    let (stream, handle) = if library == "torch" {
        let device = tensor.getattr("device")?;
        (
            call_method(&cuda, intern!(py, "current_stream"), (device,))?,
            "cuda_stream",
        )
    } else {
        let name = intern!(py, "get_current_stream");
        (call_method(&cuda, name, ())?, "ptr")
    };
    stream.getattr(handle)?.extract().map(Some)
}

/// The indices of a copy.
pub(crate) enum Indices<'a, 'py> {
    /// Interleaved pairs in host memory, to be copied to the device.
    Host(&'a [i64]),
    /// Pairs in a tensor of shape (n, 2).
    Pairs(&'a Tensor<'py>),
    /// Sources and destinations in separate tensors.
    Split(&'a Tensor<'py>, &'a Tensor<'py>),
}

impl Indices<'_, '_> {
    /// Checks that all are on this device.
    pub(crate) fn expect_device(&self, number: usize) -> PyResult<()> {
        let tensors = match self {
            Indices::Host(_) => &[][..],
            Indices::Pairs(pairs) => &[*pairs],
            Indices::Split(sources, destinations) => &[*sources, *destinations],
        };
        match tensors.iter().find(|tensor| tensor.device != number) {
            None => Ok(()),
            Some(tensor) => Err(invalid(format!(
                "`pairs` are on CUDA device {}, but the rows are on CUDA device {number}",
                tensor.device
            ))),
        }
    }

    /// The addresses of indices that are in tensors.
    fn on_device(&self) -> PyResult<Option<PairsAt>> {
        let length = |tensor: &Tensor<'_>| match *tensor.shape() {
            [length] => Ok(length),
            _ => Err(invalid(
                "two tensors of indices must have one dimension each",
            )),
        };
        let at = match self {
            Indices::Host(_) => return Ok(None),
            Indices::Pairs(pairs) => {
                PairsAt::interleaved(pairs.address, pairs.integer()?, pairs.shape())
            }
            Indices::Split(sources, destinations) => {
                let integer = sources.integer()?;
                if destinations.integer()? != integer {
                    return Err(invalid("two tensors of indices must have the same type"));
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

/// Devices opened so far, so that their kernels are loaded once.
static OPENED: PerProcess<Mutex<Vec<Gpu>>> = PerProcess::new();

/// The device with this number.
pub(crate) fn opened(number: usize) -> Result<Gpu, GpuError> {
    let opened = OPENED.get_or_init(Mutex::default);
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = opened.iter().find(|gpu| gpu.info().ordinal == number) {
        return Ok(gpu.clone());
    }
    let gpu = Gpu::open(number)?;
    opened.push(gpu.clone());
    Ok(gpu)
}

/// Copies rows between the host and a device on a stream of that device, and waits for it while
/// other Python threads run. `spec` describes dense rows that lie within both sides.
pub(crate) fn copy_rows(
    py: Python<'_>,
    spec: CopySpec,
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
        let buffer = DeviceBuffer::from_slice(&gpu, brought.as_bytes())?;
        let pairs = match at {
            Some(at) => at,
            None => {
                let count = brought.len() as u64 / 2;
                PairsAt::interleaved(buffer.address(), IndexType::I64, &[count, 2])?
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
        // written. The capsules keep the tensors' memory and outlive the function too. `buffer`
        // lives in this closure, and the scope below ends when the copy is done. On the device the
        // copy runs after the producers' pending work, because they were given the stream. No Rust
        // reference points to a tensor's memory.
        let copy = unsafe { RowCopy::from_request(&gpu, &request) }?;
        // SAFETY: the stream belongs to the device's primary context and lives as long as this
        // call. The Python caller guarantees that, as for every library that takes streams. If it
        // is being captured, the driver rejects the scope's wait.
        let stream = unsafe { Stream::borrowed(&gpu, stream.handle()) };
        gpu.scope(|scope| scope.enqueue(&stream, &copy))
    };
    py.detach(copy).map_err(device_exception)
}

/// Looks up keys in a table whose device tier is on the tensor's device. The rows go there, after
/// the work on the caller's stream. Other Python threads run during the lookup.
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
            "`out` is on CUDA device {number}, but the table has no device tier on a GPU: pass an \
             `out` in CPU memory"
        )));
    };
    let tier = gpu.info().ordinal;
    if tier != number {
        return Err(invalid(format!(
            "`out` is on CUDA device {number}, but the table's device tier is on CUDA device {tier}"
        )));
    }
    let stream = stream.handle() as usize;
    let find = || {
        // SAFETY: as in `copy_rows`: the caller guarantees a stream of the device's primary context
        // that outlives the call.
        let stream = unsafe { Stream::borrowed(&gpu, stream as *mut c_void) };
        stream.synchronize().map_err(device_exception)?;
        // SAFETY: the capsule keeps the tensor's memory, states its size, and outlives the call.
        // The table has finished with it when the lookup returns. No Rust reference points to it.
        let rows = unsafe { DeviceSlice::from_raw(&gpu, address, bytes) };
        let found = table.find_to_device(keys, rows, found);
        found.map_err(table_exception)
    };
    py.detach(find)
}
