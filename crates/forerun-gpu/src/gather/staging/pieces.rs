//! The pieces of a ring, and how one is sent.
//!
//! ```text
//!   on a GPU     a piece is one pinned buffer     | rows | places, 8 bytes each |     event: its gather has run
//!                one array on the device          | 0 1 2 3 ... |                     source rows of a piece: its first ones
//!                one stream, on which the gathers follow one another
//!   otherwise    a piece is two vectors; its rows have arrived when `send` returns
//! ```

use super::StagingShape;
use crate::driver::{Command, DeviceBuffer, DeviceSlice, Event, HostMemory, PinnedBuffer, Stream};
use crate::gather::cpu;
use crate::gather::known_memory::KnownMemory;
use crate::gather::op::RowCopy;
use crate::gather::request::{CopySpec, Direction, IndexType, PairsAt, Request};
use crate::memory_type::MemoryType;
use crate::{Gpu, GpuError};

/// The pieces, and the destination that they lead to.
pub(super) enum Route<'a> {
    Gpu(&'a mut GpuPieces, &'a DeviceSlice<'a>),
    Cpu(&'a mut CpuPieces, &'a mut [u8]),
}

impl Route<'_> {
    /// The rows of a piece that is no longer in flight.
    pub(super) fn rows(&mut self, piece: usize) -> Result<&mut [u8], GpuError> {
        match self {
            Route::Gpu(on, _) => {
                let rows_bytes = on.layout.rows_bytes;
                Ok(&mut on.arrived(piece)?[..rows_bytes])
            }
            Route::Cpu(on, _) => Ok(&mut on.pieces[piece].rows),
        }
    }

    /// Records the places of a piece's rows, from a given row on.
    pub(super) fn record(
        &mut self,
        piece: usize,
        from: usize,
        places: &[u64],
    ) -> Result<(), GpuError> {
        match self {
            Route::Gpu(on, _) => {
                let places_at = on.layout.places_at;
                let noted = on.arrived(piece)?[places_at..].as_chunks_mut().0;
                let noted = noted[from..].iter_mut();
                noted
                    .zip(places)
                    .for_each(|(to, &at)| *to = at.to_ne_bytes());
            }
            Route::Cpu(on, _) => {
                let noted = on.pieces[piece].places[from..].iter_mut();
                noted.zip(places).for_each(|(to, &at)| *to = at as i64);
            }
        }
        Ok(())
    }

    /// Sends the first rows of a piece.
    pub(super) fn send(&mut self, piece: usize, rows: usize) -> Result<(), GpuError> {
        match self {
            Route::Gpu(on, to) => on.send(piece, rows, to),
            Route::Cpu(on, to) => on.send(piece, rows, to),
        }
    }

    /// Waits until nothing is in flight.
    pub(super) fn wait_idle(&mut self) -> Result<(), GpuError> {
        match self {
            Route::Gpu(on, _) => on.wait_idle(),
            Route::Cpu(..) => Ok(()),
        }
    }
}

/// The parts of a piece, in bytes.
#[derive(Clone, Copy)]
struct Layout {
    row_bytes: usize,
    piece_rows: usize,
    rows_bytes: usize,
    /// Offset after the rows at which a word may begin.
    places_at: usize,
    bytes: usize,
}

impl Layout {
    fn of(shape: StagingShape) -> Layout {
        let rows_bytes = shape.row_bytes.saturating_mul(shape.piece_rows);
        let places_at = rows_bytes.checked_next_multiple_of(8).unwrap_or(usize::MAX);
        Layout {
            row_bytes: shape.row_bytes,
            piece_rows: shape.piece_rows,
            rows_bytes,
            places_at,
            bytes: places_at.saturating_add(shape.piece_rows.saturating_mul(8)),
        }
    }

    /// The copy of a piece's rows to a destination of this many bytes.
    fn spec(&self, destination_bytes: usize) -> CopySpec {
        let there = destination_bytes / self.row_bytes.max(1);
        CopySpec::dense(self.row_bytes as u64, self.piece_rows as u64, there as u64)
    }
}

/// Pieces in ordinary memory.
pub(super) struct CpuPieces {
    layout: Layout,
    order: Vec<i64>,
    pieces: Vec<Piece>,
}

struct Piece {
    rows: Vec<u8>,
    places: Vec<i64>,
}

impl CpuPieces {
    pub(super) fn new(shape: StagingShape) -> Result<CpuPieces, GpuError> {
        let layout = Layout::of(shape);
        let piece = |_| {
            let mut rows = Vec::new();
            rows.try_reserve_exact(layout.rows_bytes)
                .map_err(|_| GpuError::OutOfMemory {
                    bytes: layout.rows_bytes,
                    memory: "staging memory",
                })?;
            rows.resize(layout.rows_bytes, 0);
            let places = vec![0; layout.piece_rows];
            Ok(Piece { rows, places })
        };
        Ok(CpuPieces {
            layout,
            pieces: (0..shape.pieces)
                .map(piece)
                .collect::<Result<_, GpuError>>()?,
            order: (0..layout.piece_rows as i64).collect(),
        })
    }

