//! The context in which a session executes a command.

use std::sync::Arc;

use forerun_cache::{ArithmeticOp, ArithmeticResult, Cache, Expiry, Item};

use crate::auth::UserFile;
use crate::command_counters::CommandCounters;
use crate::counters::Counters;
use crate::output::Output;
use crate::prefix_counts::KeyEvent;
use crate::protocol::numbers::Expiration;
use crate::shared::Shared;
use crate::system::Wake;
use crate::watch::WatchKinds;
use crate::watch_lines::StoreEvent;

use super::Context;

/// Smaller values are copied without trying to share them.
const SHARED_BYTES_MIN: usize = 16 << 10;

/// A second that the cache's clock never reaches.
const NEVER_S: u32 = u32::MAX;

/// The server's shared state, and the output for the answer.
pub(crate) struct CommandContext<'a> {
    pub shared: &'a Shared,
    pub cache: &'a Cache,
    pub counters: &'a Counters,
    /// Counts of each command of RESP.
    pub commands: &'a CommandCounters,
    pub out: &'a mut Output,
    /// Wakes this thread for its watchers.
    pub waker: Option<&'a Arc<dyn Wake>>,
    /// Who may log in, for RESP. Clients of memcached's protocol have done so before.
    pub users: Option<&'a UserFile>,
    /// The number of this connection, for watchers.
    pub connection: u64,
    /// About how many bytes commands have read and written that do not show in the output.
    pub work_bytes: usize,
    /// Up to where in the input the keys of writes are prefetched.
    prefetched_to: usize,
}

impl<'a> CommandContext<'a> {
    pub(crate) fn new(context: &'a Context, out: &'a mut Output) -> Self {
        let shared: &Shared = &context.shared;
        Self {
            shared,
            cache: &shared.cache,
            counters: &context.counters,
            commands: &context.commands,
            out,
            waker: context.waker.as_ref(),
            users: context.users.as_deref(),
            connection: context.connection,
            work_bytes: 0,
            prefetched_to: 0,
        }
    }

    /// Prefetches what the writes from `at` on need, unless an earlier call has done so. `read`
    /// reads a request at a place of the input: if it is a complete write, it returns its key and
    /// where the next request begins.
    #[inline]
    pub(crate) fn prefetch_writes<'b>(
        &mut self,
        at: usize,
        mut read: impl FnMut(usize) -> Option<(&'b [u8], usize)>,
    ) {
        if at < self.prefetched_to {
            return;
        }
        let (mut keys, mut count, mut end) = ([&[][..]; Cache::PREFETCH_KEYS], 0, at);
        while count < Cache::PREFETCH_KEYS
            && let Some((key, next)) = read(end)
        {
            (keys[count], end) = (key, next);
            count += 1;
        }
        self.prefetched_to = end.max(at + 1);
        self.prefetch(&keys[..count]);
    }

    /// Prefetches what writes of these keys need.
    #[inline]
    pub(crate) fn prefetch(&self, keys: &[&[u8]]) {
        if keys.len() > 1 {
            self.cache.pin().prefetch(keys);
        }
    }

    /// Whether keys of memcached's clients may not name a keyspace: they see the first one only.
    #[inline]
    pub(crate) fn has_keyspaces(&self) -> bool {
        self.cache.options().keyspaces > 1
    }

