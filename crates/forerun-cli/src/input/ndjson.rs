//! Reads NDJSON: one JSON object per line. The key is joined from the given members, and the value
//! is the unchanged line.
//!
//! A key member is a string, a number or a boolean. A number becomes the key as the line writes it:
//! if it were parsed, it could be rounded, and two different keys would become one. Blank lines are
//! skipped.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::lines::Lines;
use super::parsed_row::{BadRow, KeySpec, ROW_BYTES_MAX, Row, Step};
use super::{InputError, InputPosition, Source};
use crate::output::Named;

/// The rows of an NDJSON table.
pub struct NdjsonRows {
    lines: Lines,
    key: KeySpec,
    number: u64,
}

impl NdjsonRows {
    /// Reads the rows from `source`.
    ///
    /// # Errors
    /// [`InputError::Read`] if the beginning cannot be read.
    pub fn new(source: Source, key: KeySpec) -> Result<NdjsonRows, InputError> {
        Ok(NdjsonRows {
            lines: Lines::new(source, ROW_BYTES_MAX)?,
            key,
            number: 0,
        })
    }

    /// How far the input was read.
    pub fn place(&self) -> &InputPosition {
        self.lines.place()
    }

    /// Reads the next row. See [`super::rows::Rows::next`].
    pub fn next(&mut self, row: &mut Row) -> Result<Step, InputError> {
        let line = loop {
            match self.lines.next()? {
                None => return Ok(Step::End),
                // Read the line again by number below: the borrow of a skipped line must end here.
                Some(line) if line.bytes.trim_ascii().is_empty() => {}
                Some(line) => {
                    row.value.clear();
                    row.value.extend_from_slice(line.bytes);
                    break line.number;
                }
            }
        };
        self.number += 1;
        row.number = self.number;
        row.line = line;
        row.key.clear();
        Ok(match fill_key(&self.key, &row.value, &mut row.key) {
            Ok(()) => Step::Row,
            Err(problem) => {
                let name = self.lines.place().name().to_owned();
                Step::Bad(BadRow {
                    name,
                    number: row.number,
                    line: row.line,
                    problem,
                })
            }
        })
    }
}

fn fill_key(spec: &KeySpec, line: &[u8], key: &mut Vec<u8>) -> Result<(), String> {
    let members: Members = serde_json::from_slice(line).map_err(|error| {
        if error.is_data() {
            "it is not a JSON object".to_owned()
        } else {
            syntax_problem(&error)
        }
    })?;
    for (at, name) in spec.columns.iter().enumerate() {
        if at > 0 {
            key.extend_from_slice(spec.separator.as_bytes());
        }
        push_member(&members, name, key)?;
    }
    Ok(())
}

/// The members of a line, each as the line writes it.
type Members<'a> = BTreeMap<String, &'a RawValue>;

fn push_member(members: &Members<'_>, name: &str, key: &mut Vec<u8>) -> Result<(), String> {
    let refused = |what: &str| {
        Err(format!(
            "{} is {what}, which cannot be a key",
            Named(name.as_bytes())
        ))
    };
    let Some(value) = members.get(name) else {
        return Err(format!("it has no member {}", Named(name.as_bytes())));
    };
    let text = value.get();
    match text.as_bytes() {
        [b'"', ..] => {
            let text: String =
                serde_json::from_str(text).map_err(|error| syntax_problem(&error))?;
            key.extend_from_slice(text.as_bytes());
        }
        b"null" => return refused("null"),
        [b'[', ..] => return refused("an array"),
        [b'{', ..] => return refused("an object"),
        // A number, true or false.
        literal => key.extend_from_slice(literal),
    }
    Ok(())
}

/// The parser's message without its "line 1": there is only one line.
fn syntax_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("it is not JSON: {what} at column {}", error.column())
}

#[cfg(test)]
mod tests {
    use super::super::testing::source;
    use super::*;

    fn rows(text: &[u8], columns: &[&str]) -> Vec<Result<(String, String), String>> {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        let mut rows = NdjsonRows::new(
            source(text),
            KeySpec {
                columns,
                separator: ":".to_owned(),
            },
        )
        .expect("memory can be read");
        let mut row = Row::default();
        let mut all = Vec::new();
        loop {
            match rows.next(&mut row).expect("memory can be read") {
                Step::End => return all,
                Step::Bad(bad) => all.push(Err(bad.to_string())),
                Step::Row => {
                    let text = |bytes: &[u8]| {
                        String::from_utf8(bytes.to_vec()).expect("the rows here are UTF-8")
                    };
                    all.push(Ok((text(&row.key), text(&row.value))));
                }
            }
        }
    }

