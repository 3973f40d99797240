//! Pinned memory for what launches read: indices and tables of layers.
//!
//! ```text
//!              filled by the CPU      read by a launch          its event has passed
//!   free  ──take──>  Taken  ──launched──>  in flight, in order  ──────────> free
//!                      └──kept by a graph──>  the graph  ──destroyed──> returned ──> free
//!
//!   a piece:  | a power of two bytes, pinned |  event, recorded after the launch  |  kept objects
//! ```
//!
//! A steady call allocates nothing: it takes a piece whose launch has run, and asks the driver only
//! whether events have passed. A new piece is made while all of its size are in flight, up to
//! [`PINNED_BYTES_MAX`]; beyond that, a call waits for the oldest launch. Pieces of captured
//! launches belong to their graphs and do not count.

use crate::driver::{Event, HostMemory, PinnedBuffer, Stream};
use crate::{Gpu, GpuError};
use forerun_core::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// The maximum of pinned bytes in a ring, unless one call needs more. 256 KiB are the indices of
/// 16,384 pairs, and a launch of so many rows takes longer than a call.
pub(super) const PINNED_BYTES_MAX: usize = 64 << 20;

/// The size of the smallest piece.
const PIECE_BYTES_MIN: usize = 4096;

/// What a launch keeps alive until it has run, such as the owner of its memory.
pub type Kept = Box<dyn Any + Send>;

/// Memory of one launch.
struct Piece {
    /// `None` for a launch that only keeps objects.
    buffer: Option<PinnedBuffer>,
    /// Recorded after the launch.
    ran: Event,
    kept: Option<Kept>,
}

impl Piece {
    fn len(&self) -> usize {
        self.buffer.as_ref().map_or(0, PinnedBuffer::len)
    }
}

#[derive(Default)]
struct Pieces {
    /// By size.
    free: BTreeMap<usize, Vec<Piece>>,
    /// In the order of their launches.
    in_flight: VecDeque<Piece>,
    /// Bytes of both.
    bytes: usize,
}

impl Pieces {
    fn release(&mut self, mut piece: Piece) -> Option<Kept> {
        let kept = piece.kept.take();
        self.free.entry(piece.len()).or_default().push(piece);
        kept
    }

    fn take(&mut self, len: usize) -> Option<Piece> {
        self.free.get_mut(&len)?.pop()
    }

    /// Takes the free pieces of another size out of the ring until there is room for `len` bytes.
    fn shrink(&mut self, len: usize) -> Vec<Piece> {
        let mut removed = Vec::new();
        let sizes: Vec<usize> = self.free.keys().rev().copied().collect();
        for size in sizes {
            while self.bytes + len > PINNED_BYTES_MAX
                && let Some(piece) = self.take(size)
            {
                self.bytes -= size;
                removed.push(piece);
            }
        }
        removed
    }
}

struct Shared {
    pieces: Mutex<Pieces>,
    /// Pieces of graphs that were destroyed; `None` if the ring no longer exists. A thread of the
    /// driver takes this lock alone, which is never held during a call of the driver.
    returned: Mutex<Option<Vec<Piece>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change under a lock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pieces of a device. Any number of threads may use it.
pub(super) struct PieceRing {
    gpu: Gpu,
    shared: Arc<Shared>,
}

impl PieceRing {
    pub(super) fn new(gpu: &Gpu) -> PieceRing {
        PieceRing {
            gpu: gpu.clone(),
            shared: Arc::new(Shared {
                pieces: Mutex::default(),
                returned: Mutex::new(Some(Vec::new())),
            }),
        }
    }

    /// Takes a piece of at least `bytes` bytes, or one without memory for 0.
    ///
    /// # Errors
    /// Out of pinned memory, or an earlier launch failed.
    pub(super) fn take(&self, bytes: usize, kept: Option<Kept>) -> Result<Taken<'_>, GpuError> {
        let len = match bytes {
            0 => 0,
            bytes => bytes.max(PIECE_BYTES_MIN).next_power_of_two(),
        };
        let mut piece = match self.free_piece(len)? {
            Some(piece) => piece,
            None => self.new_piece(len)?,
        };
        piece.kept = kept;
        Ok(Taken {
            ring: self,
            piece: Some(piece),
        })
    }

