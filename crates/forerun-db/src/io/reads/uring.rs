//! Reads through io_uring: one system call starts the reads of a round and collects what has
//! completed.
//!
//! ```text
//!   waiting ──> in_flight[slot], owns buffer and file ──> submission queue ──> kernel
//!                 │ ^                                                         │
//!       done <────┘ └── rest of a short read <──────── completion queue <─────┘
//! ```
//!
//! A ring stays with its thread between batches, because creating one costs as much as a read. A
//! batch takes it out while it runs; a nested batch creates another.
//!
//! # Soundness
//!
//! The kernel writes into a buffer from the moment its entry is submitted until its completion is
//! reaped. All that time the buffer and the file stay in `in_flight`: nothing reads, moves or frees
//! the buffer's bytes. Dropping a ring waits until no read is in flight; if even that fails, the
//! buffers are leaked.

#![allow(
    unsafe_code,
    reason = "the kernel writes into buffers: each place says why they are there for it"
)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forerun_core::sync::{thread, time};
use forerun_core::{Owner, PerProcess, Wait, open_above_standard_streams};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::{Done, Engine, Progress};

/// Entries of a ring: the maximum number of reads of a batch in flight.
const ENTRIES: u32 = 128;

/// The longest read that the kernel accepts at once; a longer one would come back short anyway.
const READ_BYTES_MAX: usize = 1 << 30;

thread_local! {
    /// The ring of this thread, while no batch uses it.
    static KEPT: RefCell<Option<Inner>> = const { RefCell::new(None) };
}

/// What the kernel has said to requests for rings.
struct Refusals {
    begun: Instant,
    /// It has refused one for good, so later batches do not ask again.
    for_good: AtomicBool,
    /// It lacked descriptors or memory for one, so batches do not ask again before this time, in
    /// milliseconds from the beginning; 0 if it has granted the last one.
    lacks_until_ms: AtomicU64,
}

/// How often the kernel has lacked descriptors or memory for a ring of this process. It is no part
/// of [`Refusals`], so that statistics read no clock: a simulated one would count the step.
static LACKS: AtomicU64 = AtomicU64::new(0);

/// [`LACKS`].
pub(super) fn lacks() -> u64 {
    // Relaxed: a count that orders nothing.
    LACKS.load(Ordering::Relaxed)
}

fn refusals() -> &'static Refusals {
    static REFUSALS: PerProcess<Refusals> = PerProcess::new();
    REFUSALS.get_or_init(|| Refusals {
        begun: time::now(),
        for_good: AtomicBool::new(false),
        lacks_until_ms: AtomicU64::new(0),
    })
}

/// How long batches use the pool before they ask again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A ring, taken from its thread; dropping it returns it.
pub(super) struct Ring {
    /// `Some` until dropped.
    inner: Option<Inner>,
}

struct Inner {
    /// Every child of this process shares the ring. Submitting to it or reaping from it in a child
    /// would take the parent's entries, whose buffers belong to the parent.
    owner: Owner,
    ring: IoUring,
    /// By slot: the reads whose entries the kernel has or is about to get.
    in_flight: Vec<Option<Progress>>,
    /// Slots without a read.
    free: Vec<u32>,
    /// Reads that have no slot yet, and the rest of short reads.
    waiting: VecDeque<Progress>,
    /// The kernel has refused a call that it should never refuse, so the ring is not used again.
    broken: bool,
}

impl Ring {
    /// This thread's ring. `None` if the kernel does not grant one.
    pub(super) fn take() -> Option<Ring> {
        // A thread that is ending may already have lost its thread-local values.
        let kept = KEPT.try_with(|kept| kept.borrow_mut().take()).ok()?;
        // A ring inherited from the parent's thread is unmapped and closed in this process, which
        // does not affect it there.
        let inner = match kept.filter(|inner| inner.owner.is_this_process()) {
            Some(inner) => inner,
            None => Ring::ask(Inner::new)?,
        };
        Some(Ring { inner: Some(inner) })
    }

