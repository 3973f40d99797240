//! Commands that go over the whole index: `KEYS`, and `RANDOMKEY` and `FLUSHDB` of one of several
//! databases.
//!
//! ```text
//!   KEYS        part of the index ─► part ─► …      one step each, so that other connections have their turns;
//!               └─ matching keys ─────────► found   counts as memory of the connection, which has a limit
//!   RANDOMKEY   draws ─► from a random place, the first part that has a key of the database
//!   FLUSHDB     all at once, if no other database has items; otherwise, part ─► part ─► …
//! ```

use std::mem;

use forerun_cache::{Cache, CacheKeyspace, KeyspaceFlush, RandomSearch};
use forerun_core::sync::random_seed;

use crate::resp::command_spec::Command;
use crate::resp::glob::Pattern;
use crate::resp::reply::{self, RespVersion};
use crate::session::CommandContext;

use super::call::{Call, Refusal};
use super::key_listing::{KEY_WORK_BYTES, SCAN_BYTES, SCAN_STEP_KEYS, may_list, pattern};

/// The most keys of a step.
const STEP_KEYS_MAX: usize = 1024;
/// The most steps of a search for a random key. Without one by then, there are hardly any, among
/// the many dead items of a flush.
const RANDOM_STEPS: usize = 16;
/// About how many dead items a step goes over that finds none.
const RANDOM_STEP_KEYS: usize = 25_000;
/// So many keys are drawn before the index is searched for one of the database.
const DRAWS: usize = 32;

/// A command between two steps.
#[derive(Debug)]
pub(super) enum Walk {
    Keys(Box<Listing>),
    Random(Search),
    Flush(KeyspaceFlush),
}

/// `KEYS`.
#[derive(Debug)]
pub(super) struct Listing {
    pattern: Pattern,
    keyspace: CacheKeyspace,
    cursor: u64,
    /// Keys of the next step: fewer if they are long.
    step_keys: usize,
    count: usize,
    /// The keys as they are sent.
    found: Vec<u8>,
}

/// `RANDOMKEY` of a database that has few of the cache's items.
#[derive(Debug)]
pub(super) struct Search {
    keyspace: CacheKeyspace,
    /// Where it began.
    start: u64,
    cursor: u64,
    /// Whether it has come to the end, and goes from the front to where it began.
    is_second_part: bool,
    found: Option<Vec<u8>>,
}

impl Walk {
    /// Begins a command. `None`: it is answered.
    ///
    /// # Errors
    /// It is refused.
    pub(super) fn begin(call: &mut Call<'_, '_>) -> Result<Option<Walk>, Refusal> {
        match call.spec.command {
            Command::Keys => {
                may_list(call)?;
                Ok(Some(Walk::Keys(Box::new(Listing {
                    pattern: pattern(call.argument(1))?,
                    keyspace: call.keyspace,
                    cursor: 0,
                    step_keys: SCAN_STEP_KEYS,
                    count: 0,
                    found: Vec::new(),
                }))))
            }
            Command::Randomkey => begin_random(call),
            _ => begin_flush(call),
        }
    }

    /// Goes over one part. Returns whether it was the last one.
    pub(super) fn step(&mut self, context: &CommandContext<'_>) -> bool {
        match self {
            Walk::Keys(listing) => listing.step(context.cache),
            Walk::Random(search) => search.step(context.cache),
            Walk::Flush(flush) => !flush.step(context.cache),
        }
    }

    /// Appends the reply.
    pub(super) fn push(self, protocol: RespVersion, context: &mut CommandContext<'_>) {
        let out = context.out.bytes_mut();
        match self {
            Walk::Keys(listing) => {
                reply::push_array(out, listing.count);
                out.extend_from_slice(&listing.found);
            }
            Walk::Random(search) => protocol.push_bulk_or_nil(out, search.found.as_deref()),
            Walk::Flush(_) => out.extend_from_slice(reply::OK),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Walk::Keys(listing) => listing.pattern.memory_bytes() + listing.found.capacity(),
            Walk::Random(search) => search.found.as_ref().map_or(0, Vec::capacity),
            Walk::Flush(_) => 0,
        }
    }
}

