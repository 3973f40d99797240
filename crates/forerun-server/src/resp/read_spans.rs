//! What a batch of reads consists of: its keys, and how to answer them.
//!
//! ```text
//!   requests   GET a   MGET b c   HGET d f   PING   TTL e
//!   keys       [a, b, c, d, e]                 looked up together
//!   fields     [f]
//!   spans      Key(Get)  Strings(2)  Field(Hget)  Pong  Key(Ttl)     answered in order
//! ```
//!
//! Keys and fields are slices of the input, or of a request's own memory.

use forerun_cache::Item;

use super::arguments::Arguments;
use super::command_spec::Command;

/// How to answer a part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The next key, by a command that has no other argument.
    Key(Command),
    /// The next key and the next field, by `HGET`, `HEXISTS` or `HSTRLEN`.
    Field(Command),
    /// The next key and so many fields, by `HMGET`.
    Fields(usize),
    /// The strings of the next `count` keys, by an `MGET` of `total` keys. The first `answered` of
    /// them have an answer. If that leaves some, they are a part of another batch.
    Strings {
        total: usize,
        answered: usize,
        count: usize,
    },
    /// How many of the next keys exist, by `EXISTS` or `TOUCH`.
    Count(Command, usize),
    /// A part of the next key's string, by `GETRANGE` or `SUBSTR`.
    Range {
        command: Command,
        start: i64,
        end: i64,
    },
    /// No key.
    Pong,
    /// The next field, without a key, by `ECHO` or `PING`.
    Echo(Command),
}

impl Answer {
    /// The command that is answered.
    #[inline]
    pub(crate) fn command(self) -> Command {
        match self {
            Answer::Key(command)
            | Answer::Field(command)
            | Answer::Count(command, _)
            | Answer::Range { command, .. }
            | Answer::Echo(command) => command,
            Answer::Fields(_) => Command::Hmget,
            Answer::Strings { .. } => Command::Mget,
            Answer::Pong => Command::Ping,
        }
    }
}

/// A part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where the request begins in the input.
    pub(crate) start: usize,
    pub(crate) answer: Answer,
}

/// Vectors that the batches of a thread reuse.
#[derive(Default)]
pub(crate) struct RespScratch {
    pub(crate) keys: Vec<&'static [u8]>,
    pub(crate) fields: Vec<&'static [u8]>,
    pub(crate) arguments: Vec<&'static [u8]>,
    pub(crate) spans: Vec<Span>,
    pub(crate) items: Vec<Option<Item<'static>>>,
    /// The keys of a database that the cache does not have under the keys themselves.
    pub(crate) stored_keys: Arguments,
}
