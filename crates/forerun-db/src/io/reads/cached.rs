//! Reads of what the system has in memory, by the calling thread.
//!
//! Such a read costs little more than its system call and the copy, so it needs no engine and can
//! fill any buffer that the caller has. Where the system has to ask the device, the attempt costs
//! more than it saves: after each failure, a thread leaves out twice as many attempts.

use std::cell::Cell;
use std::io;

use crate::io::IoFile;

/// The most attempts that are left out after a failure.
const LEFT_OUT_MAX: u32 = 64;

/// When a thread makes its next attempt.
#[derive(Clone, Copy)]
struct Attempts {
    /// Reads until then.
    left_out: u32,
    /// How many were left out after the last failure; 0 after a success.
    after_failure: u32,
}

impl Attempts {
    const NEXT_READ: Attempts = Attempts {
        left_out: 0,
        after_failure: 0,
    };
}

thread_local! {
    static ATTEMPTS: Cell<Attempts> = const { Cell::new(Attempts::NEXT_READ) };
}

/// Whether the next read of this thread makes an attempt.
pub(crate) fn is_attempt_due() -> bool {
    ATTEMPTS.get().left_out == 0
}

/// Whether an attempt is worth its cost. Every read of a page asks once.
pub(crate) fn is_worth_an_attempt() -> bool {
    let mut attempts = ATTEMPTS.get();
    let is_worth = attempts.left_out == 0;
    attempts.left_out = attempts.left_out.saturating_sub(1);
    ATTEMPTS.set(attempts);
    is_worth
}

/// Fills `buffer` from `offset` of a file, if the system has all of it in memory. Returns whether
/// it has. If not, or if the call fails, the buffer's contents are unspecified, and an ordinary
/// read reports what is wrong.
pub(crate) fn read_cached(file: &dyn IoFile, buffer: &mut [u8], offset: u64) -> bool {
    let is_read = is_filled(file, buffer, offset);
    let after_failure = if is_read {
        0
    } else {
        (2 * ATTEMPTS.get().after_failure).clamp(1, LEFT_OUT_MAX)
    };
    ATTEMPTS.set(Attempts {
        left_out: after_failure,
        after_failure,
    });
    is_read
}

fn is_filled(file: &dyn IoFile, buffer: &mut [u8], offset: u64) -> bool {
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        let len = rest.len();
        match file.read_cached_at(rest, offset + filled as u64) {
            // A file of the user may claim more than there was space for.
            Ok(got) if got == 0 || got > len => return false,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}
