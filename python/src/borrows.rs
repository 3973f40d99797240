//! Memory of Python objects that calls under way read or write.
//!
//! ```text
//!   array ──┐                        read     may overlap what others read
//!   tensor ─┼──> addresses ──> HELD  written  overlaps nothing
//!   GPU ────┘
//! ```
//!
//! Two arrays, or an array and a tensor, may lie in the same memory, and calls of several threads
//! run at once. NumPy's crate notes which arrays are borrowed; a tensor that is taken by DLPack is
//! a new array each time. So what counts here is the addresses. They are noted as long as the call
//! that uses them runs, whatever becomes of the object.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forerun::PerProcess;
use pyo3::{PyErr, PyResult};

use crate::errors::invalid;

/// What a call does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Access {
    fn participle(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "written",
        }
    }
}

/// Some bytes in use, and the argument that they are.
struct Range {
    /// That of its [`Borrow`].
    number: u64,
    start: usize,
    end: usize,
    access: Access,
    what: &'static str,
}

#[derive(Default)]
struct Held {
    /// A call has three or four, so there are few.
    ranges: Vec<Range>,
}

/// A fork goes on counting, so what it drops of its parent's has no number of its own.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

fn held() -> MutexGuard<'static, Held> {
    // A fork begins without any: what other threads of its parent use, nobody uses there.
    static HELD: PerProcess<Mutex<Held>> = PerProcess::new();
    let held = HELD.get_or_init(Mutex::default);
    // No change of it panics halfway.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Some bytes that a call is going to use.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// The CPU's address, or a GPU's: CUDA gives each byte of both one of its own.
    pub(crate) start: usize,
    pub(crate) len_bytes: usize,
    pub(crate) access: Access,
    /// The argument that they are.
    pub(crate) what: &'static str,
}

impl Memory {
    fn end(&self) -> usize {
        self.start.saturating_add(self.len_bytes)
    }

    /// What is wrong with using it beside what is in use.
    fn clash(&self, held: &Held) -> Option<PyErr> {
        let other = held.ranges.iter().find(|other| {
            (other.start < self.end() && self.start < other.end)
                && (self.access == Access::Write || other.access == Access::Write)
        })?;
        let (from, to) = (other.start.max(self.start), other.end.min(self.end()));
        Some(invalid(format!(
            "`{}` cannot be {}: {} bytes of its memory, from byte {} on, are being {} as `{}` of this call or of one that is under way",
            self.what,
            self.access.participle(),
            to - from,
            from - self.start,
            other.access.participle(),
            other.what,
        )))
    }
}

/// Memory that is noted as in use until this is dropped. It keeps no Python object.
#[derive(Debug)]
pub(crate) struct Borrow {
    /// `None` of no bytes.
    number: Option<u64>,
}

impl Borrow {
    /// Notes the use of all of a call's memory at once. A lock for each argument costs a lookup of
    /// 256 keys some 4%.
    pub(crate) fn all<const N: usize>(memories: [Memory; N]) -> PyResult<Borrow> {
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
            if let Some(clash) = memory.clash(&held) {
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

    /// For memory that the caller notes.
    pub(crate) fn noted_elsewhere() -> Borrow {
        Borrow { number: None }
    }

    /// Notes the use of `len_bytes` bytes at an address, on behalf of the argument `what`.
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
