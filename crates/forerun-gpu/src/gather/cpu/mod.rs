//! The row copy on the CPU. It is the reference for the GPU's copy and replaces it on machines
//! without a GPU.
//!
//! ```text
//!   pair     i   i+1  i+2  ...  i+ahead
//!            |                     |
//!            copied now            the lines of its source row are prefetched now
//! ```
//!
//! Copying a row of a few hundred bytes from uncached memory waits for its first lines. The CPU's
//! own prefetcher fetches the rest of the row, but not the next one. So this code prefetches the
//! lines of a row while it copies earlier rows.
//!
//! Several threads divide the rows by destination. Two pairs with the same destination belong to
//! one thread, which copies them in order. If the system starts fewer threads, the caller's thread
//! takes the other shares.

use crate::gather::known_memory::KnownMemory;
use crate::gather::launch_checks::{Checked, Target, check};
use crate::gather::params::{ABSENT_ZERO, GatherParams};
use crate::gather::request::{CopySpec, CountAt, Direction, IndexType, MapAt, MapUpdate, Request};
use crate::gather_error::GatherError;
use crate::memory_type::MemoryType;
use forerun_core::arch::{CACHE_LINE_BYTES, prefetch_read};
use forerun_core::sync::thread;
use std::num::NonZeroUsize;

mod pairs;

pub use pairs::{Indices, Map, MapEntries, Pairs};

/// Optional parts of a copy, and how it runs.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CopyOptions<'a> {
    /// Number of pairs to use in each layer, limited to the pairs given. A negative count means
    /// none.
    pub count: Option<i64>,
    /// A slot map to maintain.
    pub map: Option<Map<'a>>,
    /// How rows are copied.
    pub cpu: CpuOptions,
}

forerun_core::setters! {
    CopyOptions<'a> { cpu: CpuOptions } into { count: Option<i64>, map: Option<Map<'a>> }
}

/// How rows are copied on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuOptions {
    /// How many rows ahead the source's lines are prefetched; 0 for no prefetching. Default: by row
    /// size ([`default_prefetch_distance`]).
    pub prefetch_distance: Option<usize>,
    /// Threads that divide the rows; at most [`THREADS_MAX`] are started.
    pub threads: NonZeroUsize,
}

forerun_core::setters! {
    CpuOptions { threads: NonZeroUsize } into { prefetch_distance: Option<usize> }
}

impl Default for CpuOptions {
    /// One thread; the prefetch distance follows the row size.
    fn default() -> CpuOptions {
        CpuOptions {
            prefetch_distance: None,
            threads: NonZeroUsize::MIN,
        }
    }
}

/// The maximum number of threads of a copy. More do not help: each reads all indices.
pub const THREADS_MAX: usize = 1024;

/// The default prefetch distance: about two KiB of rows, from 4 to 16 rows. Short rows gain most,
/// because the CPU cannot predict the next one (`docs/internals/gather.md` has the figures).
pub fn default_prefetch_distance(row_bytes: u64) -> usize {
    (2048 / row_bytes.max(1)).clamp(4, 16) as usize
}

/// The result of a copy, over all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Rows copied.
    pub rows: u64,
    /// Rows filled with zeros.
    pub zeroed: u64,
    /// Pairs skipped.
    pub skipped: u64,
    /// Indices that are neither a row nor -1.
    pub out_of_range: u64,
}

impl CopyCounts {
    fn plus(self, other: CopyCounts) -> CopyCounts {
        CopyCounts {
            rows: self.rows + other.rows,
            zeroed: self.zeroed + other.zeroed,
            skipped: self.skipped + other.skipped,
            out_of_range: self.out_of_range + other.out_of_range,
        }
    }
}

