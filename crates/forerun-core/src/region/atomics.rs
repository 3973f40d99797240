//! A slice of atomics in a region: initially zero, and taking memory only where it is written.

use super::{Pages, Region, RegionError};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

mod sealed {
    /// # Safety
    /// All bits zero must be a valid value, the alignment must be at most that of a region, and
    /// dropping one must do nothing.
    pub unsafe trait Zeroed {}
}

/// The element types of [`Atomics`].
pub trait Atomic: sealed::Zeroed + Send + Sync {}

// SAFETY: an atomic integer has the representation of its integer, for which zero is valid, aligned
// to at most eight bytes and without drop glue.
unsafe impl sealed::Zeroed for AtomicU8 {}
// SAFETY: as above.
unsafe impl sealed::Zeroed for AtomicU16 {}
// SAFETY: as above.
unsafe impl sealed::Zeroed for AtomicU32 {}
// SAFETY: as above.
unsafe impl sealed::Zeroed for AtomicU64 {}

impl Atomic for AtomicU8 {}
impl Atomic for AtomicU16 {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}

/// A slice of atomics in a [`Region`]. The length only reserves address space; memory is taken as
/// elements are used.
///
/// ```
/// use forerun_core::{Atomics, Pages};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let counters = Atomics::<AtomicU64>::new(1 << 30, Pages::Small)?;   // reserves 8 GiB, takes none
/// counters[1 << 29].fetch_add(1, Ordering::Relaxed);
/// assert_eq!(counters[1 << 29].load(Ordering::Relaxed), 1);
/// # Ok::<(), forerun_core::RegionError>(())
/// ```
#[derive(Debug)]
pub struct Atomics<T: Atomic> {
    region: Region,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Atomic> Atomics<T> {
    /// Makes a slice of `len` zeros.
    ///
    /// # Errors
    /// [`RegionError`] if that much cannot be reserved.
    pub fn new(len: usize, pages: Pages) -> Result<Atomics<T>, RegionError> {
        let len_bytes = len.checked_mul(size_of::<T>());
        let len_bytes = len_bytes.ok_or(RegionError::TooLarge {
            len_bytes: usize::MAX,
        })?;
        Ok(Atomics {
            region: Region::new(len_bytes, pages)?,
            len,
            elements: PhantomData,
        })
    }
}

impl<T: Atomic> Deref for Atomics<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the region has `len * size_of::<T>()` zeroed bytes, aligned for T. Only this
        // value gives them out, and only as shared references to atomics. By `Zeroed`, all bits
        // zero is a valid T. The slice borrows `self` and with it the region.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn elements_are_initially_zero_and_keep_what_is_stored() {
        for len in [0, 1, 1000, 1 << 20] {
            let bytes = Atomics::<AtomicU8>::new(len, Pages::Small).unwrap();
            let words = Atomics::<AtomicU64>::new(len, Pages::Huge).unwrap();
            assert_eq!((bytes.len(), words.len()), (len, len));
            for at in [0, len / 2, len.saturating_sub(1)]
                .into_iter()
                .filter(|&at| at < len)
            {
                assert_eq!(bytes[at].swap(7, Ordering::Relaxed) % 7, 0);
                assert_eq!(words[at].swap(1 << 60, Ordering::Relaxed) % (1 << 60), 0);
                assert_eq!(bytes[at].load(Ordering::Relaxed), 7);
                assert_eq!(words[at].load(Ordering::Relaxed), 1 << 60);
            }
        }
    }

    #[test]
    fn a_length_beyond_the_address_space_is_refused() {
        for len in [usize::MAX, usize::MAX / 8, 1 << 58] {
            assert!(Atomics::<AtomicU64>::new(len, Pages::Huge).is_err());
        }
    }
}
