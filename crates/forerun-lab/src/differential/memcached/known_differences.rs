//! The intended differences, each with its reason. The test accepts no others.
//!
//! docs/operate/protocol.md lists the same differences in the same words, and a test here compares
//! the two. This file also implements what `Masked` differences allow;
//! [`generate`](super::generate) leaves out those that are `NotGenerated`.

use std::fmt;

use crate::differential::protocol::{Difference, ends, masked, not_generated};

/// A version of memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads `memcached 1.6.18` or `1.6.18`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let numbers = text.trim().rsplit(' ').next()?;
        let mut numbers = numbers
            .splitn(3, '.')
            .map(|part| part.chars().take_while(char::is_ascii_digit).collect());
        let mut next = || numbers.next().and_then(|part: String| part.parse().ok());
        Some(Self(next()?, next()?, next()?))
    }

    /// Whether its differences are listed. A version between 1.6.18 and [`LATER`] has some of the
    /// differences of both.
    pub(super) fn is_listed(self) -> bool {
        self == EARLIER || self >= LATER
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The earlier version that this server is compared with.
pub(super) const EARLIER: Version = Version(1, 6, 18);

/// The first version that is treated as a later one. It knows more flags than 1.6.18 and parses
/// lines differently.
pub(super) const LATER: Version = Version(1, 6, 40);

/// The versions that differ: 1.6.18, where later versions behave like this server; 1.6.45, where
/// this server behaves like 1.6.18; or both.
const ONLY_EARLIER: &str = "1.6.18";
const ONLY_LATER: &str = "1.6.45";
const ANY: &str = "all versions";

/// All differences, in the order of docs/operate/protocol.md.
pub(in crate::differential) const DIFFERENCES: &[Difference] = &[
    not_generated(
        ONLY_EARLIER,
        "The meta flags `E`, `x` (`md`), `s` (`ms`), `C` (`mg`) and `N` of an append or prepend \
         work. 1.6.18 refuses or ignores them.",
    ),
    masked(
        ONLY_EARLIER,
        "If a storage command is refused because of its key, flags, time, version or number of \
         words, its data block is skipped if the line gives its length. 1.6.18 reads the block as \
         commands, so anyone who can choose a key can inject commands.",
    ),
    not_generated(
        ONLY_EARLIER,
        "A quiet `ma` that creates a counter sends no answer. 1.6.18 answers `HD`.",
    ),
    masked(
        ONLY_EARLIER,
        "`exp` of `me` is the time left. 1.6.18 returns its negative.",
    ),
    ends(
        ONLY_EARLIER,
        "A number of 2^63 or more can be incremented and decremented. 1.6.18 may answer that it is \
         not a number, depending on what an earlier item left in the memory after it.",
    ),
    not_generated(
        ONLY_EARLIER,
        "A binary request above 1 GiB is refused. 1.6.18 takes its length for a negative number.",
    ),
    masked(
        ONLY_LATER,
        "1.6.45 uses different error texts, and some of its errors begin with `SERVER_ERROR`.",
    ),
    not_generated(
        ONLY_LATER,
        "1.6.45 refuses numbers with a plus sign or white space, times beyond 32 bits, lines that \
         end in a newline alone, `bget`, and `gat` without a key; it ignores extra words, and \
         takes a key named `noreply` for the option.",
    ),
    masked(
        ONLY_LATER,
        "1.6.45 begins a metadump with `OK` and adds `flags=` to its lines.",
    ),
    not_generated(
        ONLY_LATER,
        "1.6.45 does not decode the key of `me key b`, and sends an empty line after the error if \
         a key in a `get` is too long.",
    ),
    not_generated(
        ONLY_LATER,
        "If the data block of an `ms` ends wrongly, 1.6.45 gives its version to the next item that \
         the connection stores.",
    ),
    not_generated(
        ANY,
        "`multi_get`, `warm_up` and `warm_fill` exist. Memcached answers `ERROR`.",
    ),
    not_generated(
        ANY,
        "`verbosity` exists in the binary protocol. `-Y` excludes no binary clients, SASL no text \
         clients, and listing its mechanisms does not end a login.",
    ),
    not_generated(
        ANY,
        "A binary `touch`, `gat` or `stat` with a value is refused. Memcached reads the value as a \
         request. It skips an unknown request's key and extras twice, and drops unsent answers at \
         a request that does not begin with 0x80.",
    ),
    not_generated(
        ANY,
        "Client flags, lengths and settings of more than 32 bits are refused. Memcached truncates \
         them.",
    ),
    not_generated(
        ANY,
        "Negative numbers are refused where only positive ones are valid. Memcached accepts those \
         below -2^63, which wrap around.",
    ),
    not_generated(
        ANY,
        "`flush_all` with a future time does not undo an earlier flush, and keeps items that are \
         stored after it takes effect. Memcached brings back the items of an earlier flush, and \
         also removes items that are stored later in the same second.",
    ),
    not_generated(
        ANY,
        "A meta command with an opaque token that is too long changes nothing. Memcached executes \
         some of them before it answers with the error.",
    ),
    not_generated(
        ANY,
        "An incremented number that gets longer keeps its claim and its stale mark, and gets the \
         time of `ma`'s `T` and the version of its `E`. Memcached creates an item without these \
         marks, and gives the time and the version to the old item.",
    ),
    not_generated(
        ANY,
        "`incr`, `decr` and `ma` pad a value with spaces and never shorten it. Memcached shortens \
         it if a waiting answer or its LRU thread holds the item.",
    ),
    not_generated(
        ANY,
        "A value of white space is not a number. Memcached reads beyond its end.",
    ),
    not_generated(
        ANY,
        "`ma` with `C` compares versions first. Memcached first answers that a value of more than \
         half a MiB is not a number.",
    ),
    masked(
        ANY,
        "The time left of an expired item is 0. Memcached returns a number near 2^32.",
    ),
    not_generated(
        ANY,
        "`md x` keeps the item's time and marks, and gives it a new version. In memcached, the \
         item keeps its version and never expires unless `T` is given.",
    ),
    not_generated(
        ANY,
        "`k` returns the key in base64 if the command has `b`. Memcached does so only if `ms` \
         stored the item with `b` and nothing was appended to it.",
    ),
    not_generated(
        ANY,
        "Base64 keys that are not well formed are refused. Memcached skips characters that are not \
         base64.",
    ),
    not_generated(
        ANY,
        "If a key in a line is too long, the answers to the lines before it are still sent, and, \
         if the line is longer than 16 KiB, to the keys before it. Memcached drops all answers \
         that it has not sent yet.",
    ),
    not_generated(
        ANY,
        "Memcached closes the connection if a line has more than 2 KiB and its rest has not \
         arrived.",
    ),
    not_generated(
        ANY,
        "A dump of keys may be anywhere in the pipeline. Memcached refuses one that follows other \
         commands, and loses commands that it receives before the dump is over. 1.6.18 has no \
         `mgdump`.",
    ),
    not_generated(ANY, "`slabs` and `lru` change nothing. `extstore` is off."),
    not_generated(
        ANY,
        "A watcher of fetchers sees only reads; memcached also shows the lookups that writes make. \
         `watch` may follow other commands in the pipeline; memcached refuses that.",
    ),
    not_generated(ANY, "Memcached's overhead of a value is different."),
    masked(
        ANY,
        "`version` returns the memcached version that the server follows, then its own version.",
    ),
    masked(
        ANY,
        "`cls` and `size` of `me` and of dumps depend on how a server stores items.",
    ),
    masked(
        ANY,
        "In `stats`, `cmd_meta` counts all meta commands; memcached counts only `me`. \
         `total_items` counts every version that was written, `touch` included. `get_flushed` is \
         0. `curr_items` and `get_expired` depend on when items are reclaimed. Statistics of the \
         process, its memory, threads and connections differ.",
    ),
    masked(
        ANY,
        "`stats` has no `libevent` and `reserved_fds`, `stats items` no `age`, and `stats \
         settings` no `oldest`, `reqs_per_event`, `growth_factor`, `chunk_size`, `slab_chunk_max` \
         and `ext_*`.",
    ),
];

/// Statistics about clients' actions, which both servers count in the same way.
const COMPARED_STATS: &[&str] = &[
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "get_hits",
    "get_misses",
    "delete_misses",
    "delete_hits",
    "incr_misses",
    "incr_hits",
    "decr_misses",
    "decr_hits",
    "cas_misses",
    "cas_hits",
    "cas_badval",
    "touch_hits",
    "touch_misses",
];

/// Whether a line of an unordered answer is compared. Of the statistics, only those that both
/// servers count in the same way are.
pub(super) fn is_compared(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"STAT ") else {
        return true;
    };
    is_compared_stat(rest.split(|&byte| byte == b' ').next().unwrap_or_default())
}

