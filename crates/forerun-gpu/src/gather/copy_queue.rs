//! Copies on the streams of others: checked, enqueued, and nothing waited for.
//!
//! ```text
//!   request ── check ── plan ──┬─ indices and tables the device reaches:  launch
//!                              ├─ otherwise, in a piece of pinned memory: launch, record the piece's event
//!                              ├─ in a capture: the graph keeps the piece, launch
//!                              └─ long rows whose indices the CPU has:    one call for the copy engine
//! ```
//!
//! A steady call makes exactly these calls on the stream. It allocates no device or pinned memory,
//! waits for nothing, and never uses the default stream unless the caller names it. `piece_ring.rs`
//! has the pinned memory.

use super::cpu::{self, Indices, Pairs};
use super::known_memory::{KnownMemory, LocatedRanges};
use super::launch_checks::{Checked, Target, check};
use super::piece_ring::{Kept, PieceRing, Taken};
use super::planned::Planned;
use super::request::{Absent, Request};
use crate::driver::{BatchCall, DeviceBuffer, Stream, copy_from_device};
use crate::gather_error::GatherError;
use crate::memory_type::MemoryType;
use crate::{Gpu, GpuError};
use forerun_core::sync::atomic::{AtomicU64, Ordering};
use std::convert::Infallible;
use std::fmt;

/// Rows from this size on are copied by the copy engine, if the CPU has their indices. On an H200,
/// such a copy takes 1.2 us of the driver's time, in which the link carries about 64 KiB, and no
/// multiprocessor.
pub const BATCH_ROW_BYTES_MIN: u64 = 64 << 10;

/// Where the indices of a queued copy are.
#[derive(Clone, Copy, Debug)]
pub enum QueuedPairs<'a> {
    /// In memory that the device reaches, as the request says.
    Reached,
    /// In slices, which may be reused when the call returns. The request's pairs are ignored.
    Copied(Pairs<'a>),
    /// The sources in a slice of the request's type, the destinations as the request says.
    CopiedSources(Indices<'a>),
    /// The destinations in a slice of the request's type, the sources as the request says.
    CopiedDestinations(Indices<'a>),
}

/// A copy for [`CopyQueue::enqueue`].
pub struct QueuedCopy<'a> {
    /// The copy. Without a counter of its own, the queue's counts the indices out of range.
    pub request: Request,
    /// Whether the rows of both sides are in the device's memory.
    pub within_device: bool,
    /// Where the indices are.
    pub pairs: QueuedPairs<'a>,
    /// What is kept until the copy has run, or as long as the graph that captures it. It is dropped
    /// during a later call.
    pub kept: Option<Kept>,
}

impl fmt::Debug for QueuedCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedCopy")
            .field("request", &self.request)
            .field("within_device", &self.within_device)
            .finish_non_exhaustive()
    }
}

/// Copies between plain addresses, on streams that belong to others. One per device is enough: any
/// number of threads may use it.
///
/// ```no_run
/// use forerun_gpu::gather::{CopyQueue, QueuedCopy, QueuedPairs, Request, cpu};
/// use forerun_gpu::{Gpu, GpuError, Stream};
///
/// /// # Safety
/// /// As for `CopyQueue::enqueue`.
/// unsafe fn load(queue: &CopyQueue, stream: &Stream, request: Request) -> Result<(), GpuError> {
///     let pairs = cpu::Pairs::interleaved(cpu::Indices::I64(&[7, 0, 2, 1]))?;
///     let copy = QueuedCopy {
///         request,
///         within_device: false,
///         pairs: QueuedPairs::Copied(pairs),
///         kept: None,
///     };
///     unsafe { queue.enqueue(stream, copy) } // the copy may not have begun when this returns
/// }
/// ```
pub struct CopyQueue {
    gpu: Gpu,
    ring: PieceRing,
    /// For reading the counter.
    own: Stream,
    counter: DeviceBuffer,
    /// Indices out of range that the CPU has seen.
    counted_by_cpu: AtomicU64,
}

impl CopyQueue {
    /// A queue for a device. Its pinned memory is allocated when it is needed.
    ///
    /// # Errors
    /// Out of memory, or the driver's error.
    pub fn new(gpu: &Gpu) -> Result<CopyQueue, GpuError> {
        let own = Stream::new(gpu)?;
        let counter = DeviceBuffer::new(gpu, 8)?;
        counter.fill_on(&own, 0)?;
        Ok(CopyQueue {
            gpu: gpu.clone(),
            ring: PieceRing::new(gpu),
            own,
            counter,
            counted_by_cpu: AtomicU64::new(0),
        })
    }

