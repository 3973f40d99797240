//! Reads CSV and TSV. Each row becomes a key, joined from its key columns, and a value, the whole
//! row as a JSON object of strings.
//!
//! ```text
//! id,name          key  42
//! 42,"Biel, BE"    value  {"id":"42","name":"Biel, BE"}
//! ```
//!
//! CSV follows RFC 4180: fields may be quoted, a quote within a field is doubled, and a quoted
//! field may span lines. The delimiter need not be a comma. TSV has no quoting. The members have
//! the order of the header. Numbers stay strings: their meaning is up to the reader.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::rc::Rc;

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};

use super::parsed_row::{BadRow, KeySpec, ROW_BYTES_MAX, Row, Step};
use super::{InputError, InputPosition, Source};
use crate::output::{self, Named};

/// How fields are separated and quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    delimiter: u8,
    quotes: Quotes,
}

/// The meaning of a quote at the beginning of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quotes {
    /// The field ends at the closing quote, as in RFC 4180.
    Enclose,
    /// The quote is an ordinary character.
    Ordinary,
}

impl Dialect {
    /// Fields separated by tabs, without quoting.
    pub const TSV: Dialect = Dialect {
        delimiter: b'\t',
        quotes: Quotes::Ordinary,
    };

    /// Fields separated by a delimiter, with optional quotes.
    pub fn csv(delimiter: u8) -> Dialect {
        let quotes = Quotes::Enclose;
        Dialect { delimiter, quotes }
    }
}

/// The rows of a CSV or TSV table.
pub struct CsvRows {
    place: InputPosition,
    reader: Reader<Watched>,
    budget_bytes: Rc<Cell<usize>>,
    line_starts: Rc<RefCell<LineStarts>>,
    /// The header. Each name is already a JSON member: `"name":`.
    members: Vec<String>,
    key_columns: Vec<usize>,
    separator: String,
    record: ByteRecord,
    number: u64,
}

impl CsvRows {
    /// Reads the header of a table.
    ///
    /// # Errors
    /// [`InputError::Heading`] if the header is missing, is not UTF-8, contains a column twice, or
    /// lacks a key column.
    pub fn new(source: Source, dialect: Dialect, key: &KeySpec) -> Result<CsvRows, InputError> {
        let (place, reader) = source.into_parts();
        let budget_bytes = Rc::new(Cell::new(ROW_BYTES_MAX));
        let line_starts = Rc::new(RefCell::new(LineStarts::default()));
        let watched = Watched {
            inner: reader,
            budget_bytes: Rc::clone(&budget_bytes),
            line_starts: Rc::clone(&line_starts),
        };
        let mut reader = ReaderBuilder::new()
            .delimiter(dialect.delimiter)
            .quoting(dialect.quotes == Quotes::Enclose)
            // The code below reads the header and reports short rows itself, in plainer words.
            .has_headers(false)
            .flexible(true)
            .from_reader(watched);
        let mut record = ByteRecord::new();
        let found = reader
            .read_byte_record(&mut record)
            .map_err(|error| read_error(&place, error))?;
        let heading_error = |problem: String| InputError::Heading {
            name: place.name().to_owned(),
            problem,
        };
        if !found {
            return Err(heading_error(
                "it is empty: a header with the column names is required".to_owned(),
            ));
        }
        let names = record
            .iter()
            .map(|field| {
                std::str::from_utf8(field)
                    .map_err(|_| heading_error("the header is not UTF-8".to_owned()))
            })
            .collect::<Result<Vec<&str>, InputError>>()?;
        if let Some(twice) = names
            .iter()
            .enumerate()
            .find_map(|(at, name)| names[..at].contains(name).then_some(name))
        {
            return Err(heading_error(format!(
                "the header contains column {} twice",
                Named(twice.as_bytes())
            )));
        }
        let key_columns = key
            .columns
            .iter()
            .map(|wanted| {
                names.iter().position(|name| name == wanted).ok_or_else(|| {
                    let wanted = Named(wanted.as_bytes());
                    heading_error(format!(
                        "no column is named {wanted}; the header has {}{}",
                        names.join(", "),
                        other_delimiter(&names)
                    ))
                })
            })
            .collect::<Result<Vec<usize>, InputError>>()?;
        let members = names
            .iter()
            .map(|name| format!("{}:", serde_json::Value::from(*name)))
            .collect();
        Ok(CsvRows {
            place,
            reader,
            budget_bytes,
            line_starts,
            members,
            key_columns,
            separator: key.separator.clone(),
            record,
            number: 0,
        })
    }

    /// How far the input was read.
    pub fn place(&self) -> &InputPosition {
        &self.place
    }

