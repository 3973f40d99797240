//! [`Table`], the public interface.

use crate::close::Open;
use crate::device_tier::Device;
#[cfg(feature = "gpu")]
use crate::device_tier::Pointers;
use crate::inner::Inner;
use crate::options::Update;
use crate::snapshot::{Export, TableSnapshot};
use crate::stats::{DeviceStats, TableStats};
use crate::{Bags, Error, PoolingOptions, Result, RowType, background_moves};
use forerun_core::ProcessBound;
use forerun_db::{Background, Backup, Backups, FileCopyOptions};
#[cfg(feature = "gpu")]
use forerun_gpu::Gpu;
#[cfg(feature = "gpu")]
use forerun_gpu::gather::Destination;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A table of fixed-size rows under `u64` keys. The hot rows are in GPU or host memory, the others
/// on disk. Every call takes a batch.
///
/// A `Table` is a handle. Clones share one open table; dropping the last one, or
/// [`close`](Table::close), closes it. Many threads may call all methods at once. Every key is
/// valid.
///
/// A handle belongs to the process that opened the table. After a `fork`, every call in the child
/// returns [`Error::Forked`], and dropping the handle there changes nothing.
///
/// Rows are bytes: `rows` holds the concatenated rows of a batch, `keys.len() * row().bytes()`
/// bytes in all, with little-endian elements.
///
/// # Consistency
/// - Once a write returns, every later lookup sees it, in whichever tier the row is. A concurrent
///   lookup sees each row either before or after the write, never a mix.
/// - Writers of one key take turns. Lookups do not wait, except for a batch that is being written
///   to the device tier.
/// - A row is in the store before it leaves the host tier. The device tier holds only copies of
///   rows in the tiers below.
/// - With [`WritePolicy::WriteThrough`](crate::WritePolicy), a written row survives the end of the
///   process. With `WritePolicy::WriteBack`, it does so after [`flush`](Table::flush). After
///   `flush`, rows survive the loss of power with either.
/// - If a tier fails, only the keys that need it fail: the call returns [`Error::Keys`] with the
///   list and serves all other keys. If the device fails, no key fails: the tiers below have all of
///   its rows. Only `find_ptr` and `find_to_device`, which exist with feature `gpu`, need the
///   device and fail with it.
///
/// # Examples
/// ```
/// use forerun_table::{Dtype, Table};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("rows");
/// let table = Table::builder(Dtype::U8, 4).host_capacity(1000).path(path).open()?;
/// table.insert(&[7, 8], b"sevnegit")?;
///
/// let mut rows = [0; 12];
/// let mut found = [false; 3];
/// assert_eq!(table.find(&[8, 9, 7], &mut rows, &mut found)?, 2);
/// assert_eq!((&rows, found), (b"egit\0\0\0\0sevn", [true, false, true]));
///
/// table.flush()?;
/// table.close()?;
/// # Ok::<(), forerun_table::Error>(())
/// ```
#[derive(Clone)]
pub struct Table {
    pub(crate) open: Arc<ProcessBound<Open>>,
}

impl Table {
    pub(crate) fn start(inner: Inner, closes_store: bool) -> Result<Table> {
        let inner = Arc::new(inner);
        let thread = match inner.policies.background {
            Background::Caller => None,
            _ => {
                let thread = background_moves::start(&inner);
                Some(thread.map_err(|error| Error::Thread(error.to_string()))?)
            }
        };
        Ok(Table {
            open: Arc::new(ProcessBound::new(Open::new(inner, thread, closes_store))),
        })
    }

    /// Looks up keys: copies each row that is found to its position in `rows` and sets its flag in
    /// `found`. The positions of missing keys in `rows` keep their content. Returns the number of
    /// keys found. Keys may repeat.
    ///
    /// # Errors
    /// [`Error::Keys`]: a tier failed for some keys, which count as not found; the other keys are
    /// served. [`Error::Length`], [`Error::Closed`]: nothing was looked up.
    pub fn find(&self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        self.inner()?.find(keys, rows, found)
    }

