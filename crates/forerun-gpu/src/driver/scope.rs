//! Commands for streams, and the scope that makes them safe.
//!
//! ```text
//!   gpu.scope(|scope| {
//!       scope.enqueue(&stream, &gather)?;  the command borrows its memory for longer than the scope lasts
//!       scope.enqueue(&stream, &kernel)?;
//!       Ok(())
//!   })                                     the scope does not end before the device has finished
//! ```

use super::stream::Stream;
use crate::{Gpu, GpuError};
use std::cell::RefCell;
use std::marker::PhantomData;

pub(crate) mod sealed {
    /// Only this crate implements commands, because a scope relies on what each one borrows.
    pub trait Sealed {}
}

/// A prepared operation that a stream can run: a gather, a transfer, or a graph of them.
pub trait Command: sealed::Sealed {
    /// The device that runs it.
    fn gpu(&self) -> &Gpu;

    /// Enqueues the command on a stream and returns; the stream runs it after its earlier commands.
    /// This neither allocates nor waits, so it may be captured into a graph.
    ///
    /// Prefer [`Gpu::scope`], which is safe.
    ///
    /// # Safety
    /// Until the stream has run the command, the memory that it borrows must stay alive, and the
    /// host must neither move, read nor write it. The host may read what the device only reads. If
    /// the stream is being captured, the same holds for each replay.
    ///
    /// # Errors
    /// The stream belongs to another device, or the driver failed.
    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError>;
}

/// A scope in which commands may be put on streams. [`Gpu::scope`] makes it.
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
        /// Waits when dropped, even if `work` panics.
        struct WaitOnDrop<'a, 's, 'env>(&'a Scope<'s, 'env>);
        impl Drop for WaitOnDrop<'_, '_, '_> {
            fn drop(&mut self) {
                // An error here means that the context is lost with all work on it, so nothing
                // touches memory any more.
                let _ = self.0.wait();
            }
        }
        let result = {
            let _wait = WaitOnDrop(&scope);
            work(&scope)
        };
        let value = result?;
        // All work is done already. This call returns its result.
        scope.wait()?;
        Ok(value)
    }

    /// Waits for every stream that was used, even if one of them failed, and returns the first
    /// error.
    ///
    /// It waits for each stream separately, because waiting for the whole context is impossible
    /// while another thread captures a graph.
    fn wait(&self) -> Result<(), GpuError> {
        let mut first = Ok(());
        for stream in self.used.borrow().iter() {
            let result = stream.synchronize();
            first = first.and(result);
        }
        first
    }

    /// Enqueues a command on a stream.
    ///
    /// # Errors
    /// The stream or the command belongs to a different device than the scope, which would not wait
    /// for it; or the driver failed.
    pub fn enqueue<'c: 'env>(
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
        // SAFETY: stream, command and the memory that the command borrows are borrowed for 'env,
        // which outlives the scope. The scope ends only when the device has finished with all
        // recorded streams. It cannot be leaked, because the caller has only a reference to it.
        unsafe { command.enqueue(stream) }
    }
}

impl Gpu {
    /// Runs `work`, in which commands may be put on streams. It returns when the device has
    /// finished all of them, even if `work` fails or panics.
    ///
    /// # Errors
    /// The error of `work`; otherwise the device's error if a command failed.
    pub fn scope<'env, T, E: From<GpuError>>(
        &self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        Scope::run(self, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_returns_the_result_of_its_work() {
        let Ok(gpu) = Gpu::open(0) else { return };
        let seven = gpu.scope(|_| Ok::<_, GpuError>(7));
        assert_eq!(seven, Ok(7));
        let failed = gpu.scope(|_| Err::<(), _>(GpuError::NoDevice));
        assert_eq!(failed, Err(GpuError::NoDevice));
    }
}
