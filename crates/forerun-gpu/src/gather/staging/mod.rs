//! Sends rows to a device through a few pieces of pinned memory. The CPU fills one piece while
//! earlier ones are in flight.
//!
//! ```text
//!              rows               places
//!   piece 0   | r0 r1 r2 ... rn |  5 0 9 ... |     in flight: the row gather copies row i to place i of the destination
//!   piece 1   | r0 r1 r2 ... rn |  7 2 1 ... |     in flight, after it
//!   piece 2   | r0 r1 ...       |  3 8       |     being filled by the CPU
//!   piece 3   |                 |            |     has arrived: it is filled next
//! ```
//!
//! A gather reads host memory when it runs. So rows that other threads may write at that time are
//! first copied to a piece, in sequence, and sent from there. A piece is filled again after its
//! gather has run. A delivery ends when all gathers have run.
//!
//! Without a GPU the same ring carries rows to ordinary memory: the CPU's gather copies a piece to
//! its places immediately.
//!
//! | file             | holds |
//! |------------------|-------|
//! | `destination.rs` | destinations of rows |
//! | `pieces.rs`      | the pieces, in pinned or ordinary memory, and how one is sent |

mod destination;
mod pieces;

pub use destination::Destination;

use crate::gather_error::{GatherError, Operand, Side};
use crate::{Gpu, GpuError};
use pieces::{CpuPieces, GpuPieces, Route};
use std::fmt;

/// Bytes of a piece, unless a row is longer. A launch costs a few microseconds, in which the link
/// carries about this many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces of a ring: one is filled, one is in flight, and two absorb short delays on either side.
const PIECES: usize = 4;

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingShape {
    /// Bytes per row.
    pub row_bytes: usize,
    /// Rows per piece; 0 counts as 1.
    pub piece_rows: usize,
    /// Number of pieces; 0 counts as 1.
    pub pieces: usize,
}

impl StagingShape {
    /// Four pieces of 256 KiB, or of one row each if that is longer. The sizes are a prediction:
    /// they have not been measured on a GPU yet.
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

/// Pieces of memory through which rows reach a destination. Create it once and reuse it, because
/// pinning memory is slow.
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
    /// A ring to device memory, in pinned memory, with its own stream.
    ///
    /// # Errors
    /// Out of memory, or the driver's error.
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

    /// The ring's size.
    pub fn shape(&self) -> StagingShape {
        self.shape
    }

    /// Runs `work`, which sends rows, and returns when all have arrived, even if `work` fails or
    /// panics. It does not wait for other streams' work on the destination: order that with events
    /// or the end of a scope.
    ///
    /// # Errors
    /// The ring does not lead to this destination; the error of `work`; otherwise the device's
    /// error.
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
            part: Operand::Rows(Side::Device),
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

/// A delivery of rows, created by [`StagingRing::deliver`].
pub struct Delivery<'a> {
    shape: StagingShape,
    route: Route<'a>,
    /// Number of rows that fit into the destination.
    rows_there: usize,
    /// The piece being filled, and the number of rows in it.
    piece: usize,
    filled: usize,
}

impl Delivery<'_> {
    /// The size of its ring.
    pub fn shape(&self) -> StagingShape {
        self.shape
    }

    /// Returns space for at least this many rows, at most a [piece](StagingShape)'s: the rest of
    /// the current piece, or the next one, after waiting for it if it is still in flight. Its
    /// content is left over from earlier rows.
    ///
    /// # Errors
    /// More rows than a piece has, or the device's error.
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

    /// Sends the first of the [reserved rows](Delivery::reserve), each to its place in the
    /// destination, counted in rows. If two rows have the same place, that place gets either row or
    /// a mix of both.
    ///
    /// # Errors
    /// There are more rows than reserved, or a place is beyond the destination: none of the rows is
    /// sent. Otherwise the device's error.
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

    /// Sends the current piece.
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
        // An error here means that the context is lost with all work on it, so nothing touches
        // memory any more. If all went well, there is nothing left to wait for.
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
