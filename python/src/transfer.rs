//! Row copies between pools that are given by address, for `forerun.kvcacheio`.
//!
//! ```text
//!   argument    memory                      layers of a copy
//!   src_k       [address, bytes]      ─┬─>  address + offsets[0], address + offsets[1], ...
//!   src_v       [address, bytes]      ─┘    (one layer for each offset of each memory, in order)
//!
//!   K and V, layers and heads are all layers of one copy: one launch on a GPU, one call on the CPU
//! ```
//!
//! `forerun/kvcacheio.py` checks the tensors and computes the layouts. This file checks what it
//! takes a loop to check: the indices, and overlaps between arguments. Nothing is copied before all
//! checks have passed.
//!
//! While a call runs, `borrows.rs` knows its memory. Other copies may use the same pools. A copy on
//! a GPU may run after its call: then PyTorch's rules for streams hold, and the queue keeps the
//! pinned tensors.

use std::num::NonZeroUsize;

use forerun::gpu::gather::cpu::{self, CpuOptions};
use forerun::gpu::gather::{
    CopyQueue, CopySpec, Direction, IndexType, Kept, KnownMemory, Layers, Locate, LocatedRanges,
    MemoryType, PairsAt, QueuedCopy, QueuedPairs, Request, RowLayout, RowPages, rows_that_fit,
};
use forerun::gpu::{Gpu, GpuError};
use pyo3::prelude::*;

use crate::borrows::{Access, Borrow, Memory as Used};
use crate::cuda::{CallersStream, Returns, enqueue, queue_of, stream_of};
use crate::errors::{device_exception, gather_exception, invalid};

/// An address and its size in bytes, if it is known.
type Memory = (u64, Option<u64>);

/// One side of a copy.
#[derive(FromPyObject)]
pub(crate) struct Side {
    /// The arguments' names and their memory: addresses and sizes in bytes. A table of addresses
    /// has no sizes.
    arguments: Vec<(String, Vec<Memory>)>,
    /// The offsets of row 0 of each layer in each memory.
    offsets: Vec<u64>,
    /// Rows per layer, if the memory's size is known.
    rows: Option<u64>,
    stride_bytes: u64,
    /// Rows per page, and bytes from one page to the next.
    pages: Option<(u32, u64)>,
}

/// The memory of an argument.
struct Span<'a> {
    argument: &'a str,
    start: u64,
    end: u64,
    access: Access,
    /// The distance of its rows and the bytes of one, if it has nothing else.
    rows: Option<(u64, u64)>,
}

impl Span<'_> {
    /// Whether the rows of two views lie between each other, as the layers of a page-first pool do.
    fn interleaves(&self, other: &Span<'_>) -> bool {
        let (Some((distance, row_bytes)), true) = (self.rows, self.rows == other.rows) else {
            return false;
        };
        let apart = self.start.abs_diff(other.start) % distance.max(1);
        apart >= row_bytes && distance - apart >= row_bytes
    }

    fn is_written(&self) -> bool {
        self.access == Access::WriteRows
    }

    fn used(&self) -> Used {
        let what = match self.access {
            Access::WriteRows | Access::Write => "dst",
            Access::ReadRows => "src",
            Access::Read => "indices",
        };
        Used {
            start: self.start as usize,
            len_bytes: self.end.saturating_sub(self.start) as usize,
            access: self.access,
            what,
        }
    }
}

impl Side {
    fn names(&self) -> String {
        let names = self.arguments.iter().map(|(name, _)| format!("`{name}`"));
        names.collect::<Vec<_>>().join(" and ")
    }

    /// The address of each memory.
    fn addresses(&self) -> Vec<u64> {
        let memories = self.arguments.iter().flat_map(|(_, memories)| memories);
        memories.map(|&(address, _)| address).collect()
    }

