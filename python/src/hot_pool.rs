//! Hot pools: the rows of a large host array that are in use now, in a small array.
//!
//! ```text
//!   forerun.HotPool(host, rows)     both arrays belong to the caller, and the pool holds them
//!     rows in CPU memory            the pool in host memory: a call returns when its rows are there
//!     rows on a GPU                 hot_pool_cuda.rs: a call puts one launch on the stream and returns
//! ```

use std::sync::{Mutex, PoisonError};

use forerun::gpu::gather::{Layers, RowLayout};
use forerun::gpu::hot_pool::{self as engine, Eviction, HotPoolBatch, HotPoolOptions};
use numpy::{PyArrayDescrMethods, PyArrayMethods, PyReadwriteArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::arrays::{as_array, borrow, refused};
use crate::borrows::Access;
use crate::cuda::stream_of;
use crate::dlpack::is_on_cuda;
use crate::errors::{invalid, too_large, unknown};
use crate::hot_pool_arguments::{Arrays, ReadIntegers, batch_of, hot_pool_exception, typed};
use crate::hot_pool_cuda::{DevicePool, shape_of};
use crate::new_objects::zeros;
use crate::rows::{readable_rows, writable_rows};
use crate::versions::count_change;

/// What a pool has counted.
#[pyclass(frozen, get_all, eq, module = "forerun")]
#[derive(PartialEq)]
pub(crate) struct HotPoolCounts {
    hits: u64,
    misses: u64,
    absent: u64,
}

#[pymethods]
impl HotPoolCounts {
    fn __repr__(&self) -> String {
        format!(
            "forerun.HotPoolCounts(hits={}, misses={}, absent={})",
            self.hits, self.misses, self.absent
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "the counts of a pool cannot be pickled: pickle their numbers",
        ))
    }
}

/// The rows that a call fetched.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct HotPlan(pub(crate) Plan);

pub(crate) enum Plan {
    Host(Mutex<engine::HotPlan>),
    Device(engine::DeviceHotPlan),
}

#[pymethods]
impl HotPlan {
    fn __repr__(&self) -> String {
        let is_on_host = matches!(self.0, Plan::Host(_));
        format!("forerun.HotPlan(device=\"{}\")", device_name(is_on_host))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a plan belongs to a pool of this process and cannot be pickled",
        ))
    }
}

fn device_name(is_on_host: bool) -> &'static str {
    if is_on_host { "cpu" } else { "cuda" }
}

enum Pool {
    Host(Mutex<engine::HotPool>),
    Device(DevicePool),
}

/// The rows of a large `host` array that are in use now, in the smaller array `rows`: on a GPU,
/// where `host` is in pinned memory, or in CPU memory too.
///
/// Both arrays have layers, rows, and the dimensions of a row; with `host_layout="row_first"`,
/// `host` has rows, layers. Each of `requests` has `slots` rows of every layer: slot `s` of request
/// `r` is row `r * slots + s`. A request reads `positions`, which are rows of `host`, or are mapped
/// to them by `host_rows`, an array of int64 with a row per request and -1 for what is not there. A
/// call resolves up to `count` positions per request. Neighbouring `layers_per_table` layers read
/// the same positions and share a table. `eviction` is "lru", or "clock" for tables of any size. To
/// share one table among requests, pass their positions as those of one.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct HotPool {
    /// Dropped first: it waits for the device, whose launches use the arrays.
    pool: Pool,
    arrays: Arrays,
}

/// The arguments of a pool besides its arrays.
struct Shape<'a> {
    slots: u32,
    requests: u32,
    positions: Option<u32>,
    count: Option<u32>,
    layers_per_table: u32,
    eviction: &'a str,
    host_layout: &'a str,
}

