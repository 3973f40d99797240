//! Lookups.
//!
//! ```text
//!   keys ──> device: found rows copied to their positions, misses compacted ──> hits
//!              └─ misses ──> host: slots of a batch, rows copied while later ones are fetched ──> hits ──admitted──> to the device
//!                              └─ misses ──> store: one multi_get ──> hits ──admitted──> to the host tier
//! ```
//!
//! Each tier answers what it has and marks it in `found`. The next tier gets the remaining
//! positions ([`Misses`]). Admitted rows are moved after the whole batch is answered. Rows go to
//! the caller's memory or to the device's (`find_to_device.rs`): the lower tiers hand their rows to
//! a [`Receiver`].

use crate::device_tier::{Destination, Device};
use crate::disk_tier::Store;
use crate::find_scratch::Scratch;
use crate::host::{Host, Slots};
use crate::inner::Inner;
use crate::interrupt::Interrupt;
use crate::misses::Misses;
use crate::move_queue::{PIECE_KEYS, PendingMoves};
use crate::options::Promotion;
use crate::promotion_batch::{Origin, PromotionBatch};
use crate::{Error, Failures, Result};
use forerun_core::sync::time;
use std::time::Instant;

/// Keys per batch for the host tier when a device tier is above it.
const HOST_BATCH: usize = 1024;

/// Keys per batch for the store, fewer if rows are long. A batch has more keys than the store reads
/// at a time, and the limit bounds the batch's memory.
const STORE_BATCH: usize = 4096;

/// Receives the rows that the tiers below the device find, by position in the batch.
pub(crate) trait Receiver {
    /// Takes the host tier's rows of some keys. `position` maps an index in `keys` to a position in
    /// the batch, and `found` reports which keys had a row. Returns their number.
    fn take_from(
        &mut self,
        host: &Host,
        keys: &[u64],
        position: impl FnMut(usize) -> usize,
        found: &mut [bool],
        slots: &mut Slots,
    ) -> usize;

    /// Takes one row.
    fn take(&mut self, position: usize, row: &[u8]);
}

/// The caller's memory.
struct InMemory<'r> {
    rows: &'r mut [u8],
    row_bytes: usize,
}

impl Receiver for InMemory<'_> {
    fn take_from(
        &mut self,
        host: &Host,
        keys: &[u64],
        position: impl FnMut(usize) -> usize,
        found: &mut [bool],
        slots: &mut Slots,
    ) -> usize {
        host.find(keys, self.rows, position, found, slots)
    }

    fn take(&mut self, position: usize, row: &[u8]) {
        self.rows[position * self.row_bytes..][..row.len()].copy_from_slice(row);
    }
}

/// A batch while it goes through the tiers.
pub(crate) struct Lookup<'l> {
    inner: &'l Inner,
    keys: &'l [u64],
    /// The device tier, which is searched first.
    device: Option<&'l Device>,
    scratch: Box<Scratch>,
    hits: Hits,
    failures: Failures,
    moves: PendingMoves,
    start: Instant,
    is_interrupted: bool,
}

impl Inner {
    pub(crate) fn find(&self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        self.check_open()?;
        self.check_rows(keys, rows.len())?;
        self.check_found(keys, found)?;
        let mut lookup = Lookup::begin(self, keys);
        if let Some(device) = self.device() {
            let to = &mut Destination::Memory(&mut *rows);
            if !lookup.search_device(device, to, found) {
                // The device tier failed just now. Its rows are in the tiers search.
                found.fill(false);
            }
        }
        let row_bytes = self.row.bytes();
        let mut rows = InMemory { rows, row_bytes };
        lookup.search_host(&mut rows, found);
        lookup.search_store(&mut rows, found);
        lookup.end()
    }
}

