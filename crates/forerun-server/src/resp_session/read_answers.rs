//! Answers a batch of reads, in the order of its parts.
//!
//! ```text
//!   spans    Key(Get)  Strings(2)  Field(Hget) …
//!   keys     [a, b, c │ d]            a chunk is looked up just before its first answer
//!   output   $1 … *2 $1 … $1 …        stops when the output is full, or after much work
//! ```
//!
//! The keys of an `MGET` are answered from one moment as far as [`Until`] allows.

use std::mem;
use std::time::Instant;

use forerun_cache::{CacheKeyspace, Item, ItemKind};
use forerun_core::sync::time;

use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;
use crate::resp::hash_value::Hash;
use crate::resp::read_spans::{Answer, RespScratch, Span};
use crate::resp::reply::{self, RespVersion};
use crate::session::{ChunkSize, CommandContext, Lookups, recycle};
use crate::shared::Shared;

use super::call::{Refusal, hash_of, push_error, string_of};
use super::read_batch::{Batch, keep};

/// An `MGET` whose answer has this many bytes is interrupted if the output is full. A shorter one
/// is answered from one moment.
const STRINGS_BYTES: usize = 1 << 20;

/// Memory of stored keys beyond this is not kept.
const KEPT_BYTES: usize = 256 << 10;

/// A batch that has read this many bytes of hashes ends.
const HASH_BYTES: usize = 4 << 20;

/// The values of an `HMGET` have at most this many bytes, or those of the hash, and so has an
/// `HRANDFIELD`. More are in an answer only if it repeats fields.
pub(super) const FIELDS_BYTES_MAX: usize = 1 << 20;

/// Where answers stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// Where the first request without a complete answer begins.
    pub(super) start: usize,
    /// How many of its keys are answered.
    pub(super) answered: usize,
    /// Whether other connections must have a turn before it continues.
    pub(super) yields: bool,
}

/// Who gets the answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub(super) protocol: RespVersion,
    /// The client's database.
    pub(super) keyspace: CacheKeyspace,
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The output is full.
    Full,
    /// Its buffer has this many bytes. In a transaction, answers cannot wait for the reader.
    Bytes(usize),
}

/// Answers a batch. Returns where it stopped, if it did not answer everything: the output is full,
/// or the rest of a long request is a part of the next batch.
pub(super) fn answer(
    batch: &Batch<'_>,
    reader: Reader,
    until: Until,
    chunk: &mut ChunkSize,
    context: &mut CommandContext<'_>,
    scratch: &mut RespScratch,
) -> Option<Stop> {
    let Reader { protocol, keyspace } = reader;
    let guard = context.cache.pin();
    let items = recycle(mem::take(&mut scratch.items));
    // The keys as the cache has them.
    let mut stored_keys = mem::take(&mut scratch.stored_keys);
    let mut slices = Vec::new();
    let keys = if keyspace.is_only() || batch.keys.iter().all(|key| keyspace.stores_as_is(key)) {
        &batch.keys
    } else {
        batch.store_keys(keyspace, &mut stored_keys);
        stored_keys.fill(&mut slices);
        &slices
    };
    let mut lookups = Lookups::new(&guard, keys, items, chunk.keys());
    let mut fields = &batch.fields[..];
    let (mut hits, mut hash_bytes, mut stop) = (0, 0, None);
    let is_over = |context: &CommandContext<'_>| match until {
        Until::Full => context.out.is_full(),
        Until::Bytes(bytes_max) => context.out.memory_bytes() > bytes_max,
    };
    'spans: for span in &batch.spans {
        let stop_at = |answered, yields| {
            Some(Stop {
                start: span.start,
                answered,
                yields,
            })
        };
        let mut look_up = |context: &mut CommandContext<'_>| {
            let (stored_key, item) = lookups.next();
            let key = keyspace.own_key(stored_key).unwrap_or(stored_key);
            context.count_prefix(key, item.is_some());
            context.log_fetch(key, item.as_ref());
            hits += u64::from(item.is_some());
            item
        };
        let is_continued = matches!(span.answer, Answer::Strings { answered: 1.., .. });
        if !is_continued && is_over(context) {
            stop = stop_at(0, false);
            break;
        }
        if hash_bytes >= HASH_BYTES && until == Until::Full {
            stop = stop_at(0, true);
            break;
        }
        match span.answer {
            Answer::Pong => context.push(reply::PONG),
            Answer::Echo(_) => {
                let text = next_of(&mut fields);
                reply::push_bulk(context.out.bytes_mut(), text);
            }
            Answer::Key(command) => {
                let item = look_up(context);
                hash_bytes += hash_len(item.as_ref());
                push_key(command, item, protocol, context);
            }
            Answer::Field(command) => {
                let item = look_up(context);
                hash_bytes += hash_len(item.as_ref());
                let field = next_of(&mut fields);
                push_field(command, item, field, protocol, context);
            }
            Answer::Fields(count) => {
                let item = look_up(context);
                hash_bytes += hash_len(item.as_ref());
                let (here, rest) = fields.split_at(count);
                fields = rest;
                push_fields(item, here, protocol, context);
            }
            Answer::Range {
                command,
                start,
                end,
            } => {
                let item = look_up(context);
                push_range(command, item, start, end, context);
            }
            Answer::Count(_, count) => {
                let found = (0..count).filter(|_| look_up(context).is_some()).count();
                reply::push_integer(context.out.bytes_mut(), found as i64);
            }
            Answer::Strings {
                total,
                answered,
                count,
            } => {
                if answered == 0 {
                    reply::push_array(context.out.bytes_mut(), total);
                }
                let before = context.out.len();
                for at in answered..answered + count {
                    // A request makes progress each time.
                    let len = context.out.len() - before;
                    if len >= STRINGS_BYTES && is_over(context) {
                        stop = stop_at(at, false);
                        break 'spans;
                    }
                    match look_up(context) {
                        Some(item) if item.kind() == ItemKind::String => {
                            push_string(&item, context)
                        }
                        _ => protocol.push_nil(context.out.bytes_mut()),
                    }
                }
                if answered + count < total {
                    stop = stop_at(answered + count, false);
                    break;
                }
            }
        }
    }
    let (asked, wasted) = (lookups.asked(), lookups.unused());
    let items = lookups.into_items();
    chunk.adapt(items.len(), wasted);
    scratch.items = keep(items);
    drop(slices);
    scratch.stored_keys = stored_keys.recycled(KEPT_BYTES);
    if asked > 0 {
        let counters = context.counters;
        counters.batches.add(1);
        counters.cmd_get.add(asked);
        counters.get_hits.add(hits);
        counters.get_misses.add(asked - hits);
    }
    stop
}

