//! Panics in code that users supply: comparators, and file systems behind [`Io`](crate::io::Io).
//!
//! If such code panics inside an operation of the store, the operation returns [`Error::Panicked`],
//! so that other threads get an error instead of waiting forever.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Runs `work` and turns a panic into an error. `doing` completes "a panic while …".
///
/// The caller must ensure that state which `work` leaves half changed is either not used any more
/// or still consistent.
pub(crate) fn catch<T>(doing: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        Err(Error::Panicked {
            doing,
            message: forerun_core::panic_message(&*payload),
        })
    })
}

/// [`catch`] if a user's comparator may be called. Otherwise there is nothing to catch, and no
/// cost.
#[inline]
pub(crate) fn catch_if<T>(
    may_panic: bool,
    doing: &'static str,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if may_panic {
        catch(doing, work)
    } else {
        work()
    }
}
