//! Writes: insert, erase, import.
//!
//! ```text
//!   insert   reserve ──> lock ──> invalidate on the device ──> store (write-through) ──> index ──> bump versions
//!   erase                lock ──> invalidate ──> store ──> index ──> bump
//! ```
//!
//! Lookups rely on the order of store and index: a lookup that misses in memory then reads the
//! store. At every moment, if a key is not in the index, the store holds its newest row, or none if
//! there is no row.

use forerun_core::sync::time;
use forerun_db::Background;

use crate::clients::Mark;
use crate::disk_tier::{Rows, Store};
use crate::host::{Reservation, RowMeta};
use crate::inner::Inner;
use crate::options::WhenHostFull;
use crate::{Error, Failures, Result};

impl Inner {
    pub(crate) fn insert(&self, keys: &[u64], rows: &[u8], scores: Option<&[u64]>) -> Result<()> {
        self.write_rows(keys, rows, scores, |part, reservation, failures| {
            self.insert_part(part, reservation, failures);
        })
    }

    pub(crate) fn import_rows(
        &self,
        keys: &[u64],
        rows: &[u8],
        scores: Option<&[u64]>,
    ) -> Result<()> {
        let Some(store) = &self.store else {
            return self.insert(keys, rows, scores);
        };
        if store.is_worth_ingesting(keys.len()) && keys.is_sorted_by(|a, b| a < b) {
            self.check_batch(keys, rows, scores)?;
            if let Some(ingested) = self.ingest(store, keys, rows, scores) {
                return ingested;
            }
        }
        self.write_rows(keys, rows, scores, |part, reservation, failures| {
            self.import_part(store, part, reservation, failures);
        })
    }

    fn check_batch(&self, keys: &[u64], rows: &[u8], scores: Option<&[u64]>) -> Result<()> {
        self.check_takes_writes()?;
        self.check_rows(keys, rows.len())?;
        match scores {
            Some(scores) => self.check_scores(keys, scores),
            None => Ok(()),
        }
    }

    /// Checks a batch and passes it to `write` in chunks. For each chunk it reserves slots and
    /// locks the keys.
    fn write_rows(
        &self,
        keys: &[u64],
        rows: &[u8],
        scores: Option<&[u64]>,
        write: impl Fn(Part<'_>, &mut Reservation, &mut Failures),
    ) -> Result<()> {
        self.check_batch(keys, rows, scores)?;
        let start = time::now();
        let (chunk, mut failures) = (self.host.chunk(), Failures::default());
        for from in (0..keys.len()).step_by(chunk) {
            self.interrupt.check()?;
            let to = keys.len().min(from + chunk);
            let part = Part {
                from,
                keys: &keys[from..to],
                rows: &rows[from * self.row.bytes()..to * self.row.bytes()],
                scores: scores.map(|scores| &scores[from..to]),
            };
            match self.reserve(part.keys.len()) {
                Ok(mut reservation) => match self.lock_to_write(part.keys.iter().copied()) {
                    Ok(guard) => {
                        let invalidated = self.invalidate(part.keys);
                        write(part, &mut reservation, &mut failures);
                        drop((guard, reservation));
                        self.repromote(invalidated);
                    }
                    // Earlier chunks are written. The thread that closes the table flushes them.
                    Err(error) if from > 0 => part.fail(&error, &mut failures),
                    Err(error) => return Err(error),
                },
                Err(error) => part.fail(&error, &mut failures),
            }
            self.after_write();
        }
        self.counters.written_rows.add(keys.len() - failures.len());
        self.counters.failed_keys.add(failures.len());
        self.clocks.write.record(time::elapsed(start));
        let served = keys.len() - failures.len();
        failures.into_result(served).map(drop)
    }

    /// The caller holds the locks of the part's keys.
    fn insert_part(&self, part: Part<'_>, reservation: &mut Reservation, failures: &mut Failures) {
        if let Some(store) = self.through()
            && let Err(error) = self.put(store, part)
        {
            return part.fail(&error, failures);
        }
        self.put_part_above(part, reservation, failures);
    }

    /// Puts a part's rows into the host tier.
    fn put_part_above(
        &self,
        part: Part<'_>,
        reservation: &mut Reservation,
        failures: &mut Failures,
    ) {
        self.host.prefetch(part.keys);
        for (at, (&key, row)) in part.rows(self.row.bytes()).enumerate() {
            if let Err(error) = self.put_above(key, row, part.score(at), reservation) {
                failures.push(part.from + at, key, error);
            }
        }
        self.changed(part.keys);
    }

    /// The caller holds the locks of the part's keys. Removes the rows from the host tier; they
    /// stay in the store.
    fn import_part(
        &self,
        store: &Store,
        part: Part<'_>,
        reservation: &mut Reservation,
        failures: &mut Failures,
    ) {
        if let Err(error) = self.put(store, part) {
            return part.fail(&error, failures);
        }
        for &key in part.keys {
            // The store has the row. The one in the host tier is outdated.
            self.host.unlink(key, reservation);
        }
        self.changed(part.keys);
    }

    fn put(&self, store: &Store, part: Part<'_>) -> Result<()> {
        store.write(&self.batch_of(store, part)?)
    }

    fn batch_of(&self, store: &Store, part: Part<'_>) -> Result<Rows> {
        let mut rows = store.rows();
        for (at, (&key, row)) in part.rows(self.row.bytes()).enumerate() {
            store.add(&mut rows, key, row, part.score(at))?;
        }
        Ok(rows)
    }

    /// Puts a row into the host tier. The caller holds the key's lock, has written to the store
    /// first if the table is write-through, and calls [`changed`](Inner::changed) next.
    pub(crate) fn put_above(
        &self,
        key: u64,
        row: &[u8],
        score: u64,
        reservation: &mut Reservation,
    ) -> Result<()> {
        if matches!(self.policies.when_full, WhenHostFull::Refuse) && self.store.is_none() {
            let capacity = self.host.capacity();
            if self.host.linked() >= capacity && self.host.slot(key).is_none() {
                return Err(Error::Full { capacity });
            }
        }
        let meta = RowMeta {
            score,
            is_dirty: self.writes_back(),
            uses: 0,
        };
        let linked = self.host.link(key, row, meta, reservation);
        if linked.is_err() && self.through().is_some() {
            // The store has the row. The one in the host tier is outdated.
            self.host.unlink(key, reservation);
        }
        if self.through().is_some() {
            Ok(())
        } else {
            linked
        }
    }

    /// Evicts the rows beyond the capacity, or queues that work.
    pub(crate) fn after_write(&self) {
        if self.host.linked() > self.host.capacity() {
            if self.policies.background == Background::Caller {
                self.trim();
            } else {
                self.queue_trim();
            }
        }
    }

    pub(crate) fn erase(&self, keys: &[u64]) -> Result<()> {
        self.check_takes_writes()?;
        let start = time::now();
        let mut failures = Failures::default();
        for (nth, part) in keys.chunks(self.host.chunk()).enumerate() {
            self.interrupt.check()?;
            if let Err(error) = self.erase_part(part, |_| Ok(())) {
                for (at, &key) in part.iter().enumerate() {
                    failures.push(nth * self.host.chunk() + at, key, error.clone());
                }
            }
        }
        self.counters.erased_keys.add(keys.len() - failures.len());
        self.counters.failed_keys.add(failures.len());
        self.clocks.write.record(time::elapsed(start));
        let served = keys.len() - failures.len();
        failures.into_result(served).map(drop)
    }
}

/// Writes of one chunk of keys, with a record in the same batch of the store. The table is
/// write-through.
impl Inner {
    pub(crate) fn insert_marked(
        &self,
        keys: &[u64],
        rows: &[u8],
        found: &mut [bool],
        mark: &Mark<'_>,
    ) -> Result<()> {
        let part = Part {
            from: 0,
            keys,
            rows,
            scores: None,
        };
        let mut reservation = self.reserve(keys.len())?;
        let guard = self.lock_to_write(keys.iter().copied())?;
        let invalidated = self.invalidate(keys);
        found.fill(true);
        let written = self.put_marked(part, found, mark);
        if written.is_ok() {
            // The store has the rows, so none of them fails.
            self.put_part_above(part, &mut reservation, &mut Failures::default());
        }
        drop((guard, reservation));
        self.repromote(invalidated);
        self.after_write();
        written
    }

