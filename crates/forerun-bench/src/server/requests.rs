//! Requests composed before the clock runs, and what must come back.
//!
//! ```text
//!   classic  get k1 k2 k3            ->  VALUE k1 0 64 … VALUE k2 0 64 … VALUE k3 0 64 … END
//!   meta     mg k1 v, mg k2 v, …     ->  VA 64 …, VA 64 …                       pipelined
//!   set      set k1 0 0 64 …, set …  ->  STORED, STORED                         pipelined
//!            ms k1 64 …, ms k2 64 …  ->  HD, HD
//! ```
//!
//! Every key has its value and every value the same length, so a reply's length follows from the number of keys.

use crate::skew::Skew;
use anyhow::{Context, Result};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::fmt;
use std::io::Write;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Operation {
    /// Values of keys that are there
    Get,
    /// New values under keys that are there
    Set,
}

/// In which words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// One `get` of several keys, or as many `set`s
    Classic,
    /// As many `mg` or `ms`, pipelined
    Meta,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Operation::Get => "get",
            Operation::Set => "set",
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Protocol::Classic => "classic",
            Protocol::Meta => "meta",
        })
    }
}

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 16;
/// All requests of a cell together are at most about this long.
const BYTES_MAX: usize = 64 << 20;

/// The key of an item: `key:` and twelve digits.
pub(super) fn put_key(to: &mut Vec<u8>, item: u32) {
    let start = to.len();
    to.extend_from_slice(b"key:000000000000");
    let mut rest = item;
    for at in (start + 4..start + KEY_BYTES).rev() {
        to[at] += (rest % 10) as u8;
        rest /= 10;
    }
}

/// The value of an item: letters that begin elsewhere in the alphabet for each.
pub(super) fn put_value(to: &mut Vec<u8>, item: u32, value_bytes: usize) {
    let mut letter = (item % 26) as u8;
    let digits = item.to_le_bytes().map(|byte| b'a' + byte % 16);
    for at in 0..value_bytes {
        to.push(*digits.get(at).unwrap_or(&(b'a' + letter)));
        letter = (letter + 1) % 26;
    }
}

/// A command that stores an item.
pub(super) fn put_set(to: &mut Vec<u8>, protocol: Protocol, item: u32, value_bytes: usize) {
    match protocol {
        Protocol::Classic => {
            to.extend_from_slice(b"set ");
            put_key(to, item);
            put_text(to, format_args!(" 0 0 {value_bytes}\r\n"));
        }
        Protocol::Meta => {
            to.extend_from_slice(b"ms ");
            put_key(to, item);
            put_text(to, format_args!(" {value_bytes}\r\n"));
        }
    }
    put_value(to, item, value_bytes);
    to.extend_from_slice(b"\r\n");
}

fn put_text(to: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Memory takes what it is given.
    let _ = to.write_fmt(text);
}

/// The requests of a cell, in a ring.
pub(super) struct Requests {
    operation: Operation,
    protocol: Protocol,
    value_bytes: usize,
    keys: usize,
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// The items asked for, `keys` a request.
    items: Vec<u32>,
    /// The length of each reply.
    pub(super) reply_bytes: usize,
}

impl Requests {
    /// Draws as many requests as ask for each item once on average, or as fit.
    pub(super) fn compose(cell: &super::args::Cell, seed: u64) -> Result<Requests> {
        let draw = Draw::new(cell.skew, cell.items)?;
        let mut random = SmallRng::seed_from_u64(seed);
        let mut requests = Requests {
            operation: cell.operation,
            protocol: cell.protocol,
            value_bytes: cell.value_bytes,
            keys: cell.keys,
            bytes: Vec::new(),
            ends: Vec::new(),
            items: Vec::new(),
            reply_bytes: 0,
        };
        let count = cell.items.div_ceil(cell.keys).max(64);
        while requests.ends.len() < count && requests.bytes.len() < BYTES_MAX {
            let first = requests.items.len();
            for _ in 0..cell.keys {
                requests.items.push(draw.item(&mut random));
            }
            requests.put(first);
            requests.ends.push(requests.bytes.len());
        }
        let mut reply = Vec::new();
        requests.put_reply(0, &mut reply);
        requests.reply_bytes = reply.len();
        Ok(requests)
    }