    /// The address of each layer's row 0.
    fn starts(&self) -> Vec<u64> {
        let memories = self.arguments.iter().flat_map(|(_, memories)| memories);
        memories
            .flat_map(|&(address, _)| {
                let start = move |&offset: &u64| address.saturating_add(offset);
                self.offsets.iter().map(start)
            })
            .collect()
    }

    /// The memory of all arguments. Memory of unknown size is as long as its rows.
    fn spans(&self, rows: u64, row_bytes: u64, access: Access) -> impl Iterator<Item = Span<'_>> {
        let unknown = rows.saturating_mul(self.stride_bytes);
        let is_plain = self.offsets == [0] && self.pages.is_none();
        let plain_rows = is_plain.then_some((self.stride_bytes, row_bytes));
        self.arguments.iter().flat_map(move |(name, memories)| {
            memories.iter().map(move |&(address, bytes)| Span {
                argument: name,
                start: address,
                end: address.saturating_add(bytes.unwrap_or(unknown)),
                access,
                rows: plain_rows,
            })
        })
    }

    fn layout(&self, rows: u64) -> RowLayout {
        RowLayout::dense(rows, self.stride_bytes)
            .layers(Layers::Table {
                offsets_bytes: self.starts(),
            })
            .pages(self.pages.map(|(rows, bytes)| RowPages { rows, bytes }))
    }
}

/// Returns an error if an argument that is written shares memory with another argument.
fn expect_apart<'a>(spans: impl Iterator<Item = Span<'a>>) -> PyResult<()> {
    let mut spans: Vec<Span<'_>> = spans.filter(|span| span.start < span.end).collect();
    spans.sort_by_key(|span| span.start);
    for (at, one) in spans.iter().enumerate() {
        let near = spans[at + 1..].iter();
        for other in near.take_while(|other| other.start < one.end) {
            if !(one.is_written() || other.is_written()) || one.interleaves(other) {
                continue;
            }
            let (written, other) = if one.is_written() {
                (one, other)
            } else {
                (other, one)
            };
            return Err(invalid(format!(
                "`{}` is written and shares {} bytes of memory with `{}`",
                written.argument,
                one.end.min(other.end) - one.start.max(other.start),
                other.argument
            )));
        }
    }
    Ok(())
}

/// Registers the memory of a copy; written ranges must be disjoint.
fn borrowed_apart<'a>(spans: impl Iterator<Item = Span<'a>>) -> PyResult<Borrow> {
    let spans: Vec<Span<'a>> = spans.collect();
    let used: Vec<Used> = spans.iter().map(Span::used).collect();
    expect_apart(spans.into_iter())?;
    Borrow::compared(&used)
}

/// Indices in CPU memory.
struct Indices<'a> {
    argument: &'static str,
    indices: &'a [i64],
}

