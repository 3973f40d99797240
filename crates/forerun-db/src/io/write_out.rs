//! Has the system write a growing file out steadily, as RocksDB's `bytes_per_sync` does.
//!
//! ```text
//!   written by the store │ 1 MiB │ 1 MiB │ 1 MiB │ 0.4 MiB │
//!   on its way to disk   │ ▒▒▒▒▒ │ ▒▒▒▒▒ │ ▒▒▒▒▒ │         │    until the sync
//! ```
//!
//! Otherwise the pages would wait in memory until the sync, which would then take long, and so
//! would every other sync and read that the device gets meanwhile.

use std::ops::Range;

use super::IoFile;

/// How much is written out at a time, in bytes: enough for one large request, and little to wait
/// for. Pieces are whole pages, so none is written out twice.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

/// How much of a growing file the system was told to write out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteOut {
    /// Up to where.
    begun_bytes: u64,
}

impl WriteOut {
    /// Of a file that is on stable storage up to there.
    pub(crate) fn after(begun_bytes: u64) -> WriteOut {
        WriteOut { begun_bytes }
    }

    /// Takes the whole pieces that are due: what is not on stable storage of a file of this length,
    /// except what was taken before.
    pub(crate) fn take_due(&mut self, synced_bytes: u64, len_bytes: u64) -> Option<Range<u64>> {
        let begin = self.begun_bytes.max(synced_bytes);
        let end = len_bytes - len_bytes % PIECE_BYTES;
        if begin >= end {
            return None;
        }
        self.begun_bytes = end;
        Some(begin..end)
    }
}

/// Has the system write out these bytes of a file. If it cannot, the sync does.
pub(crate) fn start_write_out(file: &dyn IoFile, bytes: Range<u64>) {
    if let Err(error) = file.start_write_out(bytes.start, bytes.end - bytes.start) {
        tracing::debug!(%error, "cannot write out a file before its sync");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pieces_are_taken_once_unless_they_are_synced() {
        let mut write_out = WriteOut::default();
        assert_eq!(write_out.take_due(0, PIECE_BYTES - 1), None);
        assert_eq!(write_out.take_due(0, PIECE_BYTES), Some(0..PIECE_BYTES));
        assert_eq!(write_out.take_due(0, 2 * PIECE_BYTES - 1), None);
        let due = write_out.take_due(0, 3 * PIECE_BYTES + 5);
        assert_eq!(due, Some(PIECE_BYTES..3 * PIECE_BYTES));
        let synced = 4 * PIECE_BYTES + 7;
        assert_eq!(write_out.take_due(synced, synced), None);
        let due = write_out.take_due(synced, 6 * PIECE_BYTES);
        assert_eq!(due, Some(synced..6 * PIECE_BYTES));
        assert_eq!(WriteOut::after(synced).take_due(0, synced), None);
    }
}
