//! Multi-get frames for requests of fixed lengths. `forerun_wire` has their format.
//!
//! ```text
//!  request    header │ 16 16 … │ key:…1 key:…2
//!  reply      header │ lengths │ flags │ <value> <value>     once per part
//! ```
//!
//! The number of answers received is written just before a request is sent ([`set_received`]).

use forerun_wire::multi_get::{
    AnswerHeader, AnswerKind, CREDITS, Form, HEADER_BYTES, PART_BYTES, PART_KEYS_MAX, PartArrays,
    REQUEST_BYTES_MAX, RequestHeader, RequestOptions,
};
pub use forerun_wire::multi_get::{ENABLE, ENABLED, set_received};

use super::data::{Items, KEY_BYTES};
use super::reply::Reply;

/// Maximum number of requests in flight on a connection.
pub const DEPTH_MAX: u16 = CREDITS;

/// Requests ask for flags, as `get` does.
const OPTIONS: RequestOptions = RequestOptions {
    with_flags: true,
    with_cas: false,
};
/// Bytes of the length and the flags of a value.
const ENTRY_BYTES: usize = 8;

/// Maximum number of keys of a request.
pub const KEYS_MAX: usize = (REQUEST_BYTES_MAX - HEADER_BYTES) / (1 + KEY_BYTES);

/// The id of a request for these items.
fn id_of(numbers: &[u64]) -> u32 {
    numbers.first().map_or(0, |number| *number as u32)
}

/// Appends a request for `numbers` that asks for flags, as `get` does.
pub fn push_request(items: &Items, numbers: &[u64], out: &mut Vec<u8>) {
    let body_bytes = numbers.len() * (1 + KEY_BYTES);
    let header = RequestHeader {
        form: Form::Lengths as u8,
        options: OPTIONS.byte(),
        reserved: 0,
        body_bytes: body_bytes as u32,
        id: id_of(numbers),
        received: 0,
        count: numbers.len() as u16,
    };
    out.extend_from_slice(&header.bytes());
    out.resize(out.len() + numbers.len(), KEY_BYTES as u8);
    for number in numbers {
        items.push_key(*number, out);
    }
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
        let header = AnswerHeader {
            kind: AnswerKind::Values,
            options: OPTIONS.byte(),
            last: is_last.into(),
            body_bytes: body_bytes as u32,
            id: id_of(numbers),
            first: first as u16,
            count: part.len() as u16,
        };
        out.extend_from_slice(&header.bytes());
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
        let Some((start, rest)) = received[at..].split_first_chunk() else {
            return Reply::Partial;
        };
        let Some(header) = AnswerHeader::read(start) else {
            return Reply::Fault(start.escape_ascii().to_string());
        };
        let body_bytes = header.body_bytes as usize;
        let Some(body) = rest.get(..body_bytes) else {
            return Reply::Partial;
        };
        let count = usize::from(header.count);
        let arrays = PartArrays::read(body, count, OPTIONS);
        let (Some(arrays), AnswerKind::Values) = (arrays, header.kind) else {
            return Reply::Fault(String::from_utf8_lossy(body).into_owned());
        };
        hits += (0..count).filter(|&at| arrays.entry(at).is_some()).count();
        at += HEADER_BYTES + body_bytes;
        if header.last == 1 {
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
        let header = AnswerHeader {
            kind: AnswerKind::Values,
            options: OPTIONS.byte(),
            last: 1,
            body_bytes: 8,
            id: 0,
            first: 0,
            count: 1,
        };
        let mut miss = header.bytes().to_vec();
        miss.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(scan(&miss), Reply::Whole { bytes: 24, hits: 0 });
        let header = AnswerHeader {
            kind: AnswerKind::Error,
            options: 0,
            body_bytes: 2,
            first: 6,
            count: 0,
            ..header
        };
        let mut error = header.bytes().to_vec();
        error.extend(b"no");
        assert_eq!(scan(&error), Reply::Fault("no".to_owned()));
        assert!(matches!(scan(b"SERVER_ERROR busy\r\n"), Reply::Fault(_)));
    }
}