impl<'a> Indices<'a> {
    /// # Safety
    /// There must be `count` integers at the address, which nothing changes for `'a`.
    unsafe fn at(argument: &'static str, (address, count): (u64, usize)) -> PyResult<Indices<'a>> {
        if address == 0 && count > 0 {
            return Err(invalid(format!("`{argument}` has no memory")));
        }
        if !address.is_multiple_of(align_of::<i64>() as u64) {
            return Err(invalid(format!(
                "`{argument}` must begin at a multiple of 8 bytes, not at {address:#x}"
            )));
        }
        let indices: &[i64] = match count {
            0 => &[],
            // SAFETY: as the caller guarantees; the address is aligned.
            _ => unsafe {
                std::slice::from_raw_parts(
                    std::ptr::with_exposed_provenance(address as usize),
                    count,
                )
            },
        };
        Ok(Indices { argument, indices })
    }

    /// The number of rows that the indices need. Negative indices name no row.
    fn needed(&self) -> (i64, u64) {
        let greatest = self.indices.iter().copied().max().unwrap_or(-1);
        let rows = u64::try_from(greatest).map_or(0, |greatest| greatest.saturating_add(1));
        (greatest, rows)
    }

    /// Checks that all indices are below the number of rows of their side, and returns that number.
    /// If it is unknown, it follows from the greatest index. `fit` is the number of rows that fit
    /// into the side's memory, if that is known.
    fn rows_of(&self, side: &Side, fit: Option<u64>) -> PyResult<u64> {
        let (greatest, needed) = self.needed();
        let limit = side.rows.or(fit).unwrap_or(u64::MAX);
        if needed <= limit {
            return Ok(side.rows.unwrap_or(needed));
        }
        let position = self.indices.iter().position(|&index| index == greatest);
        let have = match (side.rows, side.arguments.len()) {
            (None, _) => "has room for",
            (_, 1) => "has",
            _ => "have",
        };
        let memory = match side.rows {
            None => "the memory of ",
            Some(_) => "",
        };
        Err(invalid(format!(
            "`{}[{}]` is {greatest}, but {memory}{} {have} {limit} rows",
            self.argument,
            position.unwrap_or(0),
            side.names()
        )))
    }
}

/// A copy between two sides.
struct Transfer {
    source: Side,
    destination: Side,
    row_bytes: u64,
}

impl Transfer {
    fn request(&self, direction: Direction, rows: [u64; 2], pairs: PairsAt) -> Request {
        let source = self.source.layout(rows[0]);
        let destination = self.destination.layout(rows[1]);
        let layers = self.source.starts().len() as u32;
        let (host, device) = match direction {
            Direction::Gather => (source, destination),
            Direction::Scatter => (destination, source),
        };
        Request {
            direction,
            spec: CopySpec::dense(self.row_bytes, 0, 0)
                .layers(layers)
                .host(host)
                .device(device),
            // The layouts hold addresses.
            host: 0,
            device: 0,
            pairs,
            count: None,
            map: None,
            out_of_range: None,
        }
    }

    fn spans(&self, rows: [u64; 2]) -> impl Iterator<Item = Span<'_>> {
        let row_bytes = self.row_bytes;
        let source = self.source.spans(rows[0], row_bytes, Access::ReadRows);
        let destination = &self.destination;
        source.chain(destination.spans(rows[1], row_bytes, Access::WriteRows))
    }

    fn on_cpu(
        &self,
        sources: &Indices<'_>,
        destinations: &Indices<'_>,
        options: CpuOptions,
    ) -> PyResult<()> {
        let rows = [
            sources.rows_of(&self.source, None)?,
            destinations.rows_of(&self.destination, None)?,
        ];
        let indices = [sources, destinations].map(|indices| Span {
            argument: indices.argument,
            start: indices.indices.as_ptr() as u64,
            end: indices.indices.as_ptr() as u64 + size_of_val(indices.indices) as u64,
            // Only read access: Rust references to the indices exist.
            access: Access::Read,
            rows: None,
        });
        let _borrow = borrowed_apart(self.spans(rows).chain(indices))?;
        let mut memory = KnownMemory::default();
        let mut add = |start: u64, end: u64| {
            memory.add(start, end - start, MemoryType::Pageable, start);
        };
        self.spans(rows).for_each(|span| add(span.start, span.end));
        let [sources, destinations] = [sources, destinations].map(|indices| {
            let (start, len) = (
                indices.indices.as_ptr() as u64,
                indices.indices.len() as u64,
            );
            add(start, start + len * size_of::<i64>() as u64);
            (start, len)
        });
        let pairs = PairsAt::split(IndexType::I64, sources, destinations);
        let pairs = pairs.map_err(gather_exception)?;
        let request = self.request(Direction::Gather, rows, pairs);
        // SAFETY: the caller of `_transfer_rows` guarantees that the memory exists. Nothing here
        // has a reference to it, except to indices, which are read. The spans that are written
        // overlap no others, and no running call has a reference to memory that it borrows.
        unsafe { cpu::copy_request(&request, &memory, options) }.map_err(gather_exception)?;
        Ok(())
    }

