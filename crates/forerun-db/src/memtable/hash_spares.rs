//! The spare lines of the hash index, which overflow full buckets.
//!
//! ```text
//!   the arena ──► free ──► behind a bucket
//!                   ▲             │
//!                   └─────────────┘   a split left so few entries that the bucket no longer needs it
//! ```
//!
//! Lines are taken from the arena in advance, while the index grows, because a writer that needs
//! one can no longer request memory. A line that is free again may still be read by a lookup that
//! came through its old bucket. So a line is written as a whole only once, and only atomic stores
//! change it from then on.

use forerun_core::sync::PoisonError;
use forerun_core::sync::modelled::Mutex;
use forerun_core::sync::modelled::atomic::{AtomicUsize, Ordering};

use super::arena::{Arena, Full};
use super::hash_bucket::Line;
use super::hash_memory::{line_at, take_lines};

/// How many lines are taken from the arena at once.
const BLOCK_LINES: std::ops::RangeInclusive<usize> = 4..=64;

/// Some lines are kept free at any time, for writers that arrive together: `FREE_LINES`, and one
/// for each `BUCKETS_PER_FREE_LINE` buckets. (At most one bucket in 20 overflows, or one in 13
/// while the index is small.)
const FREE_LINES: usize = 4;
const BUCKETS_PER_FREE_LINE: usize = 64;

/// One more is kept free for each group of this many entries of the next batch.
const NEW_ENTRIES_PER_FREE_LINE: usize = 24;

/// The free lines of one index.
pub(super) struct Spares {
    /// How many there are. It is written under the lock.
    count: AtomicUsize,
    /// Their locations.
    free: Mutex<Vec<u32>>,
}

impl Spares {
    pub(super) fn new() -> Spares {
        Spares {
            count: AtomicUsize::new(0),
            free: Mutex::new(Vec::new()),
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        // Each change is one call of the vector, so a thread that panics leaves it consistent.
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut free);
        // Relaxed: it decides only whether to take more.
        self.count.store(free.len(), Ordering::Relaxed);
        result
    }

    /// Takes lines from the arena if too few are free for `buckets` buckets and `new_entries`
    /// entries.
    #[inline]
    pub(super) fn reserve(
        &self,
        arena: &Arena,
        buckets: usize,
        new_entries: usize,
        may_take: &dyn Fn(usize) -> bool,
    ) -> Result<(), Full> {
        let wanted =
            FREE_LINES + buckets / BUCKETS_PER_FREE_LINE + new_entries / NEW_ENTRIES_PER_FREE_LINE;
        // Relaxed: see `change`.
        if self.count.load(Ordering::Relaxed) < wanted {
            self.take_lines(arena, buckets, wanted, may_take)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn take_lines(
        &self,
        arena: &Arena,
        buckets: usize,
        wanted: usize,
        may_take: &dyn Fn(usize) -> bool,
    ) -> Result<(), Full> {
        self.change(|free| {
            let Some(missing) = wanted
                .checked_sub(free.len())
                .filter(|&missing| missing > 0)
            else {
                return Ok(());
            };
            let (least, most) = BLOCK_LINES.into_inner();
            let lines = missing.max((buckets / BUCKETS_PER_FREE_LINE).clamp(least, most));
            let first = take_lines(arena, lines, may_take)?;
            for line in (first..first + lines as u32).rev() {
                // SAFETY: the line was just taken for this index.
                unsafe { line_at(arena, line).write(Line::new()) };
                free.push(line);
            }
            Ok(())
        })
    }

    /// An empty line, for the caller alone.
    pub(super) fn take<'a>(&self, arena: &'a Arena) -> Option<(u32, &'a Line)> {
        let location = self.change(|free| free.pop())?;
        // SAFETY: every free line was written when it was taken from the arena.
        let line = unsafe { line_at(arena, location).as_ref() };
        line.clear();
        Some((location, line))
    }

    /// Makes a line free that is behind no bucket any more. It has no entries.
    pub(super) fn give_back(&self, location: u32) {
        self.change(|free| free.push(location));
    }
}
