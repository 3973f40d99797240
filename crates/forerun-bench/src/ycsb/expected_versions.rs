//! The allowed answers of a store: for every record, the versions that a read may find.
//!
//! ```text
//!  a record's word   | begun: 32 bits | behind: 24 bits | in flight: 8 bits |
//!                      the newest       begun - behind    writes of the record
//!                      version that     is the oldest     that have not
//!                      a write began    one still right   returned
//! ```
//!
//! Versions are numbered from 1 as their writes begin. If one write of a record follows another,
//! the older version is wrong once the newer write has returned. If two overlap, either may win,
//! and both stay allowed until a write that began alone, and saw no other begin, has returned. So a
//! reader notes the oldest allowed version before its request and the newest begun one afterwards.
//! An answer between the two is correct.
//!
//! Records are inserted in the order of their numbers. They count as known up to the first one
//! whose insert has not returned.

use anyhow::{Result, ensure};
use std::sync::atomic::{AtomicU64, Ordering};

const IN_FLIGHT: u64 = 0xff;
const BEHIND_SHIFT: u32 = 8;
const BEHIND_MAX: u64 = 0xff_ffff;
const BEGUN_SHIFT: u32 = 32;

/// The maximum number of threads that may write, so that no count of writes in flight overflows.
pub const WRITERS_MAX: usize = 200;

/// The versions of all records.
pub struct ExpectedVersions {
    words: Vec<AtomicU64>,
    next: AtomicU64,
    known: AtomicU64,
}

/// A write between its beginning and its return.
#[must_use]
pub struct PendingWrite {
    /// The record.
    pub record: u64,
    /// The version that it writes.
    pub version: u64,
    alone: bool,
}

impl ExpectedVersions {
    /// Creates a state without records, with space for `max` of them.
    pub fn new(max: u64) -> Result<ExpectedVersions> {
        let max = usize::try_from(max)?;
        let mut words = Vec::new();
        words.try_reserve_exact(max)?;
        words.resize_with(max, AtomicU64::default);
        Ok(ExpectedVersions {
            words,
            next: AtomicU64::new(0),
            known: AtomicU64::new(0),
        })
    }

    /// Begins the write of a record's next version.
    pub fn begin(&self, record: u64) -> PendingWrite {
        let mut was = 0;
        self.change(record, |word| {
            was = word;
            let begun = (word >> BEGUN_SHIFT) + 1;
            let behind = ((word >> BEHIND_SHIFT & BEHIND_MAX) + 1).min(BEHIND_MAX);
            begun << BEGUN_SHIFT | behind << BEHIND_SHIFT | ((word & IN_FLIGHT) + 1)
        });
        PendingWrite {
            record,
            version: (was >> BEGUN_SHIFT) + 1,
            alone: was & IN_FLIGHT == 0,
        }
    }

    /// Begins the insert of the next record.
    ///
    /// # Errors
    /// If there is no space for another record.
    pub fn begin_insert(&self) -> Result<PendingWrite> {
        let record = self.next.fetch_add(1, Ordering::SeqCst);
        ensure!(
            record < self.words.len() as u64,
            "more records are inserted than the {} that fit",
            self.words.len()
        );
        Ok(self.begin(record))
    }

    /// Records that a write has returned.
    pub fn end(&self, write: PendingWrite) {
        self.change(write.record, |word| {
            let mut word = word - 1;
            if write.alone && word >> BEGUN_SHIFT == write.version {
                word &= !(BEHIND_MAX << BEHIND_SHIFT);
            }
            word
        });
        // The thread that inserted the first unknown record, or finds it done, makes all done ones
        // known.
        let mut known = self.known();
        while known < self.next.load(Ordering::SeqCst) && self.is_there(known) {
            match self.swap_known(known) {
                Ok(_) => known += 1,
                Err(by_another) => known = by_another,
            }
        }
    }

    fn swap_known(&self, known: u64) -> Result<u64, u64> {
        self.known
            .compare_exchange(known, known + 1, Ordering::SeqCst, Ordering::SeqCst)
    }

