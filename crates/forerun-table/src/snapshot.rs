//! Snapshots of a table, and the export of rows batch by batch.

use crate::disk_tier::{Format, Store, rows_of};
use crate::inner::Inner;
use crate::{Failures, Result, RowType};
use forerun_core::{ProcessBound, RegionError};
use forerun_db::Values;
use std::fmt;
use std::sync::Arc;

/// Keys with their rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The keys.
    pub keys: Vec<u64>,
    /// Their rows, concatenated.
    pub rows: Vec<u8>,
    /// Their scores if the table was built with
    /// [`EvictStrategy::Customized`](crate::EvictStrategy::Customized), otherwise empty.
    pub scores: Vec<u64>,
}

impl Rows {
    /// Adds a key with its row.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory).
    fn push(&mut self, key: u64, row: &[u8], score: Option<u64>) -> Result<()> {
        reserve(&mut self.keys, 1)?;
        reserve(&mut self.rows, row.len())?;
        self.keys.push(key);
        self.rows.extend_from_slice(row);
        if let Some(score) = score {
            reserve(&mut self.scores, 1)?;
            self.scores.push(score);
        }
        Ok(())
    }
}

/// Makes room for more elements, whose number callers and data determine.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory).
fn reserve<T>(vector: &mut Vec<T>, additional: usize) -> Result<()> {
    let reserved = vector.try_reserve(additional);
    reserved.map_err(|_| {
        let len = vector.len().saturating_add(additional);
        let len_bytes = len.saturating_mul(size_of::<T>());
        RegionError::OutOfMemory { len_bytes }.into()
    })
}

/// A table as it was when [`Table::snapshot`](crate::Table::snapshot) was called. Later writes do
/// not change it.
///
/// It reads only the store. While it exists, the store keeps its rows on disk.
pub struct TableSnapshot {
    row: RowType,
    format: Format,
    snapshot: forerun_db::Snapshot,
}

impl TableSnapshot {
    pub(crate) fn new(
        row: RowType,
        store: &Store,
        snapshot: forerun_db::Snapshot,
    ) -> TableSnapshot {
        TableSnapshot {
            row,
            format: store.format(),
            snapshot,
        }
    }

    /// Like [`Table::find`](crate::Table::find), for the moment of the snapshot.
    ///
    /// # Errors
    /// The same as those of [`Table::find`](crate::Table::find).
    pub fn find(&self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        let row_bytes = self.row.bytes();
        crate::inner::check_length(
            "bytes of rows",
            rows.len(),
            keys,
            keys.len().checked_mul(row_bytes),
        )?;
        crate::inner::check_length("flags", found.len(), keys, Some(keys.len()))?;
        let mut asked = Vec::new();
        reserve(&mut asked, keys.len())?;
        asked.extend(keys.iter().map(|key| key.to_be_bytes()));
        let mut values = Values::new();
        self.snapshot.multi_get(&asked, &mut values)?;
        let (mut hits, mut failures) = (0, Failures::default());
        let answers = rows.chunks_exact_mut(row_bytes).zip(found.iter_mut());
        for (at, (row, found)) in answers.enumerate() {
            *found = false;
            match self.format.row(&values, at, keys[at]) {
                Ok(Some((value, _))) => {
                    row.copy_from_slice(value);
                    *found = true;
                    hits += 1;
                }
                Ok(None) => {}
                Err(error) => failures.push(at, keys[at], error),
            }
        }
        failures.into_result(hits)
    }

    /// Exports all rows in ascending key order, in batches of `batch` keys.
    pub fn export(&self, batch: usize) -> Export {
        let has_scores = self.format.has_scores();
        let rows = rows_of(&self.snapshot, self.format);
        let mut rows = rows.peekable();
        Export::new(std::iter::from_fn(move || {
            rows.peek()?;
            let mut all = Rows::default();
            for row in rows.by_ref().take(batch.max(1)) {
                let added = row
                    .and_then(|(key, row, score)| all.push(key, &row, has_scores.then_some(score)));
                if let Err(error) = added {
                    return Some(Err(error));
                }
            }
            Some(Ok(all))
        }))
    }
}

impl fmt::Debug for TableSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableSnapshot")
            .field("row", &self.row)
            .field("sequence", &self.snapshot.sequence())
            .finish_non_exhaustive()
    }
}

/// An iterator over a table's rows, batch by batch: see [`Table::export`](crate::Table::export). It
/// ends after an error.
pub struct Export {
    batches: ProcessBound<Option<Batches>>,
    is_over: bool,
}

type Batches = Box<dyn Iterator<Item = Result<Rows>> + Send>;

impl Export {
    fn new(batches: impl Iterator<Item = Result<Rows>> + Send + 'static) -> Export {
        Export {
            batches: ProcessBound::new(Some(Box::new(batches))),
            is_over: false,
        }
    }

    /// Exports a table without a store: each key that is present throughout appears once, with any
    /// row that it had during the export.
    pub(crate) fn of_host(inner: Arc<Inner>, batch: usize) -> Export {
        let keys = match inner.host.keys() {
            Ok(keys) => keys,
            Err(error) => return Export::new(std::iter::once(Err(error))),
        };
        let (mut next, batch) = (0_usize, batch.max(1));
        Export::new(std::iter::from_fn(move || {
            let to = keys.len().min(next.saturating_add(batch));
            let part = keys.get(next..to).filter(|part| !part.is_empty())?;
            next = to;
            let mut rows = Rows::default();
            let len_bytes = part.len() * inner.row.bytes();
            let scores = if inner.has_scores() { part.len() } else { 0 };
            let reserved = reserve(&mut rows.keys, part.len())
                .and_then(|()| reserve(&mut rows.rows, len_bytes))
                .and_then(|()| reserve(&mut rows.scores, scores));
            if let Err(error) = reserved {
                return Some(Err(error));
            }
            for &key in part {
                // The row was erased or evicted since, so there is none.
                inner.host.read(key, |slot, row| {
                    rows.keys.push(key);
                    rows.rows.extend_from_slice(row);
                    if inner.has_scores() {
                        rows.scores.push(inner.host.score(slot));
                    }
                });
            }
            Some(Ok(rows))
        }))
    }
}

impl Iterator for Export {
    type Item = Result<Rows>;

    fn next(&mut self) -> Option<Result<Rows>> {
        if self.is_over {
            return None;
        }
        let batches = match self.batches.get_mut() {
            Ok(batches) => batches,
            Err(forked) => {
                self.is_over = true;
                return Some(Err(forked.into()));
            }
        };
        let next = batches.as_mut()?.next();
        if !matches!(next, Some(Ok(_))) {
            *batches = None;
            self.is_over = true;
        }
        next
    }
}

impl std::iter::FusedIterator for Export {}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").finish_non_exhaustive()
    }
}
