//! The hot pool on a device: its state is in device memory, and its calls are commands for streams.
//!
//! ```text
//!   DeviceHotPool ── resolve, replay, clear ──> HotPoolCommand ──> a stream, or a graph
//!     state, counters                             one launch: it neither allocates nor waits
//!     a plan for calls that record none
//! ```

use super::call::{Call, Places, Span, replay_params, resolve_params};
use super::error::HotPoolError;
use super::options::{HotPoolOptions, PlanLayout, shared_bytes};
use super::params::{COUNTERS, HotPoolParams, POLICY_LRU};
use super::pool::HotPoolCounts;
use crate::driver::{Command, DeviceBuffer, HostMemory, Kernel, Launch, Stream, sealed};
use crate::gather::{IN_FLIGHT_BYTES, IndexType};
use crate::{DeviceSlice, Gpu, GpuError};
use std::marker::PhantomData;
use std::ops::Range;

/// Threads of a block, as in `kernels/hot_pool.list`.
const RESOLVE_THREADS: u32 = 512;
const REPLAY_THREADS: u32 = 256;
const CLEAR_THREADS: u32 = 256;
/// Rows that a warp copies at the same time, as in `kernels/hot_pool/fetch.cuh`.
const ROWS_OF_WARP: u64 = 2;
/// A request's blocks beyond this fetch no faster: the others wait while one of them searches.
const TEAM_MAX: u64 = 8;
/// Blocks of a replay. Few, because it runs beside other kernels.
const REPLAY_BLOCKS: u32 = 8;
/// Shared memory of a block besides the search: what its threads share, and what CUDA reserves.
const OWN_SHARED_BYTES: u32 = 2048;

/// A batch of requests in device memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceHotPoolBatch<'a> {
    /// The layer.
    pub layer: u32,
    /// Requests, or their maximum if `batch_at` is given.
    pub batch: u32,
    /// Positions of a request.
    pub count: u32,
    /// i32: positions of each request, one request after the other; -1 for none.
    pub positions: DeviceSlice<'a>,
    /// The table of each request; by default request *b* has table *b*. No table may be named
    /// twice.
    pub requests: Option<(DeviceSlice<'a>, IndexType)>,
    /// i32: the number of requests, read when the launch runs.
    pub batch_at: Option<DeviceSlice<'a>>,
    /// i64: the host row of each position of each table; by default a position is its host row.
    pub host_rows: Option<DeviceSlice<'a>>,
}

impl<'a> DeviceHotPoolBatch<'a> {
    /// `count` positions for each of `batch` requests.
    pub fn new(
        layer: u32,
        (batch, count): (u32, u32),
        positions: DeviceSlice<'a>,
    ) -> DeviceHotPoolBatch<'a> {
        DeviceHotPoolBatch {
            layer,
            batch,
            count,
            positions,
            requests: None,
            batch_at: None,
            host_rows: None,
        }
    }
}

forerun_core::setters! {
    DeviceHotPoolBatch<'a> {} into {
        requests: Option<(DeviceSlice<'a>, IndexType)>,
        batch_at: Option<DeviceSlice<'a>>,
        host_rows: Option<DeviceSlice<'a>>,
    }
}

/// The rows that a launch fetches, in device memory, to be fetched in other layers too.
#[derive(Debug)]
pub struct DeviceHotPlan {
    layout: PlanLayout,
    buffer: DeviceBuffer,
}

/// Tables of hot rows in device memory.
///
/// ```no_run
/// use forerun_gpu::hot_pool::{DeviceHotPool, DeviceHotPoolBatch, HotPoolError, HotPoolOptions};
/// use forerun_gpu::{DeviceBuffer, DeviceSlice, Gpu, Graph, PinnedBuffer, Stream};
///
/// let gpu = Gpu::open(0)?;
/// let pool = DeviceHotPool::new(&gpu, HotPoolOptions::new(656, 4096, 100_000).requests(8))?;
/// let host = PinnedBuffer::new(&gpu, 656 * 100_000)?;
/// let rows = DeviceBuffer::new(&gpu, 656 * 4096 * 8)?;
/// let (positions, out) = (DeviceBuffer::new(&gpu, 8 << 13)?, DeviceBuffer::new(&gpu, 8 << 13)?);
/// let batch = DeviceHotPoolBatch::new(0, (8, 2048), DeviceSlice::from(&positions));
/// let step = pool.resolve(&batch, &host, &(&rows).into(), &(&out).into(), None)?;
/// let stream = Stream::new(&gpu)?;
/// let graph = Graph::capture(&stream, &[&step])?; // each replay reads the positions anew
/// gpu.scope(|scope| scope.enqueue(&stream, &graph))?;
/// # Ok::<(), HotPoolError>(())
/// ```
#[derive(Debug)]
pub struct DeviceHotPool {
    gpu: Gpu,
    options: HotPoolOptions,
    state: DeviceBuffer,
    counters: DeviceBuffer,
    plan: DeviceHotPlan,
}

