//! What a cache is made with, and why it could not be made.

use forerun_core::{Pages, RegionError};

/// The longest key, in bytes: memcached's.
pub const MAX_KEY_BYTES: usize = 250;

/// What [`CacheOptions::max_item_bytes`] counts for an item beside its key and value.
pub const ITEM_OVERHEAD_BYTES: usize = 32;

/// The largest value that [`CacheOptions::max_item_bytes`] may allow.
pub const MAX_ITEM_BYTES: usize = 1 << 30;

/// The smallest [`CacheOptions::memory_limit_bytes`].
pub const MIN_MEMORY_BYTES: usize = 1 << 20;

/// How a cache is made.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions};
///
/// let cache = Cache::new(CacheOptions { memory_limit_bytes: 16 << 20, ..CacheOptions::default() })?;
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// All memory that the cache may hold at any time, in bytes: items with their keys and headers, the index, values on
    /// their way in ([`ValueBuffer`](crate::ValueBuffer)), and what was removed but may still be read. At least
    /// [`MIN_MEMORY_BYTES`]; 64 MiB by default.
    pub memory_limit_bytes: usize,
    /// How far [`Cache::set_memory_limit`](crate::Cache::set_memory_limit) may raise the limit later; what is below
    /// `memory_limit_bytes`, as the default 0 is, means that it may not be raised. It costs address space, and
    /// 72 bytes for each block there could be (of 1 MiB; of less where the limit is below 128 MiB), which count.
    pub memory_limit_max_bytes: usize,
    /// The largest item, in bytes of key, value and [`ITEM_OVERHEAD_BYTES`]; at most [`MAX_ITEM_BYTES`] and half of the
    /// memory; 1 MiB by default.
    pub max_item_bytes: usize,
    /// What happens to a new item when the memory is full.
    pub when_full: WhenFull,
    /// The pages to ask the system for.
    pub pages: Pages,
    /// The seed of the hash. Random where it is `None`, as it should be but in tests: whoever knows it can make keys that
    /// pile up.
    pub seed: Option<u64>,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            memory_limit_bytes: 64 << 20,
            memory_limit_max_bytes: 0,
            max_item_bytes: 1 << 20,
            when_full: WhenFull::Evict,
            pages: Pages::default(),
            seed: None,
        }
    }
}

impl CacheOptions {
    /// Refuses what makes no cache.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_limit(self.memory_limit_bytes)
    }

    /// Refuses a limit that such a cache cannot have.
    pub(crate) fn check_limit(&self, limit_bytes: usize) -> Result<(), Error> {
        if limit_bytes < MIN_MEMORY_BYTES {
            return Err(Error::MemoryLimitTooSmall { limit_bytes });
        }
        let max_bytes = MAX_ITEM_BYTES.min(limit_bytes / 2);
        if self.max_item_bytes > max_bytes {
            return Err(Error::ItemLimitTooLarge {
                max_item_bytes: self.max_item_bytes,
                max_bytes,
            });
        }
        Ok(())
    }
}

/// What a cache does with a new item when its memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Items that are used less make room.
    #[default]
    Evict,
    /// The new item is refused: [`Stored::OutOfMemory`](crate::Stored::OutOfMemory).
    Refuse,
}

/// Why there is no cache, or no memory for a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The limit leaves no room to work in.
    #[error(
        "a memory limit of {limit_bytes} bytes is too small: a cache takes {MIN_MEMORY_BYTES} at least"
    )]
    MemoryLimitTooSmall {
        /// The limit asked for.
        limit_bytes: usize,
    },
    /// The limit cannot be raised so far.
    #[error(
        "a memory limit of {limit_bytes} bytes is too large: this cache was made for {max_bytes} at most"
    )]
    MemoryLimitTooLarge {
        /// The limit asked for.
        limit_bytes: usize,
        /// How far it can be raised.
        max_bytes: usize,
    },
    /// Items of that size would not fit.
    #[error("items of {max_item_bytes} bytes are too large for this cache: {max_bytes} at most")]
    ItemLimitTooLarge {
        /// The size asked for.
        max_item_bytes: usize,
        /// What this memory limit allows.
        max_bytes: usize,
    },
    /// The value is above [`CacheOptions::max_item_bytes`].
    #[error("a value of {len_bytes} bytes is too large: an item has {max_item_bytes} at most")]
    ValueTooLarge {
        /// The value's length.
        len_bytes: usize,
        /// The largest item.
        max_item_bytes: usize,
    },
    /// Nothing could be evicted to make room just now.
    #[error("no room for {len_bytes} bytes within the memory limit")]
    Full {
        /// What was asked for.
        len_bytes: usize,
    },
    /// The cache belongs to another process, of which this one is a fork. Nothing was done.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
    /// The system gave no memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
}
