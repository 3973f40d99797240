//! Memory of Python objects that calls under way read or write.
//!
//! ```text
//!   array ──┐                        read     may overlap what others read
//!   tensor ─┼──> addresses ──> HELD  written  overlaps nothing
//!   GPU ────┘
//! ```
//!
//! Two arrays, or an array and a tensor, may lie in the same memory, and calls of several threads run at once. NumPy's
//! crate notes which arrays are borrowed; a tensor that is taken by DLPack is a new array each time. So what counts here is
//! the addresses. They are noted as long as the call that uses them runs, whatever becomes of the object.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forerun::PerProcess;
use pyo3::PyResult;

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
    number: u64,
    start: usize,
    end: usize,
    access: Access,
    what: &'static str,
}

#[derive(Default)]
struct Held {
    /// In no order. A call has three or four, so there are few.
    ranges: Vec<Range>,
    last_number: u64,
}

fn held() -> MutexGuard<'static, Held> {
    // A fork begins without any: what other threads of its parent use, nobody uses there.
    static HELD: PerProcess<Mutex<Held>> = PerProcess::new();
    let held = HELD.get_or_init(Mutex::default);
    // Each change is one push or one removal.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that is noted as in use until this is dropped. It keeps no Python object.
#[derive(Debug)]
pub(crate) struct Borrow {
    /// `None` of no bytes.
    number: Option<u64>,
}

impl Borrow {
    /// Notes the use of `len_bytes` bytes at an address, on behalf of the argument `what`. An address is the processor's or
    /// a GPU's: CUDA gives each byte of both one of its own.
    pub(crate) fn new(
        start: usize,
        len_bytes: usize,
        access: Access,
        what: &'static str,
    ) -> PyResult<Borrow> {
        if len_bytes == 0 {
            return Ok(Borrow { number: None });
        }
        let end = start.saturating_add(len_bytes);
        let mut held = held();
        let clash = held.ranges.iter().find(|other| {
            (other.start < end && start < other.end)
                && (access == Access::Write || other.access == Access::Write)
        });
        if let Some(other) = clash {
            let (from, to) = (other.start.max(start), other.end.min(end));
            return Err(invalid(format!(
                "`{what}` cannot be {}: {} bytes of its memory, from byte {} on, are being {} as `{}` of this call or of one that is under way",
                access.participle(),
                to - from,
                from - start,
                other.access.participle(),
                other.what,
            )));
        }
        held.last_number += 1;
        let number = held.last_number;
        held.ranges.push(Range {
            number,
            start,
            end,
            access,
            what,
        });
        Ok(Borrow {
            number: Some(number),
        })
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        let mut held = held();
        // The latest are the first to go.
        if let Some(at) = held.ranges.iter().rposition(|range| range.number == number) {
            held.ranges.swap_remove(at);
        }
    }
}
