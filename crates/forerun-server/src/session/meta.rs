//! Meta commands that are not plain reads and have no data block: `mg` that changes the item, `md`,
//! `ma`, `me`.

use forerun_cache::{Arithmetic, Counted, Delete, Deleted, Direction, Expiry, Invalidate};

use crate::protocol::meta::{Flags, TOKENS_MAX};
use crate::protocol::meta_keys::{DecodedKey, decode, push_base64, push_key_flag};
use crate::protocol::numbers::push_u64;
use crate::protocol::tokens::Tokens;
use crate::protocol::{KEY_BYTES_MAX, replies};

use super::commands::count_arithmetic;
use super::context::Turn;
use super::meta_get::{expiry_behind, expiry_of_new, meta_get, push_echo, push_seconds_left};

/// Parses the key and flags of a meta command without a data block, or returns the error reply.
fn parse<'a>(
    line: &'a [u8],
    tokens: &Tokens<'a>,
    decoded: &'a mut DecodedKey,
) -> Result<(&'a [u8], Flags<'a>), &'static [u8]> {
    let is_get = tokens.get(0) == b"mg";
    let key = tokens.get(1);
    if key.len() > KEY_BYTES_MAX {
        return Err(replies::BAD_FORMAT);
    }
    if tokens.count() > TOKENS_MAX {
        return Err(if is_get {
            replies::FLAGS_TOO_MANY_MG
        } else {
            replies::FLAGS_TOO_MANY
        });
    }
    let flags = Flags::parse(tokens.behind(line, 1)).map_err(|error| {
        if is_get {
            error.reply()
        } else {
            replies::FLAG_UNKNOWN_OR_TWICE
        }
    })?;
    let key = match (flags.has(b'b'), is_get) {
        (false, _) => key,
        (true, true) => decode(key, decoded).ok_or(replies::BAD_KEY)?,
        (true, false) => decode(key, decoded).ok_or(replies::FLAG_UNKNOWN_OR_TWICE)?,
    };
    if !flags.opaque_fits() {
        return Err(replies::BAD_OPAQUE);
    }
    Ok((key, flags))
}

/// `mg` with any flags.
pub(super) fn get(line: &[u8], tokens: &Tokens<'_>, turn: &mut Turn<'_>) {
    turn.counters.cmd_meta.add(1);
    let mut decoded = [0; KEY_BYTES_MAX];
    match parse(line, tokens, &mut decoded) {
        Ok((key, flags)) => meta_get(turn, key, &flags),
        Err(reply) => turn.say(reply),
    }
}

/// `md`.
pub(super) fn delete(line: &[u8], tokens: &Tokens<'_>, turn: &mut Turn<'_>) {
    turn.counters.cmd_meta.add(1);
    let mut decoded = [0; KEY_BYTES_MAX];
    let (key, flags) = match parse(line, tokens, &mut decoded) {
        Ok(parsed) => parsed,
        Err(reply) => return turn.say(reply),
    };
    let compare_cas = flags.compare_cas;
    let (mark_stale, drop_value) = (flags.has(b'I'), flags.has(b'x'));
    let deleted = if mark_stale || drop_value {
        turn.cache.invalidate(Invalidate {
            key,
            compare_cas,
            new_cas: flags.new_cas,
            expiry: flags.ttl.map(|ttl| turn.shared.expiry(ttl)),
            mark_stale,
            drop_value,
        })
    } else {
        turn.cache.delete(Delete { key, compare_cas })
    };
    let code = match deleted {
        Deleted::Deleted => b"HD",
        Deleted::NotFound => b"NF",
        Deleted::Exists => b"EX",
        Deleted::OutOfMemory | Deleted::Forked => return turn.say(replies::OUT_OF_MEMORY),
    };
    match deleted {
        Deleted::Deleted if mark_stale => {}
        Deleted::Deleted => turn.counters.delete_hits.add(1),
        _ => turn.counters.delete_misses.add(1),
    }
    if deleted == Deleted::Deleted && flags.has(b'q') {
        return;
    }
    turn.say(code);
    push_echo(turn, key, flags.has(b'b'), flags.text);
    turn.say(b"\r\n");
}

