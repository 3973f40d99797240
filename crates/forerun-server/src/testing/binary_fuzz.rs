//! The body of the fuzz target for sessions of the binary protocol. The fuzzer's bytes are
//! instructions for requests, so that most of them are well formed.
//!
//! ```text
//!   first     whether the server has users, and the number of requests of SASL at the start
//!   00..=bf   a request: opcode, opaque, key, extras, length of the value, or message of SASL
//!   c0..=ef   one byte of the next request's header is changed
//!   f0..=ff   bytes as they are
//! ```

use memchr::memmem;

use crate::counters::SessionStats;
use crate::protocol::binary::HEADER_BYTES;

use super::session_fuzz::{Clients, LOGIN, STREAM_BYTES_MAX, compare, play_on, server};

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

/// Names of mechanisms, of which the last is too long.
const MECHANISMS: [&[u8]; 8] = [
    b"PLAIN",
    b"PLAIN",
    b"PLAIN",
    b"PLAIN",
    b"PLAIN",
    b"plain",
    b"CRAM-MD5",
    &[b'P'; 33],
];

/// Messages of SASL, of which the last is too long.
const MESSAGES: [&[u8]; 8] = [
    LOGIN,
    LOGIN,
    b"alice\0alice\0s3cret",
    b"bob\0alice\0s3cret",
    b"\0alice\0wrong",
    b"alice",
    b"",
    &[b'x'; 3000],
];

/// Lengths of values. The last is longer than any item.
const LENGTHS: [usize; 8] = [0, 1, 5, 300, 16_300, 17_000, 120_000, 400_000];

/// Sends the requests that `bytes` describe to a session, once as a whole and once in pieces, with
/// a fast and a slow reader, and compares the answers. `cuts` determines the lengths of the pieces.
///
/// # Panics
/// If the answers differ, if they are not whole answers, if a client gets more than an error
/// before it has logged in, or if a buffer takes too much memory.
pub fn fuzz_binary(cuts: &[u8], bytes: &[u8]) {
    let (clients, stream) = requests(bytes);
    compare(clients, cuts, &stream);
    if stream.first() == Some(&0x80) {
        play_and_check(clients, &stream);
    }
}

/// Who may use the server, and the requests that `bytes` describe.
fn requests(bytes: &[u8]) -> (Clients, Vec<u8>) {
    let mut bytes = bytes.iter().copied();
    let mut stream = Vec::new();
    let mut changes = Vec::new();
    let first = bytes.next().unwrap_or(0);
    let clients = match first & 1 {
        0 => Clients::All,
        _ => Clients::OneUser,
    };
    for _ in 0..first >> 1 & 3 {
        let mut next = || bytes.next().unwrap_or(0);
        let opcode = [0x20, 0x21, 0x21, 0x22][usize::from(next() & 3)];
        push_request(&mut stream, opcode, &mut next);
    }
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
                    // More logins, in place of unknown opcodes.
                    0x26 | 0x27 => 0x21,
                    opcode => opcode,
                };
                push_request(&mut stream, opcode, &mut next);
                for (at, byte) in changes.drain(..) {
                    stream[start + at] = byte;
                }
            }
        }
    }
    (clients, stream)
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
        0x21 | 0x22 => MECHANISMS[usize::from(choice) % MECHANISMS.len()],
        _ => KEYS[usize::from(choice) % KEYS.len()],
    };
    let message = match opcode {
        0x21 | 0x22 => MESSAGES[usize::from(choice >> 3) % MESSAGES.len()],
        _ => b"",
    };
    let value_len = if is_store {
        LENGTHS[usize::from(choice >> 3) % LENGTHS.len()]
    } else {
        message.len()
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
    stream.extend_from_slice(message);
    stream.resize(stream.len() + value_len - message.len(), b'0' + (small & 1));
}

/// Sends `stream` to a session. Checks that the answers are whole, and that only what needs no user
/// succeeds before a login. Returns whether a client has logged in.
fn play_and_check(clients: Clients, stream: &[u8]) -> bool {
    let shared = server(clients, 1);
    let before = shared.cache().stats();
    let answers = play_on(&shared, stream, &[], usize::MAX);
    let (mut may_use, mut has_logged_in) = (clients == Clients::All, false);
    let mut rest = &answers[..];
    while !rest.is_empty() {
        let head = rest.get(..HEADER_BYTES).expect("a whole header");
        let body = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let key_len = u16::from_be_bytes([head[2], head[3]]);
        assert_eq!(head[0], 0x81, "{}", rest.escape_ascii());
        assert!(usize::from(key_len) + usize::from(head[4]) <= body);
        let answer = rest;
        rest = rest.get(HEADER_BYTES + body..).expect("a whole body");
        match (head[1], u16::from_be_bytes([head[6], head[7]])) {
            (0x21 | 0x22, 0) => (may_use, has_logged_in) = (true, true),
            // A failed login, or one that needs another step.
            (0x21 | 0x22, 0x20 | 0x21) => may_use = false,
            (0x0b | 0x20..=0x22, _) => {}
            (_, 0x20) => assert!(!may_use && rest.is_empty(), "{}", answer.escape_ascii()),
            // The lengths in a header are checked first.
            (_, 0x04 | 0x81) => assert!(may_use || rest.is_empty(), "{}", answer.escape_ascii()),
            _ => assert!(may_use, "{}", answer.escape_ascii()),
        }
    }
    let can_log_in = clients == Clients::OneUser && memmem::find(stream, LOGIN).is_some();
    assert!(can_log_in || !has_logged_in, "without the password");
    if clients == Clients::OneUser && !has_logged_in {
        let counted = shared.session_stats();
        let (auth_cmds, auth_errors) = (counted.auth_cmds, counted.auth_errors);
        let expected = SessionStats {
            auth_cmds,
            auth_errors,
            ..SessionStats::default()
        };
        assert_eq!((counted, auth_cmds), (expected, auth_errors));
        assert_eq!(shared.cache().stats(), before, "the cache is as it was");
    }
    has_logged_in
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
                compare(Clients::All, &[cut, 0], &request[..len]);
            }
        }
    }

    #[test]
    fn a_login_is_answered_the_same_however_it_is_split() {
        // The instructions' choices: mechanism and message.
        let (right, none, wrong, long) = (0, 6 << 3, 4 << 3, 7 << 3);
        for (logins, succeeds) in [
            (&[0x21, right][..], true),
            (&[0x21, none, 0x22, right], true),
            (&[0x21, wrong, 0x21, right], true),
            (&[0x21, long, 0x21, right], true),
            (&[0x21, right, 0x21, wrong], true),
            (&[0x22, right], false),
            (&[0x21, none, 0x21, wrong, 0x22, right], false),
            (&[0x21, right | 7], false),
            (&[0x0a, 0, 0x21, right], false),
        ] {
            let mut bytes = vec![1];
            for request in logins.chunks(2) {
                bytes.extend([request[0], request[1], 0, 0]);
            }
            // A `set`, then `noop`.
            bytes.extend([0x01, 2 << 3, 0, 0, 0x0a, 0, 0, 0]);
            let (clients, stream) = requests(&bytes);
            assert_eq!(clients, Clients::OneUser);
            assert_eq!(play_and_check(clients, &stream), succeeds, "{logins:x?}");
            for cut in 0..8 {
                compare(clients, &[cut, 0], &stream);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(250))]

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
