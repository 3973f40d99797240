//! The bodies of the fuzz targets: every parser of bytes that a peer has sent.

use std::collections::VecDeque;

use crate::callbacks::Receive;
use crate::channel::{Channels, Header, MESSAGE_BYTES_MAX, WINDOW_MAX};
use crate::hello::{Hello, HelloAnswer, Token};

/// Parses `bytes` as hellos and as their answers, all at once and in every shorter piece. What was
/// parsed is composed again.
///
/// # Panics
/// If a longer piece changes a result, or if what was composed differs.
pub fn fuzz_hello(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(10_000)];
    let token = Token::new(b"sixteen bytes ok".to_vec()).expect("a valid length");
    for token in [None, Some(&token)] {
        let whole = Hello::parse(bytes, token);
        let mut is_over = false;
        for end in pieces(bytes.len()) {
            let piece = Hello::parse(&bytes[..end], token);
            if is_over {
                // A hello is followed by nothing, so only an error can come after it.
                assert!(piece.is_err(), "{end}");
            }
            is_over |= !matches!(piece, Ok(None));
            assert!(!is_over || whole.is_err() || end == bytes.len(), "{end}");
        }
        if let Ok(Some(hello)) = whole {
            let composed = hello.to_bytes(token);
            // A server without a token ignores the client's.
            assert!(token.is_none() || composed == bytes);
            assert!(composed.len() <= bytes.len() && hello.window > 0);
            assert!(composed.ends_with(&hello.address));
        }
    }
    let whole = HelloAnswer::parse(bytes);
    for end in pieces(bytes.len()) {
        match HelloAnswer::parse(&bytes[..end]) {
            Ok(None) => {}
            Ok(Some((hello, len_bytes))) => {
                assert!(len_bytes <= end);
                assert_eq!(HelloAnswer(Ok(hello)).to_bytes(), bytes[..len_bytes]);
                assert!(matches!(&whole, Ok(Some((_, len))) if *len == len_bytes));
            }
            Err(error) => assert_eq!(whole, Err(error)),
        }
    }
}

/// Some lengths of pieces: all of short bytes, and those around the limits of fields.
fn pieces(len: usize) -> impl Iterator<Item = usize> {
    (0..=len).filter(move |at| *at < 320 || at % 509 == 0 || *at + 2 > len)
}

/// What a plain receiver would know about a channel.
struct Expected {
    bytes: VecDeque<u8>,
    /// The unread bytes of each message.
    messages: VecDeque<usize>,
    received: u32,
    /// How many received messages the peer knows to be consumed.
    reported: u32,
    sent: u32,
    consumed_by_peer: u32,
    has_failed: bool,
}

impl Expected {
    /// Whether the message breaks a rule. If it does not, it is received.
    fn accept(&mut self, header: Header, data: Option<&[u8]>, window: usize) -> bool {
        let Some(data) = data else { return false };
        let newly = header.consumed.wrapping_sub(self.consumed_by_peer);
        let in_flight = self.sent.wrapping_sub(self.consumed_by_peer);
        if header.number != self.received || newly > in_flight {
            return false;
        }
        self.consumed_by_peer = header.consumed;
        if data.is_empty() {
            return true;
        }
        let unreported = self.received.wrapping_sub(self.reported) as usize;
        if data.len() > MESSAGE_BYTES_MAX || unreported >= window {
            return false;
        }
        self.received = self.received.wrapping_add(1);
        self.messages.push_back(data.len());
        self.bytes.extend(data);
        true
    }

    /// How many messages were read in full.
    fn consumed(&self) -> u32 {
        self.received.wrapping_sub(self.messages.len() as u32)
    }

    fn read(&mut self, count: usize) -> Vec<u8> {
        let count = count.min(self.bytes.len());
        let mut left = count;
        while let Some(first) = self.messages.front_mut() {
            let step = left.min(*first);
            *first -= step;
            left -= step;
            if *first > 0 {
                break;
            }
            self.messages.pop_front();
        }
        self.bytes.drain(..count).collect()
    }
}