    /// Asks the kernel for a ring with `make`, unless it has just refused one.
    fn ask(make: impl FnOnce() -> io::Result<Inner>) -> Option<Inner> {
        let refusals = refusals();
        let now_ms = time::elapsed(refusals.begun).as_millis() as u64;
        // Relaxed, here and below: the words publish nothing but themselves. Threads that ask at
        // the same time may each log the answer.
        let lacks_until_ms = refusals.lacks_until_ms.load(Ordering::Relaxed);
        if refusals.for_good.load(Ordering::Relaxed) || now_ms < lacks_until_ms {
            return None;
        }
        match make() {
            Ok(inner) => {
                if lacks_until_ms > 0 {
                    refusals.lacks_until_ms.store(0, Ordering::Relaxed);
                    tracing::info!("reads use io_uring again");
                }
                Some(inner)
            }
            Err(error) if is_temporary(&error) => {
                if lacks_until_ms == 0 {
                    tracing::warn!(%error, "no ring for io_uring now: reads use a pool of threads");
                }
                LACKS.fetch_add(1, Ordering::Relaxed);
                let until_ms = now_ms + RETRY_AFTER.as_millis() as u64;
                refusals.lacks_until_ms.store(until_ms, Ordering::Relaxed);
                None
            }
            Err(error) => {
                refusals.for_good.store(true, Ordering::Relaxed);
                tracing::info!(%error, "the kernel refuses io_uring: reads use a pool of threads");
                None
            }
        }
    }

    /// Makes the kernel seem to answer the next request for a ring with this error. Returns whether
    /// it was asked.
    #[cfg(test)]
    pub(super) fn answer(error: i32) -> bool {
        let mut is_asked = false;
        let ring = Ring::ask(|| {
            is_asked = true;
            Err(io::Error::from_raw_os_error(error))
        });
        assert!(ring.is_none());
        is_asked
    }

    /// Ends the time for which batches do not ask again.
    #[cfg(test)]
    pub(super) fn end_wait() {
        refusals().lacks_until_ms.store(1, Ordering::Relaxed);
    }

    /// Makes the kernel seem to refuse rings, or to grant them again. Returns the previous setting.
    #[cfg(test)]
    pub(super) fn refuse(refused: bool) -> bool {
        let _ = KEPT.try_with(|kept| kept.borrow_mut().take());
        refusals().for_good.swap(refused, Ordering::Relaxed)
    }
}

/// Whether the kernel lacks something that it may have later.
fn is_temporary(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR)
    )
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else {
            return;
        };
        if !inner.owner.is_this_process() {
            // The process was forked while this batch was running. The reads in flight belong to
            // the parent.
            return std::mem::forget(inner);
        }
        inner.drain();
        if !inner.broken {
            let _ = KEPT.try_with(|kept| *kept.borrow_mut() = Some(inner));
        }
    }
}

impl Engine for Ring {
    fn turn(&mut self, reads: &mut Vec<Progress>, wait: Wait, done: &mut Vec<Done>) {
        let Some(inner) = &mut self.inner else {
            return;
        };
        inner.waiting.extend(reads.drain(..));
        inner.turn(wait, done);
    }

    fn in_flight(&self) -> usize {
        self.inner.as_ref().map_or(0, Inner::in_flight)
    }
}

impl Inner {
    fn new() -> io::Result<Inner> {
        // A ring that a single thread submits to, and whose completions are processed by that
        // thread when it asks for them, so that they do not interrupt the search. Older kernels
        // have only the plain ring.
        let ring = open_above_standard_streams(|| {
            IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .build(ENTRIES)
                .or_else(|_| IoUring::new(ENTRIES))
        })?;
        Ok(Inner {
            owner: Owner::this_process(),
            ring,
            in_flight: (0..ENTRIES).map(|_| None).collect(),
            free: (0..ENTRIES).rev().collect(),
            waiting: VecDeque::new(),
            broken: false,
        })
    }