/// Copies host rows to device rows; both are slices here.
///
/// ```
/// use forerun_gpu::gather::{CopySpec, cpu};
///
/// let host = [10u8, 11, 20, 21, 30, 31];
/// let mut device = [0u8; 4];
/// let pairs = cpu::Pairs::interleaved(cpu::Indices::I32(&[2, 0, -1, 1]))?;
/// let spec = CopySpec::dense(2, 3, 2);
/// let copied = cpu::gather(&host, &mut device, &spec, &pairs, cpu::CopyOptions::default())?;
/// assert_eq!((device, copied.rows, copied.skipped), ([30, 31, 0, 0], 1, 1));
/// # Ok::<(), forerun_gpu::gather::GatherError>(())
/// ```
///
/// # Errors
/// All errors of the GPU's copy, except those about the kind of memory and the kernel.
pub fn gather(
    host: &[u8],
    device: &mut [u8],
    spec: &CopySpec,
    pairs: &Pairs<'_>,
    options: CopyOptions<'_>,
) -> Result<CopyCounts, GatherError> {
    run(Direction::Gather, host, device, spec, pairs, options)
}

/// Copies device rows to host rows; both are slices here.
///
/// # Errors
/// Those of [`gather`].
pub fn scatter(
    device: &[u8],
    host: &mut [u8],
    spec: &CopySpec,
    pairs: &Pairs<'_>,
    options: CopyOptions<'_>,
) -> Result<CopyCounts, GatherError> {
    run(Direction::Scatter, device, host, spec, pairs, options)
}

/// Copies between plain addresses, for callers that have only these: the CPU's counterpart of
/// [`RowCopy::from_request`](crate::gather::RowCopy::from_request). A request may name many
/// allocations, such as one per layer. `memory` lists all of them; everything outside is refused.
///
/// # Safety
/// The memory in the list must be allocated until the call returns, and initialized where the
/// request reads it. No Rust reference may exist to what is written, nor a mutable one to what is
/// read. No other thread may write the rows and indices that are read, or access the rows that are
/// written, during the call.
///
/// # Errors
/// Those of [`gather`].
pub unsafe fn copy_request(
    request: &Request,
    memory: &KnownMemory,
    options: CpuOptions,
) -> Result<CopyCounts, GatherError> {
    let checked = check(request, memory, Target::Cpu)?;
    let words = |address: u64| std::ptr::with_exposed_provenance(address as usize);
    let count = request.count.map(|count| {
        // SAFETY: `check` has verified that the count is inside the memory of the list and aligned.
        unsafe { IndexWords::new(words(count.address), count.integer).get(0) }
    });
    if request.map.is_some() || request.out_of_range.is_some() {
        return Err(GatherError::OnlyOnDevice);
    }
    // SAFETY: as the caller guarantees.
    Ok(unsafe { copy_checked(request, &checked, count, options) })
}

fn run(
    direction: Direction,
    source: &[u8],
    destination: &mut [u8],
    spec: &CopySpec,
    pairs: &Pairs<'_>,
    mut options: CopyOptions<'_>,
) -> Result<CopyCounts, GatherError> {
    // Mutable before it becomes an address, because the copy writes through it.
    let (from, to) = (source.as_ptr() as u64, destination.as_mut_ptr() as u64);
    let mut known = KnownMemory::default();
    let mut add = |address: u64, bytes: usize| {
        known.add(address, bytes as u64, MemoryType::Pageable, address);
        address
    };
    add(from, source.len());
    add(to, destination.len());
    for indices in [pairs.source, pairs.destination] {
        let bytes = indices.len() * indices.integer().bytes() as usize;
        add(indices.address(), bytes);
    }
    let count = options.count.as_ref().map(|count| CountAt {
        address: add(std::ptr::from_ref(count) as u64, size_of::<i64>()),
        integer: IndexType::I64,
    });
    let map = options.map.as_ref().map(|map| {
        let (address, bytes, integer) = match &map.entries {
            MapEntries::I32(slice) => (slice.as_ptr() as u64, size_of_val(*slice), IndexType::I32),
            MapEntries::I64(slice) => (slice.as_ptr() as u64, size_of_val(*slice), IndexType::I64),
        };
        MapAt {
            address: add(address, bytes),
            integer,
            slots: map.slots,
            layer_step: map.layer_step,
            update: map.update,
        }
    });
    let (host, device) = match direction {
        Direction::Gather => (from, to),
        Direction::Scatter => (to, from),
    };
    let request = Request {
        direction,
        spec: spec.clone(),
        host,
        device,
        pairs: pairs.at(),
        count,
        map,
        out_of_range: None,
    };
    let checked = check(&request, &known, Target::Cpu)?;
    // SAFETY: all memory is in the slices, which are borrowed, mutably if they are written.
    let copied = unsafe { copy_checked(&request, &checked, options.count, options.cpu) };
    if let Some(map) = &mut options.map {
        // SAFETY: as above.
        let copy = unsafe { Copy::new(&request, &checked, options.count) };
        copy.update_map(direction, map);
    }
    Ok(copied)
}

