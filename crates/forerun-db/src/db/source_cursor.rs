//! A cursor over one of a super version's sources: a memtable, a run of level 0, or a level.

use crate::Result;
use crate::cache::driver::Reads;
use crate::memtable::TableVersions;
use crate::run::cursor::RunCursor;
use crate::run::interleaved_seek::InterleavedSeek;
use crate::run::level_cursor::LevelCursor;
use crate::versions::{SeekTarget, Version, VersionCursor};

/// An enum and not a trait object, so that a step of a scan is compiled into one function.
pub(super) enum SourceCursor<'a> {
    Table(TableVersions<'a>),
    Run(RunCursor<'a>),
    Level(LevelCursor<'a>),
}

/// Calls a method of whatever cursor this is.
macro_rules! each {
    ($self:expr, $cursor:ident => $call:expr) => {
        match $self {
            SourceCursor::Table($cursor) => $call,
            SourceCursor::Run($cursor) => $call,
            SourceCursor::Level($cursor) => $call,
        }
    };
}

impl InterleavedSeek for SourceCursor<'_> {
    fn seek_by_bounds(&mut self, to: SeekTarget<'_>) -> bool {
        each!(self, cursor => cursor.seek_by_bounds(to))
    }

    fn search(&mut self, to: SeekTarget<'_>) -> Result<()> {
        each!(self, cursor => cursor.search(to))
    }

    async fn search_interleaved<'s, 'g>(
        &'s mut self,
        reads: &'s Reads<'g>,
        to: SeekTarget<'s>,
    ) -> Result<()>
    where
        Self: 'g,
    {
        each!(self, cursor => cursor.search_interleaved(reads, to).await)
    }

    fn seek_first_unread(&mut self) -> Result<()> {
        each!(self, cursor => cursor.seek_first_unread())
    }

    fn seek_last_unread(&mut self) -> Result<()> {
        each!(self, cursor => cursor.seek_last_unread())
    }

    #[inline]
    fn next_unread(&mut self) -> Result<()> {
        each!(self, cursor => cursor.next_unread())
    }

    #[inline]
    fn prev_unread(&mut self) -> Result<()> {
        each!(self, cursor => cursor.prev_unread())
    }

    #[inline]
    fn is_unread(&self) -> bool {
        each!(self, cursor => cursor.is_unread())
    }

    fn is_older(&self, to: SeekTarget<'_>, sequence: u64) -> bool {
        each!(self, cursor => cursor.is_older(to, sequence))
    }

    fn read(&mut self) -> Result<()> {
        each!(self, cursor => cursor.read())
    }
}

impl VersionCursor for SourceCursor<'_> {
    fn seek_first(&mut self) -> Result<()> {
        each!(self, cursor => cursor.seek_first())
    }

    fn seek_last(&mut self) -> Result<()> {
        each!(self, cursor => cursor.seek_last())
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        each!(self, cursor => cursor.seek(key, sequence))
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        each!(self, cursor => cursor.seek_before(key, sequence))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        each!(self, cursor => cursor.next())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        each!(self, cursor => cursor.prev())
    }

    #[inline(always)]
    fn at(&self) -> Option<Version<'_>> {
        each!(self, cursor => cursor.at())
    }

    #[inline]
    fn is_newest_of_key(&self) -> bool {
        each!(self, cursor => cursor.is_newest_of_key())
    }

    fn reset(&mut self) {
        each!(self, cursor => cursor.reset());
    }
}

#[cfg(test)]
#[path = "source_cursor_fault_tests.rs"]
mod fault_tests;
#[cfg(test)]
#[path = "source_cursor_tests.rs"]
mod tests;
