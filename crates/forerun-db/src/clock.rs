//! When entries were written, for keyspaces whose entries expire.
//!
//! ```text
//!   second           1000      1001          1007                  a mark for each second in which anything was written:
//!   first sequence   1         4             90                    the first sequence number of that second
//!                    1 2 3     4 ... 89      90 91 ... visible
//!
//!   at 1012 with a time to live of 5 s, all up to 89 has expired: written before 1007
//! ```
//!
//! Entries carry no time. The sequence number of an entry shows when it was written, to the second.
//! In a keyspace, everything up to some sequence number, the watermark, has expired. Each log
//! record has its second, and the manifest has the marks of entries in runs, so a reopened store
//! knows all marks.
//!
//! Marks older than every time to live become one with the second 0: the entries that they date
//! have expired, whatever the clock says later. A week of writing every second would still leave
//! 600,000 marks, and the manifest is written with all of them at each flush. So marks that only a
//! long time to live needs are merged to a 2^14th of it, which is one second for up to four hours.
//! Merged marks make entries live longer, never shorter. So does a system clock that is set back:
//! see `steady_clock.rs`.

use forerun_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::Io;
use crate::steady_clock::SteadyClock;

/// The maximum number of marks for one time to live.
const MARKS_MAX: u64 = 1 << 14;

/// Up to this many marks, none are merged or dropped.
const FEW_MARKS: usize = 1 << 10;

/// Everything from this sequence number up to the next mark was written in this second, counted
/// from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) second: u64,
    pub(crate) first_sequence: u64,
}

/// The system clock, and when entries that may expire were written.
#[derive(Debug)]
pub(crate) struct Clock {
    seconds: SteadyClock,
    /// Whether entries of any keyspace expire. If not, no marks are kept.
    is_on: AtomicBool,
    /// The second of the last mark.
    last_second: AtomicU64,
    state: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    /// Ascending by both numbers.
    marks: Vec<Mark>,
    /// All times to live, in seconds, ascending.
    ttls: Vec<u64>,
    /// The number of marks at which they are next pruned.
    prune_at: usize,
}

impl Clock {
    /// A clock with these marks, for keyspaces with these times to live.
    pub(crate) fn new(io: Arc<dyn Io>, marks: Vec<Mark>, ttls: impl Iterator<Item = u64>) -> Clock {
        let last_second = marks.last().map_or(0, |mark| mark.second);
        let clock = Clock {
            seconds: SteadyClock::new(io),
            is_on: AtomicBool::new(false),
            last_second: AtomicU64::new(last_second),
            state: Mutex::new(Marks {
                marks,
                ..Marks::default()
            }),
        };
        clock.seconds.reach(last_second);
        ttls.for_each(|ttl| clock.expect(ttl));
        clock
    }

