//! Meta commands that are not plain reads and have no data block: `mg` that changes the item, `md`,
//! `ma`, `me`.

use forerun_cache::{
    Arithmetic, ArithmeticOp, ArithmeticResult, Delete, DeleteResult, Expiry, Invalidate,
};

use crate::protocol::meta_flags::{Command, Flags};
use crate::protocol::meta_keys::{DecodedKey, push_base64};
use crate::protocol::numbers::push_u64;
use crate::protocol::replies;
use crate::protocol::tokens::Tokens;

use super::command_context::CommandContext;
use super::meta_answer::{Known, Subject, push_repeated};
use super::meta_get::{expiry_after, expiry_of_new, meta_get};

/// `mg` with any flags.
pub(super) fn get(line: &[u8], tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    context.counters.cmd_meta.add(1);
    let mut decoded = DecodedKey::new(context.has_keyspaces());
    let mut flags = Flags::NONE;
    match flags.parse(Command::Get, line, tokens, &mut decoded) {
        Ok(key) => meta_get(context, key, &flags),
        Err(reply) => context.push(reply),
    }
}

/// `md`.
pub(super) fn delete(line: &[u8], tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    context.counters.cmd_meta.add(1);
    let mut decoded = DecodedKey::new(context.has_keyspaces());
    let mut flags = Flags::NONE;
    let key = match flags.parse(Command::Delete, line, tokens, &mut decoded) {
        Ok(key) => key,
        Err(reply) => return context.push(reply),
    };
    let compare_cas = flags.compare_cas;
    let (mark_stale, drop_value) = (flags.has(b'I'), flags.has(b'x'));
    let deleted = if mark_stale || drop_value {
        context.cache_for_write(key).invalidate(Invalidate {
            key,
            compare_cas,
            new_cas: flags.new_cas,
            expiry: flags.ttl.map(|ttl| context.shared.expiry(ttl)),
            mark_stale,
            drop_value,
        })
    } else {
        context
            .cache_for_write(key)
            .delete(Delete { key, compare_cas })
    };
    let code = match deleted {
        DeleteResult::Deleted => b"HD",
        DeleteResult::NotFound => b"NF",
        DeleteResult::Exists => b"EX",
        DeleteResult::OutOfMemory | DeleteResult::Forked => {
            return context.push(replies::OUT_OF_MEMORY);
        }
    };
    match deleted {
        DeleteResult::Deleted if mark_stale => {}
        DeleteResult::Deleted => context.counters.delete_hits.add(1),
        _ => context.counters.delete_misses.add(1),
    }
    if deleted == DeleteResult::Deleted && flags.has(b'q') {
        return;
    }
    context.push(code);
    push_repeated(context, key, flags.has(b'b'), flags.letters, flags.text);
    context.push(b"\r\n");
}

