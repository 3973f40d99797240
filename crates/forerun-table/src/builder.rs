//! How a table is opened.

use crate::device::Device;
use crate::host::Host;
use crate::inner::{Inner, Policies};
use crate::interrupt::Interrupt;
use crate::options::{Admission, DeviceChoice, HostCapacity, Moves, Overflow, Promotion, Writes};
use crate::policy::Score;
use crate::store::Store;
use crate::table::Table;
use crate::{Error, Result, RowType};
use forerun_core::Pages;
use forerun_db::{Db, Options, RunOptions};
use std::path::PathBuf;

/// The longest row: a million bytes, more than an embedding or a token's keys and values take.
const ROW_BYTES_MAX: usize = 1 << 20;

/// How a [`Table`] is opened: see [`Table::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    row: RowType,
    device_capacity: usize,
    device: DeviceChoice,
    host: Option<HostCapacity>,
    pages: Pages,
    below: Below,
    store_options: Options,
    policies: Policies,
    overflow: Option<Overflow>,
    interrupt: Interrupt,
}

/// Rows in the host tier of a table with a store, unless something else is asked for.
const HOST_ROWS: usize = 1 << 16;

/// What is below the host tier.
#[derive(Clone, Debug)]
enum Below {
    Nothing,
    Path(PathBuf),
    Db(Db),
}

impl Builder {
    pub(crate) fn new(row: RowType) -> Builder {
        Builder {
            row,
            device_capacity: 0,
            device: DeviceChoice::default(),
            host: None,
            pages: Pages::Huge,
            below: Below::Nothing,
            store_options: Options {
                // A lookup in the store reads a page for a row: the fewer bytes, the better
                // (docs/guide/table.md).
                run: RunOptions {
                    page_bytes: RunOptions::MIN_PAGE_BYTES,
                    ..RunOptions::default()
                },
                ..Options::default()
            },
            policies: Policies {
                score: Score::default(),
                admission: Admission::default(),
                promotion: Promotion::default(),
                writes: Writes::default(),
                moves: Moves::default(),
                overflow: Overflow::default(),
            },
            overflow: None,
            interrupt: Interrupt::default(),
        }
    }

    /// Rows that a device tier is to hold, above the host tier: copies of those wanted most.
    /// Default: 0, no device tier.
    ///
    /// On a machine without a GPU the tier lies in ordinary memory, and does what it would do on
    /// one; what it lies on says [`DeviceStats::name`](crate::DeviceStats::name). To insist on a
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
    pub fn device_capacity(mut self, rows: usize) -> Builder {
        self.device_capacity = rows;
        self
    }

    /// What the device tier lies on. Default: the first GPU, or the CPU where there is none.
    pub fn device(mut self, choice: DeviceChoice) -> Builder {
        self.device = choice;
        self
    }

    /// Rows that the host tier holds. Memory is taken as it is used.
    ///
    /// Default: 65,536 with a store, which has all rows. Without a store the table grows with its
    /// rows, up to the memory of the machine, and drops none. A table with a capacity and without a
    /// store refuses rows beyond it, unless [`overflow`](Builder::overflow) asks for eviction.
    pub fn host_capacity(mut self, rows: usize) -> Builder {
        self.host = Some(HostCapacity::Rows(rows));
        self
    }

    /// Bytes that the host tier takes: rows, index, and what is noted of each row. The memory of a
    /// store ([`store_options`](Builder::store_options)) comes on top:
    /// [`Stats::memory_bytes`](crate::Stats::memory_bytes) is the sum.
    pub fn host_bytes(mut self, bytes: usize) -> Builder {
        self.host = Some(HostCapacity::Bytes(bytes));
        self
    }

