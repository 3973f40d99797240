//! The device tier: copies of rows in a GPU's memory.
//!
//! ```text
//!   find ──read──> GpuTable <──write── promoted rows, erased rows
//!                     └─ fails once ──> unused from then on: the tiers below have all of its rows
//! ```
//!
//! **Every row here is also in a tier below with the same bytes**: in the host tier or in the
//! store. So evicting a row loses nothing, and neither does a device that fails. A write removes
//! the copies of its keys here before it changes a lower tier, and promotes them again afterwards
//! (`device_moves.rs`). Updating them in place would be less work but wrong: a lookup that missed a
//! row here just before it was promoted would return the new row from below, and the next lookup
//! the old row from here.
//!
//! One batch at a time writes here: `changes` ensures it. On a GPU, lookups go on meanwhile, and
//! wait only for each other, because they share staging memory. A table on the CPU accepts no
//! lookups during a write.

use crate::admission::AdmissionFilter;
use crate::evict_strategy::EvictStrategy;
use crate::key_locks::Version;
use crate::options::{DeviceChoice, Policies};
use crate::promotion_batch::Origin;
use crate::ring_pool::RingPool;
use crate::stats::DeviceStats;
use crate::{Error, Result};
use forerun_core::sync::{OnceLock, RwLock, RwLockReadGuard};
pub(crate) use forerun_gpu::gather::Destination;
use forerun_gpu::table::{
    Answers, Batch, Candidates, Entries, GpuTable, Operation, Status, TableError, TableOptions,
    Width,
};
use forerun_gpu::{Gpu, GpuError};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Up to this many rows, the tier uses narrow buckets; wide ones would make it several times as
/// large as requested.
const NARROW_ROWS: usize = 128;

/// One in this many lookup batches updates the scores on the device. Scores need not be exact, and
/// an update takes the turn of a writer; on the CPU it makes lookups wait.
const TOUCH_EVERY: u64 = 8;

/// Rows on a device.
#[derive(Debug)]
pub(crate) struct Device {
    table: RwLock<GpuTable>,
    /// Held by the thread that writes, and shared by those that rely on rows staying where they
    /// are. It is locked before the table.
    changes: RwLock<()>,
    strategy: EvictStrategy,
    row_bytes: usize,
    capacity: usize,
    /// The device's name.
    name: String,
    gpu: Option<Gpu>,
    /// The staging memory through which rows of the lower tiers reach the device.
    pub(crate) ring_pool: RingPool,
    admission_filter: AdmissionFilter,
    rows: AtomicUsize,
    /// Rows inserted so far. The epochs of [`EvictStrategy::Lfu`] are derived from it.
    taken: AtomicU64,
    lookups: AtomicU64,
    /// Why the tier is disabled.
    failure: OnceLock<String>,
}

/// Rows to be inserted.
#[derive(Debug, Default)]
pub(crate) struct InsertBatch {
    keys: Vec<u64>,
    rows: Vec<u8>,
    scores: Vec<u64>,
}

/// The result of an insertion, with the rows that it evicted.
#[derive(Debug, Default)]
pub(crate) struct InsertResult {
    /// Which rows are on the device now.
    pub(crate) present: Vec<bool>,
    /// How many of them were not there before.
    pub(crate) inserted_rows: usize,
    /// Evicted rows, with the versions of their keys at that time.
    pub(crate) evicted: Entries,
    pub(crate) versions: Vec<Version>,
}

impl InsertBatch {
    pub(crate) fn push(&mut self, key: u64, row: &[u8], score: u64) {
        self.keys.push(key);
        self.rows.extend_from_slice(row);
        self.scores.push(score);
    }
}

fn options(capacity: usize, row_bytes: usize, strategy: EvictStrategy) -> TableOptions {
    let mut options = TableOptions::new(capacity as u64, row_bytes as u64);
    if capacity <= NARROW_ROWS {
        (options.width, options.candidates) = (Width::W16, Candidates::One);
    }
    options.evict_strategy = strategy.device_strategy();
    options
}

