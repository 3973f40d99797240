//! The tables of SGLang's HiSparse: its arrays and their meaning, so that this kernel can take the
//! place of its own, in a running server too.
//!
//! ```text
//!   device_buffer_tokens [requests, hot + page] i32    the token in each slot, or -1
//!   device_buffer_locs   [requests, hot + page] i32    the device row of each slot
//!   lru_slots            [requests, hot]        i16    the slots, the least recently used first
//!   host_cache_locs      [requests, context]    i64    the host row of each token
//! ```
//!
//! The contract is that of `load_cache_to_device_buffer_mla` and `copy_cache_planned_mla`
//! (`kernels/ops/kvcache/hisparse.py`, SGLang 0.5.23). Two things differ: a token that does not
//! exist, or has no host row, is answered with -1, where SGLang reads what is at such an address;
//! and a token that is asked for twice is fetched once.

use super::call::Span;
use super::cpu_launch::{CpuScratch, array, batch_of, replay_on_cpu, resolve_on_cpu, signed};
use super::device_pool::{HotPoolCommand, replay_command, resolve_command};
use super::error::HotPoolError;
use super::options::{LRU_SLOTS_MAX, shared_bytes};
use super::params::{HotPoolParams, POLICY_LRU};
use crate::Gpu;
use crate::copy_version::AccessWidth;
use crate::gather::IndexType;

/// A tensor of one or two dimensions at an address. Its rows are contiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tensor {
    /// The first element, as the side that runs the call sees it.
    pub address: u64,
    /// Rows; the elements of a tensor of one dimension.
    pub rows: u64,
    /// Elements of a row; 1 for a tensor of one dimension.
    pub columns: u64,
    /// Elements from one row to the next.
    pub step: u64,
}

impl Tensor {
    /// A tensor of one dimension.
    pub fn vector(address: u64, elements: u64) -> Tensor {
        Tensor {
            address,
            rows: elements,
            columns: 1,
            step: 1,
        }
    }

    /// Checks its shape, and that its rows do not overlap.
    fn expect(
        &self,
        what: &'static str,
        [rows, columns]: [u64; 2],
        size: u64,
    ) -> Result<u64, HotPoolError> {
        let elements = self.rows.saturating_sub(1).checked_mul(self.step);
        let elements = elements.and_then(|all| all.checked_add(self.columns));
        let bytes = elements.and_then(|all| all.checked_mul(size)).unwrap_or(0);
        let span = Span {
            address: self.address,
            bytes: if self.rows == 0 { 0 } else { bytes },
        };
        if self.columns < columns || self.rows < rows || self.step < columns {
            let needed = rows.saturating_mul(columns).saturating_mul(size);
            let bytes = self.rows.saturating_mul(self.columns.min(self.step));
            let bytes = bytes.saturating_mul(size).min(needed.saturating_sub(1));
            return Err(HotPoolError::TooShort {
                what,
                bytes,
                needed,
            });
        }
        span.expect(what, 0, size)
    }
}

/// A plan, as `miss_src`, `miss_dst` and `miss_count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedCopy {
    /// i64 `[batch, k]`: host rows.
    pub miss_src: Tensor,
    /// i32 `[batch, k]`: device rows, with the steps of `miss_src`.
    pub miss_dst: Tensor,
    /// i32 `[batch]`.
    pub miss_count: Tensor,
    /// The address of an i32, the number of requests; 0 for all.
    pub num_real_reqs: u64,
    /// The host's rows: address and size in bytes.
    pub host_cache: (u64, u64),
    /// The device's rows: address and size in bytes.
    pub device_buffer: (u64, u64),
    /// Bytes of a row; rows are dense.
    pub item_size_bytes: u64,
}

