//! Requests and replies in RESP.
//!
//! ```text
//!  form        request of two keys                                   reply if both are found
//!  resp_get    *2\r\n$3\r\nGET\r\n$16\r\nkey:…1\r\n *2\r\n…          $64\r\n<value>\r\n $64\r\n<value>\r\n
//!  resp_mget   *3\r\n$4\r\nMGET\r\n$16\r\nkey:…1\r\n$16\r\nkey:…2\r\n   *2\r\n $64\r\n<value>\r\n $64\r\n<value>\r\n
//!  resp_set    *3\r\n$3\r\nSET\r\n$16\r\nkey:…1\r\n$64\r\n<value>\r\n *3\r\n…   +OK\r\n +OK\r\n
//! ```
//!
//! The reply has no end of its own, and a missing key is answered with `$-1\r\n`. So a full reply
//! is recognised by the length at the place of each value.

use super::data::{Items, KEY_BYTES};
use super::form::Form;
use super::reply::Reply;
use std::io::Write;

const STORED: &[u8] = b"+OK\r\n";

fn push_length(marker: char, len: usize, out: &mut Vec<u8>) {
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{marker}{len}\r\n");
}

fn push_key(items: &Items, number: u64, out: &mut Vec<u8>) {
    push_length('$', KEY_BYTES, out);
    items.push_key(number, out);
    out.extend_from_slice(b"\r\n");
}