/// `ma`.
pub(super) fn arithmetic(line: &[u8], tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    context.counters.cmd_meta.add(1);
    let mut decoded = DecodedKey::new(context.has_keyspaces());
    let mut flags = Flags::NONE;
    let key = match flags.parse(Command::Arithmetic, line, tokens, &mut decoded) {
        Ok(key) => key,
        Err(reply) => return context.push(reply),
    };
    let op = match flags.mode {
        None | Some(b'I' | b'+') => ArithmeticOp::Increment,
        Some(b'D' | b'-') => ArithmeticOp::Decrement,
        Some(_) => return context.push(replies::BAD_MODE_MA),
    };
    // A `t` before the `T` reports the old time.
    let returns_old_time = flags.ttl.is_some()
        && flags
            .in_order()
            .find(|&letter| letter == b't' || letter == b'T')
            == Some(b't');
    let cache = context.cache_for_write(key);
    let before = if returns_old_time {
        cache.pin().peek(key).map(|item| item.expiry())
    } else {
        None
    };
    let counted = cache.arithmetic(Arithmetic {
        key,
        delta: flags.delta,
        op,
        // No item has version 0. Memcached compares nothing if the version is 0.
        compare_cas: flags.compare_cas.filter(|&cas| cas != 0),
        new_cas: flags.new_cas,
        expiry: flags.ttl.map(|ttl| context.shared.expiry(ttl)),
        initial: flags
            .vivify
            .map(|_| (flags.initial, expiry_of_new(context, &flags))),
    });
    context.count_arithmetic(op, &counted);
    context.log_new_counter(key, &counted);
    let code = match counted {
        ArithmeticResult::Changed {
            value,
            cas,
            expiry,
            is_new,
        } => {
            let before = if is_new {
                Expiry::Never
            } else {
                before.unwrap_or(expiry)
            };
            if !flags.has(b'q') {
                push_counted(context, key, &flags, (value, cas), (before, is_new));
            }
            return;
        }
        ArithmeticResult::NotANumber => return context.push(replies::NOT_A_NUMBER),
        ArithmeticResult::OutOfMemory if flags.vivify.is_some() => {
            return context.push(replies::OUT_OF_MEMORY_VIVIFYING);
        }
        ArithmeticResult::OutOfMemory | ArithmeticResult::Forked => {
            return context.push(replies::OUT_OF_MEMORY);
        }
        ArithmeticResult::NotFound | ArithmeticResult::InvalidKey => b"NF",
        ArithmeticResult::Exists => b"EX",
    };
    context.push(code);
    push_repeated(context, key, flags.has(b'b'), flags.letters, flags.text);
    context.push(b"\r\n");
}

/// A counter that `ma` has changed.
struct Counter {
    cas: u64,
    expiry: Expiry,
}

impl Known for Counter {
    fn cas(&self) -> Option<u64> {
        Some(self.cas)
    }

    fn size(&self) -> Option<u64> {
        None
    }

    fn expiry(&self) -> Option<Expiry> {
        Some(self.expiry)
    }

    fn client_flags(&self) -> Option<u64> {
        None
    }

    fn was_fetched(&self) -> Option<bool> {
        None
    }

    fn last_access_s(&self, _: u32) -> Option<u32> {
        None
    }
}

/// Appends the answer to a successful `ma`. `expiry` is the item's expiry before the flags take
/// effect. They take effect in their order.
fn push_counted(
    context: &mut CommandContext<'_>,
    key: &[u8],
    flags: &Flags<'_>,
    (value, cas): (u64, u64),
    (mut expiry, is_new): (Expiry, bool),
) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(value);
    if flags.has(b'v') {
        context.push(b"VA ");
        push_u64(context.out.bytes_mut(), digits.len() as u64);
    } else {
        context.push(b"HD");
    }
    for flag in flags.tokens {
        expiry = expiry_after(context, flags, flag[0], expiry, is_new);
        let subject = Subject {
            key,
            is_binary: flags.has(b'b'),
            item: &Counter { cas, expiry },
        };
        subject.push(context, flag);
    }
    context.push(b"\r\n");
    if flags.has(b'v') {
        context.push(digits.as_bytes());
        context.push(b"\r\n");
    }
}

/// `me key [b]`: reports what the cache knows about an item.
pub(super) fn debug(line: &[u8], tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    context.counters.cmd_meta.add(1);
    let mut decoded = DecodedKey::new(context.has_keyspaces());
    let mut flags = Flags::NONE;
    let key = match flags.parse(Command::Debug, line, tokens, &mut decoded) {
        Ok(key) => key,
        Err(reply) => return context.push(reply),
    };
    let cache = context.cache;
    let guard = cache.pin();
    let Some(item) = guard.peek(key) else {
        return context.push(replies::META_END);
    };
    context.push(b"ME ");
    if flags.has(b'b') {
        push_base64(context.out.bytes_mut(), key);
    } else {
        context.push(key);
    }
    let text = format!(
        " exp={} la={} cas={} fetch={} cls=1 size={}\r\n",
        context.seconds_left(item.expiry()),
        cache.now().saturating_sub(item.last_access()),
        item.cas(),
        if item.was_fetched() { "yes" } else { "no" },
        item.size_bytes(),
    );
    context.push(text.as_bytes());
}