impl DeviceHotPool {
    /// Allocates the tables, all of them empty, with room for a call of all requests.
    ///
    /// # Errors
    /// A [`HotPoolError`]: the options contradict each other or need more shared memory than a
    /// block has, or the device's error.
    pub fn new(gpu: &Gpu, options: HotPoolOptions) -> Result<DeviceHotPool, HotPoolError> {
        let layout = PlanLayout {
            batch: options.requests,
            count: options.count,
        };
        let stream = Stream::new(gpu)?;
        let pool = DeviceHotPool {
            gpu: gpu.clone(),
            state: allocated(gpu, options.state_bytes()?)?,
            counters: allocated(gpu, (COUNTERS * 8) as u64)?,
            plan: new_plan(gpu, layout, &stream)?,
            options,
        };
        expect_shared(gpu, &pool.options.place(0, 0)?, pool.options.count)?;
        pool.counters.fill_on(&stream, 0)?;
        let clear = pool.clear_tables(None, None)?;
        gpu.scope(|scope| scope.enqueue(&stream, &clear))?;
        drop(clear);
        Ok(pool)
    }

    /// The shape.
    pub fn options(&self) -> &HotPoolOptions {
        &self.options
    }

    /// Memory for a plan.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new_plan(&self) -> Result<DeviceHotPlan, HotPoolError> {
        new_plan(&self.gpu, self.plan.layout, &Stream::new(&self.gpu)?)
    }

    /// What has been counted since the pool was made, after the work on a stream. Waits for it.
    ///
    /// # Errors
    /// The device's error.
    pub fn counts(&self, stream: &Stream) -> Result<HotPoolCounts, HotPoolError> {
        stream.expect(&self.gpu, "the hot pool")?;
        let mut bytes = [0; COUNTERS * 8];
        // SAFETY: the buffer has as many bytes, and is alive until this returns.
        unsafe { crate::driver::copy_from_device(stream, self.counters.address(), &mut bytes) }?;
        let mut counters = [0; COUNTERS];
        for (counter, bytes) in counters.iter_mut().zip(bytes.chunks_exact(8)) {
            *counter = bytes
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        }
        Ok(HotPoolCounts::of(counters))
    }

    /// Prepares the launch that finds the row of each position, fetches those that are in no slot,
    /// and marks all as used. The answers are rows of `device`, or -1. With a plan, it records what
    /// it fetches. Launches that use one table or one plan must not run at the same time: their
    /// blocks could wait for each other for ever. Calls without a plan share one of the pool's.
    ///
    /// # Errors
    /// A [`HotPoolError`].
    pub fn resolve<'a>(
        &'a self,
        batch: &DeviceHotPoolBatch<'a>,
        host: &'a dyn HostMemory,
        device: &DeviceSlice<'a>,
        out: &DeviceSlice<'a>,
        plan: Option<&'a DeviceHotPlan>,
    ) -> Result<HotPoolCommand<'a>, HotPoolError> {
        let slices = [
            Some(&batch.positions),
            Some(device),
            Some(out),
            batch.batch_at.as_ref(),
        ];
        let lists = [
            batch.requests.as_ref().map(|(slice, _)| slice),
            batch.host_rows.as_ref(),
        ];
        self.expect_here(slices.into_iter().chain(lists).flatten())?;
        let plan = plan.unwrap_or(&self.plan);
        self.gpu.expect(plan.buffer.gpu(), "the plan")?;
        let call = Call {
            layer: batch.layer,
            batch: batch.batch,
            count: batch.count,
            positions: span(&batch.positions),
            rows_out: span(out),
            requests: batch
                .requests
                .as_ref()
                .map(|(slice, integer)| (span(slice), *integer)),
            batch_at: batch.batch_at.as_ref().map(span),
            host_rows: batch.host_rows.as_ref().map(span),
            host: host_span(host),
            device: span(device),
        };
        let places = Places {
            state: self.state.address(),
            plan: plan.layout,
            plan_at: plan.buffer.address(),
            counters: self.counters.address(),
        };
        let mut params = resolve_params(&self.options, &places, &call)?;
        params.team = team(&self.gpu, &params);
        resolve_command(&self.gpu, params)
    }

    /// Prepares the launch that fetches the rows of a plan in layers that share the positions of
    /// the layer that recorded it, for the first `batch` requests, or for as many as `batch_at`
    /// says.
    ///
    /// # Errors
    /// A [`HotPoolError`].
    pub fn replay<'a>(
        &'a self,
        plan: &'a DeviceHotPlan,
        layers: Range<u32>,
        (batch, batch_at): (u32, Option<&DeviceSlice<'a>>),
        host: &'a dyn HostMemory,
        device: &DeviceSlice<'a>,
    ) -> Result<HotPoolCommand<'a>, HotPoolError> {
        self.expect_here([Some(device), batch_at].into_iter().flatten())?;
        self.gpu.expect(plan.buffer.gpu(), "the plan")?;
        let rows = [host_span(host), span(device)];
        let place = (plan.layout, plan.buffer.address());
        let batch = (batch, batch_at.map(span));
        let params = replay_params(&self.options, place, layers, batch, rows)?;
        replay_command(&self.gpu, params)
    }

    /// Prepares the launch that empties the tables of these requests in all layers, for other
    /// requests.
    ///
    /// # Errors
    /// A [`HotPoolError`].
    pub fn clear<'a>(
        &'a self,
        batch: u32,
        requests: &DeviceSlice<'a>,
        integer: IndexType,
    ) -> Result<HotPoolCommand<'a>, HotPoolError> {
        self.expect_here([requests].into_iter())?;
        self.clear_tables(Some((batch, span(requests))), Some(integer))
    }

    fn clear_tables(
        &self,
        requests: Option<(u32, Span)>,
        integer: Option<IndexType>,
    ) -> Result<HotPoolCommand<'_>, HotPoolError> {
        let mut params = self.options.place(self.state.address(), 0)?;
        params.layers = self.options.table_layers();
        params.batch = self.options.requests;
        if let (Some((batch, requests)), Some(integer)) = (requests, integer) {
            params.batch = batch;
            params.requests = requests.expect("requests", batch.into(), integer.bytes())?;
            params.request_bytes = integer.bytes() as u32;
        }
        let blocks = u64::from(params.layers) * u64::from(params.batch);
        let launch = Launch {
            blocks: grid(blocks)?,
            threads: CLEAR_THREADS,
            shared_bytes: 0,
        };
        HotPoolCommand::new(&self.gpu, "hot_pool_clear", launch, params)
    }

    fn expect_here<'s, 'a: 's>(
        &self,
        slices: impl Iterator<Item = &'s DeviceSlice<'a>>,
    ) -> Result<(), HotPoolError> {
        for slice in slices {
            self.gpu.expect(slice.gpu(), "the batch's memory")?;
        }
        Ok(())
    }
}