    fn send(&mut self, piece: usize, rows: usize, to: &mut [u8]) -> Result<(), GpuError> {
        let Piece { rows: from, places } = &self.pieces[piece];
        let sources = cpu::Indices::I64(&self.order[..rows]);
        let pairs = cpu::Pairs::split(sources, cpu::Indices::I64(&places[..rows]))?;
        let spec = self.layout.spec(to.len());
        cpu::gather(from, to, &spec, &pairs, cpu::CopyOptions::default())?;
        Ok(())
    }
}

/// Pieces in pinned memory, and the stream that sends them.
pub(super) struct GpuPieces {
    gpu: Gpu,
    layout: Layout,
    stream: Stream,
    /// 0, 1, 2, ...: the source rows of every piece.
    order: DeviceBuffer,
    pieces: Vec<Pinned>,
}

struct Pinned {
    buffer: PinnedBuffer,
    arrived: Event,
    travels: bool,
}

impl GpuPieces {
    pub(super) fn new(gpu: &Gpu, shape: StagingShape) -> Result<GpuPieces, GpuError> {
        let layout = Layout::of(shape);
        let piece = |_| {
            Ok(Pinned {
                buffer: PinnedBuffer::new(gpu, layout.bytes)?,
                arrived: Event::new(gpu)?,
                travels: false,
            })
        };
        let pieces = (0..shape.pieces).map(piece);
        let pieces = pieces.collect::<Result<_, GpuError>>()?;
        let order = (0..layout.piece_rows as i64).flat_map(i64::to_ne_bytes);
        Ok(GpuPieces {
            gpu: gpu.clone(),
            layout,
            // A copy needs a few blocks for a short time. It should not wait for all blocks of a
            // long kernel.
            stream: Stream::high_priority(gpu)?,
            order: DeviceBuffer::from_slice(gpu, &order.collect::<Vec<u8>>())?,
            pieces,
        })
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Checks that this is the device that the pieces lead to. A fork has no pieces.
    pub(super) fn expect(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.gpu.expect_process()?;
        self.stream.expect(gpu, "the destination")
    }

    /// A piece's bytes, once it is no longer in flight.
    fn arrived(&mut self, piece: usize) -> Result<&mut [u8], GpuError> {
        let piece = &mut self.pieces[piece];
        if piece.travels {
            piece.arrived.synchronize()?;
            piece.travels = false;
        }
        Ok(piece.buffer.as_mut_slice())
    }

    fn send(&mut self, piece: usize, rows: usize, to: &DeviceSlice<'_>) -> Result<(), GpuError> {
        let piece = &mut self.pieces[piece];
        let (from, order) = (&piece.buffer, &self.order);
        let device = MemoryType::Device {
            ordinal: self.gpu.info().ordinal,
        };
        let mut known = KnownMemory::default();
        let mut add = |address: u64, len: usize, memory, seen| {
            known.add(address, len as u64, memory, seen);
            address
        };
        let host = add(
            from.address(),
            from.len(),
            MemoryType::Pinned,
            from.device_address(),
        );
        let sources = add(order.address(), order.len(), device, order.address());
        let request = Request {
            direction: Direction::Gather,
            spec: self.layout.spec(to.len()),
            host,
            device: add(to.address(), to.len(), device, to.address()),
            pairs: PairsAt {
                source: sources,
                destination: host + self.layout.places_at as u64,
                step: 1,
                integer: IndexType::I64,
                count: rows as u64,
                layer_step: 0,
            },
            count: None,
            map: None,
            out_of_range: None,
        };
        let copy = RowCopy::new(&self.gpu, &request, &known)?;
        // From here on, `arrived` and `wait_idle` wait for it, even after a failure.
        piece.travels = true;
        // SAFETY: piece and order belong to this ring, which the delivery borrows. `arrived` lends
        // the piece for writing only after the event after the copy has passed, and the memory is
        // not freed earlier. The delivery also borrows the destination. It waits for all copies
        // before it ends, and it cannot be leaked, because only `deliver` owns it.
        unsafe { copy.enqueue(&self.stream) }?;
        if let Err(error) = self.stream.record(&piece.arrived) {
            // The event still marks an earlier copy, so wait for this one here.
            let _ = self.wait_idle();
            return Err(error);
        }
        Ok(())
    }

    fn wait_idle(&mut self) -> Result<(), GpuError> {
        if self.pieces.iter().all(|piece| !piece.travels) {
            return Ok(());
        }
        let synchronized = self.stream.synchronize();
        // If that failed, the context is lost, and nothing is in flight either.
        let pieces = self.pieces.iter_mut();
        pieces.for_each(|piece| piece.travels = false);
        synchronized
    }
}
