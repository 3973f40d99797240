//! The report of recovery.

use forerun_core::size::counted;
use std::fmt;
use std::path::PathBuf;

/// The findings of [`Db::open`](crate::Db::open) in the log. Its `Display` prints one or more lines
/// for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Segments that were read.
    pub segments: usize,
    /// Bytes of good records in these segments, headers included.
    pub log_bytes: u64,
    /// Batches that were applied.
    pub batches: u64,
    /// Operations that were applied.
    pub operations: u64,
    /// Sequence number of the last one; 0 if there is none.
    pub last_sequence: u64,
    /// Whether the store had been closed cleanly.
    pub clean_close: bool,
    /// The end of the log that was cut off, from a write that a crash interrupted or lost. It
    /// begins in this segment; its length includes later ones.
    pub dropped_tail: Option<CorruptRange>,
    /// Damage that was skipped, with [`Recovery::SkipCorrupt`](crate::Recovery::SkipCorrupt) only.
    pub skipped: Vec<CorruptRange>,
}

/// A range of bytes of the log that recovery could not use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CorruptRange {
    /// The segment.
    pub path: PathBuf,
    /// Its first byte, counted from the start of the file.
    pub offset: u64,
    /// Its length; 0 where something is missing.
    pub len_bytes: u64,
    /// What was wrong at its beginning.
    pub reason: String,
}

impl RecoveryReport {
    /// Bytes that were cut off or skipped.
    pub fn lost_bytes(&self) -> u64 {
        self.dropped_tail
            .iter()
            .chain(&self.skipped)
            .map(|range| range.len_bytes)
            .sum()
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoveryReport {
            segments,
            log_bytes,
            batches,
            operations,
            ..
        } = self;
        let state = if self.clean_close {
            "closed cleanly"
        } else {
            "not closed cleanly"
        };
        if *segments == 0 {
            // A new store, or one restored from a backup.
            f.write_str("no log segments")?;
        } else {
            write!(
                f,
                "{} in {} from {} in {}, {state}",
                counted(operations, "operation"),
                counted(batches, "batch"),
                counted(log_bytes, "byte"),
                counted(segments, "log segment"),
            )?;
        }
        if let Some(tail) = &self.dropped_tail {
            write!(f, "\ndropped the unfinished end of the log: {tail}")?;
        }
        for range in &self.skipped {
            write!(f, "\nskipped damage: {range}")?;
        }
        Ok(())
    }
}

impl fmt::Display for CorruptRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CorruptRange {
            path,
            offset,
            len_bytes,
            reason,
        } = self;
        write!(
            f,
            "{} at offset {offset} of {} ({reason})",
            counted(len_bytes, "byte"),
            path.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_data_is_reported_with_its_offset() {
        let range = |offset, len_bytes| CorruptRange {
            path: "wal".into(),
            offset,
            len_bytes,
            reason: "torn".into(),
        };
        let report = RecoveryReport {
            segments: 1,
            operations: 5,
            dropped_tail: Some(range(90, 7)),
            skipped: vec![range(40, 30)],
            ..RecoveryReport::default()
        };
        let text = report.to_string();
        assert!(text.starts_with("5 operations"), "{text}");
        assert!(
            text.contains("7 bytes at offset 90 of wal (torn)")
                && text.contains("30 bytes at offset 40"),
            "{text}"
        );
        assert_eq!(report.lost_bytes(), 37);
    }

    #[test]
    fn a_store_without_a_log_is_not_said_to_have_crashed() {
        assert_eq!(RecoveryReport::default().to_string(), "no log segments");
    }
}
