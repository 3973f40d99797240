//! Options for opening a table.

use crate::admission::AdmissionFilter;
use crate::device_tier::Device;
use crate::disk_tier::Store;
use crate::evict_strategy::EvictStrategy;
use crate::host::Host;
use crate::inner::Inner;
use crate::interrupt::Interrupt;
use crate::memory_budget::MemoryBudget;
#[cfg(feature = "gpu")]
use crate::options::DeviceChoice;
use crate::options::{Admission, HostCapacity, Policies, Promotion, WhenHostFull, WritePolicy};
use crate::table::Table;
use crate::{Dtype, Error, Result, RowType};
use forerun_core::{Pages, memory_limit};
use forerun_db::{Access, Background, Db, Options, RunOptions};
use std::path::PathBuf;

/// The maximum row size: a million bytes, more than an embedding or a token's keys and values need.
const ROW_BYTES_MAX: usize = 1 << 20;

/// Options for opening a [`Table`]: see [`Table::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    row: RowType,
    #[cfg(feature = "gpu")]
    device_capacity: usize,
    #[cfg(feature = "gpu")]
    device: DeviceChoice,
    host: Option<HostCapacity>,
    memory_bytes: Option<usize>,
    pages: Pages,
    below: Below,
    store_options: Options,
    policies: Policies,
    when_full: Option<WhenHostFull>,
    interrupt: Interrupt,
}

/// Default capacity of the host tier of a table with a store.
const HOST_ROWS: usize = 1 << 16;

/// An automatic budget where no limit of the process's memory is known.
const BUDGET_BYTES_UNKNOWN: u64 = 256 << 20;

/// The tier below the host tier.
#[derive(Clone, Debug)]
enum Below {
    Nothing,
    Path(PathBuf),
    Db(Db),
}

impl Table {
    /// Starts to build a table with rows of `dim` elements of type `dtype`.
    pub fn builder(dtype: Dtype, dim: u32) -> Builder {
        Builder::new(RowType::new(dtype, dim))
    }
}

impl Builder {
    pub(crate) fn new(row: RowType) -> Builder {
        Builder {
            row,
            #[cfg(feature = "gpu")]
            device_capacity: 0,
            #[cfg(feature = "gpu")]
            device: DeviceChoice::default(),
            host: None,
            memory_bytes: None,
            pages: Pages::Huge,
            below: Below::Nothing,
            store_options: Options::default()
                // A store lookup reads one page per row, so small pages read fewer bytes
                // (docs/guide/table.md).
                .run(RunOptions::default().page_bytes(RunOptions::PAGE_BYTES_MIN)),
            policies: Policies {
                evict_strategy: EvictStrategy::default(),
                admission: Admission::default(),
                promotion: Promotion::default(),
                writes: WritePolicy::default(),
                background: Background::default(),
                when_full: WhenHostFull::default(),
            },
            when_full: None,
            interrupt: Interrupt::default(),
        }
    }

    /// Rows in the device tier, which holds copies of the most requested rows. Default: 0, no
    /// device tier.
    ///
    /// On a machine without a GPU the tier is in ordinary memory and behaves the same.
    /// [`DeviceStats::name`](crate::DeviceStats::name) tells which device holds it. To require a
    /// GPU, see [`device`](Builder::device).
    ///
    /// ```
    /// use forerun_table::{Dtype, Table};
    ///
    /// let table = Table::builder(Dtype::F32, 64).device_capacity(10_000).open()?;
    /// let device = table.stats().device.unwrap();
    /// println!("rows in use are copied to {}", device.name);
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    #[cfg(feature = "gpu")]
    pub fn device_capacity(mut self, rows: usize) -> Builder {
        self.device_capacity = rows;
        self
    }

    /// The device that holds the device tier. Default: the first GPU, or the CPU if there is none.
    #[cfg(feature = "gpu")]
    pub fn device(mut self, choice: DeviceChoice) -> Builder {
        self.device = choice;
        self
    }