    /// Takes a piece whose launch has run. Waits only if the ring is full.
    fn free_piece(&self, len: usize) -> Result<Option<Piece>, GpuError> {
        let returned = locked(&self.shared.returned).replace(Vec::new());
        // Dropped after the lock, because a drop may run anything.
        let mut no_longer_kept = Vec::new();
        let mut pieces = locked(&self.shared.pieces);
        for piece in returned.into_iter().flatten() {
            pieces.bytes += piece.len();
            no_longer_kept.extend(pieces.release(piece));
        }
        loop {
            while let Some(oldest) = pieces.in_flight.front() {
                if !oldest.ran.is_complete()? {
                    break;
                }
                let oldest = pieces.in_flight.pop_front();
                no_longer_kept.extend(oldest.and_then(|piece| pieces.release(piece)));
            }
            if let Some(piece) = pieces.take(len) {
                return Ok(Some(piece));
            }
            if pieces.bytes + len <= PINNED_BYTES_MAX {
                return Ok(None);
            }
            let removed = pieces.shrink(len);
            let oldest = if pieces.bytes + len > PINNED_BYTES_MAX {
                pieces.in_flight.pop_front()
            } else {
                None
            };
            // The lock is not held while this frees memory or waits.
            drop(pieces);
            drop(removed);
            let Some(oldest) = oldest else {
                return Ok(None);
            };
            let waited = oldest.ran.synchronize();
            pieces = locked(&self.shared.pieces);
            if let Err(error) = waited {
                // The launch may still read it.
                pieces.in_flight.push_front(oldest);
                return Err(error);
            }
            no_longer_kept.extend(pieces.release(oldest));
        }
    }

    fn new_piece(&self, len: usize) -> Result<Piece, GpuError> {
        let buffer = match len {
            0 => None,
            len => Some(PinnedBuffer::new(&self.gpu, len)?),
        };
        let ran = Event::untimed(&self.gpu)?;
        locked(&self.shared.pieces).bytes += len;
        Ok(Piece {
            buffer,
            ran,
            kept: None,
        })
    }
}

impl Drop for PieceRing {
    fn drop(&mut self) {
        let returned = locked(&self.shared.returned).take();
        drop(returned);
        let pieces = std::mem::take(&mut *locked(&self.shared.pieces));
        // An error means that the context is lost, so nothing reads the memory any more.
        for piece in &pieces.in_flight {
            let _ = piece.ran.synchronize();
        }
    }
}

impl fmt::Debug for PieceRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = locked(&self.shared.pieces);
        f.debug_struct("PieceRing")
            .field("bytes", &pieces.bytes)
            .field("in_flight", &pieces.in_flight.len())
            .finish()
    }
}

/// A piece that is being filled. If it is dropped, it is free again.
pub(super) struct Taken<'a> {
    ring: &'a PieceRing,
    piece: Option<Piece>,
}

impl Taken<'_> {
    fn buffer(&mut self) -> Option<&mut PinnedBuffer> {
        self.piece.as_mut()?.buffer.as_mut()
    }

    /// Its memory.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self.buffer() {
            Some(buffer) => buffer.as_mut_slice(),
            None => &mut [],
        }
    }

    /// The device's address of its memory.
    pub(super) fn device_address(&mut self) -> u64 {
        self.buffer().map_or(0, |buffer| buffer.device_address())
    }

    /// Hands the piece to the launch that was just put on a stream.
    ///
    /// # Errors
    /// The driver's error. The launch has run then, or the context is lost.
    pub(super) fn launched(mut self, stream: &Stream) -> Result<(), GpuError> {
        let Some(piece) = self.piece.take() else {
            return Ok(());
        };
        let recorded = stream.record(&piece.ran);
        if recorded.is_err() {
            // The event marks an earlier launch, so wait for this one here.
            let _ = stream.synchronize();
        }
        locked(&self.ring.shared.pieces).in_flight.push_back(piece);
        recorded
    }

    /// Takes the piece out of the ring for as long as the returned value lives.
    pub(super) fn for_graph(mut self) -> OfGraph {
        let piece = self.piece.take();
        let len = piece.as_ref().map_or(0, Piece::len);
        locked(&self.ring.shared.pieces).bytes -= len;
        OfGraph {
            shared: self.ring.shared.clone(),
            piece,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            // Its event marks an earlier launch, which has run.
            let kept = locked(&self.ring.shared.pieces).release(piece);
            drop(kept);
        }
    }
}

/// A piece of a captured launch. When the graph is destroyed, the piece returns to the ring, which
/// drops what it keeps in a later call, because this drop must not call the driver. Without a ring
/// the piece is leaked.
pub(super) struct OfGraph {
    shared: Arc<Shared>,
    piece: Option<Piece>,
}

impl Drop for OfGraph {
    fn drop(&mut self) {
        match locked(&self.shared.returned).as_mut() {
            Some(returned) => returned.extend(self.piece.take()),
            None => std::mem::forget(self.piece.take()),
        }
    }
}
