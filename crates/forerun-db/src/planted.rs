//! Known defects, put back one at a time, so that a test can show that it finds them.
//!
//! ```text
//!   plant(Some(Defect::SyncSkipped)) ──> one word of the process <── is(Defect::SyncSkipped)   at the place of the defect
//! ```
//!
//! Only with the feature `planted`. Without it [`is`] is `false` when the compiler sees it, and
//! nothing of a defect is in the program. Each defect is one that this store had or that stores of
//! its kind have had.

macro_rules! defects {
    ($($(#[$group:meta])* $variant:ident $name:literal $what:literal,)*) => {
        /// A known defect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Defect {
            $(#[doc = $what] $variant,)*
        }

        #[cfg(feature = "planted")]
        impl Defect {
            /// All of them, in the order of the parts of the store.
            pub const ALL: &[Defect] = &[$(Defect::$variant,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Defect::$variant => $name,)*
                }
            }

            /// What it is, in one sentence.
            pub fn sentence(self) -> &'static str {
                match self {
                    $(Defect::$variant => $what,)*
                }
            }
        }
    };
}

defects! {
    // Commit.
    PanicLeavesHole "panic-leaves-hole"
        "A comparator that panics while a batch is applied leaves a sequence number that never becomes visible, and later writers wait for it.",
    PanicUntold "panic-untold"
        "A worker that panics ends, and those who wait for its work are not told.",
    OneFollowerWoken "one-follower-woken"
        "When a group of writers is in the log, only one of them is woken.",
    BatchInTwoSteps "batch-in-two-steps"
        "A batch becomes visible in two steps.",
    // The log.
    SyncSkipped "sync-skipped"
        "A synced write is acknowledged before the log is synced.",
    FailedSyncIgnored "failed-sync-ignored"
        "A sync of the log that fails is tried again, and the second one, which has nothing left to write, counts.",
    SegmentNameUnsynced "segment-name-unsynced"
        "The directory is not synced after a segment of the log was created.",
    SegmentRemovedEarly "segment-removed-early"
        "Segments of the log are removed before the manifest that replaces them is written.",
    TornRecordAccepted "torn-record-accepted"
        "Recovery does not compare the checksum of a record of the log.",
    LastRecordDropped "last-record-dropped"
        "Recovery stops one record before the end of the log.",
    // Flush and manifest.
    FlushedOneTooMany "flushed-one-too-many"
        "The manifest says of one operation too many that it is in runs.",
    RunUnsynced "run-unsynced"
        "A run is named by the manifest and never synced.",
    ManifestUnsynced "manifest-unsynced"
        "A manifest is renamed before its bytes are synced.",
    ManifestNameUnsynced "manifest-name-unsynced"
        "The directory is not synced after a manifest was renamed.",
    FailedManifestLeavesRuns "failed-manifest-leaves-runs"
        "Each attempt to write a manifest that fails leaves the runs it was to name on the disk.",
    DropNotDurable "drop-not-durable"
        "A keyspace that was dropped comes back when the store is opened again.",
    // Compaction.
    SnapshotOffByOne "snapshot-off-by-one"
        "A compaction drops the newest version that a snapshot sees.",
    SnapshotOutsideLock "snapshot-outside-lock"
        "A snapshot chooses its sequence number before it is in the list that compactions go by.",
    TombstoneDroppedEarly "tombstone-dropped-early"
        "A compaction drops a deletion although a deeper level still has the key.",
    RangeForgottenEarly "range-forgotten-early"
        "A range deletion is forgotten although it still covers the last key of a run.",
    BadPageStopsAll "bad-page-stops-all"
        "A page that cannot be read in one keyspace ends up refusing the writes of all keyspaces.",
    // Ingestion and range deletions.
    IngestionShownEarly "ingestion-shown-early"
        "The runs of an ingestion are shown before their sequence number is visible, and a compaction drops the versions before them.",
    RangesUncounted "ranges-uncounted"
        "The memory of range deletions is not counted towards the limit of memory, and every few of them are merged with all before.",
    // Reading.
    BadPageRead "bad-page-read"
        "A page whose checksum does not match is accepted if its structure is valid.",
    RunEndExcluded "run-end-excluded"
        "A lookup does not search a run of level 0 for the last key of it.",
    BackwardStale "backward-stale"
        "An iterator that goes backward over a key with many versions shows an old one.",
    DuplicatesMissed "duplicates-missed"
        "A batch of lookups below the newest memtable answers a key that is asked for twice in a row only once.",
    TtlIgnoredInMemtable "ttl-ignored-in-memtable"
        "Entries do not expire as long as they are in a memtable.",
    ExpiresEarly "expires-early"
        "Entries expire a second before their time.",
    ExpiredReturns "expired-returns"
        "Entries that have expired are back when the clock is set back.",
    ReadOnlyForgetsMemtables "read-only-forgets-memtables"
        "A read-only opening shows only the last memtable that it reads from the log, and not the full ones before.",
    // The page cache.
    FrameReusedEarly "frame-reused-early"
        "A page of the cache makes room for another while a reader is on it.",
    PageOfAnotherRun "page-of-another-run"
        "Lookups that wait for pages of the same number in different runs get the same page.",
    // Copies.
    BackupUnsynced "backup-unsynced"
        "A backup is complete before the runs that it copied are synced.",
    CheckpointSharesLog "checkpoint-shares-log"
        "A checkpoint shares the segment of the log that is still written to.",
    // Repair.
    LossUnreported "loss-unreported"
        "A repair does not report what it lost with a page that cannot be read.",
    // The directory.
    CloseBesideWork "close-beside-work"
        "Closing gives the directory's lock back while a flush or a compaction in a caller's thread goes on changing it.",
    LockNotExclusive "lock-not-exclusive"
        "A directory can be opened twice.",
    ReadOnlyRemovesSegments "read-only-removes-segments"
        "A read-only opening removes segments of the log whose contents are in runs.",
    CreatedTwice "created-twice"
        "Whether a store exists is decided before its directory is locked, so two callers that create it can both succeed.",
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use forerun_core::sync::thread;

    use super::Defect;

    /// The number of the defect, counted from 1; 0: none.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    /// Puts a defect back, in place of the one before, in all stores of this process; `None`: takes
    /// it out.
    pub fn plant(defect: Option<Defect>) {
        let number = defect.map_or(0, |defect| defect as usize + 1);
        // Relaxed, here and below: whoever runs a store was started, or told, after this.
        PLANTED.store(number, Ordering::Relaxed);
    }

    /// A thread that loses its processor, where a defect does harm to others then.
    pub(crate) fn dawdle() {
        thread::sleep(Duration::from_millis(2));
    }

    /// Whether a defect was put back.
    pub(crate) fn is(defect: Defect) -> bool {
        PLANTED.load(Ordering::Relaxed) == defect as usize + 1
    }
}

#[cfg(feature = "planted")]
pub use chosen::plant;
#[cfg(feature = "planted")]
pub(crate) use chosen::{dawdle, is};

/// Whether a defect was put back: never.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}

/// Never called.
#[cfg(not(feature = "planted"))]
pub(crate) const fn dawdle() {}
