//! Appends groups of records to the log.
//!
//! ```text
//!   segment 7, full                    segment 8
//!  ┌──────┬───────┬───────┬───────┐   ┌──────┬───────┬─ ─ ─
//!  └──────┴───────┴───────┴───────┘   └──────┴───────┴─ ─ ─
//!   waits for a sync                         ^ synced_len  ^ len
//! ```
//!
//! A new segment is begun without a sync. A synced write first makes the segments before its own
//! durable (`unsynced_segments.rs`), then its own and the name of that.
//!
//! If a group cannot be written, the log is truncated to its former length. If that fails, or if a
//! sync fails, the contents of the disk are unknown, and the log accepts no more writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use std::time::Duration;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};

use super::clean_shutdown::{self, CleanShutdown};
use super::log_file::{self, Header};
use super::open_segment::{Failure, OpenSegment};
use super::record::{self, SyncedBefore};
use super::recovery::Tail;
use super::unsynced_segments::UnsyncedSegments;
use crate::clock::Clock;
use crate::io::replace::replace_file;
use crate::io::write_out::WriteOut;
use crate::io::{Io, OpenMode, write_all_at};
use crate::{Error, Result};

/// The existing segments, each with the sequence number at which it begins. Shared with the code
/// that removes old ones.
#[derive(Debug, Default)]
pub(crate) struct Segments(Mutex<Vec<(u64, u64)>>);

impl Segments {
    /// The number of the segment that holds, or will hold, the operation with a sequence number.
    pub(crate) fn holding(&self, sequence: u64) -> Option<u64> {
        let starts = self.lock();
        let after = starts.partition_point(|(_, first)| *first <= sequence);
        starts[..after].last().map(|(number, _)| *number)
    }

    /// The numbers of the segments before this one.
    pub(crate) fn before(&self, number: u64) -> Vec<u64> {
        let starts = self.lock();
        let numbers = starts.iter().map(|(number, _)| *number);
        numbers.take_while(|other| *other < number).collect()
    }