fn span(slice: &DeviceSlice<'_>) -> Span {
    Span {
        address: slice.address(),
        bytes: slice.len() as u64,
    }
}

fn host_span(host: &dyn HostMemory) -> Span {
    Span {
        address: host.device_address(),
        bytes: host.len() as u64,
    }
}

fn allocated(gpu: &Gpu, bytes: u64) -> Result<DeviceBuffer, HotPoolError> {
    let len = usize::try_from(bytes).map_err(|_| HotPoolError::OutOfMemory { bytes })?;
    Ok(DeviceBuffer::new(gpu, len)?)
}

fn new_plan(gpu: &Gpu, layout: PlanLayout, stream: &Stream) -> Result<DeviceHotPlan, HotPoolError> {
    let buffer = allocated(gpu, layout.bytes()?)?;
    buffer.fill_on(stream, 0)?; // teams begin with zeros
    Ok(DeviceHotPlan { layout, buffer })
}

/// Blocks of a request: as many as keep the link busy while few requests are resolved.
fn team(gpu: &Gpu, params: &HotPoolParams) -> u32 {
    let warps = u64::from(RESOLVE_THREADS / 32);
    let of_block = warps * ROWS_OF_WARP * params.row_bytes.clamp(1, 1024);
    let batch = u64::from(params.batch.max(1));
    let wanted = IN_FLIGHT_BYTES.div_ceil(of_block * batch);
    let room = u64::from(gpu.info().multiprocessors) / batch;
    wanted.min(room).clamp(1, TEAM_MAX) as u32
}