    /// The directory of the store that has all rows which the host tier does not. Default: none,
    /// all rows are in memory.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Builder {
        self.below = Below::Path(path.into());
        self
    }

    /// How the store at [`path`](Builder::path) is opened: its memory besides the host tier's,
    /// above all [`Options::cache_bytes`]. Default: as any store, with pages of 4 KiB.
    pub fn store_options(mut self, options: Options) -> Builder {
        self.store_options = options;
        self
    }

    /// The options that a store at [`path`](Builder::path) is opened with unless others are given.
    pub fn default_store_options(&self) -> Options {
        self.store_options.clone()
    }

    /// A store that is open already, new or with a table's rows. It stays open when the table is
    /// closed.
    pub fn db(mut self, db: Db) -> Builder {
        self.below = Below::Db(db);
        self
    }

    /// Which rows leave the host tier first. Default: those used least.
    pub fn score(mut self, score: Score) -> Builder {
        self.policies.score = score;
        self
    }

    /// Which rows come up when they are looked up. Default: those that were looked up before.
    pub fn admission(mut self, admission: Admission) -> Builder {
        self.policies.admission = admission;
        self
    }

    /// What brings rows up. Default: lookups, and prefetch.
    pub fn promotion(mut self, promotion: Promotion) -> Builder {
        self.policies.promotion = promotion;
        self
    }

    /// When written rows reach the store. Default: at once.
    pub fn writes(mut self, writes: Writes) -> Builder {
        self.policies.writes = writes;
        self
    }

    /// Who moves rows. Default: a thread of the table's own.
    pub fn moves(mut self, moves: Moves) -> Builder {
        self.policies.moves = moves;
        self
    }

    /// What a table without a store does when its host tier is full. Default: it refuses new rows.
    pub fn overflow(mut self, overflow: Overflow) -> Builder {
        self.overflow = Some(overflow);
        self
    }

    /// A function that long calls ask, on the thread that made them, a few times a second at least:
    /// `true` ends the call with [`Error::Interrupted`]. So a program can cancel a call, or answer
    /// a signal. Default: none.
    ///
    /// Lookups, writes, [`flush`](Table::flush), [`snapshot`](Table::snapshot) and
    /// [`count`](Table::count) ask; [`close`](Table::close) does not.
    pub fn interrupt(mut self, ask: impl Fn() -> bool + Send + Sync + 'static) -> Builder {
        self.interrupt = Interrupt::new(ask);
        self
    }

    /// Pages that the host tier's memory is asked in. Default: huge ones.
    pub fn pages(mut self, pages: Pages) -> Builder {
        self.pages = pages;
        self
    }

    /// Opens the table.
    ///
    /// # Errors
    /// - [`Error::RowSize`], [`Error::HostCapacity`], [`Error::Conflict`]: what was asked for is
    ///   not possible.
    /// - [`Error::NoDevice`], [`Error::Device`]: the device tier cannot be made.
    /// - [`Error::OtherTable`]: the store holds other rows.
    /// - [`Error::Store`]: it cannot be opened. [`Error::Memory`], [`Error::Index`],
    ///   [`Error::Thread`].
    pub fn open(self) -> Result<Table> {
        self.check()?;
        let device = match self.device_capacity {
            0 => None,
            rows => {
                let bytes = self.row.bytes();
                Some(Device::open(self.device, rows, bytes, &self.policies)?)
            }
        };
        self.open_over(device)
    }

    /// Opens the other tiers.
    pub(crate) fn open_over(self, device: Option<Device>) -> Result<Table> {
        let by_default = match self.below {
            Below::Nothing => HostCapacity::Memory,
            Below::Path(_) | Below::Db(_) => HostCapacity::Rows(HOST_ROWS),
        };
        let capacity = self.host.unwrap_or(by_default);
        let mut policies = self.policies;
        policies.overflow = self.overflow.unwrap_or_default();
        let host = Host::new(self.row.bytes(), capacity, policies.score, self.pages)?;
        let (db, is_ours) = match self.below {
            Below::Nothing => (None, false),
            Below::Path(path) => (Some(Db::open(path, self.store_options)?), true),
            Below::Db(db) => (Some(db), false),
        };
        let store = db
            .map(|db| Store::open(db, self.row, policies.score))
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
        let has_store = !matches!(self.below, Below::Nothing);
        if has_store && self.overflow.is_some() {
            return Err(Error::Conflict(
                "rows that leave go to the store: a table with a store takes no overflow policy",
            ));
        }
        if !has_store && self.policies.writes == Writes::Back {
            return Err(Error::Conflict(
                "there is no store to write rows back to: give the builder a path",
            ));
        }
        Ok(())
    }
}
