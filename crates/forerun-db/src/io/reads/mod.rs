//! Reads of a whole batch: started together, taken as they complete.
//!
//! ```text
//!   push ─ push ─ push ─┐                        ┌─> Done, Done            the others go on
//!                       └ turn: begin all, reap ─┤
//!                                                └─> (ForOne) sleep until one is there
//! ```
//!
//! There are three backends: io_uring, if the kernel allows it; a pool of threads that call
//! `pread`; and the calling thread itself, one read after the other, for files that no one else
//! may read, such as those of [`FaultIo`](super::fault::FaultIo). This file holds what they
//! share: a read is complete or an error (`cached.rs` only tries). An interrupted or short read
//! continues where it stopped; the end of the file is an error.
//!
//! From `push` until its [`Done`] comes back, a buffer belongs to the queue, and so does the file:
//! a queue may be dropped or forgotten at any time.

pub(crate) mod cached;
mod pool;
#[cfg(target_os = "linux")]
mod uring;

use forerun_core::size::counted;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forerun_core::Wait;

use super::IoFile;
use pool::PoolReads;
#[cfg(target_os = "linux")]
use uring::Ring;

/// How often this process has got no ring for lack of descriptors or memory.
pub(crate) fn ring_refusals() -> u64 {
    #[cfg(target_os = "linux")]
    return uring::lacks();
    #[cfg(not(target_os = "linux"))]
    0
}

/// How pages that are not in the cache are read from files.
///
/// ```
/// use forerun_db::{Db, Options, ReadBackend};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default().reads(ReadBackend::Pool))?;
/// # drop(db);
/// assert_eq!("uring".parse(), Ok(ReadBackend::Uring));
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ReadBackend {
    /// What the system has in memory by the calling thread, the rest with io_uring if the kernel
    /// allows it, otherwise with the pool. A single read uses a plain call.
    #[default]
    Auto,
    /// With io_uring; if the kernel refuses it, with the pool.
    Uring,
    /// With a pool of threads.
    Pool,
    /// One at a time, by the calling thread.
    Sync,
}

impl ReadBackend {
    /// Every backend, for tests and measurements.
    pub const ALL: [ReadBackend; 4] = [
        ReadBackend::Auto,
        ReadBackend::Uring,
        ReadBackend::Pool,
        ReadBackend::Sync,
    ];

    /// The backend's name, as [`FromStr`](std::str::FromStr) reads it.
    pub fn name(self) -> &'static str {
        match self {
            ReadBackend::Auto => "auto",
            ReadBackend::Uring => "uring",
            ReadBackend::Pool => "pool",
            ReadBackend::Sync => "sync",
        }
    }
}

forerun_core::names! {
    ReadBackend, "read backend";
    /// A name that no read backend has.
    UnknownReadBackend
}

/// A read to do: it fills `buffer` from `offset` of a file.
pub(crate) struct Read<F> {
    pub(crate) file: F,
    pub(crate) offset: u64,
    pub(crate) buffer: Vec<u8>,
    /// Returned with the read.
    pub(crate) token: u32,
}

/// A finished read. The buffer is full if `result` is `Ok`; otherwise its contents are unspecified.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) token: u32,
    pub(crate) buffer: Vec<u8>,
    pub(crate) result: io::Result<()>,
}

/// A read in progress.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) file: Arc<File>,
    offset: u64,
    pub(super) buffer: Vec<u8>,
    filled: usize,
    token: u32,
}

impl Progress {
    fn new(read: Read<Arc<File>>) -> Self {
        Progress {
            file: read.file,
            offset: read.offset,
            buffer: read.buffer,
            filled: 0,
            token: read.token,
        }
    }

    /// Where the remaining bytes are read from and written to.
    #[inline]
    pub(super) fn rest(&mut self) -> (u64, &mut [u8]) {
        (
            self.offset + self.filled as u64,
            &mut self.buffer[self.filled..],
        )
    }