/// `ma`.
pub(super) fn arithmetic(line: &[u8], tokens: &Tokens<'_>, turn: &mut Turn<'_>) {
    turn.counters.cmd_meta.add(1);
    let mut decoded = [0; KEY_BYTES_MAX];
    let (key, flags) = match parse(line, tokens, &mut decoded) {
        Ok(parsed) => parsed,
        Err(reply) => return turn.say(reply),
    };
    let direction = match flags.mode {
        None | Some(b'I' | b'+') => Direction::Increment,
        Some(b'D' | b'-') => Direction::Decrement,
        Some(_) => return turn.say(replies::BAD_MODE_MA),
    };
    // A `t` before the `T` reports the old time.
    let tells_time_before = flags.ttl.is_some()
        && flags
            .each()
            .map(|flag| flag[0])
            .find(|&letter| letter == b't' || letter == b'T')
            == Some(b't');
    let before = if tells_time_before {
        turn.cache.pin().peek(key).map(|item| item.expiry())
    } else {
        None
    };
    let counted = turn.cache.arithmetic(Arithmetic {
        key,
        delta: flags.delta,
        direction,
        // No item has version 0. Memcached treats it as no comparison.
        compare_cas: flags.compare_cas.filter(|&cas| cas != 0),
        new_cas: flags.new_cas,
        expiry: flags.ttl.map(|ttl| turn.shared.expiry(ttl)),
        initial: flags
            .vivify
            .map(|_| (flags.initial, expiry_of_new(turn, &flags))),
    });
    count_arithmetic(turn, direction, &counted);
    let code = match counted {
        Counted::Counted {
            value,
            cas,
            expiry,
            is_new,
        } => {
            let before = match is_new {
                true => Expiry::Never,
                false => before.unwrap_or(expiry),
            };
            if !flags.has(b'q') {
                push_counted(turn, key, &flags, (value, cas), (before, is_new));
            }
            return;
        }
        Counted::NotANumber => return turn.say(replies::NOT_A_NUMBER),
        Counted::OutOfMemory if flags.vivify.is_some() => {
            return turn.say(replies::OUT_OF_MEMORY_VIVIFYING);
        }
        Counted::OutOfMemory | Counted::Forked => return turn.say(replies::OUT_OF_MEMORY),
        Counted::NotFound => b"NF",
        Counted::Exists => b"EX",
    };
    turn.say(code);
    push_echo(turn, key, flags.has(b'b'), flags.text);
    turn.say(b"\r\n");
}

/// Appends the answer to a successful `ma`. `expiry` is the item's expiry before the flags take
/// effect, which they do in their order.
fn push_counted(
    turn: &mut Turn<'_>,
    key: &[u8],
    flags: &Flags<'_>,
    (value, cas): (u64, u64),
    (mut expiry, is_new): (Expiry, bool),
) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(value);
    if flags.has(b'v') {
        turn.say(b"VA ");
        push_u64(turn.out.bytes_mut(), digits.len() as u64);
    } else {
        turn.say(b"HD");
    }
    for flag in flags.each() {
        expiry = expiry_behind(turn, flags, flag[0], expiry, is_new);
        let out = turn.out.bytes_mut();
        match flag[0] {
            b'c' => {
                out.extend_from_slice(b" c");
                push_u64(out, cas);
            }
            b't' => push_seconds_left(turn, expiry),
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => push_key_flag(out, key, flags.has(b'b')),
            _ => {}
        }
    }
    turn.say(b"\r\n");
    if flags.has(b'v') {
        turn.say(digits.as_bytes());
        turn.say(b"\r\n");
    }
}

/// `me key [b]`: reports what the cache knows of an item.
pub(super) fn debug(tokens: &Tokens<'_>, turn: &mut Turn<'_>) {
    turn.counters.cmd_meta.add(1);
    let mut key = tokens.get(1);
    let is_binary = tokens.get(2) == b"b";
    let mut decoded = [0; KEY_BYTES_MAX];
    if key.len() > KEY_BYTES_MAX {
        return turn.say(replies::BAD_FORMAT);
    }
    if is_binary {
        key = match decode(key, &mut decoded) {
            Some(key) => key,
            None => return turn.say(replies::BAD_FORMAT),
        };
    }
    let cache = turn.cache;
    let guard = cache.pin();
    let Some(item) = guard.peek(key) else {
        return turn.say(replies::META_END);
    };
    turn.say(b"ME ");
    if is_binary {
        push_base64(turn.out.bytes_mut(), key);
    } else {
        turn.say(key);
    }
    let text = format!(
        " exp={} la={} cas={} fetch={} cls=1 size={}\r\n",
        turn.seconds_left(item.expiry()),
        cache.now().saturating_sub(item.last_access()),
        item.cas(),
        if item.was_fetched() { "yes" } else { "no" },
        item.size_bytes(),
    );
    turn.say(text.as_bytes());
}
