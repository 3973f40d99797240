//! The public table: one set of operations, on a GPU or on the CPU.

use super::allocator::TableAllocator;
use super::backend::{Backend, GpuBackend};
use super::batch::{Answers, Batch, Condition, Entries, LookupMode, Operation};
use super::cpu::CpuTable;
use super::device_table::DeviceTable;
use super::error::TableError;
use super::options::{Candidates, TableOptions};
use super::params::{ABSENT_INSERT, SCAN_COUNT, SCAN_ERASE, SCAN_EXPORT, TableState};
use super::traffic::Traffic;
use crate::{Gpu, GpuError};
use std::ops::Range;
use std::sync::Arc;

/// Slots per step of an iteration over all entries.
pub(super) const WALK_SLOTS: u64 = 1 << 14;

/// The destination of a lookup's rows.
pub(super) enum RowsTo<'a> {
    /// To host memory.
    Host(&'a mut [u8]),
    /// To device memory, starting at an address.
    Device(u64),
}

/// Where the table is.
pub(super) enum Engine {
    Cpu(CpuTable),
    Device(DeviceTable),
}

/// A hash table from u64 keys to rows of bytes. See the [module](crate::table) and
/// `docs/guide/gpu-table.md`.
///
/// These operations take slices of host memory and return when they are done. [`GpuTable::command`]
/// prepares operations on device memory and streams, which do not wait.
pub struct GpuTable {
    pub(super) options: TableOptions,
    pub(super) engine: Engine,
    /// The least number of slots for which memory was lacking when a batch would have grown the
    /// table.
    pub(super) too_large: u64,
}

