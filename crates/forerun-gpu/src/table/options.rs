//! How a table is made.

use super::error::TableError;

/// Slots of a bucket: the width of its row of digests, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// A row is half a sector of the device's memory.
    W16,
    /// A sector: the least that the device's memory gives.
    W32,
    /// Two sectors.
    W64,
    /// A line. The only width at which two candidates fill a large table to 0.98 before anything is
    /// evicted.
    W128,
}

impl Width {
    /// All of them, the narrowest first.
    pub const ALL: [Width; 4] = [Width::W16, Width::W32, Width::W64, Width::W128];

    /// As a number of slots.
    pub fn slots(self) -> u32 {
        match self {
            Width::W16 => 16,
            Width::W32 => 32,
            Width::W64 => 64,
            Width::W128 => 128,
        }
    }
}

/// In how many buckets a key can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Candidates {
    /// One: a search is one probe; a bucket is full, and evicts, long before the table is.
    One,
    /// Its home, and another one that is used when little is left of the home.
    Two,
}

/// How the score of an entry follows from what is done with it. The least score is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Policy {
    /// When it was last written or touched, in nanoseconds of the device's clock.
    Lru = 0,
    /// How often it was written or touched; where scores are given, the sum of them.
    Lfu = 1,
    /// The operation's epoch in the upper half, when in units of 2^20 ns in the lower.
    EpochLru = 2,
    /// The operation's epoch in the upper half, how often in the lower.
    EpochLfu = 3,
    /// As given.
    Custom = 4,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 5] = [
        Policy::Lru,
        Policy::Lfu,
        Policy::EpochLru,
        Policy::EpochLfu,
        Policy::Custom,
    ];

    /// By its number.
    pub(crate) fn of(number: u32) -> Option<Policy> {
        Policy::ALL.into_iter().find(|p| *p as u32 == number)
    }
}

/// Bytes of a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreBytes {
    /// Up to 2^32 - 1, where greater ones stay. With [`Policy::Lfu`] and [`Policy::Custom`].
    Four,
    /// All of u64.
    Eight,
}

impl ScoreBytes {
    /// As a number.
    pub fn bytes(self) -> u32 {
        match self {
            ScoreBytes::Four => 4,
            ScoreBytes::Eight => 8,
        }
    }
}

/// How a table is made. The defaults are two candidates of 128 slots and LRU.
///
/// ```
/// use forerun_gpu::table::{GpuTable, Policy, TableOptions};
///
/// let options = TableOptions { policy: Policy::Custom, ..TableOptions::new(100_000, 32) };
/// let table = GpuTable::on_cpu(options)?;
/// assert!(table.capacity() >= 100_000 && table.capacity() % 256 == 0);
/// # Ok::<(), forerun_gpu::table::TableError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// Slots, rounded up to whole buckets (to pairs of them with two candidates).
    pub capacity: u64,
    /// The most slots that it may grow to. Where that is more than `capacity`, a batch of the
    /// host's that might fill it beyond 7/8 doubles it first (as
    /// [`reserve`](super::GpuTable::reserve) does, which may be called at any time); operations on
    /// streams never do.
    pub max_capacity: u64,
    /// Bytes of a row; 0 for a table of keys and scores alone.
    pub row_bytes: u64,
    /// Slots of a bucket.
    pub width: Width,
    /// Buckets of a key.
    pub candidates: Candidates,
    /// What is evicted first.
    pub policy: Policy,
    /// Bytes of a score.
    pub score_bytes: ScoreBytes,
    /// The most bytes of rows in the device's memory; the others lie in pinned host memory. Keys,
    /// digests and scores are always the device's. Where there is no device it means nothing.
    pub device_row_bytes_max: u64,
}

/// The longest row.
const ROW_BYTES_MAX: u64 = 1 << 30;
/// The most slots: their numbers, times a row, stay below 2^63.
const SLOTS_MAX: u64 = 1 << 40;

impl TableOptions {
    /// So many slots, for rows of so many bytes.
    pub fn new(capacity: u64, row_bytes: u64) -> TableOptions {
        TableOptions {
            capacity,
            max_capacity: capacity,
            row_bytes,
            width: Width::W128,
            candidates: Candidates::Two,
            policy: Policy::Lru,
            score_bytes: ScoreBytes::Eight,
            device_row_bytes_max: u64::MAX,
        }
    }

    /// That they make sense.
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
        let narrow_fits = matches!(self.policy, Policy::Lfu | Policy::Custom);
        if self.score_bytes == ScoreBytes::Four && !narrow_fits {
            return Err(TableError::NarrowScores {
                policy: self.policy,
            });
        }
        Ok(())
    }

    /// Buckets for so many slots.
    pub(crate) fn buckets_for(&self, slots: u64) -> u64 {
        let buckets = slots.div_ceil(u64::from(self.width.slots())).max(1);
        match self.candidates {
            Candidates::One => buckets,
            Candidates::Two => buckets.next_multiple_of(2),
        }
    }

    /// Bytes from one row to the next: so that a row begins where its widest units do.
    pub(crate) fn row_stride_bytes(&self) -> u64 {
        match self.row_bytes {
            0..=4 => self.row_bytes.next_multiple_of(4),
            5..=8 => 8,
            more => more.next_multiple_of(16),
        }
    }
}