fn name_of(gpu: &Gpu) -> String {
    format!("GPU {}, {}", gpu.info().ordinal, gpu.info().name)
}

impl Device {
    pub(crate) fn open(
        choice: DeviceChoice,
        capacity: usize,
        row_bytes: usize,
        policies: &Policies,
    ) -> Result<Device> {
        let options = options(capacity, row_bytes, policies.evict_strategy);
        let table = match choice {
            DeviceChoice::Any => GpuTable::open(options),
            DeviceChoice::Cpu => GpuTable::on_cpu(options),
            DeviceChoice::Gpu(ordinal) => match Gpu::open(ordinal) {
                Ok(gpu) => GpuTable::on_gpu(&gpu, options),
                Err(reason) => {
                    let rows = capacity;
                    return Err(Error::NoDevice { rows, reason });
                }
            },
        };
        Device::new(table?, policies)
    }

    pub(crate) fn new(table: GpuTable, policies: &Policies) -> Result<Device> {
        let capacity = table.capacity() as usize;
        let row_bytes = table.options().row_bytes as usize;
        let gpu = table.gpu().cloned();
        Ok(Device {
            strategy: policies.evict_strategy,
            row_bytes,
            capacity,
            name: match &gpu {
                Some(gpu) => name_of(gpu),
                None => "CPU".to_owned(),
            },
            ring_pool: RingPool::new(gpu.clone(), row_bytes),
            gpu,
            admission_filter: AdmissionFilter::new(policies, capacity)?,
            rows: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            failure: OnceLock::new(),
            table: RwLock::new(table),
            changes: RwLock::new(()),
        })
    }

    /// Why the tier is disabled, if it is.
    pub(crate) fn failure(&self) -> Option<&str> {
        if self.table.is_poisoned() || self.changes.is_poisoned() {
            return Some("a thread panicked while writing to it");
        }
        self.failure.get().map(String::as_str)
    }

    /// Disables the tier. Its rows may be outdated from here on, so it is never enabled again.
    pub(crate) fn lose(&self, error: &TableError) {
        if self.failure.set(error.to_string()).is_ok() {
            tracing::warn!(%error, device = self.name, "the device tier failed and is disabled");
        }
    }

    /// The error of a call that needs the tier.
    pub(crate) fn lost(&self) -> Error {
        Error::Device {
            reason: self.failure().unwrap_or_default().to_owned(),
        }
    }

    /// Turns a delivery's failure into an error. Any failure disables the tier, except a lack of
    /// memory, which may be temporary.
    pub(crate) fn delivery_failed(&self, error: GpuError) -> Error {
        let passes = matches!(error, GpuError::OutOfMemory { .. });
        let error = TableError::from(error);
        if !passes {
            self.lose(&error);
        }
        error.into()
    }

    /// Decides which rows lookups promote to the tier.
    pub(crate) fn admission_filter(&self) -> &AdmissionFilter {
        &self.admission_filter
    }

    /// The GPU that holds the tier, if one does.
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// Checks that rows can be delivered from here to the destination.
    pub(crate) fn expect(&self, to: &Destination<'_>) -> Result<()> {
        let fits = match (&self.gpu, to.gpu()) {
            (Some(here), Some(there)) => here.is(there),
            (here, there) => here.is_none() && there.is_none(),
        };
        if fits {
            return Ok(());
        }
        Err(Error::Destination {
            tier: match &self.gpu {
                Some(_) => self.name.clone(),
                None => "the CPU".to_owned(),
            },
            given: match to.gpu() {
                Some(gpu) => format!("the memory of {}", name_of(gpu)),
                None => "ordinary memory".to_owned(),
            },
        })
    }

    /// Reads. Returns `None` if the tier is lost, now or earlier.
    fn read<T>(&self, read: impl FnOnce(&GpuTable) -> Result<T, TableError>) -> Option<T> {
        let table = self.table.read().ok()?;
        if self.failure().is_some() {
            return None;
        }
        read(&table).inspect_err(|error| self.lose(error)).ok()
    }