impl Listing {
    fn step(&mut self, cache: &Cache) -> bool {
        let (mut visited, mut bytes) = (0, 0);
        let Listing {
            pattern,
            keyspace,
            count,
            found,
            ..
        } = self;
        self.cursor = cache.pin().scan_keys(self.cursor, self.step_keys, |item| {
            visited += 1;
            bytes += item.key().len();
            if let Some(key) = keyspace.own_key(item.key())
                && pattern.matches(key)
            {
                *count += 1;
                reply::push_bulk(found, key);
            }
        });
        // The next ones are about as long.
        let key_bytes = bytes / visited.max(1) + 1;
        self.step_keys = (SCAN_BYTES / key_bytes).min(STEP_KEYS_MAX);
        self.cursor == 0
    }
}

impl Search {
    fn step(&mut self, cache: &Cache) -> bool {
        let Search {
            keyspace, found, ..
        } = self;
        self.cursor = cache.pin().scan_keys(self.cursor, SCAN_STEP_KEYS, |item| {
            if found.is_none() {
                *found = keyspace.own_key(item.key()).map(<[u8]>::to_vec);
            }
        });
        if self.found.is_some() {
            return true;
        }
        if self.cursor == 0 {
            return mem::replace(&mut self.is_second_part, true);
        }
        self.is_second_part && self.cursor > self.start
    }
}

/// `RANDOMKEY`.
fn begin_random(call: &mut Call<'_, '_>) -> Result<Option<Walk>, Refusal> {
    may_list(call)?;
    let (cache, protocol, keyspace) = (call.context.cache, call.protocol, call.keyspace);
    if keyspace.is_only() {
        let key = any_key(call);
        protocol.push_bulk_or_nil(call.out(), key.as_deref());
        return Ok(None);
    }
    if cache.keyspace_len(keyspace) == 0 {
        call.nil();
        return Ok(None);
    }
    let work_bytes_max = call.context.work_bytes + RANDOM_STEP_KEYS * KEY_WORK_BYTES;
    for _ in 0..DRAWS {
        // Each draw may go over many dead items.
        if call.context.work_bytes > work_bytes_max {
            break;
        }
        let Some(stored_key) = any_key(call) else {
            break;
        };
        if let Some(key) = keyspace.own_key(&stored_key) {
            call.bulk(key);
            return Ok(None);
        }
    }
    let start = random_seed();
    Ok(Some(Walk::Random(Search {
        keyspace,
        start,
        cursor: start,
        is_second_part: false,
        found: None,
    })))
}

/// The key of any item, of any database.
fn any_key(call: &mut Call<'_, '_>) -> Option<Vec<u8>> {
    let cache = call.context.cache;
    let mut search = RandomSearch::default();
    for _ in 0..RANDOM_STEPS {
        let guard = cache.pin();
        if let Some(item) = guard.random(&mut search) {
            return Some(item.key().to_vec());
        }
        if search.is_over() {
            break;
        }
        call.context.work_bytes += RANDOM_STEP_KEYS * KEY_WORK_BYTES;
    }
    None
}

/// `FLUSHDB [ASYNC | SYNC]`. With several databases, it runs alone up to its first step.
fn begin_flush(call: &mut Call<'_, '_>) -> Result<Option<Walk>, Refusal> {
    let (cache, keyspace) = (call.context.cache, call.keyspace);
    let mut others = (0..cache.options().keyspaces).filter_map(|number| cache.keyspace(number));
    if others.all(|other| other == keyspace || cache.keyspace_len(other) == 0) {
        call.flush_all()?;
        return Ok(None);
    }
    call.check_flush()?;
    Ok(Some(Walk::Flush(KeyspaceFlush::new(cache, keyspace))))
}
