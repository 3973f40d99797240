//! Panics in code that users bring: comparators, and file systems behind [`Io`](crate::io::Io).
//!
//! Where such code runs inside an operation of the store, a panic becomes an [`Error::Panicked`] at the operation's edge,
//! so that other threads are told instead of waiting for a thread that is gone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Runs `work`, and makes an error of a panic. `doing` completes "a panic while …".
///
/// The caller sees to it that what `work` may have left half done is not used any more, or is whole all the same.
pub(crate) fn catch<T>(doing: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        Err(Error::Panicked {
            doing,
            message: message(&*payload),
        })
    })
}

/// [`catch`] where a comparator of the user's may be called; else nothing is to be caught, and nothing is paid.
#[inline]
pub(crate) fn catch_if<T>(
    may_panic: bool,
    doing: &'static str,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match may_panic {
        true => catch(doing, work),
        false => work(),
    }
}

/// What a panic says.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it carries no message").to_owned()
}