impl<'l> Lookup<'l> {
    pub(crate) fn begin(inner: &'l Inner, keys: &'l [u64]) -> Lookup<'l> {
        Lookup {
            inner,
            keys,
            device: None,
            start: time::now(),
            scratch: Scratch::take(),
            hits: Hits::default(),
            failures: Failures::default(),
            moves: PendingMoves::default(),
            is_interrupted: false,
        }
    }

    /// Searches the device tier, which comes first. Returns false if the tier is lost.
    pub(crate) fn search_device(
        &mut self,
        device: &'l Device,
        rows: &mut Destination<'_>,
        found: &mut [bool],
    ) -> bool {
        let start = time::now();
        self.device = Some(device);
        let hits = device.find(self.keys, rows, found);
        self.inner.clocks.device.record(time::elapsed(start));
        self.hits.device = hits.unwrap_or(0);
        if self.hits.device > 0 && device.wants_touches() {
            let used = self.keys.iter().zip(&*found).filter(|(_, found)| **found);
            let used = used.map(|(&key, _)| key).take(PIECE_KEYS);
            self.moves.touched = used.collect();
        }
        hits.is_some()
    }

    /// Whether every key is answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.hits.all() == self.keys.len()
    }

    /// Searches the host tier for keys that the device has not answered.
    pub(crate) fn search_host(&mut self, rows: &mut impl Receiver, found: &mut [bool]) {
        let start = time::now();
        self.hits.host = match self.device {
            Some(device) => self.search_host_for_misses(device, rows, found),
            None => self.search_host_only(rows, found),
        };
        self.inner.clocks.host.record(time::elapsed(start));
    }

    fn search_host_only(&mut self, rows: &mut impl Receiver, found: &mut [bool]) -> usize {
        let (host, slots) = (&self.inner.host, &mut self.scratch.slots);
        let chunk = Interrupt::check_interval(self.inner.row.bytes());
        if self.keys.len() <= chunk {
            return rows.take_from(host, self.keys, |at| at, found, slots);
        }
        let mut hits = 0;
        for (i, keys) in self.keys.chunks(chunk).enumerate() {
            let first = i * chunk;
            if self.inner.interrupt.check().is_err() {
                self.is_interrupted = true;
                found[first..].fill(false);
                break;
            }
            let found = &mut found[first..first + keys.len()];
            hits += rows.take_from(host, keys, |at| first + at, found, slots);
        }
        hits
    }

    fn search_host_for_misses(
        &mut self,
        device: &Device,
        rows: &mut impl Receiver,
        found: &mut [bool],
    ) -> usize {
        let (scratch, host) = (&mut *self.scratch, &self.inner.host);
        let (misses, flags) = (&mut scratch.misses, &mut scratch.flags);
        let promotes = self.inner.promotes();
        let mut hits = 0;
        misses.begin();
        while misses.fill(self.keys, found, HOST_BATCH) {
            if self.inner.interrupt.check().is_err() {
                self.is_interrupted = true;
                break;
            }
            flags.clear();
            flags.resize(misses.keys.len(), false);
            let position = |i: usize| misses.positions[i];
            hits += rows.take_from(host, &misses.keys, position, flags, &mut scratch.slots);
            if promotes {
                device.admission_filter().prefetch(&misses.keys);
            }
            for (i, _) in flags.iter().enumerate().filter(|(_, found)| **found) {
                found[misses.positions[i]] = true;
                let fits = self.moves.to_device.len() < PIECE_KEYS;
                if promotes && device.admission_filter().admits(misses.keys[i]).0 && fits {
                    self.moves.to_device.push(misses.keys[i]);
                }
            }
        }
        hits
    }

    /// Searches the store for keys that no tier in memory has answered.
    pub(crate) fn search_store(&mut self, rows: &mut impl Receiver, found: &mut [bool]) {
        let is_done = self.is_interrupted || self.is_answered();
        let Some(store) = self.inner.store.as_ref().filter(|_| !is_done) else {
            return;
        };
        let mut search = StoreSearch {
            inner: self.inner,
            store,
            scratch: &mut self.scratch,
            failures: &mut self.failures,
            promotions: self
                .inner
                .promotes()
                .then(|| PromotionBatch::of(Origin::Found)),
            is_interrupted: false,
        };
        let hits = search.find(self.keys, rows, found);
        self.moves.promotions = search.promotions;
        self.is_interrupted = search.is_interrupted;
        self.hits.host += hits.host;
        self.hits.store = hits.store;
    }

    /// Returns the answer and promotes the rows that were found.
    pub(crate) fn end(self) -> Result<usize> {
        self.scratch.keep();
        self.inner.clocks.find.record(time::elapsed(self.start));
        self.inner
            .count_found(self.keys.len(), self.hits, self.failures.len());
        self.inner.queue_moves(self.moves);
        if self.is_interrupted {
            return Err(Error::Interrupted);
        }
        self.failures.into_result(self.hits.all())
    }

    /// Ends a batch whose answers do not count.
    #[cfg(feature = "gpu")]
    pub(crate) fn fail(self) {
        self.scratch.keep();
        let keys = self.keys.len();
        self.inner.count_found(keys, Hits::default(), keys);
    }
}

