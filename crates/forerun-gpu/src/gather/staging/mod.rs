//! Rows on their way to a device by way of a few pieces of pinned memory, each filled while those
//! before it travel.
//!
//! ```text
//!              rows               places
//!   piece 0   | r0 r1 r2 ... rn |  5 0 9 ... |     travels: the row gather takes row i to place i of the destination
//!   piece 1   | r0 r1 r2 ... rn |  7 2 1 ... |     travels, behind it
//!   piece 2   | r0 r1 ...       |  3 8       |     is being filled by the CPU
//!   piece 3   |                 |            |     has arrived: is next
//! ```
//!
//! A gather reads the host's memory when it runs. Rows that others may write meanwhile are
//! therefore copied here first, one behind the other, and travel from here. A piece is filled again
//! when its gather has run; a delivery ends when all have.
//!
//! Without a GPU the same ring carries rows to ordinary memory: the CPU's gather takes a piece to
//! its places at once.
//!
//! | file             | holds |
//! |------------------|-------|
//! | `destination.rs` | where rows go |
//! | `pieces.rs`      | the pieces, in pinned memory or in ordinary, and how one travels |

mod destination;
mod pieces;

pub use destination::Destination;

use super::error::{GatherError, Part, Side};
use crate::{Gpu, GpuError};
use pieces::{CpuPieces, GpuPieces, Route};
use std::fmt;

/// Bytes of a piece, unless a row has more. A launch costs some microseconds, in which the link
/// carries about as much.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces of a ring: one is filled, one travels, and two keep a moment's delay on either side from
/// the other.
const PIECES: usize = 4;

/// How much a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingShape {
    /// Bytes a row.
    pub row_bytes: usize,
    /// Rows a piece; 0 counts as 1.
    pub piece_rows: usize,
    /// Pieces; 0 counts as 1.
    pub pieces: usize,
}

impl StagingShape {
    /// Four pieces of 256 KiB, or of a row each if that is longer. The sizes are a prediction:
    /// nothing of it has been measured on a GPU yet.
    pub fn of(row_bytes: usize) -> StagingShape {
        StagingShape {
            row_bytes,
            piece_rows: (PIECE_BYTES / row_bytes.max(1)).max(1),
            pieces: PIECES,
        }
    }

    fn bounded(self) -> StagingShape {
        StagingShape {
            piece_rows: self.piece_rows.max(1),
            pieces: self.pieces.max(1),
            ..self
        }
    }
}

/// Pieces of memory by way of which rows reach a destination. Made once and used again: to pin
/// memory takes long.
///
/// ```
/// use forerun_gpu::gather::{Destination, StagingRing, StagingShape};
/// use forerun_gpu::GpuError;
///
/// let mut ring = StagingRing::on_cpu(StagingShape::of(2))?;
/// let mut rows = [0; 8];
/// ring.deliver(&mut Destination::from(&mut rows[..]), |delivery| {
///     delivery.reserve(2)?[..4].copy_from_slice(b"upon");
///     delivery.commit(&[3, 0]) // two rows: the first goes to place 3, the second to place 0
/// })?;
/// assert_eq!(&rows, b"on\0\0\0\0up");
/// # Ok::<(), GpuError>(())
/// ```
pub struct StagingRing {
    shape: StagingShape,
    pieces: Pieces,
}

enum Pieces {
    Gpu(GpuPieces),
    Cpu(CpuPieces),
}

impl StagingRing {
    /// A ring to a device's memory, in pinned memory, with a stream of its own.
    ///
    /// # Errors
    /// No room; the driver's.
    pub fn on_gpu(gpu: &Gpu, shape: StagingShape) -> Result<StagingRing, GpuError> {
        let shape = shape.bounded();
        Ok(StagingRing {
            shape,
            pieces: Pieces::Gpu(GpuPieces::new(gpu, shape)?),
        })
    }