    /// Applies an operation to keys. `then` gets the entries that the table did not keep and each
    /// key's status, while no other thread can write here. Returns `None` if the tier is lost, now
    /// or earlier.
    fn apply<T>(
        &self,
        operation: Operation,
        batch: &Batch<'_>,
        then: impl FnOnce(Entries, &[Status]) -> T,
    ) -> Option<T> {
        let mut status = vec![Status::Absent; batch.keys.len()];
        let answers = Answers {
            status: Some(&mut status),
            ..Answers::default()
        };
        let _changing = self.changes.write().ok()?;
        let shared = self.table.read().ok()?;
        if self.failure().is_some() {
            return None;
        }
        let rest = if shared.writes_beside_lookups() {
            shared.apply_beside_lookups(operation, batch, answers)
        } else {
            drop(shared);
            let mut table = self.table.write().ok()?;
            table.apply(operation, batch, answers)
        };
        let rest = rest.inspect_err(|error| self.lose(error)).ok()?;
        Some(then(rest, &status))
    }

    /// Copies the rows that are here to their positions, marks them in `found`, and returns their
    /// number. The device compacts the misses, so little is transferred back for them.
    pub(crate) fn find(
        &self,
        keys: &[u64],
        rows: &mut Destination<'_>,
        found: &mut [bool],
    ) -> Option<usize> {
        let missed = self.read(|table| match rows {
            Destination::Memory(rows) => table.find_missed(keys, rows),
            Destination::Device(rows) => table.find_missed_on_device(keys, rows),
        })?;
        found.fill(true);
        for &place in &missed.positions {
            found[place as usize] = false;
        }
        Some(keys.len() - missed.len())
    }

    /// Copies the rows that are here to their positions, together with their scores, and returns
    /// which keys had one.
    pub(crate) fn find_scored(
        &self,
        keys: &[u64],
        rows: &mut [u8],
        scores: &mut [u64],
    ) -> Option<Vec<bool>> {
        let mut status = vec![Status::Absent; keys.len()];
        let answers = Answers {
            rows: Some(rows),
            scores: self.strategy.is_custom().then_some(scores),
            status: Some(&mut status),
            ..Answers::default()
        };
        self.read(|table| table.lookup(Default::default(), keys, answers))?;
        Some(status.into_iter().map(Status::is_present).collect())
    }

    /// Which keys have a row here.
    pub(crate) fn contains(&self, keys: &[u64]) -> Option<Vec<bool>> {
        if self.len() == 0 {
            // This is exact for the holder of a key's lock, because the row was inserted and
            // counted under that lock.
            return Some(vec![false; keys.len()]);
        }
        self.read(|table| table.contains(keys))
    }

    /// Inserts rows. Where buckets are full, each replaces a row with a lower score. Calls
    /// `version` for the keys of evicted rows while no other thread can write here.
    pub(crate) fn insert_and_evict(
        &self,
        rows: &InsertBatch,
        origin: Origin,
        version: impl Fn(u64) -> Version,
    ) -> Option<InsertResult> {
        // Relaxed, here and below: the counts order nothing.
        self.taken
            .fetch_add(rows.keys.len() as u64, Ordering::Relaxed);
        // An explicitly requested row outranks the present ones until it is used or the epoch ends.
        let ahead = u64::from(origin == Origin::Prefetched);
        let batch = Batch {
            scores: self.strategy.sends_scores().then_some(&rows.scores),
            epoch: self.epoch() + ahead,
            ..Batch::rows(&rows.keys, &rows.rows)
        };
        self.apply(Operation::InsertAndEvict, &batch, |evicted, status| {
            let mut result = InsertResult::default();
            for (nth, row) in evicted.rows.chunks_exact(self.row_bytes).enumerate() {
                let key = evicted.keys[nth];
                // A new row that found no slot is returned as well.
                if rows.keys[evicted.positions[nth] as usize] != key {
                    result.evicted.keys.push(key);
                    result.evicted.scores.push(evicted.scores[nth]);
                    result.evicted.rows.extend_from_slice(row);
                    result.versions.push(version(key));
                }
            }
            let count = |which| status.iter().filter(|&&status| status == which).count();
            let inserted = count(Status::Inserted);
            result.inserted_rows = inserted + count(Status::Evicted);
            self.rows.fetch_add(inserted, Ordering::Relaxed);
            result.present = status.iter().map(|status| status.is_present()).collect();
            result
        })
    }

