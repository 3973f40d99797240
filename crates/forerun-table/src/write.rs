//! Writes: insert, update, erase, import.
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
use crate::find_scratch::Scratch;
use crate::host::{Reservation, RowMeta};
use crate::inner::Inner;
use crate::options::{Update, WhenFull};
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
        self.clocks.write.count(time::elapsed(start));
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
    fn put_above(
        &self,
        key: u64,
        row: &[u8],
        score: u64,
        reservation: &mut Reservation,
    ) -> Result<()> {
        if matches!(self.policies.when_full, WhenFull::Refuse) && self.store.is_none() {
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
    fn after_write(&self) {
        if self.host.linked() > self.host.capacity() {
            if self.policies.background == Background::Caller {
                self.trim();
            } else {
                self.queue_trim();
            }
        }
    }

    pub(crate) fn update(
        &self,
        keys: &[u64],
        rows: &[u8],
        how: Update,
        found: &mut [bool],
    ) -> Result<usize> {
        self.check_takes_writes()?;
        self.check_rows(keys, rows.len())?;
        self.check_found(keys, found)?;
        let start = time::now();
        let (mut failures, mut order) = (Failures::default(), Vec::new());
        let chunk = self.host.chunk();
        for from in (0..keys.len()).step_by(chunk) {
            let to = keys.len().min(from + chunk);
            self.interrupt.check()?;
            // Sorts equal keys together, in batch order.
            order.clear();
            order.extend(from..to);
            order.sort_by_key(|&at| keys[at]);
            let update = Updating {
                inner: self,
                keys,
                rows,
                how,
                mark: None,
                groups: order.chunk_by(|&a, &b| keys[a] == keys[b]).collect(),
            };
            update.run(found, &mut failures);
            self.after_write();
        }
        let updated = found.iter().filter(|&&found| found).count();
        self.counters.written_rows.add(updated);
        self.counters.failed_keys.add(failures.len());
        self.clocks.write.count(time::elapsed(start));
        failures.into_result(updated)
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
        self.clocks.write.count(time::elapsed(start));
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

    pub(crate) fn update_marked(
        &self,
        keys: &[u64],
        rows: &[u8],
        how: Update,
        found: &mut [bool],
        mark: &Mark<'_>,
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&at| keys[at]);
        let update = Updating {
            inner: self,
            keys,
            rows,
            how,
            mark: Some(mark),
            groups: order.chunk_by(|&a, &b| keys[a] == keys[b]).collect(),
        };
        let mut failures = Failures::default();
        update.run(found, &mut failures);
        self.after_write();
        let first = failures.iter().next().map(|(.., error)| error.clone());
        first.map_or_else(|| failures.into_result(0).map(drop), Err)
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

/// An update of some keys.
struct Updating<'u> {
    inner: &'u Inner,
    keys: &'u [u64],
    rows: &'u [u8],
    how: Update,
    /// A record for the batch of the store. With one, all keys are updated or none.
    mark: Option<&'u Mark<'u>>,
    /// The positions of each key, in batch order.
    groups: Vec<&'u [usize]>,
}

impl Updating<'_> {
    fn run(&self, found: &mut [bool], failures: &mut Failures) {
        let inner = self.inner;
        let mut reservation = match inner.reserve(self.groups.len()) {
            Ok(reservation) => reservation,
            Err(error) => {
                return self.groups.iter().for_each(|group| {
                    self.fail(group, &error, found, failures);
                });
            }
        };
        let keys: Vec<u64> = self
            .groups
            .iter()
            .map(|group| self.keys[group[0]])
            .collect();
        let guard = match inner.lock_to_write(keys.iter().copied()) {
            Ok(guard) => guard,
            Err(error) => {
                return self.groups.iter().for_each(|group| {
                    self.fail(group, &error, found, failures);
                });
            }
        };
        let row_bytes = inner.row.bytes();
        let mut old = vec![0; keys.len() * row_bytes];
        let mut scores = vec![0; keys.len()];
        let mut present = vec![false; keys.len()];
        self.read(&keys, &mut old, &mut scores, &mut present, found, failures);
        if self.mark.is_some() && !failures.is_empty() {
            return;
        }
        for ((group, row), _) in self
            .groups
            .iter()
            .zip(old.chunks_exact_mut(row_bytes))
            .zip(&present)
            .filter(|(_, present)| **present)
        {
            let given = group
                .iter()
                .map(|&at| &self.rows[at * row_bytes..][..row_bytes]);
            match self.how {
                Update::Assign => given.for_each(|given| row.copy_from_slice(given)),
                Update::Add => inner.row.dtype.add(row, given),
            }
        }
        let invalidated = inner.invalidate(&keys);
        let written = self.write_below(&keys, &old, &scores, &present);
        let rows = old.chunks_exact(row_bytes);
        for (nth, (group, row)) in self.groups.iter().zip(rows).enumerate() {
            if !present[nth] {
                continue;
            }
            let put = written
                .clone()
                .and_then(|()| inner.put_above(keys[nth], row, scores[nth], &mut reservation));
            match put {
                Ok(()) => group.iter().for_each(|&at| found[at] = true),
                Err(error) => self.fail(group, &error, found, failures),
            }
        }
        if let (Some(_), Err(error), true) = (self.mark, &written, failures.is_empty()) {
            // No key had a row, but the record is not written.
            failures.push(0, 0, error.clone());
        }
        inner.changed(&keys);
        drop((guard, reservation));
        inner.repromote(invalidated);
    }

    /// Reads the present rows and their scores.
    fn read(
        &self,
        keys: &[u64],
        old: &mut [u8],
        scores: &mut [u64],
        present: &mut [bool],
        found: &mut [bool],
        failures: &mut Failures,
    ) {
        let inner = self.inner;
        let mut scratch = Scratch::take();
        let slots = &mut scratch.slots;
        inner.host.find(keys, old, |at| at, present, slots);
        for (nth, &key) in keys.iter().enumerate().filter(|&(nth, _)| present[nth]) {
            // The caller holds the lock, so the slot keeps its key.
            scores[nth] = inner
                .host
                .slot(key)
                .map_or(0, |slot| inner.host.score(slot));
        }
        for &at in self.groups.iter().copied().flatten() {
            found[at] = false;
        }
        self.read_copies(keys, old, scores, present);
        if let Some(store) = &inner.store {
            let open: Vec<usize> = (0..keys.len()).filter(|&nth| !present[nth]).collect();
            let asked: Vec<_> = open.iter().map(|&nth| keys[nth].to_be_bytes()).collect();
            let answered = store.find(&asked, &mut scratch.values);
            for (at, &nth) in open.iter().enumerate() {
                let row = answered
                    .clone()
                    .and_then(|()| store.format().row(&scratch.values, at, keys[nth]));
                match row {
                    Ok(Some((row, score))) => {
                        old[nth * row.len()..][..row.len()].copy_from_slice(row);
                        (scores[nth], present[nth]) = (score, true);
                    }
                    Ok(None) => {}
                    Err(error) => self.fail(self.groups[nth], &error, found, failures),
                }
            }
        }
        scratch.keep();
    }

    /// Reads rows that the device has and the host tier does not. They equal the store's rows and
    /// are faster to read.
    fn read_copies(&self, keys: &[u64], old: &mut [u8], scores: &mut [u64], present: &mut [bool]) {
        let Some(device) = self.inner.device() else {
            return;
        };
        let open: Vec<usize> = (0..keys.len()).filter(|&nth| !present[nth]).collect();
        let asked: Vec<u64> = open.iter().map(|&nth| keys[nth]).collect();
        let row_bytes = self.inner.row.bytes();
        let mut rows = vec![0; asked.len() * row_bytes];
        let mut given = vec![0; asked.len()];
        let Some(there) = device.find_scored(&asked, &mut rows, &mut given) else {
            return;
        };
        let copies = rows.chunks_exact(row_bytes).zip(given).zip(there);
        for (&nth, ((row, score), there)) in open.iter().zip(copies) {
            if there {
                old[nth * row_bytes..][..row_bytes].copy_from_slice(row);
                (scores[nth], present[nth]) = (score, true);
            }
        }
    }

    /// Writes the new rows to the store if the table is write-through.
    fn write_below(
        &self,
        keys: &[u64],
        new: &[u8],
        scores: &[u64],
        present: &[bool],
    ) -> Result<()> {
        let Some(store) = self.inner.through() else {
            return Ok(());
        };
        let mut rows = store.rows();
        let news = new.chunks_exact(self.inner.row.bytes());
        for (nth, (&key, row)) in keys.iter().zip(news).enumerate() {
            if present[nth] {
                store.add(&mut rows, key, row, scores[nth])?;
            }
        }
        if let Some(mark) = self.mark {
            let mut flags = vec![false; self.keys.len()];
            for (group, &present) in self.groups.iter().zip(present) {
                group.iter().for_each(|&at| flags[at] = present);
            }
            mark.add_to(&mut rows, &flags)?;
        }
        store.write(&rows)
    }

    fn fail(&self, group: &[usize], error: &Error, found: &mut [bool], failures: &mut Failures) {
        for &at in group {
            found[at] = false;
            failures.push(at, self.keys[at], error.clone());
        }
    }
}
