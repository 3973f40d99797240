//! Reads: the keys of all retrieval commands up to the next write are looked up in one batch.
//!
//! ```text
//!   bytes   get a bb\r\n mg c s v\r\n get d\r\n set …
//!   keys    [a, bb, c, d]
//!   spans   Keys 2, Text END, Meta "s v", Keys 1, Text END          then: another command at "set …"
//! ```
//!
//! A multi-get frame is a span of its own, between those of commands. Keys are slices of the input,
//! so reading copies nothing. The vectors come from the thread's [`Scratch`] and return to it, so
//! reading allocates nothing. `answers.rs` looks the keys up and answers the spans in order.

use forerun_cache::Item;
use forerun_wire::multi_get::{self, BadRequest, Request, RequestHead};

use crate::input::LINE_BYTES_MAX;
use crate::protocol::KEY_BYTES_MAX;
use crate::protocol::binary::header::RequestId;
use crate::protocol::meta_flags::{Letters, OPAQUE_BYTES_MAX, PLAIN, TOKENS_MAX};
use crate::protocol::numbers::{Expiration, parse_expiration};
use crate::protocol::replies;
use crate::protocol::scan::Scan;

use super::binary_answers::ReadAnswer;

/// A batch of this many keys takes no further command.
pub(super) const BATCH_KEYS: usize = 512;

// An incomplete frame waits in the input, as an incomplete line does.
const _: () = assert!(multi_get::REQUEST_BYTES_MAX <= LINE_BYTES_MAX);

/// The kind of a line of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyLine {
    /// `gets`, `gats`: answers include the version.
    pub(super) with_cas: bool,
    /// `gat`, `gats`: the new expiration time of the items.
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
    /// The next `count` keys, answered in the classic format.
    Keys { count: usize, line: KeyLine },
    /// The next key, answered as `mg` with these flags.
    Meta {
        start: usize,
        letters: Letters,
        flags: &'a [u8],
    },
    /// The keys of a frame that starts at `start`, from position `first` on.
    Frame {
        start: usize,
        head: RequestHead,
        first: usize,
    },
    /// The next key, of the binary request that starts at `start`.
    Binary { start: usize, answer: ReadAnswer },
    /// A binary `noop`.
    BinaryNoop(RequestId),
    /// A fixed text without a lookup.
    Text(&'static [u8]),
}

/// Vectors that batches reuse.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) keys: Vec<&'static [u8]>,
    pub(super) spans: Vec<Span<'static>>,
    pub(super) items: Vec<Option<Item<'static>>>,
    /// The items of a part of an answer to a frame.
    pub(super) part: Vec<Option<Item<'static>>>,
}

/// Returns an empty vector of another type that reuses the memory of `vector`.
pub(crate) fn recycle<A, B>(mut vector: Vec<A>) -> Vec<B> {
    const { assert!(size_of::<A>() == size_of::<B>() && align_of::<A>() == align_of::<B>()) };
    vector.clear();
    // Collecting in place reuses the memory. There are no elements to map.
    vector
        .into_iter()
        .map(|_| unreachable!("the vector was cleared"))
        .collect()
}

/// The result of reading commands into a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// The batch contains everything before this position.
    pub end: usize,
    /// A command of another kind starts here. It may be incomplete.
    pub is_other: bool,
    /// More bytes are needed.
    pub(super) is_incomplete: bool,
    /// The state of the session at `end`.
    pub(super) within: Within,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Within {
    Command,
    Keys(KeyLine),
    RefusedLine,
    RefusedFrame(BadRequest),
}

impl Read {
    pub(super) fn on(end: usize) -> Self {
        Self {
            end,
            is_other: false,
            is_incomplete: false,
            within: Within::Command,
        }
    }

    pub(super) fn other(end: usize) -> Self {
        Self {
            is_other: true,
            ..Self::on(end)
        }
    }

    pub(super) fn incomplete(end: usize) -> Self {
        Self {
            is_incomplete: true,
            ..Self::on(end)
        }
    }
}