    /// Removes rows. The caller holds the locks of their keys.
    pub(crate) fn erase(&self, keys: &[u64]) {
        self.apply(Operation::Erase, &Batch::of(keys), |_, status| {
            let gone = status.iter().filter(|&&status| status == Status::Found);
            self.rows.fetch_sub(gone.count(), Ordering::Relaxed);
        });
    }

    /// Whether this batch of lookups should update the scores.
    pub(crate) fn wants_touches(&self) -> bool {
        let nth = self.lookups.fetch_add(1, Ordering::Relaxed);
        self.strategy.follows_use() && nth.is_multiple_of(TOUCH_EVERY)
    }

    /// Updates the scores of rows that were used.
    pub(crate) fn touch(&self, keys: &[u64]) {
        let batch = Batch {
            epoch: self.epoch(),
            ..Batch::of(keys)
        };
        self.apply(Operation::AssignScores, &batch, |_, _| ());
    }

    /// How often the whole tier has been replaced, for [`EvictStrategy::Lfu`].
    fn epoch(&self) -> u64 {
        let epoch = self.taken.load(Ordering::Relaxed) / self.capacity as u64;
        // Device scores have 32 bits for the epoch, and one epoch is ahead.
        epoch.min(u64::from(u32::MAX) - 1)
    }

    /// How often an evicted row had been used, derived from its score.
    pub(crate) fn uses(&self, score: u64) -> u16 {
        self.strategy.uses_of_device_score(score)
    }

    /// Looks up the addresses of rows.
    pub(crate) fn find_ptr(&self, keys: &[u64]) -> Result<Pointers<'_>> {
        let unchanged = self.changes.read().map_err(|_| self.lost())?;
        let table = self.table.read().map_err(|_| self.lost())?;
        if self.failure().is_some() {
            return Err(self.lost());
        }
        let addresses = table.find_ptr(keys).inspect_err(|error| self.lose(error))?;
        Ok(Pointers {
            addresses,
            _unchanged: unchanged,
        })
    }

    /// Number of rows here.
    pub(crate) fn len(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        DeviceStats {
            name: self.name.clone(),
            is_gpu: self.gpu.is_some(),
            rows: self.len() as u64,
            capacity_rows: self.capacity as u64,
            failure: self.failure().map(str::to_owned),
        }
    }
}

/// Addresses of rows in device memory, by position; 0 for keys without a row there. Rows neither
/// move nor change while this value exists.
///
/// Calls that change rows on the device wait for it; lookups may make such calls, too. Drop it
/// before the same thread calls the table again.
#[derive(Debug)]
pub struct Pointers<'t> {
    addresses: Vec<u64>,
    _unchanged: RwLockReadGuard<'t, ()>,
}