impl GpuTable {
    /// Creates a table on the first GPU, or on the CPU if there is none.
    ///
    /// # Errors
    /// The options are invalid; out of memory; there is a GPU but it cannot be used.
    pub fn open(options: TableOptions) -> Result<GpuTable, TableError> {
        match Gpu::open(0) {
            Ok(gpu) => GpuTable::on_gpu(&gpu, options),
            Err(error) if error.is_absent() => GpuTable::on_cpu(options),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a table on the CPU.
    ///
    /// # Errors
    /// The options are invalid; out of memory.
    pub fn on_cpu(options: TableOptions) -> Result<GpuTable, TableError> {
        options.check()?;
        let engine = Engine::Cpu(CpuTable::new(form_of(&options, options.capacity))?);
        Ok(GpuTable::with(options, engine))
    }

    pub(super) fn with(options: TableOptions, engine: Engine) -> GpuTable {
        GpuTable {
            options,
            engine,
            too_large: u64::MAX,
        }
    }

    /// Creates a table on a GPU.
    ///
    /// # Errors
    /// The options are invalid; out of memory; the driver's error.
    pub fn on_gpu(gpu: &Gpu, options: TableOptions) -> Result<GpuTable, TableError> {
        let backend = GpuBackend::new(gpu, None)?;
        GpuTable::on(Arc::new(backend), options)
    }

    /// Creates a table on a GPU, whose memory comes from this allocator. Only the pinned memory
    /// through which batches of the host pass is still the driver's.
    ///
    /// # Errors
    /// Those of [`GpuTable::on_gpu`]; the allocator has no memory, or gives memory that is not of
    /// the wanted kind or not aligned.
    pub fn on_gpu_with(
        gpu: &Gpu,
        options: TableOptions,
        allocator: Arc<dyn TableAllocator>,
    ) -> Result<GpuTable, TableError> {
        let backend = GpuBackend::new(gpu, Some(allocator))?;
        GpuTable::on(Arc::new(backend), options)
    }

    /// Creates a table on any backend that runs the kernels. For tests and benches.
    ///
    /// # Errors
    /// Those of [`GpuTable::on_gpu`].
    #[doc(hidden)]
    pub fn on(
        backend: Arc<dyn Backend + Sync>,
        options: TableOptions,
    ) -> Result<GpuTable, TableError> {
        options.check()?;
        let form = form_of(&options, options.capacity);
        let engine = Engine::Device(DeviceTable::new(backend, form)?);
        Ok(GpuTable::with(options, engine))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The table's options.
    pub fn options(&self) -> &TableOptions {
        &self.options
    }

    /// The table's GPU, if it is on one.
    pub fn gpu(&self) -> Option<&Gpu> {
        match &self.engine {
            Engine::Cpu(_) => None,
            Engine::Device(table) => table.backend().gpu(),
        }
    }

    /// The addresses of its arrays for the kernels; on the CPU, only the layout. For tests and
    /// benches.
    #[doc(hidden)]
    pub fn state(&self) -> &TableState {
        match &self.engine {
            Engine::Cpu(table) => &table.form,
            Engine::Device(table) => table.state(),
        }
    }

    /// Number of slots.
    pub fn capacity(&self) -> u64 {
        self.state().buckets * u64::from(self.state().width)
    }

    /// Number of entries.
    ///
    /// # Errors
    /// The device's error.
    pub fn size(&self) -> Result<u64, TableError> {
        match &self.engine {
            Engine::Cpu(table) => Ok(table.size),
            Engine::Device(table) => table.size(),
        }
    }

    /// Whether there are no entries.
    ///
    /// # Errors
    /// The device's error.
    pub fn is_empty(&self) -> Result<bool, TableError> {
        Ok(self.size()? == 0)
    }

    /// Sets the capacity up to which the table may grow ([`TableOptions::max_capacity`]). A table
    /// does not shrink: below its capacity, the new limit only keeps it from growing. A growth for
    /// which memory was lacking is tried again.
    ///
    /// # Errors
    /// The capacity is greater than any table can have.
    pub fn set_max_capacity(&mut self, max_capacity: u64) -> Result<(), TableError> {
        let options = self.options.max_capacity(max_capacity);
        options.check()?;
        self.options = options;
        self.too_large = u64::MAX;
        Ok(())
    }

    /// Entries per slot, from 0 to 1.
    ///
    /// # Errors
    /// The device's error.
    pub fn load_factor(&self) -> Result<f64, TableError> {
        Ok(self.size()? as f64 / self.capacity() as f64)
    }

    /// Applies one operation to each key of a batch and answers by position. With
    /// [`Operation::InsertAndEvict`] it returns the entries that the table does not keep.
    ///
    /// # Errors
    /// The arrays do not match the number of keys, or one is missing; the epoch exceeds 2^32 - 1;
    /// the device's error.
    pub fn apply(
        &mut self,
        operation: Operation,
        batch: &Batch<'_>,
        mut answers: Answers<'_>,
    ) -> Result<Entries, TableError> {
        batch.check(operation, self.options.row_bytes)?;
        answers.check(batch.keys.len(), self.options.row_bytes)?;
        if operation.actions() & ABSENT_INSERT != 0 {
            self.grow_for(batch.keys.len() as u64)?;
        }
        let mut rest = Entries::default();
        match &mut self.engine {
            Engine::Cpu(table) => table.write(operation, batch, &mut answers, &mut rest),
            Engine::Device(table) => table.write(operation, batch, &mut answers, &mut rest)?,
        }
        Ok(rest)
    }

    /// Like [`GpuTable::apply`], while other threads may look up keys: each is found as it was
    /// before the operation or as it is after it, whole. A lookup may also see what is in between
    /// if a key repeats in the batch, or if the batch evicts a key before it inserts it.
    ///
    /// Operations take turns. The turn of a batch of more than 64 MiB may end between two of its
    /// keys.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`]; [`TableError::NeedsExclusiveAccess`] unless
    /// [`writes_beside_lookups`](GpuTable::writes_beside_lookups).
    pub fn apply_beside_lookups(
        &self,
        operation: Operation,
        batch: &Batch<'_>,
        mut answers: Answers<'_>,
    ) -> Result<Entries, TableError> {
        batch.check(operation, self.options.row_bytes)?;
        answers.check(batch.keys.len(), self.options.row_bytes)?;
        let (Engine::Device(table), true) = (&self.engine, self.writes_beside_lookups()) else {
            return Err(TableError::NeedsExclusiveAccess);
        };
        let mut rest = Entries::default();
        table.write(operation, batch, &mut answers, &mut rest)?;
        Ok(rest)
    }

    /// Whether operations may run beside lookups: the table is on a device, where readers notice
    /// writers, and it cannot grow.
    pub fn writes_beside_lookups(&self) -> bool {
        matches!(self.engine, Engine::Device(_)) && self.capacity() >= self.capacity_max()
    }

    /// Looks up keys and writes the requested answers by position.
    ///
    /// # Errors
    /// The arrays do not match the number of keys; the device's error.
    pub fn lookup(
        &self,
        lookup: LookupMode,
        keys: &[u64],
        mut answers: Answers<'_>,
    ) -> Result<(), TableError> {
        answers.check(keys.len(), self.options.row_bytes)?;
        match &self.engine {
            Engine::Cpu(table) => {
                #[cfg(feature = "study")]
                if lookup == LookupMode::Pipeline && table.form.width != 128 {
                    return Err(TableError::Lookup {
                        width: table.form.width,
                    });
                }
                table.find(keys, &mut answers, None);
                Ok(())
            }
            Engine::Device(table) => table.find(lookup, keys, &mut answers, None, None),
        }
    }

    /// Looks up keys, copies their rows, and returns the missing keys with their positions.
    pub(super) fn find_missed_to(
        &self,
        keys: &[u64],
        rows: RowsTo<'_>,
    ) -> Result<Entries, TableError> {
        let (mut missed, mut answers) = (Entries::default(), Answers::default());
        let rows_at = match rows {
            RowsTo::Host(rows) => {
                answers.rows = Some(rows);
                None
            }
            RowsTo::Device(address) => Some(address),
        };
        self.find_missed_in(keys, answers, rows_at, &mut missed)?;
        Ok(missed)
    }

    /// Looks up keys and writes the requested answers by position. Appends missing keys.
    pub(super) fn lookup_missed(
        &self,
        keys: &[u64],
        answers: Answers<'_>,
        missed: &mut Entries,
    ) -> Result<(), TableError> {
        self.find_missed_in(keys, answers, None, missed)
    }

    fn find_missed_in(
        &self,
        keys: &[u64],
        mut answers: Answers<'_>,
        rows_at: Option<u64>,
        missed: &mut Entries,
    ) -> Result<(), TableError> {
        answers.check(keys.len(), self.options.row_bytes)?;
        match &self.engine {
            Engine::Cpu(_) if rows_at.is_some() => Err(GpuError::NoDevice.into()),
            Engine::Cpu(table) => {
                table.find(keys, &mut answers, Some(missed));
                Ok(())
            }
            Engine::Device(table) => table.find(
                LookupMode::ByLoad,
                keys,
                &mut answers,
                rows_at,
                Some(missed),
            ),
        }
    }

    pub(super) fn scan(
        &mut self,
        scan: u32,
        slots: Range<u64>,
        condition: &Condition,
        out: &mut Entries,
    ) -> Result<u64, TableError> {
        let slots = slots.start.min(self.capacity())..slots.end.min(self.capacity());
        match &mut self.engine {
            Engine::Cpu(table) => Ok(table.scan(scan, slots, condition, out)),
            Engine::Device(table) => table.scan(scan, slots, condition, out),
        }
    }

    /// Erases the entries that match a condition, except pinned ones, and returns their number.
    ///
    /// # Errors
    /// The device's error.
    pub fn erase_if(&mut self, condition: &Condition) -> Result<u64, TableError> {
        self.scan(SCAN_ERASE, 0..u64::MAX, condition, &mut Entries::default())
    }

    /// Counts the entries that match a condition.
    ///
    /// # Errors
    /// The device's error.
    pub fn size_if(&mut self, condition: &Condition) -> Result<u64, TableError> {
        self.scan(SCAN_COUNT, 0..u64::MAX, condition, &mut Entries::default())
    }

    /// Appends to `out` the entries in a range of slots that match a condition, with their slots as
    /// places.
    ///
    /// # Errors
    /// The device's error.
    pub fn export_batch_if(
        &mut self,
        slots: Range<u64>,
        condition: &Condition,
        out: &mut Entries,
    ) -> Result<u64, TableError> {
        self.scan(SCAN_EXPORT, slots, condition, out)
    }

    /// Appends to `out` the entries in a range of slots.
    ///
    /// # Errors
    /// The device's error.
    pub fn export_batch(
        &mut self,
        slots: Range<u64>,
        out: &mut Entries,
    ) -> Result<u64, TableError> {
        self.export_batch_if(slots, &Condition::ALL, out)
    }

    /// Calls `visit` with all entries in no particular order, those of a few thousand slots at a
    /// time.
    ///
    /// # Errors
    /// The device's error, or the error of `visit`.
    pub fn for_each<E: From<TableError>>(
        &mut self,
        mut visit: impl FnMut(&Entries) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut entries = Entries::default();
        let capacity = self.capacity();
        for first in (0..capacity).step_by(WALK_SLOTS as usize) {
            entries.clear();
            let slots = first..(first + WALK_SLOTS).min(capacity);
            self.export_batch(slots, &mut entries)?;
            if !entries.is_empty() {
                visit(&entries)?;
            }
        }
        Ok(())
    }

    /// Removes all entries, including pinned ones.
    ///
    /// # Errors
    /// The device's error.
    pub fn clear(&mut self) -> Result<(), TableError> {
        match &mut self.engine {
            Engine::Cpu(table) => {
                table.clear();
                Ok(())
            }
            Engine::Device(table) => table.clear(),
        }
    }

    /// Inserts entries with their previous scores.
    pub(super) fn restore(&mut self, entries: &Entries) -> Result<(), TableError> {
        let batch = Batch::rows(&entries.keys, &entries.rows).with_scores(&entries.scores);
        self.apply(Operation::Restore, &batch, Answers::default())?;
        Ok(())
    }

    /// Counts the memory requests that lookups of these keys would make on a device with this kind
    /// of search. The table must be on the CPU.
    ///
    /// ```
    /// use forerun_gpu::table::{GpuTable, LookupMode, TableOptions};
    ///
    /// let mut table = GpuTable::on_cpu(TableOptions::new(1 << 12, 0))?;
    /// table.insert_or_assign(&[1, 2, 3], &[], None)?;
    /// let traffic = table.traffic(LookupMode::Wide, &[1, 2, 3])?;
    /// // A row of 128 digests and one key for each of the three.
    /// assert_eq!((traffic.digests.b128, traffic.keys), (3, 3));
    /// # Ok::<(), forerun_gpu::table::TableError>(())
    /// ```
    ///
    /// # Errors
    /// The table is not on the CPU.
    pub fn traffic(&self, lookup: LookupMode, keys: &[u64]) -> Result<Traffic, TableError> {
        match &self.engine {
            Engine::Cpu(table) => Ok(table.traffic(lookup, keys)),
            Engine::Device(_) => Err(TableError::NotCounted),
        }
    }

    /// The clock of scores that are times, in nanoseconds; 0 if the strategy does not use it.
    pub(super) fn clock_ns(&mut self) -> Result<u64, TableError> {
        if !self.options.evict_strategy.is_by_time() {
            return Ok(0);
        }
        match &mut self.engine {
            Engine::Cpu(table) => Ok(table.time_ns()),
            Engine::Device(table) => table.clock_ns(),
        }
    }

    /// The row of a slot, used or not.
    ///
    /// # Errors
    /// The slot does not exist; the device's error.
    pub fn row(&self, slot: u64) -> Result<Vec<u8>, TableError> {
        let capacity = self.capacity();
        if slot >= capacity {
            return Err(TableError::NoSuchSlot { slot, capacity });
        }
        match &self.engine {
            Engine::Cpu(table) => Ok(table.row(slot).to_vec()),
            Engine::Device(table) => table.row(slot),
        }
    }

    /// One digest, key, score and pin per slot. For tests, which compare two tables.
    ///
    /// # Errors
    /// The device's error.
    #[doc(hidden)]
    #[allow(clippy::type_complexity)]
    pub fn arrays(&self) -> Result<(Vec<u8>, Vec<u64>, Vec<u64>, Vec<bool>), TableError> {
        match &self.engine {
            Engine::Cpu(table) => Ok(table.arrays()),
            Engine::Device(table) => table.arrays(),
        }
    }
}

impl std::fmt::Debug for GpuTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuTable")
            .field("options", &self.options)
            .field("capacity", &self.capacity())
            .field("gpu", &self.gpu())
            .finish()
    }
}

/// The layout of a table with these options and at least this many slots, without addresses.
pub(super) fn form_of(options: &TableOptions, slots: u64) -> TableState {
    let width = options.width.slots();
    let buckets = options.buckets_for(slots);
    let stride = options.row_stride_bytes();
    TableState {
        buckets,
        width,
        candidates: match options.candidates {
            Candidates::One => 1,
            Candidates::Two => 2,
        },
        score_bytes: options.score_bytes.bytes(),
        policy: options.evict_strategy as u32,
        row_bytes: options.row_bytes,
        row_stride_bytes: stride,
        rows_split: match stride {
            0 => buckets * u64::from(width),
            _ => (options.device_row_bytes_max / stride).min(buckets * u64::from(width)),
        },
        ..TableState::default()
    }
}
