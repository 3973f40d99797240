//! Atomics and locks that loom can check, and words that readers and a writer share.

pub(super) use forerun_core::sync::modelled::{
    Mutex, MutexGuard,
    atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering},
    hint, thread,
};

/// Lets other threads run while a writer works.
pub(super) fn pause(turns: &mut u32) {
    *turns += 1;
    if turns.is_multiple_of(64) {
        // The writer may be waiting for a CPU core.
        thread::yield_now();
    } else {
        hint::spin_loop();
    }
}

/// A word that readers may read while the writer writes it.
pub(super) trait AtomicWord: Send + Sync + Default {
    /// The value as 64 bits. Acquire: the reader's next loads see everything that the writer did
    /// before it stored this value, above all the version.
    fn load(&self) -> u64;

    /// The low bits. Release: see `load`.
    fn store(&self, bits: u64);
}

/// The operations of an atomic, whose number is `$word`.
macro_rules! atomic_word {
    ($atomic:ty, $word:ty) => {
        impl AtomicWord for $atomic {
            #[inline(always)]
            fn load(&self) -> u64 {
                u64::from(self.load(Ordering::Acquire))
            }

            #[inline(always)]
            fn store(&self, bits: u64) {
                self.store(bits as $word, Ordering::Release);
            }
        }
    };
}

atomic_word!(AtomicU16, u16);
atomic_word!(AtomicU32, u32);
atomic_word!(AtomicU64, u64);