    /// The queue's device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Enqueues a copy on a stream and returns. If the stream is being captured, the graph keeps
    /// the indices that were copied; those in memory are read at each replay.
    ///
    /// # Safety
    /// Until the copy has run, all memory of the request must stay allocated, and the host must not
    /// write it, nor read what the copy writes. If the stream is being captured, the same holds for
    /// each replay.
    ///
    /// # Errors
    /// A [`GatherError`], or the driver's error. If the copy was enqueued all the same, it has run.
    pub unsafe fn enqueue(&self, stream: &Stream, copy: QueuedCopy<'_>) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the copy")?;
        let _current = self.gpu.bind()?;
        let QueuedCopy {
            mut request,
            within_device,
            pairs,
            kept,
        } = copy;
        let slices = point_at_slices(&mut request, pairs)?;
        let has_own_counter = request.out_of_range.is_none();
        request.out_of_range.get_or_insert(self.counter.address());
        let checked = self.check(&request, within_device, slices)?;
        let is_batched = has_own_counter
            && !within_device
            && matches!(pairs, QueuedPairs::Copied(_))
            && may_be_batched(&request, stream);
        if is_batched
            && let Ok(call) = BatchCall::find()
            && stream.captured_into()?.is_none()
        {
            // SAFETY: the caller guarantees the memory, and the indices are in slices.
            return unsafe { self.batch(stream, call, &request, &checked, kept) };
        }
        let mut planned = Planned::of_checked(&self.gpu, &request, checked)?;
        if planned.is_empty() {
            return Ok(());
        }
        let index_bytes: usize = slices.iter().flatten().map(bytes_of).sum();
        let bytes = index_bytes + planned.table_bytes();
        if bytes == 0 && kept.is_none() {
            // SAFETY: the caller guarantees the memory, and there is no table.
            return unsafe { planned.launch(stream) };
        }
        let mut taken = self.ring.take(stream, bytes, kept)?;
        fill(&mut taken, &mut planned, slices);
        match stream.captured_into()? {
            None => {
                // SAFETY: the caller guarantees the memory. The piece is not filled again before
                // its event, which follows the launch, has passed.
                unsafe { planned.launch(stream) }?;
                taken.launched(stream)
            }
            Some(graph) => {
                graph.keep(taken.for_graph())?;
                // SAFETY: the caller guarantees the memory, also during replays, and the graph
                // keeps the piece as long as there can be one.
                unsafe { planned.launch(stream) }
            }
        }
    }

    /// How many indices were neither a row nor -1, in all copies that have run and that had no
    /// counter of their own. Waits for a copy of eight bytes.
    ///
    /// # Errors
    /// The driver's error.
    pub fn out_of_range(&self) -> Result<u64, GpuError> {
        let mut counted = [0; 8];
        // SAFETY: the counter has eight bytes. Kernels only add to it.
        unsafe { copy_from_device(&self.own, self.counter.address(), &mut counted) }?;
        // Relaxed: it is only a sum.
        let by_cpu = self.counted_by_cpu.load(Ordering::Relaxed);
        Ok(u64::from_ne_bytes(counted) + by_cpu)
    }

    /// Checks a request whose indices are in slices or in memory that the device reaches.
    fn check(
        &self,
        request: &Request,
        within_device: bool,
        slices: [Option<Indices<'_>>; 2],
    ) -> Result<Checked, GpuError> {
        let ordinal = self.gpu.info().ordinal;
        let mut own = KnownMemory::default();
        let (counter, len) = (self.counter.address(), self.counter.len() as u64);
        own.add(counter, len, MemoryType::Device { ordinal }, counter);
        for slice in slices.iter().flatten() {
            // The device will read a copy of it.
            let (start, len) = (slice.address(), bytes_of(slice) as u64);
            own.add(start, len, MemoryType::Pinned, start);
        }
        let target = if within_device {
            Target::WithinDevice { ordinal }
        } else {
            Target::Device { ordinal }
        };
        let memory = LocatedRanges::new(&own, &self.gpu);
        Ok(check(request, &memory, target)?)
    }

    /// Copies whole rows by the copy engine.
    ///
    /// # Safety
    /// That of [`CopyQueue::enqueue`], and the CPU must be able to read the indices.
    unsafe fn batch(
        &self,
        stream: &Stream,
        call: BatchCall,
        request: &Request,
        checked: &Checked,
        kept: Option<Kept>,
    ) -> Result<(), GpuError> {
        let row_bytes = request.spec.row_bytes;
        let (mut sources, mut destinations) = (Vec::<u64>::new(), Vec::<u64>::new());
        let mut sizes = Vec::<usize>::new();
        let add = |from: u64, to: u64| {
            if let (Some(source), Some(destination), Some(size)) =
                (sources.last(), destinations.last(), sizes.last_mut())
                && source + *size as u64 == from
                && destination + *size as u64 == to
            {
                // The rows follow each other on both sides.
                *size += row_bytes as usize;
                return;
            }
            sources.push(from);
            destinations.push(to);
            sizes.push(row_bytes as usize);
        };
        // SAFETY: as the caller guarantees.
        let wrong = unsafe { cpu::each_copy(request, checked, add) };
        // Relaxed: it is only a sum.
        self.counted_by_cpu.fetch_add(wrong, Ordering::Relaxed);
        if sizes.is_empty() {
            return Ok(());
        }
        let taken = match kept {
            None => None,
            kept => Some(self.ring.take(stream, 0, kept)?),
        };
        // SAFETY: `check` has verified that all rows are in memory that the device reaches. The
        // caller guarantees that it stays.
        let enqueued = unsafe { call.enqueue(stream, &destinations, &sources, &sizes) };
        if enqueued.is_err() {
            // Copies before the one that failed may be on the stream.
            let _ = stream.synchronize();
        }
        enqueued?;
        taken.map_or(Ok(()), |taken| taken.launched(stream))
    }
}

impl fmt::Debug for CopyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyQueue")
            .field("gpu", &self.gpu)
            .field("ring", &self.ring)
            .finish_non_exhaustive()
    }
}

