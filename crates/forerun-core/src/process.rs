//! Process ownership: a handle works only in the process that opened it.
//!
//! `fork` copies a process's memory and one of its threads. The copy of an open store looks intact,
//! but its background threads are gone, its locks may be held by threads that no longer exist, and
//! its files, directory lock and io_uring rings are shared with the parent. Each call on a handle
//! therefore checks the handle's [`Owner`] first. In any other process it returns [`Forked`] and
//! touches nothing.
//!
//! ```text
//!   page    │ token of this process │        MADV_WIPEONFORK: a child gets a page of zeros from the kernel
//!              ^            ^
//!   handle A ──┘  handle B ─┘                a handle is usable while the page holds the handle's token
//!
//!   token   │ generation (32 bits) │ process ID (32 bits) │
//! ```
//!
//! The check is one relaxed load and a comparison. Asking the kernel for the process ID would cost
//! a system call per lookup, and could not tell a child from an ancestor whose ID was reused. The
//! kernel wipes the page no matter how the process was copied, even by a bare `clone`, which runs
//! no `pthread_atfork` handlers. If the kernel cannot wipe pages (Linux before 4.14, other
//! systems), a `pthread_atfork` handler clears the word.
//!
//! The first handle opened in a child writes a new token, with the next generation. A child
//! inherits the generation, which is ordinary memory, so no process has the token of an ancestor,
//! even if it has the same process ID.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A handle was used in a process other than the one that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this handle belongs to process {opened_by}, and process {} is a fork of it, which has to open \
     a path again, and to make its own of what has no path",
    std::process::id()
)]
pub struct Forked {
    /// The ID of the process that opened the handle.
    pub opened_by: u32,
}

/// The process that opened a handle.
///
/// ```
/// use forerun_core::Owner;
///
/// let owner = Owner::this_process();
/// assert!(owner.check().is_ok(), "a fork of this process gets an error");
/// ```
#[derive(Clone, Copy)]
pub struct Owner {
    word: &'static AtomicU64,
    token: u64,
}

impl Owner {
    /// The calling process.
    pub fn this_process() -> Owner {
        let word = word();
        // Relaxed: the word publishes no other memory.
        let mut token = word.load(Ordering::Relaxed);
        if token == 0 {
            static GENERATION: AtomicU32 = AtomicU32::new(0);
            // Relaxed: a counter. Racing threads get different numbers, and one of them wins below.
            let generation = GENERATION.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            let new = u64::from(generation) << 32 | u64::from(std::process::id());
            token = match word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => new,
                Err(theirs) => theirs,
            };
        }
        Owner { word, token }
    }

    /// Whether the calling process is the owner.
    #[inline(always)]
    pub fn is_this_process(&self) -> bool {
        // Relaxed: the word changes between two processes, never between two threads of one.
        self.word.load(Ordering::Relaxed) == self.token
    }

    /// Checks that the calling process is the owner.
    ///
    /// # Errors
    /// [`Forked`] in any other process.
    #[inline(always)]
    pub fn check(&self) -> Result<(), Forked> {
        if self.is_this_process() {
            Ok(())
        } else {
            Err(self.forked())
        }
    }

    #[cold]
    fn forked(&self) -> Forked {
        Forked {
            opened_by: self.process(),
        }
    }

    /// The owner's process ID.
    pub fn process(&self) -> u32 {
        self.token as u32
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("process", &self.process())
            .finish_non_exhaustive()
    }
}

/// A value that only the process that made it may use or drop. Any other process leaks it, because
/// dropping it there could join threads that do not exist, wait for locks that no thread will
/// release, or free what the parent still uses.
///
/// ```
/// use forerun_core::ProcessBound;
///
/// let value = ProcessBound::new(vec![1, 2]);
/// assert_eq!(value.get()?.len(), 2);
/// # Ok::<(), forerun_core::Forked>(())
/// ```
#[derive(Debug)]
pub struct ProcessBound<T> {
    value: ManuallyDrop<T>,
    owner: Owner,
}

impl<T> ProcessBound<T> {
    /// Binds a value to the calling process.
    pub fn new(value: T) -> ProcessBound<T> {
        ProcessBound {
            value: ManuallyDrop::new(value),
            owner: Owner::this_process(),
        }
    }

    /// The value.
    ///
    /// # Errors
    /// [`Forked`] in any other process.
    #[inline(always)]
    pub fn get(&self) -> Result<&T, Forked> {
        self.owner.check()?;
        Ok(&self.value)
    }

