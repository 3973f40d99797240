//! What a hot pool holds, and how its state is laid out in memory.
//!
//! ```text
//!   state   | keys i32 | order i16 |                            LRU      each section is aligned to 256 bytes
//!           | keys i32 | map u32 | used u32 | clocks 2 x u32 |  CLOCK    and has all tables of all layers
//!
//!   plan    | sources i64 | destinations i32 | counts i32 | teams 16 bytes |
//! ```

use super::error::HotPoolError;
use super::params::{HotPoolParams, POLICY_CLOCK, POLICY_LRU, TEAM_BYTES};
use super::twin::hash_bits;
use crate::gather::{Layers, RowLayout};
use crate::gather_error::Side;

/// Slots of a table that LRU orders: their numbers are i16.
pub const LRU_SLOTS_MAX: u32 = 1 << 15;
/// Slots and positions of a table that CLOCK evicts from.
const NUMBERS_MAX: u32 = i32::MAX as u32;
/// The error for sizes that no memory has.
pub(super) const TOO_LARGE: HotPoolError = HotPoolError::OutOfMemory { bytes: u64::MAX };
/// Sections begin on a line, whatever precedes them.
const SECTION_BYTES: u64 = 256;

/// Which slot gives way to a row that is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// The least recently used one, exactly. A launch looks at every slot, so there are at most
    /// [`LRU_SLOTS_MAX`]. For a table per layer and request.
    #[default]
    Lru,
    /// The next one that was not used since the clock's hand last passed. A launch looks only at
    /// the slots that the hand passes, and the table has an entry for each position. For one table
    /// for all requests.
    Clock,
}

/// The shape of a hot pool.
///
/// ```
/// use forerun_gpu::gather::{Layers, RowLayout};
/// use forerun_gpu::hot_pool::HotPoolOptions;
///
/// // 61 layers of rows of 656 bytes: 100,000 on the host, layer after layer, and 4,096 hot rows
/// // for each of 8 requests of up to 32,768 tokens.
/// let layer = |rows: u64| Layers::Step { bytes: rows * 656 };
/// let options = HotPoolOptions::new(656, 4096, 32_768)
///     .requests(8)
///     .layers(61)
///     .host(RowLayout::dense(100_000, 656).layers(layer(100_000)))
///     .device(RowLayout::dense(8 * 4096, 656).layers(layer(8 * 4096)));
/// assert_eq!(options.state_bytes()?, 61 * 8 * 4096 * (4 + 2));
/// # Ok::<(), forerun_gpu::hot_pool::HotPoolError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotPoolOptions {
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Slots of a table: the rows that it holds.
    pub slots: u32,
    /// Positions of a request, or of all requests if they share a table: the first that is out of
    /// range.
    pub positions: u32,
    /// Positions that one call resolves for a request; at most `slots`. Default: 2,048, or `slots`
    /// if that is less.
    pub count: u32,
    /// Tables of a layer: requests with a table of their own. Default: 1.
    pub requests: u32,
    /// Layers of rows. Default: 1.
    pub layers: u32,
    /// Neighbouring layers that share one table because they read the same positions. The first of
    /// them resolves, the others replay its plan. Default: 1.
    pub layers_per_table: u32,
    /// Which slot gives way. Default: LRU.
    pub eviction: Eviction,
    /// The host's rows. Default: one for each position, in one layer.
    pub host: RowLayout,
    /// The device's rows: row `request * slots + slot` is a slot. Default: `requests * slots` dense
    /// rows, in one layer.
    pub device: RowLayout,
}

forerun_core::setters! {
    HotPoolOptions {
        count: u32,
        layers: u32,
        layers_per_table: u32,
        eviction: Eviction,
        host: RowLayout,
        device: RowLayout,
    }
}

impl HotPoolOptions {
    /// One table of `slots` rows for positions below `positions`.
    pub fn new(row_bytes: u64, slots: u32, positions: u32) -> HotPoolOptions {
        HotPoolOptions {
            row_bytes,
            slots,
            positions,
            count: slots.min(2048),
            requests: 1,
            layers: 1,
            layers_per_table: 1,
            eviction: Eviction::Lru,
            host: RowLayout::dense(positions.into(), row_bytes),
            device: RowLayout::dense(slots.into(), row_bytes),
        }
    }

