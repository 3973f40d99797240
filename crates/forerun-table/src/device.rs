//! The device tier: copies of rows in a GPU's memory.
//!
//! ```text
//!   find ──read──> GpuTable <──write── rows that come up, new bytes of rows that are here, rows that go
//!                     └─ fails once ──> left out from then on: all that it had is below
//! ```
//!
//! **Whatever lies here lies below as well, and is the same there**: in the host tier, or in the
//! store. So a row that leaves is nowhere missed, and a device that fails takes no row along. A
//! write takes the copies of its keys away before it changes anything below, and they come up again
//! behind it (`device_moves.rs`). To change them in place would be less work, and wrong: a lookup
//! that missed a row here just before it came up finds the new one below, and the next lookup would
//! find the former one here.
//!
//! The table of `forerun-gpu` takes one writing batch at a time, and none beside lookups that come
//! through the host, hence the lock: a lookup waits for a batch that writes here, and for nothing
//! else.

use crate::admission::AdmissionFilter;
use crate::host_moves::Origin;
use crate::inner::Policies;
use crate::key_locks::Version;
use crate::options::DeviceChoice;
use crate::policy::Score;
use crate::ring_pool::RingPool;
use crate::stats::DeviceStats;
use crate::{Error, Result};
use forerun_core::sync::{OnceLock, RwLock, RwLockReadGuard};
use forerun_gpu::gather::Destination;
use forerun_gpu::table::{
    Answers, Batch, Candidates, Entries, GpuTable, Operation, Status, TableError, TableOptions,
    Width,
};
use forerun_gpu::{Gpu, GpuError};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Rows up to which a tier is made of narrow buckets, so that it is not several times as large as
/// was asked for.
const NARROW_ROWS: usize = 128;

/// Batches of lookups of which one tells the device which rows it used: scores need not be exact,
/// and each telling makes lookups wait.
const TOUCH_EVERY: u64 = 8;

/// Rows on a device.
#[derive(Debug)]
pub(crate) struct Device {
    table: RwLock<GpuTable>,
    score: Score,
    row_bytes: usize,
    capacity: usize,
    /// What it lies on.
    name: String,
    gpu: Option<Gpu>,
    /// By way of which rows of the tiers below come to the device.
    pub(crate) ring_pool: RingPool,
    pub(crate) admission_filter: AdmissionFilter,
    rows: AtomicUsize,
    /// Rows taken in so far: the epochs of [`Score::Lfu`] follow from it.
    taken: AtomicU64,
    lookups: AtomicU64,
    /// Why it is left out.
    failure: OnceLock<String>,
}

/// Rows on their way in.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    keys: Vec<u64>,
    rows: Vec<u8>,
    scores: Vec<u64>,
}

/// What became of them, and of those that made room.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// Which rows are here now.
    pub(crate) kept: Vec<bool>,
    /// How many of them were not before.
    pub(crate) taken: usize,
    /// Rows that left, with the versions of their keys when they did.
    pub(crate) left: Entries,
    pub(crate) versions: Vec<Version>,
}

impl Incoming {
    pub(crate) fn push(&mut self, key: u64, row: &[u8], score: u64) {
        self.keys.push(key);
        self.rows.extend_from_slice(row);
        self.scores.push(score);
    }
}

