//! The table, as it is used.

use crate::builder::Builder;
use crate::close::{Open, WeakTable};
use crate::device::{Device, Pointers};
use crate::inner::Inner;
use crate::options::{Moves, Update};
use crate::snapshot::{Export, Snapshot};
use crate::stats::{DeviceStats, Stats};
use crate::{Dtype, Error, Result, RowType, worker};
use forerun_core::ProcessBound;
use forerun_gpu::Gpu;
use forerun_gpu::gather::Destination;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Rows of one size under `u64` keys: those in use in memory, a GPU's or the host's, the rest on disk, every call a batch.
///
/// A handle: clones share one open table, which is closed with the last of them or by [`close`](Table::close). All methods
/// may be called from many threads at once. All keys are legal.
///
/// A handle belongs to the process that opened the table. After a `fork`, it does nothing in the child: each call there is
/// [`Error::Forked`], and to drop it there leaves the table and its store as they are.
///
/// Rows are bytes: `rows` of a batch holds one after the other, `keys.len() * row().bytes()` in all, elements
/// little-endian.
///
/// # Consistency
/// - When a call that writes has returned, every lookup that begins later sees it, in whichever tier the row is. A lookup
///   that runs beside it sees the row as before or as after, whole, each key for itself.
/// - Writers of one key take turns. Lookups wait for nobody; with a device tier they wait for a batch that is being written
///   there.
/// - A row is in the store before it leaves the host tier. The device tier has copies of rows below, nothing else.
/// - Written through ([`Writes::Through`](crate::Writes)), a row that was written survives the end of the process;
///   written back, one that [`flush`](Table::flush) covered does. After `flush` both survive the loss of power.
/// - A tier that fails fails the keys concerned: the call gives [`Error::Keys`], which lists them, and all other keys are
///   served. A device that fails fails none: the tiers below have all that it had, and go on without it. Only what needs
///   it, [`find_ptr`](Table::find_ptr) and [`find_to_device`](Table::find_to_device), fails with it.
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
    open: Arc<ProcessBound<Open>>,
}

impl Table {
    /// A table to be, with rows of `dim` elements of a type.
    pub fn builder(dtype: Dtype, dim: u32) -> Builder {
        Builder::new(RowType::new(dtype, dim))
    }

    pub(crate) fn start(inner: Inner, closes_store: bool) -> Result<Table> {
        let inner = Arc::new(inner);
        let thread = match inner.policies.moves {
            Moves::Caller => None,
            Moves::Background => {
                let thread = worker::start(&inner);
                Some(thread.map_err(|error| Error::Thread(error.to_string()))?)
            }
        };
        Ok(Table {
            open: Arc::new(ProcessBound::new(Open::new(inner, thread, closes_store))),
        })
    }

    /// Looks keys up: copies the rows that are found to their positions in `rows` and says in `found` which are. Rows of
    /// keys that are not found stay as they are. Gives the number found. Keys may repeat.
    ///
    /// # Errors
    /// [`Error::Keys`]: a tier failed for some keys, which count as not found; the others are answered.
    /// [`Error::Length`], [`Error::Closed`]: nothing was looked up.
    pub fn find(&self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        self.inner()?.find(keys, rows, found)
    }