/// The bytes of a hash.
fn hash_len(item: Option<&Item<'_>>) -> usize {
    let hash = item.filter(|item| item.kind() == ItemKind::Hash);
    hash.map_or(0, |item| item.value().len())
}

/// Begins a batch. `None`: it is not timed.
pub(super) fn begin_batch(batch: &Batch<'_>, context: &CommandContext<'_>) -> Option<Instant> {
    let first = batch.spans.first()?;
    context.commands.begin(first.answer.command())
}

/// Counts the requests of a batch that have a complete answer, and the time since it `began`.
pub(super) fn count_requests(
    batch: &Batch<'_>,
    stop: Option<Stop>,
    began: Option<Instant>,
    context: &CommandContext<'_>,
) {
    let end = stop.map_or(batch.spans.len(), |stop| {
        batch.spans.partition_point(|span| span.start < stop.start)
    });
    let answered = &batch.spans[..end];
    context.counters.cmd_resp.add(answered.len() as u64);
    count_commands(answered, began, context);
}

/// Counts commands that were executed together, and their parts of the time since they `began`.
pub(super) fn count_commands(
    answered: &[Span],
    began: Option<Instant>,
    context: &CommandContext<'_>,
) {
    let count = answered.len().max(1) as u32;
    let request_time = began.map(|began| time::elapsed(began) / count);
    // A batch has few runs of the same command.
    for run in answered.chunk_by(|one, next| one.answer.command() == next.answer.command()) {
        let (command, calls) = (run[0].answer.command(), run.len());
        context.commands.add(command, calls as u64);
        if let Some(request_time) = request_time {
            let time = request_time * calls as u32;
            context.commands.add_time(command, calls as u64, time);
        }
    }
}

/// Appends an error and counts it as one of the command's.
fn refuse(command: Command, refusal: Refusal, context: &mut CommandContext<'_>) {
    context.commands.fail(command);
    push_error(context, refusal.as_bytes());
}

/// Takes the next field. There is one for each part that needs it.
fn next_of<'a>(fields: &mut &[&'a [u8]]) -> &'a [u8] {
    let (first, rest) = fields
        .split_first()
        .map_or((&[][..], &[][..]), |(first, rest)| (*first, rest));
    *fields = rest;
    first
}

/// Appends a value. A large one is shared with the cache.
#[inline]
fn push_string(item: &Item<'_>, context: &mut CommandContext<'_>) {
    reply::push_header(context.out.bytes_mut(), b'$', item.value().len());
    context.push_value(item);
}

fn push_key(
    command: Command,
    item: Option<Item<'_>>,
    protocol: RespVersion,
    context: &mut CommandContext<'_>,
) {
    match command {
        Command::Get => match item {
            None => protocol.push_nil(context.out.bytes_mut()),
            Some(item) if item.kind() == ItemKind::String => push_string(&item, context),
            Some(_) => refuse(command, texts::WRONG_TYPE, context),
        },
        Command::Type => {
            let name = item.map_or("none", |item| type_name(item.kind()));
            reply::push_simple(context.out.bytes_mut(), name);
        }
        Command::Strlen => match string_of(item.as_ref()) {
            Ok(value) => {
                let len = value.map_or(0, <[u8]>::len);
                reply::push_integer(context.out.bytes_mut(), len as i64);
            }
            Err(refusal) => refuse(command, refusal, context),
        },
        Command::Ttl | Command::Pttl | Command::Expiretime | Command::Pexpiretime => {
            let number = time_of(command, item, context);
            reply::push_integer(context.out.bytes_mut(), number);
        }
        _ => match hash_of(item.as_ref()) {
            Ok(bytes) => push_hash(command, bytes, protocol, context.out.bytes_mut()),
            Err(refusal) => refuse(command, refusal, context),
        },
    }
}

