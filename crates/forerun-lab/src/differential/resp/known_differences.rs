//! The intended differences, each with its reason. The test accepts no others.
//!
//! This file also implements what `Masked` differences allow; [`generate`](super::generate) leaves
//! out those that are `NotGenerated`.

use super::programs::Kind;
use super::reply_value::Value;
use crate::differential::protocol::{Difference, ends, masked, not_generated};

const REDIS: &str = "Redis 7.0";
const VALKEY: &str = "Valkey 9.1";
const ANY: &str = "all versions";

/// All differences.
pub(in crate::differential) const DIFFERENCES: &[Difference] = &[
    masked(
        ANY,
        "`HELLO`, `INFO`, `CLIENT ID`, `CLIENT LIST`, `TIME` and `MEMORY USAGE` tell about the \
         server and its connections.",
    ),
    masked(
        ANY,
        "`OBJECT ENCODING` other than `int` depends on how a server stores values. Each number is \
         `int`, also one that `APPEND` has made.",
    ),
    masked(
        ANY,
        "`COMMAND INFO` describes flags, categories and tips of its version.",
    ),
    ends(
        ANY,
        "A key that was missing when it was watched, and is missing again, does not abort a \
         transaction.",
    ),
    not_generated(ANY, "A time to live ends after at most 136 years."),
    not_generated(
        ANY,
        "`KEYS`, `SCAN`, `HSCAN`, `RANDOMKEY` and, with several databases, `FLUSHDB` are refused \
         in a transaction.",
    ),
    masked(VALKEY, "The error `NOSCRIPT` does not tell to use `EVAL`."),
    not_generated(
        VALKEY,
        "`MULTI` and `WATCH` within a transaction abort it. In Redis 7.0 they are errors that \
         leave it as it is.",
    ),
    not_generated(
        REDIS,
        "`CLIENT REPLY` is queued in a transaction, and may then hide an answer that `EXEC` has \
         counted. In Valkey 9.1 it is refused.",
    ),
    not_generated(
        VALKEY,
        "The two bytes after a value must be a line end. Redis 7.0 skips them.",
    ),
    not_generated(
        VALKEY,
        "`SCAN` with an unknown `TYPE` is an error. In Redis 7.0 it finds nothing.",
    ),
    masked(
        REDIS,
        "`SCAN` with a negative or an empty cursor, or one with a plus sign, is no error.",
    ),
    not_generated(VALKEY, "`GETEX` of a missing key refuses a wrong time."),
    not_generated(
        VALKEY,
        "In a line, a word may go on after its closing quote. In Redis 7.0 the quotes are \
         unbalanced.",
    ),
    not_generated(VALKEY, "A line loses its bytes of the value 255."),
    not_generated(
        REDIS,
        "`CLIENT SETINFO` and `CLIENT NO-TOUCH` are unknown, and `READONLY` fails.",
    ),
    not_generated(
        ANY,
        "Redis and Valkey wait for more after a line with a NUL.",
    ),
];

/// Whether this server executed a transaction that the other one aborted.
pub(super) fn ends_a_history(ours: &Value<'_>, theirs: &Value<'_>, kinds: [Kind; 2]) -> bool {
    let is_null = matches!(
        theirs,
        Value::Null { .. } | Value::Line { marker: b'_', .. }
    );
    kinds[0] == Kind::Forerun && ours.items().is_some() && is_null
}

/// Whether a listed difference explains that only one server refuses a cursor.
pub(super) fn is_cursor_of_redis(error: &[u8], kinds: [Kind; 2]) -> bool {
    kinds.contains(&Kind::Redis) && kinds[0] != kinds[1] && error == b"ERR invalid cursor"
}

/// Whether a listed difference explains two different errors.
pub(super) fn errors_agree(ours: &[u8], theirs: &[u8], kinds: [Kind; 2]) -> bool {
    let both_start = |start: &[u8]| ours.starts_with(start) && theirs.starts_with(start);
    let is_cursor = |error: &[u8]| is_cursor_of_redis(error, kinds);
    // Redis accepts the cursor and refuses what follows it.
    is_cursor(ours)
        || is_cursor(theirs)
        || (kinds.contains(&Kind::Valkey) && both_start(b"NOSCRIPT "))
}
