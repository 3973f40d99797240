//! Options and errors.

use forerun_core::{Pages, RegionError};

/// The longest key, in bytes, of a cache of 128 MiB or more:
/// [`Cache::key_bytes_max`](crate::Cache::key_bytes_max).
pub const KEY_BYTES_MAX: usize = 65_535;

/// Most keys are not longer. A buffer for a value leaves so many bytes for the key that it does not
/// know yet.
pub(crate) const BUFFERED_KEY_BYTES: usize = 250;

/// Bytes that [`CacheOptions::max_item_bytes`] counts for an item in addition to its key and value.
pub const ITEM_OVERHEAD_BYTES: usize = 32;

/// The largest value that [`CacheOptions::max_item_bytes`] may allow.
pub const ITEM_BYTES_MAX: usize = 1 << 30;

/// The default of [`CacheOptions::max_item_bytes`], if half of the memory limit is not less.
const DEFAULT_ITEM_BYTES: usize = 1 << 20;

/// The most [`CacheOptions::keyspaces`].
pub const KEYSPACES_MAX: u16 = 256;

/// The smallest [`CacheOptions::memory_limit_bytes`].
pub const MEMORY_BYTES_MIN: usize = 1 << 20;

/// The options of a cache.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions};
///
/// let cache = Cache::new(CacheOptions::default().memory_limit_bytes(16 << 20))?;
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct CacheOptions {
    /// The limit on all memory that the cache holds, in bytes: items with their keys and headers,
    /// the index, buffers for values that arrive in pieces ([`ValueBuffer`](crate::ValueBuffer)),
    /// and removed items that may still be read. At least [`MEMORY_BYTES_MIN`]. Default: 64 MiB.
    pub memory_limit_bytes: usize,
    /// The highest limit that [`Cache::set_memory_limit`](crate::Cache::set_memory_limit) may set
    /// later. A value below `memory_limit_bytes`, such as the default 0, means that the limit
    /// cannot be raised. A higher maximum costs address space and 72 bytes per possible block,
    /// which count towards the limit. A block has 1 MiB, or less if the limit is below 128 MiB.
    pub memory_limit_max_bytes: usize,
    /// The largest item: the bytes of its key and value plus [`ITEM_OVERHEAD_BYTES`]. At most
    /// [`ITEM_BYTES_MAX`] and half of the memory limit. The default 0 means 1 MiB, or half of the
    /// memory limit if that is less; [`Cache::options`](crate::Cache::options) has the number.
    pub max_item_bytes: usize,
    /// The treatment of a new item when the memory is full. Default: [`WhenFull::Evict`].
    pub when_full: WhenFull,
    /// The kind of memory pages to request from the system. Default: huge pages.
    pub pages: Pages,
    /// What advances the clock by which items expire. Default: [`Clock::Automatic`].
    pub clock: Clock,
    /// The number of [keyspaces](crate::CacheKeyspace), 1 to [`KEYSPACES_MAX`]. More than one take
    /// 1.5 KiB each. Default: 1.
    pub keyspaces: u16,
    /// The seed of the hash function. The default `None` draws a random seed. Set one only in
    /// tests, because anyone who knows the seed can craft keys that collide.
    pub seed: Option<u64>,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            memory_limit_bytes: 64 << 20,
            memory_limit_max_bytes: 0,
            max_item_bytes: 0,
            when_full: WhenFull::Evict,
            pages: Pages::default(),
            clock: Clock::default(),
            keyspaces: 1,
            seed: None,
        }
    }
}

forerun_core::setters! {
    CacheOptions {
        memory_limit_bytes: usize,
        memory_limit_max_bytes: usize,
        max_item_bytes: usize,
        when_full: WhenFull,
        pages: Pages,
        clock: Clock,
        keyspaces: u16,
    } into {
        seed: Option<u64>,
    }
}

impl CacheOptions {
    /// Fills in the defaults that depend on other options, and checks that the options are valid.
    pub(crate) fn complete(&mut self) -> Result<(), Error> {
        if self.max_item_bytes == 0 {
            self.max_item_bytes = DEFAULT_ITEM_BYTES.min(self.memory_limit_bytes / 2);
        }
        if !(1..=KEYSPACES_MAX).contains(&self.keyspaces) {
            return Err(Error::Keyspaces {
                keyspaces: self.keyspaces,
            });
        }
        self.check_limit(self.memory_limit_bytes)?;
        self.memory_limit_max_bytes = self.memory_limit_max_bytes.max(self.memory_limit_bytes);
        Ok(())
    }

