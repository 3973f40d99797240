//! Answers to a batch of reads, in the order of its spans.
//!
//! ```text
//!   spans    Keys 2, Text END, Meta "s v", Keys 1, Text END
//!   keys     [a, bb │ c, d]          a chunk is looked up just before its first answer
//!   items      ▲ ▲                   and values are fetched a few answers ahead
//!   output   VALUE a …, VALUE bb …, END, …        full: here it stops
//! ```
//!
//! Where the output fills up, the rest of the input stays and is read again later, from the first key without an answer.
//! Chunks are then smaller for a while, so that little is looked up in vain.

use forerun_cache::{Cache, Expiry, Guard, Item};
use forerun_core::arch::{CACHE_LINE_BYTES, prefetch_read};

use crate::protocol::numbers::push_u64;

use super::reads::{Batch, Read, Scratch, Span, Within, recycle};
use super::turn::Turn;
use super::{Session, State, Step, meta_get};

/// Most keys that are looked up together.
pub(super) const CHUNK_KEYS_MAX: usize = 128;

/// Fewest keys that are looked up together, where large values fill the output quickly.
const CHUNK_KEYS_MIN: usize = 8;

/// Smaller values are copied without asking whether they could be shared.
const SHARED_BYTES_MIN: usize = 16 << 10;

/// How many answers ahead a value is fetched.
const FETCH_AHEAD: usize = 8;

/// Of a longer value, the rest is left to the processor, which fetches ahead where it sees a run of lines.
const FETCH_BYTES_MAX: usize = 512;

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
