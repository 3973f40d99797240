//! Reads lines of bytes. Their length is bounded, and they are numbered from 1.

use std::io::BufRead;

use super::{InputError, InputPosition, Source};

/// Reads an input line by line into a single buffer.
pub struct Lines {
    place: InputPosition,
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
    offset_bytes: u64,
    next_offset_bytes: u64,
    limit_bytes: usize,
}

/// A line of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The line number, from 1.
    pub number: u64,
    /// Start offset in the (uncompressed) input.
    pub offset_bytes: u64,
    /// The line's bytes, without the line end (`\n` or `\r\n`).
    pub bytes: &'a [u8],
}

impl Lines {
    /// Reads lines of at most `limit_bytes` each.
    ///
    /// # Errors
    /// [`InputError::Read`] if the beginning cannot be read.
    pub fn new(source: Source, limit_bytes: usize) -> Result<Lines, InputError> {
        let (place, reader) = source.into_text()?;
        let begin_bytes = place.begin_bytes();
        Ok(Lines {
            place,
            reader,
            line: Vec::new(),
            number: 0,
            offset_bytes: begin_bytes,
            next_offset_bytes: begin_bytes,
            limit_bytes,
        })
    }

    /// How far the input was read.
    pub fn place(&self) -> &InputPosition {
        &self.place
    }

    /// Returns the next line, or `None` at the end.
    ///
    /// # Errors
    /// [`InputError::Content`] if a line is longer than the limit, [`InputError::Read`] if reading
    /// fails.
    pub fn next(&mut self) -> Result<Option<Line<'_>>, InputError> {
        self.line.clear();
        self.offset_bytes = self.next_offset_bytes;
        loop {
            let buffer = self.reader.fill_buf();
            let buffer = buffer.map_err(|error| self.place.read_error(error))?;
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(buffer.len(), |at| at + 1);
            self.line.extend_from_slice(&buffer[..taken]);
            self.reader.consume(taken);
            self.next_offset_bytes += taken as u64;
            if self.line.len() > self.limit_bytes + 2 {
                let problem = format!(
                    "line {} is longer than {} bytes",
                    self.number + 1,
                    self.limit_bytes
                );
                return Err(self.place.content_error(self.offset_bytes, problem));
            }
            if end.is_some() || taken == 0 {
                break;
            }
        }
        if self.line.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let bytes = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        Ok(Some(Line {
            number: self.number,
            offset_bytes: self.offset_bytes,
            bytes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::source;
    use super::*;

    fn lines(text: &[u8], limit_bytes: usize) -> Result<Vec<(u64, u64, Vec<u8>)>, InputError> {
        let mut lines = Lines::new(source(text), limit_bytes)?;
        let mut all = Vec::new();
        while let Some(line) = lines.next()? {
            all.push((line.number, line.offset_bytes, line.bytes.to_vec()));
        }
        Ok(all)
    }

    #[test]
    fn line_ends_are_taken_off_and_lines_are_located() {
        let found = lines(b"one\r\n\ntwo\nlast", 100).unwrap();
        let expected: [(u64, u64, &[u8]); 4] = [
            (1, 0, b"one"),
            (2, 5, b""),
            (3, 6, b"two"),
            (4, 10, b"last"),
        ];
        assert_eq!(
            found,
            expected.map(|(number, at, bytes)| (number, at, bytes.to_vec()))
        );
        assert_eq!(lines(b"", 100).unwrap(), []);
        let marked = lines(b"\xef\xbb\xbfone\ntwo", 100).unwrap();
        assert_eq!(marked, [(1, 3, b"one".to_vec()), (2, 7, b"two".to_vec())]);
    }

    #[test]
    fn a_line_over_the_limit_is_an_error_not_memory() {
        let long = vec![b'x'; 1 << 20];
        assert_eq!(lines(&long, 1 << 20).unwrap().len(), 1);
        let error = lines(&[b"ok\n", &long[..]].concat(), 1000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "test: byte 3: line 2 is longer than 1000 bytes"
        );
    }
}
