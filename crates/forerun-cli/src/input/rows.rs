//! The rows of a table in any of the formats.

use std::path::Path;

use super::csv::{CsvRows, Dialect};
use super::ndjson::NdjsonRows;
use super::parsed_row::{KeySpec, Row, Step};
use super::{InputError, InputPosition, Source};

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values with a header; fields may be quoted
    Csv,
    /// Tab-separated values with a header; quotes are ordinary characters
    Tsv,
    /// One JSON object per line
    Ndjson,
}

impl Format {
    /// The format that a file name indicates, without `.gz` or `.xz`.
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

/// How a table is divided into rows and fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A header, then fields separated by a delimiter.
    Delimited(Dialect),
    /// One JSON object per line.
    Ndjson,
}

impl Format {
    /// The format's layout, with this delimiter instead of CSV's comma.
    ///
    /// # Errors
    /// A message if the format has no choice of delimiter.
    pub fn layout(self, delimiter: Option<u8>) -> Result<Layout, &'static str> {
        match (self, delimiter) {
            (Format::Csv, delimiter) => {
                Ok(Layout::Delimited(Dialect::csv(delimiter.unwrap_or(b','))))
            }
            (Format::Tsv, None) => Ok(Layout::Delimited(Dialect::TSV)),
            (Format::Ndjson, None) => Ok(Layout::Ndjson),
            (Format::Tsv, Some(_)) => Err("TSV uses tabs: --delimiter needs --format csv"),
            (Format::Ndjson, Some(_)) => {
                Err("NDJSON has no delimiter: --delimiter needs --format csv")
            }
        }
    }
}

/// Parses a delimiter on the command line: one ASCII character, or `tab`.
///
/// # Errors
/// A description of the problem.
pub fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [b'"' | b'\r' | b'\n'] => Err("a quote or a line end cannot delimit fields".to_owned()),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err("a delimiter must be one ASCII character, or tab".to_owned()),
    }
}

/// The rows of a table.
pub enum Rows {
    /// Rows of CSV or TSV.
    Csv(CsvRows),
    /// Rows of NDJSON.
    Ndjson(NdjsonRows),
}

impl Rows {
    /// Starts to read a table and reads its header, if the format has one.
    ///
    /// # Errors
    /// [`InputError::Heading`] if the header is invalid or lacks a key column; also any error of
    /// reading.
    pub fn new(source: Source, layout: Layout, key: KeySpec) -> Result<Rows, InputError> {
        Ok(match layout {
            Layout::Delimited(dialect) => Rows::Csv(CsvRows::new(source, dialect, &key)?),
            Layout::Ndjson => Rows::Ndjson(NdjsonRows::new(source, key)?),
        })
    }

    /// Reads the next row into `row`.
    ///
    /// # Errors
    /// Errors after which no row can be read.
    pub fn next(&mut self, row: &mut Row) -> Result<Step, InputError> {
        match self {
            Rows::Csv(rows) => rows.next(row),
            Rows::Ndjson(rows) => rows.next(row),
        }
    }

    /// How far the input was read.
    pub fn place(&self) -> &InputPosition {
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
    fn the_format_follows_from_the_file_name() {
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