    /// Reads the next row. See [`super::rows::Rows::next`].
    pub fn next(&mut self, row: &mut Row) -> Result<Step, InputError> {
        self.budget_bytes.set(ROW_BYTES_MAX);
        let found = self
            .reader
            .read_byte_record(&mut self.record)
            .map_err(|error| read_error(&self.place, error))?;
        if !found {
            return Ok(Step::End);
        }
        self.number += 1;
        row.number = self.number;
        let begin = self.record.position().map_or(0, csv::Position::byte);
        row.line = self.line_starts.borrow_mut().line_from(begin).unwrap_or(0);
        Ok(match self.fill(row) {
            Ok(()) => Step::Row,
            Err(problem) => {
                let name = self.place.name().to_owned();
                Step::Bad(BadRow {
                    name,
                    number: row.number,
                    line: row.line,
                    problem,
                })
            }
        })
    }

    fn fill(&self, row: &mut Row) -> Result<(), String> {
        let (fields, columns) = (self.record.len(), self.members.len());
        if fields != columns {
            let fields = output::counted(fields as u64, "field");
            return Err(format!("it has {fields}, but the header has {columns}"));
        }
        row.value.clear();
        row.value.push(b'{');
        for (at, (member, field)) in self.members.iter().zip(&self.record).enumerate() {
            let text =
                std::str::from_utf8(field).map_err(|_| format!("field {} is not UTF-8", at + 1))?;
            if at > 0 {
                row.value.push(b',');
            }
            row.value.extend_from_slice(member.as_bytes());
            serde_json::to_writer(&mut row.value, text).map_err(|error| error.to_string())?;
        }
        row.value.push(b'}');
        row.key.clear();
        for (at, &column) in self.key_columns.iter().enumerate() {
            if at > 0 {
                row.key.extend_from_slice(self.separator.as_bytes());
            }
            row.key.extend_from_slice(&self.record[column]);
        }
        Ok(())
    }
}

/// A hint if the header seems to use another delimiter.
fn other_delimiter(names: &[&str]) -> String {
    let [heading] = names else {
        return String::new();
    };
    let found = [(';', ";"), ('\t', "tab"), ('|', "|"), (',', ",")]
        .into_iter()
        .find(|(delimiter, _)| heading.contains(*delimiter));
    found.map_or_else(String::new, |(_, name)| {
        format!(": if these are several columns, use --format csv --delimiter '{name}'")
    })
}

fn read_error(place: &InputPosition, error: csv::Error) -> InputError {
    match error.into_kind() {
        ErrorKind::Io(error) => place.read_error(error),
        other => place.read_error(io::Error::other(format!("{other:?}"))),
    }
}

/// The reader under the parser. It limits a row to [`ROW_BYTES_MAX`], since a lone quote would
/// otherwise turn the rest of the file into one field. It also records where lines begin.
struct Watched {
    inner: Box<dyn io::BufRead>,
    /// Bytes that may still be read before the next row begins. Bytes that are only buffered count
    /// too, but a buffer is small.
    budget_bytes: Rc<Cell<usize>>,
    line_starts: Rc<RefCell<LineStarts>>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.line_starts.borrow_mut().watch(&buffer[..read]);
        match self.budget_bytes.get().checked_sub(read) {
            Some(left) => self.budget_bytes.set(left),
            None => {
                let limit = ROW_BYTES_MAX >> 20;
                let problem =
                    format!("a row is longer than {limit} MiB: is a closing quote missing?");
                return Err(io::Error::other(problem));
            }
        }
        Ok(read)
    }
}

/// Start positions of nonempty lines. The parser counts a row's line from the end of the row
/// before. After `\r\n` and after blank lines, that is one line too early.
struct LineStarts {
    offset_bytes: u64,
    line: u64,
    at_start: bool,
    /// Offset and line number of each start that was not queried yet.
    starts: VecDeque<(u64, u64)>,
}

impl Default for LineStarts {
    fn default() -> LineStarts {
        LineStarts {
            offset_bytes: 0,
            line: 1,
            at_start: true,
            starts: VecDeque::new(),
        }
    }
}

impl LineStarts {
    fn watch(&mut self, bytes: &[u8]) {
        for (offset_bytes, &byte) in (self.offset_bytes..).zip(bytes) {
            if byte == b'\n' {
                self.line += 1;
                self.at_start = true;
            } else if self.at_start && byte != b'\r' {
                self.starts.push_back((offset_bytes, self.line));
                self.at_start = false;
            }
        }
        self.offset_bytes += bytes.len() as u64;
    }

