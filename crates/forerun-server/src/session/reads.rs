//! Reads: every key of every retrieval command up to the next write is looked up in one batch.
//!
//! ```text
//!   bytes   get a bb\r\n mg c s v\r\n get d\r\n set …
//!   keys    [a, bb, c, d]
//!   spans   Keys 2, Text END, Meta "s v", Keys 1, Text END          then: another command at "set …"
//! ```
//!
//! Keys are slices of the input, so nothing is copied; the vectors come from the thread's [`Scratch`] and go back there,
//! so nothing is allocated. Answers are composed in the order of the spans, while each chunk of keys is looked up just
//! before its first answer. Where the output fills up, the rest of the input stays and is read again later, from the
//! first key without an answer.

use forerun_cache::{Cache, Expiry, Guard, Item};
use forerun_core::arch::{CACHE_LINE_BYTES, prefetch_read};

use crate::input::LINE_BYTES_MAX;
use crate::protocol::KEY_BYTES_MAX;
use crate::protocol::meta::{Letters, OPAQUE_BYTES_MAX, TOKENS_MAX};
use crate::protocol::numbers::{Expiration, parse_expiration, push_u64};
use crate::protocol::replies;
use crate::protocol::scan::Scan;

use super::turn::Turn;
use super::{Session, State, Step, meta_get};

/// Most keys that are looked up together.
pub(super) const CHUNK_KEYS_MAX: usize = 128;

/// Fewest keys that are looked up together, where large values fill the output quickly.
const CHUNK_KEYS_MIN: usize = 8;

/// No further command is read into a batch of so many keys.
const BATCH_KEYS: usize = 512;

/// Smaller values are copied without asking whether they could be shared.
const SHARED_BYTES_MIN: usize = 16 << 10;

/// How many answers ahead a value is fetched.
const FETCH_AHEAD: usize = 8;

/// Of a longer value, the rest is left to the processor, which fetches ahead where it sees a run of lines.
const FETCH_BYTES_MAX: usize = 512;

/// Flags of `mg` that neither change the item nor need to be read before the lookup.
const PLAIN: Letters = Letters::of(b"cfkqstvOPL");

/// What a line of keys asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyLine {
    /// `gets`, `gats`: answers have the version.
    with_cas: bool,
    /// `gat`, `gats`: the time to live that items get.
    touch: Option<Expiration>,
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
enum Span<'a> {
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
    keys: Vec<&'static [u8]>,
    spans: Vec<Span<'static>>,
    items: Vec<Option<Item<'static>>>,
}

/// An empty vector of another type in the memory of `vector`.
fn recycle<A, B>(mut vector: Vec<A>) -> Vec<B> {
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
    is_incomplete: bool,
    /// What the session is within at `end`.
    within: Within,
}

#[derive(Clone, Copy, Debug)]
enum Within {
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
    bytes: &'a [u8],
    keys: Vec<&'a [u8]>,
    spans: Vec<Span<'a>>,
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
    /// A line of up to [`LINE_BYTES_MAX`] is answered when it is there as a whole, and with a key too long in it by the
    /// error alone. Of a longer one, and of one that `goes_on`, the keys that are there are answered at once, and an error
    /// follows them.
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

    /// The keys from `first` to `end` are to be answered, then `text`; any behind `end` are dropped.
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

    /// Reads `mg` with plain flags, from its key on; gives where the next line begins. `None` is a line that is incomplete
    /// or that needs a closer look.
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
            if let Some(&letter) = flag.first().filter(|&&letter| letter != b'\r')
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

/// Where a batch's answers stopped because the output was full.
struct Stop {
    place: usize,
    state: State,
}

impl Session {
    /// Answers a batch and goes to where its reading ended, or to where the output was full.
    pub(super) fn answer(
        &mut self,
        batch: Batch<'_>,
        read: Read,
        at: &mut usize,
        turn: &mut Turn<'_>,
        scratch: &mut Scratch,
    ) -> Step {
        let stop = if batch.spans.is_empty() {
            None
        } else {
            self.answer_spans(&batch, turn, scratch)
        };
        scratch.keys = recycle(batch.keys);
        scratch.spans = recycle(batch.spans);
        if let Some(stop) = stop {
            *at = stop.place;
            self.state = stop.state;
            return Step::Full;
        }
        *at = read.end;
        self.state = match read.within {
            Within::Command => State::Command,
            Within::Keys(line) => State::Keys(line),
            Within::RefusedLine => State::SkipLine,
        };
        if read.is_incomplete {
            Step::More
        } else {
            Step::On
        }
    }

