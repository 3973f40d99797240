//! The parser of reads and the format of their answers, without a cache: a study exchanges the
//! index between them.
//!
//! ```text
//!   Input ──> GetParser::read ──> Gets: keys, parts of the answer ──> the study's index
//!                                                                         │ push_item, push_text
//!                                                                         v
//!                                                                       Output
//! ```

use super::answers::push_item_line;
use super::reads::{Batch, Read, Scratch, Span, Within, recycle};
use crate::output::Output;

/// Reads batches of `get` commands, as a session does. It keeps their memory.
///
/// ```
/// use forerun_server::study::{GetParser, Part};
///
/// let mut parser = GetParser::default();
/// let gets = parser.read(b"get a bb\r\nget c\r\nset d").ok_or("these are gets")?;
/// assert_eq!(gets.keys(), [&b"a"[..], b"bb", b"c"]);
/// assert_eq!(gets.len_bytes(), "get a bb\r\nget c\r\n".len());
/// assert_eq!(gets.parts().next(), Some(Part::Items(2)));
/// parser.recycle(gets);
/// # Ok::<(), &str>(())
/// ```
#[derive(Default)]
pub struct GetParser {
    scratch: Scratch,
}

/// A batch of `get` commands.
pub struct Gets<'a> {
    batch: Batch<'a>,
    read: Read,
}

/// A part of a batch's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The items of so many keys, those that exist.
    Items(usize),
    /// A fixed text.
    Text(&'static [u8]),
}

impl GetParser {
    /// Reads all complete `get` commands at the start of `bytes`. Returns `None` if another kind of
    /// read is among them, or a line that a session would answer in pieces.
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Option<Gets<'a>> {
        let mut batch = Batch::new(bytes, None, &mut self.scratch);
        let read = batch.read_commands(0);
        let is_get = |span: &Span<'_>| match span {
            Span::Keys { line, .. } => !line.with_cas && line.touch.is_none(),
            Span::Text(_) => true,
            _ => false,
        };
        let is_study = matches!(read.within, Within::Command) && batch.spans.iter().all(is_get);
        is_study.then_some(Gets { batch, read })
    }

    /// Takes the memory of an answered batch for the next one.
    pub fn recycle(&mut self, gets: Gets<'_>) {
        self.scratch.keys = recycle(gets.batch.keys);
        self.scratch.spans = recycle(gets.batch.spans);
    }
}

impl<'a> Gets<'a> {
    /// The keys of all commands, in order.
    pub fn keys(&self) -> &[&'a [u8]] {
        &self.batch.keys
    }

    /// The parts of the answer, in order.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        self.batch.spans.iter().filter_map(|span| match *span {
            Span::Keys { count, .. } => Some(Part::Items(count)),
            Span::Text(text) => Some(Part::Text(text)),
            // `read` returns no batch that has others.
            _ => None,
        })
    }

    /// Bytes of the commands.
    pub fn len_bytes(&self) -> usize {
        self.read.end
    }
}

/// Appends an item in the format of classic commands.
#[inline]
pub fn push_item(output: &mut Output, key: &[u8], flags: u32, value: &[u8]) {
    let out = output.bytes_mut();
    push_item_line(out, key, flags, value.len(), None);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a text.
pub fn push_text(output: &mut Output, text: &[u8]) {
    output.bytes_mut().extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_gets_are_read_and_other_reads_are_refused() {
        let mut parser = GetParser::default();
        for _ in 0..2 {
            let bytes = b"get a\r\nmn\r\nget b c\r\nget d";
            let gets = parser.read(bytes).expect("gets");
            assert_eq!(gets.keys(), [&b"a"[..], b"b", b"c"]);
            assert_eq!(gets.len_bytes(), bytes.len() - "get d".len());
            let parts: Vec<Part> = gets.parts().collect();
            let [
                Part::Items(1),
                Part::Text(end),
                Part::Text(noop),
                Part::Items(2),
                last,
            ] = parts[..]
            else {
                panic!("{parts:?}");
            };
            assert_eq!(
                (end, noop, last),
                (&b"END\r\n"[..], &b"MN\r\n"[..], Part::Text(end))
            );
            parser.recycle(gets);
        }
        let none = parser.read(b"stats\r\n").expect("no read");
        assert_eq!((none.keys().len(), none.len_bytes()), (0, 0));
        for refused in [&b"gets a\r\n"[..], b"mg a v\r\n", b"gat 1 a\r\n"] {
            assert!(parser.read(refused).is_none());
        }
        let long = [b"get".to_vec(), b" key".repeat(5000)].concat();
        assert!(parser.read(&long).is_none());
    }

    #[test]
    fn an_item_is_formatted_as_sessions_format_it() {
        let mut output = Output::new();
        push_item(&mut output, b"k", 7, b"value");
        push_text(&mut output, b"END\r\n");
        let mut slices = [std::io::IoSlice::new(&[])];
        assert_eq!(output.slices(&mut slices), 1);
        assert_eq!(*slices[0], *b"VALUE k 7 5\r\nvalue\r\nEND\r\n");
    }
}