    /// The number of known records, from 0 on.
    pub fn known(&self) -> u64 {
        self.known.load(Ordering::SeqCst)
    }

    /// The number of begun records, from 0 on.
    pub fn begun_records(&self) -> u64 {
        self.next
            .load(Ordering::SeqCst)
            .min(self.words.len() as u64)
    }

    /// The oldest version of a record that is allowed from now on.
    pub fn oldest(&self, record: u64) -> u64 {
        let word = self.word(record);
        (word >> BEGUN_SHIFT) - (word >> BEHIND_SHIFT & BEHIND_MAX)
    }

    /// The newest version of a record that can have been read by now.
    pub fn newest(&self, record: u64) -> u64 {
        self.word(record) >> BEGUN_SHIFT
    }

    /// Whether the insert of a record has returned.
    fn is_there(&self, record: u64) -> bool {
        let word = self.word(record);
        // Only its insert writes a record that is not known yet.
        word >> BEGUN_SHIFT > 0 && word & IN_FLIGHT == 0
    }

    fn word(&self, record: u64) -> u64 {
        let word = self.words.get(record as usize);
        // SeqCst, here and everywhere: the check is not timed, so weaker orderings would gain
        // nothing.
        word.map_or(0, |word| word.load(Ordering::SeqCst))
    }

    fn change(&self, record: u64, mut to: impl FnMut(u64) -> u64) {
        if let Some(word) = self.words.get(record as usize) {
            let change = |old| Some(to(old));
            // It always returns a new word, so it never fails.
            let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_write_returns_the_older_version_is_wrong() {
        let expected = ExpectedVersions::new(1).unwrap();
        expected.end(expected.begin_insert().unwrap());
        for version in 1..5 {
            assert_eq!((expected.oldest(0), expected.newest(0)), (version, version));
            let write = expected.begin(0);
            assert_eq!(write.version, version + 1);
            assert_eq!(
                (expected.oldest(0), expected.newest(0)),
                (version, version + 1)
            );
            expected.end(write);
        }
    }

    #[test]
    fn overlapping_writes_are_all_allowed_until_a_later_write() {
        let expected = ExpectedVersions::new(1).unwrap();
        expected.end(expected.begin_insert().unwrap());
        for swap in [false, true] {
            let before = expected.oldest(0);
            let (first, second) = (expected.begin(0), expected.begin(0));
            let newest = second.version;
            let pair = if swap {
                [second, first]
            } else {
                [first, second]
            };
            pair.into_iter().for_each(|write| expected.end(write));
            assert_eq!((expected.oldest(0), expected.newest(0)), (before, newest));
            expected.end(expected.begin(0));
            assert_eq!(expected.oldest(0), newest + 1);
        }
    }

    #[test]
    fn records_are_known_up_to_the_first_that_is_not_there() {
        let expected = ExpectedVersions::new(4).unwrap();
        let writes: Vec<PendingWrite> = (0..3).map(|_| expected.begin_insert().unwrap()).collect();
        let mut writes = writes.into_iter();
        let mut next = || writes.next().unwrap();
        let (zero, one, two) = (next(), next(), next());
        assert_eq!((one.record, one.version), (1, 1));
        expected.end(one);
        assert_eq!((expected.known(), expected.begun_records()), (0, 3));
        expected.end(zero);
        assert_eq!(expected.known(), 2);
        expected.end(two);
        assert_eq!(expected.known(), 3);
        expected.end(expected.begin_insert().unwrap());
        assert!(expected.begin_insert().is_err());
        assert_eq!((expected.known(), expected.begun_records()), (4, 4));
    }

    #[test]
    fn concurrent_inserts_and_writes_leave_a_known_state() {
        let expected = ExpectedVersions::new(400).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..100 {
                        expected.end(expected.begin_insert().unwrap());
                        let record = turn % expected.known().max(1);
                        if record < expected.known() {
                            expected.end(expected.begin(record));
                        }
                    }
                });
            }
        });
        assert_eq!(expected.known(), 400);
        for record in 0..400 {
            expected.end(expected.begin(record));
            assert_eq!(expected.oldest(record), expected.newest(record));
        }
    }
}