    /// Appends the request whose items begin at `first`.
    fn put(&mut self, first: usize) {
        let Requests { bytes, items, .. } = self;
        let items = &items[first..];
        match (self.operation, self.protocol) {
            (Operation::Get, Protocol::Classic) => {
                bytes.extend_from_slice(b"get");
                for &item in items {
                    bytes.push(b' ');
                    put_key(bytes, item);
                }
                bytes.extend_from_slice(b"\r\n");
            }
            (Operation::Get, Protocol::Meta) => {
                for &item in items {
                    bytes.extend_from_slice(b"mg ");
                    put_key(bytes, item);
                    bytes.extend_from_slice(b" v\r\n");
                }
            }
            (Operation::Set, protocol) => {
                for &item in items {
                    put_set(bytes, protocol, item, self.value_bytes);
                }
            }
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Keys a request.
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    /// The bytes of one.
    pub(super) fn request(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    /// What must be the reply to one.
    pub(super) fn put_reply(&self, number: usize, to: &mut Vec<u8>) {
        let items = &self.items[number * self.keys..(number + 1) * self.keys];
        for &item in items {
            match (self.operation, self.protocol) {
                (Operation::Get, protocol) => {
                    match protocol {
                        Protocol::Classic => {
                            to.extend_from_slice(b"VALUE ");
                            put_key(to, item);
                            put_text(to, format_args!(" 0 {}\r\n", self.value_bytes));
                        }
                        Protocol::Meta => {
                            put_text(to, format_args!("VA {}\r\n", self.value_bytes));
                        }
                    }
                    put_value(to, item, self.value_bytes);
                    to.extend_from_slice(b"\r\n");
                }
                (Operation::Set, Protocol::Classic) => to.extend_from_slice(b"STORED\r\n"),
                (Operation::Set, Protocol::Meta) => to.extend_from_slice(b"HD\r\n"),
            }
        }
        if (self.operation, self.protocol) == (Operation::Get, Protocol::Classic) {
            to.extend_from_slice(b"END\r\n");
        }
    }
}

/// Which item is next.
struct Draw {
    zipf: Option<Zipf<f64>>,
    items: u32,
}

impl Draw {
    fn new(skew: Skew, items: usize) -> Result<Draw> {
        let zipf = match skew {
            Skew::Uniform => None,
            Skew::Zipf(exponent) => Some(Zipf::new(items as f64, exponent)?),
        };
        Ok(Draw {
            zipf,
            items: u32::try_from(items).context("too many items")?,
        })
    }

    fn item(&self, random: &mut SmallRng) -> u32 {
        match &self.zipf {
            None => random.random_range(0..self.items),
            Some(zipf) => {
                // Popular ones lie anywhere: ranks are spread by a step that is prime.
                let rank = zipf.sample(random) as u64 - 1;
                ((rank * 2_147_483_647) % u64::from(self.items)) as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::Cell;
    use super::*;

    fn compose(operation: Operation, protocol: Protocol) -> (String, String, usize) {
        let cell = Cell {
            value_bytes: 5,
            items: 1000,
            operation,
            protocol,
            skew: Skew::Zipf(0.99),
            keys: 2,
            connections: 1,
        };
        let requests = Requests::compose(&cell, 1).expect("they are composed");
        let mut reply = Vec::new();
        requests.put_reply(3, &mut reply);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (a, b) = (requests.items[6], requests.items[7]);
        let named = |text: String| {
            text.replace(&format!("key:{a:012}"), "A")
                .replace(&format!("key:{b:012}"), "B")
        };
        (
            named(text(requests.request(3))),
            named(text(&reply)),
            requests.reply_bytes,
        )
    }

    #[test]
    fn requests_and_replies_are_memcacheds() {
        let (request, reply, length) = compose(Operation::Get, Protocol::Classic);
        assert_eq!(request, "get A B\r\n");
        assert!(reply.starts_with("VALUE A 0 5\r\n") && reply.ends_with("\r\nEND\r\n"));
        assert_eq!(length, reply.len() + 2 * (KEY_BYTES - 1));
        let (request, reply, length) = compose(Operation::Get, Protocol::Meta);
        assert_eq!(request, "mg A v\r\nmg B v\r\n");
        assert!(reply.starts_with("VA 5\r\n"));
        assert_eq!(length, reply.len());
        let (request, reply, _) = compose(Operation::Set, Protocol::Classic);
        assert!(request.starts_with("set A 0 0 5\r\n") && request.contains("\r\nset B 0 0 5\r\n"));
        assert_eq!(reply, "STORED\r\nSTORED\r\n");
        let (request, reply, _) = compose(Operation::Set, Protocol::Meta);
        assert!(request.starts_with("ms A 5\r\n") && request.contains("\r\nms B 5\r\n"));
        assert_eq!(reply, "HD\r\nHD\r\n");
    }
}