    #[test]
    fn the_value_is_the_line_and_the_key_its_members() {
        let text = br#"{"id": 7, "kind":"a", "on":true}"#;
        let found = rows(&[&text[..], b"\r\n\n  \n"].concat(), &["kind", "id", "on"]);
        assert_eq!(
            found,
            [Ok((
                "a:7:true".to_owned(),
                String::from_utf8(text.to_vec()).unwrap()
            ))]
        );
    }

    #[test]
    fn bad_lines_are_named_and_the_next_is_still_read() {
        let text = b"{\"id\":1}\n\n{\"id\":2\n[3]\n{\"x\":4}\n\
              {\"id\":null}\n{\"id\":\"\xff\"}\n{\"id\":8}\n";
        let found = rows(text, &["id"]);
        let bad: Vec<&str> = found
            .iter()
            .filter_map(|row| row.as_ref().err())
            .map(String::as_str)
            .collect();
        assert_eq!(
            bad,
            [
                "test: row 2 (line 3): it is not JSON: EOF while parsing an object at column 7",
                "test: row 3 (line 4): it is not a JSON object",
                "test: row 4 (line 5): it has no member \"id\"",
                "test: row 5 (line 6): \"id\" is null, which cannot be a key",
                "test: row 6 (line 7): it is not JSON: invalid unicode code point at column 8",
            ]
        );
        let good: Vec<&str> = found
            .iter()
            .flatten()
            .map(|(key, _)| key.as_str())
            .collect();
        assert_eq!(good, ["1", "8"]);
    }

    #[test]
    fn a_number_is_the_key_as_it_is_written() {
        let numbers = [
            "0.9215686321258545",
            "9007199254740991.0",
            "9007199254740990.0",
            "0.1",
            "0.10000000000000000001",
            "1e-400",
            "1E+400",
            "0.0",
            "-0",
            "47.13713",
            "18446744073709551615",
            "18446744073709551616",
            "-99999999999999999999999999",
        ];
        let lines = numbers.map(|number| format!("{{\"id\" : {number} ,\"x\":1}}\n"));
        let found = rows(lines.concat().as_bytes(), &["id"]);
        let keys: Vec<String> = found.into_iter().map(|row| row.expect("a key").0).collect();
        assert_eq!(keys, numbers);
        for wrong in ["01", "1.", ".5", "+1", "NaN", "1e", "0x1", "1 2", "- 1"] {
            let found = rows(format!("{{\"id\":{wrong}}}\n").as_bytes(), &["id"]);
            let error = found[0].as_ref().expect_err(wrong);
            assert!(error.contains("it is not JSON"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_mark_and_a_cut_in_the_last_line() {
        let found = rows(
            "\u{feff}{\"id\":1}\n{\"id\":2,\"x\":\"un".as_bytes(),
            &["id"],
        );
        assert_eq!(found[0].as_ref().expect("a row").0, "1");
        let error = found[1].as_ref().expect_err("it is cut");
        assert!(
            error.contains("row 2 (line 2): it is not JSON: EOF"),
            "{error}"
        );
    }

    #[test]
    fn text_that_is_not_unicode_is_an_error_in_every_member() {
        for line in [
            &b"{\"id\":\"\\ud800\"}"[..],
            b"{\"id\":1,\"x\":\"\xff\"}",
            b"{\"id\":1,\"\xff\":2}",
        ] {
            let found = rows(line, &["id"]);
            assert!(
                found[0]
                    .as_ref()
                    .expect_err("no text")
                    .contains("it is not JSON")
            );
        }
    }

    #[test]
    fn deep_nesting_does_not_crash() {
        let deep = vec![b'['; 100_000];
        let open = [b"{\"id\":1,\"x\":", &deep[..], b"\n"].concat();
        let error = rows(&open, &["id"]).remove(0).expect_err("it has no end");
        assert!(error.contains("it is not JSON: EOF"), "{error}");
        let closed = [b"{\"id\":1,\"x\":", &deep[..], &vec![b']'; 100_000], b"}\n"].concat();
        assert_eq!(rows(&closed, &["id"]).remove(0).expect("a row").0, "1");
    }
}
