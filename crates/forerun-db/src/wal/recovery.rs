//! Reads the log back, applies the good records, and decides which bad bytes are damage.
//!
//! ```text
//!   segment 1          segment 2          segment 3 (last)
//!  ┌─┬───┬───┬───┐    ┌─┬───┬───┬───┐    ┌─┬───┬───┬───┬░░░░
//!  └─┴───┴───┴───┘    └─┴─░░░───┴───┘    └─┴───┴───┴───┴░░░░
//!   proved durable:    not proved:        a bad end is a write cut short
//!   a bad byte is      a loss of power
//!   damage             ends the log here
//! ```
//!
//! The table in `docs/internals/format-log.md` says which is which. Recovery changes nothing on
//! disk before it has read and accepted the whole log; then it cuts off what it dropped.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::clean_shutdown::CleanShutdown;
use super::durable_segments::DurableSegments;
use super::log_file::{self, Header};
use super::open_segment::OpenSegment;
use super::record::Record;
use super::record_search::RecordSearch;
use super::recovery_report::{CorruptRange, RecoveryReport};
use super::segment_bytes::SegmentBytes;
use crate::io::write_out::WriteOut;
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
    /// The log ends at the first write that a crash cut short or that was lost with the power
    /// before it was synced. The rest is dropped and reported in the
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
    pub(crate) segment: Option<OpenSegment>,
    /// Earlier segments that may not be on stable storage, oldest first.
    pub(crate) unsynced: Vec<OpenSegment>,
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
    numbers: &'a [u64],
    circumstances: &'a RecoveryContext,
    mode: OpenMode,
    apply: &'a mut dyn FnMut(&Record<'_>) -> Result<()>,
) -> Result<Replay<'a>> {
    let mut replay = Replay {
        io: &**io,
        dir,
        numbers,
        circumstances,
        mode,
        apply,
        next_sequence: circumstances.flushed.sequence + 1,
        next_number: circumstances.flushed.first_segment,
        tail: None,
        unsynced: Vec::new(),
        durable: DurableSegments::new(&**io, dir, numbers),
        skipped: None,
        cut: None,
        starts: Vec::new(),
        report: RecoveryReport {
            clean_close: circumstances.clean_shutdown.is_some(),
            ..RecoveryReport::default()
        },
    };
    for (i, number) in numbers.iter().enumerate() {
        replay.segment(*number, i + 1 == numbers.len())?;
        if replay.cut.is_some() {
            return Ok(replay);
        }
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
    /// The segments, ascending.
    numbers: &'a [u64],
    circumstances: &'a RecoveryContext,
    /// How segments are opened.
    mode: OpenMode,
    apply: &'a mut dyn FnMut(&Record<'_>) -> Result<()>,
    next_sequence: u64,
    next_number: u64,
    tail: Option<OpenSegment>,
    /// The segments before it that are not known to be on stable storage.
    unsynced: Vec<OpenSegment>,
    durable: DurableSegments<'a>,
    /// The segment that was skipped last because its header is damaged. Something follows it, so
    /// it was not lost.
    skipped: Option<u64>,
    cut: Option<Cut>,
    starts: Vec<(u64, u64)>,
    report: RecoveryReport,
}

/// Where the log ends because the rest of it was lost. The rest is removed from the disk.
struct Cut {
    /// Whether the tail's segment has bytes beyond its length.
    is_in_tail: bool,
    /// The segments after the tail, ascending.
    removed: Vec<PathBuf>,
}

