//! `_GpuTable`: the hash table in GPU memory, with arrays of any library. `forerun/gpu_table.py`
//! makes `GpuTable` of it.
//!
//! `arrays.rs` has the arrays of a call, as addresses.
//!
//! On a GPU a call puts its operation on a stream and returns. PyTorch and CuPy reuse a tensor's
//! memory in the order of their current stream, so tensors used there need no more. Those of other
//! libraries, or used on another stream, are kept until the device has passed an event.

mod arrays;

use std::ffi::c_void;
use std::path::PathBuf;

use forerun::gpu::table::{
    Candidates, Condition, Element, GpuEvictStrategy, GpuTable as Table, LookupMode, Operation,
    PooledDtype, Pooling, PoolingOptions, RawBatch, RawEntries, RawPooledBatch, RowFormat, Scan,
    ScoreBytes, StreamTable, TableError, TableOptions, Width,
};
use forerun::gpu::{Gpu, GpuError};
use forerun::table::Dtype;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cuda::{CallersStream, is_in_stream_order, library_of, opened, stream_of};
use crate::device_array::DeviceArray;
use crate::engine_handle::EngineHandle;
use crate::errors::{device_exception, gpu_table_exception, invalid, unknown};
use crate::in_flight::TensorsInFlight;
use crate::interrupt;
use crate::numeric_arguments;
use crate::table::options::{Device, dtype};
use arrays::{Arrays, Elements};

/// The table of `forerun.GpuTable`.
#[pyclass(frozen, module = "forerun", name = "_GpuTable")]
pub(crate) struct GpuTable {
    table: EngineHandle<StreamTable>,
    gpu: Option<Gpu>,
    dtype: Dtype,
    dim: u32,
    in_flight: TensorsInFlight,
}

fn evict_strategy(name: &str) -> PyResult<GpuEvictStrategy> {
    Ok(match name {
        "lru" => GpuEvictStrategy::Lru,
        "lfu" => GpuEvictStrategy::Lfu,
        "epoch_lru" => GpuEvictStrategy::EpochLru,
        "epoch_lfu" => GpuEvictStrategy::EpochLfu,
        "customized" => GpuEvictStrategy::Customized,
        other => {
            let known = "lru, lfu, epoch_lru, epoch_lfu, customized";
            return Err(unknown("evict_strategy", other, known));
        }
    })
}

/// Makes a table where `device` says.
fn open(device: Option<&Device>, options: TableOptions) -> PyResult<Table> {
    let on = |gpu: Result<Gpu, GpuError>| match gpu {
        Ok(gpu) => Table::on_gpu(&gpu, options).map_err(gpu_table_exception),
        Err(error) => Err(device_exception(error)),
    };
    match device {
        Some(Device::Number(number)) => on(opened(*number)),
        Some(Device::Name(name)) if name == "cpu" => {
            Table::on_cpu(options).map_err(gpu_table_exception)
        }
        Some(Device::Name(name)) if name != "any" => {
            Err(unknown("device", name, "any, cpu, a GPU's number"))
        }
        _ => match opened(0) {
            Err(error) if error.is_absent() => Table::on_cpu(options).map_err(gpu_table_exception),
            gpu => on(gpu),
        },
    }
}