/// The name of a type.
pub(super) fn type_name(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Hash => "hash",
        _ => "string",
    }
}

/// The time that an item has left, or when it expires, as a command of these reports it.
fn time_of(command: Command, item: Option<Item<'_>>, context: &CommandContext<'_>) -> i64 {
    let Some(item) = item else { return -2 };
    let Some(expires_ms) = item.expiry_ms() else {
        return -1;
    };
    let last_ms = Shared::last_ms(expires_ms);
    let left_ms = || last_ms.saturating_sub(context.cache.now_ms()) as i64;
    let unix_ms = || context.shared.unix_ms_of(last_ms);
    // Halves are rounded up, so a key that still exists may have 0 seconds left.
    match command {
        Command::Ttl => (left_ms() + 500) / 1000,
        Command::Pttl => left_ms(),
        Command::Expiretime => (unix_ms() + 500) / 1000,
        _ => unix_ms(),
    }
}

fn push_hash(command: Command, bytes: Option<&[u8]>, protocol: RespVersion, out: &mut Vec<u8>) {
    let hash = Hash::new(bytes.unwrap_or_default());
    match command {
        Command::Hlen => reply::push_integer(out, hash.len() as i64),
        Command::Hgetall => {
            protocol.push_map(out, hash.len());
            for (field, value) in hash.iter() {
                reply::push_bulk(out, field);
                reply::push_bulk(out, value);
            }
        }
        _ => {
            reply::push_array(out, hash.len());
            for (field, value) in hash.iter() {
                reply::push_bulk(
                    out,
                    if command == Command::Hkeys {
                        field
                    } else {
                        value
                    },
                );
            }
        }
    }
}

fn push_field(
    command: Command,
    item: Option<Item<'_>>,
    field: &[u8],
    protocol: RespVersion,
    context: &mut CommandContext<'_>,
) {
    let value = match hash_of(item.as_ref()) {
        Ok(bytes) => Hash::new(bytes.unwrap_or_default()).get(field),
        Err(refusal) => return refuse(command, refusal, context),
    };
    let out = context.out.bytes_mut();
    match command {
        Command::Hget => protocol.push_bulk_or_nil(out, value),
        Command::Hexists => reply::push_integer(out, value.is_some().into()),
        _ => reply::push_integer(out, value.map_or(0, <[u8]>::len) as i64),
    }
}

fn push_fields(
    item: Option<Item<'_>>,
    fields: &[&[u8]],
    protocol: RespVersion,
    context: &mut CommandContext<'_>,
) {
    let bytes = match hash_of(item.as_ref()) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(refusal) => return refuse(Command::Hmget, refusal, context),
    };
    let values = Hash::new(bytes).get_all(fields);
    let values_bytes: usize = values.iter().flatten().map(|value| value.len()).sum();
    if values_bytes > bytes.len().max(FIELDS_BYTES_MAX) {
        return refuse(Command::Hmget, texts::FIELDS_TOO_LARGE, context);
    }
    let out = context.out.bytes_mut();
    reply::push_array(out, values.len());
    values
        .into_iter()
        .for_each(|value| protocol.push_bulk_or_nil(out, value));
}

fn push_range(
    command: Command,
    item: Option<Item<'_>>,
    start: i64,
    end: i64,
    context: &mut CommandContext<'_>,
) {
    match string_of(item.as_ref()) {
        Ok(value) => {
            let part = range_of(value.unwrap_or_default(), start, end);
            reply::push_bulk(context.out.bytes_mut(), part);
        }
        Err(refusal) => refuse(command, refusal, context),
    }
}

/// The bytes from `start` to `end`, both included. Negative positions count from the end.
fn range_of(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let from_end = |at: i64| {
        if at < 0 {
            at.saturating_add(len).max(0)
        } else {
            at
        }
    };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end || len == 0 {
        return &[];
    }
    &value[start as usize..=end as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_what_redis_returns() {
        for (start, end, expected) in [
            (0, 3, "This"),
            (-3, -1, "ing"),
            (0, -1, "This is a string"),
            (10, 100, "string"),
            (5, 3, ""),
            (-1, -3, ""),
            (100, 200, ""),
            (-100, 0, "T"),
            (0, -100, "T"),
            (i64::MIN, i64::MAX, "This is a string"),
        ] {
            let part = range_of(b"This is a string", start, end);
            assert_eq!(String::from_utf8_lossy(part), expected, "{start} {end}");
        }
        assert_eq!(range_of(b"", 0, -1), b"");
    }
}