/// Runs a request that was checked. `count` is the number of pairs to use in each layer.
///
/// # Safety
/// The conditions of [`copy_request`] for the memory with which the request was checked.
unsafe fn copy_checked(
    request: &Request,
    checked: &Checked,
    count: Option<i64>,
    options: CpuOptions,
) -> CopyCounts {
    // SAFETY: as the caller guarantees.
    let copy = unsafe { Copy::new(request, checked, count) };
    let threads = options.threads.get().min(THREADS_MAX);
    let prefetch_distance = options
        .prefetch_distance
        .unwrap_or_else(|| default_prefetch_distance(request.spec.row_bytes));
    if threads == 1 {
        return copy.share(prefetch_distance, Share::ALL);
    }
    thread::scope(|scope| {
        let mut workers = Vec::new();
        while workers.len() + 1 < threads {
            let share = Share::one(workers.len(), threads);
            let copy = &copy;
            let work = move || copy.share(prefetch_distance, share);
            match thread::Builder::new().spawn_scoped(scope, work) {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        let rest = Share::rest(workers.len(), threads);
        let copied = copy.share(prefetch_distance, rest);
        let joined = workers.into_iter().map(|worker| match worker.join() {
            Ok(copied) => copied,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.fold(copied, CopyCounts::plus)
    })
}

/// Passes the source and the destination of every row of a request that was checked, for copies
/// that something else makes. Returns the number of indices out of range.
///
/// # Safety
/// The indices must be in memory that the CPU can read.
pub(super) unsafe fn each_copy(
    request: &Request,
    checked: &Checked,
    mut copy: impl FnMut(u64, u64),
) -> u64 {
    // SAFETY: only the indices are read, which the caller guarantees.
    let pairs = unsafe { Copy::new(request, checked, None) };
    let mut wrong = 0;
    for layer in 0..pairs.layers.len() {
        for pair in 0..pairs.used {
            let indices = pairs.pair(layer, pair);
            let rows = pairs.rows(indices);
            wrong += out_of_range(indices, rows);
            if let Action::Copy { from, to } = pairs.action(layer, rows) {
                copy(from as u64, to as u64);
            }
        }
    }
    wrong
}

/// How many indices of a pair are neither a row nor -1.
#[inline]
fn out_of_range(indices: (i64, i64), rows: (Option<usize>, Option<usize>)) -> u64 {
    u64::from(rows.0.is_none() && indices.0 != -1) + u64::from(rows.1.is_none() && indices.1 != -1)
}

/// The address of each layer's row 0: source, destination.
fn layer_addresses(checked: &Checked) -> Vec<(usize, usize)> {
    let of = |table: &[u64], first: u64, step: i64, layer: u32| match table {
        [] => (first + u64::from(layer) * step as u64) as usize,
        table => table[layer as usize] as usize,
    };
    let p = &checked.params;
    (0..p.layers)
        .map(|layer| {
            let (table, step) = (&checked.source_table, p.source_layer_bytes);
            let source = of(table, p.source, step, layer);
            let (table, step) = (&checked.destination_table, p.destination_layer_bytes);
            (source, of(table, p.destination, step, layer))
        })
        .collect()
}

/// One thread's share of the destination rows. Blocks of 64 rows are dealt to `of` parts in turn,
/// and the share has the parts from `first` up to `end`. Each layer begins with another part, so
/// that a copy of a few pages in many layers is divided too.
#[derive(Clone, Copy)]
struct Share {
    first: usize,
    end: usize,
    of: usize,
}

impl Share {
    const ALL: Share = Share::rest(0, 1);

    const fn one(part: usize, of: usize) -> Share {
        Share {
            first: part,
            end: part + 1,
            of,
        }
    }

    const fn rest(first: usize, of: usize) -> Share {
        Share { first, end: of, of }
    }

    /// Whether a pair belongs to this thread. Pairs without a destination belong to the first part.
    fn has(&self, layer: usize, destination: Option<usize>) -> bool {
        if self.of == 1 {
            return true;
        }
        let part = destination.map_or(0, |row| (row / 64 + layer) % self.of);
        (self.first..self.end).contains(&part)
    }
}

/// The offset of an existing row in its layer, as the kernels compute it.
#[inline]
fn row_offset(row: usize, stride_bytes: u64, page_rows: u32, page_bytes: u64) -> usize {
    let (page, row) = match page_rows as usize {
        0 => (0, row),
        rows => (row / rows, row % rows),
    };
    page * page_bytes as usize + row * stride_bytes as usize
}

/// Indices at an address.
#[derive(Clone, Copy)]
enum IndexWords {
    I32(*const i32),
    I64(*const i64),
}

impl IndexWords {
    fn new(first: *const u8, integer: IndexType) -> IndexWords {
        match integer {
            IndexType::I32 => IndexWords::I32(first.cast()),
            IndexType::I64 => IndexWords::I64(first.cast()),
        }
    }

    /// # Safety
    /// There must be an aligned index at this position.
    #[inline]
    unsafe fn get(self, at: usize) -> i64 {
        // SAFETY: as the caller guarantees.
        unsafe {
            match self {
                IndexWords::I32(first) => i64::from(first.add(at).read()),
                IndexWords::I64(first) => first.add(at).read(),
            }
        }
    }
}

// SAFETY: threads only read the indices, which nothing writes during the copy.
unsafe impl Sync for IndexWords {}

/// The action for a pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Copy { from: usize, to: usize },
    Zero { to: usize },
    Nothing,
}

/// A copy that was checked. It refers to memory by address.
struct Copy<'a> {
    params: &'a GatherParams,
    /// The address of each layer's row 0: source, destination.
    layers: Vec<(usize, usize)>,
    row_bytes: usize,
    source_indices: IndexWords,
    destination_indices: IndexWords,
    /// Pairs of each layer that are used.
    used: usize,
}

impl<'a> Copy<'a> {
    /// # Safety
    /// The conditions of [`copy_request`], as long as the value exists.
    unsafe fn new(request: &Request, checked: &'a Checked, count: Option<i64>) -> Copy<'a> {
        let pairs = request.pairs;
        let words = |address: u64| {
            IndexWords::new(
                std::ptr::with_exposed_provenance(address as usize),
                pairs.integer,
            )
        };
        // `check` has verified that this many pairs exist in memory.
        let given = pairs.count as usize;
        Copy {
            params: &checked.params,
            layers: layer_addresses(checked),
            row_bytes: request.spec.row_bytes as usize,
            source_indices: words(pairs.source),
            destination_indices: words(pairs.destination),
            used: count.map_or(given, |count| {
                usize::try_from(count).unwrap_or(0).min(given)
            }),
        }
    }

    /// The indices of a pair.
    #[inline]
    fn pair(&self, layer: usize, pair: usize) -> (i64, i64) {
        let p = self.params;
        let at = layer * p.index_layer_step as usize + pair * p.source_index_step as usize;
        // SAFETY: `check` has verified that the last pair of the last layer is in memory, and
        // aligned; this pair is not after it. Both steps are equal.
        unsafe {
            (
                self.source_indices.get(at),
                self.destination_indices.get(at),
            )
        }
    }

    /// The rows that the indices refer to. Converted to unsigned, negative indices are too large as
    /// well.
    #[inline]
    fn rows(&self, (source, destination): (i64, i64)) -> (Option<usize>, Option<usize>) {
        let row = |index: i64, rows: u64| ((index as u64) < rows).then_some(index as usize);
        let p = self.params;
        (
            row(source, p.source_rows),
            row(destination, p.destination_rows),
        )
    }

    #[inline]
    fn action(&self, layer: usize, rows: (Option<usize>, Option<usize>)) -> Action {
        let (source, destination) = self.layers[layer];
        let p = self.params;
        let from = |row: usize| {
            let (stride, page_bytes) = (p.source_stride_bytes, p.source_page_bytes);
            source + row_offset(row, stride, p.source_page_rows, page_bytes)
        };
        let to = |row: usize| {
            let (stride, page_bytes) = (p.destination_stride_bytes, p.destination_page_bytes);
            destination + row_offset(row, stride, p.destination_page_rows, page_bytes)
        };
        match rows {
            (Some(s), Some(d)) => Action::Copy {
                from: from(s),
                to: to(d),
            },
            (None, Some(d)) if p.absent == ABSENT_ZERO => Action::Zero { to: to(d) },
            _ => Action::Nothing,
        }
    }

    /// Copies one thread's share.
    fn share(&self, prefetch_distance: usize, share: Share) -> CopyCounts {
        let mut copied = CopyCounts::default();
        for layer in 0..self.layers.len() {
            for pair in 0..self.used.min(prefetch_distance) {
                self.fetch(layer, pair, share);
            }
            for pair in 0..self.used {
                if prefetch_distance != 0 && pair + prefetch_distance < self.used {
                    self.fetch(layer, pair + prefetch_distance, share);
                }
                let indices = self.pair(layer, pair);
                let rows = self.rows(indices);
                if !share.has(layer, rows.1) {
                    continue;
                }
                copied.out_of_range += out_of_range(indices, rows);
                match self.action(layer, rows) {
                    Action::Copy { from, to } => {
                        copied.rows += 1;
                        let from = std::ptr::with_exposed_provenance::<u8>(from);
                        let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
                        // SAFETY: `check` has verified that every row is inside its memory, that
                        // source and destination do not overlap, and that no two rows of the
                        // destination do in any layers. So no byte is written by two threads:
                        // each writes the rows of its own share.
                        unsafe { std::ptr::copy_nonoverlapping(from, to, self.row_bytes) };
                    }
                    Action::Zero { to } => {
                        copied.zeroed += 1;
                        let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
                        // SAFETY: as above.
                        unsafe { to.write_bytes(0, self.row_bytes) };
                    }
                    Action::Nothing => copied.skipped += 1,
                }
            }
        }
        copied
    }

    /// Prefetches the lines of a pair's source row if it will be copied.
    #[inline]
    fn fetch(&self, layer: usize, pair: usize, share: Share) {
        let rows = self.rows(self.pair(layer, pair));
        if !share.has(layer, rows.1) {
            return;
        }
        if let Action::Copy { from, .. } = self.action(layer, rows) {
            let first = std::ptr::with_exposed_provenance::<u8>(from);
            let lead = from % CACHE_LINE_BYTES;
            for line in (0..lead + self.row_bytes).step_by(CACHE_LINE_BYTES) {
                prefetch_read(first.wrapping_sub(lead).wrapping_add(line));
            }
        }
    }

    /// Sets or clears the slot map's entries of the copied rows.
    fn update_map(&self, direction: Direction, map: &mut Map<'_>) {
        for layer in 0..self.layers.len() {
            for pair in 0..self.used {
                let (Some(source), Some(destination)) = self.rows(self.pair(layer, pair)) else {
                    continue;
                };
                let (host, device) = match direction {
                    Direction::Gather => (source, destination),
                    Direction::Scatter => (destination, source),
                };
                let at = layer * map.layer_step as usize + host;
                // Both numbers fit: `check` has compared the map with the rows.
                match (&mut map.entries, map.update) {
                    (MapEntries::I32(map), MapUpdate::Set) => map[at] = device as i32,
                    (MapEntries::I32(map), MapUpdate::Clear) => map[at] = -1,
                    (MapEntries::I64(map), MapUpdate::Set) => map[at] = device as i64,
                    (MapEntries::I64(map), MapUpdate::Clear) => map[at] = -1,
                }
            }
        }
    }
}
