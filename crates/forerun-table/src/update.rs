//! Updates: new rows from the present ones.
//!
//! ```text
//!   lock ──> read in memory ──> all there ─────────────────────────────────────> write, unlock
//!                └─ unlock ──> read the store ──> lock ──> read in memory ─────────┘
//!                                                   └─ changed since? read the store again
//! ```
//!
//! The writes of other keys go on while an update waits for the disk. A key's version shows whether
//! the store still has the row that was read.

use forerun_core::sync::time;
use forerun_db::Values;

use crate::clients::Mark;
use crate::disk_tier::Store;
use crate::find_scratch::Scratch;
use crate::host::Reservation;
use crate::inner::Inner;
use crate::key_locks::{KeyGuard, Version};
use crate::options::Update;
use crate::{Error, Failures, Result};

impl Inner {
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
            order.clear();
            order.extend(from..to);
            let update = self.updating((keys, rows), how, None, &mut order);
            update.run(found, &mut failures);
            self.after_write();
        }
        let updated = found.iter().filter(|&&found| found).count();
        self.counters.written_rows.add(updated);
        self.counters.failed_keys.add(failures.len());
        self.clocks.write.record(time::elapsed(start));
        failures.into_result(updated)
    }

    /// An update with a record in the same batch of the store: all keys are updated or none.
    pub(crate) fn update_marked(
        &self,
        keys: &[u64],
        rows: &[u8],
        how: Update,
        found: &mut [bool],
        mark: &Mark<'_>,
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        let update = self.updating((keys, rows), how, Some(mark), &mut order);
        let mut failures = Failures::default();
        update.run(found, &mut failures);
        self.after_write();
        let first = failures.iter().next().map(|(.., error)| error.clone());
        first.map_or_else(|| failures.into_result(0).map(drop), Err)
    }

    /// The update of the keys at the positions in `order`, which it sorts: equal keys are together,
    /// in batch order.
    fn updating<'u>(
        &'u self,
        (keys, rows): (&'u [u64], &'u [u8]),
        how: Update,
        mark: Option<&'u Mark<'u>>,
        order: &'u mut [usize],
    ) -> Updating<'u> {
        order.sort_by_key(|&at| keys[at]);
        let order: &[usize] = order;
        Updating {
            inner: self,
            keys,
            rows,
            how,
            mark,
            groups: order.chunk_by(|&a, &b| keys[a] == keys[b]).collect(),
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
        if let Err(error) = self.try_run(found, failures) {
            for group in &self.groups {
                self.fail(group, &error, found, failures);
            }
        }
    }

    /// An error means that no key was updated.
    fn try_run(&self, found: &mut [bool], failures: &mut Failures) -> Result<()> {
        let inner = self.inner;
        let keys: Vec<u64> = self
            .groups
            .iter()
            .map(|group| self.keys[group[0]])
            .collect();
        let begin = || -> Result<(KeyGuard<'_>, Reservation)> {
            let reservation = inner.reserve(keys.len())?;
            Ok((inner.lock_to_write(keys.iter().copied())?, reservation))
        };
        let (mut guard, mut reservation) = begin()?;
        for &at in self.groups.iter().copied().flatten() {
            found[at] = false;
        }
        let row_bytes = inner.row.bytes();
        let mut former = Former {
            rows: vec![0; keys.len() * row_bytes],
            scores: vec![0; keys.len()],
            present: vec![false; keys.len()],
        };
        self.read(&keys, &mut former);
        if let Some(store) = &inner.store
            && former.present.contains(&false)
        {
            // Other writers do not wait for this one's disk, and have its slots meanwhile.
            drop((guard, reservation));
            let below = Below::read(inner, store, &keys, former.absent());
            (guard, reservation) = begin()?;
            self.read(&keys, &mut former);
            self.take_from_store(store, &keys, &below, &mut former, found, failures);
        }
        if self.mark.is_some() && !failures.is_empty() {
            return Ok(());
        }
        let Former {
            rows: mut old,
            scores,
            present,
        } = former;
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
        Ok(())
    }

    /// Reads the rows in memory and their scores. The caller holds the keys' locks.
    fn read(&self, keys: &[u64], former: &mut Former) {
        let Former {
            rows,
            scores,
            present,
        } = former;
        let host = &self.inner.host;
        let mut scratch = Scratch::take();
        host.find(keys, rows, |at| at, present, &mut scratch.slots);
        scratch.keep();
        for (nth, &key) in keys.iter().enumerate().filter(|&(nth, _)| present[nth]) {
            // The caller holds the lock, so the slot keeps its key.
            scores[nth] = host.slot(key).map_or(0, |slot| host.score(slot));
        }
        self.read_copies(keys, rows, scores, present);
    }

    /// Takes the rows that are not in memory from what was read without locks, and reads those
    /// again that may have changed since. The caller holds the keys' locks.
    fn take_from_store(
        &self,
        store: &Store,
        keys: &[u64],
        below: &Below,
        former: &mut Former,
        found: &mut [bool],
        failures: &mut Failures,
    ) {
        let is_current = |&nth: &usize| below.is_current(self.inner, keys, nth);
        let (current, others): (Vec<_>, Vec<_>) = former.absent().into_iter().partition(is_current);
        let again = Below::read(self.inner, store, keys, others.clone());
        for (below, places) in [(below, current), (&again, others)] {
            for nth in places {
                match below.row(store, keys, nth) {
                    Ok(Some((row, score))) => {
                        former.rows[nth * row.len()..][..row.len()].copy_from_slice(row);
                        (former.scores[nth], former.present[nth]) = (score, true);
                    }
                    Ok(None) => {}
                    Err(error) => self.fail(self.groups[nth], &error, found, failures),
                }
            }
        }
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

/// The rows of some keys before an update.
struct Former {
    rows: Vec<u8>,
    scores: Vec<u64>,
    present: Vec<bool>,
}

impl Former {
    fn absent(&self) -> Vec<usize> {
        let places = 0..self.present.len();
        places.filter(|&nth| !self.present[nth]).collect()
    }
}

/// What the store has for some keys.
struct Below {
    /// Their places among all keys, ascending.
    places: Vec<usize>,
    /// From before the store was read.
    versions: Vec<Version>,
    values: Values,
    result: Result<()>,
}

impl Below {
    fn read(inner: &Inner, store: &Store, keys: &[u64], places: Vec<usize>) -> Below {
        let versions = places.iter().map(|&nth| inner.key_locks.version(keys[nth]));
        let versions = versions.collect();
        let asked: Vec<_> = places.iter().map(|&nth| keys[nth].to_be_bytes()).collect();
        let mut values = Values::new();
        let result = store.find(&asked, &mut values);
        Below {
            places,
            versions,
            values,
            result,
        }
    }

    /// Whether a key was read and has not changed since. The caller holds its lock.
    fn is_current(&self, inner: &Inner, keys: &[u64], nth: usize) -> bool {
        let place = self.places.binary_search(&nth);
        place.is_ok_and(|at| self.versions[at] == inner.key_locks.version(keys[nth]))
    }

    /// A key's row and score, if the store has it.
    fn row(&self, store: &Store, keys: &[u64], nth: usize) -> Result<Option<(&[u8], u64)>> {
        self.result.clone()?;
        match self.places.binary_search(&nth) {
            Ok(at) => store.format().row(&self.values, at, keys[nth]),
            Err(_) => Ok(None),
        }
    }
}