fn options(capacity: usize, row_bytes: usize, score: Score) -> TableOptions {
    let mut options = TableOptions::new(capacity as u64, row_bytes as u64);
    if capacity <= NARROW_ROWS {
        (options.width, options.candidates) = (Width::W16, Candidates::One);
    }
    options.policy = score.device_policy();
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
        let options = options(capacity, row_bytes, policies.score);
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
            score: policies.score,
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
        })
    }

    /// Why the tier is left out, if it is.
    pub(crate) fn failure(&self) -> Option<&str> {
        if self.table.is_poisoned() {
            return Some("a thread panicked while it wrote there");
        }
        self.failure.get().map(String::as_str)
    }

    /// Leaves the tier out from now on. What it has may be outdated from here on, so it never comes
    /// back.
    pub(crate) fn lose(&self, error: &TableError) {
        if self.failure.set(error.to_string()).is_ok() {
            tracing::warn!(%error, device = self.name, "the device tier failed and is left out");
        }
    }

    /// What a call gives that needs the tier.
    pub(crate) fn lost(&self) -> Error {
        Error::Device {
            reason: self.failure().unwrap_or_default().to_owned(),
        }
    }

    /// What the failure of a delivery means: the tier's, but for a want of memory, which may pass.
    pub(crate) fn delivery_failed(&self, error: GpuError) -> Error {
        let passes = matches!(error, GpuError::OutOfMemory { .. });
        let error = TableError::from(error);
        if !passes {
            self.lose(&error);
        }
        error.into()
    }

    /// The GPU that it lies on, if it does on one.
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// That rows can go there from here.
    pub(crate) fn expect(&self, to: &Destination<'_>) -> Result<()> {
        let fits = match (&self.gpu, to.gpu()) {
            (Some(here), Some(there)) => here.is(there),
            (here, there) => here.is_none() && there.is_none(),
        };
        if fits {
            return Ok(());
        }
        Err(Error::Destination {
            tier: self.name.clone(),
            given: match to.gpu() {
                Some(gpu) => format!("the memory of {}", name_of(gpu)),
                None => "ordinary memory".to_owned(),
            },
        })
    }

    /// Reads; `None` if the tier is lost, or is lost by this.
    fn read<T>(&self, read: impl FnOnce(&GpuTable) -> Result<T, TableError>) -> Option<T> {
        let table = self.table.read().ok()?;
        if self.failure.get().is_some() {
            return None;
        }
        read(&table).inspect_err(|error| self.lose(error)).ok()
    }

    /// Writes; `None` if the tier is lost, or is lost by this.
    fn write<T>(&self, write: impl FnOnce(&mut GpuTable) -> Result<T, TableError>) -> Option<T> {
        let mut table = self.table.write().ok()?;
        if self.failure.get().is_some() {
            return None;
        }
        write(&mut table).inspect_err(|error| self.lose(error)).ok()
    }

    /// Copies the rows that are here to their positions, says in `found` which are, and gives their
    /// number. What is missed is compacted on the device, so that little comes back for what is
    /// found.
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
        for &place in &missed.places {
            found[place as usize] = false;
        }
        Some(keys.len() - missed.len())
    }

    /// Copies the rows that are here to their positions, with the scores that they were given, and
    /// says which are.
    pub(crate) fn find_scored(
        &self,
        keys: &[u64],
        rows: &mut [u8],
        scores: &mut [u64],
    ) -> Option<Vec<bool>> {
        let mut status = vec![Status::Absent; keys.len()];
        let answers = Answers {
            rows: Some(rows),
            scores: self.score.is_custom().then_some(scores),
            status: Some(&mut status),
            ..Answers::default()
        };
        self.read(|table| table.lookup(Default::default(), keys, answers))?;
        Some(status.into_iter().map(Status::is_present).collect())
    }

    /// Which keys have a row here.
    pub(crate) fn contains(&self, keys: &[u64]) -> Option<Vec<bool>> {
        if self.len() == 0 {
            // Never wrong for the holder of a key's lock: its row was put in under that lock, and
            // counted.
            return Some(vec![false; keys.len()]);
        }
        self.read(|table| table.contains(keys))
    }

    /// Takes rows in, each in place of a lower one where its buckets are full. `version` is asked
    /// for the keys of those that leave while nobody can write here.
    pub(crate) fn exchange(
        &self,
        incoming: &Incoming,
        origin: Origin,
        version: impl Fn(u64) -> Version,
    ) -> Option<Exchange> {
        let mut status = vec![Status::Absent; incoming.keys.len()];
        // Relaxed, here and below: counts order nothing.
        self.taken
            .fetch_add(incoming.keys.len() as u64, Ordering::Relaxed);
        // What is asked for by name outranks what is there, until it is used or the epoch is over.
        let ahead = u64::from(origin == Origin::Asked);
        self.write(|table| {
            let batch = Batch {
                scores: self.score.sends_scores().then_some(&incoming.scores),
                epoch: self.epoch() + ahead,
                ..Batch::rows(&incoming.keys, &incoming.rows)
            };
            let answers = Answers {
                status: Some(&mut status),
                ..Answers::default()
            };
            let left = table.apply(Operation::InsertAndEvict, &batch, answers)?;
            let mut exchange = Exchange::default();
            for (nth, row) in left.rows.chunks_exact(self.row_bytes).enumerate() {
                let key = left.keys[nth];
                // A newcomer that found no place is given back as well.
                if incoming.keys[left.places[nth] as usize] != key {
                    exchange.left.keys.push(key);
                    exchange.left.scores.push(left.scores[nth]);
                    exchange.left.rows.extend_from_slice(row);
                    exchange.versions.push(version(key));
                }
            }
            let count = |which| status.iter().filter(|&&status| status == which).count();
            let inserted = count(Status::Inserted);
            exchange.taken = inserted + count(Status::Evicted);
            self.rows.fetch_add(inserted, Ordering::Relaxed);
            exchange.kept = status.iter().map(|status| status.is_present()).collect();
            Ok(exchange)
        })
    }

    /// Takes rows away. For the holder of their keys' locks.
    pub(crate) fn erase(&self, keys: &[u64]) {
        self.write(|table| {
            let status = table.erase(keys)?;
            let gone = status.iter().filter(|&&status| status == Status::Found);
            self.rows.fetch_sub(gone.count(), Ordering::Relaxed);
            Ok(())
        });
    }

    /// Whether the scores should learn of this batch of lookups.
    pub(crate) fn wants_touches(&self) -> bool {
        let nth = self.lookups.fetch_add(1, Ordering::Relaxed);
        self.score.follows_use() && nth.is_multiple_of(TOUCH_EVERY)
    }

    /// Lets scores follow the use of rows.
    pub(crate) fn touch(&self, keys: &[u64]) {
        let batch = Batch {
            epoch: self.epoch(),
            ..Batch::of(keys)
        };
        self.write(|table| table.apply(Operation::AssignScores, &batch, Answers::default()));
    }

    /// How often the tier has been turned over, for [`Score::Lfu`].
    fn epoch(&self) -> u64 {
        let epoch = self.taken.load(Ordering::Relaxed) / self.capacity as u64;
        // The device's scores have 32 bits for it, and there is one ahead.
        epoch.min(u64::from(u32::MAX) - 1)
    }

    /// How often a row that left had been used, from its score.
    pub(crate) fn uses(&self, score: u64) -> u16 {
        self.score.uses_of_device_score(score)
    }

    /// The addresses of rows.
    pub(crate) fn find_ptr(&self, keys: &[u64]) -> Result<Pointers<'_>> {
        let table = self.table.read().map_err(|_| self.lost())?;
        if self.failure.get().is_some() {
            return Err(self.lost());
        }
        let addresses = table.find_ptr(keys).inspect_err(|error| self.lose(error))?;
        Ok(Pointers {
            addresses,
            _table: table,
        })
    }

    /// Rows that are here.
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

/// Addresses of rows in the device's memory, by position: 0 for keys whose rows are not there. As
/// long as this lives the rows stay where they are, and as they are.
///
/// Calls that write wait for it, and lookups may wait for those: the thread that has it should drop
/// it before it calls the table again.
#[derive(Debug)]
pub struct Pointers<'t> {
    addresses: Vec<u64>,
    _table: RwLockReadGuard<'t, GpuTable>,
}

impl Deref for Pointers<'_> {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.addresses
    }
}
