//! The body of the fuzz target for sessions of the binary protocol. The fuzzer's bytes are
//! instructions for requests, so that most of them are well formed.
//!
//! ```text
//!   00..=bf   a request: opcode, opaque, key, extras, length of the value
//!   c0..=ef   one byte of the next request's header is changed
//!   f0..=ff   bytes as they are
//! ```

use crate::protocol::binary::HEADER_BYTES;

use super::session_fuzz::{STREAM_BYTES_MAX, compare, play};

/// Keys, of which some have items.
const KEYS: [&[u8]; 8] = [
    b"a",
    b"b",
    b"big",
    b"huge",
    b"n",
    b"\r\n\0\x80",
    &[b'k'; 250],
    b"",
];

/// Lengths of values. The last is longer than any item.
const LENGTHS: [usize; 8] = [0, 1, 5, 300, 16_300, 17_000, 120_000, 400_000];

/// Sends the requests that `bytes` describe to a session, once as a whole and once in pieces, with
/// a fast and a slow reader, and compares the answers. `cuts` determines the lengths of the pieces.
///
/// # Panics
/// If the answers differ, if they are not whole answers, or if a buffer takes too much memory.
pub fn fuzz_binary(cuts: &[u8], bytes: &[u8]) {
    let stream = requests(bytes);
    compare(cuts, &stream);
    let answers = play(&stream, &[], usize::MAX);
    if stream.first() == Some(&0x80) {
        check_answers(&answers);
    }
}

/// The requests that `bytes` describe.
fn requests(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.iter().copied();
    let mut stream = Vec::new();
    let mut changes = Vec::new();
    while let Some(instruction) = bytes.next()
        && stream.len() < STREAM_BYTES_MAX
    {
        let mut next = || bytes.next().unwrap_or(0);
        match instruction {
            0xf0.. => stream.extend((0..instruction & 15).map(|_| next())),
            0xc0.. => changes.push((usize::from(instruction) % HEADER_BYTES, next())),
            _ => {
                let start = stream.len();
                // `stat` depends on time, and the session would end after `quit`.
                let opcode = match instruction % 0x28 {
                    0x07 | 0x17 | 0x10 => 0x0a,
                    opcode => opcode,
                };
                push_request(&mut stream, opcode, &mut next);
                for (at, byte) in changes.drain(..) {
                    stream[start + at] = byte;
                }
            }
        }
    }
    stream
}

fn push_request(stream: &mut Vec<u8>, opcode: u8, next: &mut impl FnMut() -> u8) {
    let extras_len = match opcode {
        0x01..=0x03 | 0x11..=0x13 => 8,
        0x05 | 0x06 | 0x15 | 0x16 => 20,
        0x1b..=0x1e | 0x23 | 0x24 => 4,
        _ => 0,
    };
    let is_store = matches!(opcode, 0x01..=0x03 | 0x0e | 0x0f | 0x11..=0x13 | 0x19 | 0x1a);
    let choice = next();
    let key = match opcode {
        0x08 | 0x0a | 0x0b | 0x18 | 0x1b | 0x20 => b"",
        _ => KEYS[usize::from(choice) % KEYS.len()],
    };
    let value_len = if is_store {
        LENGTHS[usize::from(choice >> 3) % LENGTHS.len()]
    } else {
        0
    };
    let opaque = next();
    // Small numbers, so that some are versions and times.
    let small = next() & 7;
    let body_len = extras_len + key.len() + value_len;
    let mut head = [0; HEADER_BYTES];
    head[..2].copy_from_slice(&[0x80, opcode]);
    head[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    head[4] = extras_len as u8;
    head[8..12].copy_from_slice(&(body_len as u32).to_be_bytes());
    head[15] = opaque;
    head[23] = if choice & 0x40 == 0 { 0 } else { small };
    stream.extend_from_slice(&head);
    stream.resize(stream.len() + extras_len, 0);
    if extras_len > 0 {
        let end = stream.len() - 1;
        stream[end] = if opaque & 8 == 0 { 0 } else { small };
    }
    stream.extend_from_slice(key);
    stream.resize(stream.len() + value_len, b'0' + (small & 1));
}

/// Checks that `answers` are whole answers.
fn check_answers(answers: &[u8]) {
    let mut rest = answers;
    while !rest.is_empty() {
        let head = rest.get(..HEADER_BYTES).expect("a whole header");
        let body = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let key_len = u16::from_be_bytes([head[2], head[3]]);
        assert_eq!(head[0], 0x81, "{}", rest.escape_ascii());
        assert!(usize::from(key_len) + usize::from(head[4]) <= body);
        rest = rest.get(HEADER_BYTES + body..).expect("a whole body");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_answered_the_same_however_it_is_split() {
        let mut request = [0; 30];
        request[..2].copy_from_slice(&[0x80, 0x0b]);
        request[12..16].copy_from_slice(b"abcd");
        for len in [1, 2, 14, 16, 23, 24, 30] {
            for cut in 0..8 {
                compare(&[cut, 0], &request[..len]);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn answers_do_not_depend_on_how_the_input_is_cut_or_the_output_read(
            cuts in proptest::collection::vec(any::<u8>(), 1..10),
            bytes in proptest::collection::vec(
                prop_oneof![8 => 0..0xc0_u8, 1 => 0xc0..=0xff_u8], 0..200),
        ) {
            fuzz_binary(&cuts, &bytes);
        }
    }
}