    /// Forgets a segment that was removed.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().retain(|(other, _)| *other != number);
    }

    fn add(&self, number: u64, first_sequence: u64) {
        self.lock().push((number, first_sequence));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        // Nothing under the lock can panic in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of the log.
pub(crate) struct LogWriter {
    io: Arc<dyn Io>,
    dir: PathBuf,
    segment_limit_bytes: u64,
    tail: Tail,
    segments: Arc<Segments>,
    /// The segments before the last one that are not on stable storage yet.
    unsynced: Arc<UnsyncedSegments>,
    clock: Arc<Clock>,
    /// Whether `CLOSED` is in the directory.
    is_marked_closed: bool,
    /// Whether everything that existed when the store was opened is on stable storage.
    is_tail_confirmed: bool,
    /// The file that a failed creation of a segment may have left. Recovery expects the log to
    /// continue in it, so it is removed before the log continues in the older segment.
    leftover: Option<PathBuf>,
    /// Bytes written since the store was opened, and the number of segment syncs.
    written_bytes: u64,
    syncs: u64,
    /// How long groups have waited for syncs that they did not ask for, since this was last taken.
    stalled: Duration,
}

impl LogWriter {
    /// A writer that continues where recovery ended.
    pub(crate) fn new(
        io: Arc<dyn Io>,
        dir: &Path,
        segment_limit_bytes: u64,
        unsynced_max: usize,
        clock: Arc<Clock>,
        mut tail: Tail,
        is_marked_closed: bool,
    ) -> LogWriter {
        let starts = std::mem::take(&mut tail.starts);
        let unsynced = UnsyncedSegments::new(&io, dir, unsynced_max);
        for segment in std::mem::take(&mut tail.unsynced) {
            if starts.iter().any(|(number, _)| *number == segment.number) {
                unsynced.push(segment);
            }
        }
        LogWriter {
            segments: Arc::new(Segments(Mutex::new(starts))),
            unsynced: Arc::new(unsynced),
            io,
            dir: dir.to_owned(),
            segment_limit_bytes,
            clock,
            is_tail_confirmed: tail.is_durable,
            leftover: None,
            tail,
            is_marked_closed,
            written_bytes: 0,
            syncs: 0,
            stalled: Duration::ZERO,
        }
    }

    /// Seals and writes a group of records, which may be empty, and syncs the log if `sync` asks
    /// for it. Returns the sequence number of the group's first operation.
    pub(crate) fn append(&mut self, group: &mut [u8], sync: bool) -> Result<u64, Failure> {
        let first_sequence = self.tail.next_sequence;
        if !group.is_empty() || sync {
            self.confirm_tail()?;
        }
        if !group.is_empty() {
            self.unmark_closed()?;
            self.begin_segment_if_due()?;
            if sync {
                // First, so that the records can say so: then damage to these segments is never
                // taken for a loss of power. And so that a segment which cannot be synced now does
                // not fail the group after it was written.
                self.unsynced.sync()?;
            }
            self.write(group)?;
        }
        if sync {
            self.sync()?;
        } else {
            self.start_write_out();
        }
        Ok(first_sequence)
    }

    /// Has the thread that syncs segments write out what is due of the last one.
    fn start_write_out(&mut self) {
        let Some(segment) = &mut self.tail.segment else {
            return;
        };
        let due = segment.write_out.take_due(segment.synced_len, segment.len);
        if let Some(due) = due {
            self.unsynced.write_out(&segment.file, due);
        }
    }

    /// Begins a segment if there is none, or if the last one is full.
    fn begin_segment_if_due(&mut self) -> Result<(), Failure> {
        let is_full = |segment: &OpenSegment| segment.len >= self.segment_limit_bytes;
        if self.tail.segment.as_ref().is_none_or(is_full) {
            self.begin_segment()?;
        }
        Ok(())
    }

    fn write(&mut self, group: &mut [u8]) -> Result<(), Failure> {
        let sequence = self.tail.next_sequence;
        self.remove_leftover()?;
        let is_earlier_synced = self.unsynced.is_empty();
        let Some(segment) = &mut self.tail.segment else {
            return Ok(());
        };
        let second = self.clock.write_second();
        let next_sequence = record::seal(
            group,
            segment.len,
            segment.salt,
            sequence,
            SyncedBefore {
                segments: is_earlier_synced,
                all: is_earlier_synced && segment.synced_len == segment.len,
            },
            u32::try_from(second).unwrap_or(u32::MAX),
        );
        if next_sequence > record::SEQUENCE_END {
            let source = std::io::Error::other("sequence numbers are used up");
            return Err(Failure::Unknown(Error::io("write", &segment.path, source)));
        }
        if let Err(error) = write_all_at(&*segment.file, group, segment.len) {
            let error = Error::io("write", &segment.path, error);
            // Sync the truncation too: if a loss of power undid it, parts of this group would
            // follow newer records.
            let truncated = segment
                .file
                .set_len(segment.len)
                .and_then(|()| segment.file.sync());
            return Err(match truncated {
                Ok(()) => {
                    segment.synced_len = segment.len;
                    Failure::NotWritten(error)
                }
                Err(_) => Failure::Unknown(error),
            });
        }
        segment.len += group.len() as u64;
        self.tail.next_sequence = next_sequence;
        self.clock.note(second, sequence);
        self.written_bytes += group.len() as u64;
        Ok(())
    }

    /// Makes the whole log durable, the oldest segment first.
    fn sync(&mut self) -> Result<(), Failure> {
        self.unsynced.sync()?;
        self.sync_last()
    }

    /// Makes the last segment and its name durable.
    fn sync_last(&mut self) -> Result<(), Failure> {
        self.sync_bytes()?;
        if self.tail.segment.as_ref().is_some_and(|of| !of.is_named) {
            self.sync_names()?;
        }
        Ok(())
    }

    fn sync_bytes(&mut self) -> Result<(), Failure> {
        let Some(segment) = &mut self.tail.segment else {
            return Ok(());
        };
        if segment.synced_len < segment.len {
            segment.sync()?;
            segment.synced_len = segment.len;
            self.syncs += 1;
        }
        Ok(())
    }

    fn sync_names(&mut self) -> Result<(), Failure> {
        self.io
            .sync_dir(&self.dir)
            .map_err(|error| Failure::Unknown(Error::io("sync", &self.dir, error)))?;
        if let Some(segment) = &mut self.tail.segment {
            segment.is_named = true;
        }
        Ok(())
    }

    fn begin_segment(&mut self) -> Result<(), Failure> {
        let number = self.tail.next_number;
        let path = log_file::path(&self.dir, number);
        let header = Header::new(number, self.tail.next_sequence);
        self.leftover = Some(path.clone());
        let not_written = |op, error| {
            // If this fails too, the next write tries it again. Until then, recovery treats a file
            // with only an incomplete header as a segment that was never begun.
            let _ = self.io.remove(&path);
            Failure::NotWritten(Error::io(op, &path, error))
        };
        let file = self
            .io
            .open(&path, OpenMode::CreateEmpty)
            .map_err(|error| not_written("create", error))?;
        write_all_at(&*file, &header.encode(), 0).map_err(|error| not_written("write", error))?;
        self.leftover = None;
        let full = self.tail.segment.replace(OpenSegment {
            number,
            path,
            file: file.into(),
            salt: header.salt,
            len: log_file::HEADER_BYTES as u64,
            synced_len: 0,
            write_out: WriteOut::default(),
            is_named: false,
            is_recovered: false,
        });
        self.tail.next_number = number + 1;
        self.segments.add(number, self.tail.next_sequence);
        if let Some(full) = full.filter(|full| !full.is_durable()) {
            self.unsynced.push(full);
        }
        if self.unsynced.is_over_limit() {
            let begun = time::now();
            let synced = self.unsynced.sync_to_limit();
            self.stalled += time::now() - begun;
            match synced {
                // A synced write tries it again, and fails.
                Err(Failure::NotWritten(error)) => {
                    tracing::warn!(%error, "cannot sync a segment of the log");
                }
                synced => synced?,
            }
        }
        Ok(())
    }

    /// Removes, durably, what a failed creation of a segment may have left.
    fn remove_leftover(&mut self) -> Result<(), Failure> {
        let Some(path) = &self.leftover else {
            return Ok(());
        };
        match self.io.remove(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::NotWritten(Error::io("remove", path, error)));
            }
            _ => self.leftover = None,
        }
        self.sync_names()
    }

    /// Begins a new segment if the last one holds only operations that are in runs, up to
    /// `flushed_sequence`, so that the old one can be removed.
    pub(crate) fn leave_flushed(&mut self, flushed_sequence: u64) -> Result<(), Failure> {
        let is_used = |segment: &OpenSegment| segment.len > log_file::HEADER_BYTES as u64;
        let is_flushed = self.tail.next_sequence == flushed_sequence + 1;
        if is_flushed && self.tail.segment.as_ref().is_some_and(is_used) {
            self.confirm_tail()?;
            self.unmark_closed()?;
            self.begin_segment()
        } else {
            Ok(())
        }
    }

    /// Makes durable what an earlier process left in the last segment, its name, and what recovery
    /// cut off. New records come after it.
    fn confirm_tail(&mut self) -> Result<(), Failure> {
        if !self.is_tail_confirmed {
            let begun = time::now();
            if let Some(segment) = &mut self.tail.segment {
                segment.rewrite()?;
                segment.is_recovered = false;
            }
            self.sync_bytes()?;
            self.sync_names()?;
            self.is_tail_confirmed = true;
            self.stalled += time::now() - begun;
        }
        Ok(())
    }

    /// Removes `CLOSED`, durably, because new records will invalidate its description of the log's
    /// end.
    fn unmark_closed(&mut self) -> Result<(), Failure> {
        if self.is_marked_closed {
            let begun = time::now();
            let path = self.dir.join(clean_shutdown::NAME);
            self.io
                .remove(&path)
                .map_err(|error| Failure::NotWritten(Error::io("remove", &path, error)))?;
            self.is_marked_closed = false;
            self.sync_names()?;
            self.stalled += time::now() - begun;
        }
        Ok(())
    }

    /// Makes the log durable and marks where it ends.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.is_marked_closed && self.is_tail_confirmed {
            return Ok(());
        }
        let confirmed = self.confirm_tail().and_then(|()| self.sync());
        confirmed.map_err(|failure| match failure {
            Failure::NotWritten(error) | Failure::Unknown(error) => error,
        })?;
        let shutdown = CleanShutdown {
            segment: self.tail.next_number - 1,
            len_bytes: self.tail.segment.as_ref().map_or(0, |segment| segment.len),
            last_sequence: self.tail.next_sequence - 1,
        };
        replace_file(
            &*self.io,
            &self.dir,
            clean_shutdown::NAME,
            &shutdown.encode(),
        )?;
        self.is_marked_closed = true;
        Ok(())
    }

    /// Number and length of the last segment, if there is one, and the last sequence number of the
    /// log.
    pub(crate) fn end(&self) -> (Option<(u64, u64)>, u64) {
        let tail = self.tail.segment.as_ref();
        let last = tail.map(|segment| (self.tail.next_number - 1, segment.len));
        (last, self.tail.next_sequence - 1)
    }

    /// The log's segments.
    pub(crate) fn segments(&self) -> Arc<Segments> {
        Arc::clone(&self.segments)
    }

    /// The segments that wait for a sync.
    pub(crate) fn unsynced(&self) -> &Arc<UnsyncedSegments> {
        &self.unsynced
    }

    /// How long groups have waited for syncs that they did not ask for, since the last call.
    pub(crate) fn take_stalled(&mut self) -> Duration {
        std::mem::take(&mut self.stalled)
    }

    /// Bytes written since the store was opened.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Syncs made since the store was opened, except those of earlier segments.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs
    }
}
