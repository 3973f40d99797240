//! The production table.

/// A hash table.
#[derive(Debug)]
pub struct HashTable;