    /// Records times from now on, for a keyspace with this time to live in seconds.
    pub(crate) fn expect(&self, ttl: u64) {
        let mut state = self.lock();
        if let Err(index) = state.ttls.binary_search(&ttl) {
            state.ttls.insert(index, ttl);
        }
        // Relaxed: threads that write to the keyspace get it after this.
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Whether entries of any keyspace expire.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Seconds since 1970, to tell what has expired.
    pub(crate) fn now(&self) -> u64 {
        self.seconds.now()
    }

    /// Seconds since 1970, to date a write. A write is never dated too early.
    pub(crate) fn write_second(&self) -> u64 {
        if self.is_on() {
            self.seconds.now_at_most()
        } else {
            self.now()
        }
    }

    /// [`note`](Self::note) for a record of the log that is applied again.
    pub(crate) fn note_recovered(&self, second: u64, first_sequence: u64) {
        self.note(second, first_sequence);
        self.seconds.reach(second);
    }

    /// Records that numbers from `first_sequence` on are written in this second or later. Called in
    /// the order of the numbers, before their writes are visible.
    #[inline]
    pub(crate) fn note(&self, second: u64, first_sequence: u64) {
        // Relaxed: only the single writer of the log changes it.
        if self.is_on() && second > self.last_second.load(Ordering::Relaxed) {
            self.add(&mut self.lock(), second, first_sequence);
        }
    }

    /// Takes a sequence number with `take` and records that it is written now. Any thread may call
    /// this.
    pub(crate) fn number(&self, take: impl FnOnce() -> u64) -> u64 {
        if !self.is_on() {
            return take();
        }
        let mut state = self.lock();
        let first_sequence = take();
        self.add(&mut state, self.seconds.now_at_most(), first_sequence);
        first_sequence
    }

    fn add(&self, state: &mut Marks, second: u64, first_sequence: u64) {
        if state.marks.last().is_some_and(|last| last.second >= second) {
            return;
        }
        state.marks.push(Mark {
            second,
            first_sequence,
        });
        self.last_second.store(second, Ordering::Relaxed);
        if state.marks.len() > state.prune_at.max(FEW_MARKS) {
            state.prune(second);
            state.prune_at = 2 * state.marks.len();
        }
    }

    /// The present watermark for a reader that sees numbers up to `visible`.
    fn expired(&self, now: u64, ttl: u64, visible: u64) -> Expired {
        // Nothing has expired, or it is not known when it was written.
        const NOTHING: Expired = Expired {
            sequence: 0,
            holds_up_to: u64::MAX,
        };
        // An entry lives for at least its time to live, and may have been written at any point of
        // its second.
        let Some(limit) = now.checked_sub(ttl).and_then(|limit| limit.checked_sub(1)) else {
            return NOTHING;
        };
        let state = self.lock();
        let older = state.marks.partition_point(|mark| mark.second <= limit);
        match state.marks.get(older) {
            _ if older == 0 => NOTHING,
            Some(mark) if mark.first_sequence <= visible => Expired {
                sequence: mark.first_sequence - 1,
                holds_up_to: u64::MAX,
            },
            // Everything that this reader sees. It may see less than others, because it holds a
            // snapshot or was stopped for a while, so more may have expired for the others. Numbers
            // that are not visible yet may still be waiting for their mark.
            _ => Expired {
                sequence: visible,
                holds_up_to: visible,
            },
        }
    }

    /// The marks up to this sequence number, for the manifest.
    pub(crate) fn marks_up_to(&self, sequence: u64) -> Vec<Mark> {
        let mut state = self.lock();
        state.prune(self.now());
        let up_to = |mark: &&Mark| mark.first_sequence <= sequence;
        state.marks.iter().take_while(up_to).copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Marks> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A watermark at one moment: the entries up to it have expired.
#[derive(Clone, Copy, Debug)]
struct Expired {
    /// Everything up to this sequence number.
    sequence: u64,
    /// Valid for readers that see numbers up to this one.
    holds_up_to: u64,
}

impl Marks {
    /// Replaces marks that are older than every time to live by one, and merges those that only a
    /// long time to live needs.
    fn prune(&mut self, now: u64) {
        let age = |mark: &Mark| now.saturating_sub(mark.second);
        let Some(longest) = self.ttls.last() else {
            return;
        };
        let old = self.marks.partition_point(|mark| age(mark) > *longest);
        if old > 1 {
            // Everything before the last of them has expired. With the second 0, it stays expired
            // even if the clock is set back and the store is opened again. The last one keeps its
            // second, because later numbers may still belong to it.
            self.marks.drain(1..old - 1);
            self.marks[0].second = 0;
        }
        if self.marks.len() <= FEW_MARKS {
            return;
        }
        let ttls = &self.ttls;
        let grain = |mark: &Mark| {
            let index = ttls.partition_point(|ttl| *ttl < age(mark));
            ttls.get(index).map_or(1, |ttl| ttl.div_ceil(MARKS_MAX))
        };
        self.marks.dedup_by(|mark, kept| {
            let grain = grain(mark);
            let is_merged = mark.second / grain == kept.second / grain;
            if is_merged {
                kept.second = mark.second;
            }
            is_merged
        });
    }
}

/// A keyspace's watermark, computed once a second.
#[derive(Debug)]
pub(crate) struct Expiry {
    /// The time to live in seconds.
    ttl: u64,
    /// The second of the last computation.
    second: AtomicU64,
    /// That computation's [`Expired::holds_up_to`].
    holds_up_to: AtomicU64,
    /// Held while it is computed, so that the three numbers stay those of one computation.
    computing: Mutex<()>,
    /// Everything up to this sequence number has expired. Never decreases.
    expired_sequence: AtomicU64,
}

impl Expiry {
    /// For a keyspace in which everything up to a sequence number has expired.
    pub(crate) fn new(ttl: u64, expired_sequence: u64) -> Expiry {
        Expiry {
            ttl,
            second: AtomicU64::new(0),
            holds_up_to: AtomicU64::new(0),
            computing: Mutex::new(()),
            expired_sequence: AtomicU64::new(expired_sequence),
        }
    }

    /// The time to live in seconds.
    pub(crate) fn ttl(&self) -> u64 {
        self.ttl
    }

    /// The sequence number up to which everything has expired by now; `visible` is the newest
    /// visible one.
    #[inline]
    pub(crate) fn expired_sequence(&self, clock: &Clock, visible: u64) -> u64 {
        let now = clock.now();
        // Acquire, here and below, pairs with the releases in `compute`: a thread that sees either
        // number sees the expired number of that computation or of a later one.
        if self.second.load(Ordering::Acquire) != now
            || self.holds_up_to.load(Ordering::Acquire) < visible
        {
            self.compute(clock, now, visible);
        }
        self.expired_sequence.load(Ordering::Relaxed)
    }

    #[cold]
    fn compute(&self, clock: &Clock, now: u64, visible: u64) {
        // Nothing panics while the lock is held.
        let _computing = self
            .computing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Expired {
            sequence,
            holds_up_to,
        } = clock.expired(now, self.ttl, visible);
        // Relaxed: the stores below publish it.
        self.expired_sequence.fetch_max(sequence, Ordering::Relaxed);
        self.holds_up_to.store(holds_up_to, Ordering::Release);
        self.second.store(now, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::io::fault::FaultIo;

    fn clock(now: u64, ttls: &[u64]) -> (FaultIo, Clock) {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(now));
        let clock = Clock::new(Arc::new(io.clone()), Vec::new(), ttls.iter().copied());
        (io, clock)
    }

    #[test]
    fn marks_up_to_a_number_date_what_was_written_before_the_last_old_one() {
        let (io, clock) = clock(100, &[1]);
        clock.note(100, 1);
        clock.note(120, 30);
        io.set_unix_time_s(Some(150));
        // Both are older than the time to live.
        assert_eq!(clock.marks_up_to(40).len(), 2);
        // A store that is opened with these marks knows that 20 has expired.
        let marks = clock.marks_up_to(20);
        let reopened = Clock::new(Arc::new(io.clone()), marks, [1].into_iter());
        assert_eq!(reopened.expired(150, 1, 20).sequence, 20);
    }

    #[test]
    fn what_expired_before_the_clock_was_set_back_stays_expired_in_a_store_opened_later() {
        let (io, clock) = clock(100, &[3]);
        for (second, first_sequence) in [(100, 1), (101, 4), (104, 9), (107, 20)] {
            clock.note(second, first_sequence);
        }
        io.set_unix_time_s(Some(109));
        let marks = clock.marks_up_to(30);
        let reopened = Clock::new(Arc::new(io.clone()), marks.clone(), [3].into_iter());
        // At 104 the entries of 100 had expired, and those of 101 expired before the clock was set
        // back to it.
        assert_eq!(reopened.expired(104, 3, 30).sequence, 8);
        assert_eq!(reopened.expired(109, 3, 30).sequence, 19);
        // Marks that are tidied again do not forget it.
        reopened.note(120, 31);
        io.set_unix_time_s(Some(121));
        assert_eq!(reopened.marks_up_to(40)[0], marks[0]);
        assert_eq!(reopened.expired(104, 3, 40).sequence, 19);
        // A manifest of an older moment has the age of what is in its runs.
        assert_eq!(clock.marks_up_to(2), marks[..1]);
    }

    proptest! {
        #[test]
        fn expiry_matches_a_model_with_a_time_per_sequence(
            steps in prop::collection::vec((0_u64..4, 1_u64..4), 1..60),
            ttl in 1_u64..8,
            later in 0_u64..12,
        ) {
            let (io, clock) = clock(100, &[ttl]);
            let (mut now, mut written) = (100, Vec::new());
            for (pause, count) in steps {
                now += pause;
                clock.note(now, written.len() as u64 + 1);
                written.extend((0..count).map(|_| now));
            }
            now += later;
            io.set_unix_time_s(Some(now));
            let visible = written.len() as u64;
            let expired = Expiry::new(ttl, 0).expired_sequence(&clock, visible);
            let wanted = written.iter().take_while(|second| **second + ttl < now).count();
            prop_assert_eq!(expired, wanted as u64);
        }
    }

    #[test]
    fn invisible_entries_do_not_expire() {
        let (_, clock) = clock(100, &[1]);
        clock.note(50, 1);
        clock.note(90, 8);
        assert_eq!(clock.expired(100, 1, 5).sequence, 5);
        assert_eq!(clock.expired(90, 20, 5).sequence, 5);
        assert_eq!(clock.expired(90, 20, 9).sequence, 7);
    }

    #[test]
    fn expiry_does_not_depend_on_who_reads_first() {
        let (io, clock) = clock(100, &[1]);
        clock.note(100, 1);
        clock.note(103, 17);
        io.set_unix_time_s(Some(103));
        let expiry = Expiry::new(1, 0);
        assert_eq!(expiry.expired_sequence(&clock, 12), 12);
        assert_eq!(expiry.expired_sequence(&clock, 18), 16);
        // Likewise if nothing was written since.
        io.set_unix_time_s(Some(110));
        assert_eq!(expiry.expired_sequence(&clock, 18), 18);
        assert_eq!(expiry.expired_sequence(&clock, 20), 20);
    }

    #[test]
    fn setting_the_clock_back_expires_nothing_early_and_revives_nothing() {
        let (io, clock) = clock(100, &[10]);
        clock.note(100, 1);
        clock.note(40, 2);
        let expiry = Expiry::new(10, 0);
        io.set_unix_time_s(Some(60));
        assert_eq!(expiry.expired_sequence(&clock, 2), 0);
        io.set_unix_time_s(Some(111));
        assert_eq!(expiry.expired_sequence(&clock, 2), 2);
        io.set_unix_time_s(Some(60));
        assert_eq!(expiry.expired_sequence(&clock, 2), 2);
    }

    #[test]
    fn expiry_marks_are_bounded_and_at_most_a_16384th_of_the_ttl_late() {
        const LONG: u64 = 40 << 14;
        let (_, clock) = clock(0, &[60, LONG]);
        let end = 1 << 18;
        for second in 1..=end {
            clock.note(second, second);
        }
        clock.lock().prune(end);
        let marks = clock.lock().marks.len() as u64;
        assert!(marks <= end / 40 + 70, "{marks} marks");
        // To the second for the short one, and never early for the long one.
        for now in [end, end + 30] {
            assert_eq!(clock.expired(now, 60, end).sequence, now - 61);
        }
        for second in (1..end).step_by(4_001) {
            let expired = clock.expired(second + LONG + 1, LONG, end).sequence;
            assert!(
                (second.saturating_sub(41)..=second).contains(&expired),
                "{second}: {expired}"
            );
        }
    }
}