#[pymethods]
impl GpuTable {
    #[new]
    #[pyo3(signature = (
        capacity, dim, dtype=None, *, max_capacity=None, device=None, width=128, candidates=1,
        evict_strategy="lru", score_bytes=8, device_row_bytes_max=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = numeric_arguments::capacity)] capacity: u64,
        #[pyo3(from_py_with = numeric_arguments::dim)] dim: u32,
        dtype: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = numeric_arguments::max_capacity)] max_capacity: Option<u64>,
        device: Option<Device>,
        width: u32,
        candidates: u32,
        evict_strategy: &str,
        score_bytes: u32,
        #[pyo3(from_py_with = numeric_arguments::device_row_bytes_max)]
        device_row_bytes_max: Option<u64>,
    ) -> PyResult<GpuTable> {
        let dtype = dtype.map_or(Ok(Dtype::F32), self::dtype)?;
        let width = Width::ALL.into_iter().find(|known| known.slots() == width);
        let width = width.ok_or_else(|| invalid("`width` must be one of 16, 32, 64, 128"))?;
        let candidates = match candidates {
            1 => Candidates::One,
            2 => Candidates::Two,
            _ => return Err(invalid("`candidates` must be 1 or 2")),
        };
        let score_bytes = match score_bytes {
            4 => ScoreBytes::Four,
            8 => ScoreBytes::Eight,
            _ => return Err(invalid("`score_bytes` must be 4 or 8")),
        };
        let row_bytes = u64::from(dim) * dtype.bytes() as u64;
        let options = TableOptions::new(capacity, row_bytes)
            .max_capacity(max_capacity.unwrap_or(capacity))
            .width(width)
            .candidates(candidates)
            .evict_strategy(self::evict_strategy(evict_strategy)?)
            .score_bytes(score_bytes)
            .device_row_bytes_max(device_row_bytes_max.unwrap_or(u64::MAX));
        let open = || open(device.as_ref(), options);
        let table = interrupt::detach(py, "opening a table", open)?;
        Ok(GpuTable {
            gpu: table.gpu().cloned(),
            table: EngineHandle::new(StreamTable::new(table)),
            dtype,
            dim,
            in_flight: TensorsInFlight::default(),
        })
    }

    /// Number of slots.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.table.capacity())
    }

    #[getter]
    fn dim(&self) -> u32 {
        self.dim
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// The number of its GPU; `None` on the CPU.
    #[getter]
    fn gpu(&self) -> Option<usize> {
        self.gpu.as_ref().map(|gpu| gpu.info().ordinal)
    }

    /// Applies an operation by its name.
    #[pyo3(signature = (operation, arrays, *, epoch=0, stream=None))]
    fn apply(
        &self,
        py: Python<'_>,
        operation: &str,
        arrays: &Bound<'_, PyDict>,
        epoch: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let operation = self.operation(operation)?;
        let (mut arrays, is_kept) = self.arrays(arrays, stream)?;
        let batch = RawBatch {
            epoch,
            ..self.batch(&mut arrays)?
        };
        // SAFETY: see `run`.
        self.run(py, arrays, is_kept, move |table, stream| unsafe {
            table.apply(operation, &batch, stream)
        })
    }

    /// Looks up keys.
    #[pyo3(signature = (arrays, *, beside_writers=true, stream=None))]
    fn find(
        &self,
        py: Python<'_>,
        arrays: &Bound<'_, PyDict>,
        beside_writers: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (mut arrays, is_kept) = self.arrays(arrays, stream)?;
        let batch = self.batch(&mut arrays)?;
        // SAFETY: see `run`.
        self.run(py, arrays, is_kept, move |table, stream| unsafe {
            table.lookup(LookupMode::ByLoad, &batch, beside_writers, stream)
        })
    }

    /// Looks up bags of keys.
    #[pyo3(signature = (arrays, mode, dtype, *, stream=None))]
    fn find_pooled(
        &self,
        py: Python<'_>,
        arrays: &Bound<'_, PyDict>,
        mode: &str,
        dtype: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let output = self::dtype(dtype)?;
        let options = self.pooling_options(mode, output)?;
        let row_bytes = u64::from(self.dim) * self.dtype.bytes() as u64;
        let values = options.dim(row_bytes).map_err(TableError::from);
        let values = values.map_err(gpu_table_exception)?;
        let (mut arrays, is_kept) = self.arrays(arrays, stream)?;
        let (keys, count) = arrays.counted("keys", Elements::Words)?;
        let (offsets, bounds) = arrays.counted("offsets", Elements::Words)?;
        let Some(bags) = bounds.checked_sub(1) else {
            return Err(invalid(
                "`offsets` must have the end of the last bag, but is empty",
            ));
        };
        let of_bags = bags.saturating_mul(values.saturating_mul(output.bytes() as u64));
        let sums_bytes = self.table.pooled_sums_bytes(&options, bags);
        let sums_bytes = sums_bytes.map_err(gpu_table_exception)?;
        let pooled = arrays.write("rows_out", Elements::Of(output), of_bags)?;
        let batch = RawPooledBatch {
            count,
            count_at: None,
            keys,
            bags,
            offsets,
            weights: arrays.read("weights", Elements::Of(Dtype::F32), count.saturating_mul(4))?,
            rows_out: pooled.ok_or_else(|| invalid("`rows_out` is missing"))?,
            found_out: arrays.write("found_out", Elements::HalfWords, bags.saturating_mul(4))?,
            sums: match sums_bytes {
                0 => None,
                bytes => arrays.write("sums", Elements::Of(Dtype::F32), bytes)?,
            },
        };
        // SAFETY: see `run`.
        self.run(py, arrays, is_kept, move |table, stream| unsafe {
            table.find_pooled(&options, &batch, true, stream)
        })
    }

    /// The bytes of `sums` that such a lookup needs.
    fn pooled_sums_bytes(&self, mode: &str, dtype: &Bound<'_, PyAny>, bags: u64) -> PyResult<u64> {
        let options = self.pooling_options(mode, self::dtype(dtype)?)?;
        let bytes = self.table.pooled_sums_bytes(&options, bags);
        bytes.map_err(gpu_table_exception)
    }

    /// The values in a pooled row.
    fn pooled_dim(&self, mode: &str, dtype: &Bound<'_, PyAny>) -> PyResult<u64> {
        let options = self.pooling_options(mode, self::dtype(dtype)?)?;
        let row_bytes = u64::from(self.dim) * self.dtype.bytes() as u64;
        let dim = options.dim(row_bytes).map_err(TableError::from);
        dim.map_err(gpu_table_exception)
    }

    /// Counts, erases or exports entries in a range of slots whose scores are in a range and whose
    /// keys have given bits.
    #[pyo3(signature = (scan, arrays, *, slots, scores, key_bits, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn scan(
        &self,
        py: Python<'_>,
        scan: &str,
        arrays: &Bound<'_, PyDict>,
        slots: (u64, u64),
        scores: (u64, u64),
        key_bits: (u64, u64),
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let scan = match scan {
            "count" => Scan::Count,
            "erase" => Scan::Erase,
            "export" => Scan::Export,
            other => return Err(unknown("scan", other, "count, erase, export")),
        };
        let condition = Condition {
            scores: scores.0..=scores.1,
            key_mask: key_bits.0,
            key_value: key_bits.1,
        };
        let capacity = self.table.capacity();
        let slots = slots.0.min(capacity)..slots.1.min(capacity);
        let room = slots.end.saturating_sub(slots.start);
        let (mut arrays, is_kept) = self.arrays(arrays, stream)?;
        let entries = self.entries(&mut arrays, room)?;
        let out = entries.ok_or_else(|| invalid("`entry_count` is missing"))?;
        // SAFETY: see `run`.
        self.run(py, arrays, is_kept, move |table, stream| unsafe {
            table.scan(scan, slots, &condition, &out, stream)
        })
    }

    /// Removes all entries.
    #[pyo3(signature = (*, stream=None))]
    fn clear(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = handle_of(stream)?;
        // SAFETY: the caller guarantees the stream, as for every library that takes streams.
        let clear = || unsafe { self.table.clear(stream as *mut c_void) };
        py.detach(clear).map_err(gpu_table_exception)
    }

    /// Number of entries, after the work on the stream.
    #[pyo3(signature = (*, stream=None))]
    fn size(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let stream = handle_of(stream)?;
        // SAFETY: as in `clear`.
        let size = || unsafe { self.table.size(stream as *mut c_void) };
        py.detach(size).map_err(gpu_table_exception)
    }

    /// Grows the table to this many slots, or for this many more keys.
    #[pyo3(signature = (*, capacity=None, keys=None, stream=None))]
    fn reserve(
        &self,
        py: Python<'_>,
        capacity: Option<u64>,
        keys: Option<u64>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stream = handle_of(stream)?;
        let reserve = || {
            let stream = stream as *mut c_void;
            if let Some(capacity) = capacity {
                // SAFETY: as in `clear`.
                unsafe { self.table.reserve(capacity, stream) }?;
            }
            match keys {
                // SAFETY: as in `clear`.
                Some(keys) => unsafe { self.table.reserve_for(keys, stream) },
                None => Ok(()),
            }
        };
        interrupt::detach(py, "growing a table", reserve).map_err(gpu_table_exception)
    }

    fn set_max_capacity(&self, py: Python<'_>, max_capacity: u64) -> PyResult<()> {
        let set = || self.table.set_max_capacity(max_capacity);
        py.detach(set).map_err(gpu_table_exception)
    }

    #[pyo3(signature = (path, *, stream=None))]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stream = handle_of(stream)?;
        // SAFETY: as in `clear`.
        let save = || unsafe { self.table.save(&path, stream as *mut c_void) };
        interrupt::detach(py, "saving a table", save).map_err(gpu_table_exception)
    }

    #[pyo3(signature = (path, *, stream=None))]
    fn load(
        &self,
        py: Python<'_>,
        path: PathBuf,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let stream = handle_of(stream)?;
        // SAFETY: as in `clear`.
        let load = || unsafe { self.table.load(&path, stream as *mut c_void) };
        interrupt::detach(py, "loading a table", load).map_err(gpu_table_exception)
    }

    /// An array of zeros on the table's GPU, in the order of a stream.
    #[pyo3(signature = (shape, dtype, *, stream=None))]
    fn zeros(
        &self,
        py: Python<'_>,
        shape: Vec<usize>,
        dtype: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<DeviceArray> {
        let dtype = self::dtype(dtype)?;
        let Some(gpu) = &self.gpu else {
            return Err(invalid("the table is on the CPU"));
        };
        let asked = callers_stream(stream)?;
        let array = DeviceArray::new(gpu, &shape, dtype)?;
        let ((address, len), handle) = (array.memory(), asked.handle() as usize);
        // SAFETY: the array has these bytes, and nothing else uses it yet. The stream is as in
        // `clear`.
        let fill = || unsafe { self.table.fill(address, 0, len, handle as *mut c_void) };
        py.detach(fill).map_err(device_exception)?;
        array.mark(asked)?;
        Ok(array)
    }
}

