//! Reads: the keys of all lookups up to the next write are looked up in one batch.
//!
//! ```text
//!   input    GET a │ MGET b c │ HGET d f │ PING │ SET …
//!   batch    keys [a, b, c, d]  fields [f]        then: a request of another kind
//! ```
//!
//! `resp::read_spans` draws the parts of a batch, and `read_answers.rs` answers them.

use std::mem;

use forerun_cache::CacheKeyspace;

use crate::resp::arguments::Arguments;
use crate::resp::command_spec::{Command, Spec};
use crate::resp::command_table::find;
use crate::resp::integers::parse_i64;
use crate::resp::parse::{Limits, Parsed, ProtocolError, parse};
use crate::resp::read_spans::{Answer, RespScratch, Span};
use crate::session::recycle;

/// A batch of this many keys takes no further request, and no more of a longer `MGET`.
pub(super) const BATCH_KEYS: usize = 512;
/// Neither does one of this many parts, of which some have no key.
const BATCH_SPANS: usize = 1024;
/// Vectors that have grown beyond this are not kept.
const KEPT_KEYS: usize = 16 << 10;

/// Empties a vector for later requests. Frees a large one.
pub(super) fn keep<A, B>(vector: Vec<A>) -> Vec<B> {
    if vector.capacity() > KEPT_KEYS {
        return Vec::new();
    }
    recycle(vector)
}

/// Keys to look up, and how to answer them.
pub(super) struct Batch<'a> {
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) fields: Vec<&'a [u8]>,
    pub(super) spans: Vec<Span>,
    /// How many keys of an `MGET` are a part of this batch.
    strings_max: usize,
}

/// What follows a batch in the input.
pub(super) enum Next {
    /// More input, once the batch is answered.
    Input,
    /// A request of which a part has arrived.
    Incomplete,
    /// A request of so many bytes that is not a lookup. Its arguments are read.
    Request(usize),
    /// An inline request of so many bytes.
    Inline(usize),
    Error(ProtocolError),
}

impl<'a> Batch<'a> {
    pub(super) fn new(scratch: &mut RespScratch) -> Self {
        Self {
            keys: recycle(mem::take(&mut scratch.keys)),
            fields: recycle(mem::take(&mut scratch.fields)),
            spans: mem::take(&mut scratch.spans),
            strings_max: BATCH_KEYS,
        }
    }

    /// A batch that takes whole requests only.
    pub(super) fn of_whole_requests(scratch: &mut RespScratch) -> Self {
        Self {
            strings_max: usize::MAX,
            ..Self::new(scratch)
        }
    }

    /// Gives the vectors back.
    pub(super) fn recycle(mut self, scratch: &mut RespScratch) {
        self.spans.clear();
        scratch.keys = keep(self.keys);
        scratch.fields = keep(self.fields);
        scratch.spans = self.spans;
    }

