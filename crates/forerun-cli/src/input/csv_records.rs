//! Reads the records of CSV and TSV: the parser, and what it does not say.
//!
//! ```text
//!   input ── Watched: length of a row, RowScan ── csv::Reader ── record
//! ```
//!
//! The parser accepts a quoted field that the end of the input cuts off, and text behind a closing
//! quote. Both are what a lost quote leaves, and rows are missing then. The parser also counts a
//! row's line from the end of the row before: after `\r\n` and after blank lines, that is one line
//! too early. [`RowScan`] therefore follows the rows and the quotes itself.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::rc::Rc;

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};

use super::parsed_row::ROW_BYTES_MAX;
use super::{InputError, InputPosition, Source};

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

/// The records of a table. The first one is the header.
pub struct Records {
    place: InputPosition,
    reader: Reader<Watched>,
    budget_bytes: Rc<Cell<usize>>,
    scan: Rc<RefCell<RowScan>>,
    record: ByteRecord,
    number: u64,
}

/// Where a record is, and whether its quotes are well formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordInfo {
    /// The number of the record, from 0 for the header.
    pub number: u64,
    /// The line where it begins, from 1.
    pub line: u64,
    /// Whether text follows the closing quote of a field.
    pub has_text_after_quote: bool,
}

impl Records {
    /// Starts to read a table.
    ///
    /// # Errors
    /// [`InputError::Read`].
    pub fn new(source: Source, dialect: Dialect) -> Result<Records, InputError> {
        let (place, reader) = source.into_text()?;
        let budget_bytes = Rc::new(Cell::new(ROW_BYTES_MAX));
        let scan = Rc::new(RefCell::new(RowScan::new(dialect)));
        let watched = Watched {
            inner: reader,
            budget_bytes: Rc::clone(&budget_bytes),
            scan: Rc::clone(&scan),
        };
        let reader = ReaderBuilder::new()
            .delimiter(dialect.delimiter)
            .quoting(dialect.quotes == Quotes::Enclose)
            // `CsvRows` reads the header and reports short rows itself, in plainer words.
            .has_headers(false)
            .flexible(true)
            .from_reader(watched);
        Ok(Records {
            place,
            reader,
            budget_bytes,
            scan,
            record: ByteRecord::new(),
            number: 0,
        })
    }

    /// How far the input was read.
    pub fn place(&self) -> &InputPosition {
        &self.place
    }

    /// The record that was read last.
    pub fn record(&self) -> &ByteRecord {
        &self.record
    }

    /// Reads the next record. `None` at the end.
    ///
    /// # Errors
    /// [`InputError::Content`] if the input ends in a quoted field, [`InputError::Read`].
    pub fn next(&mut self) -> Result<Option<RecordInfo>, InputError> {
        self.budget_bytes.set(ROW_BYTES_MAX);
        let found = self.reader.read_byte_record(&mut self.record);
        let found = found.map_err(|error| read_error(&self.place, error))?;
        if !found {
            return Ok(None);
        }
        let begin = self.record.position().map_or(0, csv::Position::byte);
        let mut scan = self.scan.borrow_mut();
        let row = scan.row_from(begin).unwrap_or_default();
        let number = self.number;
        if let Some((offset_bytes, line)) = scan.unclosed() {
            let what = match number {
                0 => "the header".to_owned(),
                number => format!("row {number} (line {})", row.line),
            };
            let problem = format!("{what}: the quote that opens here, in line {line}, has no end");
            let offset_bytes = self.place.begin_bytes() + offset_bytes;
            return Err(self.place.content_error(offset_bytes, problem));
        }
        self.number += 1;
        Ok(Some(RecordInfo {
            number,
            line: row.line,
            has_text_after_quote: row.has_text_after_quote,
        }))
    }
}

fn read_error(place: &InputPosition, error: csv::Error) -> InputError {
    match error.into_kind() {
        ErrorKind::Io(error) => place.read_error(error),
        other => place.read_error(io::Error::other(format!("{other:?}"))),
    }
}

/// The reader under the parser. It limits a row to [`ROW_BYTES_MAX`], since a lone quote would
/// otherwise turn the rest of the file into one field.
struct Watched {
    inner: Box<dyn io::BufRead>,
    /// Bytes that may still be read before the next row begins. Bytes that are only buffered count
    /// too, but a buffer is small.
    budget_bytes: Rc<Cell<usize>>,
    scan: Rc<RefCell<RowScan>>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.scan.borrow_mut().watch(&buffer[..read]);
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

/// Follows the rows and the quotes of the bytes that the parser reads.
struct RowScan {
    dialect: Dialect,
    state: State,
    offset_bytes: u64,
    line: u64,
    has_ended: bool,
    /// Offset and line of the last quote that opened a field.
    quote: (u64, u64),
    /// The rows that were not queried yet.
    rows: VecDeque<ScannedRow>,
}

/// Where the next byte is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    RowStart,
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote in a quoted field, which closes the field unless another one follows.
    AfterQuote,
}

#[derive(Clone, Copy, Default)]
struct ScannedRow {
    offset_bytes: u64,
    line: u64,
    has_text_after_quote: bool,
}

impl RowScan {
    fn new(dialect: Dialect) -> RowScan {
        RowScan {
            dialect,
            state: State::RowStart,
            offset_bytes: 0,
            line: 1,
            has_ended: false,
            quote: (0, 0),
            rows: VecDeque::new(),
        }
    }

    fn watch(&mut self, bytes: &[u8]) {
        self.has_ended = bytes.is_empty();
        for &byte in bytes {
            let ends_line = matches!(byte, b'\r' | b'\n');
            if self.state == State::RowStart && !ends_line {
                self.rows.push_back(ScannedRow {
                    offset_bytes: self.offset_bytes,
                    line: self.line,
                    has_text_after_quote: false,
                });
                self.state = State::FieldStart;
            }
            self.state = match (self.state, byte) {
                (State::Quoted, b'"') => State::AfterQuote,
                (State::Quoted, _) | (State::AfterQuote, b'"') => State::Quoted,
                (State::FieldStart, b'"') if self.dialect.quotes == Quotes::Enclose => {
                    self.quote = (self.offset_bytes, self.line);
                    State::Quoted
                }
                _ if ends_line => State::RowStart,
                (_, byte) if byte == self.dialect.delimiter => State::FieldStart,
                (State::AfterQuote, _) => {
                    if let Some(row) = self.rows.back_mut() {
                        row.has_text_after_quote = true;
                    }
                    State::Unquoted
                }
                _ => State::Unquoted,
            };
            self.line += u64::from(byte == b'\n');
            self.offset_bytes += 1;
        }
    }

    /// The first row that begins at or after `offset_bytes`. Offsets must not decrease from call to
    /// call.
    fn row_from(&mut self, offset_bytes: u64) -> Option<ScannedRow> {
        let is_before = |row: &ScannedRow| row.offset_bytes < offset_bytes;
        while self.rows.front().is_some_and(is_before) {
            self.rows.pop_front();
        }
        self.rows.front().copied()
    }

    /// Offset and line of the quote that no other one closes before the end of the input.
    fn unclosed(&self) -> Option<(u64, u64)> {
        (self.has_ended && self.state == State::Quoted).then_some(self.quote)
    }
}
