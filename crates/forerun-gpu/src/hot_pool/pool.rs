//! The hot pool in host memory: it serves inference on a CPU, and does what the device's pool does
//! bit for bit.

use super::call::{Call, Places, Span, replay_params, resolve_params};
use super::cpu_launch::{CpuScratch, clear_on_cpu, replay_on_cpu, resolve_on_cpu};
use super::error::HotPoolError;
use super::options::{HotPoolOptions, PlanLayout};
use super::params::{COUNTERS, HotPoolParams};
use crate::gather::IndexType;
use std::ops::Range;

/// What a pool has counted, over all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotPoolCounts {
    /// Positions that were in a slot; each once per request and call.
    pub hits: u64,
    /// Positions whose row was fetched; each once per request and call.
    pub misses: u64,
    /// Positions, other than -1, that have no row.
    pub absent: u64,
}

impl HotPoolCounts {
    pub(super) fn of([hits, misses, absent]: [u64; COUNTERS]) -> HotPoolCounts {
        HotPoolCounts {
            hits,
            misses,
            absent,
        }
    }
}

/// A batch of requests in host memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct HotPoolBatch<'a> {
    /// The layer.
    pub layer: u32,
    /// The table of each request. No table may be named twice.
    pub requests: &'a [i32],
    /// Positions of each request, one request after the other; -1 for none.
    pub positions: &'a [i32],
    /// The host row of each position of each table, or none if a position is its host row; -1 for
    /// a position without a row.
    pub host_rows: Option<&'a [i64]>,
}

impl<'a> HotPoolBatch<'a> {
    /// Positions of one request.
    pub fn one(layer: u32, request: &'a i32, positions: &'a [i32]) -> HotPoolBatch<'a> {
        HotPoolBatch::new(layer, std::slice::from_ref(request), positions)
    }

    /// Positions of several requests.
    pub fn new(layer: u32, requests: &'a [i32], positions: &'a [i32]) -> HotPoolBatch<'a> {
        HotPoolBatch {
            layer,
            requests,
            positions,
            host_rows: None,
        }
    }

    /// Gives positions their host rows.
    #[must_use]
    pub fn host_rows(mut self, rows: &'a [i64]) -> HotPoolBatch<'a> {
        self.host_rows = Some(rows);
        self
    }
}

/// Memory that is aligned like any element of a pool's state.
#[derive(Debug, Default)]
struct Words(Vec<u64>);

impl Words {
    fn new(bytes: u64) -> Result<Words, HotPoolError> {
        let mut words = Vec::new();
        let len = usize::try_from(bytes.div_ceil(8)).unwrap_or(usize::MAX);
        if words.try_reserve_exact(len).is_err() {
            return Err(HotPoolError::OutOfMemory { bytes });
        }
        words.resize(len, 0);
        Ok(Words(words))
    }

    fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as u64
    }
}

/// The rows that a call fetched, to be fetched in other layers too.
#[derive(Debug)]
pub struct HotPlan {
    layout: PlanLayout,
    words: Words,
    batch: u32,
}

impl HotPlan {
    fn new(layout: PlanLayout) -> Result<HotPlan, HotPoolError> {
        Ok(HotPlan {
            layout,
            words: Words::new(layout.bytes()?)?,
            batch: 0,
        })
    }
}

/// Tables of hot rows in host memory.
///
/// ```
/// use forerun_gpu::hot_pool::{HotPool, HotPoolBatch, HotPoolError, HotPoolOptions};
///
/// // A table of 4 rows for 10 positions, each a row of 2 bytes in the host's pool.
/// let mut pool = HotPool::new(HotPoolOptions::new(2, 4, 10))?;
/// let host: Vec<u8> = (0..20).collect();
/// let (mut rows, mut out) = ([0; 8], [0; 3]);
/// pool.resolve(&HotPoolBatch::one(0, &0, &[7, 3, 7]), &host, &mut rows, &mut out)?;
/// assert_eq!(out[0], out[2]); // fetched once
/// assert_eq!(&rows[out[0] as usize * 2..][..2], [14, 15]);
/// assert_eq!((pool.counts().misses, pool.counts().hits), (2, 0));
/// # Ok::<(), HotPoolError>(())
/// ```
#[derive(Debug)]
pub struct HotPool {
    options: HotPoolOptions,
    state: Words,
    counters: [u64; COUNTERS],
    /// For calls that record no plan.
    plan: HotPlan,
    scratch: CpuScratch,
    /// The tables that a batch has named.
    named: Vec<bool>,
}

