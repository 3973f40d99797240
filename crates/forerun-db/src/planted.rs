//! Known defects, planted one at a time to show that the tests find them
//! (`forerun_core::planted_defects`). This store or similar stores have had each of them.

forerun_core::planted_defects! {
    // Commit.
    PanicLeavesHole "panic-leaves-hole"
        "A comparator that panics while a batch is applied leaves a sequence number that never \
         becomes visible, and later writers wait for it.",
    PanicUnreported "panic-unreported"
        "A worker panics and ends, and threads that wait for its work are not notified.",
    OneFollowerWoken "one-follower-woken"
        "When a group of writers is in the log, only one of its writers is woken.",
    BatchInTwoSteps "batch-in-two-steps"
        "A batch becomes visible in two steps.",
    FailedWritePoisons "failed-write-poisons"
        "A write of the log that fails stops all writes, although it was taken back.",
    FailedFlushAsNoMemory "failed-flush-as-no-memory"
        "A write that waits for a flush is refused for lack of memory when the flush keeps \
         failing.",
    KeyspaceStaysStopped "keyspace-stays-stopped"
        "A keyspace that refuses writes because it cannot be compacted never accepts any again.",
    // The log.
    SyncSkipped "sync-skipped"
        "A synced write is acknowledged before the log is synced.",
    FailedSyncIgnored "failed-sync-ignored"
        "A failed sync of the log is retried, and the retry counts as a success although it has \
         nothing left to write.",
    FailedWriteKept "failed-write-kept"
        "A failed write of the log is retried, and its record stays although the write has failed.",
    SegmentNameUnsynced "segment-name-unsynced"
        "The directory is not synced after a log segment was created.",
    SegmentRemovedEarly "segment-removed-early"
        "Log segments are removed before the manifest that replaces them is written.",
    SegmentsKept "segments-kept"
        "Log segments whose contents are in runs stay until the store is opened again.",
    TornRecordAccepted "torn-record-accepted"
        "Recovery does not verify the checksum of a log record.",
    LastRecordDropped "last-record-dropped"
        "Recovery stops one record before the end of the log.",
    // Flush and manifest.
    FlushedOneTooMany "flushed-one-too-many"
        "The manifest claims that one operation more is in runs than really is.",
    RunUnsynced "run-unsynced"
        "The manifest names a run that was never synced.",
    ManifestUnsynced "manifest-unsynced"
        "A manifest is renamed before its bytes are synced.",
    ManifestNameUnsynced "manifest-name-unsynced"
        "The directory is not synced after a manifest was renamed.",
    FailedManifestLeavesRuns "failed-manifest-leaves-runs"
        "Each failed attempt to write a manifest leaves its new runs on the disk.",
    DropNotDurable "drop-not-durable"
        "A keyspace that was dropped comes back when the store is opened again.",
    // Compaction.
    SnapshotOffByOne "snapshot-off-by-one"
        "A compaction drops the newest version that a snapshot sees.",
    SnapshotLeaked "snapshot-leaked"
        "A snapshot that was dropped still makes compactions keep what it saw.",
    SnapshotOutsideLock "snapshot-outside-lock"
        "A snapshot chooses its sequence number before it is in the list that compactions read.",
    TombstoneDroppedEarly "tombstone-dropped-early"
        "A compaction drops a deletion although a deeper level still has the key.",
    RangeForgottenEarly "range-forgotten-early"
        "A range deletion is forgotten although it still covers the last key of a run.",
    BadPageStopsAll "bad-page-stops-all"
        "A page that cannot be read in one keyspace ends up stopping writes to all keyspaces.",
    // Ingestion and range deletions.
    IngestionShownEarly "ingestion-shown-early"
        "The runs of an ingestion are shown before their sequence number is visible, and a \
         compaction drops the versions before them.",
    RangesUncounted "ranges-uncounted"
        "The memory of range deletions does not count towards the memory limit, and each few new \
         ones are merged with all earlier ones.",
    // Reading.
    BadPageRead "bad-page-read"
        "A page whose checksum does not match is accepted if its structure is valid.",
    RunEndExcluded "run-end-excluded"
        "A lookup does not search a run of level 0 for the run's last key.",
    BackwardStale "backward-stale"
        "An iterator that moves backward over a key with many versions shows an old version.",
    DuplicatesMissed "duplicates-missed"
        "A batch of lookups below the newest memtable answers a key that occurs twice in a row \
         only once.",
    ExcludedEndIncluded "excluded-end-included"
        "A forward scan returns the key that is its excluded end.",
    PrefixEndWraps "prefix-end-wraps"
        "The end of a prefix is its last byte plus one, and 0xff becomes 0.",
    TtlIgnoredInMemtable "ttl-ignored-in-memtable"
        "Entries do not expire as long as they are in a memtable.",
    ExpiresEarly "expires-early"
        "Entries expire a second before their time.",
    ExpiredReturns "expired-returns"
        "Expired entries return when the clock is set back.",
    MovedEntriesLost "moved-entries-lost"
        "The index of a memtable loses the entries that move to another bucket when it grows.",
    ReadOnlyForgetsMemtables "read-only-forgets-memtables"
        "A read-only opening shows only the last memtable that it reads from the log, not the full \
         ones before it.",
    // The page cache.
    FrameReusedEarly "frame-reused-early"
        "A frame of the page cache is reused while a reader still reads its page.",
    PageOfAnotherRun "page-of-another-run"
        "Lookups that wait for pages of the same number in different runs get the same page.",
    // Copies.
    BackupUnsynced "backup-unsynced"
        "A backup is complete before the runs that it copied are synced.",
    BackupFilesKept "backup-files-kept"
        "Files that only removed backups needed stay.",
    RestoreUnsynced "restore-unsynced"
        "A restored store is complete before the runs that it copied are synced.",
    CheckpointSharesLog "checkpoint-shares-log"
        "A checkpoint shares the log segment that is still being written.",
    // Repair.
    LossUnreported "loss-unreported"
        "A repair does not report the entries that it lost with an unreadable page.",
    // The directory.
    CloseBesideWork "close-beside-work"
        "Closing releases the directory's lock while a flush or a compaction in a caller's thread \
         still changes the directory.",
    LockNotExclusive "lock-not-exclusive"
        "A directory can be opened twice.",
    ReadOnlyRemovesSegments "read-only-removes-segments"
        "A read-only opening removes log segments whose contents are in runs.",
    CreatedTwice "created-twice"
        "Whether a store exists is decided before its directory is locked, so two callers that \
         create it can both succeed.",
}

/// Simulates a thread that loses its CPU, where a planted defect then harms other threads.
#[cfg(feature = "planted")]
pub(crate) fn preempt(ms: u64) {
    forerun_core::sync::thread::sleep(std::time::Duration::from_millis(ms));
}

/// Never called.
#[cfg(not(feature = "planted"))]
pub(crate) const fn preempt(_: u64) {}