    /// Borrows the memory of all arguments, as far as their size is known.
    fn borrow_known(&self) -> PyResult<Borrow> {
        let rows = [&self.source, &self.destination].map(|side| side.rows.unwrap_or(0));
        borrowed_apart(self.spans(rows))
    }

    /// The number of rows on each side. If a side's size is unknown, it is what its indices need,
    /// or, if these are on the device, what fits into its memory.
    fn rows_on(&self, gpu: &Gpu, indices: [GivenIndices<'_, '_>; 2]) -> PyResult<[u64; 2]> {
        let known = KnownMemory::default();
        let memory = LocatedRanges::new(&known, gpu);
        let (source, destination) = (self.source.addresses(), self.destination.addresses());
        // Sources may overlap each other. What is written overlaps nothing.
        let all = [&source[..], &destination[..]].concat();
        let rows =
            |side: &Side, addresses: &[u64], neighbours: &[u64], given: GivenIndices<'_, '_>| {
                let (at, indices) = given;
                let fit = match side.rows {
                    Some(rows) => rows,
                    None => {
                        // Those on the device reach as far as their type.
                        let needed =
                            indices.map_or(integer_of(at).rows_max(), |indices| indices.needed().1);
                        rows_that_fit(addresses, side.stride_bytes, neighbours, needed, &memory)
                            .map_err(gather_exception)?
                    }
                };
                indices.map_or(Ok(fit), |indices| indices.rows_of(side, Some(fit)))
            };
        let [of_sources, of_destinations] = indices;
        Ok([
            rows(&self.source, &source, &destination, of_sources)?,
            rows(&self.destination, &destination, &all, of_destinations)?,
        ])
    }

    /// Puts a copy on a stream.
    ///
    /// # Safety
    /// That of [`enqueue`].
    unsafe fn on_device(
        &self,
        queue: &CopyQueue,
        stream: CallersStream,
        rows: [u64; 2],
        (pairs, queued): (PairsAt, QueuedPairs<'_>),
        kept: Option<Py<PyAny>>,
    ) -> Result<(), GpuError> {
        let is_on_device = |side: &Side| {
            let first = side.starts().first().copied().unwrap_or(0);
            let memory = queue.gpu().locate(first)?.memory;
            Ok::<_, GpuError>(matches!(memory, MemoryType::Device { .. }))
        };
        let direction = if is_on_device(&self.source)? {
            Direction::Scatter
        } else {
            Direction::Gather
        };
        let within_device = direction == Direction::Scatter && is_on_device(&self.destination)?;
        let copy = QueuedCopy {
            request: self.request(direction, rows, pairs),
            within_device,
            pairs: queued,
            kept: kept.map(|kept| Box::new(kept) as Kept),
        };
        // SAFETY: as the caller guarantees.
        unsafe { enqueue(queue, stream, copy, Returns::Enqueued) }
    }
}

/// Indices on a device or in CPU memory: address, number, and bytes of each if on the device.
type IndicesAt = (u64, usize, Option<u64>);

/// Indices, and those of them that are in CPU memory.
type GivenIndices<'g, 'a> = (IndicesAt, Option<&'g Indices<'a>>);

/// The integers of indices on a device.
fn integer_of((_, _, bytes): IndicesAt) -> IndexType {
    match bytes {
        Some(4) => IndexType::I32,
        _ => IndexType::I64,
    }
}

/// Indices of 64 bits in CPU memory, or `None` if they are on a device.
///
/// # Safety
/// That of [`Indices::at`].
unsafe fn on_cpu<'a>(
    argument: &'static str,
    (address, count, on_device): IndicesAt,
) -> PyResult<Option<Indices<'a>>> {
    match on_device {
        Some(_) => Ok(None),
        // SAFETY: as the caller guarantees.
        None => unsafe { Indices::at(argument, (address, count)) }.map(Some),
    }
}

