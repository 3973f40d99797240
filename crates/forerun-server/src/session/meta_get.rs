//! Meta get: the answers, and the variants that change the item.

use forerun_cache::{CacheGuard, Expiry, Item, Store, StoreMode, StoreResult};

use crate::protocol::meta_flags::{Flags, Letters};
use crate::protocol::numbers::push_u64;

use super::command_context::CommandContext;
use super::meta_answer::{Known, Subject, push_repeated};

/// An item and its expiry, which the command may have changed.
struct Touched<'a, 'g> {
    item: &'a Item<'g>,
    expiry: Expiry,
}

impl Known for Touched<'_, '_> {
    fn cas(&self) -> Option<u64> {
        Known::cas(self.item)
    }

    fn size(&self) -> Option<u64> {
        Known::size(self.item)
    }

    fn expiry(&self) -> Option<Expiry> {
        Some(self.expiry)
    }

    fn client_flags(&self) -> Option<u64> {
        Known::client_flags(self.item)
    }

    fn was_fetched(&self) -> Option<bool> {
        Known::was_fetched(self.item)
    }

    fn last_access_s(&self, now_s: u32) -> Option<u32> {
        Known::last_access_s(self.item, now_s)
    }
}

/// An empty item that the command has created.
struct Created {
    cas: u64,
    expiry: Expiry,
}

impl Known for Created {
    fn cas(&self) -> Option<u64> {
        Some(self.cas)
    }

    fn size(&self) -> Option<u64> {
        Some(0)
    }

    fn expiry(&self) -> Option<Expiry> {
        Some(self.expiry)
    }

    fn client_flags(&self) -> Option<u64> {
        Some(0)
    }

    fn was_fetched(&self) -> Option<bool> {
        Some(false)
    }

    fn last_access_s(&self, now_s: u32) -> Option<u32> {
        Some(now_s)
    }
}

/// Appends the answer to a hit of a meta get that changes nothing, except that it may claim the
/// item.
#[inline]
pub(super) fn push_plain_hit(
    context: &mut CommandContext<'_>,
    key: &[u8],
    item: &Item<'_>,
    letters: Letters,
    flags: &[u8],
) {
    let with_value = letters.has(b'v');
    push_code(context, item, with_value);
    let subject = Subject {
        key,
        is_binary: false,
        item,
    };
    subject.push_all(context, letters, flags);
    if item.is_stale() || item.is_claimed() {
        push_claim(context, item, false);
    }
    context.push(b"\r\n");
    if with_value {
        context.push_value(item);
    }
}

/// Appends the answer to a miss, with the flags that have a meaning for a miss.
pub(super) fn push_miss(
    context: &mut CommandContext<'_>,
    key: &[u8],
    is_binary: bool,
    letters: Letters,
    flags: &[u8],
) {
    if letters.has(b'q') {
        return;
    }
    context.push(b"EN");
    push_repeated(context, key, is_binary, letters, flags);
    context.push(b"\r\n");
}

fn push_code(context: &mut CommandContext<'_>, item: &Item<'_>, with_value: bool) {
    if with_value {
        context.push(b"VA ");
        push_u64(context.out.bytes_mut(), item.value().len() as u64);
    } else {
        context.push(b"HD");
    }
}

/// If a new value is wanted, appends which client must write it: this one (`W`) or another one
/// (`Z`).
fn push_claim(context: &mut CommandContext<'_>, item: &Item<'_>, is_wanted: bool) {
    let is_wanted = is_wanted || item.is_stale();
    let wins = is_wanted && !item.is_claimed() && context.cache.claim(item);
    if !wins && item.is_claimed() {
        context.push(b" Z");
    }
    if item.is_stale() {
        context.push(b" X");
    }
    if wins {
        context.push(b" W");
    }
}

