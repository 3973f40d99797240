//! A request that arrives in pieces.
//!
//! ```text
//!   Header ──► Bulk ──► BulkEnd ──► Header …                 until no argument is left
//!      │         ├─► arguments             most of them
//!      │         ├─► a buffer of the cache a large value of SET: it is never held twice
//!      │         └─► nowhere               larger than any value may be: the request is refused
//!   Inline ──► arguments
//! ```
//!
//! The session consumes what has arrived, so that its input stays small. The arguments take memory
//! as they arrive and count as memory of the connection, which has a limit.

use forerun_cache::{Cache, Error, ValueBuffer};
use memchr::memchr;

use super::arguments::{Arguments, LargeArgument};
use super::command_spec::Command;
use super::command_table::find;
use super::parse::{LINE_BYTES_MAX, Limits, ProtocolError, inline_words};

/// A value of at least this size is written to the cache's own memory as it arrives.
const LARGE_BYTES_MIN: usize = 16 << 10;

/// A request of which a part has arrived.
#[derive(Debug)]
pub(crate) struct Partial {
    arguments: Arguments,
    /// Arguments that have not arrived in full. `None` before the header of the request.
    left: Option<i64>,
    part: Part,
}

/// What comes next.
#[derive(Debug)]
enum Part {
    /// A header, without its line end, as far as it has arrived.
    Header(Vec<u8>),
    /// The byte behind a header's carriage return.
    HeaderEnd(Vec<u8>),
    /// Bytes of an argument.
    Bulk { left: usize, to: Destination },
    /// The line end behind an argument, of which this many bytes have arrived.
    BulkEnd(usize),
    /// An inline request, as far as it has arrived.
    Inline(Vec<u8>),
}

#[derive(Debug)]
enum Destination {
    Arguments,
    Buffer(ValueBuffer),
    Nowhere,
}

impl Partial {
    /// The request that begins with `first`.
    pub(crate) fn new(first: u8) -> Partial {
        let part = match first {
            b'*' => Part::Header(Vec::new()),
            _ => Part::Inline(Vec::new()),
        };
        Partial {
            arguments: Arguments::default(),
            left: None,
            part,
        }
    }

