//! How often and how long writes wait, by reason.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forerun_core::metrics;
use forerun_core::size::counted;

use super::commit::{LogCounts, SHORTEST_STALL};
use crate::events::WriteStallReason;

metrics! {
    /// How often and how long writes waited: because flushes, compactions or syncs of the log did
    /// not keep up, or for an ingestion, a backup or each other.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct WriteStalls {
        /// Writes that had to wait for memory, level 0, an ingestion or a backup.
        counter stalls: u64,
        /// The sum of their waits, in microseconds.
        counter stalled_us: u64,
        /// Writes that waited for memory. These and the next three are parts of `stalls`, for
        /// each [`WriteStallReason`](crate::WriteStallReason).
        counter memory_stalls: u64,
        /// The sum of the waits for memory, in microseconds.
        counter memory_stalled_us: u64,
        /// Writes that waited for a compaction of a full level 0.
        counter level0_stalls: u64,
        /// The sum of the waits for level 0, in microseconds.
        counter level0_stalled_us: u64,
        /// Writes that waited for the commit of an ingestion.
        counter ingestion_stalls: u64,
        /// The sum of the waits for ingestions, in microseconds.
        counter ingestion_stalled_us: u64,
        /// Writes that waited for the beginning of a backup.
        counter backup_stalls: u64,
        /// The sum of the waits for backups, in microseconds.
        counter backup_stalled_us: u64,
        /// The sum of the pauses that slowed writes down, in microseconds.
        counter slowed_us: u64,
        /// Writes that waited at least a millisecond because one of them replaces a full memtable
        /// or adds one for a keyspace, or `flush` or `drop_keyspace` replaces them. That has to
        /// wait for the writes in progress, and so for a sync that one of those asked for.
        counter switch_stalls: u64,
        /// The sum of the waits for memtables, in microseconds.
        counter switch_stalled_us: u64,
        /// Buffered writes that waited at least a millisecond for the log: for a sync that another
        /// write asked for, or for the disk to take segments that the log has left.
        counter log_stalls: u64,
        /// The sum of the waits for the log, in microseconds.
        counter log_stalled_us: u64,
    }
}

/// One part for each reason: how often writes waited, for how many milliseconds, and for what.
impl fmt::Display for WriteStalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = [
            (self.memory_stalls, self.memory_stalled_us, "memory"),
            (self.level0_stalls, self.level0_stalled_us, "level 0"),
            (
                self.ingestion_stalls,
                self.ingestion_stalled_us,
                "an ingestion",
            ),
            (self.backup_stalls, self.backup_stalled_us, "a backup"),
            (self.switch_stalls, self.switch_stalled_us, "a memtable"),
            (self.log_stalls, self.log_stalled_us, "the log"),
        ];
        for (stalls, us, reason) in waits.into_iter().filter(|(stalls, ..)| *stalls > 0) {
            let (stalls, ms) = (counted(stalls, "write"), us / 1000);
            write!(f, "{stalls} waited {ms} ms for {reason}; ")?;
        }
        write!(f, "slowed down by {} ms", self.slowed_us / 1000)
    }
}

/// Counts waits of writes. They are rare, so all threads share the counters.
#[derive(Debug, Default)]
pub(super) struct StallCounts {
    memory: Stalls,
    level0: Stalls,
    ingestion: Stalls,
    backup: Stalls,
    switch: Stalls,
}

#[derive(Debug, Default)]
struct Stalls {
    count: AtomicU64,
    waited_us: AtomicU64,
}

impl Stalls {
    fn add(&self, waited: Duration) {
        let waited_us = waited.as_micros() as u64;
        // Relaxed, all: a count orders nothing.
        self.count.fetch_add(1, Ordering::Relaxed);
        self.waited_us.fetch_add(waited_us, Ordering::Relaxed);
    }

    /// How many there were, and the sum of their waits.
    fn get(&self) -> (u64, u64) {
        let waited_us = self.waited_us.load(Ordering::Relaxed);
        (self.count.load(Ordering::Relaxed), waited_us)
    }
}

impl StallCounts {
    /// Counts a write that had to wait.
    pub(super) fn count(&self, reason: &WriteStallReason, waited: Duration) {
        let stalls = match reason {
            WriteStallReason::Memory => &self.memory,
            WriteStallReason::Level0 { .. } => &self.level0,
            WriteStallReason::Ingestion => &self.ingestion,
            WriteStallReason::Backup => &self.backup,
        };
        stalls.add(waited);
    }

    /// Counts a write that has waited for memtables, if it has waited long.
    pub(super) fn count_switch(&self, waited: Duration) {
        if waited >= SHORTEST_STALL {
            self.switch.add(waited);
        }
    }

    /// All of them, with those that are counted elsewhere.
    pub(super) fn stats(&self, slowed_us: u64, log: &LogCounts) -> WriteStalls {
        let (memory_stalls, memory_stalled_us) = self.memory.get();
        let (level0_stalls, level0_stalled_us) = self.level0.get();
        let (ingestion_stalls, ingestion_stalled_us) = self.ingestion.get();
        let (backup_stalls, backup_stalled_us) = self.backup.get();
        let (switch_stalls, switch_stalled_us) = self.switch.get();
        WriteStalls {
            stalls: memory_stalls + level0_stalls + ingestion_stalls + backup_stalls,
            stalled_us: memory_stalled_us
                + level0_stalled_us
                + ingestion_stalled_us
                + backup_stalled_us,
            memory_stalls,
            memory_stalled_us,
            level0_stalls,
            level0_stalled_us,
            ingestion_stalls,
            ingestion_stalled_us,
            backup_stalls,
            backup_stalled_us,
            slowed_us,
            switch_stalls,
            switch_stalled_us,
            log_stalls: log.stalls,
            log_stalled_us: log.stalled.as_micros() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_and_told_by_reason() {
        let counts = StallCounts::default();
        let ms = Duration::from_millis;
        let keyspace = "users".to_owned();
        counts.count(&WriteStallReason::Memory, ms(1));
        counts.count(&WriteStallReason::Level0 { keyspace }, ms(2));
        counts.count(&WriteStallReason::Ingestion, ms(4));
        counts.count(&WriteStallReason::Backup, ms(8));
        counts.count(&WriteStallReason::Backup, ms(16));
        counts.count_switch(Duration::from_micros(999));
        counts.count_switch(ms(32));
        let stats = counts.stats(7_000, &LogCounts::default());
        assert_eq!((stats.stalls, stats.stalled_us), (5, 31_000));
        assert_eq!((stats.memory_stalls, stats.memory_stalled_us), (1, 1_000));
        assert_eq!((stats.level0_stalls, stats.level0_stalled_us), (1, 2_000));
        let ingestion = (stats.ingestion_stalls, stats.ingestion_stalled_us);
        assert_eq!(ingestion, (1, 4_000));
        assert_eq!((stats.backup_stalls, stats.backup_stalled_us), (2, 24_000));
        assert_eq!((stats.switch_stalls, stats.switch_stalled_us), (1, 32_000));
        assert_eq!(
            stats.to_string(),
            "1 write waited 1 ms for memory; 1 write waited 2 ms for level 0; 1 write waited 4 ms \
             for an ingestion; 2 writes waited 24 ms for a backup; 1 write waited 32 ms for a \
             memtable; slowed down by 7 ms"
        );
    }
}