impl Replay<'_> {
    fn segment(&mut self, number: u64, is_last: bool) -> Result<()> {
        while self.next_number < number {
            let (missing, reason) = (self.next_number, "the segment is missing");
            let path = log_file::path(self.dir, missing);
            if !self.is_closed_at(&path, 0) && self.was_lost(missing)? {
                return self.drop_from(missing, 0, reason);
            }
            self.damage(&path, 0, 0, reason)?;
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
                return self.bad_header(number, &mut bytes, is_last, reason);
            }
            Err(reason) => return self.bad_header(number, &mut bytes, is_last, reason),
        };
        if self.starts.is_empty() {
            // The first segment may begin with operations that are in runs.
            self.next_sequence = self.next_sequence.min(header.first_sequence);
        }
        if header.first_sequence != self.next_sequence {
            let (first, wanted) = (header.first_sequence, self.next_sequence);
            let reason = format!(
                "the segment begins at sequence number {first}, but {wanted} was expected: \
                 an earlier part of the log is missing"
            );
            // The part was in the segment before this one.
            let before = number.saturating_sub(1);
            let may_be_lost = self.skipped != Some(before) && !self.is_closed_at(&path, 0);
            if first > wanted && may_be_lost && self.was_lost(before)? {
                return self.drop_from(number, 0, &reason);
            }
            self.damage(&path, 0, 0, reason)?;
            self.next_sequence = self.next_sequence.max(first);
        }
        self.next_number = number + 1;
        self.report.segments += 1;
        self.report.log_bytes += log_file::HEADER_BYTES as u64;
        self.starts.push((number, header.first_sequence));
        let len = self.records(number, &*file, header.salt, is_last)?;
        self.check_closed(&path, number, len)?;
        // After a clean close, the whole segment is on stable storage. Otherwise even its name may
        // not be.
        let is_synced = self
            .circumstances
            .clean_shutdown
            .is_some_and(|shutdown| shutdown.segment == number && shutdown.len_bytes == len);
        if is_synced {
            self.durable.note(number);
        }
        let tail = OpenSegment {
            number,
            path,
            file: file.into(),
            salt: header.salt,
            len,
            synced_len: if is_synced { len } else { 0 },
            write_out: WriteOut::default(),
            is_named: is_synced,
            is_recovered: true,
        };
        self.unsynced.extend(self.tail.replace(tail));
        let durable = &self.durable;
        self.unsynced.retain(|of| !durable.is_noted(of.number));
        Ok(())
    }

    /// Applies the records of a segment and returns the offset where its good part ends.
    fn records(&mut self, number: u64, file: &dyn IoFile, salt: u32, is_last: bool) -> Result<u64> {
        let path = &log_file::path(self.dir, number);
        let failed = |error| Error::io("read", path, error);
        let mut search = RecordSearch::new(file, salt).map_err(failed)?;
        let (mut offset, len) = (log_file::HEADER_BYTES, search.segment().len());
        while offset < len {
            let reason = match search.record(offset).map_err(failed)? {
                Ok(record) if record.first_sequence == self.next_sequence => {
                    self.apply(number, path, &record)?;
                    offset = record.end;
                    continue;
                }
                Ok(_) => "the record's sequence number does not continue",
                Err(reason) => reason,
            };
            let later = search.find(offset, self.next_sequence).map_err(failed)?;
            let end = later.unwrap_or(len);
            let is_lost = if self.is_closed_at(path, offset as u64) {
                false
            } else if is_last && later.is_none() {
                true
            } else {
                let unwritten = was_unwritten(search.segment(), offset..end).map_err(failed)?;
                (self.circumstances.power_lost || unwritten)
                    && !search
                        .proves_durable(end, self.next_sequence)
                        .map_err(failed)?
                    && !self.durable.is_proved(number)?
            };
            if is_lost {
                self.drop_from(number, offset as u64, reason)?;
                return Ok(offset as u64);
            }
            self.damage(path, offset as u64, (end - offset) as u64, reason)?;
            offset = end;
            if later.is_some()
                && let Ok(later) = search.record(offset).map_err(failed)?
            {
                self.apply(number, path, &later)?;
                offset = later.end;
            }
        }
        Ok(offset as u64)
    }

    /// Whether a part of a segment that is missing was lost before it was on stable storage.
    fn was_lost(&mut self, number: u64) -> Result<bool> {
        Ok(self.circumstances.power_lost && !self.durable.is_proved(number)?)
    }

    fn apply(&mut self, number: u64, path: &Path, record: &Record<'_>) -> Result<()> {
        self.next_sequence = record.last_sequence() + 1;
        if record.synced_before.segments {
            self.durable.note(number);
        }
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

    /// A segment without a good header. Its beginning was lost if it can hold no record, or if the
    /// header was never written; otherwise it is damaged.
    fn bad_header(
        &mut self,
        number: u64,
        bytes: &mut SegmentBytes<'_>,
        is_last: bool,
        reason: &str,
    ) -> Result<()> {
        let (path, len) = (log_file::path(self.dir, number), bytes.len());
        let header = bytes.get(0..len.min(log_file::HEADER_BYTES));
        let header = header.map_err(|error| Error::io("read", &path, error))?;
        let is_unwritten = header == [0; log_file::HEADER_BYTES];
        let is_cut_short =
            len <= log_file::HEADER_BYTES && (is_last || self.circumstances.power_lost);
        if (is_cut_short || is_unwritten)
            && !self.is_closed_at(&path, 0)
            && !self.durable.is_proved(number)?
        {
            return self.drop_from(number, 0, reason);
        }
        self.damage(&path, 0, len as u64, reason)?;
        // Without the salt, a record cannot be distinguished from random bytes. The log continues
        // in a new segment.
        self.skipped = Some(number);
        self.next_number = number + 1;
        self.unsynced.extend(self.tail.take());
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

    /// Drops the log from an offset of a segment on, unless the log must be complete.
    fn drop_from(&mut self, number: u64, offset: u64, reason: &str) -> Result<()> {
        let path = log_file::path(self.dir, number);
        if self.circumstances.recovery == Recovery::Strict {
            return Err(Error::corrupt_file(&path, offset, reason));
        }
        let mut len_bytes = 0;
        let mut removed = Vec::new();
        for later in self.numbers.iter().filter(|later| **later >= number) {
            let path = log_file::path(self.dir, *later);
            let file = self.io.open(&path, OpenMode::Read);
            let len = file.and_then(|file| file.len());
            len_bytes += len.map_err(|error| Error::io("open", &path, error))?;
            removed.push(path);
        }
        let is_in_tail = offset > 0;
        if is_in_tail {
            removed.remove(0);
        }
        let tail = CorruptRange {
            path,
            offset,
            len_bytes: len_bytes - offset,
            reason: reason.into(),
        };
        tracing::warn!(%tail, "dropped the unfinished end of the log");
        self.report.dropped_tail = Some(tail);
        self.cut = Some(Cut {
            is_in_tail,
            removed,
        });
        Ok(())
    }

    /// Removes from the disk what was dropped. The writer syncs the cut before it writes; until
    /// then another recovery would reach the same result.
    fn finish(mut self) -> Result<(Tail, RecoveryReport)> {
        if let Some(cut) = &self.cut {
            // The last ones first, so that a recovery after a crash in between finds no other end.
            for path in cut.removed.iter().rev() {
                self.io
                    .remove(path)
                    .map_err(|error| Error::io("remove", path, error))?;
            }
            if let (true, Some(tail)) = (cut.is_in_tail, &self.tail) {
                tail.file
                    .set_len(tail.len)
                    .map_err(|error| Error::io("cut", &tail.path, error))?;
            }
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
            unsynced: self.unsynced,
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
