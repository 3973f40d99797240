//! The intended differences, each with its reason. The test accepts no others.
//!
//! docs/operate/protocol.md lists the same differences in the same words, and a test here compares
//! the two. This file also implements what `Masked` differences allow;
//! [`generate`](super::generate) leaves out those that are `NotGenerated`.

use std::fmt;

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
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The first version that is compared as a later one: it knows more flags than 1.6.18 and parses
/// lines differently.
pub(super) const LATER: Version = Version(1, 6, 40);

/// Which memcached differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// 1.6.18; later versions behave like this server.
    Earlier,
    /// 1.6.45; this server behaves like 1.6.18.
    Later,
    Any,
}

/// How the test treats a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Answers that differ only in this way count as equal.
    Masked,
    /// It is in no history: after it the servers would hold different items, and everything that
    /// follows would differ.
    NotGenerated,
    /// It ends a history, for the same reason: its cause cannot be avoided.
    Ends,
}

/// An intended difference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Difference {
    pub from: From,
    pub treatment: Treatment,
    /// What differs and why, in the words of docs/operate/protocol.md.
    pub text: &'static str,
}

const fn masked(from: From, text: &'static str) -> Difference {
    Difference {
        from,
        treatment: Treatment::Masked,
        text,
    }
}

const fn not_generated(from: From, text: &'static str) -> Difference {
    Difference {
        from,
        treatment: Treatment::NotGenerated,
        text,
    }
}

const fn ends(from: From, text: &'static str) -> Difference {
    Difference {
        from,
        treatment: Treatment::Ends,
        text,
    }
}

/// All differences, in the order of docs/operate/protocol.md.
pub(super) const DIFFERENCES: &[Difference] = &[
    not_generated(
        From::Earlier,
        "The server obeys the meta flags `E` (`mg`, `ms`, `md`, `ma`), `x` (`md`), `s` (`ms`), `C` (`mg`) and \
         `N` of an append or prepend. 1.6.18 refuses or ignores them.",
    ),
    masked(
        From::Earlier,
        "A storage command that is refused for its key, flags, time or version, or for too few or too many \
         words, has its data block skipped if the line gives its length. 1.6.18 reads the block as commands, \
         so that whoever can send a bad key can send commands.",
    ),
    not_generated(
        From::Earlier,
        "A quiet `ma` that creates a counter answers nothing. 1.6.18 answers `HD`.",
    ),
    masked(
        From::Earlier,
        "`exp` of `me` is the time left. 1.6.18 answers its negative.",
    ),
    ends(
        From::Earlier,
        "A number of 2^63 or more can be counted whatever lies behind it in memory. 1.6.18 searches that memory \
         for a minus sign, which an earlier item may have left there, and then says that it is no number.",
    ),
    masked(
        From::Later,
        "1.6.45 words errors differently, and some errors begin with `SERVER_ERROR`.",
    ),
    not_generated(
        From::Later,
        "1.6.45 parses lines differently: it refuses numbers with a plus sign or white space, times beyond 32 \
         bits, lines that end in a newline alone, `bget`, and `gat` without a key; it ignores surplus words, \
         and takes a key called `noreply` for the word.",
    ),
    masked(
        From::Later,
        "1.6.45 begins a metadump with `OK` and adds `flags=` to its lines.",
    ),
    not_generated(
        From::Later,
        "1.6.45 does not decode the key of `me key b`, sends an empty line behind the error for a key that is \
         too long in a `get`.",
    ),
    not_generated(
        From::Any,
        "A connection whose first byte is 0x80 is told that there is no binary protocol. Memcached speaks it.",
    ),
    not_generated(
        From::Any,
        "The server refuses client flags, lengths and settings of more than 32 bits. Memcached truncates \
         them.",
    ),
    not_generated(
        From::Any,
        "The server refuses a negative number where none can be. Memcached takes those below -2^63, which \
         wrap around to positive ones.",
    ),
    not_generated(
        From::Any,
        "`flush_all` with a delay takes effect when the delay is over, or at once if it is a time of day that \
         has passed, and it does not undo an earlier flush. Memcached flushes a second earlier, ignores a \
         time that has passed, and brings back the items of an earlier flush until the delay is over.",
    ),
    not_generated(
        From::Any,
        "A meta command with an opaque token that is too long changes nothing. Memcached obeys some of them \
         before it answers with the error.",
    ),
    not_generated(
        From::Any,
        "A number that grows keeps its claim and its staleness, and gets the time of `ma`'s `T`. Memcached \
         replaces the item by one without these marks, and gives the time to the one that it replaced.",
    ),
    not_generated(
        From::Any,
        "`incr`, `decr` and `ma` never shorten a value: they pad it with spaces. Memcached shortens it if an \
         answer with the item waits to be sent, or if the thread that maintains its LRU holds the item, so \
         that the result depends on the time.",
    ),
    not_generated(
        From::Any,
        "A value that is only white space is no number. Memcached reads on behind its end, and counts what an \
         earlier item left there.",
    ),
    not_generated(
        From::Any,
        "`ma` with `C` compares versions before it looks at the value. Memcached answers first that a value \
         of more than half a MiB is no number.",
    ),
    masked(
        From::Any,
        "The time left of an item whose time has passed is 0. Memcached answers a number near 2^32.",
    ),
    not_generated(
        From::Any,
        "`md x` keeps the item's time and marks, and gives it a new version since its value is another. With \
         memcached the emptied item keeps its version and lives for ever unless `T` is given.",
    ),
    not_generated(
        From::Any,
        "`k` answers the key in base64 if the command has `b`. Memcached does so if the item was stored with \
         `b` by `ms`: not for an item that `mg` or `ma` created, or that was appended to.",
    ),
    not_generated(
        From::Any,
        "The server refuses base64 keys that are not well formed. Memcached skips what is not base64.",
    ),
    not_generated(
        From::Any,
        "A line of keys with one that is too long leaves the answers in front of it as they are, and if it is \
         longer than 16 KiB, those to its own keys in front of that one. Memcached drops all answers that \
         have not been sent yet.",
    ),
    not_generated(
        From::Any,
        "A line other than `get` and `gets` may have 16 KiB however it arrives, and a list of keys may have any length. Memcached closes the connection \
         above 2 KiB unless the rest is already there.",
    ),
    not_generated(
        From::Any,
        "A dump of keys is answered in its turn wherever it stands. Memcached refuses one that has other \
         commands in front of it, and loses commands that it receives before the dump is over. 1.6.18 has no \
         `mgdump`.",
    ),
    not_generated(
        From::Any,
        "`slabs`, `lru` and `extstore` concern how memcached stores items, and are off, as is `watch`.",
    ),
    not_generated(
        From::Any,
        "The largest item is `--max-item-size` less the key and 32 bytes. Memcached's overhead is another.",
    ),
    masked(
        From::Any,
        "`cls` and `size` of `me` and of dumps concern how a server stores items.",
    ),
    masked(
        From::Any,
        "In `stats`, `cmd_meta` counts all meta commands, memcached's only `me`. `total_items` counts every \
         version of an item that was written, `touch` included. How many expired or flushed items are still \
         in memory, and which were met by whom (`curr_items`, `get_expired`, `get_flushed`), depends on when \
         a server reclaims them.",
    ),
];

