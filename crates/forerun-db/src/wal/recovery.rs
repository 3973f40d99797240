//! Reads the log back, applies the good records, and decides which bad bytes are damage.
//!
//! ```text
//!   segment 1          segment 2          segment 3 (last)
//!  ┌─┬───┬───┬───┐    ┌─┬───┬───┬───┐    ┌─┬───┬───┬───┬░░░░
//!  └─┴───┴───┴───┘    └─┴───┴───┴───┘    └─┴───┴───┴───┴░░░░
//!   whole: a bad byte is damage           a bad end is a write cut short
//! ```
//!
//! The table in `docs/internals/format-log.md` says which is which. Recovery changes nothing on
//! disk before it has read and accepted the whole log; then it cuts off what it dropped.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::clean_shutdown::CleanShutdown;
use super::log_file::{self, Header};
use super::record::Record;
use super::record_search::RecordSearch;
use super::recovery_report::{CorruptRange, RecoveryReport};
use super::segment_bytes::SegmentBytes;
use crate::io::{Io, IoFile, OpenMode};
use crate::{Error, Result};

/// How opening handles damaged bytes in the log. `docs/internals/format-log.md` lists the cases.
///
/// ```
/// use forerun_db::{Db, Options, Recovery};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default().recovery(Recovery::Strict))?;
/// assert_eq!(db.recovery().lost_bytes(), 0);
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Recovery {
    /// Any bad byte is an error, even the end of a write that a crash cut short.
    Strict,
    /// A write that a crash cut short is dropped and reported in the
    /// [`RecoveryReport`](crate::RecoveryReport). Damage is an error.
    #[default]
    DropTail,
    /// Damage is skipped and reported too, and the records after it are applied. The damaged bytes
    /// stay in the log, so the store opens only with this choice until it is copied elsewhere.
    SkipCorrupt,
}

/// The circumstances on which the decision depends, in addition to the bytes.
pub(crate) struct RecoveryContext {
    /// How lenient to be.
    pub(crate) recovery: Recovery,
    /// The contents of `CLOSED`, if it exists.
    pub(crate) clean_shutdown: Option<CleanShutdown>,
    /// Whether the machine has started again since, so that unsynced bytes may have been lost, in
    /// any order. Otherwise they were lost only if the disk did not keep what the system was to
    /// write to it.
    pub(crate) power_lost: bool,
    /// The part of the log that the runs hold.
    pub(crate) flushed: Flushed,
    /// A number above those of all keyspaces that ever existed.
    pub(crate) next_keyspace: u32,
}

/// How much of the log is in runs and no longer has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flushed {
    /// Sequence number of the last operation in them.
    pub(crate) sequence: u64,
    /// Number of the first segment that holds, or would hold, a later operation. Those before it
    /// may have been removed.
    pub(crate) first_segment: u64,
}

/// Where the log continues.
pub(crate) struct Tail {
    /// The last segment; `None` if the next write begins a new one.
    pub(crate) segment: Option<TailSegment>,
    /// Number of the segment to begin next.
    pub(crate) next_number: u64,
    /// Sequence number of the next operation.
    pub(crate) next_sequence: u64,
    /// Whether the whole log is on stable storage as it was read, with nothing cut off.
    pub(crate) is_durable: bool,
    /// Number and first sequence number of each segment.
    pub(crate) starts: Vec<(u64, u64)>,
    /// Whether runs hold more than the log does. Then nothing in the log is needed, and it is not
    /// continued.
    pub(crate) is_behind_runs: bool,
}

/// The segment that is appended to.
pub(crate) struct TailSegment {
    pub(crate) path: PathBuf,
    pub(crate) file: Box<dyn IoFile>,
    pub(crate) salt: u32,
    /// Where the next record goes.
    pub(crate) len: u64,
    /// The length known to be on stable storage.
    pub(crate) synced_len: u64,
}

