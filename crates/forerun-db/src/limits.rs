//! The limits of the interface and of the format.

/// Longest key: 64 KiB. The empty key is a key.
pub const KEY_BYTES_MAX: usize = 65_536;

/// Longest value: 1 GiB. The empty value is a value.
pub const VALUE_BYTES_MAX: usize = 1 << 30;

/// The maximum number of keyspaces in a store, including its own.
pub const KEYSPACES_MAX: usize = 1024;

/// Longest name of a keyspace: 255 bytes. Only the store's own has an empty one.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// The minimum of [`Options::memtable_bytes`](crate::Options::memtable_bytes): a memtable's index
/// and a short entry.
pub(crate) const MEMTABLE_BYTES_MIN: usize = 1 << 10;

/// Smaller memtables have no hash index, because it would take a large share of them.
pub(crate) const MEMTABLE_INDEX_BYTES_MIN: usize = 16 << 10;

/// Longest batch, encoded: 2 GiB minus one byte.
pub const BATCH_BYTES_MAX: usize = (1 << 31) - 1;