fn grid(blocks: u64) -> Result<u32, HotPoolError> {
    let max = i32::MAX as u64;
    u32::try_from(blocks)
        .ok()
        .filter(|&blocks| u64::from(blocks) <= max)
        .ok_or(HotPoolError::Beyond {
            what: "blocks of a launch",
            given: blocks,
            max,
        })
}

/// Checks that a search of `count` positions fits a block's shared memory, and returns its size.
fn expect_shared(gpu: &Gpu, params: &HotPoolParams, count: u32) -> Result<u32, HotPoolError> {
    let (_, needed) = shared_bytes(params.policy, count, params.slots);
    let max = {
        let _current = gpu.bind()?;
        gpu.shared_bytes_max()?.saturating_sub(OWN_SHARED_BYTES)
    };
    if needed <= max {
        return Ok(needed);
    }
    Err(HotPoolError::SharedMemory {
        count,
        slots: params.slots,
        needed,
        max,
    })
}

/// The launch that resolves a batch.
pub(super) fn resolve_command<'a>(
    gpu: &Gpu,
    params: HotPoolParams,
) -> Result<HotPoolCommand<'a>, HotPoolError> {
    let name = match params.policy {
        POLICY_LRU => "hot_pool_lru",
        _ => "hot_pool_clock",
    };
    let launch = Launch {
        blocks: grid(u64::from(params.batch) * u64::from(params.team))?,
        threads: RESOLVE_THREADS,
        shared_bytes: expect_shared(gpu, &params, params.count)?,
    };
    HotPoolCommand::new(gpu, name, launch, params)
}

/// The launch that replays a plan.
pub(super) fn replay_command<'a>(
    gpu: &Gpu,
    params: HotPoolParams,
) -> Result<HotPoolCommand<'a>, HotPoolError> {
    let launch = Launch {
        blocks: REPLAY_BLOCKS.min(gpu.info().multiprocessors),
        threads: REPLAY_THREADS,
        shared_bytes: 0,
    };
    HotPoolCommand::new(gpu, "hot_pool_replay", launch, params)
}

/// A launch of a hot pool: a [`Command`].
#[derive(Debug)]
pub struct HotPoolCommand<'a> {
    gpu: Gpu,
    /// None if there is nothing to do.
    kernel: Option<Kernel>,
    launch: Launch,
    params: HotPoolParams,
    _memory: PhantomData<&'a ()>,
}

impl<'a> HotPoolCommand<'a> {
    fn new(
        gpu: &Gpu,
        name: &'static str,
        launch: Launch,
        params: HotPoolParams,
    ) -> Result<HotPoolCommand<'a>, HotPoolError> {
        let kernel = match params.batch {
            0 => None,
            _ => Some(gpu.kernel(name)?),
        };
        if let Some(kernel) = kernel.filter(|_| launch.shared_bytes > 48 << 10) {
            let _current = gpu.bind()?;
            kernel.allow_shared(gpu.shared_bytes_max()?)?;
        }
        Ok(HotPoolCommand {
            gpu: gpu.clone(),
            kernel,
            launch,
            params,
            _memory: PhantomData,
        })
    }
}

impl sealed::Sealed for HotPoolCommand<'_> {}

impl Command for HotPoolCommand<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the hot pool")?;
        let Some(kernel) = self.kernel else {
            return Ok(());
        };
        // SAFETY: the kernels of hot_pool.list take a HotPoolParams, whose layout both sides
        // assert. `call.rs` has checked the length of everything that it names, and the kernels
        // access nothing else, whatever positions and tables hold. The caller guarantees that the
        // memory exists.
        unsafe { kernel.launch(stream, self.launch, &self.params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_list_is_launched_with_its_threads() {
        let launched = [
            ("hot_pool_lru", RESOLVE_THREADS),
            ("hot_pool_clock", RESOLVE_THREADS),
            ("hot_pool_replay", REPLAY_THREADS),
            ("hot_pool_clear", CLEAR_THREADS),
        ];
        let lines = include_str!("../../kernels/hot_pool.list").lines();
        let listed: Vec<(&str, u32)> = lines
            .filter_map(|line| line.strip_prefix("KERNEL("))
            .map(|line| {
                let fields: Vec<&str> = line.trim_end_matches(')').split(", ").collect();
                (fields[0], fields[2].parse().unwrap())
            })
            .collect();
        assert_eq!(listed, launched);
    }
}