    fn put_marked(&self, part: Part<'_>, found: &[bool], mark: &Mark<'_>) -> Result<()> {
        let store = self.through().ok_or(Error::NoStore { op: "write_once" })?;
        let mut rows = self.batch_of(store, part)?;
        mark.add_to(&mut rows, found)?;
        store.write(&rows)
    }

    pub(crate) fn erase_marked(
        &self,
        keys: &[u64],
        found: &mut [bool],
        mark: &Mark<'_>,
    ) -> Result<()> {
        found.fill(true);
        self.erase_part(keys, |rows| mark.add_to(rows, found))
    }

    /// `mark` adds to the batch of the store.
    fn erase_part(&self, keys: &[u64], mark: impl FnOnce(&mut Rows) -> Result<()>) -> Result<()> {
        let _held = self.lock_to_write(keys.iter().copied())?;
        self.invalidate(keys);
        // Before the store: once the rows are erased there, nothing may fail.
        let mut reservation = self.host.reserve_none()?;
        // Erase from the store first: a lookup that no longer finds the key in memory must not find
        // an old row in the store.
        if let Some(store) = &self.store {
            let mut rows = store.rows();
            for &key in keys {
                rows.remove(key)?;
            }
            mark(&mut rows)?;
            store.write(&rows)?;
        }
        self.host.prefetch(keys);
        for &key in keys {
            self.host.unlink(key, &mut reservation);
        }
        self.changed(keys);
        Ok(())
    }
}

/// Keys of a batch that are written together.
#[derive(Clone, Copy)]
struct Part<'p> {
    /// Position of the first key in the batch.
    from: usize,
    keys: &'p [u64],
    rows: &'p [u8],
    scores: Option<&'p [u64]>,
}

impl<'p> Part<'p> {
    fn rows(self, row_bytes: usize) -> impl Iterator<Item = (&'p u64, &'p [u8])> {
        self.keys.iter().zip(self.rows.chunks_exact(row_bytes))
    }

    fn score(self, at: usize) -> u64 {
        self.scores.map_or(0, |scores| scores[at])
    }

    fn fail(self, error: &Error, failures: &mut Failures) {
        for (at, &key) in self.keys.iter().enumerate() {
            failures.push(self.from + at, key, error.clone());
        }
    }
}
