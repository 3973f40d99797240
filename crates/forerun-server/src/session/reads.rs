//! Reads: every key of every retrieval command up to the next write is looked up in one batch.
//!
//! ```text
//!   bytes   get a bb\r\n mg c s v\r\n get d\r\n set …
//!   keys    [a, bb, c, d]
//!   spans   Keys 2, Text END, Meta "s v", Keys 1, Text END          then: another command at "set …"
//! ```
//!
//! Keys are slices of the input, so nothing is copied; the vectors come from the thread's
//! [`Scratch`] and go back there, so nothing is allocated. `answers.rs` looks the keys up and
//! answers the spans in order.

use forerun_cache::Item;

use crate::input::LINE_BYTES_MAX;
use crate::protocol::KEY_BYTES_MAX;
use crate::protocol::meta::{Letters, OPAQUE_BYTES_MAX, TOKENS_MAX};
use crate::protocol::numbers::{Expiration, parse_expiration};
use crate::protocol::replies;
use crate::protocol::scan::Scan;

/// No further command is read into a batch of so many keys.
const BATCH_KEYS: usize = 512;

/// Flags of `mg` that neither change the item nor need to be read before the lookup.
const PLAIN: Letters = Letters::of(b"cfkqstvOPL");

/// What a line of keys asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyLine {
    /// `gets`, `gats`: answers have the version.
    pub(super) with_cas: bool,
    /// `gat`, `gats`: the time to live that items get.
    pub(super) touch: Option<Expiration>,
}

impl KeyLine {
    const GET: Self = Self {
        with_cas: false,
        touch: None,
    };
    const GETS: Self = Self {
        with_cas: true,
        touch: None,
    };
}

/// A part of a batch's answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span<'a> {
    /// So many of the next keys, classically.
    Keys { count: usize, line: KeyLine },
    /// The next key, as `mg` with these flags.
    Meta {
        start: usize,
        letters: Letters,
        flags: &'a [u8],
    },
    /// Nothing to look up.
    Text(&'static [u8]),
}

/// Vectors that batches use again.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) keys: Vec<&'static [u8]>,
    pub(super) spans: Vec<Span<'static>>,
    pub(super) items: Vec<Option<Item<'static>>>,
}

/// An empty vector of another type in the memory of `vector`.
pub(super) fn recycle<A, B>(mut vector: Vec<A>) -> Vec<B> {
    const { assert!(size_of::<A>() == size_of::<B>() && align_of::<A>() == align_of::<B>()) };
    vector.clear();
    // Collecting in place keeps the memory; there is nothing to map.
    vector
        .into_iter()
        .map(|_| unreachable!("the vector was cleared"))
        .collect()
}

/// How reading commands into a batch ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// Everything before this is in the batch.
    pub end: usize,
    /// A command of another kind stands there, whole or not.
    pub is_other: bool,
    /// More bytes are needed.
    pub(super) is_incomplete: bool,
    /// What the session is within at `end`.
    pub(super) within: Within,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Within {
    Command,
    Keys(KeyLine),
    RefusedLine,
}

impl Read {
    fn on(end: usize) -> Self {
        Self {
            end,
            is_other: false,
            is_incomplete: false,
            within: Within::Command,
        }
    }

    fn other(end: usize) -> Self {
        Self {
            is_other: true,
            ..Self::on(end)
        }
    }

    fn incomplete(end: usize) -> Self {
        Self {
            is_incomplete: true,
            ..Self::on(end)
        }
    }
}