impl Deref for Pointers<'_> {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::broken_device::{policies, tier_on};
    use forerun_gpu::table::params::TableOp;
    use forerun_gpu::table::{Backend, BufferKind, HostBatch, TableLaunch};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Condvar, Mutex};
    use std::thread;
    use std::time::Duration;

    /// A device on which a batch that writes takes until a lookup has run.
    #[derive(Default)]
    struct SlowWriter {
        writes: AtomicBool,
        has_looked_up: Mutex<bool>,
        changed: Condvar,
    }

    impl Backend for SlowWriter {
        fn allocate(&self, _: u64, _: BufferKind) -> Result<u64, TableError> {
            Ok(4096)
        }
        fn free(&self, _: u64) {}
        fn write(&self, _: u64, _: &[u8]) -> Result<(), TableError> {
            Ok(())
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), TableError> {
            Ok(())
        }
        fn launch(&self, _: TableLaunch, _: &TableOp) -> Result<(), TableError> {
            Ok(())
        }
        fn run(
            &self,
            _: TableLaunch,
            op: &TableOp,
            batch: HostBatch<'_>,
        ) -> Result<(), TableError> {
            let mut has_looked_up = self.has_looked_up.lock().expect("no test panics here");
            if op.actions == 0 {
                *has_looked_up = true;
                self.changed.notify_all();
            } else {
                self.writes.store(true, Ordering::Relaxed);
                let limit = Duration::from_secs(10);
                let waited = self
                    .changed
                    .wait_timeout_while(has_looked_up, limit, |has| !*has);
                if waited.expect("no test panics here").1.timed_out() {
                    return Err(GpuError::NoDevice.into());
                }
            }
            (batch.take)(&vec![0; (batch.output.end - batch.output.start) as usize]);
            Ok(())
        }
        fn blocks_max(&self) -> u32 {
            1
        }
        fn gpu(&self) -> Option<&Gpu> {
            None
        }
    }

    fn one_row() -> InsertBatch {
        let mut rows = InsertBatch::default();
        rows.push(1, &[7; 8], 0);
        rows
    }

    fn insert(device: &Device) -> Option<InsertResult> {
        device.insert_and_evict(&one_row(), Origin::Prefetched, |_| unreachable!())
    }

    fn find(device: &Device) -> Option<usize> {
        device.find(&[1], &mut Destination::from(&mut [0; 8][..]), &mut [false])
    }

    /// `version` runs under the writers' lock, so a panic there must disable the tier.
    #[test]
    fn a_panic_while_a_batch_is_written_disables_the_tier() {
        let device = Device::open(DeviceChoice::Cpu, 16, 8, &policies()).expect("it is small");
        let mut rows = InsertBatch::default();
        (0..17).for_each(|key| rows.push(key, &[7; 8], 0));
        let evicts = || device.insert_and_evict(&rows, Origin::Prefetched, |_| panic!("as it may"));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(evicts));
        assert!(
            panicked.is_err(),
            "the 17th row takes the place of another one"
        );
        assert!(
            device
                .failure()
                .is_some_and(|failure| failure.contains("panicked"))
        );
        assert!(find(&device).is_none() && insert(&device).is_none());
        let error = device.find_ptr(&[1]).expect_err("the tier is lost");
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    #[test]
    fn a_lookup_on_a_device_does_not_wait_for_a_batch_that_writes() {
        let backend = Arc::new(SlowWriter::default());
        let device = tier_on(backend.clone(), 8);
        thread::scope(|scope| {
            let writer = scope.spawn(|| insert(&device));
            while !backend.writes.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            assert!(find(&device).is_some());
            assert!(writer.join().is_ok_and(|result| result.is_some()));
        });
        assert_eq!(device.failure(), None);
    }

    #[test]
    fn a_batch_that_writes_waits_for_those_who_hold_addresses_and_lookups_do_not() {
        let device = Device::open(DeviceChoice::Cpu, 100, 8, &policies()).expect("it is small");
        insert(&device).expect("the tier works");
        thread::scope(|scope| {
            let pointers = device.find_ptr(&[1]).expect("the tier works");
            assert_ne!(pointers[0], 0);
            let writer = scope.spawn(|| device.erase(&[1]));
            thread::sleep(Duration::from_millis(50));
            assert!(!writer.is_finished());
            assert_eq!(find(&device), Some(1));
            drop(pointers);
            writer.join().expect("it does not panic");
        });
        assert_eq!(find(&device), Some(0));
    }
}
