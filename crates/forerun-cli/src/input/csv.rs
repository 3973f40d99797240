//! Reads CSV and TSV. Each row becomes a key, joined from its key columns, and a value, the whole
//! row as a JSON object of strings.
//!
//! ```text
//! id,name          key  42
//! 42,"Biel, BE"    value  {"id":"42","name":"Biel, BE"}
//! ```
//!
//! CSV follows RFC 4180: fields may be quoted, a quote within a field is doubled, and a quoted
//! field may span lines. A quote that is never closed, and text behind a closing quote, are errors:
//! where a quote was lost, rows would be missing. The delimiter need not be a comma. TSV has no
//! quoting. The members have the order of the header. Numbers stay strings: their meaning is up to
//! the reader.

pub use super::csv_records::Dialect;
use super::csv_records::Records;
use super::parsed_row::{BadRow, KeySpec, Row, Step};
use super::{InputError, InputPosition, Source};
use crate::output::{self, Named};

/// What is wrong with a row in which a quote was probably lost.
const TEXT_AFTER_QUOTE: &str = "has text after the closing quote of a field: is a quote missing?";

/// The rows of a CSV or TSV table.
pub struct CsvRows {
    records: Records,
    /// The header. Each name is already a JSON member: `"name":`.
    members: Vec<String>,
    key_columns: Vec<usize>,
    separator: String,
}

impl CsvRows {
    /// Reads the header of a table.
    ///
    /// # Errors
    /// [`InputError::Heading`] if the header is missing, is not UTF-8, contains a column twice, or
    /// lacks a key column.
    pub fn new(source: Source, dialect: Dialect, key: &KeySpec) -> Result<CsvRows, InputError> {
        let mut records = Records::new(source, dialect)?;
        let header = records.next()?;
        let heading_error = |problem: String| InputError::Heading {
            name: records.place().name().to_owned(),
            problem,
        };
        let Some(header) = header else {
            return Err(heading_error(
                "the input is empty: a header with the column names is required".to_owned(),
            ));
        };
        if header.has_text_after_quote {
            return Err(heading_error(format!("the header {TEXT_AFTER_QUOTE}")));
        }
        let names = records
            .record()
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
            records,
            members,
            key_columns,
            separator: key.separator.clone(),
        })
    }

    /// How far the input was read.
    pub fn place(&self) -> &InputPosition {
        self.records.place()
    }

    /// Reads the next row. See [`super::rows::Rows::next`].
    pub fn next(&mut self, row: &mut Row) -> Result<Step, InputError> {
        let Some(record) = self.records.next()? else {
            return Ok(Step::End);
        };
        row.number = record.number;
        row.line = record.line;
        let filled = if record.has_text_after_quote {
            Err(format!("it {TEXT_AFTER_QUOTE}"))
        } else {
            self.fill(row)
        };
        Ok(match filled {
            Ok(()) => Step::Row,
            Err(problem) => {
                let name = self.place().name().to_owned();
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
        let record = self.records.record();
        let (fields, columns) = (record.len(), self.members.len());
        if fields != columns {
            let fields = output::counted(fields as u64, "field");
            return Err(format!("it has {fields}, but the header has {columns}"));
        }
        row.value.clear();
        row.value.push(b'{');
        for (at, (member, field)) in self.members.iter().zip(record).enumerate() {
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
            row.key.extend_from_slice(&record[column]);
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

#[cfg(test)]
mod tests {
    use super::super::parsed_row::ROW_BYTES_MAX;
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
            "test: the input is empty: a header with the column names is required"
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
    fn a_quote_without_an_end_is_an_error_at_its_row() {
        let rest: String = (3..1000).map(|n| format!("{n},row {n}\n")).collect();
        let lost = format!("id,name\n1,a\n2,\"b\n{rest}");
        let cut = format!("id,name\r\n1,a\r\n\r\n{rest}1000,\"two\nlines\",\"unfinis");
        let error = |text: &str| {
            rows(text.as_bytes(), Dialect::csv(b','), &["id"])
                .expect_err("it is cut")
                .to_string()
        };
        assert_eq!(
            error(&lost),
            "test: byte 14: row 2 (line 3): the quote that opens here, in line 3, has no end"
        );
        let at = cut.len() - "\"unfinis".len();
        assert_eq!(
            error(&cut),
            format!(
                "test: byte {at}: row 999 (line 1001): the quote that opens here, in line 1002, \
                 has no end"
            )
        );
        assert_eq!(
            error("id,\"name\n1,a\n"),
            "test: byte 3: the header: the quote that opens here, in line 1, has no end"
        );
        // With a mark, the byte is that of the file.
        assert!(error("\u{feff}id\n\"").starts_with("test: byte 6: row 1 (line 2)"));
        // A cut behind a quoted field looks like a last line without its end.
        for whole in ["id\n\"a\"", "id\n\"a\"\"\"", "id\n\"\"", "id\n\"\n\""] {
            let found = rows(whole.as_bytes(), Dialect::csv(b','), &["id"]);
            assert_eq!(found.expect(whole).len(), 1, "{whole:?}");
        }
    }

    #[test]
    fn a_lost_quote_before_other_quotes_is_a_bad_row() {
        let found = rows(
            b"id,name\n1,\"a\n2,\"b\"\n3,\"c\" \n4,\"d \"\"e\"\"\"\r\n5,f\"g\n",
            Dialect::csv(b','),
            &["id"],
        );
        let problem = "it has text after the closing quote of a field: is a quote missing?";
        assert_eq!(
            found.expect("every row is closed"),
            [
                format!("test: row 1 (line 2): {problem}"),
                format!("test: row 2 (line 4): {problem}"),
                r#"5: 4 = {"id":"4","name":"d \"e\""}"#.to_owned(),
                r#"6: 5 = {"id":"5","name":"f\"g"}"#.to_owned(),
            ]
        );
        let header = rows(b"id,\"x\"y\n", Dialect::csv(b','), &["id"]);
        let header = header.expect_err("the header is wrong").to_string();
        assert!(
            header.starts_with("test: the header has text after"),
            "{header}"
        );
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