/// Executes a meta get of any kind after its flags are parsed.
pub(super) fn meta_get(context: &mut CommandContext<'_>, key: &[u8], flags: &Flags<'_>) {
    let is_binary = flags.has(b'b');
    let is_touch = flags.ttl.is_some();
    // Before the item is pinned: to note a write may take as long as another thread's store.
    let cache = if is_touch {
        context.cache_for_write(key)
    } else {
        context.cache
    };
    let mut guard = cache.pin();
    let mut item = find(&guard, key, flags);
    context.log_fetch(key, item.as_ref());
    if item.is_none() && flags.vivify.is_some() {
        // A store may wait until all readers are done, including this one.
        drop(guard);
        if let Some(cas) = vivify(context, key, flags) {
            // This command counts as a fetch of the item, unless the flag `u` asks it to leave no
            // trace.
            find(&cache.pin(), key, flags);
            count_touch_or_get(context, is_touch, true);
            return push_created(context, key, flags, cas);
        }
        guard = cache.pin();
        item = find(&guard, key, flags);
    }
    count_touch_or_get(context, is_touch, item.is_some());
    let Some(item) = item else {
        return push_miss(context, key, is_binary, flags.letters, flags.text);
    };

    let with_value = flags.has(b'v') && flags.compare_cas != Some(item.cas());
    push_code(context, &item, with_value);
    let mut expiry = item.expiry();
    let mut is_wanted = false;
    for flag in flags.tokens {
        expiry = expiry_after(context, flags, flag[0], expiry, false);
        match (flag[0], flags.recache) {
            (b'R', Some(below)) => {
                let limit = context.shared.expiry(below);
                is_wanted = expires_before(expiry, limit, cache.now());
            }
            _ => {
                let item = &Touched {
                    item: &item,
                    expiry,
                };
                let subject = Subject {
                    key,
                    is_binary,
                    item,
                };
                subject.push(context, flag);
            }
        }
    }
    push_claim(context, &item, is_wanted);
    context.push(b"\r\n");
    if with_value {
        context.push_value(&item);
    }
    if is_touch {
        // Another thread may have replaced the item. Its value keeps its own expiry.
        cache.touch_item(&item, expiry);
    }
}

/// Counts a meta get as memcached does: as a touch if it touches an item, otherwise as a get.
fn count_touch_or_get(context: &CommandContext<'_>, is_touch: bool, hit: bool) {
    let counters = context.counters;
    let (commands, outcomes) = match (hit, is_touch) {
        (true, true) => (&counters.cmd_touch, &counters.touch_hits),
        (true, false) => (&counters.cmd_get, &counters.get_hits),
        (false, _) => (&counters.cmd_get, &counters.get_misses),
    };
    commands.add(1);
    outcomes.add(1);
}

/// Appends the answer to a meta get that created an empty item for this client to fill. Does not
/// look the item up, because it may have expired already.
fn push_created(context: &mut CommandContext<'_>, key: &[u8], flags: &Flags<'_>, cas: u64) {
    let with_value = flags.has(b'v') && flags.compare_cas != Some(cas);
    context.push(if with_value { b"VA 0" } else { b"HD" });
    let mut expiry = Expiry::Never;
    for flag in flags.tokens {
        expiry = expiry_after(context, flags, flag[0], expiry, true);
        let subject = Subject {
            key,
            is_binary: flags.has(b'b'),
            item: &Created { cas, expiry },
        };
        subject.push(context, flag);
    }
    context.push(b" W\r\n");
    if with_value {
        context.push(b"\r\n");
    }
}

/// The item's expiry after `letter`, one of the command's flags, has taken effect. `T` sets the
/// expiry, and so does `N` if the item `is_new`. Flags take effect in their order, so the last one
/// wins.
pub(super) fn expiry_after(
    context: &CommandContext<'_>,
    flags: &Flags<'_>,
    letter: u8,
    expiry: Expiry,
    is_new: bool,
) -> Expiry {
    let set = match letter {
        b'T' => flags.ttl,
        b'N' if is_new => flags.vivify,
        _ => None,
    };
    set.map_or(expiry, |expiration| context.shared.expiry(expiration))
}

/// The expiry of an item that a command with these flags creates.
pub(super) fn expiry_of_new(context: &CommandContext<'_>, flags: &Flags<'_>) -> Expiry {
    flags.in_order().fold(Expiry::Never, |expiry, letter| {
        expiry_after(context, flags, letter, expiry, true)
    })
}

fn find<'g>(guard: &'g CacheGuard<'_>, key: &[u8], flags: &Flags<'_>) -> Option<Item<'g>> {
    if flags.has(b'u') {
        guard.peek(key)
    } else {
        guard.get(key)
    }
}

/// Creates an empty item for this client to fill, and returns its version. Returns `None` if
/// another client was faster or if memory is full.
fn vivify(context: &CommandContext<'_>, key: &[u8], flags: &Flags<'_>) -> Option<u64> {
    let stored = context.cache_for_write(key).store(Store {
        mode: StoreMode::Add,
        expiry: expiry_of_new(context, flags),
        new_cas: flags.new_cas,
        claimed: true,
        ..Store::set(key, b"")
    });
    match stored {
        StoreResult::Stored { cas } => Some(cas),
        _ => None,
    }
}

fn expires_before(expiry: Expiry, limit: Expiry, now_s: u32) -> bool {
    match (expiry.ms(now_s), limit.ms(now_s)) {
        (Some(ms), Some(limit_ms)) => ms < limit_ms,
        _ => false,
    }
}
