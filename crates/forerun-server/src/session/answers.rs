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

use forerun_cache::{Expiry, Item};
use forerun_wire::multi_get;

use crate::protocol::binary::reply::push_success;
use crate::protocol::numbers::push_u64;

use super::command_context::CommandContext;
use super::lookups::{Lookups, position_of};
use super::reads::{Batch, KeyLine, Read, Scratch, Span, Within, recycle};
use super::{Session, SessionError, State, Step, frame_answers, meta_get};

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
            Within::RefusedFrame(refused) => {
                context.counters.multi_get_errors.add(1);
                multi_get::push_error(refused, context.out.bytes_mut());
                return self.end_with(SessionError::Frame);
            }
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
        let items = recycle(std::mem::take(&mut scratch.items));
        let mut lookups = Lookups::new(&guard, &batch.keys, items, self.chunk.keys())
            .hiding_keyspaces(context.has_keyspaces());
        let mut part = recycle(std::mem::take(&mut scratch.part));
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
                        context.count_prefix(key, item.is_some());
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
                Span::Frame { start, head, first } => {
                    let part = &mut part;
                    match frame_answers::push(context, head, first, &mut lookups, part, &mut hits) {
                        None => self.frames = self.frames.map(|frames| frames.wrapping_add(1)),
                        Some(next) => {
                            stop = Some(Stop {
                                position: start,
                                state: State::Frame(next),
                            });
                            break;
                        }
                    }
                }
                Span::Binary { start, answer } => {
                    if context.out.is_full() {
                        stop = Some(Stop {
                            position: start,
                            state: State::Command,
                        });
                        break;
                    }
                    let (key, item) = lookups.next();
                    context.count_prefix(key, item.is_some());
                    context.log_fetch(key, item.as_ref());
                    match item {
                        Some(item) => {
                            hits += 1;
                            answer.push_hit(context, key, &item);
                        }
                        None => answer.push_miss(context, key),
                    }
                }
                Span::BinaryNoop(id) => push_success(context.out.bytes_mut(), id, b"", 0),
                Span::Text(text) => context.push(text),
            }
        }
        let (asked, wasted) = (lookups.asked(), lookups.unused());
        let items = lookups.into_items();
        self.chunk.adapt(items.len(), wasted);
        scratch.items = recycle(items);
        scratch.part = recycle(part);
        count(context, asked, hits);
        stop
    }
}

/// Answers a line of keys and sets the expiry of each item that it returns.
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
                    let is_hit = context.touch(key, expiry, |context, item| {
                        push_item(context, key, item, line.with_cas);
                    });
                    context.count_prefix(key, is_hit);
                    hits += u64::from(is_hit);
                }
            }
            Span::Text(text) => context.push(text),
            _ => {
                debug_assert!(false, "only a line of keys is in a batch that touches");
            }
        }
    }
    // As in memcached, these count as touches, not as gets.
    context.counters.batches.add(1);
    context.counters.cmd_touch.add(asked as u64);
    context.counters.touch_hits.add(hits);
    context.counters.touch_misses.add(asked as u64 - hits);
    stop
}

/// Counts a batch's lookups.
fn count(context: &CommandContext<'_>, asked: u64, hits: u64) {
    let counters = context.counters;
    counters.batches.add(1);
    counters.cmd_get.add(asked);
    counters.get_hits.add(hits);
    counters.get_misses.add(asked - hits);
}

/// Appends an item in the format of classic commands.
#[inline]
fn push_item(context: &mut CommandContext<'_>, key: &[u8], item: &Item<'_>, with_cas: bool) {
    let cas = with_cas.then(|| item.cas());
    let value_bytes = item.value().len();
    push_item_line(context.out.bytes_mut(), key, item.flags(), value_bytes, cas);
    context.push_value(item);
}

/// Appends the line before an item's value.
#[inline]
pub(super) fn push_item_line(
    out: &mut Vec<u8>,
    key: &[u8],
    flags: u32,
    value_bytes: usize,
    cas: Option<u64>,
) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_u64(out, flags.into());
    out.push(b' ');
    push_u64(out, value_bytes as u64);
    if let Some(cas) = cas {
        out.push(b' ');
        push_u64(out, cas);
    }
    out.extend_from_slice(b"\r\n");
}