    fn submitted(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    fn in_flight(&self) -> usize {
        self.submitted() + self.waiting.len()
    }

    fn turn(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        loop {
            let began = self.enqueue();
            let sleep = wait == Wait::ForOne && done.len() == before && self.in_flight() > 0;
            // Completions that wait to be processed become visible only through a call.
            if began || sleep || self.ring.submission().taskrun() {
                self.enter(usize::from(sleep));
            }
            self.reap(done);
            if self.broken {
                return self.finish_by_calls(done);
            }
            let enough = wait == Wait::Never || done.len() > before || self.in_flight() == 0;
            // The remainders of short reads start at once.
            let more = !self.waiting.is_empty() && !self.free.is_empty();
            if enough && !more {
                return;
            }
        }
    }

    /// Puts waiting reads into the submission queue. Returns whether there were any.
    fn enqueue(&mut self) -> bool {
        let mut began = false;
        while !self.waiting.is_empty()
            && let Some(slot) = self.free.pop()
            && let Some(read) = self.waiting.pop_front()
        {
            let read = self.in_flight[slot as usize].insert(read);
            let fd = types::Fd(read.file.as_raw_fd());
            let (offset, rest) = read.rest();
            let len = rest.len().min(READ_BYTES_MAX) as u32;
            let entry = opcode::Read::new(fd, rest.as_mut_ptr(), len)
                .offset(offset)
                .build()
                .user_data(u64::from(slot));
            // SAFETY: the buffer's bytes and the open file behind `fd` stay in `in_flight[slot]`
            // until `reap` has seen this slot's completion, or forever; until then nothing else
            // uses the buffer. (Moving the `Vec` that owns the bytes does not move them.)
            let pushed = unsafe { self.ring.submission().push(&entry) };
            // There are as many slots as entries, and each turn submits all, so the queue has
            // space.
            debug_assert!(pushed.is_ok());
            if pushed.is_err() {
                self.waiting.extend(self.in_flight[slot as usize].take());
                self.free.push(slot);
                break;
            }
            began = true;
        }
        began
    }

    /// Submits what is queued, and sleeps until `want` completions have arrived.
    fn enter(&mut self, want: usize) {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(_) => return,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    // The kernel has run out of a resource that completions release.
                    io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => {
                        if !self.ring.completion().is_empty() {
                            return;
                        }
                        thread::yield_now();
                    }
                    _ => {
                        self.broken = true;
                        return;
                    }
                },
            }
        }
    }

    /// Collects completed reads.
    fn reap(&mut self, done: &mut Vec<Done>) {
        for entry in self.ring.completion() {
            let slot = entry.user_data() as usize;
            let Some(mut read) = self.in_flight.get_mut(slot).and_then(Option::take) else {
                debug_assert!(false, "a completion without a read");
                continue;
            };
            self.free.push(slot as u32);
            let result = usize::try_from(entry.result())
                .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            match read.advance(result) {
                Some(result) => done.push(read.done(result)),
                None => self.waiting.push_back(read),
            }
        }
    }

    /// Ends every read after the ring has failed. It uses plain calls and other buffers, since the
    /// kernel may still write into the buffers it was given.
    fn finish_by_calls(&mut self, done: &mut Vec<Done>) {
        for (slot, in_flight) in self.in_flight.iter_mut().enumerate() {
            if let Some(mut read) = in_flight.take() {
                let buffer = vec![0; read.buffer.len()];
                std::mem::forget(std::mem::replace(&mut read.buffer, buffer));
                done.push(read.restart().finish());
                self.free.push(slot as u32);
            }
        }
        done.extend(self.waiting.drain(..).map(Progress::finish));
    }

    /// Waits until no read is in flight.
    fn drain(&mut self) {
        self.waiting.clear();
        let mut done = Vec::new();
        while self.submitted() > 0 && !self.broken {
            // Short reads are not continued.
            self.enter(1);
            self.reap(&mut done);
            self.waiting.clear();
        }
        if self.broken {
            for read in self.in_flight.iter_mut().filter_map(Option::take) {
                // The kernel may still write into the buffer, so it is never freed.
                std::mem::forget(read.buffer);
            }
        }
    }
}