    /// [`find`](Table::find) with rows that end in the memory of the device tier: rows that are there are copied from device
    /// to device, those of the tiers below travel by the [row gather](forerun_gpu::gather) out of pinned memory. `found`
    /// lies in the host's memory. When it returns, all rows are in their places.
    ///
    /// `rows` is a [`DeviceBuffer`](forerun_gpu::DeviceBuffer) or a [`DeviceSlice`](forerun_gpu::DeviceSlice) on the tier's
    /// [GPU](Table::gpu); where the tier lies on the CPU, it is ordinary memory. Work of other streams on that memory
    /// is not waited for: order that by events, or by a scope's end. Eight such calls go on at a time, and others wait, since
    /// each takes [some](forerun_gpu::gather::StagingShape::of) pinned memory.
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
    ///         let buffer = DeviceBuffer::of(&gpu, &rows)?;
    ///         table.find_to_device(&[8, 9, 7], &buffer, &mut found)?;
    ///         buffer.read(0, &mut rows)?;
    ///     }
    /// }
    /// assert_eq!((&rows, found), (b"egit\0\0\0\0sevn", [true, false, true]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Keys`]: the store failed for some keys, which count as not found; the others are answered.
    /// [`Error::Device`]: the device failed, now or before, or there is no pinned memory; no key counts as found then, and
    /// what lies in `rows` is not said. [`find`](Table::find) serves all the same.
    /// [`Error::NoDeviceTier`], [`Error::Destination`], [`Error::Length`], [`Error::Closed`]: nothing was looked up.
    pub fn find_to_device<'r>(
        &self,
        keys: &[u64],
        rows: impl Into<Destination<'r>>,
        found: &mut [bool],
    ) -> Result<usize> {
        self.inner()?.find_to_device(keys, rows.into(), found)
    }

    /// Says in `found` which keys have a row, and gives their number. Nothing is moved or counted as a use.
    ///
    /// # Errors
    /// As [`find`](Table::find).
    pub fn contains(&self, keys: &[u64], found: &mut [bool]) -> Result<usize> {
        self.inner()?.contains(keys, found)
    }

    /// Puts rows under keys, whether there are some already or not. Of a key that repeats, the last row stays.
    ///
    /// # Errors
    /// [`Error::Keys`]: a tier failed for some keys, which have the rows that they had; the others are written. Where the
    /// store says that a write may or may not be there after the next opening, so it is here.
    /// [`Error::Length`], [`Error::Closed`]: nothing was written.
    pub fn insert(&self, keys: &[u64], rows: &[u8]) -> Result<()> {
        self.inner()?.insert(keys, rows, None)
    }

    /// [`insert`](Table::insert) with the callers' scores, for [`Score::Custom`](crate::Score::Custom).
    ///
    /// # Errors
    /// As there, and [`Error::Conflict`] with another policy.
    pub fn insert_with_scores(&self, keys: &[u64], rows: &[u8], scores: &[u64]) -> Result<()> {
        self.inner()?.insert(keys, rows, Some(scores))
    }

    /// Changes the rows of keys that have one: assigns, or adds element by element. Of a key that repeats, all of its rows
    /// count, in their order. `found` says which keys had a row; the number of those is given.
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
    /// As [`insert`](Table::insert).
    pub fn update(
        &self,
        keys: &[u64],
        rows: &[u8],
        how: Update,
        found: &mut [bool],
    ) -> Result<usize> {
        self.inner()?.update(keys, rows, how, found)
    }

    /// Removes keys, which need not be there.
    ///
    /// # Errors
    /// As [`insert`](Table::insert): the keys named are still there.
    pub fn erase(&self, keys: &[u64]) -> Result<()> {
        self.inner()?.erase(keys)
    }

    /// Brings rows up ahead of their use, to the device if there is a tier there, else from the store to the host tier,
    /// whatever admission says. It does not wait for that, unless [`Moves::Caller`] was asked for. More keys than a bound
    /// that wait are passed over.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Interrupted`].
    pub fn prefetch(&self, keys: &[u64]) -> Result<()> {
        let inner = self.inner()?;
        inner.check_open()?;
        inner.queue_prefetch(keys)
    }

    /// Where the rows of keys lie in the device's memory, by position: 0 for those that are not there, which may be
    /// [prefetched](Table::prefetch). The addresses are the device's (the process's, where the tier lies on the CPU).
    /// They hold as long as what is returned lives, which keeps writers of the device tier waiting.
    ///
    /// ```
    /// use forerun_table::{Dtype, Moves, Table};
    ///
    /// let table = Table::builder(Dtype::U8, 4).device_capacity(100).moves(Moves::Caller).open()?;
    /// table.insert(&[7, 8], b"sevnegit")?;
    /// table.prefetch(&[7])?;
    /// let rows = table.find_ptr(&[7, 8])?;
    /// assert!(rows[0] != 0 && rows[1] == 0);
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDeviceTier`], [`Error::Device`], [`Error::Closed`].
    pub fn find_ptr(&self, keys: &[u64]) -> Result<Pointers<'_>> {
        let inner = self.inner()?;
        inner.check_open()?;
        inner.device_for("find_ptr")?.find_ptr(keys)
    }

    /// Waits until no row is being moved in the background.
    pub fn wait_idle(&self) {
        while !self.wait_idle_for(Duration::from_secs(3600)) {}
    }

    /// [`wait_idle`](Table::wait_idle) with a timeout. Returns whether all moves are done.
    pub fn wait_idle_for(&self, timeout: Duration) -> bool {
        let Ok(inner) = self.inner() else {
            return true;
        };
        match inner.policies.moves {
            Moves::Background => inner.queue.wait_idle(timeout),
            Moves::Caller => true,
        }
    }

    /// Puts rows under keys as [`insert`](Table::insert) does, and leaves them in the store: to load a table without
    /// driving out what is in use. Without a store it inserts.
    ///
    /// The more in a call, the better. Rows of keys that ascend, half a memtable of them or more (32 MiB unless the store's
    /// options say otherwise), go straight to files of the store, are durable then, and come in together or not at all;
    /// other writers wait while the last of it is made visible.
    ///
    /// # Errors
    /// As [`insert`](Table::insert).
    pub fn import_rows(&self, keys: &[u64], rows: &[u8]) -> Result<()> {
        self.inner()?.import_rows(keys, rows, None)
    }

    /// [`import_rows`](Table::import_rows) with the callers' scores.
    ///
    /// # Errors
    /// As [`insert_with_scores`](Table::insert_with_scores).
    pub fn import_rows_with_scores(&self, keys: &[u64], rows: &[u8], scores: &[u64]) -> Result<()> {
        self.inner()?.import_rows(keys, rows, Some(scores))
    }

    /// All rows, in batches of `batch` keys. With a store they are those of this moment, ascending by key; without, each
    /// key that is there all the time is met once, with a row that it had meanwhile.
    ///
    /// # Errors
    /// As [`flush`](Table::flush). What fails later is an item of the iterator, the last one.
    pub fn export(&self, batch: usize) -> Result<Export> {
        let inner = self.inner()?;
        inner.check_open()?;
        if inner.store.is_none() {
            return Ok(Export::of_host(Arc::clone(inner), batch));
        }
        Ok(self.snapshot()?.export(batch))
    }

    /// The table as it is now, for reading later.
    ///
    /// # Errors
    /// [`Error::NoStore`]; as [`flush`](Table::flush).
    pub fn snapshot(&self) -> Result<Snapshot> {
        let (store, snapshot) = self.inner()?.snapshot()?;
        Ok(Snapshot::new(self.inner()?.row, store, snapshot))
    }

    /// Makes a store in an empty or new directory that holds all rows of now, for another table to open.
    ///
    /// # Errors
    /// [`Error::NoStore`]; as [`flush`](Table::flush).
    pub fn checkpoint(&self, into: impl AsRef<Path>) -> Result<()> {
        self.inner()?.checkpoint(into.as_ref())
    }

    /// Makes all rows durable whose writing has returned. Without a store it does nothing.
    ///
    /// # Errors
    /// [`Error::Store`]: the rows stay in the host tier, and a later flush tries again.
    pub fn flush(&self) -> Result<()> {
        self.inner()?.flush()
    }

    /// The rows' type and size.
    pub fn row(&self) -> RowType {
        self.open.constant(|open| open.inner()).row
    }

    /// The GPU that the device tier lies on; `None` where it lies on the CPU, and without such a tier.
    pub fn gpu(&self) -> Option<Gpu> {
        let device = self.inner().ok()?.device_for("gpu").ok()?;
        device.gpu().cloned()
    }

    /// Rows in the device tier: copies of rows that lie below as well. None in a fork.
    pub fn device_len(&self) -> usize {
        self.inner()
            .ok()
            .and_then(|inner| inner.device())
            .map_or(0, Device::len)
    }

    /// Rows in the host tier. None in a fork.
    pub fn host_len(&self) -> usize {
        self.inner().map_or(0, |inner| inner.host.linked())
    }

    /// Rows in all tiers. With a store this reads through it: it takes the time of an export.
    ///
    /// # Errors
    /// As [`export`](Table::export).
    pub fn count(&self) -> Result<u64> {
        let mut count = 0;
        for rows in self.export(4096)? {
            self.inner()?.interrupt.check()?;
            count += rows?.keys.len() as u64;
        }
        Ok(count)
    }

    /// What the table holds, and did since it was opened. All zeros in a fork, where nothing can be asked.
    pub fn stats(&self) -> Stats {
        self.inner().map(|inner| inner.stats()).unwrap_or_default()
    }

    /// What [`Stats::device`] has, without the work for the rest.
    pub fn device_stats(&self) -> Option<DeviceStats> {
        self.inner().ok()?.device_stats()
    }

    /// Flushes and closes the table, for all handles. A write that runs beside it is flushed or refused; calls that come
    /// later are [`Error::Closed`]. If another thread is closing the table, this waits until it is closed and gives the same
    /// result. Dropping the last handle closes it as well; a failure is only logged then.
    ///
    /// The memory goes with the last handle and the last [`Export`].
    ///
    /// # Errors
    /// As [`flush`](Table::flush). The table is closed all the same.
    pub fn close(self) -> Result<()> {
        self.open.get()?.close()
    }

    /// A handle that does not keep the table open.
    pub fn downgrade(&self) -> WeakTable {
        WeakTable::of(&self.open)
    }

    pub(crate) fn of(open: Arc<ProcessBound<Open>>) -> Table {
        Table { open }
    }

    /// Refuses every process but the one that opened the table, as all methods do that can fail.
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
