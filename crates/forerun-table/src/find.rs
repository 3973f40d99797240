//! Lookups.
//!
//! ```text
//!   keys ──> host: slots of a batch, rows copied ahead of their use ──> hits
//!              └─ open: positions of the misses, compacted ──> store: one multi_get ──> hits
//!                                                                        └─ admitted ──> a move up, when all is answered
//! ```
//!
//! Each tier answers what it has and leaves the positions of the rest, so a tier is one more link of the chain: a device's
//! stands before the host's, is given the same keys, and leaves the compacted list of those it missed.

use crate::host::Slots;
use crate::inner::Inner;
use crate::moves::Rising;
use crate::options::{Admission, Moves, Promotion};
use crate::store::{Store, StoreKey};
use crate::stripes::Version;
use crate::{Error, Failures, Result};
use forerun_db::Values;
use std::cell::Cell;
use std::time::Instant;

/// Keys that go to the store together: more than its reads have under way at once, and a bound on the memory of a batch.
const STORE_BATCH: usize = 4096;

/// Memory that lookups use again. A thread keeps one.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) slots: Slots,
    open: Vec<u32>,
    keys: Vec<StoreKey>,
    versions: Vec<Version>,
    pub(crate) values: Values,
}

/// Bytes of answers above which a thread does not keep the memory.
const KEPT_BYTES: usize = 16 << 20;

thread_local!(static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) });

impl Scratch {
    /// The thread's, or a new one where that is in use: by a caller further up the stack.
    pub(crate) fn take() -> Box<Scratch> {
        SCRATCH.take().unwrap_or_default()
    }

    pub(crate) fn keep(self: Box<Scratch>) {
        if self.values.capacity_bytes() <= KEPT_BYTES {
            SCRATCH.set(Some(self));
        }
    }
}

impl Inner {
    pub(crate) fn find(&self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        self.check_open()?;
        self.check_rows(keys, rows)?;
        self.check_found(keys, found)?;
        let start = Instant::now();
        let mut scratch = Scratch::take();
        let host_hits = self.host.find(keys, rows, found, &mut scratch.slots);
        let mut took = start.elapsed();
        self.clocks.host.count(took);
        let (mut store_hits, mut failures) = (0, Failures::default());
        if let Some(store) = &self.store
            && host_hits < keys.len()
        {
            let mut below = Below {
                inner: self,
                store,
                scratch: &mut scratch,
                failures: &mut failures,
                rising: self.rising(),
            };
            store_hits = below.find(keys, rows, found);
            let rising = below.rising;
            took = start.elapsed();
            if let Some(rising) = rising.filter(|rising| !rising.is_empty()) {
                match self.policies.moves {
                    Moves::Background => self.queue_rising(rising),
                    Moves::Caller => self.rise(rising),
                }
            }
        }
        scratch.keep();
        self.clocks.find.count(took);
        self.count_found(keys.len(), host_hits, store_hits, failures.len());
        failures.into_result(host_hits + store_hits)
    }

    fn count_found(&self, keys: usize, host_hits: usize, store_hits: usize, failed: usize) {
        self.counters.find_batches.add(1);
        self.counters.find_keys.add(keys);
        self.counters.host_hits.add(host_hits);
        self.counters.store_hits.add(store_hits);
        self.counters.failed_keys.add(failed);
        self.counters
            .misses
            .add(keys - host_hits - store_hits - failed);
    }

    /// What a lookup collects to bring up, if it does.
    fn rising(&self) -> Option<Rising> {
        (self.policies.promotion == Promotion::OnFind).then(Rising::default)
    }

    /// Whether a row of the store that was looked up is to come up, and how often it was looked up before.
    fn admits(&self, key: u64) -> (bool, u16) {
        let before = self.ghosts.as_ref().map_or(0, |ghosts| ghosts.touch(key));
        let admitted = self.policies.admission != Admission::SecondTouch || before > 0;
        (admitted, before)
    }

