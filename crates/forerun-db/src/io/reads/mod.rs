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
//! A direct file, which bypasses the system's memory, is read in whole blocks (`extent.rs`).
//!
//! From `push` until its [`Done`] comes back, a buffer belongs to the queue, and so does the file:
//! a queue may be dropped or forgotten at any time.

pub(crate) mod cached;
pub(in crate::io) mod extent;
mod pool;
#[cfg(target_os = "linux")]
mod uring;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forerun_core::Wait;

use super::IoFile;
use extent::Extent;
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

/// A finished read.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) token: u32,
    /// To be used again.
    pub(crate) buffer: Vec<u8>,
    /// Where the bytes that were read are in it.
    wanted: Range<usize>,
    pub(crate) result: io::Result<()>,
}

impl Done {
    /// What was read, if `result` is `Ok`; otherwise its contents are unspecified.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.wanted.clone()]
    }
}

/// A read in progress.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) file: Arc<File>,
    extent: Extent,
    pub(super) buffer: Vec<u8>,
    token: u32,
}

impl Progress {
    /// A read that fills the buffer, or if it is direct, a part of a longer one.
    fn new(read: Read<Arc<File>>, is_direct: bool) -> Self {
        let Read {
            file,
            offset,
            mut buffer,
            token,
        } = read;
        let len = buffer.len();
        let extent = if is_direct {
            Extent::blocks(offset, len, &mut buffer)
        } else {
            Extent::exact(offset, len)
        };
        Progress {
            file,
            extent,
            buffer,
            token,
        }
    }

    /// Where the remaining bytes are read from and written to.
    #[inline]
    pub(super) fn rest(&mut self) -> (u64, &mut [u8]) {
        self.extent.rest(&mut self.buffer)
    }

    /// Records what a call returned for the remaining bytes. `None`: there is more to read.
    pub(super) fn advance(&mut self, result: io::Result<usize>) -> Option<io::Result<()>> {
        match self.extent.advance(result) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    pub(super) fn done(self, result: io::Result<()>) -> Done {
        Done {
            token: self.token,
            wanted: self.extent.wanted(),
            buffer: self.buffer,
            result,
        }
    }

    /// The same read from the beginning, into a new buffer of the same length.
    #[cfg(target_os = "linux")]
    pub(super) fn restart(mut self) -> Progress {
        self.extent = self.extent.restart(&mut self.buffer);
        self
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

/// Fills `buffer` from `offset` of a file, synchronously.
///
/// # Errors
/// The error of the failed call; `UnexpectedEof` if the file ends early.
pub(crate) fn read_exact_at(file: &dyn IoFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut extent = Extent::exact(offset, buffer.len());
    while !buffer.is_empty() {
        let (offset, rest) = extent.rest(buffer);
        if extent.advance(file.read_at(rest, offset))? {
            break;
        }
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
                let is_direct = read.file.is_direct();
                let read = Read {
                    file,
                    offset: read.offset,
                    buffer: read.buffer,
                    token: read.token,
                };
                self.shared.push(Progress::new(read, is_direct));
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
                wanted: 0..read.buffer.len(),
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