    /// The cache, for a command that writes the item of `key`: a warm-up must learn of it first.
    /// Call this before the command looks at the item, and not while an item is pinned: a copy that
    /// waits for memory may wait for the pin.
    #[inline]
    pub(crate) fn cache_for_write(&self, key: &[u8]) -> &'a Cache {
        self.shared.warm_up.note_write(key, self.cache.now());
        self.cache
    }

    /// Tells the watchers, if there are any, about a read.
    #[inline]
    pub(crate) fn log_fetch(&self, key: &[u8], item: Option<&Item<'_>>) {
        let watchers = &self.shared.watchers;
        if watchers.is_watched(WatchKinds::FETCHERS) {
            let len = item.map(|item| item.value().len());
            watchers.log_fetch(self.connection, key, len);
        }
    }

    /// Counts a key of a classic command or of a frame by its prefix, if prefixes are counted.
    #[inline]
    pub(crate) fn count_prefix(&self, key: &[u8], is_hit: bool) {
        let event = if is_hit {
            KeyEvent::Hit
        } else {
            KeyEvent::Miss
        };
        self.shared.prefixes.count(key, event);
    }

    /// Answers the item of `key`, if the cache has one, and then sets its expiry. The answer
    /// includes the item even if its new expiry has already passed. Returns whether there was one.
    pub(super) fn touch(
        &mut self,
        key: &[u8],
        expiry: Expiry,
        answer: impl FnOnce(&mut Self, &Item<'_>),
    ) -> bool {
        let cache = self.cache_for_write(key);
        let guard = cache.pin();
        let item = guard.get(key);
        self.log_fetch(key, item.as_ref());
        let Some(item) = item else {
            return false;
        };
        answer(self, &item);
        // Another thread may have replaced the item. Its value keeps its own expiry.
        cache.touch_item(&item, expiry);
        true
    }

    /// Flushes the cache, at once or after a delay. A time before the start of the server flushes
    /// nothing, and cancels a flush that is not yet due.
    pub(super) fn flush(&self, delay: Expiration) {
        let now = self.cache.now();
        // As in memcached, the flush happens one second before the delay ends.
        let at = match delay {
            Expiration::Never | Expiration::Past => now,
            Expiration::AtUnix(unix_s) if self.shared.was_before_start(unix_s) => NEVER_S,
            delay => {
                let flush = self.shared.expiry(delay);
                flush.second(now).map_or(now, |second| second - 1)
            }
        };
        self.shared.warm_up.note_flush();
        self.cache.flush_all(at);
    }

    /// Tells the watchers, if there are any, about an item that an increment or a decrement has
    /// created.
    pub(super) fn log_new_counter(&self, key: &[u8], counted: &ArithmeticResult) {
        let watchers = &self.shared.watchers;
        let &ArithmeticResult::Changed {
            value,
            expiry,
            is_new: true,
            ..
        } = counted
        else {
            return;
        };
        if watchers.is_watched(WatchKinds::MUTATIONS) {
            let event = StoreEvent {
                key,
                status: "stored",
                command: "add",
                expiry,
                len: itoa::Buffer::new().format(value).len(),
            };
            watchers.log_store(self.connection, self.cache.now(), &event);
        }
    }

    /// Appends to the answer.
    #[inline]
    pub(crate) fn push(&mut self, reply: &[u8]) {
        self.out.bytes_mut().extend_from_slice(reply);
    }

    /// Appends a reply, unless the client asked for none.
    pub(crate) fn push_unless(&mut self, quiet: bool, reply: &[u8]) {
        if !quiet {
            self.push(reply);
        }
    }

    /// Appends a value and its line end.
    #[inline]
    pub(crate) fn push_value(&mut self, item: &Item<'_>) {
        self.push_data(item);
        self.push(b"\r\n");
    }

    /// Appends a value. Shares a large one, and copies any other.
    #[inline]
    pub(crate) fn push_data(&mut self, item: &Item<'_>) {
        let value = item.value();
        if value.len() >= SHARED_BYTES_MIN
            && let Some(shared) = item.to_shared()
        {
            self.out.push_large(shared);
        } else {
            self.out.bytes_mut().extend_from_slice(value);
        }
    }

    /// Counts an increment or a decrement.
    pub(crate) fn count_arithmetic(&self, op: ArithmeticOp, counted: &ArithmeticResult) {
        let counters = self.counters;
        match (op, counted) {
            (ArithmeticOp::Increment, ArithmeticResult::Changed { is_new: false, .. }) => {
                counters.incr_hits.add(1)
            }
            (ArithmeticOp::Decrement, ArithmeticResult::Changed { is_new: false, .. }) => {
                counters.decr_hits.add(1)
            }
            (ArithmeticOp::Increment, ArithmeticResult::NotFound) => counters.incr_misses.add(1),
            (ArithmeticOp::Decrement, ArithmeticResult::NotFound) => counters.decr_misses.add(1),
            _ => {}
        }
    }

    /// Seconds until `expiry`, as the flag `t` reports them; -1 means never.
    pub(crate) fn seconds_left(&self, expiry: Expiry) -> i64 {
        let now = self.cache.now();
        expiry
            .second(now)
            .map_or(-1, |second| second.saturating_sub(now).into())
    }
}
