//! An ordered, durable key-value store whose every lookup is a batch.

mod batch;
mod error;
pub mod io;

pub mod memtable;
mod values;

pub use batch::{Op, Ops, WriteBatch};
pub use error::{Error, Result};
pub use values::Values;

/// Longest key: 64 KiB. The empty key is a key.
pub const MAX_KEY_BYTES: usize = 65_536;

/// Longest value: 1 GiB. The empty value is a value.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Longest batch, encoded: 2 GiB less a byte.
pub const MAX_BATCH_BYTES: usize = (1 << 31) - 1;