impl PlannedCopy {
    fn params(&self) -> Result<HotPoolParams, HotPoolError> {
        let row_bytes = self.item_size_bytes;
        if row_bytes == 0 {
            return Err(HotPoolError::Zero {
                what: "item_size_bytes",
            });
        }
        let (batch, count) = (self.miss_count.rows, self.miss_src.columns);
        let number = |what, given: u64, max: u32| {
            let max = u64::from(max);
            let beyond = HotPoolError::Beyond { what, given, max };
            u32::try_from(given)
                .ok()
                .filter(|&n| u64::from(n) <= max)
                .ok_or(beyond)
        };
        if self.miss_dst.step != self.miss_src.step {
            return Err(HotPoolError::Misaligned {
                what: "miss_dst.stride(0)",
                value: self.miss_dst.step,
                bytes: self.miss_src.step,
            });
        }
        let device_rows = self.device_buffer.1 / row_bytes;
        let p = HotPoolParams {
            batch: number("requests", batch, i32::MAX as u32)?,
            count: number("top_k", count, i32::MAX as u32)?,
            plan_sources: self.miss_src.expect("miss_src", [batch, count], 8)?,
            plan_destinations: self.miss_dst.expect("miss_dst", [batch, count], 4)?,
            plan_counts: self.miss_count.expect("miss_count", [batch, 1], 4)?,
            plan_step: self.miss_src.step,
            batch_at: self.num_real_reqs,
            host: self.host_cache.0,
            device: self.device_buffer.0,
            host_row_limit: self.host_cache.1 / row_bytes,
            device_row_limit: device_rows.min(1 << 31),
            host_stride_bytes: row_bytes,
            device_stride_bytes: row_bytes,
            row_bytes,
            layers: 1,
            team: 1,
            unit: AccessWidth::largest_of([row_bytes, self.host_cache.0, self.device_buffer.0])
                .bytes() as u32,
            ..HotPoolParams::default()
        };
        Ok(p)
    }

    /// Copies the rows of the plan on the CPU.
    ///
    /// # Safety
    /// All memory is in host memory, initialised and as long as it says, and nothing else uses it
    /// during the call.
    ///
    /// # Errors
    /// A [`HotPoolError`].
    pub unsafe fn run_on_cpu(&self) -> Result<(), HotPoolError> {
        // SAFETY: as the caller guarantees; the lengths were checked.
        unsafe { replay_on_cpu(&self.params()?, &mut CpuScratch::default()) }
    }

    /// Prepares the launch that copies the rows of the plan.
    ///
    /// # Safety
    /// All memory is within the device's reach and as long as it says, as long as the command
    /// exists.
    ///
    /// # Errors
    /// A [`HotPoolError`].
    pub unsafe fn command(&self, gpu: &Gpu) -> Result<HotPoolCommand<'static>, HotPoolError> {
        replay_command(gpu, self.params()?)
    }
}

/// The arguments of `load_cache_to_device_buffer_mla`, with its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapIn {
    /// i32 `[batch, k]`: tokens, -1 for none.
    pub top_k_tokens: Tensor,
    /// i32 `[requests, hot + page]`.
    pub device_buffer_tokens: Tensor,
    /// i64 `[requests, context]`.
    pub host_cache_locs: Tensor,
    /// i32 `[requests, hot + page]`, with the steps of `device_buffer_tokens`.
    pub device_buffer_locs: Tensor,
    /// i32 `[batch, k]`: the answers.
    pub top_k_device_locs: Tensor,
    /// `[batch]`: the request of each.
    pub req_pool_indices: (Tensor, IndexType),
    /// `[batch]`: the number of tokens of each.
    pub seq_lens: (Tensor, IndexType),
    /// i16 `[requests, hot]`.
    pub lru_slots: Tensor,
    /// Slots that tokens are loaded into.
    pub hot_buffer_size: u64,
    /// Where the rows are, and what is fetched.
    pub copy: PlannedCopy,
}