fn callers_stream(stream: Option<&Bound<'_, PyAny>>) -> PyResult<CallersStream> {
    match stream {
        Some(given) => stream_of(Some(given), given),
        None => Ok(CallersStream::DEFAULT),
    }
}

/// The driver's handle of a stream, as a number.
fn handle_of(stream: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
    Ok(callers_stream(stream)?.handle() as usize)
}

impl GpuTable {
    fn operation(&self, name: &str) -> PyResult<Operation> {
        Ok(match name {
            "insert_or_assign" => Operation::InsertOrAssign,
            "insert_and_evict" => Operation::InsertAndEvict,
            "find_or_insert" => Operation::FindOrInsert,
            "accumulate_or_assign" => Operation::AccumulateOrAssign(self.element()?),
            "assign" => Operation::Assign,
            "assign_rows" => Operation::AssignRows,
            "assign_scores" => Operation::AssignScores,
            "find_and_update" => Operation::FindAndUpdate,
            "lock" => Operation::Lock,
            "unlock" => Operation::Unlock,
            "erase" => Operation::Erase,
            "restore" => Operation::Restore,
            other => return Err(unknown("operation", other, "a method's name")),
        })
    }

    fn element(&self) -> PyResult<Element> {
        Ok(match self.dtype {
            Dtype::F32 => Element::F32,
            Dtype::F64 => Element::F64,
            Dtype::I32 => Element::I32,
            Dtype::I64 => Element::I64,
            other => {
                return Err(invalid(format!(
                    "rows of {} cannot be added up, only those of float32, float64, int32 and \
                     int64",
                    other.name()
                )));
            }
        })
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
                    "rows of {} cannot be pooled",
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

    /// The arrays of a call, and whether their memory must be kept until the device is done.
    fn arrays<'a, 'py>(
        &self,
        given: &'a Bound<'py, PyDict>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Arrays<'a, 'py>, bool)> {
        if self.gpu.is_none() {
            return Ok((Arrays::new(given, None), false));
        }
        // The first array that there is decides which library's current stream it is.
        let first = given.values().iter().find(|array| !array.is_none());
        let Some(first) = first else {
            return Ok((Arrays::new(given, Some(callers_stream(stream)?)), true));
        };
        let used_on = stream_of(stream, &first)?;
        let library_of_first = library_of(&first)?;
        let mut is_kept = stream.is_some();
        for array in given.values().iter().filter(|array| !array.is_none()) {
            // Another library reuses memory in the order of its own stream.
            let library = library_of(&array)?;
            is_kept |=
                !is_in_stream_order(&array)? || library != "forerun" && library != library_of_first;
        }
        Ok((Arrays::new(given, Some(used_on)), is_kept))
    }

    /// The batch that the arrays are.
    fn batch(&self, arrays: &mut Arrays<'_, '_>) -> PyResult<RawBatch> {
        let (keys, count) = arrays.counted("keys", Elements::Words)?;
        let words = count.saturating_mul(8);
        let row_bytes = u64::from(self.dim) * self.dtype.bytes() as u64;
        let (rows, of_rows) = (count.saturating_mul(row_bytes), Elements::Of(self.dtype));
        Ok(RawBatch {
            count_at: arrays.read("count_at", Elements::Words, 8)?,
            rows: arrays.read("rows", of_rows, rows)?,
            scores: arrays.read("scores", Elements::Words, words)?,
            flags: arrays.read("flags", Elements::Bytes, count)?,
            rows_out: arrays.write("rows_out", of_rows, rows)?,
            scores_out: arrays.write("scores_out", Elements::Words, words)?,
            slots_out: arrays.write("slots_out", Elements::Words, words)?,
            pointers_out: arrays.write("pointers_out", Elements::Words, words)?,
            status_out: arrays.write("status_out", Elements::Bytes, count)?,
            entries_out: self.entries(arrays, count)?,
            ..RawBatch::new(keys, count)
        })
    }

    /// Output for at most this many entries, if it is wanted.
    fn entries(&self, arrays: &mut Arrays<'_, '_>, room: u64) -> PyResult<Option<RawEntries>> {
        let Some(count) = arrays.write("entry_count", Elements::Words, 8)? else {
            return Ok(None);
        };
        let words = room.saturating_mul(8);
        let row_bytes = u64::from(self.dim) * self.dtype.bytes() as u64;
        let (rows, of_rows) = (room.saturating_mul(row_bytes), Elements::Of(self.dtype));
        Ok(Some(RawEntries {
            count,
            keys: arrays
                .write("entry_keys", Elements::Words, words)?
                .unwrap_or(0),
            rows: arrays.write("entry_rows", of_rows, rows)?,
            scores: arrays.write("entry_scores", Elements::Words, words)?,
            positions: arrays.write("entry_positions", Elements::Words, words)?,
        }))
    }

    /// Runs an operation while other Python threads run.
    ///
    /// The arrays have the lengths that the operation requires. Arrays in ordinary memory are kept
    /// by the caller's objects until this returns, and on the CPU the operation is done by then.
    /// Tensors on a GPU are given back in the order of their library's stream, or kept.
    fn run(
        &self,
        py: Python<'_>,
        arrays: Arrays<'_, '_>,
        is_kept: bool,
        operation: impl FnOnce(&StreamTable, *mut c_void) -> Result<(), TableError> + Send,
    ) -> PyResult<()> {
        // Work on a stream goes on after this call, in the order that its streams give.
        let _borrow = match self.gpu {
            None => Some(arrays.borrow()?),
            Some(_) => None,
        };
        let (stream, table) = (arrays.stream(), &*self.table);
        let result = py.detach(|| operation(table, stream as *mut c_void));
        result.map_err(gpu_table_exception)?;
        let asked = arrays.callers_stream();
        // No library reuses host memory in the order of a stream.
        let is_kept = is_kept || arrays.uses_host_memory();
        let (capsules, written) = arrays.into_parts();
        let (Some(asked), Some(gpu)) = (asked, &self.gpu) else {
            return Ok(());
        };
        if is_kept {
            self.in_flight.keep(gpu, asked, capsules)?;
        }
        for array in written {
            array.get().mark(asked)?;
        }
        Ok(())
    }
}

impl Drop for GpuTable {
    fn drop(&mut self) {
        self.in_flight.finish();
        // The fields follow in their order. Freeing the table waits for the device, and thereby for
        // graphs; then the tensors go.
    }
}
