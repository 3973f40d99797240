//! Pinned memory for what launches read: indices and tables of layers.
//!
//! ```text
//!              filled by the CPU      read by a launch          its event has passed
//!   free  ──take──>  Taken  ──launched──>  in flight, by stream  ─────────> free
//!                      └──kept by a graph──>  the graph  ──destroyed──> returned ──> free
//!
//!   a piece:  | a power of two bytes, pinned |  event, recorded after the launch  |  kept objects
//! ```
//!
//! A steady call allocates nothing: it takes a piece whose launch has run, and asks the driver only
//! whether events have passed: that of the oldest launch of each stream, because a stream's pieces
//! are free in the order of its launches. A new piece is made while all of its size are in flight,
//! up to [`PINNED_BYTES_MAX`]; beyond that, a call waits for the oldest launch of its own stream.
//! It never waits for another stream, which may be stalled: if its own has none in flight, it gets
//! a piece all the same. Nor does it free memory while another stream has pieces in flight, because
//! the driver may wait for the device then; it takes a larger piece instead. Pieces of captured
//! launches belong to their graphs and do not count.

use crate::driver::{Event, HostMemory, PinnedBuffer, Stream};
use crate::{Gpu, GpuError};
use forerun_core::sync::thread::{self, ThreadId};
use forerun_core::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

/// The maximum of pinned bytes in a ring, unless one call of each stream needs more. 256 KiB are
/// the indices of 16,384 pairs, and a launch of so many rows takes longer than a call.
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

/// What tells a stream apart from the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct StreamKey {
    id: usize,
    /// Of the streams that each thread has by the same handle.
    thread: Option<ThreadId>,
}

impl StreamKey {
    fn of(stream: &Stream) -> StreamKey {
        StreamKey {
            id: stream.id(),
            thread: stream.is_per_thread().then(|| thread::current().id()),
        }
    }
}

#[derive(Default)]
struct Pieces {
    /// By size.
    free: BTreeMap<usize, Vec<Piece>>,
    /// By stream, in the order of their launches. No queue is empty.
    in_flight: HashMap<StreamKey, VecDeque<Piece>>,
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

    /// Takes the smallest free piece that is larger than `len`.
    fn take_larger(&mut self, len: usize) -> Option<Piece> {
        let mut larger = self.free.range_mut(len + 1..);
        larger.find_map(|(_, pieces)| pieces.pop())
    }

    /// Frees the pieces whose launches have run, and adds what they kept to a list.
    fn release_done(&mut self, no_longer_kept: &mut Vec<Kept>) -> Result<(), GpuError> {
        let mut asked = Ok(());
        let mut done = Vec::new();
        self.in_flight.retain(|_, of_stream| {
            while asked.is_ok()
                && let Some(oldest) = of_stream.front()
            {
                match oldest.ran.is_complete() {
                    Ok(true) => done.extend(of_stream.pop_front()),
                    Ok(false) => break,
                    Err(error) => asked = Err(error),
                }
            }
            !of_stream.is_empty()
        });
        for piece in done {
            no_longer_kept.extend(self.release(piece));
        }
        asked
    }

    /// Takes the oldest piece that is in flight on a stream.
    fn oldest_of(&mut self, stream: StreamKey) -> Option<Piece> {
        let of_stream = self.in_flight.get_mut(&stream)?;
        let oldest = of_stream.pop_front();
        if of_stream.is_empty() {
            self.in_flight.remove(&stream);
        }
        oldest
    }

    /// Whether a stream other than this one has pieces in flight.
    fn others_run(&self, stream: StreamKey) -> bool {
        self.in_flight.keys().any(|&key| key != stream)
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

    /// Takes a piece of at least `bytes` bytes, or one without memory for 0, for a launch on a
    /// stream.
    ///
    /// # Errors
    /// Out of pinned memory, or an earlier launch failed.
    pub(super) fn take(
        &self,
        stream: &Stream,
        bytes: usize,
        kept: Option<Kept>,
    ) -> Result<Taken<'_>, GpuError> {
        let len = match bytes {
            0 => 0,
            bytes => bytes.max(PIECE_BYTES_MIN).next_power_of_two(),
        };
        let mut piece = match self.free_piece(StreamKey::of(stream), len)? {
            Some(piece) => piece,
            None => self.new_piece(len)?,
        };
        piece.kept = kept;
        Ok(Taken {
            ring: self,
            piece: Some(piece),
        })
    }

    /// Takes a piece whose launch has run. Waits only if the ring is full, for the stream's own
    /// launches.
    fn free_piece(&self, stream: StreamKey, len: usize) -> Result<Option<Piece>, GpuError> {
        let returned = locked(&self.shared.returned).replace(Vec::new());
        // Dropped after the lock, because a drop may run anything.
        let mut no_longer_kept = Vec::new();
        let mut pieces = locked(&self.shared.pieces);
        for piece in returned.into_iter().flatten() {
            pieces.bytes += piece.len();
            no_longer_kept.extend(pieces.release(piece));
        }
        loop {
            pieces.release_done(&mut no_longer_kept)?;
            if let Some(piece) = pieces.take(len) {
                return Ok(Some(piece));
            }
            if len == 0 || pieces.bytes + len <= PINNED_BYTES_MAX {
                return Ok(None);
            }
            let removed = if pieces.others_run(stream) {
                if let Some(piece) = pieces.take_larger(len) {
                    return Ok(Some(piece));
                }
                Vec::new()
            } else {
                pieces.shrink(len)
            };
            let oldest = if pieces.bytes + len > PINNED_BYTES_MAX {
                pieces.oldest_of(stream)
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
                let of_stream = pieces.in_flight.entry(stream).or_default();
                of_stream.push_front(oldest);
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
        for piece in pieces.in_flight.values().flatten() {
            let _ = piece.ran.synchronize();
        }
    }
}

impl fmt::Debug for PieceRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = locked(&self.shared.pieces);
        let in_flight = pieces.in_flight.values().map(VecDeque::len);
        f.debug_struct("PieceRing")
            .field("bytes", &pieces.bytes)
            .field("in_flight", &in_flight.sum::<usize>())
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
        let mut pieces = locked(&self.ring.shared.pieces);
        let of_stream = pieces.in_flight.entry(StreamKey::of(stream)).or_default();
        of_stream.push_back(piece);
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