    /// Checks that a cache with these options can have this limit.
    pub(crate) fn check_limit(&self, limit_bytes: usize) -> Result<(), Error> {
        if limit_bytes < MEMORY_BYTES_MIN {
            return Err(Error::MemoryLimitTooSmall { limit_bytes });
        }
        let max_bytes = ITEM_BYTES_MAX.min(limit_bytes / 2);
        if self.max_item_bytes > max_bytes {
            return Err(Error::ItemLimitTooLarge {
                max_item_bytes: self.max_item_bytes,
                max_bytes,
            });
        }
        Ok(())
    }
}

/// The treatment of a new item when the cache's memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum WhenFull {
    /// Evict less frequently used items.
    #[default]
    Evict,
    /// Refuse the new item with [`StoreResult::OutOfMemory`](crate::StoreResult::OutOfMemory).
    /// Nothing is evicted. An item that replaces one that is no shorter, such as a counter, still
    /// finds memory, unless its value is a [large one](crate::Item::to_shared).
    Refuse,
}

/// What advances a cache's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Clock {
    /// A thread of the cache, every second. It ends when the cache is dropped.
    #[default]
    Automatic,
    /// The caller, about once a second: see [`Cache::tick`](crate::Cache::tick). In between, items
    /// that expire at a millisecond do so by the system's clock.
    Ticked,
    /// The caller: see [`Cache::tick`](crate::Cache::tick),
    /// [`Cache::advance`](crate::Cache::advance) and
    /// [`Cache::advance_ms`](crate::Cache::advance_ms). In between, it stands still.
    Manual,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The memory limit is too small.
    #[error(
        "a memory limit of {limit_bytes} bytes is too small: a cache needs at least \
         {MEMORY_BYTES_MIN}"
    )]
    MemoryLimitTooSmall {
        /// The requested limit.
        limit_bytes: usize,
    },
    /// The memory limit cannot be raised this far.
    #[error(
        "a memory limit of {limit_bytes} bytes is too large: the maximum of this cache is \
         {max_bytes}"
    )]
    MemoryLimitTooLarge {
        /// The requested limit.
        limit_bytes: usize,
        /// The highest limit possible.
        max_bytes: usize,
    },
    /// The largest item would not fit into the memory limit.
    #[error(
        "a maximum item size of {max_item_bytes} bytes is too large for this cache: at most \
         {max_bytes}"
    )]
    ItemLimitTooLarge {
        /// The requested size.
        max_item_bytes: usize,
        /// The largest item size that the memory limit allows.
        max_bytes: usize,
    },
    /// The number of keyspaces is 0 or too large.
    #[error("{keyspaces} keyspaces: a cache has 1 to {KEYSPACES_MAX}")]
    Keyspaces {
        /// The requested number.
        keyspaces: u16,
    },
    /// The value is above [`CacheOptions::max_item_bytes`].
    #[error("a value of {len_bytes} bytes is too large: an item has at most {max_item_bytes}")]
    ValueTooLarge {
        /// The value's length.
        len_bytes: usize,
        /// The largest item size.
        max_item_bytes: usize,
    },
    /// No memory could be freed by eviction.
    #[error("{len_bytes} bytes do not fit within the memory limit")]
    Full {
        /// The number of bytes requested.
        len_bytes: usize,
    },
    /// The buffers of partially received values have reached their memory limit.
    #[error("values that have not arrived in full would take more than {max_bytes} bytes together")]
    BuffersFull {
        /// The memory limit of these buffers.
        max_bytes: usize,
    },
    /// The answers of a batch have other places than its keys. Nothing was looked up.
    #[error("{items} places for the items of {keys} keys")]
    Length {
        /// The number of keys.
        keys: usize,
        /// The number of places for items.
        items: usize,
    },
    /// The system gave no thread for the [clock](CacheOptions::clock).
    #[error("cannot start the thread of the clock: {reason}")]
    Thread {
        /// The system's error.
        reason: String,
    },
    /// Another cache made the buffer.
    #[error("the buffer belongs to another cache")]
    OtherCache,
    /// The calling process is a fork of the one that made the cache. Nothing was done.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
    /// The system gave no memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
}
