//! Rows: what a table's formats have in common. A row is a key and a value; a row that is no good is told from an
//! input that is.

use std::path::Path;

use super::csv::CsvRows;
use super::ndjson::NdjsonRows;
use super::{InputError, Place, Source};

/// The longest row that is read, so that a missing quote or line end costs no more memory than this.
pub const ROW_BYTES_MAX: usize = 64 << 20;

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values with a heading; fields may be quoted
    Csv,
    /// Tab-separated values with a heading; quotes are ordinary characters
    Tsv,
    /// One JSON object a line
    Ndjson,
}

impl Format {
    /// The format that a file's name tells, `.gz` and `.xz` set aside.
    pub fn of_name(path: &Path) -> Option<Format> {
        let mut path = path.to_path_buf();
        if matches!(
            path.extension()?.to_ascii_lowercase().to_str()?,
            "gz" | "xz"
        ) {
            path.set_extension("");
        }
        match path.extension()?.to_ascii_lowercase().to_str()? {
            "csv" => Some(Format::Csv),
            "tsv" | "tab" => Some(Format::Tsv),
            "ndjson" | "jsonl" => Some(Format::Ndjson),
            _ => None,
        }
    }
}

/// What makes a row's key: the named columns, joined.
#[derive(Clone, Debug)]
pub struct KeySpec {
    /// Columns (CSV, TSV) or members (NDJSON), in order; at least one.
    pub columns: Vec<String>,
    /// Stands between them.
    pub separator: String,
}

/// A row, in buffers that are used again for the next.
#[derive(Debug, Default)]
pub struct Row {
    /// Where it stands: the line it begins on, from 1.
    pub line: u64,
    /// Its number among the rows, from 1.
    pub number: u64,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// A row that is no good. The rows after it can still be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: row {number} (line {line}): {problem}")]
pub struct BadRow {
    /// The file.
    pub name: String,
    /// The row's number, from 1, a heading not counted.
    pub number: u64,
    /// The line it begins on, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: String,
}

/// What reading the next row came to.
#[derive(Debug)]
pub enum Step {
    /// A row was read.
    Row,
    /// A row was there, but is no good.
    Bad(BadRow),
    /// There are no more.
    End,
}

/// The rows of a table.
pub enum Rows {
    /// Of CSV or TSV.
    Csv(CsvRows),
    /// Of NDJSON.
    Ndjson(NdjsonRows),
}

impl Rows {
    /// Begins to read a table: its heading, where the format has one.
    ///
    /// # Errors
    /// [`InputError::Heading`] where a key column is not in the heading, or the heading is no good; and what reading
    /// may meet.
    pub fn new(source: Source, format: Format, key: KeySpec) -> Result<Rows, InputError> {
        Ok(match format {
            Format::Csv => Rows::Csv(CsvRows::new(source, b',', &key)?),
            Format::Tsv => Rows::Csv(CsvRows::new(source, b'\t', &key)?),
            Format::Ndjson => Rows::Ndjson(NdjsonRows::new(source, key)),
        })
    }

    /// Reads the next row into `row`.
    ///
    /// # Errors
    /// Faults after which no row can be read.
    pub fn next(&mut self, row: &mut Row) -> Result<Step, InputError> {
        match self {
            Rows::Csv(rows) => rows.next(row),
            Rows::Ndjson(rows) => rows.next(row),
        }
    }

    /// How far reading has come.
    pub fn place(&self) -> &Place {
        match self {
            Rows::Csv(rows) => rows.place(),
            Rows::Ndjson(rows) => rows.place(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_told_by_the_name() {
        let of = |name: &str| Format::of_name(Path::new(name));
        assert_eq!(of("a/cities.csv"), Some(Format::Csv));
        assert_eq!(of("cities.TSV.gz"), Some(Format::Tsv));
        assert_eq!(of("x.jsonl.xz"), Some(Format::Ndjson));
        assert_eq!(of("x.ndjson"), Some(Format::Ndjson));
        assert_eq!([of("x.json"), of("x.gz"), of("csv"), of("-")], [None; 4]);
    }
}