    /// Sets [`requests`](HotPoolOptions::requests), and dense device rows for them.
    #[must_use]
    pub fn requests(mut self, requests: u32) -> HotPoolOptions {
        self.requests = requests;
        self.device.rows = u64::from(requests) * u64::from(self.slots);
        self
    }

    /// Bytes of the pool's own state, besides the rows.
    ///
    /// # Errors
    /// Those of [`HotPool::new`](super::HotPool::new).
    pub fn state_bytes(&self) -> Result<u64, HotPoolError> {
        self.check()?;
        Ok(self.state_sections()?.1)
    }

    /// The layers that have a table.
    pub(super) fn table_layers(&self) -> u32 {
        self.layers.div_ceil(self.layers_per_table.max(1))
    }

    pub(super) fn check(&self) -> Result<(), HotPoolError> {
        let numbers = [
            ("row_bytes", self.row_bytes),
            ("slots", self.slots.into()),
            ("positions", self.positions.into()),
            ("count", self.count.into()),
            ("requests", self.requests.into()),
            ("layers", self.layers.into()),
            ("layers_per_table", self.layers_per_table.into()),
        ];
        if let Some(&(what, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(HotPoolError::Zero { what });
        }
        let slots_max = match self.eviction {
            Eviction::Lru => LRU_SLOTS_MAX,
            Eviction::Clock => NUMBERS_MAX,
        };
        let device_rows = u64::from(self.requests) * u64::from(self.slots);
        for (what, given, max) in [
            ("slots", self.slots.into(), u64::from(slots_max)),
            ("positions", self.positions.into(), NUMBERS_MAX.into()),
            ("requests", self.requests.into(), NUMBERS_MAX.into()),
            ("device rows", self.device.rows, 1 << 31),
            ("requests * slots", device_rows, self.device.rows),
        ] {
            if given > max {
                return Err(HotPoolError::Beyond { what, given, max });
            }
        }
        if self.count > self.slots {
            return Err(HotPoolError::TableTooSmall {
                count: self.count,
                slots: self.slots,
            });
        }
        for (side, layout) in [(Side::Host, &self.host), (Side::Device, &self.device)] {
            if layout.pages.is_some() {
                return Err(HotPoolError::Pages { side });
            }
            if layout.stride_bytes < self.row_bytes {
                return Err(HotPoolError::RowPastStride {
                    side,
                    row_bytes: self.row_bytes,
                    stride_bytes: layout.stride_bytes,
                });
            }
        }
        Ok(())
    }

    /// The offset and size of each section of the state, and the size of all, in bytes: keys, then
    /// order, or map, used and clocks.
    pub(super) fn state_sections(&self) -> Result<([[u64; 4]; 2], u64), HotPoolError> {
        let tables = u64::from(self.table_layers()) * u64::from(self.requests);
        let (slots, positions) = (u64::from(self.slots), u64::from(self.positions));
        let each = match self.eviction {
            Eviction::Lru => [slots * 4, slots * 2, 0, 0],
            Eviction::Clock => [slots * 4, positions * 4, slots * 4, 8],
        };
        let bytes = each.map(|bytes| bytes.checked_mul(tables));
        let (offsets, end) = sections(bytes)?;
        Ok(([offsets, bytes.map(Option::unwrap_or_default)], end))
    }

    /// The parameters of a layer whose state begins at this address.
    pub(super) fn place(&self, state: u64, layer: u32) -> Result<HotPoolParams, HotPoolError> {
        let ([[keys, second, used, clocks], _], _) = self.state_sections()?;
        let first = u64::from(layer) * u64::from(self.requests);
        let slots = u64::from(self.slots);
        let mut params = HotPoolParams {
            keys: state + keys + first * slots * 4,
            keys_step: slots,
            row_bytes: self.row_bytes,
            slots: self.slots,
            position_limit: self.positions,
            tables: self.requests,
            host_row_limit: self.host.rows,
            device_row_limit: self.device.rows,
            host_stride_bytes: self.host.stride_bytes,
            device_stride_bytes: self.device.stride_bytes,
            layers: 1,
            team: 1,
            request_bytes: 4,
            length_bytes: 4,
            ..HotPoolParams::default()
        };
        match self.eviction {
            Eviction::Lru => {
                params.policy = POLICY_LRU;
                params.order = state + second + first * slots * 2;
                params.order_step = slots;
            }
            Eviction::Clock => {
                params.policy = POLICY_CLOCK;
                params.map = state + second + first * u64::from(self.positions) * 4;
                params.map_step = self.positions.into();
                params.used = state + used + first * slots * 4;
                params.clocks = state + clocks + first * 8;
            }
        }
        Ok(params)
    }

    /// The layer whose table a layer uses. It must be the one that resolves.
    pub(super) fn table_layer(&self, layer: u32) -> Result<u32, HotPoolError> {
        let anchor = layer / self.layers_per_table * self.layers_per_table;
        if layer >= self.layers {
            let layers = self.layers;
            return Err(HotPoolError::NoSuchLayer { layer, layers });
        }
        if layer != anchor {
            return Err(HotPoolError::SharedTable { layer, anchor });
        }
        Ok(layer / self.layers_per_table)
    }
}

/// The offset of a layer's row 0 in the memory of its side.
pub(super) fn layer_offset(layout: &RowLayout, layer: u32) -> Result<u64, HotPoolError> {
    let offset = match &layout.layers {
        Layers::Step { bytes } => u64::from(layer).checked_mul(*bytes).ok_or(TOO_LARGE)?,
        Layers::Table { offsets_bytes } => {
            let layers = offsets_bytes.len() as u32;
            let missing = HotPoolError::NoSuchLayer { layer, layers };
            *offsets_bytes.get(layer as usize).ok_or(missing)?
        }
    };
    layout.offset_bytes.checked_add(offset).ok_or(TOO_LARGE)
}

/// Where sections of these sizes begin, and where the last one ends.
pub(super) fn sections<const N: usize>(
    bytes: [Option<u64>; N],
) -> Result<([u64; N], u64), HotPoolError> {
    let mut offsets = [0; N];
    let mut end = 0u64;
    for (offset, bytes) in offsets.iter_mut().zip(bytes) {
        *offset = end;
        let next = bytes.and_then(|bytes| end.checked_add(bytes)?.checked_add(SECTION_BYTES));
        let next = next.filter(|&next| next < 1 << 62);
        end = (next.ok_or(TOO_LARGE)? - 1) / SECTION_BYTES * SECTION_BYTES;
    }
    Ok((offsets, end))
}

/// The memory of a plan: room for `batch` requests with `count` rows each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlanLayout {
    pub(super) batch: u32,
    pub(super) count: u32,
}