impl Shape<'_> {
    /// The options for arrays of these extents: layers, rows and bytes of a row of each.
    fn options(
        &self,
        host: &[u64],
        rows: &[u64],
        host_rows: Option<&[usize]>,
    ) -> PyResult<HotPoolOptions> {
        let (&[first, second, host_bytes], &[layers, device_rows, row_bytes]) = (host, rows) else {
            return Err(invalid(
                "`host` and `rows` must have three dimensions or more: layers, rows, and those of \
                 a row",
            ));
        };
        let dense = |rows: u64| -> PyResult<(RowLayout, Layers)> {
            let bytes = rows.checked_mul(row_bytes);
            let bytes = bytes.ok_or_else(|| too_large("an array is larger than memory"))?;
            Ok((RowLayout::dense(rows, row_bytes), Layers::Step { bytes }))
        };
        let (host_layers, count, (host, step)) = match self.host_layout {
            "layer_first" => (first, second, dense(second)?),
            "row_first" => {
                let stride = second.saturating_mul(row_bytes);
                let step = Layers::Step { bytes: row_bytes };
                (second, first, (RowLayout::dense(first, stride), step))
            }
            other => return Err(unknown("host_layout", other, "layer_first, row_first")),
        };
        if host_layers != layers || host_bytes != row_bytes {
            return Err(invalid(format!(
                "`host` has {host_layers} layers with rows of {host_bytes} bytes, but `rows` has \
                 {layers} with rows of {row_bytes} bytes"
            )));
        }
        let eviction = match self.eviction {
            "lru" => Eviction::Lru,
            "clock" => Eviction::Clock,
            other => return Err(unknown("eviction", other, "lru, clock")),
        };
        let positions = match (self.positions, host_rows) {
            (Some(positions), _) => positions,
            (None, Some(&[_, positions])) => positions.try_into().unwrap_or(u32::MAX),
            (None, _) => count.try_into().unwrap_or(u32::MAX),
        };
        let options = HotPoolOptions::new(row_bytes, self.slots, positions).requests(self.requests);
        let (device, device_step) = dense(device_rows)?;
        let count = self.count.unwrap_or(options.count);
        Ok(options
            .count(count)
            .layers(layers.try_into().unwrap_or(u32::MAX))
            .layers_per_table(self.layers_per_table)
            .eviction(eviction)
            .host(host.layers(step))
            .device(device.layers(device_step)))
    }
}

/// Layers, rows and bytes of a row, or the layers and rows the other way around.
fn extents(shape: &[u64], element_bytes: u64) -> PyResult<Vec<u64>> {
    let Some((outer, row)) = shape.split_at_checked(2).filter(|(_, row)| !row.is_empty()) else {
        return Ok(Vec::new());
    };
    let bytes = row
        .iter()
        .try_fold(element_bytes, |bytes, &extent| bytes.checked_mul(extent));
    let bytes = bytes.ok_or_else(|| too_large("a row is larger than memory"))?;
    Ok([outer, &[bytes]].concat())
}