    /// The value, mutably.
    ///
    /// # Errors
    /// [`Forked`] in any other process.
    #[inline(always)]
    pub fn get_mut(&mut self) -> Result<&mut T, Forked> {
        self.owner.check()?;
        Ok(&mut self.value)
    }

    /// A part of the value, in any process. Only for parts that never change while the value is
    /// shared, such as a name or a path.
    #[inline(always)]
    pub fn constant<C>(&self, constant: impl FnOnce(&T) -> &C) -> &C
    where
        C: ?Sized,
    {
        constant(&self.value)
    }

    /// The process that the value is bound to.
    pub fn owner(&self) -> Owner {
        self.owner
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.owner.is_this_process() {
            // SAFETY: `value` is dropped only here, and nothing uses it afterwards, because `self`
            // is being dropped.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// A value that any process but its own leaks instead of dropping. Unlike [`ProcessBound`], it can
/// be read without a check: use it for the parts of a structure that checks its [`Owner`] itself.
#[derive(Debug)]
pub struct LeakedInFork<T>(ProcessBound<T>);

impl<T> LeakedInFork<T> {
    /// Binds a value to the calling process.
    pub fn new(value: T) -> LeakedInFork<T> {
        LeakedInFork(ProcessBound::new(value))
    }
}

impl<T> Deref for LeakedInFork<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0.value
    }
}

/// A static value that exists once per process, is made on first use, and is never dropped. A child
/// makes its own and leaves the inherited one alone, because threads that the child does not have
/// may have been changing it.
///
/// ```
/// use forerun_core::PerProcess;
/// use std::sync::Mutex;
///
/// static JOBS: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
/// JOBS.get_or_init(Mutex::default).lock().unwrap().push(1);
/// ```
#[derive(Debug)]
pub struct PerProcess<T> {
    newest: AtomicPtr<(Owner, T)>,
}

impl<T> PerProcess<T> {
    /// No value yet.
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> PerProcess<T> {
        PerProcess {
            newest: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The calling process's value. Racing threads may each make one; only one of them is kept.
    pub fn get_or_init(&'static self, make: impl Fn() -> T) -> &'static T
    where
        T: Send + Sync,
    {
        // Acquire: pairs with the release below, which publishes the value.
        let mut newest = self.newest.load(Ordering::Acquire);
        loop {
            // SAFETY: a pointer here that is not null comes from a `Box` that was leaked below.
            if let Some((owner, value)) = unsafe { newest.as_ref() }
                && owner.is_this_process()
            {
                return value;
            }
            // No lock: if the process forked while it was held, the child would find it locked
            // forever.
            let made = Box::into_raw(Box::new((Owner::this_process(), make())));
            let swapped =
                self.newest
                    .compare_exchange(newest, made, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                // SAFETY: the box is leaked from here on.
                Ok(_) => return unsafe { &(*made).1 },
                Err(theirs) => {
                    // SAFETY: it came from `Box::into_raw` above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    newest = theirs;
                }
            }
        }
    }
}

/// The word that holds this process's token. It is 0 at first and again 0 in a child.
fn word() -> &'static AtomicU64 {
    static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    // Acquire: pairs with the release below, which publishes the word.
    let mut known = WORD.load(Ordering::Acquire);
    if known.is_null() {
        // No lock: if the process forked while it was held, the child would find it locked forever.
        let made = watch::word(&WORD);
        known = match WORD.compare_exchange(
            ptr::null_mut(),
            ptr::from_ref(made).cast_mut(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return made,
            // Another thread was faster. One page is lost, once per process.
            Err(theirs) => theirs,
        };
    }
    // SAFETY: a pointer in `WORD` that is not null comes from a `&'static AtomicU64` above.
    unsafe { &*known }
}

/// Detects forks.
#[cfg(unix)]
mod watch {
    use super::{AtomicPtr, AtomicU64, Ordering};
    use std::alloc::{Layout, handle_alloc_error};
    use std::ffi::c_int;
    use std::sync::atomic::AtomicBool;

    /// A word that starts as 0, and as 0 in every child.
    pub(super) fn word(kept_in: &'static AtomicPtr<AtomicU64>) -> &'static AtomicU64 {
        if let Some(word) = wiped_page() {
            return word;
        }
        clear_by_handler(kept_in);
        Box::leak(Box::new(AtomicU64::new(0)))
    }

    /// A word on a page that the kernel wipes in a child. `None` if the kernel cannot do that.
    #[cfg(target_os = "linux")]
    fn wiped_page() -> Option<&'static AtomicU64> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
        let len = rustix::param::page_size();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory in use.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let page = page.ok()?;
        // SAFETY: the advice is for the page mapped above, which nothing else uses. Its bytes
        // become 0 in a child, which is a valid value of the word.
        match unsafe { madvise(page, len, Advice::LinuxWipeOnFork) } {
            // SAFETY: the page is mapped, zeroed, aligned, and never unmapped.
            Ok(()) => Some(unsafe { &*page.cast::<AtomicU64>() }),
            Err(_) => {
                // SAFETY: nothing points to the page yet. If it cannot be unmapped, one page is
                // lost.
                let _ = unsafe { munmap(page, len) };
                None
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn wiped_page() -> Option<&'static AtomicU64> {
        None
    }

    /// Makes the C library clear the word that `kept_in` points to in each child.
    fn clear_by_handler(kept_in: &'static AtomicPtr<AtomicU64>) {
        static KEPT_IN: AtomicPtr<AtomicPtr<AtomicU64>> = AtomicPtr::new(std::ptr::null_mut());
        static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

        extern "C" fn clear() {
            // Acquire: as in `word`. A child has one thread, so nothing races with this.
            let kept_in = KEPT_IN.load(Ordering::Acquire);
            if kept_in.is_null() {
                return;
            }
            // SAFETY: it points to a static; see below.
            let word = unsafe { &*kept_in }.load(Ordering::Acquire);
            if !word.is_null() {
                // SAFETY: it points to a word that is never freed.
                unsafe { &*word }.store(0, Ordering::Relaxed);
            }
        }

        unsafe extern "C" {
            fn pthread_atfork(
                prepare: Option<extern "C" fn()>,
                parent: Option<extern "C" fn()>,
                child: Option<extern "C" fn()>,
            ) -> c_int;
        }

        KEPT_IN.store(std::ptr::from_ref(kept_in).cast_mut(), Ordering::Release);
        // Relaxed: registering the handler twice does no harm.
        if IS_REGISTERED.swap(true, Ordering::Relaxed) {
            return;
        }
        // SAFETY: `clear` neither calls the C library nor takes a lock, which a handler in a child
        // must not do.
        let refused = unsafe { pthread_atfork(None, None, Some(clear)) };
        if refused != 0 {
            // The only possible reason is lack of memory. Without the handler, a fork would go
            // unnoticed.
            handle_alloc_error(Layout::new::<[usize; 6]>());
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        #[cfg(target_os = "linux")]
        fn this_kernel_wipes_pages() {
            assert!(wiped_page().is_some());
        }
    }
}

/// Targets without `fork` have nothing to detect.
#[cfg(not(unix))]
mod watch {
    use super::{AtomicPtr, AtomicU64};

    pub(super) fn word(_: &'static AtomicPtr<AtomicU64>) -> &'static AtomicU64 {
        Box::leak(Box::new(AtomicU64::new(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_owners_of_one_process_are_equal() {
        let first = Owner::this_process();
        let owners = crate::sync::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(Owner::this_process)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<Vec<_>>()
        });
        for owner in owners {
            assert_eq!(owner.token, first.token);
            assert!(owner.is_this_process());
        }
        assert_eq!(first.process(), std::process::id());
    }

    #[test]
    fn a_bound_value_is_dropped_once_by_its_own_process_and_never_by_another() {
        let counted = std::sync::Arc::new(());
        let mut bound = ProcessBound::new(counted.clone());
        assert!(bound.get().is_ok() && bound.get_mut().is_ok());
        drop(bound);
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);

        let mut foreign = ProcessBound::new(counted.clone());
        foreign.owner.token += 1 << 32;
        let opened_by = std::process::id();
        assert_eq!(foreign.get(), Err(Forked { opened_by }));
        assert_eq!(foreign.get_mut(), Err(Forked { opened_by }));
        drop(foreign);
        assert_eq!(std::sync::Arc::strong_count(&counted), 2);
    }

    #[test]
    fn threads_of_one_process_share_one_value() {
        static VALUE: PerProcess<usize> = PerProcess::new();
        let address = || ptr::from_ref(VALUE.get_or_init(|| 7)).addr();
        let others = crate::sync::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(address)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<Vec<_>>()
        });
        assert_eq!(others, [address(); 4]);
        assert_eq!(*VALUE.get_or_init(|| 8), 7);
    }

    #[test]
    fn the_error_names_both_processes() {
        let message = Forked { opened_by: 4711 }.to_string();
        let here = std::process::id().to_string();
        assert!(
            message.contains("4711") && message.contains(&here),
            "{message}"
        );
    }
}