fn push_value(items: &Items, number: u64, out: &mut Vec<u8>) {
    push_length('$', items.value_bytes, out);
    items.push_value(number, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends a request for `numbers`.
pub fn push_request(form: Form, items: &Items, numbers: &[u64], out: &mut Vec<u8>) {
    if form == Form::RespMget {
        push_length('*', 1 + numbers.len(), out);
        out.extend_from_slice(b"$4\r\nMGET\r\n");
    }
    for &number in numbers {
        match form {
            Form::RespGet => out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n"),
            Form::RespSet => out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n"),
            _ => {}
        }
        push_key(items, number, out);
        if form == Form::RespSet {
            push_value(items, number, out);
        }
    }
}

/// Appends the reply to a request for `numbers`, all of which are found.
pub fn push_reply(form: Form, items: &Items, numbers: &[u64], out: &mut Vec<u8>) {
    if form == Form::RespMget {
        push_length('*', numbers.len(), out);
    }
    for &number in numbers {
        match form {
            Form::RespSet => out.extend_from_slice(STORED),
            _ => push_value(items, number, out),
        }
    }
}

fn digits(number: usize) -> usize {
    number.max(1).ilog10() as usize + 1
}

/// Bytes before the first value.
fn start_bytes(form: Form, keys: usize) -> usize {
    match form {
        Form::RespMget => "*\r\n".len() + digits(keys),
        _ => 0,
    }
}

/// Bytes of one key's part.
fn part_bytes(form: Form, items: &Items) -> usize {
    match form {
        Form::RespSet => STORED.len(),
        _ => "$\r\n\r\n".len() + digits(items.value_bytes) + items.value_bytes,
    }
}

/// Bytes of that reply.
pub fn reply_bytes(form: Form, items: &Items, keys: usize) -> usize {
    start_bytes(form, keys) + keys * part_bytes(form, items)
}

/// The bytes with which the part of each found key begins.
pub fn part_start(form: Form, items: &Items) -> Vec<u8> {
    let mut start = Vec::new();
    match form {
        Form::RespSet => start.extend_from_slice(STORED),
        _ => push_length('$', items.value_bytes, &mut start),
    }
    start
}

/// Whether bytes of that length are the reply to a request whose keys are all found, as far as
/// lengths show. `part_start` is that of the form and the items.
pub fn is_full(form: Form, items: &Items, keys: usize, part_start: &[u8], reply: &[u8]) -> bool {
    let start = start_bytes(form, keys).min(reply.len());
    let mut parts = reply[start..].chunks(part_bytes(form, items));
    parts.all(|part| part.starts_with(part_start)) && reply.ends_with(b"\r\n")
}

/// Looks for the reply to a request of `keys` keys at the beginning of `received`.
pub fn scan(form: Form, keys: usize, received: &[u8]) -> Reply {
    let (mut at, mut answered, mut hits) = (0, 0, 0);
    let mut has_started = form != Form::RespMget;
    while answered < keys {
        let rest = &received[at..];
        let Some(end) = memchr::memchr(b'\n', rest) else {
            return Reply::Partial;
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        at += end + 1;
        let fault = || Reply::Fault(String::from_utf8_lossy(line).into_owned());
        let number = |marker: u8| -> Option<usize> {
            let text = line.strip_prefix(&[marker])?;
            std::str::from_utf8(text).ok()?.parse().ok()
        };
        if !has_started {
            if number(b'*') != Some(keys) {
                return fault();
            }
            has_started = true;
            continue;
        }
        answered += 1;
        match form {
            Form::RespSet if line == b"+OK" => hits += 1,
            Form::RespSet => return fault(),
            // Missing, in either version of the protocol.
            _ if line == b"$-1" || line == b"_" => {}
            _ => {
                let after = number(b'$').and_then(|bytes| at.checked_add(bytes)?.checked_add(2));
                let Some(after) = after else {
                    return fault();
                };
                if after > received.len() {
                    return Reply::Partial;
                }
                at = after;
                hits += 1;
            }
        }
    }
    Reply::Whole { bytes: at, hits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORMS: [Form; 3] = [Form::RespGet, Form::RespMget, Form::RespSet];

    #[test]
    fn requests_and_replies_are_the_protocols() {
        let items = Items {
            count: 10,
            value_bytes: 0,
        };
        let text = |push: fn(Form, &Items, &[u64], &mut Vec<u8>), form| {
            let mut out = Vec::new();
            push(form, &items, &[1, 2], &mut out);
            String::from_utf8(out).unwrap()
        };
        let (a, b) = ("$16\r\nkey:000000000001\r\n", "$16\r\nkey:000000000002\r\n");
        assert_eq!(
            FORMS.map(|form| text(push_request, form)),
            [
                format!("*2\r\n$3\r\nGET\r\n{a}*2\r\n$3\r\nGET\r\n{b}"),
                format!("*3\r\n$4\r\nMGET\r\n{a}{b}"),
                format!("*3\r\n$3\r\nSET\r\n{a}$0\r\n\r\n*3\r\n$3\r\nSET\r\n{b}$0\r\n\r\n"),
            ]
        );
        assert_eq!(
            FORMS.map(|form| text(push_reply, form)),
            [
                "$0\r\n\r\n$0\r\n\r\n",
                "*2\r\n$0\r\n\r\n$0\r\n\r\n",
                "+OK\r\n+OK\r\n"
            ]
        );
    }

    #[test]
    fn a_miss_is_counted_and_the_next_reply_is_left() {
        let got = b"$1\r\nx\r\n$-1\r\n$1\r\ny\r\n";
        let whole = |bytes, hits| Reply::Whole { bytes, hits };
        assert_eq!(scan(Form::RespGet, 2, got), whole(12, 1));
        assert_eq!(scan(Form::RespGet, 3, got), whole(19, 2));
        assert_eq!(scan(Form::RespMget, 2, b"*2\r\n_\r\n$-1\r\n"), whole(12, 0));
        // Misses and a part of the next reply may be as long as a full one.
        let items = Items {
            count: 10,
            value_bytes: 13,
        };
        let short = b"$-1\r\n$-1\r\n$-1\r\n$-1\r\n";
        let full = reply_bytes(Form::RespGet, &items, 1);
        assert_eq!(full, short.len());
        let start = part_start(Form::RespGet, &items);
        assert!(!is_full(Form::RespGet, &items, 1, &start, short));
    }

    #[test]
    fn errors_name_their_line() {
        for (form, line) in [
            (Form::RespGet, "-ERR unknown command"),
            (Form::RespGet, "$x"),
            (Form::RespGet, "$18446744073709551615"),
            (Form::RespMget, "*3"),
            (Form::RespMget, "$3"),
            (Form::RespSet, "-OOM command not allowed"),
        ] {
            let received = format!("{line}\r\n");
            assert_eq!(
                scan(form, 2, received.as_bytes()),
                Reply::Fault(line.to_owned())
            );
        }
    }

    proptest! {
        #[test]
        fn every_cut_of_a_reply_is_partial_and_the_whole_is_whole(
            value_bytes in 0..120usize,
            numbers in proptest::collection::vec(0..1000u64, 1..12),
            form in proptest::sample::select(&FORMS[..]),
        ) {
            let items = Items { count: 1000, value_bytes };
            let mut reply = Vec::new();
            push_reply(form, &items, &numbers, &mut reply);
            let (bytes, hits) = (reply.len(), numbers.len());
            prop_assert_eq!(reply_bytes(form, &items, hits), bytes);
            prop_assert!(is_full(form, &items, hits, &part_start(form, &items), &reply));
            for cut in 0..bytes {
                prop_assert_eq!(scan(form, hits, &reply[..cut]), Reply::Partial);
            }
            reply.extend_from_slice(b"more\r\n");
            prop_assert_eq!(scan(form, hits, &reply), Reply::Whole { bytes, hits });
        }

        #[test]
        fn parsing_arbitrary_bytes_as_a_reply_never_panics(
            received in proptest::collection::vec(any::<u8>(), 0..200),
            form in proptest::sample::select(&FORMS[..]),
        ) {
            if let Reply::Whole { bytes, hits } = scan(form, 4, &received) {
                prop_assert!(bytes <= received.len() && hits <= 4);
            }
        }
    }
}