/// Statistics of what clients do, which both servers count alike.
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

/// Whether a line of an unordered answer is compared: for statistics, those that both servers count
/// alike.
pub(super) fn is_compared(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"STAT ") else {
        // A later memcached sends this before it lists its keys.
        return line != b"OK";
    };
    let name = rest.split(|&byte| byte == b' ').next().unwrap_or_default();
    COMPARED_STATS.iter().any(|one| one.as_bytes() == name)
}

/// A line of a list of keys without its end and without the fields that only a later memcached has.
pub(super) fn without_later_fields(line: &[u8]) -> &[u8] {
    let is_list = line.starts_with(b"key=");
    let fields = b" flags=";
    let end = line
        .windows(fields.len())
        .rposition(|window| window == fields);
    match end {
        Some(end) if is_list => &line[..end],
        _ => line.trim_ascii_end(),
    }
}

/// Whether a listed difference explains two different lines.
pub(super) fn lines_may_stand_for_each_other(
    ours: &[u8],
    theirs: &[u8],
    memcached: Version,
) -> bool {
    let is_error = |line: &[u8]| {
        let starts = [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"];
        starts.iter().any(|start| line.starts_with(start))
    };
    memcached >= LATER && is_error(ours) && is_error(theirs)
}

/// Whether these two lines end a history because of a listed difference.
pub(super) fn end_a_history(ours: &[u8], theirs: &[u8], memcached: Version) -> bool {
    let is_counted = ours.starts_with(b"HD")
        || ours.starts_with(b"VA ")
        || std::str::from_utf8(ours).is_ok_and(|text| text.parse::<u64>().is_ok());
    memcached < LATER
        && is_counted
        && theirs == b"CLIENT_ERROR cannot increment or decrement non-numeric value"
}

/// Whether two numbers of seconds left agree.
pub(super) fn seconds_left_agree(
    ours: &[u8],
    theirs: &[u8],
    clock_s: u64,
    memcached: Version,
) -> bool {
    let number = |text: &[u8]| -> Option<i64> { std::str::from_utf8(text).ok()?.parse().ok() };
    let (Some(ours), Some(theirs)) = (number(ours), number(theirs)) else {
        return false;
    };
    // 1.6.18 returns the time left in `me` as its negative.
    let theirs = match memcached < LATER && theirs < -1 {
        true => -theirs,
        false => theirs,
    };
    if ours == 0 && theirs > i64::from(i32::MAX) {
        return true;
    }
    // -1 means never; it is not a number of seconds.
    (ours == -1) == (theirs == -1) && ours.abs_diff(theirs) <= clock_s
}

/// Whether a value in `me` and in dumps concerns how a server stores its items.
pub(super) fn is_of_its_own(name: &[u8]) -> bool {
    matches!(name, b"cls" | b"size")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list entries in a section of docs/operate/protocol.md, each as one line.
    fn entries() -> Vec<String> {
        let text = include_str!("../../../../docs/operate/protocol.md");
        let (_, part) = text
            .split_once("\n## What differs from memcached\n")
            .expect("the document has this part");
        let part = part.split("\n## ").next().unwrap_or_default();
        let mut entries: Vec<String> = Vec::new();
        let mut is_entry = false;
        for line in part.lines() {
            if let Some(entry) = line.strip_prefix("- ") {
                entries.push(entry.to_owned());
                is_entry = true;
            } else if let (true, Some(entry), true) =
                (line.starts_with("  "), entries.last_mut(), is_entry)
            {
                entry.push(' ');
                entry.push_str(line.trim());
            } else {
                is_entry = false;
            }
        }
        entries
    }

    #[test]
    fn the_document_lists_the_same_differences() {
        let listed: Vec<&str> = DIFFERENCES.iter().map(|one| one.text).collect();
        assert_eq!(entries(), listed);
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
