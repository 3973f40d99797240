//! Memory of Python objects that running calls read or write.
//!
//! ```text
//!   array ──┐                        read     may overlap other reads
//!   tensor ─┼──> addresses ──> HELD  written  overlaps nothing
//!   GPU ────┘
//! ```
//!
//! Two arrays, or an array and a tensor, may share memory, and several threads make calls at once.
//! The numpy crate tracks which arrays are borrowed, but a tensor imported with DLPack is a new
//! array each time. So this module tracks addresses. They are recorded while the call that uses
//! them runs, whatever happens to the object.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forerun::process::PerProcess;
use pyo3::{PyErr, PyResult};

use crate::errors::invalid;

/// How a call uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// Reads some rows by address, without a Rust reference to the memory.
    ReadRows,
    /// Writes some rows likewise. Calls that use different rows of a pool may run at the same time;
    /// which rows they are is the caller's business.
    WriteRows,
}

impl Access {
    fn participle(self) -> &'static str {
        match self {
            Access::Read | Access::ReadRows => "read",
            Access::Write | Access::WriteRows => "written",
        }
    }

    /// Whether two calls that use the same bytes may run at the same time.
    fn may_meet(self, other: Access) -> bool {
        let only_reads = |access| matches!(access, Access::Read | Access::ReadRows);
        let is_of_rows = |access| matches!(access, Access::ReadRows | Access::WriteRows);
        (only_reads(self) && only_reads(other)) || (is_of_rows(self) && is_of_rows(other))
    }
}

/// Bytes in use, and the name of the argument that they belong to.
struct Range {
    /// The number of its [`Borrow`].
    number: u64,
    start: usize,
    end: usize,
    access: Access,
    what: &'static str,
}

#[derive(Default)]
struct Held {
    /// A call uses three or four ranges, and a copy of rows one per layer, so there are few.
    ranges: Vec<Range>,
}

/// A fork continues this count, so dropping a borrow of its parent removes no borrow of the fork.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

fn held() -> MutexGuard<'static, Held> {
    // A fork starts with none, because the other threads of its parent do not exist there.
    static HELD: PerProcess<Mutex<Held>> = PerProcess::new();
    let held = HELD.get_or_init(Mutex::default);
    // No change under the lock can panic halfway.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that a call is going to use.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// An address of the CPU or of a GPU. CUDA gives every byte of both a unique address.
    pub(crate) start: usize,
    pub(crate) len_bytes: usize,
    pub(crate) access: Access,
    /// The name of the argument.
    pub(crate) what: &'static str,
}

impl Memory {
    fn end(&self) -> usize {
        self.start.saturating_add(self.len_bytes)
    }

    /// The error if this use conflicts with one of these.
    fn clash(&self, ranges: &[Range]) -> Option<PyErr> {
        let other = ranges.iter().find(|other| {
            (other.start < self.end() && self.start < other.end)
                && !self.access.may_meet(other.access)
        })?;
        let (from, to) = (other.start.max(self.start), other.end.min(self.end()));
        Some(invalid(format!(
            "`{}` cannot be {}: {} bytes of its memory, from byte {} on, are being {} as `{}` of \
             this call or of another running call",
            self.what,
            self.access.participle(),
            to - from,
            from - self.start,
            other.access.participle(),
            other.what,
        )))
    }
}

/// Whether the pieces of memory of one call are compared with each other.
#[derive(Clone, Copy)]
enum Within {
    Compared,
    /// The caller has done so.
    Known,
}

/// A record that memory is in use. Dropping it ends the use. It keeps no Python object alive.
#[derive(Debug)]
pub(crate) struct Borrow {
    /// `None` if there are no bytes.
    number: Option<u64>,
}

impl Borrow {
    /// Records the use of all of a call's memory at once. Taking the lock once per argument would
    /// slow down a lookup of 256 keys by about 4%.
    pub(crate) fn all<const N: usize>(memories: [Memory; N]) -> PyResult<Borrow> {
        Borrow::of(&memories, Within::Compared)
    }

    /// Like [`Borrow::all`], for any number of pieces.
    pub(crate) fn each(memories: &[Memory]) -> PyResult<Borrow> {
        Borrow::of(memories, Within::Compared)
    }

    /// Like [`Borrow::all`], for memory that the caller has compared with each other: a copy of
    /// rows may use hundreds of pieces.
    pub(crate) fn compared(memories: &[Memory]) -> PyResult<Borrow> {
        Borrow::of(memories, Within::Known)
    }

    fn of(memories: &[Memory], within: Within) -> PyResult<Borrow> {
        if memories.iter().all(|memory| memory.len_bytes == 0) {
            return Ok(Borrow { number: None });
        }
        let mut held = held();
        let before = held.ranges.len();
        // Relaxed: the lock orders it.
        let number = LAST_NUMBER.load(Ordering::Relaxed) + 1;
        for memory in memories {
            if memory.len_bytes == 0 {
                continue;
            }
            let others = match within {
                Within::Compared => &held.ranges[..],
                Within::Known => &held.ranges[..before],
            };
            if let Some(clash) = memory.clash(others) {
                held.ranges.truncate(before);
                return Err(clash);
            }
            held.ranges.push(Range {
                number,
                start: memory.start,
                end: memory.end(),
                access: memory.access,
                what: memory.what,
            });
        }
        LAST_NUMBER.store(number, Ordering::Relaxed);
        Ok(Borrow {
            number: Some(number),
        })
    }

    /// For memory whose use the caller records.
    pub(crate) fn noted_elsewhere() -> Borrow {
        Borrow { number: None }
    }

    /// Records the use of `len_bytes` bytes at an address by the argument `what`.
    pub(crate) fn new(
        start: usize,
        len_bytes: usize,
        access: Access,
        what: &'static str,
    ) -> PyResult<Borrow> {
        Borrow::all([Memory {
            start,
            len_bytes,
            access,
            what,
        }])
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            held().ranges.retain(|range| range.number != number);
        }
    }
}