    /// Rows in the host tier. Memory is allocated as it is used.
    ///
    /// Default with a store: 65,536, because the store holds all rows. Default without a store: the
    /// table grows with its rows, up to the machine's memory, and drops none. A table with a
    /// capacity and without a store refuses rows beyond it, unless
    /// [`when_full`](Builder::when_full) asks for eviction.
    pub fn host_capacity(mut self, rows: usize) -> Builder {
        self.host = Some(HostCapacity::Rows(rows));
        self
    }

    /// Bytes of the host tier: rows, index, metadata and admission filter. They do not include the
    /// memory of a store ([`store_options`](Builder::store_options)).
    /// [`TableStats::memory_bytes`](crate::TableStats::memory_bytes) is the sum of both.
    pub fn host_bytes(mut self, bytes: usize) -> Builder {
        self.host = Some(HostCapacity::Bytes(bytes));
        self
    }

    /// The maximum memory of the table, in bytes: one budget for the host tier's rows, their index
    /// and metadata, the admission filters, and the store's page cache and memtables. A quarter is
    /// for pages, an eighth (at most 1 GiB) for memtables, and the rest for rows. Without a store,
    /// all of it is for rows.
    /// [`TableStats::memory_limit_bytes`](crate::TableStats::memory_limit_bytes) is what the parts
    /// add up to, and [`TableStats::memory_bytes`](crate::TableStats::memory_bytes) is what is in
    /// use. A store that is opened for reading only keeps its log in memtables: if the log is long,
    /// they take up to half of the budget, and the rows get less.
    ///
    /// [`open`](Builder::open) refuses it together with [`host_capacity`](Builder::host_capacity)
    /// or [`host_bytes`](Builder::host_bytes). It replaces [`Options::cache_bytes`] and
    /// [`Options::memory_limit_bytes`] of [`store_options`](Builder::store_options), whatever their
    /// values, and lowers [`Options::memtable_bytes`] to half of what memtables may take. It also
    /// fits the shape of the store's tree to the budget, except for what [`Options::tree`] has
    /// changed: loading ten times a budget of up to 340 MiB then writes at most eight times the
    /// bytes of keys and rows, log included, in any order of keys.
    ///
    /// It does not include the rows of the device tier and the buffers of running calls. Two parts
    /// can exceed their share: a store keeps the root pages of its runs and 16 bytes for each page
    /// of 4 KiB in memory, even if the cache's share is smaller; and if rows are short and the
    /// budget is a large part of the machine's memory, the index starts small, and may exceed its
    /// share while it grows. Default: none.
    ///
    /// ```
    /// use forerun_table::{Dtype, Table};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("rows");
    /// let table = Table::builder(Dtype::F32, 64).memory_bytes(64 << 20).path(path).open()?;
    /// assert!(table.stats().memory_limit_bytes <= 64 << 20);
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    pub fn memory_bytes(mut self, bytes: usize) -> Builder {
        self.memory_bytes = Some(bytes);
        self
    }