/// Whether one call for the copy engine can make the copy. It cannot be on the default stream.
fn may_be_batched(request: &Request, stream: &Stream) -> bool {
    request.spec.row_bytes >= BATCH_ROW_BYTES_MIN
        && request.spec.absent == Absent::Skip
        && request.count.is_none()
        && request.map.is_none()
        && !stream.is_default()
}

/// Makes the request's pairs refer to the slices, and returns these.
fn point_at_slices<'a>(
    request: &mut Request,
    pairs: QueuedPairs<'a>,
) -> Result<[Option<Indices<'a>>; 2], GatherError> {
    let (slice, address) = match pairs {
        QueuedPairs::Reached => return Ok([None, None]),
        QueuedPairs::Copied(pairs) => {
            request.pairs = pairs.at();
            let (first, second) = pairs.slices();
            return Ok([Some(first), second]);
        }
        QueuedPairs::CopiedSources(slice) => (slice, &mut request.pairs.source),
        QueuedPairs::CopiedDestinations(slice) => (slice, &mut request.pairs.destination),
    };
    *address = slice.address();
    let pairs = &request.pairs;
    if slice.integer() != pairs.integer {
        return Err(GatherError::WrongType {
            given: "different types for source and destination".to_owned(),
        });
    }
    if slice.len() as u64 != pairs.count || pairs.step != 1 || pairs.layer_step != 0 {
        return Err(GatherError::LengthsDiffer {
            source_len: slice.len() as u64,
            destination_len: pairs.count,
        });
    }
    Ok([Some(slice), None])
}

fn bytes_of(slice: &Indices<'_>) -> usize {
    slice.len() * slice.integer().bytes() as usize
}

/// Writes one thing after another to a piece.
struct Filler<'a, 'ring> {
    taken: &'a mut Taken<'ring>,
    used: usize,
}

impl Filler<'_, '_> {
    /// Returns the device's address of what was written.
    fn append(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> u64 {
        let at = self.taken.device_address() + self.used as u64;
        write(&mut self.taken.bytes()[self.used..][..len]);
        self.used += len;
        at
    }
}

/// Copies tables and indices to the piece, and makes the launch read them there.
fn fill(taken: &mut Taken<'_>, planned: &mut Planned, slices: [Option<Indices<'_>>; 2]) {
    let mut filler = Filler { taken, used: 0 };
    // The tables come first, because their words are longer.
    let placed = planned.place_tables(|table| {
        Ok::<_, Infallible>(filler.append(size_of_val(table), |to| {
            let places = to.as_chunks_mut::<8>().0.iter_mut();
            places
                .zip(table)
                .for_each(|(place, word)| *place = word.to_ne_bytes());
        }))
    });
    let Ok(()) = placed;
    let params = &mut planned.params;
    let mut indices = [params.source_index, params.destination_index];
    for slice in slices.iter().flatten() {
        let (start, len) = (slice.address(), bytes_of(slice));
        let at = filler.append(len, |to| slice.copy_to(to));
        // Both are in one slice if they are interleaved.
        for (index, given) in indices
            .iter_mut()
            .zip([params.source_index, params.destination_index])
        {
            if holds((start, len as u64), given, slices[1].is_none()) {
                *index = at + (given - start);
            }
        }
    }
    [params.source_index, params.destination_index] = indices;
}

/// Whether the slice at `start` has the index at `given`. Two slices may overlap, and each has the
/// index at its own start; a single one has both if they are interleaved.
fn holds((start, len): (u64, u64), given: u64, is_single: bool) -> bool {
    if is_single {
        (start..start + len).contains(&given)
    } else {
        given == start
    }
}

#[cfg(test)]
mod tests {
    use super::holds;

    #[test]
    fn of_two_slices_that_overlap_each_has_its_own_index() {
        // Sources base[1..], destinations base[..-1].
        let (sources, destinations) = ((0x1008, 80), (0x1000, 80));
        assert!(holds(sources, 0x1008, false));
        assert!(!holds(destinations, 0x1008, false));
        assert!(holds(destinations, 0x1000, false));
        // Interleaved pairs.
        assert!(holds((0x1000, 160), 0x1008, true));
        assert!(!holds((0x1000, 160), 0x10a0, true));
    }
}