    /// Appends to `stored` the keys under which the cache has the items.
    pub(super) fn store_keys(&self, keyspace: CacheKeyspace, stored: &mut Arguments) {
        for key in &self.keys {
            if !keyspace.stores_as_is(key) {
                stored.extend_last(&keyspace.prefix());
            }
            stored.push(key);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.keys.len() >= BATCH_KEYS || self.spans.len() >= BATCH_SPANS
    }

    /// Reads requests from `at` up to the first one that is not a lookup, whose arguments are then
    /// in `arguments`. `answered` is the number of keys of the first request that have an answer.
    /// Returns where reading ended.
    pub(super) fn read(
        &mut self,
        bytes: &'a [u8],
        mut at: usize,
        mut answered: usize,
        arguments: &mut Vec<&'a [u8]>,
    ) -> (usize, Next) {
        while !self.is_full() {
            let len = match parse(&bytes[at..], Limits::Open, arguments) {
                Ok(Parsed::Request(len)) => len,
                Ok(Parsed::Nothing(len)) => {
                    at += len;
                    continue;
                }
                Ok(Parsed::Incomplete) => return (at, Next::Incomplete),
                Ok(Parsed::Inline(len)) => return (at, Next::Inline(len)),
                Err(error) => return (at, Next::Error(error)),
            };
            let spec = find(arguments[0]);
            if !spec.is_some_and(|spec| self.push(spec, arguments, at, answered)) {
                return (at, Next::Request(len));
            }
            answered = 0;
            at += len;
        }
        (at, Next::Input)
    }

    /// Adds a request that begins at `start`, of which the first `answered` keys have an answer.
    /// Returns false if it is not a lookup, or a wrong one.
    #[inline]
    pub(super) fn push(
        &mut self,
        spec: &Spec,
        arguments: &[&'a [u8]],
        start: usize,
        answered: usize,
    ) -> bool {
        let Some(answer) = self.answer_to(spec, arguments, answered) else {
            return false;
        };
        self.spans.push(Span { start, answer });
        true
    }

    /// Adds a part of an `MGET` of `total` keys, of which the first `answered` have an answer.
    pub(super) fn push_strings(
        &mut self,
        keys: impl Iterator<Item = &'a [u8]>,
        total: usize,
        answered: usize,
    ) {
        let before = self.keys.len();
        self.keys.extend(keys.take(self.strings_max));
        let answer = Answer::Strings {
            total,
            answered,
            count: self.keys.len() - before,
        };
        self.spans.push(Span { start: 0, answer });
    }

    #[inline]
    fn answer_to(
        &mut self,
        spec: &Spec,
        arguments: &[&'a [u8]],
        answered: usize,
    ) -> Option<Answer> {
        if !spec.takes(arguments.len()) {
            return None;
        }
        let answer = match spec.command {
            Command::Ping | Command::Echo => match arguments {
                [_] => return Some(Answer::Pong),
                [_, text] => {
                    self.fields.push(text);
                    return Some(Answer::Echo(spec.command));
                }
                _ => return None,
            },
            Command::Mget => {
                let rest = arguments.get(1 + answered..)?;
                let count = rest.len().min(self.strings_max);
                self.keys.extend_from_slice(&rest[..count]);
                let total = arguments.len() - 1;
                return Some(Answer::Strings {
                    total,
                    answered,
                    count,
                });
            }
            Command::Exists | Command::Touch => {
                self.keys.extend_from_slice(&arguments[1..]);
                return Some(Answer::Count(spec.command, arguments.len() - 1));
            }
            Command::Hget | Command::Hexists | Command::Hstrlen => {
                self.fields.push(arguments[2]);
                Answer::Field(spec.command)
            }
            Command::Hmget => {
                self.fields.extend_from_slice(&arguments[2..]);
                Answer::Fields(arguments.len() - 2)
            }
            Command::Getrange | Command::Substr => Answer::Range {
                command: spec.command,
                start: parse_i64(arguments[2])?,
                end: parse_i64(arguments[3])?,
            },
            Command::Get
            | Command::Strlen
            | Command::Type
            | Command::Ttl
            | Command::Pttl
            | Command::Expiretime
            | Command::Pexpiretime
            | Command::Hgetall
            | Command::Hkeys
            | Command::Hvals
            | Command::Hlen => Answer::Key(spec.command),
            _ => return None,
        };
        self.keys.push(arguments[1]);
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::command_list::COMMANDS;
    use crate::resp::command_spec::Flags;

    #[test]
    fn every_lookup_joins_a_batch_and_nothing_that_writes_does() {
        for spec in COMMANDS {
            let count = spec.arity.unsigned_abs() as usize;
            let mut arguments = vec![&b"1"[..]; count];
            arguments[0] = spec.name.as_bytes();
            let mut batch = Batch::new(&mut RespScratch::default());
            let joins = batch.push(spec, &arguments, 0, 0);
            let is_text = matches!(spec.command, Command::Ping | Command::Echo);
            assert_eq!(
                joins,
                spec.flags.has(Flags::LOOKUP) || is_text,
                "{}",
                spec.name
            );
            assert!(!(joins && spec.flags.has(Flags::WRITE)));
        }
    }

    #[test]
    fn a_batch_ends_before_a_write() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n\r\n*3\r\n$4\r\nMGET\r\n$1\r\nb\r\n$1\r\nc\r\n\
                      *2\r\n$3\r\ndel\r\n$1\r\na\r\n";
        let (mut scratch, mut arguments) = (RespScratch::default(), Vec::new());
        let mut batch = Batch::new(&mut scratch);
        let (end, next) = batch.read(bytes, 0, 0, &mut arguments);
        assert!(matches!(next, Next::Request(20)));
        assert_eq!(bytes.len() - end, 20);
        assert_eq!(batch.keys, [b"a", b"b", b"c"]);
        assert_eq!(arguments, [&b"del"[..], b"a"]);
        let strings = Answer::Strings {
            total: 2,
            answered: 0,
            count: 2,
        };
        assert_eq!(
            batch.spans[1],
            Span {
                start: 22,
                answer: strings
            }
        );
    }
}
