//! Reads a list of keys, one per line, as text or as hexadecimal digits. Empty lines are skipped.

use super::lines::Lines;
use super::{InputError, Source};
use crate::output::parse_hex;

/// Maximum line length: a key of the maximum length as hexadecimal digits.
const LINE_BYTES_MAX: usize = 2 * 65_536;

/// Reads the keys of a list in batches.
pub struct Keys {
    lines: Lines,
    hex: bool,
}

impl Keys {
    /// Reads the keys from `source`.
    ///
    /// # Errors
    /// [`InputError::Read`] if the beginning cannot be read.
    pub fn new(source: Source, hex: bool) -> Result<Keys, InputError> {
        let lines = Lines::new(source, LINE_BYTES_MAX)?;
        Ok(Keys { lines, hex })
    }

    /// Fills `batch` with the next `length` keys, or fewer at the end of the list. At the end,
    /// `batch` is empty.
    ///
    /// # Errors
    /// [`InputError::Content`] if a line is too long or is not hexadecimal, [`InputError::Read`] if
    /// reading fails.
    pub fn next_batch(
        &mut self,
        length: usize,
        batch: &mut Vec<Vec<u8>>,
    ) -> Result<(), InputError> {
        batch.clear();
        while batch.len() < length {
            let Some(line) = self.lines.next()? else {
                break;
            };
            if line.bytes.is_empty() {
                continue;
            }
            if !self.hex {
                batch.push(line.bytes.to_vec());
                continue;
            }
            let (number, offset_bytes) = (line.number, line.offset_bytes);
            match parse_hex(line.bytes.trim_ascii()) {
                Ok(key) => batch.push(key),
                Err(problem) => {
                    let problem = format!("line {number}: {problem}");
                    return Err(self.lines.place().content_error(offset_bytes, problem));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::source;
    use super::*;

    #[test]
    fn keys_come_in_batches_in_order() {
        let mut keys = Keys::new(source(b"a\nb\n\nc\r\n d \n"), false).unwrap();
        let mut batch = Vec::new();
        keys.next_batch(3, &mut batch).unwrap();
        assert_eq!(batch, [b"a", b"b", b"c"]);
        keys.next_batch(3, &mut batch).unwrap();
        assert_eq!(batch, [b" d "]);
        keys.next_batch(3, &mut batch).unwrap();
        assert!(batch.is_empty());
    }

    #[test]
    fn a_mark_before_the_list_is_not_part_of_its_first_key() {
        for (list, hex) in [("\u{feff}61\n62\n", true), ("\u{feff}a\nb\n", false)] {
            let mut keys = Keys::new(source(list.as_bytes()), hex).unwrap();
            let mut batch = Vec::new();
            keys.next_batch(3, &mut batch).unwrap();
            assert_eq!(batch, [b"a", b"b"]);
        }
    }

    #[test]
    fn a_line_that_is_not_hexadecimal_is_named() {
        let mut keys = Keys::new(source(b"00ff\nxy\n"), true).unwrap();
        let mut batch = Vec::new();
        let error = keys.next_batch(10, &mut batch).unwrap_err();
        assert_eq!(
            error.to_string(),
            "test: byte 5: line 2: \"xy\" is not hexadecimal"
        );
        assert_eq!(batch, [[0x00, 0xff]]);
    }
}