/// Reads the segments with these numbers, ascending, and passes every good record that is not in
/// runs to `apply`.
///
/// If a loss of power took the log's end and left runs that hold more, nothing in the log is
/// needed. The tail then has no segment, and the existing segments must be removed before the next
/// one begins.
pub(crate) fn recover(
    io: &Arc<dyn Io>,
    dir: &Path,
    numbers: &[u64],
    circumstances: &RecoveryContext,
    apply: &mut dyn FnMut(&Record<'_>) -> Result<()>,
) -> Result<(Tail, RecoveryReport)> {
    replay(io, dir, numbers, circumstances, OpenMode::ReadWrite, apply)?.finish()
}

/// Reads the log as [`recover`] does, but changes nothing on disk.
pub(crate) fn inspect(
    io: &Arc<dyn Io>,
    dir: &Path,
    numbers: &[u64],
    circumstances: &RecoveryContext,
    apply: &mut dyn FnMut(&Record<'_>) -> Result<()>,
) -> Result<RecoveryReport> {
    let replay = replay(io, dir, numbers, circumstances, OpenMode::Read, apply)?;
    let last_sequence = (replay.next_sequence - 1).max(circumstances.flushed.sequence);
    Ok(RecoveryReport {
        last_sequence,
        ..replay.report
    })
}

fn replay<'a>(
    io: &'a Arc<dyn Io>,
    dir: &'a Path,
    numbers: &[u64],
    circumstances: &'a RecoveryContext,
    mode: OpenMode,
    apply: &'a mut dyn FnMut(&Record<'_>) -> Result<()>,
) -> Result<Replay<'a>> {
    let mut replay = Replay {
        io: &**io,
        dir,
        circumstances,
        mode,
        apply,
        next_sequence: circumstances.flushed.sequence + 1,
        next_number: circumstances.flushed.first_segment,
        tail: None,
        cut: None,
        starts: Vec::new(),
        report: RecoveryReport {
            clean_close: circumstances.clean_shutdown.is_some(),
            ..RecoveryReport::default()
        },
    };
    for (i, number) in numbers.iter().enumerate() {
        replay.segment(*number, i + 1 == numbers.len())?;
    }
    if let Some(shutdown) = circumstances.clean_shutdown
        && replay.next_number <= shutdown.segment
    {
        let path = log_file::path(dir, shutdown.segment);
        replay.damage(
            &path,
            0,
            0,
            "the segment is missing, but existed when the store was closed",
        )?;
    }
    Ok(replay)
}

struct Replay<'a> {
    io: &'a dyn Io,
    dir: &'a Path,
    circumstances: &'a RecoveryContext,
    /// How segments are opened.
    mode: OpenMode,
    apply: &'a mut dyn FnMut(&Record<'_>) -> Result<()>,
    next_sequence: u64,
    next_number: u64,
    tail: Option<TailSegment>,
    cut: Option<Truncation>,
    starts: Vec<(u64, u64)>,
    report: RecoveryReport,
}

/// The parts that are removed from the disk at the end.
enum Truncation {
    /// The part of the tail's segment beyond its length.
    Tail,
    /// A segment whose creation was interrupted.
    Segment(PathBuf),
}