/// Keys to look up and what to answer.
pub(super) struct Batch<'a> {
    /// What it is read from.
    pub(super) bytes: &'a [u8],
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) spans: Vec<Span<'a>>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(bytes: &'a [u8], scratch: &mut Scratch) -> Self {
        Self {
            bytes,
            keys: recycle(std::mem::take(&mut scratch.keys)),
            spans: recycle(std::mem::take(&mut scratch.spans)),
        }
    }

    /// Reads commands from `from` on, up to one of another kind.
    pub(super) fn read_commands(&mut self, from: usize) -> Read {
        let bytes = self.bytes;
        let mut scan = Scan::new(bytes, from);
        let mut start = from;
        while self.keys.len() < BATCH_KEYS {
            if start == bytes.len() {
                return Read::incomplete(start);
            }
            let Some(end) = scan.next() else {
                return Read::other(start);
            };
            let is_last = bytes[end] == b'\n';
            match &bytes[start..end] {
                b"" if !is_last => {
                    // Spaces before a command mean nothing.
                    start = end + 1;
                    continue;
                }
                b"mn" | b"mn\r" if is_last => {
                    self.spans.push(Span::Text(replies::META_NOOP));
                    start = end + 1;
                    continue;
                }
                b"mg" if !is_last => match self.read_meta(start, end + 1, &mut scan) {
                    Some(next) => {
                        start = next;
                        continue;
                    }
                    None => return Read::other(start),
                },
                _ => {}
            }
            let read = match &bytes[start..end] {
                b"get" | b"bget" if !is_last => {
                    self.read_line(start, end + 1, KeyLine::GET, &mut scan, false)
                }
                b"gets" if !is_last => {
                    self.read_line(start, end + 1, KeyLine::GETS, &mut scan, false)
                }
                b"gat" | b"gats" if !is_last && !self.spans.is_empty() => {
                    // Touching is writing: what comes before is answered before.
                    return Read::on(start);
                }
                word @ (b"gat" | b"gats") if !is_last => {
                    let Some((touch, at)) = read_expiration(bytes, end + 1, &mut scan) else {
                        return Read::other(start);
                    };
                    let line = KeyLine {
                        with_cas: word == b"gats",
                        touch: Some(touch),
                    };
                    return self.read_line(start, at, line, &mut scan, false);
                }
                _ => return Read::other(start),
            };
            if read.is_incomplete || read.is_other {
                return read;
            }
            start = read.end;
        }
        Read::on(start)
    }

    /// Reads keys from `from` on, where a line of keys goes on.
    pub(super) fn read_keys(&mut self, from: usize, line: KeyLine) -> Read {
        let mut scan = Scan::new(self.bytes, from);
        self.read_line(from, from, line, &mut scan, true)
    }

    /// Reads the keys of the line that began at `start` and whose next key begins at `at`.
    ///
    /// A line of up to [`LINE_BYTES_MAX`] is answered when it is there as a whole, and with a key
    /// too long in it by the error alone. Of a longer one, and of one that `goes_on`, the keys that
    /// are there are answered at once, and an error follows them.
    fn read_line(
        &mut self,
        start: usize,
        mut at: usize,
        line: KeyLine,
        scan: &mut Scan<'a>,
        goes_on: bool,
    ) -> Read {
        let bytes = self.bytes;
        let first = self.keys.len();
        // How many keys there are before the first that is too long.
        let mut good = None;
        while let Some(end) = scan.next() {
            let is_last = bytes[end] == b'\n';
            let key = match &bytes[at..end] {
                [key @ .., b'\r'] if is_last => key,
                key => key,
            };
            at = end + 1;
            if key.len() > KEY_BYTES_MAX {
                good.get_or_insert(self.keys.len());
            } else if !key.is_empty() {
                self.keys.push(key);
            }
            if is_last {
                let is_long = goes_on || end - start >= LINE_BYTES_MAX;
                match good {
                    None if self.keys.len() == first && !is_long => {
                        // Not a key in it: the slow way knows what to say.
                        return Read::other(start);
                    }
                    None => self.push_keys(first, self.keys.len(), line, Some(replies::END)),
                    Some(good) if is_long => {
                        self.push_keys(first, good, line, Some(replies::BAD_FORMAT))
                    }
                    Some(_) => self.push_keys(first, first, line, Some(replies::BAD_FORMAT)),
                }
                return Read::on(at);
            }
        }
        // The line's end is not there yet. `at` begins a key that may be whole or not.
        if !goes_on && bytes.len() - start < LINE_BYTES_MAX {
            self.keys.truncate(first);
            return Read::incomplete(start);
        }
        if good.is_none() && bytes.len() - at > KEY_BYTES_MAX + 1 {
            good = Some(self.keys.len());
        }
        let within = match good {
            Some(good) => {
                self.push_keys(first, good, line, Some(replies::BAD_FORMAT));
                at = bytes.len();
                Within::RefusedLine
            }
            None => {
                self.push_keys(first, self.keys.len(), line, None);
                Within::Keys(line)
            }
        };
        Read {
            end: at,
            is_other: false,
            is_incomplete: true,
            within,
        }
    }

    /// The keys from `first` to `end` are to be answered, then `text`; any behind `end` are
    /// dropped.
    fn push_keys(&mut self, first: usize, end: usize, line: KeyLine, text: Option<&'static [u8]>) {
        self.keys.truncate(end);
        if end > first {
            self.spans.push(Span::Keys {
                count: end - first,
                line,
            });
        }
        if let Some(text) = text {
            self.spans.push(Span::Text(text));
        }
    }

    /// Reads `mg` with plain flags, from its key on; gives where the next line begins. `None` is a
    /// line that is incomplete or that needs a closer look.
    fn read_meta(&mut self, start: usize, at: usize, scan: &mut Scan<'a>) -> Option<usize> {
        let bytes = self.bytes;
        let mut end = scan.next()?;
        let key = match &bytes[at..end] {
            [key @ .., b'\r'] if bytes[end] == b'\n' => key,
            key => key,
        };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return None;
        }
        let flags_start = end;
        let mut letters = Letters::default();
        let mut tokens = 2;
        while bytes[end] != b'\n' {
            let at = end + 1;
            end = scan.next()?;
            let flag = &bytes[at..end];
            tokens += 1;
            // A return alone before the newline ends the line; anywhere else it is a flag like
            // another.
            let is_line_end = flag == b"\r" && bytes[end] == b'\n';
            if let Some(&letter) = flag.first().filter(|_| !is_line_end)
                && (!letters.insert(letter) || flag.len() > OPAQUE_BYTES_MAX)
            {
                return None;
            }
        }
        if !letters.is_within(PLAIN) || tokens > TOKENS_MAX {
            return None;
        }
        let flags = match &bytes[flags_start..end] {
            [flags @ .., b'\r'] => flags,
            flags => flags,
        };
        self.keys.push(key);
        self.spans.push(Span::Meta {
            start,
            letters,
            flags,
        });
        Some(end + 1)
    }
}

/// The expiration time at the front of the keys of a `gat`, and where the keys begin.
fn read_expiration(
    bytes: &[u8],
    mut at: usize,
    scan: &mut Scan<'_>,
) -> Option<(Expiration, usize)> {
    loop {
        let end = scan.next()?;
        if bytes[end] == b'\n' {
            return None;
        }
        let token = &bytes[at..end];
        at = end + 1;
        if !token.is_empty() {
            return Some((parse_expiration(token)?, at));
        }
    }
}