/// Whether both servers count the statistic of this name in the same way.
pub(super) fn is_compared_stat(name: &[u8]) -> bool {
    COMPARED_STATS.iter().any(|one| one.as_bytes() == name)
}

/// A line of memcached's list of keys, without the parts that only a later version adds; `None` if
/// the whole line is such a part.
pub(super) fn without_additions(line: &[u8], memcached: Version) -> Option<&[u8]> {
    if memcached < LATER {
        return Some(line);
    }
    let fields = b" flags=";
    let end = line
        .windows(fields.len())
        .rposition(|window| window == fields);
    match end {
        Some(end) if line.starts_with(b"key=") => Some(&line[..end]),
        _ => (line != b"OK").then_some(line),
    }
}

/// Whether a listed difference explains two different lines.
pub(super) fn lines_are_equivalent(ours: &[u8], theirs: &[u8], memcached: Version) -> bool {
    let is_error = |line: &[u8]| {
        let starts = [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"];
        starts.iter().any(|start| line.starts_with(start))
    };
    memcached >= LATER && is_error(ours) && is_error(theirs)
}

/// Whether memcached's answer ends a history: it refuses a command that this server executed on a
/// number of 2^63 or more.
pub(super) fn ends_a_history(theirs: &[u8], counted_high: bool, memcached: Version) -> bool {
    memcached < LATER
        && counted_high
        && theirs == b"CLIENT_ERROR cannot increment or decrement non-numeric value"
}

/// The maximum duration of a history in seconds.
const HISTORY_S_MAX: i64 = 3600;

/// Whether two answers of the flag `t`, in seconds left, agree.
pub(super) fn seconds_left_agree(ours: i64, theirs: i64, clock_s: u64) -> bool {
    // The item has expired since memcached started, and memcached computes the difference in 32
    // bits.
    let wrapped = 1 << 32;
    if ours == 0 && (wrapped - HISTORY_S_MAX..wrapped).contains(&theirs) {
        return true;
    }
    times_agree(ours, theirs, clock_s)
}

/// Whether two values of `exp` in `me`, in seconds left, agree.
pub(super) fn exp_agrees(ours: i64, theirs: i64, clock_s: u64, memcached: Version) -> bool {
    let theirs = if memcached < LATER && theirs != -1 {
        -theirs
    } else {
        theirs
    };
    times_agree(ours, theirs, clock_s)
}

/// Whether two times, in seconds, agree within the difference of two clocks. -1 means never; it is
/// not a time.
pub(super) fn times_agree(ours: i64, theirs: i64, clock_s: u64) -> bool {
    (ours == -1) == (theirs == -1) && ours.abs_diff(theirs) <= clock_s
}

/// Whether two answers to `version` are the ones that each server must give.
pub(super) fn versions_agree(ours: &[u8], theirs: &[u8], memcached: Version) -> bool {
    let theirs = std::str::from_utf8(theirs).ok().and_then(Version::parse);
    ours.starts_with(b"1.6.18-forerun-") && theirs == Some(memcached)
}

/// Whether two different words of a dump are about an item that was fetched before `md x` emptied
/// it. No other answer shows this mark of a counter, and `md x` is only generated for counters.
pub(super) fn has_forgotten_a_fetch(ours: &[u8], theirs: &[u8], memcached: Version) -> bool {
    memcached >= LATER && ours == b"fetch=yes" && theirs == b"fetch=no"
}

/// Whether a value in `me` and in dumps depends on how a server stores its items.
pub(super) fn is_storage_specific(name: &[u8]) -> bool {
    matches!(name, b"cls" | b"size")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::protocol::listed_in;

    #[test]
    fn the_document_lists_the_same_differences() {
        let document = include_str!("../../../../../docs/operate/protocol.md");
        let listed: Vec<&str> = DIFFERENCES.iter().map(|one| one.text).collect();
        assert_eq!(listed_in(document, "## Differences from memcached"), listed);
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(
            Version::parse("memcached 1.6.18\n"),
            Some(Version(1, 6, 18))
        );
        assert_eq!(Version::parse("1.6.45_3"), Some(Version(1, 6, 45)));
        assert_eq!(Version::parse("memcached"), None);
        assert!(Version(1, 6, 9) < Version(1, 6, 18));
    }
}
