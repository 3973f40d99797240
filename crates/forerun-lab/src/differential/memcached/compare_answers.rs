//! Splits answers into parts and compares them.
//!
//! ```text
//!   VA 5 c17 t99\r\n      a line: words, some of which are numbers that differ between servers
//!   hello\r\n             data: compared byte by byte
//!   MN\r\n                a line
//! ```
//!
//! Each server counts its own versions (CAS uniques). The first two numbers that the servers return
//! in the same place form a pair from then on, and neither may ever appear with another number.
//! Seconds may differ by the time between the two requests.

use std::collections::HashMap;

use super::counters::CounterCommands;
use super::known_differences::{self, Version};
use crate::differential::command::shorten;
use crate::differential::protocol::Agreement;
use crate::differential::step::CompareMode;

/// The maximum difference of two clocks in whole seconds that are read in succession on a busy
/// machine.
const CLOCK_S: u64 = 3;

/// Pairs of corresponding versions, in the order in which they were first returned.
#[derive(Debug, Default)]
pub(super) struct Versions {
    pairs: Vec<(u64, u64)>,
    theirs_of: HashMap<u64, u64>,
    ours_of: HashMap<u64, u64>,
}

impl Versions {
    /// The pair that was returned `back` pairs before the latest: ours and theirs. If there is
    /// none, returns a pair that no item has.
    pub(super) fn back(&self, back: usize) -> (u64, u64) {
        match self.pairs.len() {
            0 => (999_999_999_999, 999_999_999_999),
            count => self.pairs[count - 1 - back % count],
        }
    }

    /// Records that the two appear in the same place, and returns whether that is allowed.
    pub(super) fn agree(&mut self, ours: u64, theirs: u64) -> bool {
        // 0 is not a version.
        if ours == 0 || theirs == 0 {
            return ours == theirs;
        }
        let known = (self.theirs_of.get(&ours), self.ours_of.get(&theirs));
        match known {
            (None, None) => {
                self.theirs_of.insert(ours, theirs);
                self.ours_of.insert(theirs, ours);
                self.pairs.push((ours, theirs));
                true
            }
            (Some(&known_theirs), Some(&known_ours)) => {
                known_theirs == theirs && known_ours == ours
            }
            _ => false,
        }
    }
}

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerPart<'a> {
    /// A line without its end.
    Line(&'a [u8]),
    /// A value with its end.
    Data(&'a [u8]),
    /// Bytes that do not form a complete line.
    Rest(&'a [u8]),
}

impl AnswerPart<'_> {
    fn describe(&self) -> String {
        let (AnswerPart::Line(bytes) | AnswerPart::Data(bytes) | AnswerPart::Rest(bytes)) = self;
        shorten(bytes)
    }
}

/// Splits an answer into parts.
fn parts(mut bytes: &[u8]) -> Vec<AnswerPart<'_>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
            parts.push(AnswerPart::Rest(bytes));
            break;
        };
        let line = &bytes[..end];
        bytes = &bytes[end + 2..];
        parts.push(AnswerPart::Line(line));
        if let Some(len) = value_len(line) {
            let (data, rest) = bytes.split_at(bytes.len().min(len.saturating_add(2)));
            parts.push(AnswerPart::Data(data));
            bytes = rest;
        }
    }
    parts
}