impl Inner {
    fn count_found(&self, keys: usize, hits: Hits, failed: usize) {
        self.counters.find_batches.add(1);
        self.counters.find_keys.add(keys);
        self.counters.device_hits.add(hits.device);
        self.counters.host_hits.add(hits.host);
        self.counters.store_hits.add(hits.store);
        self.counters.failed_keys.add(failed);
        let answered = hits.all() + failed;
        self.counters.misses.add(keys.saturating_sub(answered));
    }

    /// Whether lookups promote rows.
    fn promotes(&self) -> bool {
        self.policies.promotion == Promotion::OnFind
    }

    pub(crate) fn contains(&self, keys: &[u64], found: &mut [bool]) -> Result<usize> {
        self.check_open()?;
        self.check_found(keys, found)?;
        let mut scratch = Scratch::take();
        let chunk = Interrupt::check_interval(1);
        for (keys, found) in keys.chunks(chunk).zip(found.chunks_mut(chunk)) {
            self.interrupt.check()?;
            self.host.contains(keys, &mut scratch.slots, found);
        }
        let mut failures = Failures::default();
        if let Some(store) = &self.store {
            // Without a store, the host tier has all rows of the device tier.
            if let Some(device) = self.device() {
                let misses = &mut scratch.misses;
                misses.begin();
                while misses.fill(keys, found, STORE_BATCH)
                    && let Some(flags) = device.contains(&misses.keys)
                {
                    for (&at, flag) in misses.positions.iter().zip(flags) {
                        found[at] = flag;
                    }
                }
            }
            let mut search = StoreSearch {
                inner: self,
                store,
                scratch: &mut scratch,
                failures: &mut failures,
                promotions: None,
                is_interrupted: false,
            };
            search.contains(keys, found);
            if search.is_interrupted {
                return Err(Error::Interrupted);
            }
        }
        scratch.keep();
        failures.into_result(found.iter().filter(|&&found| found).count())
    }
}

/// Number of rows that each tier found.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    device: usize,
    host: usize,
    store: usize,
}

impl Hits {
    fn all(self) -> usize {
        self.device + self.host + self.store
    }
}

/// A lookup in the store, for keys that the tiers above do not have.
struct StoreSearch<'b> {
    inner: &'b Inner,
    store: &'b Store,
    scratch: &'b mut Scratch,
    failures: &'b mut Failures,
    promotions: Option<PromotionBatch>,
    is_interrupted: bool,
}

