//! SGLang's tables of hot rows, given by address, for `forerun.hisparse`.

use forerun::gpu::gather::{IndexType, Locate as _, MemoryType};
use forerun::gpu::hot_pool::{PlannedCopy, SwapIn, Tensor};
use pyo3::prelude::*;

use crate::borrows::{Access, Borrow, Memory};
use crate::cuda::{opened, stream_of};
use crate::errors::{device_exception, gather_exception, invalid};
use crate::hot_pool_arguments::hot_pool_exception;
use crate::hot_pool_cuda::enqueue;

/// A tensor: address, rows, columns, elements from one row to the next, and bytes of an element.
type Given = (u64, u64, u64, u64, u64);

/// Bytes at an address.
type Bytes = (u64, u64);

fn tensor((address, rows, columns, step, _): Given) -> Tensor {
    Tensor {
        address,
        rows,
        columns,
        step,
    }
}

fn integers(given: Given) -> (Tensor, IndexType) {
    let integer = match given.4 {
        4 => IndexType::I32,
        _ => IndexType::I64,
    };
    (tensor(given), integer)
}

fn used(given: Given, access: Access, what: &'static str) -> Memory {
    let (address, rows, columns, step, bytes) = given;
    let elements = match rows {
        0 => 0,
        rows => (rows - 1).saturating_mul(step).saturating_add(columns),
    };
    Memory {
        start: address as usize,
        len_bytes: elements.saturating_mul(bytes) as usize,
        access,
        what,
    }
}

/// A plan, and the rows that it copies.
#[derive(FromPyObject)]
pub(crate) struct Planned {
    miss_src: Given,
    miss_dst: Given,
    miss_count: Given,
    num_real_reqs: u64,
    host_cache: Bytes,
    device_buffer: Bytes,
    item_size_bytes: u64,
}

impl Planned {
    fn copy(&self) -> PlannedCopy {
        PlannedCopy {
            miss_src: tensor(self.miss_src),
            miss_dst: tensor(self.miss_dst),
            miss_count: tensor(self.miss_count),
            num_real_reqs: self.num_real_reqs,
            host_cache: self.host_cache,
            device_buffer: self.device_buffer,
            item_size_bytes: self.item_size_bytes,
        }
    }

    fn used(&self, plan: Access) -> [Memory; 5] {
        let of = |(address, bytes): Bytes, access, what| Memory {
            start: address as usize,
            len_bytes: bytes as usize,
            access,
            what,
        };
        [
            used(self.miss_src, plan, "miss_src"),
            used(self.miss_dst, plan, "miss_dst"),
            used(self.miss_count, plan, "miss_count"),
            of(self.host_cache, Access::ReadRows, "host_cache"),
            of(self.device_buffer, Access::WriteRows, "device_buffer"),
        ]
    }
}

/// The arguments of SGLang's call.
#[derive(FromPyObject)]
pub(crate) struct Tables {
    top_k_tokens: Given,
    device_buffer_tokens: Given,
    host_cache_locs: Given,
    device_buffer_locs: Given,
    top_k_device_locs: Given,
    req_pool_indices: Given,
    seq_lens: Given,
    lru_slots: Given,
    hot_buffer_size: u64,
}

impl Tables {
    fn swap_in(&self, copy: PlannedCopy) -> SwapIn {
        SwapIn {
            top_k_tokens: tensor(self.top_k_tokens),
            device_buffer_tokens: tensor(self.device_buffer_tokens),
            host_cache_locs: tensor(self.host_cache_locs),
            device_buffer_locs: tensor(self.device_buffer_locs),
            top_k_device_locs: tensor(self.top_k_device_locs),
            req_pool_indices: integers(self.req_pool_indices),
            seq_lens: integers(self.seq_lens),
            lru_slots: tensor(self.lru_slots),
            hot_buffer_size: self.hot_buffer_size,
            copy,
        }
    }

    fn used(&self) -> [Memory; 8] {
        [
            used(self.top_k_tokens, Access::Read, "top_k_tokens"),
            used(
                self.device_buffer_tokens,
                Access::Write,
                "device_buffer_tokens",
            ),
            used(self.host_cache_locs, Access::Read, "host_cache_locs"),
            used(self.device_buffer_locs, Access::Read, "device_buffer_locs"),
            used(self.top_k_device_locs, Access::Write, "top_k_device_locs"),
            used(self.req_pool_indices, Access::Read, "req_pool_indices"),
            used(self.seq_lens, Access::Read, "seq_lens"),
            used(self.lru_slots, Access::Write, "lru_slots"),
        ]
    }
}

/// A call's place: the CPU, or a device and a stream.
fn run<const N: usize>(
    py: Python<'_>,
    mut copy: PlannedCopy,
    tables: Option<&Tables>,
    used: [Memory; N],
    device: Option<usize>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let Some(device) = device else {
        return py.detach(|| {
            let _borrow = Borrow::all(used)?;
            let done = match tables {
                // SAFETY: `forerun/hisparse.py` passes the memory of arrays that it holds, with
                // their shapes. No running call of this package uses it, as the borrow has checked.
                // A caller who changes it meanwhile races with the call, as with PyTorch's own
                // functions.
                None => unsafe { copy.run_on_cpu() },
                // SAFETY: as above.
                Some(tables) => unsafe { tables.swap_in(copy).run_on_cpu() },
            };
            done.map_err(hot_pool_exception)
        });
    };
    let stream = match stream {
        Some(stream) => stream_of(Some(stream), stream)?,
        None => return Err(invalid("a call on a GPU needs its stream")),
    };
    let gpu = py.detach(|| opened(device)).map_err(device_exception)?;
    let host = gpu.locate(copy.host_cache.0).map_err(gather_exception)?;
    if copy.host_cache.1 > 0 && host.memory != MemoryType::Pinned {
        return Err(invalid(
            "`host_cache` must be pinned memory, which the GPU can reach: use `pin_memory()`",
        ));
    }
    copy.host_cache.0 = host.device_address;
    let command = match tables {
        // SAFETY: as above; the caller keeps the tensors until the launch has run.
        None => unsafe { copy.command(&gpu) },
        // SAFETY: as above.
        Some(tables) => unsafe { tables.swap_in(copy).command(&gpu) },
    };
    let command = command.map_err(hot_pool_exception)?;
    enqueue(&gpu, stream, &command).map_err(device_exception)
}

/// Finds tokens, and fetches those that are missing. The addresses are trusted: the memory must
/// exist until the call, or its launch, has run.
#[pyfunction]
#[pyo3(signature = (tables, planned, device, stream))]
pub(crate) fn _swap_in(
    py: Python<'_>,
    tables: Tables,
    planned: Planned,
    device: Option<usize>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let [a, b, c, d, e, f, g, h] = tables.used();
    let [i, j, k, l, m] = planned.used(Access::Write);
    let used = [a, b, c, d, e, f, g, h, i, j, k, l, m];
    run(py, planned.copy(), Some(&tables), used, device, stream)
}

/// Copies the rows of a plan.
#[pyfunction]
#[pyo3(signature = (planned, device, stream))]
pub(crate) fn _copy_planned(
    py: Python<'_>,
    planned: Planned,
    device: Option<usize>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    run(
        py,
        planned.copy(),
        None,
        planned.used(Access::Read),
        device,
        stream,
    )
}
