//! Rows: what a table's formats have in common. A row is a key and a value; a row that is no good
//! is told from an input that is.

use std::path::Path;

use super::csv::{CsvRows, Dialect};
use super::ndjson::NdjsonRows;
use super::{InputError, Place, Source};

/// The longest row that is read, so that a missing quote or line end costs no more memory than
/// this.
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

/// How a table's rows are told apart, and their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A heading, then fields between delimiters.
    Delimited(Dialect),
    /// One JSON object a line.
    Ndjson,
}

impl Format {
    /// The format's layout, with this delimiter in the place of CSV's comma.
    ///
    /// # Errors
    /// A message, where the format has no delimiter to choose.
    pub fn layout(self, delimiter: Option<u8>) -> Result<Layout, &'static str> {
        match (self, delimiter) {
            (Format::Csv, delimiter) => {
                Ok(Layout::Delimited(Dialect::csv(delimiter.unwrap_or(b','))))
            }
            (Format::Tsv, None) => Ok(Layout::Delimited(Dialect::TSV)),
            (Format::Ndjson, None) => Ok(Layout::Ndjson),
            (Format::Tsv, Some(_)) => {
                Err("TSV is delimited by tabs: --delimiter is for --format csv")
            }
            (Format::Ndjson, Some(_)) => {
                Err("NDJSON has no delimiter: --delimiter is for --format csv")
            }
        }
    }
}

/// A delimiter as the command line has it: one ASCII character, or `tab`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [b'"' | b'\r' | b'\n'] => Err("a quote or a line end cannot delimit fields".to_owned()),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err("a delimiter is one ASCII character, or tab".to_owned()),
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
    /// [`InputError::Heading`] where a key column is not in the heading, or the heading is no good;
    /// and what reading may meet.
    pub fn new(source: Source, layout: Layout, key: KeySpec) -> Result<Rows, InputError> {
        Ok(match layout {
            Layout::Delimited(dialect) => Rows::Csv(CsvRows::new(source, dialect, &key)?),
            Layout::Ndjson => Rows::Ndjson(NdjsonRows::new(source, key)),
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

    #[test]
    fn a_delimiter_is_one_ascii_character_and_only_csv_has_a_choice() {
        assert_eq!(parse_delimiter(";"), Ok(b';'));
        assert_eq!(
            [parse_delimiter("tab"), parse_delimiter("\t")],
            [Ok(b'\t'), Ok(b'\t')]
        );
        for bad in ["", ";;", "\"", "\n", "€"] {
            assert!(parse_delimiter(bad).is_err(), "{bad:?}");
        }
        let piped = Layout::Delimited(Dialect::csv(b'|'));
        assert_eq!(Format::Csv.layout(Some(b'|')), Ok(piped));
        assert_eq!(
            Format::Tsv.layout(None),
            Ok(Layout::Delimited(Dialect::TSV))
        );
        for format in [Format::Tsv, Format::Ndjson] {
            assert!(
                format
                    .layout(Some(b';'))
                    .unwrap_err()
                    .contains("--format csv")
            );
        }
    }
}
