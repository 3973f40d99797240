//! Compares answers of the binary protocol.
//!
//! ```text
//!   header   opcode, status, lengths and opaque are equal; versions are a pair, as in text answers
//!   body     compared byte by byte, except the text of `version`
//! ```

use super::compare_answers::Versions;
use super::counters::CounterChange;
use super::known_differences::{self, Version};
use crate::differential::command::shorten;
use crate::differential::packet::{HEADER_BYTES, Packet};
use crate::differential::protocol::Agreement;
use crate::differential::step::CompareMode;

/// An answer, or the bytes that are left if they are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer<'a> {
    /// The header without the version.
    header: &'a [u8],
    cas: u64,
    body: &'a [u8],
}

const VERSION: u8 = 0x0b;
const STAT: u8 = 0x10;
const NOT_A_NUMBER: u16 = 6;

impl<'a> Answer<'a> {
    fn opcode(&self) -> Option<u8> {
        self.header.get(1).copied()
    }

    fn status(&self) -> Option<u16> {
        let bytes = self.header.get(6..)?.first_chunk()?;
        Some(u16::from_be_bytes(*bytes))
    }

    /// The request that it answers.
    fn request<'p>(&self, packets: &'p [Packet]) -> Option<&'p Packet> {
        let bytes = self.header.get(12..)?.first_chunk()?;
        packets.get(u32::from_be_bytes(*bytes) as usize)
    }

    /// The name of a statistic.
    fn name(&self) -> &'a [u8] {
        let len = self.header.get(2..).and_then(<[u8]>::first_chunk);
        let len = len.map_or(0, |len| usize::from(u16::from_be_bytes(*len)));
        self.body.get(..len).unwrap_or_default()
    }

    fn describe(&self) -> String {
        shorten(&[self.header, self.body].concat())
    }
}

/// Splits bytes into answers.
fn answers(mut bytes: &[u8]) -> Vec<Answer<'_>> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let whole = bytes.get(8..12).and_then(|len| {
            let len = u32::from_be_bytes(len.try_into().ok()?) as usize;
            bytes.split_at_checked(HEADER_BYTES + len)
        });
        let (answer, rest) = whole.unwrap_or((bytes, b""));
        bytes = rest;
        let (header, body) = answer.split_at(answer.len().min(HEADER_BYTES));
        let (header, cas) = header.split_at(header.len().min(16));
        let cas = cas.first_chunk().map_or(0, |cas| u64::from_be_bytes(*cas));
        answers.push(Answer { header, cas, body });
    }
    answers
}

/// Compares two answers to the same requests. If they differ, returns why.
pub(super) fn compare(
    our_bytes: &[u8],
    their_bytes: &[u8],
    how: CompareMode,
    packets: &[Packet],
    memcached: Version,
    versions: &mut Versions,
) -> Result<Agreement, String> {
    let (mut ours, mut theirs) = (answers(our_bytes), answers(their_bytes));
    if how == CompareMode::Unordered {
        for answers in [&mut ours, &mut theirs] {
            answers.retain(|one| {
                one.opcode() != Some(STAT)
                    || one.name().is_empty()
                    || known_differences::is_compared_stat(one.name())
            });
            answers.sort_by(|a, b| a.name().cmp(b.name()));
        }
    }
    for (index, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        if agree(a, b, memcached, versions) {
            continue;
        }
        if let Some(request) = a.request(packets)
            && b.status() == Some(NOT_A_NUMBER)
            && memcached < known_differences::LATER
            && may_start_high(request, a)
        {
            return Ok(Agreement {
                answers: index as u64,
                ends_history: true,
            });
        }
        return Err(format!(
            "answer {} differs: {} and {}",
            index + 1,
            a.describe(),
            b.describe()
        ));
    }
    Agreement::of_all(ours.len(), theirs.len())
}

fn agree(
    ours: &Answer<'_>,
    theirs: &Answer<'_>,
    memcached: Version,
    versions: &mut Versions,
) -> bool {
    if ours.opcode() == Some(VERSION) && ours.status() == Some(0) {
        // The lengths of the texts differ.
        let without_len = |header: &[u8]| [&header[..8], &header[12..]].concat();
        return without_len(ours.header) == without_len(theirs.header)
            && known_differences::versions_agree(ours.body, theirs.body, memcached);
    }
    ours.header == theirs.header && ours.body == theirs.body && versions.agree(ours.cas, theirs.cas)
}

/// Whether the request may have changed a number of 2^63 or more, which 1.6.18 may refuse.
fn may_start_high(request: &Packet, answer: &Answer<'_>) -> bool {
    let Some(number) = answer
        .body
        .first_chunk()
        .map(|body| u64::from_be_bytes(*body))
    else {
        return false;
    };
    let change = match request.opcode {
        0x05 => CounterChange::Up(request.delta()),
        0x06 => CounterChange::Down(request.delta()),
        _ => return false,
    };
    change.may_start_high(number)
}

#[cfg(test)]
mod tests {
    use super::super::known_differences::{EARLIER, LATER};
    use super::*;

    fn answer(opcode: u8, status: u16, opaque: u32, cas: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x81, opcode, 0, 0, 0, 0];
        bytes.extend(status.to_be_bytes());
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend(opaque.to_be_bytes());
        bytes.extend(cas.to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn agree(ours: &[u8], theirs: &[u8], versions: &mut Versions) -> bool {
        compare(ours, theirs, CompareMode::Whole, &[], LATER, versions).is_ok()
    }

    #[test]
    fn versions_are_paired_and_everything_else_is_equal() {
        let mut versions = Versions::default();
        let (ours, theirs) = (answer(1, 0, 7, 5, b""), answer(1, 0, 7, 9, b""));
        assert!(agree(&ours, &theirs, &mut versions));
        assert!(!agree(&ours, &answer(1, 0, 7, 10, b""), &mut versions));
        for other in [
            answer(2, 0, 7, 9, b""),
            answer(1, 1, 7, 9, b""),
            answer(1, 0, 8, 9, b""),
            answer(1, 0, 7, 0, b""),
            answer(1, 0, 7, 9, b"x"),
            theirs[..23].to_vec(),
            [&theirs[..], &theirs].concat(),
            Vec::new(),
        ] {
            assert!(
                !agree(&ours, &other, &mut versions),
                "{}",
                other.escape_ascii()
            );
        }
        let version = |text: &[u8]| answer(0x0b, 0, 0, 0, text);
        let ours = version(b"1.6.18-forerun-0.1.0");
        assert!(agree(&ours, &version(b"1.6.40"), &mut versions));
        assert!(!agree(&ours, &version(b"1.6.18"), &mut versions));
    }

    #[test]
    fn a_count_that_an_earlier_memcached_refuses_ends_the_history() {
        let mut increment = Packet::new(5);
        increment.extras = [5_u64.to_be_bytes(), [0; 8]].concat();
        let refused = answer(
            5,
            6,
            0,
            0,
            b"Non-numeric server-side value for incr or decr",
        );
        let compare = |number: u64, memcached| {
            let ours = answer(5, 0, 0, 8, &number.to_be_bytes());
            let mut versions = Versions::default();
            let packets = std::slice::from_ref(&increment);
            compare(
                &ours,
                &refused,
                CompareMode::Whole,
                packets,
                memcached,
                &mut versions,
            )
        };
        let ended = compare(u64::MAX, EARLIER);
        assert!(ended.is_ok_and(|agreed| agreed.ends_history));
        assert!(compare(7, EARLIER).is_err());
        assert!(compare(u64::MAX, LATER).is_err());
    }
}
