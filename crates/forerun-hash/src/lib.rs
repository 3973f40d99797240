//! A fixed-width hash table built for batched lookups: [`HashTable`], `u64` to `u64`, shared by
//! readers and writers.

pub mod table;

pub use table::{
    Error, FrozenHashTable, HashTable, HashTableGuard, HashTableIter, HashTableOptions,
};
