//! Tensors on a CUDA device, and row copies between them and host memory on the caller's stream.
//!
//! ```text
//!   stream       given, or the current one of the tensor's library
//!   tensor       exported with DLPack (dlpack.rs) for that stream;
//!                the producer orders its pending work on the tensor before work on this stream
//!   rows         checked; the driver locates all memory; one kernel is put on the stream
//!   lookup       waits for the stream; when the call returns, all rows are in the tensor
//! ```
//!
//! Errors in a request are reported before a device is opened. A copy may run after its call, so
//! its memory must outlive the call:
//!
//! | memory | is there until the copy has run, because |
//! |---|---|
//! | the host's rows | the queue keeps the object, until a later call finds the copy done |
//! | a tensor of PyTorch, on its current stream | the allocator reuses memory in the order of that stream |
//! | a tensor of PyTorch, on a stream that was named | `record_stream` tells the allocator |
//! | a tensor of another library | the queue keeps the capsule; when it is dropped, the producer gets the memory back |

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use forerun::gpu::gather::{CopyQueue, IndexType, PairsAt, QueuedCopy, QueuedPairs, Request, cpu};
use forerun::gpu::{DeviceSlice, Gpu, GpuError, Stream};
use forerun::process::PerProcess;
use forerun::table::{Dtype, Table};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::borrows::{Access, Borrow};
use crate::dlpack::{BFLOAT, Exported, FLOAT, SIGNED, UNSIGNED};
use crate::errors::{accepted, device_exception, gather_exception, invalid, table_exception};
use crate::python_calls::{call, call_method};

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

    pub(crate) fn shape(&self) -> &[u64] {
        &self.exported.shape
    }

    /// What keeps its memory allocated.
    pub(crate) fn keep(&self) -> Py<PyAny> {
        self.exported.keep()
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

    /// Checks that it is one integer, and returns its type.
    pub(crate) fn word(&self, what: &str) -> PyResult<IndexType> {
        let shape = self.shape();
        if shape.iter().any(|&extent| extent != 1) {
            return Err(invalid(format!(
                "`{what}` must be one integer, not {shape:?} of them"
            )));
        }
        self.integer()
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
pub(crate) fn library_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
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
    /// In host memory. They may be reused after the call.
    Host(cpu::Pairs<'a>),
    /// Pairs in a tensor whose last dimension is 2.
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

    /// Where the indices are.
    pub(crate) fn at(&self) -> PyResult<(PairsAt, QueuedPairs<'_>)> {
        let length = |tensor: &Tensor<'_>| match *tensor.shape() {
            [length] => Ok(length),
            _ => Err(invalid(
                "two tensors of indices must have one dimension each",
            )),
        };
        let at = match self {
            Indices::Host(pairs) => {
                let nowhere = PairsAt::interleaved(0, IndexType::I64, &[0, 2]);
                let nowhere = nowhere.map_err(gather_exception)?;
                return Ok((nowhere, QueuedPairs::Copied(*pairs)));
            }
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
        let at = at.map_err(gather_exception)?;
        Ok((at, QueuedPairs::Reached))
    }
}

/// Queues of the devices opened so far, so that their kernels are loaded and their pinned memory is
/// allocated once.
static OPENED: PerProcess<Mutex<Vec<Arc<CopyQueue>>>> = PerProcess::new();

/// The queue of the device with this number.
pub(crate) fn queue_of(number: usize) -> Result<Arc<CopyQueue>, GpuError> {
    let opened = OPENED.get_or_init(Mutex::default);
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    let of_device = |queue: &&Arc<CopyQueue>| queue.gpu().info().ordinal == number;
    if let Some(queue) = opened.iter().find(of_device) {
        return Ok(queue.clone());
    }
    let queue = Arc::new(CopyQueue::new(&Gpu::open(number)?)?);
    opened.push(queue.clone());
    Ok(queue)
}

/// The device with this number.
pub(crate) fn opened(number: usize) -> Result<Gpu, GpuError> {
    Ok(queue_of(number)?.gpu().clone())
}

/// When a call that copies returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
    /// When the copy is on the stream.
    Enqueued,
    /// When the copy has run.
    Copied,
}

impl Returns {
    /// For the argument `wait`.
    pub(crate) fn of(wait: bool) -> Returns {
        if wait {
            Returns::Copied
        } else {
            Returns::Enqueued
        }
    }
}

/// Puts a copy on a stream, and waits for it if that is wanted.
///
/// # Safety
/// That of [`CopyQueue::enqueue`]: by what the copy keeps, or because the caller promised it. The
/// stream must belong to the primary context of the queue's device and outlive the call.
pub(crate) unsafe fn enqueue(
    queue: &CopyQueue,
    stream: CallersStream,
    copy: QueuedCopy<'_>,
    returns: Returns,
) -> Result<(), GpuError> {
    // SAFETY: as the caller guarantees.
    let stream = unsafe { Stream::borrowed(queue.gpu(), stream.handle()) };
    // SAFETY: as the caller guarantees.
    unsafe { queue.enqueue(&stream, copy) }?;
    match returns {
        Returns::Enqueued => Ok(()),
        Returns::Copied => stream.synchronize(),
    }
}

/// A copy on a GPU between the memory of Python objects. The request's addresses are theirs, within
/// bounds that its checks know.
pub(crate) struct DeviceCopy<'a, 'py> {
    pub(crate) request: Request,
    pub(crate) pairs: QueuedPairs<'a>,
    /// The object with the host's rows.
    pub(crate) host: &'a Bound<'py, PyAny>,
    /// The tensors of the copy, with their objects.
    pub(crate) tensors: Vec<(&'a Tensor<'py>, Bound<'py, PyAny>)>,
    pub(crate) stream: CallersStream,
    /// The argument that named the stream.
    pub(crate) named_stream: Option<&'a Bound<'py, PyAny>>,
    pub(crate) returns: Returns,
}

impl DeviceCopy<'_, '_> {
    /// Enqueues the copy. Other Python threads run meanwhile.
    pub(crate) fn run(self, py: Python<'_>) -> PyResult<()> {
        let Some(number) = self.tensors.first().map(|(tensor, _)| tensor.device) else {
            return Ok(());
        };
        let mut kept = vec![self.host.clone().unbind()];
        let mut of_torch = Vec::new();
        for (tensor, object) in &self.tensors {
            if object.hasattr(intern!(py, "record_stream"))? {
                of_torch.push(object);
            } else {
                kept.push(tensor.keep());
            }
        }
        let (request, pairs, stream, returns) =
            (self.request, self.pairs, self.stream, self.returns);
        let copy = || {
            let queue = queue_of(number)?;
            let copy = QueuedCopy {
                request,
                within_device: false,
                pairs,
                kept: Some(Box::new(kept)),
            };
            // SAFETY: the memory of all objects stays until the copy has run, as the table above
            // says, and the producers were given the stream. Who uses it meanwhile on the CPU or on
            // another stream races with the copy, as with every library that takes streams. No Rust
            // reference points to it after the call.
            unsafe { enqueue(&queue, stream, copy, returns) }
        };
        py.detach(copy).map_err(device_exception)?;
        if let (Some(named), Returns::Enqueued) = (self.named_stream, returns) {
            of_torch
                .into_iter()
                .try_for_each(|tensor| record_stream(tensor, named, stream))?;
        }
        Ok(())
    }
}

/// Tells PyTorch's allocator that a tensor is used on a stream.
fn record_stream(
    tensor: &Bound<'_, PyAny>,
    named: &Bound<'_, PyAny>,
    stream: CallersStream,
) -> PyResult<()> {
    let py = tensor.py();
    let stream = if named.hasattr(intern!(py, "cuda_stream"))? {
        named.clone()
    } else {
        let keywords = PyDict::new(py);
        keywords.set_item("device", tensor.getattr(intern!(py, "device"))?)?;
        let class = py.import("torch.cuda")?.getattr("ExternalStream")?;
        call(&class, (stream.handle() as usize,), Some(&keywords))?
    };
    call_method(tensor, intern!(py, "record_stream"), (stream,)).map(drop)
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
        // SAFETY: the Python caller guarantees a stream of the device's primary context
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