    /// [`find`](Table::find) into memory of the device tier. Rows of that tier are copied from
    /// device to device; rows of the tiers below travel from pinned memory by the [row
    /// gather](forerun_gpu::gather). `found` is in host memory. When the call returns, all rows
    /// have arrived.
    ///
    /// `rows` is a [`DeviceBuffer`](forerun_gpu::DeviceBuffer) or a
    /// [`DeviceSlice`](forerun_gpu::DeviceSlice) on the tier's [GPU](Table::gpu), or ordinary
    /// memory if the tier is on the CPU. The call does not wait for other streams' work on that
    /// memory: order it with events or the end of a scope. At most eight such calls run at a time,
    /// because each uses [some](forerun_gpu::gather::StagingShape::of) pinned memory; further ones
    /// wait.
    ///
    /// ```
    /// use forerun_gpu::DeviceBuffer;
    /// use forerun_table::{Dtype, Table};
    ///
    /// let table = Table::builder(Dtype::U8, 4).device_capacity(100).open()?;
    /// table.insert(&[7, 8], b"sevnegit")?;
    /// let (mut rows, mut found) = ([0; 12], [false; 3]);
    /// match table.gpu() {
    ///     None => {
    ///         table.find_to_device(&[8, 9, 7], &mut rows[..], &mut found)?;
    ///     }
    ///     Some(gpu) => {
    ///         let buffer = DeviceBuffer::from_slice(&gpu, &rows)?;
    ///         table.find_to_device(&[8, 9, 7], &buffer, &mut found)?;
    ///         buffer.read(0, &mut rows)?;
    ///     }
    /// }
    /// assert_eq!((&rows, found), (b"egit\0\0\0\0sevn", [true, false, true]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Keys`]: the store failed for some keys, which count as not found; the other keys
    /// are served. [`Error::Device`]: the device failed, now or earlier, or there is no pinned
    /// memory left. No key counts as found then, and the content of `rows` is unspecified.
    /// [`find`](Table::find) still works. [`Error::NoDeviceTier`], [`Error::Destination`],
    /// [`Error::Length`], [`Error::Closed`]: nothing was looked up.
    #[cfg(feature = "gpu")]
    pub fn find_to_device<'r>(
        &self,
        keys: &[u64],
        rows: impl Into<Destination<'r>>,
        found: &mut [bool],
    ) -> Result<usize> {
        self.inner()?.find_to_device(keys, rows.into(), found)
    }

    /// Looks up the keys of each bag and adds up their rows: one pooled row per bag, in the order
    /// of the bags. `found` gets the number of keys found for each bag. Returns the number of all
    /// keys found. A missing key counts like a row of zeros, and an empty bag gives zeros.
    ///
    /// Rows of 16-bit floats are widened. A table of [`Dtype::U8`](crate::Dtype::U8) or
    /// [`Dtype::I8`](crate::Dtype::I8) may hold quantized rows, whose last bytes are their scale
    /// and bias. [`pooling`](forerun_core::pooling) defines the formats and every rounding step;
    /// the result does not depend on the tiers or on the instruction set.
    ///
    /// ```
    /// use forerun_table::{Bags, Dtype, Pooling, PoolingOptions, RowFormat, Table};
    ///
    /// let table = Table::builder(Dtype::F32, 1).open()?;
    /// table.insert(&[1, 2], &[1_f32, 4.0].map(f32::to_le_bytes).concat())?;
    ///
    /// let bags = Bags::new(&[1, 2, 2, 9], &[0, 3, 3, 4]);
    /// let options = PoolingOptions::new(RowFormat::F32).pooling(Pooling::Mean);
    /// let (mut means, mut found) = ([0; 12], [0; 3]);
    /// assert_eq!(table.find_pooled(&bags, &options, &mut means, &mut found)?, 3);
    /// assert_eq!(means, [3_f32, 0.0, 0.0].map(f32::to_le_bytes).concat()[..]);
    /// assert_eq!(found, [3, 0, 0]);
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`find`](Table::find): keys that failed count as missing. [`Error::Pooling`],
    /// [`Error::RowFormat`]: nothing was looked up.
    pub fn find_pooled(
        &self,
        bags: &Bags<'_>,
        options: &PoolingOptions,
        rows: &mut [u8],
        found: &mut [u32],
    ) -> Result<usize> {
        self.inner()?.find_pooled(bags, options, rows, found)
    }

    /// Sets the flags in `found` of the keys that have a row, and returns their number. It promotes
    /// nothing and does not count as a use.
    ///
    /// # Errors
    /// Those of [`find`](Table::find).
    pub fn contains(&self, keys: &[u64], found: &mut [bool]) -> Result<usize> {
        self.inner()?.contains(keys, found)
    }

    /// Writes rows and replaces any former rows of their keys. If a key repeats, its last row
    /// counts.
    ///
    /// # Errors
    /// [`Error::Keys`]: a tier failed for some keys, which keep their former rows; the other rows
    /// are written. If the store cannot tell whether a failed write will be visible after the next
    /// opening, neither can the table. [`Error::Length`], [`Error::Closed`]: nothing was written.
    pub fn insert(&self, keys: &[u64], rows: &[u8]) -> Result<()> {
        self.inner()?.insert(keys, rows, None)
    }

    /// [`insert`](Table::insert) with the caller's scores, for
    /// [`EvictStrategy::Customized`](crate::EvictStrategy::Customized).
    ///
    /// # Errors
    /// Those of [`insert`](Table::insert), and [`Error::Conflict`] with another eviction strategy.
    pub fn insert_with_scores(&self, keys: &[u64], rows: &[u8], scores: &[u64]) -> Result<()> {
        self.inner()?.insert(keys, rows, Some(scores))
    }

    /// Changes the rows of the keys that have one: assigns, or adds element by element. If a key
    /// repeats, all its rows apply, in order. Sets the flags in `found` of the keys that have a
    /// row, and returns their number.
    ///
    /// ```
    /// use forerun_table::{Dtype, Table, Update};
    ///
    /// let table = Table::builder(Dtype::I32, 1).open()?;
    /// table.insert(&[1], &40i32.to_le_bytes())?;
    /// let ones = [1i32.to_le_bytes(); 3].concat();
    /// let mut found = [false; 3];
    /// assert_eq!(table.update(&[1, 2, 1], &ones, Update::Add, &mut found)?, 2);
    ///
    /// let mut row = [0; 4];
    /// table.find(&[1], &mut row, &mut [false])?;
    /// assert_eq!(i32::from_le_bytes(row), 42);
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Table::insert).
    pub fn update(
        &self,
        keys: &[u64],
        rows: &[u8],
        how: Update,
        found: &mut [bool],
    ) -> Result<usize> {
        self.inner()?.update(keys, rows, how, found)
    }

    /// Deletes keys. A missing key is not an error.
    ///
    /// # Errors
    /// Those of [`insert`](Table::insert); the keys listed are still there.
    pub fn erase(&self, keys: &[u64]) -> Result<()> {
        self.inner()?.erase(keys)
    }

    /// Promotes rows ahead of their use: to the device tier, or without one from the store to the
    /// host tier. Admission does not apply. The call does not wait for the moves, unless the table
    /// has [`Background::Caller`]. Keys beyond the queue's limit are skipped.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Interrupted`].
    pub fn prefetch(&self, keys: &[u64]) -> Result<()> {
        let inner = self.inner()?;
        inner.check_open()?;
        inner.queue_prefetch(keys)
    }

    /// The addresses of the rows in device memory, by position: 0 for a row that is not in the
    /// device tier ([`prefetch`](Table::prefetch) promotes it). The addresses are the device's, or
    /// the process's if the tier is on the CPU. They are valid as long as the result lives, and
    /// writers of the device tier wait for it.
    ///
    /// ```
    /// use forerun_table::{Dtype, Background, Table};
    ///
    /// let builder = Table::builder(Dtype::U8, 4).device_capacity(100);
    /// let table = builder.background(Background::Caller).open()?;
    /// table.insert(&[7, 8], b"sevnegit")?;
    /// table.prefetch(&[7])?;
    /// let rows = table.find_ptr(&[7, 8])?;
    /// assert!(rows[0] != 0 && rows[1] == 0);
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDeviceTier`], [`Error::Device`], [`Error::Closed`].
    #[cfg(feature = "gpu")]
    pub fn find_ptr(&self, keys: &[u64]) -> Result<Pointers<'_>> {
        let inner = self.inner()?;
        inner.check_open()?;
        inner.device_for("find_ptr")?.find_ptr(keys)
    }

    /// Waits until no background move is pending.
    pub fn wait_idle(&self) {
        while !self.wait_idle_for(Duration::from_secs(3600)) {}
    }

    /// [`wait_idle`](Table::wait_idle) with a timeout. Returns whether all moves are done.
    pub fn wait_idle_for(&self, timeout: Duration) -> bool {
        let Ok(inner) = self.inner() else {
            return true;
        };
        inner.policies.background == Background::Caller || inner.queue.wait_idle(timeout)
    }

    /// Writes rows to the store only: loads a table without evicting the rows in use. Without a
    /// store it is [`insert`](Table::insert).
    ///
    /// Large batches are faster. Rows with ascending keys, at least half a memtable of them (32 MiB
    /// by default), go straight to files of the store: they are then durable, and become visible
    /// together or not at all. Other writers wait while that happens.
    ///
    /// # Errors
    /// Those of [`insert`](Table::insert).
    pub fn import_rows(&self, keys: &[u64], rows: &[u8]) -> Result<()> {
        self.inner()?.import_rows(keys, rows, None)
    }

    /// [`import_rows`](Table::import_rows) with the caller's scores.
    ///
    /// # Errors
    /// Those of [`insert_with_scores`](Table::insert_with_scores).
    pub fn import_rows_with_scores(&self, keys: &[u64], rows: &[u8], scores: &[u64]) -> Result<()> {
        self.inner()?.import_rows(keys, rows, Some(scores))
    }

    /// Iterates over all rows, in batches of `batch` keys. With a store, the rows are as of this
    /// call, in ascending order of keys. Without one, each key that exists for the whole time
    /// appears once, with any row that it had during the iteration.
    ///
    /// # Errors
    /// Those of [`flush`](Table::flush). A later failure is the last item of the iterator.
    pub fn export(&self, batch: usize) -> Result<Export> {
        let inner = self.inner()?;
        inner.check_open()?;
        if inner.store.is_none() {
            return Ok(Export::of_host(Arc::clone(inner), batch));
        }
        Ok(self.snapshot()?.export(batch))
    }

    /// A read-only view of the table as of now.
    ///
    /// # Errors
    /// [`Error::NoStore`]; those of [`flush`](Table::flush).
    pub fn snapshot(&self) -> Result<TableSnapshot> {
        let (store, snapshot) = self.inner()?.snapshot()?;
        Ok(TableSnapshot::new(self.inner()?.row, store, snapshot))
    }

    /// Writes a store with all rows, as of now, to an empty or new directory. Another table can
    /// open it.
    ///
    /// # Errors
    /// [`Error::NoStore`]; those of [`flush`](Table::flush). A store that is open for reading only
    /// returns [`ReadOnly`](forerun_db::Error::ReadOnly): its log would have to be flushed first.
    pub fn checkpoint(&self, into: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_with(into, &FileCopyOptions::default())
    }

    /// [`checkpoint`](Self::checkpoint) at a limited rate, with progress, and with a way to stop
    /// it: see [`Db::checkpoint_with`](forerun_db::Db::checkpoint_with).
    ///
    /// # Errors
    /// The same as for [`checkpoint`](Self::checkpoint).
    pub fn checkpoint_with(&self, into: impl AsRef<Path>, options: &FileCopyOptions) -> Result<()> {
        self.inner()?.checkpoint(into.as_ref(), options)
    }

    /// Backs up the store with all rows, as of now: see [`Backups`]. A restored backup is a store
    /// that another table can open.
    ///
    /// # Errors
    /// [`Error::NoStore`]; those of [`flush`](Table::flush) and of [`Backups::create`]. A store
    /// that is open for reading only returns [`ReadOnly`](forerun_db::Error::ReadOnly).
    pub fn backup(&self, backups: &mut Backups) -> Result<Backup> {
        self.inner()?.backup(backups)
    }

    /// Makes all writes that have returned durable. Does nothing without a store.
    ///
    /// # Errors
    /// [`Error::Store`]: the rows stay in the host tier, and a later flush tries again.
    pub fn flush(&self) -> Result<()> {
        self.inner()?.flush()
    }

    /// The type of the rows.
    pub fn row(&self) -> RowType {
        self.open.constant(|open| open.inner()).row
    }

    /// The GPU of the device tier; `None` if that tier is on the CPU or does not exist.
    #[cfg(feature = "gpu")]
    pub fn gpu(&self) -> Option<Gpu> {
        let device = self.inner().ok()?.device_for("gpu").ok()?;
        device.gpu().cloned()
    }

    /// The number of rows in the device tier, all of them copies. 0 in a fork.
    pub fn device_len(&self) -> usize {
        self.inner()
            .ok()
            .and_then(|inner| inner.device())
            .map_or(0, Device::len)
    }

    /// The number of rows in the host tier. 0 in a fork.
    pub fn host_len(&self) -> usize {
        self.inner().map_or(0, |inner| inner.host.linked())
    }

    /// Counts the rows in all tiers. Without a store the count is already known.
    ///
    /// With a store, writes do not check whether their keys are new, so the table cannot keep the
    /// count up to date. A count after few writes (at most 65,536 keys, and one for every eight
    /// rows) looks up the keys that were written since the last count; until the next count, the
    /// store keeps their old rows. Any other count is one of [`Db::count`](forerun_db::Db::count),
    /// which reads the keys that are not yet in the deepest level. With
    /// [`WritePolicy::WriteBack`](crate::WritePolicy::WriteBack), a count writes the changed rows
    /// to the store first.
    ///
    /// The count includes entries that others have written to a store given by
    /// [`Builder::db`](crate::Builder::db).
    ///
    /// # Errors
    /// Those of [`export`](Table::export), and [`Error::Interrupted`].
    pub fn count(&self) -> Result<u64> {
        self.inner()?.count()
    }

    /// The table's metrics since it was opened. All zeros in a fork.
    pub fn stats(&self) -> TableStats {
        self.inner().map(|inner| inner.stats()).unwrap_or_default()
    }

    /// Returns only [`TableStats::device`], at a lower cost.
    pub fn device_stats(&self) -> Option<DeviceStats> {
        self.inner().ok()?.device_stats()
    }

    /// Flushes and closes the table, for all handles. A concurrent write is flushed or refused;
    /// later calls fail with [`Error::Closed`]. If another thread is closing the table, this waits
    /// until it is closed and returns the same result. Dropping the last handle also closes the
    /// table, but only logs a failure.
    ///
    /// The memory is freed with the last handle and the last [`Export`].
    ///
    /// # Errors
    /// Those of [`flush`](Table::flush). The table is closed nevertheless.
    pub fn close(self) -> Result<()> {
        self.open.get()?.close()
    }

    pub(crate) fn of(open: Arc<ProcessBound<Open>>) -> Table {
        Table { open }
    }

    /// Returns an error in every process except the one that opened the table, as all fallible
    /// methods do.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn check_process(&self) -> Result<()> {
        self.inner().map(drop)
    }

    pub(crate) fn inner(&self) -> Result<&Arc<Inner>> {
        Ok(self.open.get()?.inner())
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("row", &self.row())
            .field(
                "policies",
                &self.open.constant(|open| open.inner()).policies,
            )
            .field("device_rows", &self.device_len())
            .field("host_rows", &self.host_len())
            .finish_non_exhaustive()
    }
}