    /// Records what a call returned for the remaining bytes. `None`: there is more to read.
    pub(super) fn advance(&mut self, result: io::Result<usize>) -> Option<io::Result<()>> {
        match advance(&mut self.filled, self.buffer.len(), result) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    pub(super) fn done(self, result: io::Result<()>) -> Done {
        Done {
            token: self.token,
            buffer: self.buffer,
            result,
        }
    }

    /// The same read from the beginning, into a new buffer.
    #[cfg(target_os = "linux")]
    pub(super) fn restart(self) -> Progress {
        Progress { filled: 0, ..self }
    }

    /// Reads the remaining bytes with plain calls.
    pub(super) fn finish(mut self) -> Done {
        loop {
            let file = Arc::clone(&self.file);
            let (offset, rest) = self.rest();
            let result = file.read_at(rest, offset);
            if let Some(result) = self.advance(result) {
                return self.done(result);
            }
        }
    }
}

/// Records the result of a call in `filled`. Returns whether all `len` bytes have been read.
fn advance(filled: &mut usize, len: usize, result: io::Result<usize>) -> io::Result<bool> {
    match result {
        Ok(0) if *filled < len => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the file ends {} too early", counted(len - *filled, "byte")),
        )),
        Ok(got) => {
            *filled = len.min(*filled + got);
            Ok(*filled == len)
        }
        // The kernel may ask for an io_uring read to be retried.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Fills `buffer` from `offset` of a file, synchronously.
///
/// # Errors
/// The error of the failed call; `UnexpectedEof` if the file ends early.
pub(crate) fn read_exact_at(file: &dyn IoFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let result = file.read_at(&mut buffer[filled..], offset + filled as u64);
        advance(&mut filled, buffer.len(), result)?;
    }
    Ok(())
}

/// An engine for files that other threads, or the kernel, may also read.
pub(super) trait Engine {
    /// Starts all of `reads` and appends completed ones to `done`: with [`Wait::ForOne`], at least
    /// one if any is in progress.
    fn turn(&mut self, reads: &mut Vec<Progress>, wait: Wait, done: &mut Vec<Done>);

    /// The number of reads started and not yet returned.
    fn in_flight(&self) -> usize;
}

/// The reads of one batch, on files that live for `'f`.
pub(crate) struct BatchedReads<'f> {
    backend: ReadBackend,
    /// Chosen at the first read that it can take.
    engine: Option<Box<dyn Engine>>,
    /// Pushed and not yet started, for the engine.
    shared: Vec<Progress>,
    /// Pushed and not yet started, for this thread.
    own: Vec<Read<&'f dyn IoFile>>,
}

impl<'f> BatchedReads<'f> {
    pub(crate) fn new(backend: ReadBackend) -> Self {
        BatchedReads {
            backend,
            engine: None,
            shared: Vec::new(),
            own: Vec::new(),
        }
    }

    /// Adds a read, which the next turn starts.
    pub(crate) fn push(&mut self, read: Read<&'f dyn IoFile>) {
        let shared = match self.backend {
            ReadBackend::Sync => None,
            _ => read.file.shared(),
        };
        match shared {
            Some(file) => {
                self.shared.push(Progress::new(Read {
                    file,
                    offset: read.offset,
                    buffer: read.buffer,
                    token: read.token,
                }));
            }
            None => self.own.push(read),
        }
    }

    /// Starts what was pushed, and appends completed reads to `done`: with [`Wait::ForOne`], at
    /// least one if any was pushed or is in progress.
    pub(crate) fn turn(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        if self.is_single(wait) {
            done.extend(self.shared.pop().map(Progress::finish));
        } else if !self.shared.is_empty() {
            let engine = self.engine.get_or_insert_with(|| engine(self.backend));
            // The kernel and the pool continue to read while this thread does its own reads.
            let now = if self.own.is_empty() {
                wait
            } else {
                Wait::Never
            };
            engine.turn(&mut self.shared, now, done);
        } else if let Some(engine) = &mut self.engine
            && self.own.is_empty()
            && engine.in_flight() > 0
        {
            engine.turn(&mut self.shared, wait, done);
        }
        for mut read in self.own.drain(..) {
            let result = read_exact_at(read.file, &mut read.buffer, read.offset);
            done.push(Done {
                token: read.token,
                buffer: read.buffer,
                result,
            });
        }
        debug_assert!(
            wait == Wait::Never || done.len() > before || self.in_flight() == 0,
            "a turn that may sleep completes something"
        );
    }

    fn in_flight(&self) -> usize {
        self.engine.as_ref().map_or(0, |engine| engine.in_flight())
    }

    /// Whether the batch's only read can be a plain call, since there is nothing else to do while
    /// it waits.
    fn is_single(&self, wait: Wait) -> bool {
        self.backend == ReadBackend::Auto
            && wait == Wait::ForOne
            && self.shared.len() == 1
            && self.own.is_empty()
            && self.in_flight() == 0
    }
}

/// The engine of a backend, or its fallback.
fn engine(backend: ReadBackend) -> Box<dyn Engine> {
    #[cfg(target_os = "linux")]
    if matches!(backend, ReadBackend::Auto | ReadBackend::Uring)
        && let Some(ring) = Ring::take()
    {
        return Box::new(ring);
    }
    let _ = backend;
    Box::new(PoolReads::default())
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