    /// The number of the first nonempty line at or after `offset_bytes`. Offsets must not decrease
    /// from call to call.
    fn line_from(&mut self, offset_bytes: u64) -> Option<u64> {
        while self
            .starts
            .front()
            .is_some_and(|&(start, _)| start < offset_bytes)
        {
            self.starts.pop_front();
        }
        self.starts.front().map(|&(_, line)| line)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::source;
    use super::*;

    fn key(columns: &[&str]) -> KeySpec {
        KeySpec {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            separator: "/".to_owned(),
        }
    }

    /// Returns each row as `line: key = value`, or the message of the first bad row.
    fn rows(text: &[u8], dialect: Dialect, columns: &[&str]) -> Result<Vec<String>, InputError> {
        let mut rows = CsvRows::new(source(text), dialect, &key(columns))?;
        let mut row = Row::default();
        let mut all = Vec::new();
        loop {
            match rows.next(&mut row)? {
                Step::End => return Ok(all),
                Step::Bad(bad) => all.push(bad.to_string()),
                Step::Row => {
                    let text =
                        |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("rows are UTF-8");
                    all.push(format!(
                        "{}: {} = {}",
                        row.line,
                        text(&row.key),
                        text(&row.value)
                    ));
                }
            }
        }
    }

    #[test]
    fn a_row_becomes_a_key_and_a_json_object() {
        let text =
            "\u{feff}id,name,country\r\n42,\"Biel, \"\"BE\"\"\",CH\r\n\n7,\"two\nlines\",FR\n";
        assert_eq!(
            rows(text.as_bytes(), Dialect::csv(b','), &["country", "id"]).unwrap(),
            [
                r#"2: CH/42 = {"id":"42","name":"Biel, \"BE\"","country":"CH"}"#,
                r#"4: FR/7 = {"id":"7","name":"two\nlines","country":"FR"}"#,
            ]
        );
    }

    #[test]
    fn in_tsv_tabs_separate_and_quotes_are_literal() {
        let found = rows(
            b"id\tname\n1\t\"half a quote\n2\tb\n",
            Dialect::TSV,
            &["id"],
        )
        .unwrap();
        assert_eq!(
            found,
            [
                r#"2: 1 = {"id":"1","name":"\"half a quote"}"#,
                r#"3: 2 = {"id":"2","name":"b"}"#
            ]
        );
    }

    #[test]
    fn another_delimiter_works_and_is_suggested() {
        let text = b"id;name\n1;\"a;b\"\n2;c,d\n";
        assert_eq!(
            rows(text, Dialect::csv(b';'), &["id"]).unwrap(),
            [
                r#"2: 1 = {"id":"1","name":"a;b"}"#,
                r#"3: 2 = {"id":"2","name":"c,d"}"#
            ]
        );
        let error = rows(text, Dialect::csv(b','), &["id"]).unwrap_err();
        assert!(error.to_string().ends_with("--delimiter ';'"), "{error}");
    }

    #[test]
    fn bad_rows_are_named_and_the_next_is_still_read() {
        let found = rows(
            b"id,name\n1,a\n2\n3,c,d\n4,\xff\n5,e\n",
            Dialect::csv(b','),
            &["id"],
        )
        .unwrap();
        assert_eq!(
            found,
            [
                r#"2: 1 = {"id":"1","name":"a"}"#,
                "test: row 2 (line 3): it has 1 field, but the header has 2",
                "test: row 3 (line 4): it has 3 fields, but the header has 2",
                "test: row 4 (line 5): field 2 is not UTF-8",
                r#"6: 5 = {"id":"5","name":"e"}"#,
            ]
        );
    }

    #[test]
    fn an_invalid_header_is_an_error() {
        let error = |text: &[u8]| {
            rows(text, Dialect::csv(b','), &["id"])
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(b""),
            "test: it is empty: a header with the column names is required"
        );
        assert_eq!(
            error(b"a,b,c\n"),
            "test: no column is named \"id\"; the header has a, b, c"
        );
        assert_eq!(
            error(b"id,x,x\n"),
            "test: the header contains column \"x\" twice"
        );
        assert_eq!(error(b"id,\xff\n"), "test: the header is not UTF-8");
    }

    #[test]
    fn an_endless_field_is_an_error_not_memory() {
        let mut text = b"id,name\n1,\"".to_vec();
        text.resize(ROW_BYTES_MAX + (1 << 20), b'x');
        let error = rows(&text, Dialect::csv(b','), &["id"]).unwrap_err();
        let InputError::Read { source, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(
            source.to_string(),
            "a row is longer than 64 MiB: is a closing quote missing?"
        );
    }
}