/// Keys to look up, and how to answer them.
pub(super) struct Batch<'a> {
    /// The input that the batch is read from.
    pub(super) bytes: &'a [u8],
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) spans: Vec<Span<'a>>,
    /// The number of the connection's frames before the next one, modulo 2^16. `None` while frames
    /// are not enabled.
    frames: Option<u16>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(bytes: &'a [u8], frames: Option<u16>, scratch: &mut Scratch) -> Self {
        Self {
            bytes,
            frames,
            keys: recycle(std::mem::take(&mut scratch.keys)),
            spans: recycle(std::mem::take(&mut scratch.spans)),
        }
    }

    /// Reads commands from `from` up to the first one of another kind.
    pub(super) fn read_commands(&mut self, from: usize) -> Read {
        let bytes = self.bytes;
        let mut scan = Scan::new(bytes, from);
        let mut start = from;
        while self.keys.len() < BATCH_KEYS {
            if start == bytes.len() {
                return Read::incomplete(start);
            }
            if bytes[start] == multi_get::REQUEST
                && let Some(frames) = self.frames
            {
                let read = self.read_frame(start, 0, frames);
                if read.is_incomplete || !matches!(read.within, Within::Command) {
                    return read;
                }
                start = read.end;
                scan = Scan::new(bytes, start);
                continue;
            }
            let Some(end) = scan.next() else {
                return Read::other(start);
            };
            let is_last = bytes[end] == b'\n';
            match &bytes[start..end] {
                b"" if !is_last => {
                    // Spaces before a command are ignored.
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
                    // A touch is a write, so everything before it is answered first.
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

    /// Continues the frame at `from` with the key at position `first`.
    pub(super) fn read_rest_of_frame(&mut self, from: usize, first: usize) -> Read {
        self.read_frame(from, first, self.frames.unwrap_or_default())
    }

    /// Reads a frame, which stays in the input until it is answered. `frames` is the number of
    /// those before it.
    fn read_frame(&mut self, start: usize, first: usize, frames: u16) -> Read {
        match Request::parse(&self.bytes[start..], frames) {
            Ok(Some(request)) => {
                let head = request.head;
                request.push_keys(first, &mut self.keys);
                self.spans.push(Span::Frame { start, head, first });
                self.frames = Some(frames.wrapping_add(1));
                Read::on(start + request.len_bytes())
            }
            Ok(None) => Read::incomplete(start),
            Err(refused) => Read {
                within: Within::RefusedFrame(refused),
                ..Read::on(start)
            },
        }
    }

    /// Continues a line of keys at `from`.
    pub(super) fn read_keys(&mut self, from: usize, line: KeyLine) -> Read {
        let mut scan = Scan::new(self.bytes, from);
        self.read_line(from, from, line, &mut scan, true)
    }

    /// Reads the keys of the line that began at `start` and whose next key begins at `at`.
    ///
    /// A line of up to [`LINE_BYTES_MAX`] bytes is answered once all of it has arrived. If one of
    /// its keys is too long, the only answer is the error. For a longer line, and for one that
    /// `goes_on`, the keys that have arrived are answered at once, and an error follows their
    /// answers.
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
        // Number of keys before the first one that is too long.
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
                        // The line has no key. The general parser produces the reply.
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
        // The line is incomplete. The key at `at` may be incomplete too.
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

    /// Adds the keys from `first` to `end` to the answer, followed by `text`. Drops the keys after
    /// `end`.
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

    /// Reads an `mg` with plain flags, starting at its key. Returns the start of the next line, or
    /// `None` if the line is incomplete or needs the general parser.
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
            // A carriage return alone before the newline ends the line. Anywhere else it counts as
            // a flag. What is refused here, such as a long flag that is not opaque, is left to the
            // general parser, which decides.
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

/// Reads the expiration time before the keys of a `gat`. Returns it and the position of the first
/// key.
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