impl StoreSearch<'_> {
    /// Finds the rows of keys that were not found above. Rows that have since been promoted are
    /// taken from the host tier: see [`each_chunk`](StoreSearch::each_chunk).
    fn find(&mut self, keys: &[u64], rows: &mut impl Receiver, found: &mut [bool]) -> Hits {
        let start = time::now();
        let mut hits = Hits::default();
        self.each_chunk(keys, found, |search, misses, found| {
            if search.promotions.is_some() {
                search.inner.admission_filter.prefetch(&misses.keys);
            }
            let scratch = &mut *search.scratch;
            let position = |i: usize| misses.positions[i];
            let (flags, slots) = (&mut scratch.flags, &mut scratch.slots);
            hits.host += rows.take_from(&search.inner.host, &misses.keys, position, flags, slots);
            for (i, &at) in misses.positions.iter().enumerate() {
                if search.scratch.flags[i] {
                    found[at] = true;
                    continue;
                }
                let format = search.store.format();
                match format.row(&search.scratch.values, i, keys[at]) {
                    Ok(Some((row, score))) => {
                        rows.take(at, row);
                        found[at] = true;
                        hits.store += 1;
                        if let Some(promotions) = &mut search.promotions {
                            let (admitted, uses) = search.inner.admission_filter.admits(keys[at]);
                            if admitted {
                                let version = search.scratch.versions[i];
                                promotions.push(keys[at], version, row, score, uses);
                            }
                        }
                    }
                    Ok(None) => {}
                    Err(error) => search.failures.push(at, keys[at], error),
                }
            }
            if let Some(promotions) = &mut search.promotions {
                search.inner.queue_promotions(promotions);
            }
        });
        self.inner.clocks.store.record(time::elapsed(start));
        hits
    }

    fn contains(&mut self, keys: &[u64], found: &mut [bool]) {
        self.each_chunk(keys, found, |search, misses, found| {
            let scratch = &mut *search.scratch;
            let (flags, slots) = (&mut scratch.flags, &mut scratch.slots);
            search.inner.host.contains(&misses.keys, slots, flags);
            for (i, &at) in misses.positions.iter().enumerate() {
                if scratch.flags[i] {
                    found[at] = true;
                    continue;
                }
                match scratch.values.get(i) {
                    Ok(value) => found[at] = value.is_some(),
                    Err(error) => {
                        let error = error.clone().into();
                        search.failures.push(at, keys[at], error);
                    }
                }
            }
        });
    }

    /// Looks up the missing keys in chunks of bounded size and calls `answered` for each chunk. The
    /// answers are in `scratch.values`, and `scratch.flags` has one position per key.
    ///
    /// `answered` must search the host tier again for all of these keys, and a row found there
    /// takes precedence. Otherwise two lookups could see a key's rows in the wrong order: a row may
    /// have been promoted after this lookup missed it, and a writer may have changed the store but
    /// not yet the host tier. This lookup would then return the new row (or none), and the next
    /// lookup the old row in the host tier. Searching again prevents that. A lookup that sees the
    /// writer's change in the store also sees earlier promotions, because they happened under the
    /// lock that the writer holds, and nothing is promoted before the writer is done.
    fn each_chunk(
        &mut self,
        keys: &[u64],
        found: &mut [bool],
        mut answered: impl FnMut(&mut Self, &Misses, &mut [bool]),
    ) {
        let mut misses = std::mem::take(&mut self.scratch.misses);
        misses.begin();
        let max = STORE_BATCH.min(self.inner.host.at_once());
        while misses.fill(keys, found, max) {
            if self.inner.interrupt.check().is_err() {
                self.is_interrupted = true;
                break;
            }
            let scratch = &mut *self.scratch;
            scratch.versions.clear();
            if self.promotions.is_some() {
                // Versions are recorded before the store is read: see `KeyLocks`.
                let versions = misses.keys.iter();
                let versions = versions.map(|&key| self.inner.key_locks.version(key));
                scratch.versions.extend(versions);
            }
            scratch.flags.clear();
            scratch.flags.resize(misses.keys.len(), false);
            scratch.keys.clear();
            let keys_bytes = misses.keys.iter().map(|key| key.to_be_bytes());
            scratch.keys.extend(keys_bytes);
            match self.store.find(&scratch.keys, &mut scratch.values) {
                Ok(()) => answered(self, &misses, found),
                Err(error) => self.fail(&misses, &error),
            }
        }
        self.scratch.misses = misses;
    }

    fn fail(&mut self, misses: &Misses, error: &Error) {
        for (&at, &key) in misses.positions.iter().zip(&misses.keys) {
            self.failures.push(at, key, error.clone());
        }
    }
}