/// The length of the value after a line, if there is one.
fn value_len(line: &[u8]) -> Option<usize> {
    let mut words = line.split(|&byte| byte == b' ');
    let word = match words.next()? {
        b"VALUE" => words.nth(2)?,
        b"VA" => words.next()?,
        _ => return None,
    };
    number(word)
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Compares two answers to the same request. If they differ, returns why.
pub(super) fn compare<'a>(
    our_bytes: &'a [u8],
    their_bytes: &'a [u8],
    how: CompareMode,
    counts: &CounterCommands<'_>,
    memcached: Version,
    versions: &mut Versions,
) -> Result<Agreement, String> {
    let (mut ours, mut theirs) = (parts(our_bytes), parts(their_bytes));
    if how == CompareMode::Unordered {
        // In a list of keys, lines end in a newline alone.
        let lines = |bytes: &'a [u8]| {
            bytes
                .split(|&byte| byte == b'\n')
                .map(<[u8]>::trim_ascii_end)
        };
        ours = lines(our_bytes).map(AnswerPart::Line).collect();
        theirs = lines(their_bytes)
            .filter_map(|line| known_differences::without_additions(line, memcached))
            .map(AnswerPart::Line)
            .collect();
        for parts in [&mut ours, &mut theirs] {
            parts.retain(|part| match part {
                AnswerPart::Line(line) => known_differences::is_compared(line),
                AnswerPart::Data(_) | AnswerPart::Rest(_) => true,
            });
            parts.sort_by(|a, b| sort_key(a).cmp(sort_key(b)));
        }
    }
    if how == CompareMode::BlockMayBeRead
        && theirs.len() > ours.len()
        && theirs[ours.len()..]
            .iter()
            .all(|part| *part == AnswerPart::Line(b"ERROR"))
    {
        theirs.truncate(ours.len());
    }
    for (index, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        let same = match (a, b) {
            (AnswerPart::Line(a), AnswerPart::Line(b)) => lines_agree(a, b, memcached, versions),
            (a, b) => a == b,
        };
        if !same {
            if let (AnswerPart::Line(line), AnswerPart::Line(refusal)) = (a, b)
                && let Some(counted) = counted(line, ours.get(index + 1))
                && known_differences::ends_a_history(
                    refusal,
                    counts.may_start_high(counted),
                    memcached,
                )
            {
                return Ok(Agreement {
                    answers: index as u64,
                    ends_history: true,
                });
            }
            return Err(format!(
                "part {} of the answers differs: {} and {}",
                index + 1,
                a.describe(),
                b.describe()
            ));
        }
    }
    Agreement::of_all(ours.len(), theirs.len())
}

/// The number in the answer to a counting command; `Some(None)` if the answer has no number. `None`
/// if the line does not answer such a command.
fn counted(line: &[u8], next: Option<&AnswerPart<'_>>) -> Option<Option<u64>> {
    match (line.split(|&byte| byte == b' ').next()?, next) {
        (b"HD", _) => Some(None),
        (b"VA", Some(AnswerPart::Data(data))) => number(data.trim_ascii_end()).map(Some),
        (word, _) if word.len() == line.len() => number(word).map(Some),
        _ => None,
    }
}

/// The sort key for unordered lines: the part that both servers return alike.
fn sort_key<'a>(part: &AnswerPart<'a>) -> &'a [u8] {
    let (AnswerPart::Line(bytes) | AnswerPart::Data(bytes) | AnswerPart::Rest(bytes)) = part;
    let words = if bytes.starts_with(b"key=") { 1 } else { 2 };
    let end = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b' ')
        .nth(words - 1)
        .map_or(bytes.len(), |(at, _)| at);
    &bytes[..end]
}

fn lines_agree(ours: &[u8], theirs: &[u8], memcached: Version, versions: &mut Versions) -> bool {
    if known_differences::lines_are_equivalent(ours, theirs, memcached) {
        return true;
    }
    let ours: Vec<&[u8]> = ours.split(|&byte| byte == b' ').collect();
    let theirs: Vec<&[u8]> = theirs.split(|&byte| byte == b' ').collect();
    if ours.len() != theirs.len() {
        return false;
    }
    let kind = ours[0];
    ours.iter()
        .zip(&theirs)
        .enumerate()
        .all(|(index, (a, b))| words_agree(kind, index, a, b, memcached, versions))
}

/// Whether the words at `index` of two lines match; `kind` is the first word of our line.
fn words_agree(
    kind: &[u8],
    index: usize,
    ours: &[u8],
    theirs: &[u8],
    memcached: Version,
    versions: &mut Versions,
) -> bool {
    let mut pair = |ours: &[u8], theirs: &[u8]| match (number(ours), number(theirs)) {
        (Some(ours), Some(theirs)) => versions.agree(ours, theirs),
        _ => false,
    };
    match kind {
        b"VALUE" if index == 4 => pair(ours, theirs),
        b"VERSION" if index == 1 => known_differences::versions_agree(ours, theirs, memcached),
        b"HD" | b"VA" if index > 0 => match (ours.split_first(), theirs.split_first()) {
            (Some((b'c', a)), Some((b'c', b))) => pair(a, b),
            (Some((b't', a)), Some((b't', b))) => both(a, b, |a, b| {
                known_differences::seconds_left_agree(a, b, CLOCK_S)
            }),
            (Some((b'l', a)), Some((b'l', b))) => close(a, b),
            _ => ours == theirs,
        },
        b"ME" if index > 1 => named_words_agree(ours, theirs, &mut pair, |a, b| {
            known_differences::exp_agrees(a, b, CLOCK_S, memcached)
        }),
        _ if kind.starts_with(b"key=") && index > 0 => {
            if known_differences::has_forgotten_a_fetch(ours, theirs, memcached) {
                return true;
            }
            named_words_agree(ours, theirs, &mut pair, |a, b| {
                known_differences::times_agree(a, b, CLOCK_S)
            })
        }
        _ => ours == theirs,
    }
}