/// Lets a worker's channels receive the messages that `bytes` describe: some as the rules want
/// them, some with any header and any length. Compares them with a plain receiver.
///
/// # Panics
/// If a channel keeps other bytes than the plain receiver, or more memory than its window allows.
pub fn fuzz_messages(bytes: &[u8]) {
    let mut input = bytes.iter().copied();
    let mut next = || input.next();
    let windows = [0, 1].map(|_| u16::from(next().unwrap_or(1)) % 80);
    let mut channels = Channels::default();
    let open = [0, 1].map(|tag| channels.open(tag, windows[tag]));
    let mut expected = [0, 1].map(|_| Expected {
        bytes: VecDeque::new(),
        messages: VecDeque::new(),
        received: 0,
        reported: 0,
        sent: 0,
        consumed_by_peer: 0,
        has_failed: false,
    });
    for (at, _) in open {
        if let Some(channel) = channels.get_mut(at) {
            channel.connect(0, 0, WINDOW_MAX);
        }
    }
    while let Some(what) = next() {
        let side = usize::from(what & 1);
        let ((at, key), expected) = (open[side], &mut expected[side]);
        let window = usize::from(windows[side].clamp(1, WINDOW_MAX));
        let mut number = || u32::from(next().unwrap_or(0));
        match what >> 1 & 3 {
            // A message of this side.
            0 => {
                let channel = channels.get_mut(at).expect("open");
                // Without data, it only reports what was consumed.
                let has_data = what & 8 == 0;
                if !has_data || channel.credits() > 0 {
                    let header = channel.next_header(has_data);
                    assert_eq!(header.number, expected.sent);
                    assert_eq!(header.consumed, expected.consumed());
                    expected.reported = header.consumed;
                    expected.sent = expected.sent.wrapping_add(u32::from(has_data));
                }
            }
            // A read.
            1 => {
                let mut into = vec![0; (number() << (what >> 4)) as usize % 70_000];
                let count = channels.read(at, &mut into);
                assert_eq!(expected.read(into.len()), into[..count]);
            }
            // A message to it.
            kind => {
                let mut header = Header {
                    key,
                    number: expected.received,
                    consumed: expected.consumed_by_peer,
                };
                if kind == 3 {
                    match what >> 3 & 7 {
                        0 => header.number = header.number.wrapping_add(number() << 4),
                        1 => header.number = header.number.wrapping_sub(number()),
                        2 => header.consumed = header.consumed.wrapping_sub(number()),
                        3 => header.key ^= u64::from(number()) << (what >> 2 & 56),
                        _ => header.consumed = header.consumed.wrapping_add(number()),
                    }
                }
                let len = match what >> 6 {
                    0 => number(),
                    1 => number() * 33,
                    2 => MESSAGE_BYTES_MAX as u32 - (number() & 3),
                    _ => MESSAGE_BYTES_MAX as u32 + (number() & 3) - 1,
                };
                let fill = number() as u8;
                let data: Vec<u8> = (0..len)
                    .map(|at| (at as u8).wrapping_mul(7) ^ fill)
                    .collect();
                let data = (fill != 0xff || kind != 3).then_some(&data[..]);
                let cut = match (kind, fill) {
                    (3, 0..16) => usize::from(fill),
                    _ => 16,
                };
                channels.message(&header.to_bytes()[..cut], data);
                if cut == 16 && header.key == key && !expected.has_failed {
                    expected.has_failed = !expected.accept(header, data, window);
                }
            }
        }
        let channel = channels.get(at).expect("open");
        assert_eq!(channel.failure.is_some(), expected.has_failed);
        assert_eq!(channel.received(), expected.received);
        assert_eq!(channel.has_input(), !expected.bytes.is_empty());
        let in_flight = expected.sent.wrapping_sub(expected.consumed_by_peer);
        assert_eq!(channel.credits(), u32::from(WINDOW_MAX) - in_flight);
        let memory_bytes_max = (2 * window * MESSAGE_BYTES_MAX).max(128 << 10);
        assert!(
            channel.memory_bytes() <= memory_bytes_max,
            "{}",
            channel.memory_bytes()
        );
    }
    for ((at, _), mut expected) in open.into_iter().zip(expected) {
        let mut rest = vec![0; expected.bytes.len() + 1];
        let count = channels.read(at, &mut rest);
        assert_eq!(expected.read(usize::MAX), rest[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without a pattern, the same each time.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    #[test]
    fn hellos_with_changed_bytes_are_parsed_alike_in_pieces() {
        let mut random = Random(7);
        let token = Token::new(b"sixteen bytes ok".to_vec()).expect("a valid length");
        for round in 0..200 {
            let hello = Hello {
                address: vec![random.next() as u8; 1 + random.next() as usize % 300],
                key: random.next(),
                window: random.next() as u16,
            };
            let mut bytes = match round % 4 {
                0 => hello.to_bytes(None),
                1 => hello.to_bytes(Some(&token)),
                2 => HelloAnswer(Ok(hello)).to_bytes(),
                _ => b"ERROR Too many open connections\r\n".to_vec(),
            };
            for _ in 0..random.next() % 3 {
                let at = random.next() as usize % bytes.len().min(40);
                bytes[at] = random.next() as u8;
            }
            fuzz_hello(&bytes);
        }
    }

    #[test]
    fn channels_receive_what_a_plain_receiver_would() {
        let mut random = Random(11);
        for _ in 0..60 {
            let bytes: Vec<u8> = (0..random.next() % 2_000)
                .map(|_| match random.next() % 3 {
                    // Mostly messages that follow the rules, and reads.
                    0 => (random.next() as u8 & 0b1100_0001) | 0b100,
                    1 => (random.next() as u8 & 0b0111_0001) | 0b010,
                    _ => random.next() as u8,
                })
                .collect();
            fuzz_messages(&bytes);
        }
    }
}