impl Replay<'_> {
    fn segment(&mut self, number: u64, is_last: bool) -> Result<()> {
        while self.next_number < number {
            let path = log_file::path(self.dir, self.next_number);
            self.damage(&path, 0, 0, "the segment is missing")?;
            self.next_number += 1;
        }
        let path = log_file::path(self.dir, number);
        let file = self
            .io
            .open(&path, self.mode)
            .map_err(|error| Error::io("open", &path, error))?;
        let failed = |error| Error::io("read", &path, error);
        let mut bytes = SegmentBytes::new(&*file).map_err(failed)?;
        let len = bytes.len();
        let header = bytes
            .get(0..len.min(log_file::HEADER_BYTES))
            .map_err(failed)?;
        let header = match Header::decode(header) {
            Ok(header) if header.number == number => header,
            Ok(_) => {
                let reason = "the segment's name does not match its header";
                return self.bad_header(&path, len, is_last, reason);
            }
            Err(reason) => return self.bad_header(&path, len, is_last, reason),
        };
        self.next_number = number + 1;
        self.report.segments += 1;
        self.report.log_bytes += log_file::HEADER_BYTES as u64;
        if self.starts.is_empty() {
            // The first segment may begin with operations that are in runs.
            self.next_sequence = self.next_sequence.min(header.first_sequence);
        }
        self.starts.push((number, header.first_sequence));
        if header.first_sequence != self.next_sequence {
            let (first, wanted) = (header.first_sequence, self.next_sequence);
            let reason = format!(
                "the segment begins at sequence number {first}, but {wanted} was expected: \
                 an earlier part of the log is missing"
            );
            self.damage(&path, 0, 0, reason)?;
            self.next_sequence = self.next_sequence.max(first);
        }
        let len = self.records(&path, &*file, header.salt, is_last)?;
        self.check_closed(&path, number, len)?;
        // After a clean close, the whole segment is on stable storage. Otherwise even its name may
        // not be.
        let is_synced = self
            .circumstances
            .clean_shutdown
            .is_some_and(|shutdown| shutdown.segment == number && shutdown.len_bytes == len);
        let synced_len = if is_synced { len } else { 0 };
        self.tail = Some(TailSegment {
            path,
            file,
            salt: header.salt,
            len,
            synced_len,
        });
        Ok(())
    }

    /// Applies the records of a segment and returns the offset where its good part ends.
    fn records(&mut self, path: &Path, file: &dyn IoFile, salt: u32, is_last: bool) -> Result<u64> {
        let failed = |error| Error::io("read", path, error);
        let mut search = RecordSearch::new(file, salt).map_err(failed)?;
        let (mut offset, len) = (log_file::HEADER_BYTES, search.segment().len());
        while offset < len {
            let reason = match search.record(offset).map_err(failed)? {
                Ok(record) if record.first_sequence == self.next_sequence => {
                    self.apply(path, &record)?;
                    offset = record.end;
                    continue;
                }
                Ok(_) => "the record's sequence number does not continue",
                Err(reason) => reason,
            };
            let later = search.find(offset, self.next_sequence).map_err(failed)?;
            let must_be_whole = !is_last || self.is_closed_at(path, offset as u64);
            let is_damage = must_be_whole
                || match later {
                    None => false,
                    Some(later) => self.is_damage(&mut search, offset..later).map_err(failed)?,
                };
            if !is_damage {
                self.drop_tail(path, offset as u64, len as u64, reason)?;
                return Ok(offset as u64);
            }
            let end = later.unwrap_or(len);
            self.damage(path, offset as u64, (end - offset) as u64, reason)?;
            offset = end;
            if later.is_some()
                && let Ok(later) = search.record(offset).map_err(failed)?
            {
                self.apply(path, &later)?;
                offset = later.end;
            }
        }
        Ok(offset as u64)
    }

    /// Whether bad bytes of the last segment, before a good record, are damage and not the traces
    /// of lost writes.
    fn is_damage(&self, search: &mut RecordSearch<'_>, bad: Range<usize>) -> io::Result<bool> {
        let may_be_lost =
            self.circumstances.power_lost || was_unwritten(search.segment(), bad.clone())?;
        Ok(!may_be_lost || search.proves_durable(bad.end, self.next_sequence)?)
    }

    fn apply(&mut self, path: &Path, record: &Record<'_>) -> Result<()> {
        self.next_sequence = record.last_sequence() + 1;
        // A batch is flushed as a whole, so either all of it or none of it is in runs. An ingestion
        // is in runs, or it failed.
        if record.last_sequence() > self.circumstances.flushed.sequence && !record.is_ingestion {
            if record.greatest_keyspace >= self.circumstances.next_keyspace {
                let len_bytes = (record.end - record.offset) as u64;
                let reason = "an operation belongs to a keyspace that never existed";
                return self.damage(path, record.offset as u64, len_bytes, reason);
            }
            (self.apply)(record)?;
            self.report.batches += 1;
            self.report.operations += u64::from(record.count);
        }
        self.report.log_bytes += (record.end - record.offset) as u64;
        Ok(())
    }

    /// A segment without a good header. Its creation was interrupted if it can hold no record;
    /// otherwise it is damaged.
    fn bad_header(&mut self, path: &Path, len: usize, is_last: bool, reason: &str) -> Result<()> {
        if is_last && len <= log_file::HEADER_BYTES && !self.is_closed_at(path, 0) {
            self.drop_tail(path, 0, len as u64, reason)?;
            self.cut = Some(Truncation::Segment(path.to_owned()));
            return Ok(());
        }
        self.damage(path, 0, len as u64, reason)?;
        // Without the salt, a record cannot be distinguished from random bytes. The log continues
        // in a new segment.
        self.next_number += 1;
        self.tail = None;
        Ok(())
    }

    /// Whether the record of a clean close covers the byte at `offset`.
    fn is_closed_at(&self, path: &Path, offset: u64) -> bool {
        self.circumstances.clean_shutdown.is_some_and(|shutdown| {
            shutdown.segment >= self.next_number
                || (log_file::path(self.dir, shutdown.segment) == path
                    && offset < shutdown.len_bytes)
        })
    }

    /// Compares the end of a segment with what a clean close recorded.
    fn check_closed(&mut self, path: &Path, number: u64, len: u64) -> Result<()> {
        let Some(shutdown) = self
            .circumstances
            .clean_shutdown
            .filter(|shutdown| shutdown.segment == number)
        else {
            return Ok(());
        };
        if len < shutdown.len_bytes {
            let reason = format!(
                "the segment ends here, but it had {} bytes when the store was closed",
                shutdown.len_bytes
            );
            self.damage(path, len, 0, reason)?;
            self.next_sequence = self.next_sequence.max(shutdown.last_sequence + 1);
        } else if len == shutdown.len_bytes && self.next_sequence != shutdown.last_sequence + 1 {
            let (last, wanted) = (self.next_sequence - 1, shutdown.last_sequence);
            let reason =
                format!("the log ends at sequence number {last}, but it was closed at {wanted}");
            self.damage(path, len, 0, reason)?;
            self.next_sequence = self.next_sequence.max(shutdown.last_sequence + 1);
        }
        Ok(())
    }

    /// An error, unless damage is to be skipped.
    fn damage(
        &mut self,
        path: &Path,
        offset: u64,
        len_bytes: u64,
        reason: impl Into<String>,
    ) -> Result<()> {
        match self.circumstances.recovery {
            Recovery::SkipCorrupt => {
                let range = CorruptRange {
                    path: path.to_owned(),
                    offset,
                    len_bytes,
                    reason: reason.into(),
                };
                tracing::warn!(%range, "skipped damage in the log");
                self.report.skipped.push(range);
                Ok(())
            }
            Recovery::DropTail | Recovery::Strict => Err(Error::corrupt_file(path, offset, reason)),
        }
    }

    /// Drops the end of the log, unless the log must be complete.
    fn drop_tail(&mut self, path: &Path, offset: u64, end: u64, reason: &str) -> Result<()> {
        if self.circumstances.recovery == Recovery::Strict {
            return Err(Error::corrupt_file(path, offset, reason));
        }
        let tail = CorruptRange {
            path: path.to_owned(),
            offset,
            len_bytes: end - offset,
            reason: reason.into(),
        };
        tracing::warn!(%tail, "dropped the unfinished end of the log");
        self.report.dropped_tail = Some(tail);
        self.cut = Some(Truncation::Tail);
        Ok(())
    }

    /// Removes from the disk what was dropped. The writer syncs the cut before it writes; until
    /// then another recovery would reach the same result.
    fn finish(mut self) -> Result<(Tail, RecoveryReport)> {
        match (&self.cut, &self.tail) {
            (Some(Truncation::Tail), Some(tail)) => {
                tail.file
                    .set_len(tail.len)
                    .map_err(|error| Error::io("cut", &tail.path, error))?;
            }
            (Some(Truncation::Segment(path)), _) => {
                self.io
                    .remove(path)
                    .map_err(|error| Error::io("remove", path, error))?;
            }
            _ => {}
        }
        let flushed = self.circumstances.flushed.sequence;
        let is_behind_runs = self.next_sequence <= flushed;
        if is_behind_runs {
            self.next_sequence = flushed + 1;
            self.tail = None;
        }
        self.report.last_sequence = self.next_sequence - 1;
        let is_durable = self.cut.is_none()
            && self
                .tail
                .as_ref()
                .is_none_or(|tail| tail.synced_len == tail.len);
        let tail = Tail {
            is_durable,
            segment: self.tail,
            next_number: self.next_number,
            next_sequence: self.next_sequence,
            starts: self.starts,
            is_behind_runs,
        };
        Ok((tail, self.report))
    }
}

/// Whether a sector that holds some of these bytes was never written. A segment only grows, so such
/// a sector reads as zeros.
///
/// A value may hold such a sector itself, and then damage to its record looks the same. The record
/// is dropped only if no later one proves that it was synced, so it is one whose write was
/// acknowledged without a sync.
fn was_unwritten(segment: &mut SegmentBytes<'_>, range: Range<usize>) -> io::Result<bool> {
    /// The least that a disk writes or does not write as a whole.
    const SECTOR_BYTES: usize = 512;
    let first = range.start / SECTOR_BYTES * SECTOR_BYTES;
    for sector in (first..range.end).step_by(SECTOR_BYTES) {
        let bytes = segment.get(sector..segment.len().min(sector + SECTOR_BYTES))?;
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(true);
        }
    }
    Ok(false)
}
