//! Known defects. Tests plant them one at a time to show that the test suites find them
//! (`forerun_core::planted_defects`). This server or a similar one has had each of them.

forerun_core::planted_defects! {
    // Sockets and TLS.
    TlsBufferFull "tls-buffer-full"
        "A full buffer of TLS is reported as a socket that would block; sending empties it, and no \
         event ever comes.",
    ShortTlsRead "short-tls-read"
        "A short read from a TLS connection is taken to mean that the socket is empty.",
    EndForgotten "end-forgotten"
        "A short read hides the end of a connection that was reported together with its \
         last bytes.",
    BlockForgotten "block-forgotten"
        "An event that comes in the middle of a data block is lost, and the rest of the block is \
         never read.",
    AcceptsForgotten "accepts-forgotten"
        "Connections that wait behind the first 64 of a turn are not accepted until another one \
         comes.",
    // Turns.
    TurnUnbounded "turn-unbounded"
        "A connection that sends without a pause keeps its turn, and its neighbours wait.",
    NewestFirst "newest-first"
        "A worker serves only the connection that became busy last, and its neighbours wait.",
    FullAnswerForgotten "full-answer-forgotten"
        "A session that stops at exactly a full output is not called again until more bytes \
         arrive.",
    OutputUnbounded "output-unbounded"
        "The output of a slow reader grows without a bound.",
    SlowReaderSilent "slow-reader-silent"
        "A connection that only reads counts as silent and is closed by the idle timeout.",
    DrainCutsAnswers "drain-cuts-answers"
        "When the server drains, connections are closed before their answers are sent.",
    DrainKeepsSilent "drain-keeps-silent"
        "A draining server closes silent connections at the drain timeout, not at the shorter idle \
         timeout.",
    // Multi-get frames.
    FrameKeySkipped "frame-key-skipped"
        "The answer to a frame that waits for its reader continues behind the next key.",
    FrameUncounted "frame-uncounted"
        "A frame whose answer had to wait for its reader does not count, so the credits of later \
         ones seem wrong.",
    FrameErrorEarly "frame-error-early"
        "A frame that is refused ends the connection before the answers to what precedes it are \
         complete.",
    // Time.
    StaleClock "stale-clock"
        "Times of day are off by what had passed since the cache's clock was last set.",
    // Snapshots.
    SnapshotHoldsGuard "snapshot-holds-guard"
        "A snapshot holds the cache's memory while it is written, so sets are refused.",
    SnapshotUnsynced "snapshot-unsynced"
        "A snapshot is reported as written before its directory is synced.",
    FailedWriteKept "failed-write-kept"
        "A snapshot that could not be written replaces the one before.",
}
