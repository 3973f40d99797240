//! Reads NDJSON: one JSON object per line. The key is joined from the given members, and the value
//! is the unchanged line.
//!
//! A key member is a string, an integer or a boolean. A number that double precision cannot hold
//! exactly is refused and not rounded, because two different keys must not become one. Blank lines
//! are skipped.

use serde_json::{Map, Number, Value};

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
    let members = match serde_json::from_slice(line) {
        Ok(Value::Object(members)) => members,
        Ok(_) => return Err("it is not a JSON object".to_owned()),
        Err(error) => return Err(syntax_problem(&error)),
    };
    for (at, name) in spec.columns.iter().enumerate() {
        if at > 0 {
            key.extend_from_slice(spec.separator.as_bytes());
        }
        push_member(&members, name, key)?;
    }
    Ok(())
}

fn push_member(members: &Map<String, Value>, name: &str, key: &mut Vec<u8>) -> Result<(), String> {
    let refused = |what: &str| {
        Err(format!(
            "{} is {what}, which cannot be a key",
            Named(name.as_bytes())
        ))
    };
    match members.get(name) {
        None => return Err(format!("it has no member {}", Named(name.as_bytes()))),
        Some(Value::String(text)) => key.extend_from_slice(text.as_bytes()),
        Some(Value::Bool(value)) => key.extend_from_slice(if *value { b"true" } else { b"false" }),
        Some(Value::Number(number)) if is_exact(number) => {
            key.extend_from_slice(number.to_string().as_bytes())
        }
        Some(Value::Number(_)) => return refused("a number too large to store exactly"),
        Some(Value::Null) => return refused("null"),
        Some(Value::Array(_)) => return refused("an array"),
        Some(Value::Object(_)) => return refused("an object"),
    }
    Ok(())
}

/// Integers of 64 bits are exact. A larger integer was read as a double, where neighbours above
/// 2^53 become equal.
fn is_exact(number: &Number) -> bool {
    const EXACT_BELOW: f64 = (1u64 << 53) as f64;
    !number.is_f64()
        || number
            .as_f64()
            .is_some_and(|value| value.abs() < EXACT_BELOW)
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
    fn numbers_that_would_be_rounded_make_no_key() {
        let found = rows(
            b"{\"id\":18446744073709551615}\n{\"id\":18446744073709551616}\n{\"id\":1.5}\n",
            &["id"],
        );
        assert_eq!(found[0].as_ref().unwrap().0, "18446744073709551615");
        assert!(
            found[1]
                .as_ref()
                .unwrap_err()
                .ends_with("a number too large to store exactly, which cannot be a key")
        );
        assert_eq!(found[2].as_ref().unwrap().0, "1.5");
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        let deep = [b"{\"id\":".as_slice(), &vec![b'['; 100_000], b"\n"].concat();
        assert!(
            rows(&deep, &["id"])[0]
                .as_ref()
                .unwrap_err()
                .contains("recursion limit")
        );
    }
}