    /// [`memory_bytes`](Self::memory_bytes) with half of what the process may use: of the machine's
    /// memory, `RLIMIT_AS`, or the smallest limit of its control groups, as it is now. Where the
    /// system does not tell, 256 MiB. Each table that asks for this gets as much, so it is for a
    /// process with one.
    ///
    /// ```
    /// use forerun_table::{Dtype, Table};
    ///
    /// let builder = Table::builder(Dtype::F32, 64).memory_auto();
    /// assert!(builder.memory_budget().is_some_and(|bytes| bytes > 0));
    /// ```
    pub fn memory_auto(self) -> Builder {
        let bytes = memory_limit().map_or(BUDGET_BYTES_UNKNOWN, |limit| limit.bytes / 2);
        self.memory_bytes(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// The maximum memory of the table, in bytes, if [`memory_bytes`](Self::memory_bytes) or
    /// [`memory_auto`](Self::memory_auto) has set one.
    pub fn memory_budget(&self) -> Option<usize> {
        self.memory_bytes
    }

    /// The directory of the store, which holds all rows that the host tier does not. Default: none;
    /// all rows are in memory.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Builder {
        self.below = Below::Path(path.into());
        self
    }

    /// Options of the store at [`path`](Builder::path). Its memory ([`Options::cache_bytes`]) is
    /// additional to the host tier's. Default: a store's default options with pages of 4 KiB.
    pub fn store_options(mut self, options: Options) -> Builder {
        self.store_options = options;
        self
    }

    /// The default options of a store at [`path`](Builder::path).
    pub fn default_store_options(&self) -> Options {
        self.store_options.clone()
    }

    /// A store that is already open. It is new or holds a table's rows. It stays open when the
    /// table is closed.
    pub fn db(mut self, db: Db) -> Builder {
        self.below = Below::Db(db);
        self
    }

    /// Which rows the host tier evicts first. Default: the least used.
    pub fn evict_strategy(mut self, strategy: EvictStrategy) -> Builder {
        self.policies.evict_strategy = strategy;
        self
    }

    /// Which rows a lookup promotes. Default: those that were looked up before.
    pub fn admission(mut self, admission: Admission) -> Builder {
        self.policies.admission = admission;
        self
    }

    /// Sets which calls promote rows. Default: lookups and prefetch.
    pub fn promotion(mut self, promotion: Promotion) -> Builder {
        self.policies.promotion = promotion;
        self
    }

    /// When written rows reach the store. Default: at once.
    pub fn writes(mut self, writes: WritePolicy) -> Builder {
        self.policies.writes = writes;
        self
    }

    /// Which thread moves rows between the tiers: one that belongs to the table, so that lookups do
    /// not wait, or the calling thread, after it has its result. With [`Background::Caller`] the
    /// order of moves depends on the calls alone. Default: [`Background::Threads`].
    pub fn background(mut self, background: Background) -> Builder {
        self.policies.background = background;
        self
    }

    /// Sets the behavior of a table without a store when its host tier is full. Default: refuse new
    /// rows.
    pub fn when_full(mut self, when_full: WhenHostFull) -> Builder {
        self.when_full = Some(when_full);
        self
    }

    /// A function that long calls invoke on the calling thread, at least a few times per second. If
    /// it returns `true`, the call ends with [`Error::Interrupted`]. A program can use it to cancel
    /// a call or to handle a signal. Default: none.
    ///
    /// Lookups, writes, [`flush`](Table::flush), [`snapshot`](Table::snapshot) and
    /// [`count`](Table::count) invoke it; [`close`](Table::close) does not.
    pub fn interrupt_if(mut self, ask: impl Fn() -> bool + Send + Sync + 'static) -> Builder {
        self.interrupt = Interrupt::new(ask);
        self
    }

    /// Page size of the host tier's memory. Default: huge pages.
    pub fn pages(mut self, pages: Pages) -> Builder {
        self.pages = pages;
        self
    }

    /// Opens the table.
    ///
    /// # Errors
    /// - [`Error::RowSize`], [`Error::HostCapacity`], [`Error::MemoryBudget`],
    ///   [`Error::LogMemory`], [`Error::Conflict`]: the options are impossible.
    /// - `Error::NoDevice`, `Error::Device` (with feature `gpu`): the device tier cannot be made.
    /// - [`Error::OtherTable`]: the store holds other rows.
    /// - [`Error::Store`]: the store cannot be opened.
    /// - [`Error::Memory`], [`Error::Index`], [`Error::Thread`]: the system refused memory or a
    ///   thread.
    pub fn open(self) -> Result<Table> {
        self.check()?;
        let device = self.open_device()?;
        self.open_over(device)
    }

    #[cfg(feature = "gpu")]
    fn open_device(&self) -> Result<Option<Device>> {
        match self.device_capacity {
            0 => Ok(None),
            rows => {
                let bytes = self.row.bytes();
                Device::open(self.device, rows, bytes, &self.policies).map(Some)
            }
        }
    }

    #[cfg(not(feature = "gpu"))]
    fn open_device(&self) -> Result<Option<Device>> {
        Ok(None)
    }

    /// Opens the other tiers.
    pub(crate) fn open_over(self, device: Option<Device>) -> Result<Table> {
        let by_default = match self.below {
            Below::Nothing => HostCapacity::Memory,
            Below::Path(_) | Below::Db(_) => HostCapacity::Rows(HOST_ROWS),
        };
        let mut policies = self.policies;
        policies.when_full = self.when_full.unwrap_or_default();
        let (row_bytes, strategy) = (self.row.bytes(), policies.evict_strategy);
        let mut capacity = self.host.unwrap_or(by_default);
        let mut store_options = self.store_options;
        let mut read_only = None;
        if let Some(bytes) = self.memory_bytes {
            let filter = device.as_ref().map(Device::admission_filter);
            let filter_bytes = filter.map_or(0, AdmissionFilter::memory_bytes);
            let host_bytes = if matches!(self.below, Below::Nothing) {
                bytes.saturating_sub(filter_bytes)
            } else {
                let mut parts = MemoryBudget::with_store(bytes, filter_bytes, self.row, strategy)?;
                if let Below::Path(path) = &self.below
                    && store_options.access == Access::ReadOnly
                {
                    let opened = parts.open_read_only(path, &store_options, self.row, strategy)?;
                    (read_only, parts) = (Some(opened.0), opened.1);
                }
                store_options = parts.limit(store_options);
                parts.host_bytes
            };
            capacity = HostCapacity::Bytes(host_bytes);
        }
        let filter_bytes = match self.below {
            Below::Nothing => 0,
            Below::Path(_) | Below::Db(_) => AdmissionFilter::bytes_per_row(&policies),
        };
        let host = Host::new(row_bytes, capacity, filter_bytes, strategy, self.pages)?;
        let (db, is_ours) = match (self.below, read_only) {
            (Below::Nothing, _) => (None, false),
            (Below::Path(_), Some(db)) => (Some(db), true),
            (Below::Path(path), None) => (Some(Db::open(path, store_options)?), true),
            (Below::Db(db), _) => (Some(db), false),
        };
        let store = db
            .map(|db| Store::open(db, self.row, policies.evict_strategy))
            .transpose()?;
        let inner = Inner::new(self.row, policies, self.interrupt, device, host, store)?;
        Table::start(inner, is_ours)
    }

    fn check(&self) -> Result<()> {
        let row = self.row;
        let is_possible = row.dtype.bytes().checked_mul(row.dim as usize);
        if !is_possible.is_some_and(|bytes| (1..=ROW_BYTES_MAX).contains(&bytes)) {
            return Err(Error::RowSize {
                row,
                limit_bytes: ROW_BYTES_MAX,
            });
        }
        if let Some(ttl) = self.store_options.ttl {
            return Err(Error::StoreTtl { ttl });
        }
        if self.memory_bytes.is_some() && self.host.is_some() {
            return Err(Error::Conflict(
                "`memory` is one budget for all parts of a table: give it, or the size of the host \
                 tier",
            ));
        }
        if self.memory_bytes.is_some() && matches!(self.below, Below::Db(_)) {
            return Err(Error::Conflict(
                "an open store has limits of its own: give `memory` with the path of a store",
            ));
        }
        let has_store = !matches!(self.below, Below::Nothing);
        if has_store && self.when_full.is_some() {
            return Err(Error::Conflict(
                "a table with a store evicts rows to the store and takes no `when_full`",
            ));
        }
        if !has_store && self.policies.writes == WritePolicy::WriteBack {
            return Err(Error::Conflict(
                "write-back needs a store: give the table a `path`",
            ));
        }
        let is_read_only = match &self.below {
            Below::Nothing => false,
            Below::Path(_) => self.store_options.access == Access::ReadOnly,
            Below::Db(db) => db.access() == Access::ReadOnly,
        };
        if is_read_only && self.policies.writes == WritePolicy::WriteBack {
            return Err(Error::Conflict(
                "a store that is open for reading only takes no rows that are written back",
            ));
        }
        Ok(())
    }
}