fn array_extents(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u64>> {
    let array = as_array(object, what)?;
    let shape: Vec<u64> = array.shape().iter().map(|&extent| extent as u64).collect();
    extents(&shape, array.dtype().itemsize() as u64)
}

#[pymethods]
impl HotPool {
    fn __repr__(&self) -> String {
        let is_on_host = matches!(self.pool, Pool::Host(_));
        format!("forerun.HotPool(device=\"{}\")", device_name(is_on_host))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a pool is memory of this process and cannot be pickled",
        ))
    }

    #[new]
    #[pyo3(signature = (
        host, rows, *, slots, requests=1, positions=None, count=None, layers_per_table=1,
        eviction="lru", host_layout="layer_first", host_rows=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "named, in Python")]
    fn new(
        py: Python<'_>,
        host: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        slots: u32,
        requests: u32,
        positions: Option<u32>,
        count: Option<u32>,
        layers_per_table: u32,
        eviction: &str,
        host_layout: &str,
        host_rows: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<HotPool> {
        let shape = Shape {
            slots,
            requests,
            positions,
            count,
            layers_per_table,
            eviction,
            host_layout,
        };
        let host_shape = array_extents(host, "host")?;
        let arrays = Arrays {
            host: host.clone().unbind(),
            rows: rows.clone().unbind(),
            host_rows: host_rows.map(|rows| rows.clone().unbind()),
        };
        let listed = match host_rows {
            None => None,
            Some(listed) => Some(listed.getattr("shape")?.extract::<Vec<usize>>()?),
        };
        if let Some(listed) = &listed
            && listed.len() != 2
        {
            return Err(invalid(
                "`host_rows` must have two dimensions: requests and positions",
            ));
        }
        if is_on_cuda(rows, "rows")? {
            let stream = stream_of(None, rows)?;
            let (device, shape_of_rows, bytes) = shape_of(rows, "rows", stream)?;
            let row_shape = extents(&shape_of_rows, bytes)?;
            let options = shape.options(&host_shape, &row_shape, listed.as_deref())?;
            let pool = Pool::Device(DevicePool::new(py, device, options)?);
            return Ok(HotPool { arrays, pool });
        }
        let row_shape = array_extents(rows, "rows")?;
        let options = shape.options(&host_shape, &row_shape, listed.as_deref())?;
        let pool = py.detach(|| engine::HotPool::new(options));
        let pool = Pool::Host(Mutex::new(pool.map_err(hot_pool_exception)?));
        Ok(HotPool { arrays, pool })
    }

    /// Finds the row of each position, fetches those that are in no slot, and marks all as used.
    /// Returns int32 rows in the shape of `positions`, in `out` if it is given; -1 for a position
    /// of -1, and for one without a host row.
    ///
    /// `positions` is int32: of one request, or a row for each of `requests` (int32; by default 0,
    /// 1, ...). On a GPU all are tensors there, `batch` (int32) may hold the number of requests,
    /// and the call only puts a launch on `stream` or the current stream; two launches of a pool
    /// must not run at the same time. `plan` records what is fetched.
    #[pyo3(signature = (
        layer, positions, requests=None, *, batch=None, out=None, plan=None, stream=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "named, in Python")]
    fn resolve<'py>(
        &self,
        py: Python<'py>,
        layer: u32,
        positions: &Bound<'py, PyAny>,
        requests: Option<&Bound<'py, PyAny>>,
        batch: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        plan: Option<&HotPlan>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match &self.pool {
            Pool::Device(pool) => {
                let Some(out) = out else {
                    return Err(invalid("on a GPU, `out` is needed: a tensor of int32"));
                };
                let plan = match plan.map(|plan| &plan.0) {
                    None => None,
                    Some(Plan::Device(plan)) => Some(plan),
                    Some(Plan::Host(_)) => return Err(other_plan()),
                };
                count_change(out)?;
                pool.resolve(
                    py,
                    &self.arrays,
                    layer,
                    positions,
                    requests,
                    batch,
                    out,
                    plan,
                    stream,
                )?;
                Ok(out.clone())
            }
            Pool::Host(pool) => {
                expect_no_stream(stream)?;
                if batch.is_some() {
                    return Err(invalid(
                        "`batch` is only for a GPU: pass the positions of as many requests",
                    ));
                }
                let plan = match plan.map(|plan| &plan.0) {
                    None => None,
                    Some(Plan::Host(plan)) => Some(plan),
                    Some(Plan::Device(_)) => return Err(other_plan()),
                };
                self.resolve_on_host(py, pool, layer, positions, requests, out, plan)
            }
        }
    }

    /// Fetches the rows of a plan in layers `layers[0]` to `layers[1] - 1`, which share the
    /// positions of the layer that was resolved.
    #[pyo3(signature = (plan, layers, *, batch=None, stream=None))]
    fn replay(
        &self,
        py: Python<'_>,
        plan: &HotPlan,
        layers: (u32, u32),
        batch: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let layers = layers.0..layers.1;
        match (&self.pool, &plan.0) {
            (Pool::Device(pool), Plan::Device(plan)) => {
                count_change(self.arrays.rows.bind(py))?;
                pool.replay(py, &self.arrays, plan, layers, batch, stream)
            }
            (Pool::Host(pool), Plan::Host(plan)) => {
                expect_no_stream(stream)?;
                let host = readable_rows(self.arrays.host.bind(py), "host")?;
                let mut rows = writable_rows(self.arrays.rows.bind(py), "rows")?;
                let (host, rows) = (host.as_slice()?, rows.as_slice_mut()?);
                let replayed = py.detach(|| {
                    let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
                    let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
                    pool.replay(&mut plan, layers, host, rows)
                });
                replayed.map_err(hot_pool_exception)
            }
            _ => Err(other_plan()),
        }
    }

    /// Makes memory for a plan, which each `resolve` overwrites.
    fn new_plan(&self, py: Python<'_>) -> PyResult<HotPlan> {
        let plan = match &self.pool {
            Pool::Device(pool) => pool.new_plan(py).map(Plan::Device),
            Pool::Host(pool) => {
                let pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
                pool.new_plan().map(|plan| Plan::Host(Mutex::new(plan)))
            }
        };
        Ok(HotPlan(plan.map_err(hot_pool_exception)?))
    }

    /// Empties the tables of requests (int32) in all layers, for other requests.
    #[pyo3(signature = (requests, *, stream=None))]
    fn clear(
        &self,
        py: Python<'_>,
        requests: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        match &self.pool {
            Pool::Device(pool) => pool.clear(py, &self.arrays, requests, stream),
            Pool::Host(pool) => {
                expect_no_stream(stream)?;
                let requests = ReadIntegers::<i32>::new(requests, "requests", "int32")?;
                let requests = requests.as_slice()?;
                let cleared = py.detach(|| {
                    let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
                    pool.clear(requests)
                });
                cleared.map_err(hot_pool_exception)
            }
        }
    }

    /// What has been counted. On a GPU, waits for the stream.
    #[pyo3(signature = (*, stream=None))]
    fn counts(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<HotPoolCounts> {
        let counts = match &self.pool {
            Pool::Device(pool) => pool.counts(py, &self.arrays, stream)?,
            Pool::Host(pool) => {
                expect_no_stream(stream)?;
                pool.lock().unwrap_or_else(PoisonError::into_inner).counts()
            }
        };
        Ok(HotPoolCounts {
            hits: counts.hits,
            misses: counts.misses,
            absent: counts.absent,
        })
    }
}

