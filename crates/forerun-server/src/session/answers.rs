//! Answers a batch of reads, in the order of its spans.
//!
//! ```text
//!   spans    Keys 2, Text END, Meta "s v", Keys 1, Text END
//!   keys     [a, bb │ c, d]          a chunk is looked up just before its first answer
//!   items      ▲ ▲                   and values are fetched a few answers ahead
//!   output   VALUE a …, VALUE bb …, END, …        stops when the output is full
//! ```
//!
//! When the output is full, the rest of the input stays. The session reads it again later, from the
//! first key without an answer. Chunks are then smaller for a while, to waste fewer lookups.

use forerun_cache::{Expiry, Guard, Item};
use forerun_core::arch::{CACHE_LINE_BYTES, prefetch_read};

use crate::prefix_counts::KeyEvent;
use crate::protocol::numbers::push_u64;

use super::command_context::CommandContext;
use super::reads::{Batch, KeyLine, Read, Scratch, Span, Within, recycle};
use super::{Session, State, Step, meta_get};

/// Maximum number of keys that are looked up together.
pub(super) const CHUNK_KEYS_MAX: usize = 128;

/// Minimum number of keys that are looked up together, when large values fill the output quickly.
const CHUNK_KEYS_MIN: usize = 8;

/// Values are prefetched this many answers ahead.
const FETCH_AHEAD: usize = 8;

/// At most this much of a value is prefetched. The CPU's own prefetcher fetches the rest once it
/// detects sequential cache lines.
const FETCH_BYTES_MAX: usize = 512;

/// Where a batch's answers stopped because the output was full.
struct Stop {
    position: usize,
    state: State,
}

impl Session {
    /// Answers a batch. Returns the position where reading ended, or where the output became full.
    pub(super) fn answer(
        &mut self,
        batch: Batch<'_>,
        read: Read,
        at: &mut usize,
        context: &mut CommandContext<'_>,
        scratch: &mut Scratch,
    ) -> Step {
        let stop = match batch.spans.first() {
            None => None,
            // A line that touches items is always a separate batch.
            Some(&Span::Keys { line, .. }) if let Some(touch) = line.touch => {
                answer_touching(&batch, line, context.shared.expiry(touch), context)
            }
            Some(_) => self.answer_spans(&batch, context, scratch),
        };
        scratch.keys = recycle(batch.keys);
        scratch.spans = recycle(batch.spans);
        if let Some(stop) = stop {
            *at = stop.position;
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
        context: &mut CommandContext<'_>,
        scratch: &mut Scratch,
    ) -> Option<Stop> {
        let guard = context.cache.pin();
        let mut lookups = Lookups {
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
                    for _ in 0..count {
                        if context.out.is_full() {
                            stop = Some(Stop {
                                position: lookups.position(batch.bytes),
                                state: State::Keys(line),
                            });
                            break 'spans;
                        }
                        let (key, item) = lookups.next();
                        count_prefix(context, key, item.is_some());
                        context.log_fetch(key, item.as_ref());
                        if let Some(item) = item {
                            hits += 1;
                            push_item(context, key, &item, line.with_cas);
                        }
                    }
                }
                Span::Meta {
                    start,
                    letters,
                    flags,
                } => {
                    if context.out.is_full() {
                        stop = Some(Stop {
                            position: start,
                            state: State::Command,
                        });
                        break;
                    }
                    context.counters.cmd_meta.add(1);
                    let (key, item) = lookups.next();
                    context.log_fetch(key, item.as_ref());
                    match item {
                        Some(item) => {
                            hits += 1;
                            meta_get::push_plain_hit(context, key, &item, letters, flags);
                        }
                        None => meta_get::push_miss(context, key, false, letters, flags),
                    }
                }
                Span::Text(text) => context.push(text),
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
        count(context, asked, hits);
        stop
    }
}

/// Answers a line of keys and sets the expiry of each item. A touch is a write, which may wait
/// until readers are done. The loop therefore drops an item's guard before it touches the item.
fn answer_touching(
    batch: &Batch<'_>,
    line: KeyLine,
    expiry: Expiry,
    context: &mut CommandContext<'_>,
) -> Option<Stop> {
    let (mut asked, mut hits) = (0, 0);
    let mut stop = None;
    'spans: for span in &batch.spans {
        match *span {
            Span::Keys { count, .. } => {
                for key in &batch.keys[asked..asked + count] {
                    if context.out.is_full() {
                        stop = Some(Stop {
                            position: position_of(key, batch.bytes),
                            state: State::Keys(line),
                        });
                        break 'spans;
                    }
                    asked += 1;
                    // The answer includes the item even if its new expiry has already passed.
                    let is_hit = answer_key(context, key, line.with_cas);
                    count_prefix(context, key, is_hit);
                    if is_hit {
                        hits += 1;
                        context.cache.touch(key, expiry);
                    }
                }
            }
            Span::Text(text) => context.push(text),
            Span::Meta { .. } => debug_assert!(false, "mg is in no batch that touches"),
        }
    }
    // As in memcached, these count as touches, not as gets.
    context.counters.batches.add(1);
    context.counters.cmd_touch.add(asked as u64);
    context.counters.touch_hits.add(hits);
    context.counters.touch_misses.add(asked as u64 - hits);
    stop
}

