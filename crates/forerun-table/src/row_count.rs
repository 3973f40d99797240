//! The number of rows in the store, carried from one count to the next.
//!
//! ```text
//!   a count                 writes                the next count
//!   its snapshot, n rows    keys 7, 9, 7, 3       n - (of 3, 7, 9: those in the snapshot)
//!                                                   + (of 3, 7, 9: those there now)
//! ```
//!
//! A write does not know whether its keys are new: to find out, it would have to read the store.
//! So the table only remembers the keys, and the next count looks them up. After too many keys, it
//! forgets them and the snapshot, and the next count asks the store.

use crate::interrupt::Interrupt;
use crate::{Error, Result};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use forerun_db::{Snapshot, Values, ViewId};

/// The maximum number of keys that are remembered. The store keeps the rows that they had when they
/// were counted.
const KEYS_MAX: usize = 1 << 16;

/// If the table has less than this many rows for each written key, the store counts faster.
const ROWS_PER_KEY_MIN: u64 = 8;

/// Keys that are looked up together.
const BATCH_KEYS: usize = 1024;

/// The entries of the store that are not rows: the description of the rows.
const OTHER_ENTRIES: u64 = 1;

/// The last count.
#[derive(Debug, Default)]
pub(crate) struct RowCount(Mutex<Option<Counted>>);

/// A count, and what was written since.
#[derive(Debug)]
pub(crate) struct Counted {
    snapshot: Snapshot,
    /// `None` until the rows are counted.
    rows: Option<u64>,
    /// The keys written since, in any order, with duplicates.
    keys: Vec<u64>,
    /// The sequence numbers that these writes took.
    operations: u64,
}

impl RowCount {
    /// Notes keys that were written to the store and the sequence numbers that it took. The caller
    /// holds the locks of the keys.
    pub(crate) fn note(&self, keys: impl ExactSizeIterator<Item = u64>, operations: u64) {
        let mut last = self.lock();
        let Some(counted) = &mut *last else { return };
        if counted.keys.len() + keys.len() <= KEYS_MAX {
            counted.keys.extend(keys);
            counted.operations += operations;
            return;
        }
        let forgotten = last.take();
        drop(last);
        drop(forgotten);
    }

    /// Notes keys from now on, for the count after the one of `snapshot`, and returns what the last
    /// count left. The caller holds the locks of all keys.
    pub(crate) fn begin(&self, snapshot: &Snapshot) -> Option<Counted> {
        self.lock().replace(Counted {
            snapshot: snapshot.clone(),
            rows: None,
            keys: Vec::new(),
            operations: 0,
        })
    }

    /// The number of rows in a snapshot, given what [`begin`](Self::begin) has returned.
    pub(crate) fn count(
        &self,
        snapshot: &Snapshot,
        last: Option<Counted>,
        interrupt: &Interrupt,
    ) -> Result<u64> {
        let carried = match last {
            Some(last) => last.carry_to(snapshot, interrupt)?,
            None => None,
        };
        let rows = match carried {
            Some(rows) => rows,
            None => count_rows(snapshot, interrupt)?,
        };
        if let Some(counted) = &mut *self.lock()
            && counted.view_id() == snapshot.view_id()
        {
            counted.rows = Some(rows);
        }
        Ok(rows)
    }

    /// Drops the snapshot of the last count.
    pub(crate) fn forget(&self) {
        let forgotten = self.lock().take();
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Counted>> {
        // Nothing under the lock can panic in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    fn view_id(&self) -> ViewId {
        self.snapshot.view_id()
    }

    /// The number of rows in a later snapshot. `None` if the store counts faster, or if others have
    /// written to it: then there are more operations than those of the table.
    fn carry_to(mut self, now: &Snapshot, interrupt: &Interrupt) -> Result<Option<u64>> {
        let Some(rows) = self.rows else {
            return Ok(None);
        };
        let operations = now.sequence().checked_sub(self.snapshot.sequence());
        let is_small = self.keys.len() as u64 * ROWS_PER_KEY_MIN <= rows;
        if operations != Some(self.operations) || !(is_small || self.keys.is_empty()) {
            return Ok(None);
        }
        self.keys.sort_unstable();
        self.keys.dedup();
        let (mut before, mut after) = (0, 0);
        let (mut asked, mut values): (Vec<[u8; 8]>, Values) = (Vec::new(), Values::new());
        for keys in self.keys.chunks(BATCH_KEYS) {
            interrupt.check()?;
            asked.clear();
            asked.extend(keys.iter().map(|key| key.to_be_bytes()));
            before += count_found(&self.snapshot, &asked, &mut values)?;
            after += count_found(now, &asked, &mut values)?;
        }
        Ok((rows + after).checked_sub(before))
    }
}

/// How many of these keys are in a snapshot.
fn count_found(snapshot: &Snapshot, keys: &[[u8; 8]], values: &mut Values) -> Result<u64> {
    snapshot.multi_get(keys, values)?;
    let mut found = 0;
    for position in 0..keys.len() {
        found += u64::from(values.get(position)?.is_some());
    }
    Ok(found)
}

/// The number of a snapshot's rows, counted by the store.
fn count_rows(snapshot: &Snapshot, interrupt: &Interrupt) -> Result<u64> {
    match snapshot.count_while(|| interrupt.check().is_ok()) {
        Ok(entries) => Ok(entries.saturating_sub(OTHER_ENTRIES)),
        Err(forerun_db::Error::Interrupted) => Err(Error::Interrupted),
        Err(error) => Err(error.into()),
    }
}