impl HotPool {
    #[expect(clippy::too_many_arguments, reason = "those of `resolve`")]
    fn resolve_on_host<'py>(
        &self,
        py: Python<'py>,
        pool: &Mutex<engine::HotPool>,
        layer: u32,
        positions: &Bound<'py, PyAny>,
        requests: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        plan: Option<&Mutex<engine::HotPlan>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let positions = ReadIntegers::<i32>::new(positions, "positions", "int32")?;
        let shape: Vec<u64> = positions
            .shape()
            .iter()
            .map(|&extent| extent as u64)
            .collect();
        let (batch, _) = batch_of(&shape)?;
        let out = match out {
            Some(out) => out.clone(),
            None => zeros(py, numpy::dtype::<i32>(py), positions.shape())?.into_any(),
        };
        let answers = typed::<i32>(&out, "out", "int32", Access::Write)?;
        let _borrow = borrow(&answers, Access::Write, "out")?;
        count_change(&out)?;
        let answers: PyResult<PyReadwriteArrayDyn<'_, i32>> = answers
            .try_readwrite()
            .map_err(|error| refused("out", "written", error));
        let mut answers = answers?;
        let given = match requests {
            None => None,
            Some(given) => Some(ReadIntegers::<i32>::new(given, "requests", "int32")?),
        };
        let (numbered, requests): (Vec<i32>, &[i32]);
        match &given {
            Some(given) => requests = given.as_slice()?,
            None => {
                numbered = (0..batch.min(i32::MAX as u64) as i32).collect();
                requests = &numbered;
            }
        }
        if requests.len() as u64 != batch {
            return Err(invalid(format!(
                "`requests` names {}, but `positions` has {batch} rows",
                requests.len()
            )));
        }
        let host_rows = match &self.arrays.host_rows {
            None => None,
            Some(rows) => Some(ReadIntegers::<i64>::new(
                rows.bind(py),
                "host_rows",
                "int64",
            )?),
        };
        let host = readable_rows(self.arrays.host.bind(py), "host")?;
        let mut rows = writable_rows(self.arrays.rows.bind(py), "rows")?;
        let mut call = HotPoolBatch::new(layer, requests, positions.as_slice()?);
        if let Some(host_rows) = &host_rows {
            call = call.host_rows(host_rows.as_slice()?);
        }
        let (host, rows) = (host.as_slice()?, rows.as_slice_mut()?);
        let answers = answers.as_slice_mut()?;
        let resolve = || {
            let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
            match plan {
                None => pool.resolve(&call, host, rows, answers),
                Some(plan) => {
                    let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
                    pool.resolve_and_record(&call, host, rows, answers, &mut plan)
                }
            }
        };
        py.detach(resolve).map_err(hot_pool_exception)?;
        Ok(out)
    }
}

fn other_plan() -> PyErr {
    invalid("`plan` was made by a pool in another place: use this pool's `new_plan`")
}

fn expect_no_stream(stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match stream {
        None => Ok(()),
        Some(_) => Err(invalid(
            "`stream` is only for rows on a GPU, but `rows` is in CPU memory",
        )),
    }
}