/// Answers one key, if the cache has its item.
fn answer_key(context: &mut CommandContext<'_>, key: &[u8], with_cas: bool) -> bool {
    let guard = context.cache.pin();
    let item = guard.get(key);
    context.log_fetch(key, item.as_ref());
    let Some(item) = item else {
        return false;
    };
    push_item(context, key, &item, with_cas);
    true
}

/// Counts a key of a classic command by its prefix, if prefixes are counted.
#[inline]
fn count_prefix(context: &CommandContext<'_>, key: &[u8], is_hit: bool) {
    let event = if is_hit {
        KeyEvent::Hit
    } else {
        KeyEvent::Miss
    };
    context.shared.prefixes.count(key, event);
}

/// Counts a batch's lookups.
fn count(context: &CommandContext<'_>, asked: u64, hits: u64) {
    let counters = context.counters;
    counters.batches.add(1);
    counters.cmd_get.add(asked);
    counters.get_hits.add(hits);
    counters.get_misses.add(asked - hits);
}

/// The position of a key in `bytes`. All keys are slices of `bytes`.
fn position_of(key: &[u8], bytes: &[u8]) -> usize {
    key.as_ptr().addr() - bytes.as_ptr().addr()
}

/// Iterates over the items of a batch's keys. Looks up one chunk of keys at a time.
struct Lookups<'b, 'g> {
    guard: &'g Guard<'g>,
    keys: &'b [&'b [u8]],
    /// The items of the keys from `first` on.
    items: Vec<Option<Item<'g>>>,
    first: usize,
    next: usize,
    chunk: usize,
}

impl<'b, 'g> Lookups<'b, 'g> {
    /// Returns the next key and its item.
    #[inline]
    fn next(&mut self) -> (&'b [u8], Option<Item<'g>>) {
        let key = self.keys[self.next];
        if self.next == self.first + self.items.len() {
            self.load();
        }
        let position = self.next - self.first;
        self.fetch(position + FETCH_AHEAD);
        let item = self.items[position];
        self.next += 1;
        (key, item)
    }

    /// Prefetches the value at `position` of the chunk, because the lookup has read only the key.
    #[inline]
    fn fetch(&self, position: usize) {
        let Some(Some(item)) = self.items.get(position) else {
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
            .multi_get_slices(&self.keys[self.next..self.next + count], &mut self.items);
        for position in 0..FETCH_AHEAD {
            self.fetch(position);
        }
    }

    /// The position of the next key in `bytes`. All keys are slices of `bytes`.
    fn position(&self, bytes: &[u8]) -> usize {
        position_of(self.keys[self.next], bytes)
    }
}

/// Appends an item in the format of classic commands.
#[inline]
fn push_item(context: &mut CommandContext<'_>, key: &[u8], item: &Item<'_>, with_cas: bool) {
    let value = item.value();
    let out = context.out.bytes_mut();
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
    context.push_value(item);
}
