//! A call by the addresses of its memory, checked against the pool's options: the kernels'
//! argument. Host and device calls pass through here, so that both refuse the same.

use super::error::HotPoolError;
use super::options::{HotPoolOptions, PlanLayout, TOO_LARGE, layer_offset, shared_bytes};
use super::params::HotPoolParams;
use crate::copy_version::AccessWidth;
use crate::gather::{IndexType, Layers, RowLayout};
use std::ops::Range;

/// Bytes at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl Span {
    pub(super) fn of<T>(slice: &[T]) -> Span {
        Span {
            address: slice.as_ptr() as u64,
            bytes: size_of_val(slice) as u64,
        }
    }

    /// Like [`Span::of`], for memory that is written through the address.
    pub(super) fn of_mut<T>(slice: &mut [T]) -> Span {
        Span {
            address: slice.as_mut_ptr() as u64,
            bytes: size_of_val(slice) as u64,
        }
    }

    /// Checks that it has this many elements of a size, and is aligned to them.
    pub(super) fn expect(
        self,
        what: &'static str,
        count: u64,
        size: u64,
    ) -> Result<u64, HotPoolError> {
        let needed = count.checked_mul(size).ok_or(TOO_LARGE)?;
        if self.bytes < needed {
            let bytes = self.bytes;
            return Err(HotPoolError::TooShort {
                what,
                bytes,
                needed,
            });
        }
        if !self.address.is_multiple_of(size) {
            return Err(HotPoolError::Misaligned {
                what,
                value: self.address,
                bytes: size,
            });
        }
        Ok(self.address)
    }
}

/// The memory of a batch that is resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) layer: u32,
    /// Requests, or their maximum.
    pub(super) batch: u32,
    /// Positions of a request.
    pub(super) count: u32,
    /// i32.
    pub(super) positions: Span,
    /// i32.
    pub(super) rows_out: Span,
    pub(super) requests: Option<(Span, IndexType)>,
    /// i32: the number of requests.
    pub(super) batch_at: Option<Span>,
    /// i64 per position of each table.
    pub(super) host_rows: Option<Span>,
    pub(super) host: Span,
    pub(super) device: Span,
}

/// The state of a pool and the plan of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) state: u64,
    pub(super) plan: PlanLayout,
    pub(super) plan_at: u64,
    pub(super) counters: u64,
}

/// The argument that resolves a batch.
pub(super) fn resolve_params(
    options: &HotPoolOptions,
    places: &Places,
    call: &Call,
) -> Result<HotPoolParams, HotPoolError> {
    let mut p = options.place(places.state, options.table_layer(call.layer)?)?;
    if call.count > options.count {
        return Err(HotPoolError::Beyond {
            what: "positions of a request",
            given: call.count.into(),
            max: options.count.into(),
        });
    }
    let positions = u64::from(call.batch) * u64::from(call.count);
    p.batch = call.batch;
    p.count = call.count;
    p.positions = call.positions.expect("positions", positions, 4)?;
    p.rows_out = call.rows_out.expect("out", positions, 4)?;
    p.positions_step = call.count.into();
    p.rows_out_step = call.count.into();
    match call.requests {
        Some((requests, integer)) => {
            p.requests = requests.expect("requests", call.batch.into(), integer.bytes())?;
            p.request_bytes = integer.bytes() as u32;
        }
        // Without numbers, request b has table b.
        None if call.batch > options.requests => {
            return Err(HotPoolError::Beyond {
                what: "requests",
                given: call.batch.into(),
                max: options.requests.into(),
            });
        }
        None => {}
    }
    if let Some(batch) = call.batch_at {
        p.batch_at = batch.expect("batch", 1, 4)?;
    }
    if let Some(rows) = call.host_rows {
        let entries = u64::from(options.requests) * u64::from(options.positions);
        p.host_rows = rows.expect("host_rows", entries, 8)?;
        p.host_rows_step = options.positions.into();
    }
    p.counters = places.counters;
    (p.hash_bits, _) = shared_bytes(p.policy, call.count, options.slots);
    place_rows(
        options,
        call.host,
        call.device,
        call.layer..call.layer + 1,
        &mut p,
    )?;
    places.plan.place(places.plan_at, &mut p)?;
    Ok(p)
}

/// The argument that replays a plan in some layers.
pub(super) fn replay_params(
    options: &HotPoolOptions,
    plan: (PlanLayout, u64),
    layers: Range<u32>,
    batch: (u32, Option<Span>),
    [host, device]: [Span; 2],
) -> Result<HotPoolParams, HotPoolError> {
    let mut p = options.place(0, 0)?;
    p.batch = batch.0;
    p.count = plan.0.count;
    if let Some(batch) = batch.1 {
        p.batch_at = batch.expect("batch", 1, 4)?;
    }
    place_rows(options, host, device, layers, &mut p)?;
    plan.0.place(plan.1, &mut p)?;
    Ok(p)
}

/// Names the rows of some layers, and chooses the unit in which they are copied.
fn place_rows(
    options: &HotPoolOptions,
    host: Span,
    device: Span,
    layers: Range<u32>,
    p: &mut HotPoolParams,
) -> Result<(), HotPoolError> {
    if layers.end > options.layers || layers.is_empty() {
        return Err(HotPoolError::NoSuchLayer {
            layer: layers.end.max(layers.start.saturating_add(1)) - 1,
            layers: options.layers,
        });
    }
    p.layers = layers.end - layers.start;
    let row_bytes = options.row_bytes;
    let address = |what, span: Span, layout: &RowLayout| {
        let first = layer_offset(layout, layers.start)?;
        let last = layer_offset(layout, layers.end - 1)?;
        let rows = layout
            .rows
            .saturating_sub(1)
            .checked_mul(layout.stride_bytes);
        let rows = rows.and_then(|bytes| bytes.checked_add(row_bytes));
        let end = rows.and_then(|bytes| bytes.checked_add(first.max(last)));
        let end = if layout.rows == 0 { Some(0) } else { end };
        span.expect(what, end.ok_or(TOO_LARGE)?, 1)?;
        Ok::<_, HotPoolError>(span.address + first)
    };
    p.host = address("host", host, &options.host)?;
    p.device = address("device", device, &options.device)?;
    let step = |layout: &RowLayout| match layout.layers {
        Layers::Step { bytes } => Ok(bytes),
        Layers::Table { .. } if p.layers == 1 => Ok(0),
        Layers::Table { .. } => Err(HotPoolError::UnevenLayers),
    };
    let (host_layer, device_layer) = (step(&options.host)?, step(&options.device)?);
    p.host_layer_bytes = host_layer;
    p.device_layer_bytes = device_layer;
    let mut divided = vec![
        row_bytes,
        p.host,
        p.device,
        p.host_stride_bytes,
        p.device_stride_bytes,
    ];
    if p.layers > 1 {
        divided.extend([host_layer, device_layer]);
    }
    p.unit = AccessWidth::largest_of(divided).bytes() as u32;
    Ok(())
}
