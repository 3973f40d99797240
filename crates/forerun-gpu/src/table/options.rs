//! The options of a table.

use super::error::TableError;
use super::evict_strategy::GpuEvictStrategy;

/// Slots per bucket: the width of its row of digests, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// A row is half a sector of device memory.
    W16,
    /// A row is one sector, the minimum that device memory delivers.
    W32,
    /// A row is two sectors.
    W64,
    /// A row is one line. It is the only width at which two candidates fill a large table to 0.98
    /// before anything is evicted.
    W128,
}

impl Width {
    /// All widths, the narrowest first.
    pub const ALL: [Width; 4] = [Width::W16, Width::W32, Width::W64, Width::W128];

    /// The number of slots.
    pub fn slots(self) -> u32 {
        match self {
            Width::W16 => 16,
            Width::W32 => 32,
            Width::W64 => 64,
            Width::W128 => 128,
        }
    }
}

/// The number of buckets in which a key can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Candidates {
    /// One: a search takes one probe, but some buckets fill up and evict long before the table is
    /// full.
    One,
    /// Two: its home, and another bucket that takes entries when few slots of the home are free.
    Two,
}

/// The size of a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreBytes {
    /// Up to 2^32 - 1; greater scores are clamped. For [`GpuEvictStrategy::Lfu`] and
    /// [`GpuEvictStrategy::Customized`].
    Four,
    /// The full range of u64.
    Eight,
}

impl ScoreBytes {
    /// The size as a number.
    pub fn bytes(self) -> u32 {
        match self {
            ScoreBytes::Four => 4,
            ScoreBytes::Eight => 8,
        }
    }
}

/// The options of a table. The defaults are HierarchicalKV's: one candidate of 128 slots, and LRU.
///
/// ```
/// use forerun_gpu::table::{GpuTable, GpuEvictStrategy, TableOptions};
///
/// let options = TableOptions::new(100_000, 32).evict_strategy(GpuEvictStrategy::Customized);
/// let table = GpuTable::on_cpu(options)?;
/// assert!(table.capacity() >= 100_000 && table.capacity() % 128 == 0);
/// # Ok::<(), forerun_gpu::table::TableError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableOptions {
    /// Slots, rounded up to whole buckets (to pairs of buckets with two candidates).
    pub capacity: u64,
    /// The maximum number of slots. If it exceeds `capacity`, a batch from the host that might fill
    /// a bucket doubles the table first, like [`reserve`](super::GpuTable::reserve), which may be
    /// called at any time: with the default buckets a table grows when it is 5/8 full, with two
    /// candidates when it is 7/8 full. If memory is lacking, the table evicts instead, and does not
    /// try that size again before [`set_max_capacity`](super::GpuTable::set_max_capacity) or a
    /// growth that succeeds. Operations on streams never grow the table. Default: `capacity`.
    pub max_capacity: u64,
    /// Bytes per row; 0 for a table of only keys and scores.
    pub row_bytes: u64,
    /// Slots per bucket. Default: 128.
    pub width: Width,
    /// Candidate buckets per key. Default: one.
    pub candidates: Candidates,
    /// The eviction strategy. Default: [`GpuEvictStrategy::Lru`].
    pub evict_strategy: GpuEvictStrategy,
    /// The size of a score. Default: 8 bytes.
    pub score_bytes: ScoreBytes,
    /// The maximum bytes of rows in device memory; other rows are in pinned host memory. Keys,
    /// digests and scores are always in device memory. Without a device it has no effect. Default:
    /// no limit.
    pub device_row_bytes_max: u64,
}

/// The maximum row size.
const ROW_BYTES_MAX: u64 = 1 << 30;
/// The maximum number of slots: slot number times row size stays below 2^63.
const SLOTS_MAX: u64 = 1 << 40;

forerun_core::setters! {
    TableOptions {
        capacity: u64,
        max_capacity: u64,
        row_bytes: u64,
        width: Width,
        candidates: Candidates,
        evict_strategy: GpuEvictStrategy,
        score_bytes: ScoreBytes,
        device_row_bytes_max: u64,
    }
}

impl TableOptions {
    /// Options for this many slots and rows of this many bytes.
    pub fn new(capacity: u64, row_bytes: u64) -> TableOptions {
        TableOptions {
            capacity,
            max_capacity: capacity,
            row_bytes,
            width: Width::W128,
            candidates: Candidates::One,
            evict_strategy: GpuEvictStrategy::Lru,
            score_bytes: ScoreBytes::Eight,
            device_row_bytes_max: u64::MAX,
        }
    }

    /// Checks that the options are valid.
    pub(crate) fn check(&self) -> Result<(), TableError> {
        if self.capacity == 0 || self.max_capacity.max(self.capacity) > SLOTS_MAX {
            return Err(TableError::Capacity {
                capacity: self.capacity.max(self.max_capacity),
                max: SLOTS_MAX,
            });
        }
        if self.row_bytes > ROW_BYTES_MAX {
            return Err(TableError::RowTooLong {
                row_bytes: self.row_bytes,
                max: ROW_BYTES_MAX,
            });
        }
        let narrow_fits = matches!(
            self.evict_strategy,
            GpuEvictStrategy::Lfu | GpuEvictStrategy::Customized
        );
        if self.score_bytes == ScoreBytes::Four && !narrow_fits {
            return Err(TableError::NarrowScores {
                evict_strategy: self.evict_strategy,
            });
        }
        Ok(())
    }

    /// Number of buckets for this many slots.
    pub(crate) fn buckets_for(&self, slots: u64) -> u64 {
        let buckets = slots.div_ceil(u64::from(self.width.slots())).max(1);
        match self.candidates {
            Candidates::One => buckets,
            Candidates::Two => buckets.next_multiple_of(2),
        }
    }

    /// The load, in sixteenths, at which a table grows if it may. It is below the load at which the
    /// first bucket of a table of 2^24 slots is full.
    pub(crate) fn sixteenths_before_growth(&self) -> u64 {
        match (self.candidates, self.width) {
            (Candidates::One, Width::W16) => 2,
            (Candidates::One, Width::W32) => 6,
            (Candidates::One, Width::W64) => 8,
            (Candidates::One, Width::W128) => 10,
            (Candidates::Two, Width::W16) => 12,
            (Candidates::Two, _) => 14,
        }
    }

    /// Bytes from one row to the next. They keep rows aligned for their widest units.
    pub(crate) fn row_stride_bytes(&self) -> u64 {
        match self.row_bytes {
            0..=4 => self.row_bytes.next_multiple_of(4),
            5..=8 => 8,
            more => more.next_multiple_of(16),
        }
    }
}
