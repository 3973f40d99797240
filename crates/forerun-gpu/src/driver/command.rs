//! What can be put on a stream, and the scope in which that is safe.
//!
//! ```text
//!   gpu.scope(|scope| {
//!       scope.put(&stream, &gather)?;      the command borrows its memory for longer than the scope lasts ...
//!       scope.put(&stream, &kernel)?;
//!       Ok(())
//!   })                                     ... and the scope does not end before the device is done with it
//! ```

use super::stream::Stream;
use crate::{Gpu, GpuError};
use std::cell::RefCell;
use std::marker::PhantomData;

pub(crate) mod sealed {
    /// Commands are this crate's: a scope relies on what each borrows.
    pub trait Sealed {}
}

/// Something prepared that a stream can run: a gather, a transfer, a graph of such.
pub trait Command: sealed::Sealed {
    /// The device on which it runs.
    fn gpu(&self) -> &Gpu;

    /// Puts it on a stream and returns; it runs when the stream has got there. It neither allocates
    /// nor waits, so it may be captured into a graph.
    ///
    /// Prefer [`Gpu::scope`], which is safe.
    ///
    /// # Safety
    /// What the command borrows must stay alive, and be neither moved nor read nor written by the
    /// host (reads of what the device reads too are allowed), until the stream has run it; also
    /// where the stream is being captured, at each replay.
    ///
    /// # Errors
    /// A stream of another device; the driver's.
    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError>;
}

/// Within it, commands may be put on streams; made by [`Gpu::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    gpu: Gpu,
    used: RefCell<Vec<&'env Stream>>,
    // As in `std::thread::Scope`: neither lifetime may shrink or grow.
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    pub(super) fn run<T, E: From<GpuError>>(
        gpu: &Gpu,
        work: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        let scope = Scope {
            gpu: gpu.clone(),
            used: RefCell::default(),
            _scope: PhantomData,
            _env: PhantomData,
        };
        /// Waits when dropped, hence also when `work` panics.
        struct Settle<'a, 's, 'env>(&'a Scope<'s, 'env>);
        impl Drop for Settle<'_, '_, '_> {
            fn drop(&mut self) {
                // An error here means that the context is lost, and with it all work on it: nothing
                // touches memory any more.
                let _ = self.0.settle();
            }
        }
        let result = {
            let _settle = Settle(&scope);
            work(&scope)
        };
        let value = result?;
        // All is done already; this is to learn how it went.
        scope.settle()?;
        Ok(value)
    }

    /// Waits for every stream that was used, be it that one of them failed; gives the first error.
    ///
    /// Each by itself, and not the whole context: that cannot be waited for while another thread
    /// captures a graph.
    fn settle(&self) -> Result<(), GpuError> {
        let mut first = Ok(());
        for stream in self.used.borrow().iter() {
            let result = stream.synchronize();
            first = first.and(result);
        }
        first
    }

    /// Puts a command on a stream.
    ///
    /// # Errors
    /// A stream or a command of another device than the scope's, which would not be waited for; the
    /// driver's.
    pub fn put<'c: 'env>(
        &'scope self,
        stream: &'env Stream,
        command: &'env (dyn Command + 'c),
    ) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the scope")?;
        stream.expect(command.gpu(), "the command")?;
        let mut used = self.used.borrow_mut();
        if !used.iter().any(|known| known.handle() == stream.handle()) {
            used.push(stream);
        }
        // SAFETY: stream and command, and with it the memory that it borrows, are borrowed for
        // 'env, which is longer than the scope; the scope ends only when the device is done with
        // the streams it has noted, and cannot be leaked: the caller has but a reference to it.
        unsafe { command.enqueue(stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_gives_back_what_its_work_gives() {
        let Ok(gpu) = Gpu::open(0) else { return };
        let seven = gpu.scope(|_| Ok::<_, GpuError>(7));
        assert_eq!(seven, Ok(7));
        let failed = gpu.scope(|_| Err::<(), _>(GpuError::NoDevice));
        assert_eq!(failed, Err(GpuError::NoDevice));
    }
}
