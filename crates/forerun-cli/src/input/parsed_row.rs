//! A row of a table, which every format parses into a key and a value. A bad row is distinguished
//! from an input that cannot be read.

/// Maximum length of a row. It bounds the memory that a missing quote or line end can cost.
pub const ROW_BYTES_MAX: usize = 64 << 20;

/// How a row's key is built: the columns, joined by the separator.
#[derive(Clone, Debug)]
pub struct KeySpec {
    /// Columns (CSV, TSV) or members (NDJSON), in order; at least one.
    pub columns: Vec<String>,
    /// The text between the columns.
    pub separator: String,
}

/// A row. Its buffers are reused for the next row.
#[derive(Debug, Default)]
pub struct Row {
    /// The line where the row begins, from 1.
    pub line: u64,
    /// The row number, from 1.
    pub number: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// A bad row. The rows after it can still be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: row {number} (line {line}): {problem}")]
pub struct BadRow {
    /// The file.
    pub name: String,
    /// The row's number, from 1, not counting a header.
    pub number: u64,
    /// The line where the row begins, from 1.
    pub line: u64,
    /// The problem.
    pub problem: String,
}

/// The result of reading the next row.
#[derive(Debug)]
pub enum Step {
    /// A row was read.
    Row,
    /// The row is bad.
    Bad(BadRow),
    /// There are no more rows.
    End,
}