impl HotPool {
    /// Allocates the tables, all of them empty.
    ///
    /// # Errors
    /// A [`HotPoolError`]: the options contradict each other, or there is not enough memory.
    pub fn new(options: HotPoolOptions) -> Result<HotPool, HotPoolError> {
        let state = Words::new(options.state_bytes()?)?;
        let plan = PlanLayout {
            batch: options.requests,
            count: options.count,
        };
        let mut pool = HotPool {
            state,
            counters: [0; COUNTERS],
            plan: HotPlan::new(plan)?,
            scratch: CpuScratch::default(),
            named: vec![false; options.requests as usize],
            options,
        };
        pool.clear_tables(None)?;
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
    pub fn new_plan(&self) -> Result<HotPlan, HotPoolError> {
        HotPlan::new(self.plan.layout)
    }

    /// What has been counted since the pool was made.
    pub fn counts(&self) -> HotPoolCounts {
        HotPoolCounts::of(self.counters)
    }

    /// Finds the row of each position, fetches those that are in no slot, and marks all as used.
    /// The answers are rows of `device`, or -1. A position that a request names twice has one row,
    /// and is fetched once.
    ///
    /// # Errors
    /// A [`HotPoolError`]. Nothing was changed.
    pub fn resolve(
        &mut self,
        batch: &HotPoolBatch<'_>,
        host: &[u8],
        device: &mut [u8],
        out: &mut [i32],
    ) -> Result<(), HotPoolError> {
        let empty = HotPlan {
            layout: self.plan.layout,
            words: Words::default(),
            batch: 0,
        };
        let mut plan = std::mem::replace(&mut self.plan, empty);
        let resolved = self.resolve_and_record(batch, host, device, out, &mut plan);
        self.plan = plan;
        resolved
    }

    /// Like [`resolve`](HotPool::resolve), and records what was fetched.
    ///
    /// # Errors
    /// Those of [`resolve`](HotPool::resolve).
    pub fn resolve_and_record(
        &mut self,
        batch: &HotPoolBatch<'_>,
        host: &[u8],
        device: &mut [u8],
        out: &mut [i32],
        plan: &mut HotPlan,
    ) -> Result<(), HotPoolError> {
        let p = self.params(batch, host, device, out, plan)?;
        plan.batch = p.batch;
        // SAFETY: every array is a slice that this call borrows, mutably if it is written, or
        // memory of the pool or the plan, which are borrowed mutably. Their lengths were checked.
        // No slice is used before the launch returns.
        unsafe { resolve_on_cpu(&p, &mut self.scratch) }
    }

    fn params(
        &mut self,
        batch: &HotPoolBatch<'_>,
        host: &[u8],
        device: &mut [u8],
        out: &mut [i32],
        plan: &mut HotPlan,
    ) -> Result<HotPoolParams, HotPoolError> {
        let (positions, requests) = (batch.positions.len() as u64, batch.requests.len() as u64);
        let count = match requests {
            0 => 0,
            requests => positions / requests,
        };
        if count * requests != positions || out.len() as u64 != positions {
            return Err(HotPoolError::Uneven {
                positions: if count * requests == positions {
                    out.len() as u64
                } else {
                    positions
                },
                requests,
            });
        }
        self.expect_distinct(batch.requests)?;
        let too_many = |what, given| HotPoolError::Beyond {
            what,
            given,
            max: u32::MAX.into(),
        };
        let call = Call {
            layer: batch.layer,
            batch: u32::try_from(requests).map_err(|_| too_many("requests", requests))?,
            count: u32::try_from(count).map_err(|_| too_many("positions", count))?,
            positions: Span::of(batch.positions),
            rows_out: Span::of_mut(out),
            requests: Some((Span::of(batch.requests), IndexType::I32)),
            batch_at: None,
            host_rows: batch.host_rows.map(Span::of),
            host: Span::of(host),
            device: Span::of_mut(device),
        };
        let places = Places {
            state: self.state.address(),
            plan: plan.layout,
            plan_at: plan.words.address(),
            counters: self.counters.as_mut_ptr() as u64,
        };
        resolve_params(&self.options, &places, &call)
    }

    /// Checks that each request has a table of its own.
    fn expect_distinct(&mut self, requests: &[i32]) -> Result<(), HotPoolError> {
        let tables = self.options.requests;
        self.named.fill(false);
        for (at, &request) in requests.iter().enumerate() {
            let table = usize::try_from(request).unwrap_or(usize::MAX);
            match self.named.get_mut(table) {
                Some(named) if !*named => *named = true,
                Some(_) => return Err(HotPoolError::NamedTwice { at, request }),
                None => {
                    let request = request.into();
                    return Err(HotPoolError::NoSuchTable {
                        at,
                        request,
                        tables,
                    });
                }
            }
        }
        Ok(())
    }

    /// Fetches the rows of a plan in layers that share the positions of the layer that recorded it.
    ///
    /// # Errors
    /// A [`HotPoolError`].
    pub fn replay(
        &mut self,
        plan: &mut HotPlan,
        layers: Range<u32>,
        host: &[u8],
        device: &mut [u8],
    ) -> Result<(), HotPoolError> {
        let rows = [Span::of(host), Span::of_mut(device)];
        let place = (plan.layout, plan.words.address());
        let p = replay_params(&self.options, place, layers, (plan.batch, None), rows)?;
        // SAFETY: as in `resolve_and_record`.
        unsafe { replay_on_cpu(&p, &mut self.scratch) }
    }

    /// Empties the tables of these requests in all layers, for other requests.
    ///
    /// # Errors
    /// [`HotPoolError::NoSuchTable`].
    pub fn clear(&mut self, requests: &[i32]) -> Result<(), HotPoolError> {
        self.expect_distinct(requests)?;
        self.clear_tables(Some(requests))
    }

    fn clear_tables(&mut self, requests: Option<&[i32]>) -> Result<(), HotPoolError> {
        let mut p = self.options.place(self.state.address(), 0)?;
        p.layers = self.options.table_layers();
        p.batch = requests.map_or(self.options.requests, |requests| requests.len() as u32);
        p.requests = requests.map_or(0, |requests| Span::of(requests).address);
        // SAFETY: the state is borrowed mutably and has the sections that `place` names, and the
        // requests are borrowed.
        unsafe { clear_on_cpu(&p) };
        Ok(())
    }

    /// The pool's tables: keys, then order, or map, used and clocks, of all layers and requests.
    // Hidden: for tests, which compare them with a kernel's.
    #[doc(hidden)]
    pub fn state_sections(&self) -> Result<[Vec<u8>; 4], HotPoolError> {
        let bytes: Vec<u8> = self
            .state
            .0
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let ([offsets, lengths], _) = self.options.state_sections()?;
        Ok(std::array::from_fn(|section| {
            let first = offsets[section] as usize;
            bytes[first..first + lengths[section] as usize].to_vec()
        }))
    }
}