    /// A ring to ordinary memory, in ordinary memory.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn on_cpu(shape: StagingShape) -> Result<StagingRing, GpuError> {
        let shape = shape.bounded();
        Ok(StagingRing {
            shape,
            pieces: Pieces::Cpu(CpuPieces::new(shape)?),
        })
    }

    /// How much it holds.
    pub fn shape(&self) -> StagingShape {
        self.shape
    }

    /// Runs `work`, which puts rows on their way, and returns when all have arrived, be it that
    /// `work` fails or panics. It does not wait for work of other streams on the destination: order
    /// that by events, or by a scope's end.
    ///
    /// # Errors
    /// A destination that the ring does not lead to; what `work` gives; else the device's.
    pub fn deliver<T, E: From<GpuError>>(
        &mut self,
        to: &mut Destination<'_>,
        work: impl FnOnce(&mut Delivery<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut delivery = Delivery {
            shape: self.shape,
            rows_there: to.len() / self.shape.row_bytes.max(1),
            route: self.route(to)?,
            piece: 0,
            filled: 0,
        };
        let done = work(&mut delivery)?;
        delivery.send()?;
        delivery.route.wait_idle()?;
        Ok(done)
    }

    fn route<'r>(&'r mut self, to: &'r mut Destination<'_>) -> Result<Route<'r>, GpuError> {
        let wrong = |address, expected, found| GatherError::WrongMemory {
            part: Part::Rows(Side::Device),
            address,
            expected,
            found,
        };
        let (device, host) = ("device memory", "ordinary host memory");
        match (&mut self.pieces, to) {
            (Pieces::Gpu(pieces), Destination::Device(to)) => {
                pieces.expect(to.gpu())?;
                Ok(Route::Gpu(pieces, to))
            }
            (Pieces::Cpu(pieces), Destination::Memory(to)) => Ok(Route::Cpu(pieces, to)),
            (Pieces::Gpu(_), Destination::Memory(to)) => {
                Err(wrong(to.as_ptr() as u64, device, host).into())
            }
            (Pieces::Cpu(_), Destination::Device(to)) => {
                Err(wrong(to.address(), host, device).into())
            }
        }
    }
}

impl fmt::Debug for StagingRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = match &self.pieces {
            Pieces::Gpu(pieces) => Some(pieces.gpu()),
            Pieces::Cpu(_) => None,
        };
        f.debug_struct("StagingRing")
            .field("shape", &self.shape)
            .field("gpu", &gpu)
            .finish()
    }
}

/// Rows on their way; made by [`StagingRing::deliver`].
pub struct Delivery<'a> {
    shape: StagingShape,
    route: Route<'a>,
    /// Rows that the destination has room for.
    rows_there: usize,
    /// The piece that is being filled, and the rows in it.
    piece: usize,
    filled: usize,
}

impl Delivery<'_> {
    /// How much its ring holds.
    pub fn shape(&self) -> StagingShape {
        self.shape
    }

    /// Room for at least so many rows, at most a [piece](StagingShape)'s: all that the present
    /// piece has left, or the next one, for which it waits if it still travels. What is there is
    /// left over from others.
    ///
    /// # Errors
    /// More rows than a piece has; the device's.
    pub fn reserve(&mut self, rows: usize) -> Result<&mut [u8], GpuError> {
        if rows > self.shape.piece_rows {
            return Err(self.beyond_piece(0, rows));
        }
        if rows > self.shape.piece_rows - self.filled {
            self.send()?;
        }
        let from = self.filled * self.shape.row_bytes;
        Ok(&mut self.route.rows(self.piece)?[from..])
    }

    /// Takes the first rows of the [reserved rows](Delivery::reserve), each to its place in the
    /// destination, counted in rows. Of two rows with one place either may be there in the end, or
    /// a mix of both.
    ///
    /// # Errors
    /// More rows than there is room for, a place beyond the destination: none of them goes. The
    /// device's.
    pub fn commit(&mut self, places: &[u64]) -> Result<(), GpuError> {
        if places.len() > self.shape.piece_rows - self.filled {
            return Err(self.beyond_piece(self.filled, places.len()));
        }
        if let Some(&place) = places.iter().find(|&&at| at >= self.rows_there as u64) {
            let row_bytes = self.shape.row_bytes as u64;
            return Err(GpuError::OutOfBounds {
                offset: place.saturating_mul(row_bytes),
                len: row_bytes,
                buffer_len: (self.rows_there as u64).saturating_mul(row_bytes),
            });
        }
        self.route.record(self.piece, self.filled, places)?;
        self.filled += places.len();
        if self.filled == self.shape.piece_rows {
            self.send()?;
        }
        Ok(())
    }

    /// Lets the present piece travel.
    fn send(&mut self) -> Result<(), GpuError> {
        if self.filled == 0 {
            return Ok(());
        }
        self.route.send(self.piece, self.filled)?;
        self.piece = (self.piece + 1) % self.shape.pieces;
        self.filled = 0;
        Ok(())
    }

    fn beyond_piece(&self, from: usize, rows: usize) -> GpuError {
        let bytes = |rows: usize| rows.saturating_mul(self.shape.row_bytes) as u64;
        GpuError::OutOfBounds {
            offset: bytes(from),
            len: bytes(rows),
            buffer_len: bytes(self.shape.piece_rows),
        }
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        // An error here means that the context is lost, and with it all work on it: nothing touches
        // memory any more. Where all went well, this waits for nothing.
        let _ = self.route.wait_idle();
    }
}

impl fmt::Debug for Delivery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("shape", &self.shape)
            .field("piece", &self.piece)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}