impl SwapIn {
    fn params(&self) -> Result<HotPoolParams, HotPoolError> {
        let slots = u32::try_from(self.hot_buffer_size).ok();
        let Some(slots) = slots.filter(|slots| (1..=LRU_SLOTS_MAX).contains(slots)) else {
            return Err(HotPoolError::Beyond {
                what: "hot_buffer_size",
                given: self.hot_buffer_size,
                max: LRU_SLOTS_MAX.into(),
            });
        };
        let copy = self.copy.params()?;
        let (batch, count) = (self.top_k_tokens.rows, self.top_k_tokens.columns);
        if count > u64::from(slots) {
            let count = count.min(u32::MAX.into()) as u32;
            return Err(HotPoolError::TableTooSmall { count, slots });
        }
        // Both plan and answers must have room for every token.
        self.copy.miss_src.expect("miss_src", [batch, count], 8)?;
        self.copy.miss_count.expect("miss_count", [batch, 1], 4)?;
        let tables = self.device_buffer_tokens.rows;
        let listed = u64::from(slots) + 1;
        if self.device_buffer_locs.step != self.device_buffer_tokens.step {
            return Err(HotPoolError::Misaligned {
                what: "device_buffer_locs.stride(0)",
                value: self.device_buffer_locs.step,
                bytes: self.device_buffer_tokens.step,
            });
        }
        if self.device_buffer_tokens.columns < listed {
            return Err(HotPoolError::Lengths);
        }
        let (requests, request) = self.req_pool_indices;
        let (lengths, length) = self.seq_lens;
        let context = self.host_cache_locs.columns.min(i32::MAX as u64);
        let p = HotPoolParams {
            positions: self
                .top_k_tokens
                .expect("top_k_tokens", [batch, count], 4)?,
            positions_step: self.top_k_tokens.step,
            rows_out: self
                .top_k_device_locs
                .expect("top_k_device_locs", [batch, count], 4)?,
            rows_out_step: self.top_k_device_locs.step,
            requests: requests.expect("req_pool_indices", [batch, 1], request.bytes())?,
            request_bytes: request.bytes() as u32,
            lengths: lengths.expect("seq_lens", [batch, 1], length.bytes())?,
            length_bytes: length.bytes() as u32,
            keys: self
                .device_buffer_tokens
                .expect("device_buffer_tokens", [tables, listed], 4)?,
            keys_step: self.device_buffer_tokens.step,
            device_rows: self.device_buffer_locs.expect(
                "device_buffer_locs",
                [tables, listed],
                4,
            )?,
            order: self
                .lru_slots
                .expect("lru_slots", [tables, slots.into()], 2)?,
            order_step: self.lru_slots.step,
            host_rows: self
                .host_cache_locs
                .expect("host_cache_locs", [tables, context], 8)?,
            host_rows_step: self.host_cache_locs.step,
            position_limit: context as u32,
            tables: tables.min(i32::MAX as u64) as u32,
            batch: batch.min(copy.batch.into()) as u32,
            count: count as u32,
            slots,
            hash_bits: shared_bytes(POLICY_LRU, count as u32, slots).0,
            policy: POLICY_LRU,
            ..copy
        };
        Ok(p)
    }

    /// Runs on the CPU.
    ///
    /// # Safety
    /// That of [`PlannedCopy::run_on_cpu`].
    ///
    /// # Errors
    /// A [`HotPoolError`].
    pub unsafe fn run_on_cpu(&self) -> Result<(), HotPoolError> {
        let p = self.params()?;
        // SAFETY: as the caller guarantees; the lengths were checked.
        unsafe { expect_orders(&p) }?;
        // SAFETY: as above.
        unsafe { resolve_on_cpu(&p, &mut CpuScratch::default()) }
    }

    /// Prepares the launch.
    ///
    /// # Safety
    /// That of [`PlannedCopy::command`].
    ///
    /// # Errors
    /// A [`HotPoolError`].
    pub unsafe fn command(&self, gpu: &Gpu) -> Result<HotPoolCommand<'static>, HotPoolError> {
        resolve_command(gpu, self.params()?)
    }
}

/// Checks that the order of each table that the call uses names each slot once.
///
/// # Safety
/// That of [`PlannedCopy::run_on_cpu`].
unsafe fn expect_orders(p: &HotPoolParams) -> Result<(), HotPoolError> {
    let slots = p.slots as usize;
    let mut is_named = vec![false; slots];
    // SAFETY: as the caller guarantees.
    for entry in 0..unsafe { batch_of(p) } {
        // SAFETY: as above.
        let table = unsafe { signed(p.requests, entry, p.request_bytes) } as u64;
        if table >= p.tables.into() {
            continue;
        }
        is_named.fill(false);
        // SAFETY: as above.
        let order: &[i16] = unsafe { array(p.order, table * p.order_step, slots) };
        let all_once = order.iter().all(|&slot| {
            let named = is_named.get_mut(usize::from(slot as u16));
            named.is_some_and(|named| !std::mem::replace(named, true))
        });
        if !all_once {
            let slots = p.slots;
            return Err(HotPoolError::BadOrder { table, slots });
        }
    }
    Ok(())
}