impl PlanLayout {
    fn sections(&self) -> Result<([u64; 4], u64), HotPoolError> {
        let batch = u64::from(self.batch);
        let rows = batch * u64::from(self.count);
        sections([
            rows.checked_mul(8),
            rows.checked_mul(4),
            batch.checked_mul(4),
            batch.checked_mul(TEAM_BYTES),
        ])
    }

    pub(super) fn bytes(&self) -> Result<u64, HotPoolError> {
        Ok(self.sections()?.1)
    }

    /// Names the plan's memory, which begins at this address, in the parameters of a call.
    pub(super) fn place(&self, at: u64, params: &mut HotPoolParams) -> Result<(), HotPoolError> {
        if params.batch > self.batch || params.count > self.count {
            return Err(HotPoolError::PlanTooSmall {
                plan_batch: self.batch,
                plan_count: self.count,
                batch: params.batch,
                count: params.count,
            });
        }
        let ([sources, destinations, counts, teams], _) = self.sections()?;
        params.plan_sources = at + sources;
        params.plan_destinations = at + destinations;
        params.plan_counts = at + counts;
        params.teams = at + teams;
        params.plan_step = self.count.into();
        Ok(())
    }
}

/// Dynamic shared memory of a block that resolves, with the bits of its hash table.
pub(super) fn shared_bytes(policy: u32, count: u32, slots: u32) -> (u32, u32) {
    let bits = hash_bits(count);
    let bytes = (8u64 << bits) + u64::from(slots) * 2;
    match policy {
        POLICY_LRU => (bits, u32::try_from(bytes).unwrap_or(u32::MAX)),
        _ => (bits, 0),
    }
}
