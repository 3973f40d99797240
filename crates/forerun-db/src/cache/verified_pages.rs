//! Which pages of a run have been verified since its file was opened.
//!
//! ```text
//!   opening │ bit of page 0, 1, 2, …      a bit counts for this opening of the file only
//! ```
//!
//! The file of a run may be closed and opened again by its name. What is found then is verified
//! again, since it may be another file.

use forerun_core::sync::PoisonError;
use forerun_core::sync::modelled::Mutex;
use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};

/// How often lookups verify the checksums of pages. Nothing is added to the cache or compacted
/// unverified. With [`MemoryChecks::Paranoid`](crate::MemoryChecks::Paranoid), always.
///
/// ```
/// use forerun_db::{Options, VerifyChecksums};
///
/// let options = Options::default().verify_checksums(VerifyChecksums::Always);
/// assert_eq!(options.verify_checksums, VerifyChecksums::Always);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum VerifyChecksums {
    /// Whenever a page is read from a file.
    Always,
    /// Once for each opening of the file, by point lookups that find the page in the system's
    /// memory. If it changes after that, in memory or on the device, they may return a wrong value
    /// until a scan, a compaction, [`Db::verify`](crate::Db::verify) or another check finds the
    /// damage. They verify a page again if the system had dropped it or if it lacks the key. Only
    /// for [`Bytewise`](crate::Bytewise): another comparator may not expect damaged keys.
    #[default]
    Once,
}

/// One bit for each page of a run.
#[derive(Debug)]
pub(crate) struct VerifiedPages {
    bits: Box<[AtomicU64]>,
    /// The opening that the bits count for. Changes under the lock.
    opening: AtomicU64,
    lock: Mutex<()>,
}

impl VerifiedPages {
    /// No page of `count` is verified.
    pub(super) fn new(count: usize) -> Self {
        VerifiedPages {
            bits: (0..Self::words(count)).map(|_| AtomicU64::new(0)).collect(),
            opening: AtomicU64::new(0),
            lock: Mutex::new(()),
        }
    }

    fn words(count: usize) -> usize {
        count.div_ceil(u64::BITS as usize)
    }

    /// The memory for the bits of `count` pages.
    pub(super) fn memory_bytes(count: usize) -> usize {
        Self::words(count) * size_of::<u64>()
    }

    /// The opening for which a page is verified, if it is. Ask before reading the page: what was
    /// read is verified if the file's [openings](crate::io::IoFile::openings) are this number
    /// afterwards.
    #[inline]
    pub(crate) fn opening_of(&self, page_no: u32) -> Option<u64> {
        // Acquire: pairs with the Release in `add`. With a number, this thread sees no bits of
        // earlier openings.
        let opening = self.opening.load(Ordering::Acquire);
        let word = self.bits.get(page_no as usize / 64)?;
        // Acquire: pairs with the Release in `add`. The read that follows does not use a file that
        // was closed before the page was verified.
        let is_verified = word.load(Ordering::Acquire) >> (page_no % 64) & 1 != 0;
        is_verified.then_some(opening)
    }

    /// Notes that a page has been verified as it was read from this opening of the file.
    pub(crate) fn add(&self, page_no: u32, opening: u64) {
        let Some(word) = self.bits.get(page_no as usize / 64) else {
            return;
        };
        if opening == 0 {
            // It is unknown.
            return;
        }
        if self.opening_of(page_no) == Some(opening) {
            return;
        }
        // A panic leaves nothing half-done.
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: it changes under the lock only.
        let current = self.opening.load(Ordering::Relaxed);
        if opening < current {
            // The file has been opened again since.
            return;
        }
        if opening > current {
            for word in &self.bits {
                // Relaxed: published by the store below.
                word.store(0, Ordering::Relaxed);
            }
            self.opening.store(opening, Ordering::Release);
        }
        word.fetch_or(1 << (page_no % 64), Ordering::Release);
    }

    /// Notes that a page is to be verified before it is trusted again.
    pub(crate) fn remove(&self, page_no: u32) {
        if self.opening_of(page_no).is_some() {
            // Relaxed: it orders nothing. Who has read the bit before trusts the page once more.
            self.bits[page_no as usize / 64].fetch_and(!(1 << (page_no % 64)), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_verified_for_one_opening() {
        let pages = VerifiedPages::new(130);
        assert_eq!(pages.opening_of(129), None);
        pages.add(129, 1);
        pages.add(64, 1);
        assert_eq!(pages.opening_of(129), Some(1));
        assert_eq!(pages.opening_of(128), None);
        // The file has been opened again.
        pages.add(3, 2);
        assert_eq!(pages.opening_of(3), Some(2));
        assert_eq!((pages.opening_of(64), pages.opening_of(129)), (None, None));
        // A slow reader of the first opening comes too late.
        pages.add(64, 1);
        assert_eq!(pages.opening_of(64), None);
        pages.add(4, 2);
        pages.remove(3);
        assert_eq!((pages.opening_of(3), pages.opening_of(4)), (None, Some(2)));
        // No such page.
        pages.remove(1000);
        pages.add(1000, 2);
        assert_eq!(pages.opening_of(1000), None);
    }
}
