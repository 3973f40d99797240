//! The limits of the interface and of the format.

/// The maximum length of a key in bytes: 64 KiB. A key may be empty.
pub const KEY_BYTES_MAX: usize = 65_536;

/// The maximum length of a value in bytes: 1 GiB. A value may be empty. A store takes a value only
/// if it also fits under [`Options::memory_limit_bytes`](crate::Options::memory_limit_bytes).
pub const VALUE_BYTES_MAX: usize = 1 << 30;

/// The maximum number of keyspaces in a store, including its own.
pub const KEYSPACES_MAX: usize = 1024;

/// The maximum length of a keyspace's name in bytes. Only the store's own keyspace has an empty
/// name.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// The minimum of [`Options::memtable_bytes`](crate::Options::memtable_bytes): a memtable's index
/// and a short entry.
pub(crate) const MEMTABLE_BYTES_MIN: usize = 1 << 10;

/// Smaller memtables have no hash index, because it would take a large share of them.
pub(crate) const MEMTABLE_INDEX_BYTES_MIN: usize = 16 << 10;

/// The maximum length of an encoded batch in bytes: 2 GiB minus one byte.
pub const BATCH_BYTES_MAX: usize = (1 << 31) - 1;