    /// Takes bytes up to the end of the request. Returns how many, and the arguments once they are
    /// complete. An empty request has no arguments.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub(crate) fn take(
        &mut self,
        cache: &Cache,
        limits: Limits,
        bytes: &[u8],
    ) -> Result<(usize, Option<Arguments>), ProtocolError> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let is_last = self.left == Some(1);
            match &mut self.part {
                Part::Inline(line) => {
                    let end = memchr(b'\n', rest);
                    let count = end.map_or(rest.len(), |end| end + 1);
                    let len = line.len() + count;
                    if len > LINE_BYTES_MAX || (len == LINE_BYTES_MAX && end.is_none()) {
                        return Err(ProtocolError::LongInline);
                    }
                    line.extend_from_slice(&rest[..count]);
                    at += count;
                    if end.is_some() {
                        return Ok((at, Some(inline_words(line)?)));
                    }
                }
                Part::Header(text) => {
                    let end = memchr(b'\r', rest);
                    let count = end.unwrap_or(rest.len());
                    text.extend_from_slice(&rest[..count]);
                    // The marker is one of the bytes.
                    if text.len() > LINE_BYTES_MAX {
                        return Err(match self.left {
                            None => ProtocolError::LongMultibulkHeader,
                            Some(_) => ProtocolError::LongBulkHeader,
                        });
                    }
                    if self.left.is_some()
                        && let Some(&marker) = text.first()
                        && marker != b'$'
                    {
                        return Err(ProtocolError::ExpectedBulk(marker));
                    }
                    at += count;
                    if end.is_some() {
                        if self.left.is_some() && text.is_empty() {
                            return Err(ProtocolError::ExpectedBulk(b'\r'));
                        }
                        at += 1;
                        self.part = Part::HeaderEnd(std::mem::take(text));
                    }
                }
                Part::HeaderEnd(text) => {
                    at += 1;
                    let text = std::mem::take(text);
                    let number = text.get(1..).unwrap_or_default();
                    if self.left.is_none() {
                        let count = limits.arguments(number)?;
                        if count <= 0 {
                            return Ok((at, Some(Arguments::default())));
                        }
                        self.left = Some(count);
                        self.part = Part::Header(Vec::new());
                    } else {
                        let left = limits.bulk_bytes(number)?;
                        let to = self.destination(cache, left);
                        self.part = Part::Bulk { left, to };
                        if left == 0 {
                            self.end_bulk();
                        }
                    }
                }
                Part::Bulk { left, to } => {
                    let count = (*left).min(rest.len());
                    let piece = &rest[..count];
                    match to {
                        Destination::Nowhere => {}
                        Destination::Arguments => self.arguments.extend_last(piece),
                        Destination::Buffer(buffer) => {
                            if let Err(error) = buffer.put(cache, piece) {
                                // This gives the memory back before the client learns of the error.
                                *to = Destination::Nowhere;
                                self.arguments.large = Some(refusal(&error));
                            }
                        }
                    }
                    *left -= count;
                    at += count;
                    if *left == 0 {
                        self.end_bulk();
                    }
                }
                Part::BulkEnd(arrived) => {
                    if rest[0] != b"\r\n"[*arrived] {
                        return Err(ProtocolError::ValueEnd);
                    }
                    *arrived += 1;
                    at += 1;
                    if *arrived == 2 {
                        if is_last {
                            return Ok((at, Some(std::mem::take(&mut self.arguments))));
                        }
                        self.left = self.left.map(|left| left - 1);
                        self.part = Part::Header(Vec::new());
                    }
                }
            }
        }
        Ok((at, None))
    }

    /// Ends the argument whose last byte has arrived.
    fn end_bulk(&mut self) {
        let part = std::mem::replace(&mut self.part, Part::BulkEnd(0));
        if let Part::Bulk {
            to: Destination::Buffer(buffer),
            ..
        } = part
        {
            self.arguments.large = Some(LargeArgument::Value(buffer));
        }
        self.arguments.finish_last();
    }

    /// Where to put an argument of this length.
    fn destination(&mut self, cache: &Cache, len: usize) -> Destination {
        // What may arrive at once is never refused here, so that all arguments have one limit.
        if len > cache.options().max_item_bytes.max(LINE_BYTES_MAX) {
            self.arguments.large = Some(LargeArgument::TooLarge);
            return Destination::Nowhere;
        }
        let name = self
            .arguments
            .get(0)
            .and_then(find)
            .map(|spec| spec.command);
        let is_value = matches!(
            (name, self.arguments.len()),
            (Some(Command::Set | Command::Setnx | Command::Getset), 2)
                | (Some(Command::Setex | Command::Psetex), 3)
        );
        if !is_value || len < LARGE_BYTES_MIN || self.arguments.large.is_some() {
            return Destination::Arguments;
        }
        match cache.value_buffer(len) {
            Ok(buffer) => Destination::Buffer(buffer),
            Err(error) => {
                self.arguments.large = Some(refusal(&error));
                Destination::Nowhere
            }
        }
    }

    /// Whether part of a value has arrived that takes memory of the cache.
    pub(crate) fn is_receiving_value(&self) -> bool {
        let is_buffer = |part: &Part| {
            matches!(
                part,
                Part::Bulk {
                    to: Destination::Buffer(_),
                    ..
                }
            )
        };
        is_buffer(&self.part) || matches!(self.arguments.large, Some(LargeArgument::Value(_)))
    }

    /// Memory of what has arrived, without that of the cache.
    pub(crate) fn memory_bytes(&self) -> usize {
        let line = match &self.part {
            Part::Header(line) | Part::HeaderEnd(line) | Part::Inline(line) => line.capacity(),
            Part::Bulk { .. } | Part::BulkEnd(_) => 0,
        };
        line + self.arguments.memory_bytes()
    }
}