    pub(crate) fn contains(&self, keys: &[u64], found: &mut [bool]) -> Result<usize> {
        self.check_open()?;
        self.check_found(keys, found)?;
        let mut scratch = Scratch::take();
        self.host.contains(keys, &mut scratch.slots, found);
        let mut failures = Failures::default();
        if let Some(store) = &self.store {
            let mut below = Below {
                inner: self,
                store,
                scratch: &mut scratch,
                failures: &mut failures,
                rising: None,
            };
            below.contains(keys, found);
        }
        scratch.keep();
        failures.into_result(found.iter().filter(|&&found| found).count())
    }
}

/// A lookup in the store of what the host tier does not have.
struct Below<'b> {
    inner: &'b Inner,
    store: &'b Store,
    scratch: &'b mut Scratch,
    failures: &'b mut Failures,
    rising: Option<Rising>,
}

impl Below<'_> {
    /// Finds the rows of the keys that were not found above.
    fn find(&mut self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> usize {
        let start = Instant::now();
        let row_bytes = self.inner.row.bytes();
        let mut hits = 0;
        self.each_open(keys, found, |below, open, found| {
            if let Some(ghosts) = below
                .inner
                .ghosts
                .as_ref()
                .filter(|_| below.rising.is_some())
            {
                open.iter()
                    .for_each(|&at| ghosts.prefetch(keys[at as usize]));
            }
            for (nth, &at) in open.iter().enumerate() {
                let at = at as usize;
                let format = below.store.format();
                match format.row(&below.scratch.values, nth, keys[at]) {
                    Ok(Some((row, score))) => {
                        rows[at * row_bytes..][..row_bytes].copy_from_slice(row);
                        found[at] = true;
                        hits += 1;
                        if let Some(rising) = &mut below.rising {
                            let (admitted, before) = below.inner.admits(keys[at]);
                            if admitted {
                                let version = below.scratch.versions[nth];
                                rising.push(keys[at], version, row, score, before);
                            }
                        }
                    }
                    Ok(None) => {}
                    Err(error) => below.failures.push(at, keys[at], error),
                }
            }
        });
        self.inner.clocks.store.count(start.elapsed());
        hits
    }

    fn contains(&mut self, keys: &[u64], found: &mut [bool]) {
        self.each_open(keys, found, |below, open, found| {
            for (nth, &at) in open.iter().enumerate() {
                let at = at as usize;
                match below.scratch.values.get(nth) {
                    Ok(value) => found[at] = value.is_some(),
                    Err(error) => {
                        let error = error.clone().into();
                        below.failures.push(at, keys[at], error);
                    }
                }
            }
        });
    }

    /// Looks up what is not found, in stretches of a bounded size, and calls `answered` with the positions of each; the
    /// answers are in `scratch.values`.
    fn each_open(
        &mut self,
        keys: &[u64],
        found: &mut [bool],
        mut answered: impl FnMut(&mut Self, &[u32], &mut [bool]),
    ) {
        let mut next = 0;
        let mut open = std::mem::take(&mut self.scratch.open);
        loop {
            open.clear();
            while next < keys.len() && open.len() < STORE_BATCH {
                if !found[next] {
                    open.push(next as u32);
                }
                next += 1;
            }
            if open.is_empty() {
                break;
            }
            let scratch = &mut *self.scratch;
            let asked = open.iter().map(|&at| keys[at as usize]);
            scratch.versions.clear();
            if self.rising.is_some() {
                // Before the store is asked: see `Stripes`.
                let versions = asked.clone().map(|key| self.inner.stripes.version(key));
                scratch.versions.extend(versions);
            }
            scratch.keys.clear();
            scratch.keys.extend(asked.map(u64::to_be_bytes));
            match self.store.find(&scratch.keys, &mut scratch.values) {
                Ok(()) => answered(self, &open, found),
                Err(error) => self.fail(keys, &open, &error),
            }
        }
        self.scratch.open = open;
    }

    fn fail(&mut self, keys: &[u64], open: &[u32], error: &Error) {
        for &at in open {
            let at = at as usize;
            self.failures.push(at, keys[at], error.clone());
        }
    }
}
