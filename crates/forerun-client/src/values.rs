//! Answers to a batch.
//!
//! ```text
//!   keys       k0      k1      k2      k3            the caller's order
//!   lookups   hit     miss    hit     failed         Lookups: one entry per key
//!              └───┐        ┌──┘
//!   bytes   │ value of k2 │ value of k0 │            in the order of arrival
//! ```

use std::fmt;

use crate::error::Failure;

/// A value in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Value<'a> {
    /// The bytes.
    pub data: &'a [u8],
    /// The flags that the client stored with it.
    pub flags: u32,
    /// The version, if the call asks for it.
    pub cas: Option<u64>,
}

impl<'a> Value<'a> {
    pub(crate) fn new(data: &'a [u8], flags: u32, cas: Option<u64>) -> Value<'a> {
        Value { data, flags, cas }
    }

    /// Copies the value.
    pub fn to_owned(&self) -> ValueBuf {
        ValueBuf {
            data: self.data.to_vec(),
            flags: self.flags,
            cas: self.cas,
        }
    }
}

/// A value that owns its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueBuf {
    /// The bytes.
    pub data: Vec<u8>,
    /// The flags that the client stored with it.
    pub flags: u32,
    /// The version, if the call asks for it.
    pub cas: Option<u64>,
}

/// Receives the answers to a batch as they arrive, from all servers and in any order. A key was not
/// found if no call names it.
///
/// A closure that takes a position and a value is a sink that ignores keys without an answer.
pub trait Sink {
    /// The key at this position has this value. The bytes are valid during the call.
    fn hit(&mut self, index: usize, value: Value<'_>);

    /// The key at this position has no answer.
    fn unanswered(&mut self, index: usize, why: Unanswered) {
        let _ = (index, why);
    }
}

impl<F: FnMut(usize, Value<'_>)> Sink for F {
    fn hit(&mut self, index: usize, value: Value<'_>) {
        self(index, value);
    }
}

/// Why a key has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unanswered {
    /// Its server failed; see [`Report::failures`].
    Failed,
    /// Its value is longer than `max_value_bytes`.
    Oversized {
        /// Its length.
        bytes: u64,
    },
}

/// The outcome of a batch. The four counts add up to the number of keys.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Keys that were found.
    pub hits: usize,
    /// Keys that were not found.
    pub misses: usize,
    /// Keys without an answer, because their server failed.
    pub failed: usize,
    /// Keys whose value is longer than `max_value_bytes`.
    pub oversized: usize,
    /// The servers that failed.
    pub failures: Vec<ServerFailure>,
}

/// A server that failed during a batch.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServerFailure {
    /// Its address.
    pub server: String,
    /// How many of its keys have no answer.
    pub keys: usize,
    /// What happened.
    pub failure: Failure,
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "server {}: {} ({} keys)",
            self.server, self.failure, self.keys
        )
    }
}

impl ServerFailure {
    pub(crate) fn new(server: String, keys: usize, failure: Failure) -> ServerFailure {
        ServerFailure {
            server,
            keys,
            failure,
        }
    }
}

/// The answer for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// Found.
    Hit(Value<'a>),
    /// Its server does not have it.
    Miss,
    /// There is no answer.
    Unanswered(Unanswered),
}

/// The values of a batch in the caller's order, in one buffer. It keeps its memory, so reuse it for
/// the next batch.
#[derive(Clone, Debug, Default)]
pub struct Lookups {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Entry {
    #[default]
    Miss,
    Hit {
        start: usize,
        bytes: u32,
        flags: u32,
        cas: Option<u64>,
    },
    Unanswered(Unanswered),
}

impl Lookups {
    /// Creates an empty buffer.
    pub fn new() -> Lookups {
        Lookups::default()
    }

    /// The number of keys of the last batch.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the last batch had no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of the key at this position, if it was found.
    pub fn get(&self, index: usize) -> Option<Value<'_>> {
        match self.lookup(index)? {
            Lookup::Hit(value) => Some(value),
            _ => None,
        }
    }

    /// The answer for the key at this position; `None` if the batch had fewer keys.
    pub fn lookup(&self, index: usize) -> Option<Lookup<'_>> {
        Some(match *self.entries.get(index)? {
            Entry::Miss => Lookup::Miss,
            Entry::Hit {
                start,
                bytes,
                flags,
                cas,
            } => {
                let data = &self.bytes[start..start + bytes as usize];
                Lookup::Hit(Value::new(data, flags, cas))
            }
            Entry::Unanswered(why) => Lookup::Unanswered(why),
        })
    }

    /// The value of each key, in the order of the keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<Value<'_>>> {
        (0..self.len()).map(|index| self.get(index))
    }

    pub(crate) fn reset(&mut self, keys: usize) {
        self.bytes.clear();
        self.entries.clear();
        self.entries.resize(keys, Entry::Miss);
    }
}

impl Sink for Lookups {
    fn hit(&mut self, index: usize, value: Value<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value.data);
        self.entries[index] = Entry::Hit {
            start,
            // A client accepts no value of 4 GiB.
            bytes: value.data.len() as u32,
            flags: value.flags,
            cas: value.cas,
        };
    }

    fn unanswered(&mut self, index: usize, why: Unanswered) {
        self.entries[index] = Entry::Unanswered(why);
    }
}