/// Copies rows between two sides, by indices that are given by address and number. With a `stream`,
/// the copy is put there, on the CUDA device numbered `device`. `kept` stays alive until it has
/// run. Without one, everything is in CPU memory.
///
/// The addresses are trusted: the memory must exist until the copy has run.
#[pyfunction]
#[pyo3(signature = (
    source, destination, row_bytes, source_indices, destination_indices, threads, device, stream,
    kept
))]
#[expect(
    clippy::too_many_arguments,
    reason = "called from one place, in Python"
)]
pub(crate) fn _transfer_rows(
    py: Python<'_>,
    source: Side,
    destination: Side,
    row_bytes: u64,
    source_indices: IndicesAt,
    destination_indices: IndicesAt,
    threads: usize,
    device: usize,
    stream: Option<&Bound<'_, PyAny>>,
    kept: Option<Py<PyAny>>,
) -> PyResult<()> {
    let transfer = Transfer {
        source,
        destination,
        row_bytes,
    };
    let stream = stream
        .map(|stream| stream_of(Some(stream), stream))
        .transpose()?;
    let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
    py.detach(|| {
        let _borrow = match stream {
            Some(_) => Some(transfer.borrow_known()?),
            None => None,
        };
        // SAFETY: `forerun/kvcacheio.py` passes the memory of tensors that it holds. A caller who
        // changes them meanwhile races with the copy, as with PyTorch's own functions.
        let sources = unsafe { on_cpu("src_indices", source_indices) }?;
        // SAFETY: as above.
        let destinations = unsafe { on_cpu("dst_indices", destination_indices) }?;
        let Some(stream) = stream else {
            let (Some(sources), Some(destinations)) = (&sources, &destinations) else {
                return Err(invalid("indices on a GPU need a stream"));
            };
            let options = CpuOptions::default().threads(threads);
            return transfer.on_cpu(sources, destinations, options);
        };
        let queue = queue_of(device).map_err(device_exception)?;
        let given = [
            (source_indices, sources.as_ref()),
            (destination_indices, destinations.as_ref()),
        ];
        let rows = transfer.rows_on(queue.gpu(), given)?;
        if source_indices.1 == 0 || rows.contains(&0) {
            // No pair has a row on both sides, and empty tensors have no address.
            return Ok(());
        }
        let pairs = pairs_of(given)?;
        // SAFETY: the caller's tensors exist until the copy has run: PyTorch reuses a tensor's
        // memory in the order of its streams, and the queue keeps what is pinned. The stream is
        // PyTorch's current one, of the primary context.
        unsafe { transfer.on_device(&queue, stream, rows, pairs, kept) }.map_err(device_exception)
    })
}

/// The pairs of two arrays of indices, each of which is on the device or in CPU memory.
fn pairs_of<'a>(
    [(source, sources), (destination, destinations)]: [GivenIndices<'_, 'a>; 2],
) -> PyResult<(PairsAt, QueuedPairs<'a>)> {
    let integer = match source.2 {
        None => integer_of(destination),
        Some(_) => integer_of(source),
    };
    let at = |(address, count, _): IndicesAt| (address, count as u64);
    let pairs = PairsAt::split(integer, at(source), at(destination)).map_err(gather_exception)?;
    let words = |given: &Indices<'a>| cpu::Indices::I64(given.indices);
    let queued = match (sources, destinations) {
        (None, None) => QueuedPairs::Reached,
        (Some(sources), None) => QueuedPairs::CopiedSources(words(sources)),
        (None, Some(destinations)) => QueuedPairs::CopiedDestinations(words(destinations)),
        (Some(sources), Some(destinations)) => QueuedPairs::Copied(
            cpu::Pairs::split(words(sources), words(destinations)).map_err(gather_exception)?,
        ),
    };
    Ok((pairs, queued))
}
