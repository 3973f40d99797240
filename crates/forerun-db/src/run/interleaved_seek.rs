//! Seeks of several cursors that overlap: a coroutine for each cursor.
//!
//! ```text
//!   cursor A   root ─┐              ┌─ group ─┐               ┌─ child's slot ─┐
//!   cursor B         └─ root ─┐     │         └─ group ─┐     │                └ …
//!   cursor C                  └─ root                   └─ group
//! ```
//!
//! Each cursor prefetches the cache lines that it reads next and lets the others run. A page that
//! is not in memory is awaited in the same way.
//!
//! A run whose keys are all on one side of the target is not touched: it has nothing there, or its
//! first or last key is the one. That version is read when it is needed, if it ever is.

use crate::Result;
use crate::cache::driver::Reads;
use crate::versions::{SeekTarget, VersionCursor};

/// A cursor whose seeks can overlap with those of others. A seek has two steps: what the cursor
/// knows without reading, and if that is not enough, the search.
///
/// Without an implementation, a cursor knows nothing, and its search awaits nothing.
pub(crate) trait InterleavedSeek: VersionCursor + Sized {
    /// The first step: moves to the target if that takes no reading, and returns whether it has.
    /// The version may be left [unread](Self::is_unread).
    fn seek_by_bounds(&mut self, _to: SeekTarget<'_>) -> bool {
        false
    }

    /// The second step, after the first one for the same target has returned `false`.
    fn search(&mut self, to: SeekTarget<'_>) -> Result<()> {
        to.seek(self)
    }

    /// [`search`](Self::search) as a coroutine, with `reads` for pages that are not in memory. If
    /// it is dropped before its end, the cursor has no position.
    async fn search_interleaved<'s, 'g>(
        &'s mut self,
        _reads: &'s Reads<'g>,
        to: SeekTarget<'s>,
    ) -> Result<()>
    where
        Self: 'g,
    {
        self.search(to)
    }

    /// [`seek_first`](VersionCursor::seek_first), which may leave the version
    /// [unread](Self::is_unread).
    fn seek_first_unread(&mut self) -> Result<()> {
        self.seek_first()
    }

    /// [`seek_last`](VersionCursor::seek_last), which may leave the version unread.
    fn seek_last_unread(&mut self) -> Result<()> {
        self.seek_last()
    }

    /// [`next`](VersionCursor::next), which may leave the version unread.
    #[inline]
    fn next_unread(&mut self) -> Result<()> {
        self.next()
    }

    /// [`prev`](VersionCursor::prev), which may leave the version unread.
    #[inline]
    fn prev_unread(&mut self) -> Result<()> {
        self.prev()
    }

    /// Whether the cursor has left its version unread, because it knows the key without reading
    /// it. Until [`read`](Self::read), [`at`](VersionCursor::at) returns that key, without a value,
    /// and with a sequence number that sorts the version next in the seek's direction, before
    /// all others of the key. Do not step.
    #[inline]
    fn is_unread(&self) -> bool {
        false
    }

    /// Reads the version that was left unread.
    fn read(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether it is known that everything from the current version on to the target, which is
    /// ahead, is older than `sequence`.
    fn is_older(&self, _to: SeekTarget<'_>, _sequence: u64) -> bool {
        false
    }
}

impl<C: VersionCursor + ?Sized> InterleavedSeek for Box<C> {}