/// Words `name=value`, as in the answers of `me` and `lru_crawler metadump`. `exp` compares two
/// values with this name.
fn named_words_agree(
    ours: &[u8],
    theirs: &[u8],
    pair: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    exp: impl FnOnce(i64, i64) -> bool,
) -> bool {
    let cut = |word: &[u8]| -> Option<(Vec<u8>, Vec<u8>)> {
        let at = word.iter().position(|&byte| byte == b'=')?;
        Some((word[..at].to_vec(), word[at + 1..].to_vec()))
    };
    let (Some((name, a)), Some((their_name, b))) = (cut(ours), cut(theirs)) else {
        return ours == theirs;
    };
    name == their_name
        && match &name[..] {
            b"exp" => both(&a, &b, exp),
            b"la" => close(&a, &b),
            b"cas" => pair(&a, &b),
            b"cls" | b"size" => known_differences::is_storage_specific(&name),
            _ => a == b,
        }
}

/// Whether two numbers of seconds differ by no more than two clocks may differ.
fn close(ours: &[u8], theirs: &[u8]) -> bool {
    both(ours, theirs, |a, b| a.abs_diff(b) <= CLOCK_S)
}

/// Whether both are numbers that satisfy `agree`.
fn both(ours: &[u8], theirs: &[u8], agree: impl FnOnce(i64, i64) -> bool) -> bool {
    match (number(ours), number(theirs)) {
        (Some(a), Some(b)) => agree(a, b),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::known_differences::EARLIER;
    use super::*;
    use crate::differential::command::{Command, Word};

    const NEW: Version = Version(1, 6, 45);

    fn agree(ours: &str, theirs: &str, versions: &mut Versions) -> bool {
        compare(
            ours.as_bytes(),
            theirs.as_bytes(),
            CompareMode::Whole,
            &CounterCommands::NONE,
            NEW,
            versions,
        )
        .is_ok()
    }

    #[test]
    fn versions_stay_paired() {
        let mut versions = Versions::default();
        assert!(agree("HD c5\r\n", "HD c9\r\n", &mut versions));
        assert!(agree(
            "VALUE k 0 1 5\r\nx\r\nEND\r\n",
            "VALUE k 0 1 9\r\nx\r\nEND\r\n",
            &mut versions
        ));
        assert!(!agree("HD c5\r\n", "HD c10\r\n", &mut versions));
        assert!(!agree("HD c6\r\n", "HD c9\r\n", &mut versions));
        assert!(!agree("HD c0\r\n", "HD c9\r\n", &mut versions));
        assert_eq!(versions.back(0), (5, 9));
    }

    #[test]
    fn values_are_compared_byte_by_byte() {
        let mut versions = Versions::default();
        assert!(!agree(
            "VA 2 c1\r\nc1\r\n",
            "VA 2 c1\r\nc2\r\n",
            &mut versions
        ));
        assert!(!agree("VA 2\r\nab\r\n", "VA 2\r\nab", &mut versions));
        assert!(!agree("EN\r\n", "EN\r\nEN\r\n", &mut versions));
        assert!(!agree("", "EN\r\n", &mut versions));
        assert!(!agree("HD f5\r\n", "HD f6\r\n", &mut versions));
    }

    #[test]
    fn a_count_that_an_earlier_memcached_refuses_ends_the_history() {
        let refused = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
        let incr =
            |key: &str, delta: &str| Command::line(["incr", key, delta].map(Word::text).to_vec());
        let commands = [incr("n", "5"), incr("m", "1")];
        let compare = |ours: &[u8], counts: CounterCommands<'_>, memcached| {
            let mut versions = Versions::default();
            compare(
                ours,
                refused,
                CompareMode::Whole,
                &counts,
                memcached,
                &mut versions,
            )
        };
        let of = |commands, before| CounterCommands::new(commands, before);
        let old = EARLIER;
        let high = b"18446744073709551596\r\n";
        let ended = compare(high, of(&commands, None), old);
        assert!(ended.is_ok_and(|agreed| agreed.ends_history));
        // It counted past the end, from 2^64 - 2.
        assert!(compare(b"3\r\n", of(&commands, None), old).is_ok());
        assert!(compare(b"5\r\n", of(&commands, None), old).is_err());
        assert!(compare(high, of(&commands, None), NEW).is_err());
        assert!(compare(b"NOT_FOUND\r\n", of(&commands, None), old).is_err());
        // If there is only one command, the number that it changes is known.
        assert!(compare(b"HD\r\n", of(&commands[..1], Some(1 << 63)), old).is_ok());
        assert!(compare(b"HD\r\n", of(&commands[..1], Some((1 << 63) - 1)), old).is_err());
        assert!(compare(high, of(&commands[..1], Some(7)), old).is_err());
    }

    #[test]
    fn only_the_time_left_of_me_is_negative_and_only_with_an_earlier_memcached() {
        let agree = |ours: &str, theirs: &str, memcached| {
            let (ours, theirs) = (ours.as_bytes(), theirs.as_bytes());
            let mut versions = Versions::default();
            compare(
                ours,
                theirs,
                CompareMode::Whole,
                &CounterCommands::NONE,
                memcached,
                &mut versions,
            )
            .is_ok()
        };
        let old = EARLIER;
        assert!(agree(
            "ME a exp=500 la=0\r\n",
            "ME a exp=-500 la=0\r\n",
            old
        ));
        assert!(agree("ME a exp=-1 la=0\r\n", "ME a exp=-1 la=0\r\n", old));
        assert!(!agree(
            "ME a exp=500 la=0\r\n",
            "ME a exp=-500 la=0\r\n",
            NEW
        ));
        assert!(!agree(
            "ME a exp=500 la=0\r\n",
            "ME a exp=500 la=0\r\n",
            old
        ));
        assert!(!agree("HD t500\r\n", "HD t-500\r\n", old));
        assert!(agree("HD t0\r\n", "HD t4294967230\r\n", old));
        assert!(!agree("HD t0\r\n", "HD t2147483648\r\n", old));
        assert!(!agree("ME a fetch=yes\r\n", "ME a fetch=no\r\n", old));
    }

    #[test]
    fn only_a_dump_of_a_later_memcached_may_have_forgotten_that_an_item_was_fetched() {
        let agree = |ours: &str, theirs: &str, memcached| {
            let (ours, theirs) = (ours.as_bytes(), theirs.as_bytes());
            let mut versions = Versions::default();
            let none = CounterCommands::NONE;
            let mode = CompareMode::Whole;
            compare(ours, theirs, mode, &none, memcached, &mut versions).is_ok()
        };
        let dump = |fetch| format!("key=n exp=-1 la=0 cas=1 fetch={fetch} cls=1\r\nEND\r\n");
        assert!(agree(&dump("yes"), &dump("no"), NEW));
        assert!(!agree(&dump("no"), &dump("yes"), NEW));
        assert!(!agree(&dump("yes"), &dump("no"), EARLIER));
        assert!(!agree("ME n fetch=yes\r\n", "ME n fetch=no\r\n", NEW));
    }

    #[test]
    fn seconds_may_differ_by_what_lies_between_two_questions() {
        let mut versions = Versions::default();
        assert!(agree("HD t99 l0\r\n", "HD t98 l1\r\n", &mut versions));
        assert!(!agree("HD t99\r\n", "HD t-1\r\n", &mut versions));
        assert!(!agree("HD t99\r\n", "HD t9\r\n", &mut versions));
        // An opaque token and a key may look like a time.
        assert!(!agree("HD Ot99\r\n", "HD Ot98\r\n", &mut versions));
    }
}
