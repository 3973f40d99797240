//! Multi-get frames, as docs/operate/multi-get.md describes them, for requests of fixed lengths.
//!
//! ```text
//!  request    F6 01 01 00  body_bytes id received count │ 16 16 … │ key:…1 key:…2
//!  reply      F7 01 01 last body_bytes id first count   │ lengths │ flags │ <value> <value>     once per part
//! ```
//!
//! The number of answers received is written just before a request is sent ([`set_received`]).

use super::data::{Items, KEY_BYTES};
use super::reply::Reply;

/// Switches frames on.
pub const ENABLE: &[u8] = b"multi_get 1\r\n";
/// The answer to it.
pub const ENABLED: &[u8] = b"MULTI_GET 1 64\r\n";

/// Maximum number of requests in flight on a connection.
pub const DEPTH_MAX: u16 = 64;

const HEADER_BYTES: usize = 16;
const REQUEST_BYTES_MAX: usize = 16 << 10;
const PART_KEYS_MAX: usize = 256;
const PART_BYTES: usize = 16 << 10;
/// Bytes of the length and the flags of a value.
const ENTRY_BYTES: usize = 8;
const RECEIVED_AT: usize = 12;

/// Maximum number of keys of a request.
pub const KEYS_MAX: usize = (REQUEST_BYTES_MAX - HEADER_BYTES) / (1 + KEY_BYTES);

fn push_header(start: [u8; 4], body_bytes: usize, id: u32, end: [u16; 2], out: &mut Vec<u8>) {
    out.extend_from_slice(&start);
    out.extend_from_slice(&(body_bytes as u32).to_le_bytes());
    out.extend_from_slice(&id.to_le_bytes());
    for number in end {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// The id of a request for these items.
fn id_of(numbers: &[u64]) -> u32 {
    numbers.first().map_or(0, |number| *number as u32)
}

/// Appends a request for `numbers` that asks for flags, as `get` does.
pub fn push_request(items: &Items, numbers: &[u64], out: &mut Vec<u8>) {
    let body_bytes = numbers.len() * (1 + KEY_BYTES);
    let end = [0, numbers.len() as u16];
    push_header([0xf6, 1, 1, 0], body_bytes, id_of(numbers), end, out);
    out.resize(out.len() + numbers.len(), KEY_BYTES as u8);
    for number in numbers {
        items.push_key(*number, out);
    }
}

/// Writes how many answers were received into the request at the front of `bytes`.
pub fn set_received(bytes: &mut [u8], received: u16) {
    bytes[RECEIVED_AT..RECEIVED_AT + 2].copy_from_slice(&received.to_le_bytes());
}

/// The number of keys in each part of a reply with all values, except the last part.
fn part_keys(items: &Items) -> usize {
    match items.value_bytes {
        0 => PART_KEYS_MAX,
        bytes => PART_KEYS_MAX.min(PART_BYTES.div_ceil(bytes)),
    }
}

/// Appends the reply to a request for `numbers`, all of which are found.
pub fn push_reply(items: &Items, numbers: &[u64], out: &mut Vec<u8>) {
    let mut first = 0;
    for part in numbers.chunks(part_keys(items)) {
        let is_last = first + part.len() == numbers.len();
        let body_bytes = part.len() * (ENTRY_BYTES + items.value_bytes);
        let end = [first as u16, part.len() as u16];
        let start = [0xf7, 1, 1, is_last.into()];
        push_header(start, body_bytes, id_of(numbers), end, out);
        for _ in part {
            out.extend_from_slice(&(items.value_bytes as u32).to_le_bytes());
        }
        out.resize(out.len() + 4 * part.len(), 0);
        for number in part {
            items.push_value(*number, out);
        }
        first += part.len();
    }
}

/// Bytes of that reply.
pub fn reply_bytes(items: &Items, keys: usize) -> usize {
    keys * (ENTRY_BYTES + items.value_bytes) + keys.div_ceil(part_keys(items)) * HEADER_BYTES
}

/// Looks for a reply at the beginning of `received`.
pub fn scan(received: &[u8]) -> Reply {
    let (mut at, mut hits) = (0, 0);
    loop {
        let Some((header, rest)) = received[at..].split_first_chunk::<HEADER_BYTES>() else {
            return Reply::Partial;
        };
        let [magic, kind, _, last, a, b, c, d, ..] = *header;
        let body_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        if magic != 0xf7 || kind > 2 {
            return Reply::Fault(header.escape_ascii().to_string());
        }
        let Some(body) = rest.get(..body_bytes) else {
            return Reply::Partial;
        };
        let count = usize::from(u16::from_le_bytes([header[14], header[15]]));
        if kind != 1 || body_bytes < ENTRY_BYTES * count {
            return Reply::Fault(String::from_utf8_lossy(body).into_owned());
        }
        let lengths = body[..4 * count].chunks_exact(4);
        hits += lengths.filter(|bytes| **bytes != [0xff; 4]).count();
        at += HEADER_BYTES + body_bytes;
        if last == 1 {
            return Reply::Whole { bytes: at, hits };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_any_size_has_its_length_and_is_whole_only_at_its_end() {
        for value_bytes in [0, 3, 64, 4096, 20_000] {
            let items = Items {
                count: 1000,
                value_bytes,
            };
            for keys in [1, 4, 5, 256, 257, 700] {
                let numbers: Vec<u64> = (0..keys as u64).collect();
                let mut reply = Vec::new();
                push_reply(&items, &numbers, &mut reply);
                let bytes = reply.len();
                assert_eq!(reply_bytes(&items, keys), bytes);
                assert_eq!(scan(&reply[..bytes - 1]), Reply::Partial);
                reply.extend(b"more");
                assert_eq!(scan(&reply), Reply::Whole { bytes, hits: keys });
            }
        }
    }

    #[test]
    fn misses_and_errors_are_recognised() {
        let mut miss = Vec::new();
        push_header([0xf7, 1, 1, 1], 8, 0, [0, 1], &mut miss);
        miss.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(scan(&miss), Reply::Whole { bytes: 24, hits: 0 });
        let mut error = Vec::new();
        push_header([0xf7, 2, 0, 1], 2, 0, [6, 0], &mut error);
        error.extend(b"no");
        assert_eq!(scan(&error), Reply::Fault("no".to_owned()));
        assert!(matches!(scan(b"SERVER_ERROR busy\r\n"), Reply::Fault(_)));
    }
}