fn refusal(error: &Error) -> LargeArgument {
    match error {
        Error::ValueTooLarge { .. } => LargeArgument::TooLarge,
        _ => LargeArgument::OutOfMemory,
    }
}

#[cfg(test)]
mod tests {
    use forerun_cache::{CacheOptions, Clock};
    use proptest::prelude::*;

    use super::super::parse::{Parsed, parse};
    use super::*;

    fn cache() -> Cache {
        let options = CacheOptions::default().clock(Clock::Manual);
        Cache::new(options).expect("a cache")
    }

    /// Reads one request in pieces of these lengths. Returns the bytes taken and the arguments.
    fn in_pieces(
        bytes: &[u8],
        lengths: &[usize],
    ) -> Result<Option<(usize, Arguments)>, ProtocolError> {
        let cache = cache();
        let mut partial = Partial::new(bytes[0]);
        let mut lengths = lengths.iter().cycle();
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes
                .len()
                .min(at + lengths.next().map_or(1, |&length| length.max(1)));
            let (taken, done) = partial.take(&cache, Limits::Open, &bytes[at..end])?;
            at += taken;
            if let Some(arguments) = done {
                return Ok(Some((at, arguments)));
            }
            assert_eq!(at, end, "it takes everything until it is done");
        }
        Ok(None)
    }

    #[test]
    fn a_large_value_goes_to_the_cache_and_one_that_is_too_large_nowhere() {
        for (len, options) in [(20_000, ""), (2 << 20, ""), (100_000, "$2\r\nNX\r\n")] {
            let count = if options.is_empty() { 3 } else { 4 };
            let mut bytes = format!("*{count}\r\n$3\r\nset\r\n$1\r\na\r\n${len}\r\n").into_bytes();
            bytes.resize(bytes.len() + len, b'x');
            bytes.extend_from_slice(b"\r\n");
            bytes.extend_from_slice(options.as_bytes());
            let (taken, arguments) = in_pieces(&bytes, &[4096]).expect("a request").expect("all");
            assert_eq!(taken, bytes.len());
            assert_eq!(arguments.get(2), Some(&b""[..]));
            match &arguments.large {
                Some(LargeArgument::Value(value)) => {
                    assert!(len < 1 << 20 && value.is_full() && value.len() == len);
                }
                Some(LargeArgument::TooLarge) => assert!(len > 1 << 20),
                other => panic!("{other:?}"),
            }
            assert!(arguments.memory_bytes() < 1000);
        }
    }

    proptest! {
        #[test]
        fn a_request_in_pieces_is_the_one_that_arrives_at_once(
            bytes in prop_oneof![
                "(\\*[0-3-]{1,2}\r\n)?(\\$[0-3]\r\n[a-c\r]{0,3}\r\n){0,4}",
                "[a-c\"' \\\\]{1,12}\r?\n[a-c]{0,3}",
                "\\*[0-9x]{0,3}\r?\n?[$:]?[0-9]{0,3}\r?\n?",
            ],
            lengths in proptest::collection::vec(1_usize..6, 1..4),
        ) {
            let bytes = bytes.as_bytes();
            prop_assume!(!bytes.is_empty());
            let mut slices = Vec::new();
            let whole = parse(bytes, Limits::Open, &mut slices);
            let whole = match whole {
                Ok(Parsed::Request(len)) => {
                    Ok(Some((len, slices.iter().map(|one| one.to_vec()).collect::<Vec<_>>())))
                }
                Ok(Parsed::Inline(len)) => inline_words(&bytes[..len]).map(|words| {
                    Some((len, words.iter().map(<[u8]>::to_vec).collect()))
                }),
                Ok(Parsed::Nothing(len)) => Ok(Some((len, Vec::new()))),
                Ok(Parsed::Incomplete) => Ok(None),
                Err(error) => Err(error),
            };
            let pieces = in_pieces(bytes, &lengths).map(|done| {
                done.map(|(len, arguments)| {
                    (len, arguments.iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
                })
            });
            prop_assert_eq!(whole, pieces);
        }
    }
}
