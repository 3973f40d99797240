//! The intended differences. The test accepts no others.
//!
//! docs/operate/resp.md lists the same differences in the same words, and a test here compares the
//! two. This file also implements what `Masked` differences allow;
//! [`generate`](super::generate) leaves out those that are `NotGenerated`.

use super::programs::Kind;
use super::reply_value::Value;
use crate::differential::protocol::{Difference, ends, masked, not_generated};

const REDIS: &str = "Redis 7.0";
const VALKEY: &str = "Valkey 9.1";
const ANY: &str = "all versions";

/// All differences, in the order of docs/operate/resp.md.
pub(in crate::differential) const DIFFERENCES: &[Difference] = &[
    masked(
        ANY,
        "`HELLO`, `INFO`, `CLIENT`, `TIME` and `MEMORY USAGE` tell of this server.",
    ),
    masked(
        ANY,
        "`OBJECT ENCODING` says what Redis would use, and `int` for each number.",
    ),
    masked(
        ANY,
        "`COMMAND INFO` has flags, categories and tips of its own.",
    ),
    ends(
        ANY,
        "A watched key that was missing, and is missing again, does not abort a transaction.",
    ),
    not_generated(
        ANY,
        "A time to live is exact to the millisecond, and ends after at most 136 years.",
    ),
    not_generated(
        ANY,
        "`KEYS`, `SCAN`, `HSCAN`, `RANDOMKEY` and, with several databases, `FLUSHDB` are refused \
         in a transaction.",
    ),
    masked(VALKEY, "Valkey's `NOSCRIPT` does not mention `EVAL`."),
    not_generated(
        VALKEY,
        "In Valkey, `MULTI` and `WATCH` abort an open transaction.",
    ),
    not_generated(
        REDIS,
        "Redis queues `CLIENT REPLY` in a transaction. Valkey refuses it too.",
    ),
    not_generated(REDIS, "Redis does not check the line end after a value."),
    not_generated(VALKEY, "Valkey's `SCAN` refuses an unknown `TYPE`."),
    masked(REDIS, "Redis accepts negative and empty cursors."),
    not_generated(
        VALKEY,
        "Valkey's `GETEX` refuses a wrong time even if the key is missing.",
    ),
    not_generated(
        VALKEY,
        "In lines, Valkey lets words go on after a closing quote, and drops bytes of the value \
         255.",
    ),
    not_generated(
        REDIS,
        "Redis lacks `CLIENT SETINFO` and `CLIENT NO-TOUCH`, and refuses `READONLY`.",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::protocol::listed_in;

    #[test]
    fn the_document_lists_the_same_differences() {
        let document = include_str!("../../../../../docs/operate/resp.md");
        let listed: Vec<&str> = DIFFERENCES.iter().map(|one| one.text).collect();
        let heading = "## Differences from Redis and Valkey";
        assert_eq!(listed_in(document, heading), listed);
    }
}