    fn answer_spans(
        &mut self,
        batch: &Batch<'_>,
        turn: &mut Turn<'_>,
        scratch: &mut Scratch,
    ) -> Option<Stop> {
        let guard = turn.cache.pin();
        let mut lookups = Lookups {
            cache: turn.cache,
            guard: &guard,
            keys: &batch.keys,
            items: recycle(std::mem::take(&mut scratch.items)),
            first: 0,
            next: 0,
            chunk: self.chunk,
        };
        let mut hits = 0;
        let mut stop = None;
        'spans: for span in &batch.spans {
            match *span {
                Span::Keys { count, line } => {
                    let touch = line.touch.map(|touch| turn.shared.expiry(touch));
                    for _ in 0..count {
                        if turn.out.is_full() {
                            stop = Some(Stop {
                                place: lookups.place(batch.bytes),
                                state: State::Keys(line),
                            });
                            break 'spans;
                        }
                        let (key, item) = lookups.next(touch);
                        if let Some(item) = item {
                            hits += 1;
                            push_item(turn, key, &item, line.with_cas);
                        }
                    }
                }
                Span::Meta {
                    start,
                    letters,
                    flags,
                } => {
                    if turn.out.is_full() {
                        stop = Some(Stop {
                            place: start,
                            state: State::Command,
                        });
                        break;
                    }
                    turn.counters.cmd_meta.add(1);
                    let (key, item) = lookups.next(None);
                    match item {
                        Some(item) => {
                            hits += 1;
                            meta_get::push_plain_hit(turn, key, &item, letters, flags);
                        }
                        None => meta_get::push_miss(turn, key, false, letters, flags),
                    }
                }
                Span::Text(text) => turn.say(text),
            }
        }
        let (asked, wasted) = (
            lookups.next as u64,
            lookups.first + lookups.items.len() - lookups.next,
        );
        self.chunk = if wasted > 0 {
            (lookups.items.len() - wasted).max(CHUNK_KEYS_MIN)
        } else {
            (self.chunk * 2).min(CHUNK_KEYS_MAX)
        };
        scratch.items = recycle(lookups.items);
        count(turn, &batch.spans, asked, hits);
        stop
    }
}

/// Counts what a batch did. A batch touches all its keys or none.
fn count(turn: &Turn<'_>, spans: &[Span<'_>], asked: u64, hits: u64) {
    let counters = turn.counters;
    counters.batches.add(1);
    counters.cmd_get.add(asked);
    counters.get_hits.add(hits);
    counters.get_misses.add(asked - hits);
    if let Some(Span::Keys { line, .. }) = spans.first()
        && line.touch.is_some()
    {
        counters.cmd_touch.add(asked);
        counters.touch_hits.add(hits);
        counters.touch_misses.add(asked - hits);
    }
}

/// The items of a batch's keys one by one, looked up chunk by chunk.
struct Lookups<'b, 'g> {
    cache: &'g Cache,
    guard: &'g Guard<'g>,
    keys: &'b [&'b [u8]],
    /// Of the keys from `first` on.
    items: Vec<Option<Item<'g>>>,
    first: usize,
    next: usize,
    chunk: usize,
}

impl<'b, 'g> Lookups<'b, 'g> {
    /// The next key and its item, which lives on until `touch` if that is given.
    #[inline]
    fn next(&mut self, touch: Option<Expiry>) -> (&'b [u8], Option<Item<'g>>) {
        let key = self.keys[self.next];
        if let Some(expiry) = touch {
            self.next += 1;
            self.first = self.next;
            // The item is answered even if its new time has come already.
            let item = self.guard.get(key);
            if item.is_some() {
                self.cache.touch(key, expiry);
            }
            return (key, item);
        }
        if self.next == self.first + self.items.len() {
            self.load();
        }
        let place = self.next - self.first;
        self.fetch(place + FETCH_AHEAD);
        let item = self.items[place];
        self.next += 1;
        (key, item)
    }

    /// Asks for the value at `place` of the chunk: the lookup has read the key only.
    #[inline]
    fn fetch(&self, place: usize) {
        let Some(Some(item)) = self.items.get(place) else {
            return;
        };
        let value = item.value();
        for line in value[..value.len().min(FETCH_BYTES_MAX)].chunks(CACHE_LINE_BYTES) {
            prefetch_read(line.as_ptr());
        }
        if let Some(last) = value.last() {
            prefetch_read(last);
        }
    }

    #[inline(never)]
    fn load(&mut self) {
        let count = self.chunk.min(self.keys.len() - self.next);
        self.first = self.next;
        self.items.clear();
        self.items.resize(count, None);
        self.guard
            .multi_get(&self.keys[self.next..self.next + count], &mut self.items);
        for place in 0..FETCH_AHEAD {
            self.fetch(place);
        }
    }

    /// Where the next key stands in `bytes`, of which all keys are slices.
    fn place(&self, bytes: &[u8]) -> usize {
        self.keys[self.next].as_ptr().addr() - bytes.as_ptr().addr()
    }
}

/// Appends an item as classic commands answer it.
#[inline]
fn push_item(turn: &mut Turn<'_>, key: &[u8], item: &Item<'_>, with_cas: bool) {
    let value = item.value();
    let out = turn.out.bytes_mut();
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_u64(out, item.flags().into());
    out.push(b' ');
    push_u64(out, value.len() as u64);
    if with_cas {
        out.push(b' ');
        push_u64(out, item.cas());
    }
    out.extend_from_slice(b"\r\n");
    push_value(turn, item);
}

/// Appends a value and the end of its line: a copy, or the value itself if it is a large one.
#[inline]
pub(super) fn push_value(turn: &mut Turn<'_>, item: &Item<'_>) {
    let value = item.value();
    if value.len() >= SHARED_BYTES_MIN
        && let Some(shared) = item.to_shared()
    {
        turn.out.push_large(shared);
    } else {
        turn.out.bytes_mut().extend_from_slice(value);
    }
    turn.say(b"\r\n");
}
