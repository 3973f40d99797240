//! Parses replies in received bytes: finds where a reply ends and how many keys it found, or
//! recognises an error.
//!
//! ```text
//!  what came     VALUE key:…1 0 64\r\n<value>\r\n VALUE key:…7 0 64\r\n<value>\r\n END\r\n  VALUE …
//!                                                                                  ^ Whole { bytes, hits: 2 }
//! ```
//!
//! `memchr` finds the lines, and values are skipped by their lengths. Only replies with a missing
//! key are read in this way; the client recognises a full reply by its length and its last bytes.

use super::form::Form;

/// The result of parsing the bytes at the beginning of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A part of a reply.
    Partial,
    /// A reply.
    Whole {
        /// Its length.
        bytes: usize,
        /// Keys found, or stored.
        hits: usize,
    },
    /// A line that is not a valid answer to such a request.
    Fault(String),
}

/// Looks for the reply to a request of `keys` keys at the beginning of `received`.
pub fn scan(form: Form, keys: usize, received: &[u8]) -> Reply {
    let mut at = 0;
    let mut hits = 0;
    loop {
        let rest = &received[at..];
        let Some(end) = memchr::memchr(b'\n', rest) else {
            return Reply::Partial;
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        at += end + 1;
        let value_bytes = match form {
            Form::Set if line == b"STORED" => {
                hits += 1;
                if hits == keys {
                    return Reply::Whole { bytes: at, hits };
                }
                continue;
            }
            Form::Get if line == b"END" => return Reply::Whole { bytes: at, hits },
            Form::Mg if line == b"MN" => return Reply::Whole { bytes: at, hits },
            Form::Get if line.starts_with(b"VALUE ") => number(line.split(|b| *b == b' ').nth(3)),
            Form::Mg if line.starts_with(b"VA ") => number(line.split(|b| *b == b' ').nth(1)),
            _ => None,
        };
        let after = value_bytes.and_then(|bytes| at.checked_add(bytes)?.checked_add(2));
        let (Some(after), true) = (after, hits < keys) else {
            return Reply::Fault(String::from_utf8_lossy(line).into_owned());
        };
        if after > received.len() {
            return Reply::Partial;
        }
        at = after;
        hits += 1;
    }
}

fn number(text: Option<&[u8]>) -> Option<usize> {
    std::str::from_utf8(text?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::data::Items;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_miss_is_skipped_and_the_next_reply_is_left() {
        let got = b"VALUE k 0 4\r\nEND\r\r\nEND\r\nVALUE k";
        assert_eq!(scan(Form::Get, 9, got), Reply::Whole { bytes: 24, hits: 1 });
        assert_eq!(
            scan(Form::Get, 1, b"END\r\n"),
            Reply::Whole { bytes: 5, hits: 0 }
        );
        assert_eq!(
            scan(Form::Mg, 2, b"VA 2 kx\r\nMN\r\nMN\r\n"),
            Reply::Whole { bytes: 17, hits: 1 }
        );
    }

    #[test]
    fn errors_name_their_line() {
        for (form, line) in [
            (Form::Get, "SERVER_ERROR out of memory"),
            (Form::Get, "VALUE k 0 many"),
            (Form::Get, "VALUE k 0 18446744073709551615"),
            (Form::Mg, "EN"),
            (Form::Mg, "CLIENT_ERROR bad token"),
            (Form::Set, "NOT_STORED"),
            (Form::Set, "SERVER_ERROR out of memory storing object"),
        ] {
            let received = format!("{line}\r\n");
            assert_eq!(
                scan(form, 3, received.as_bytes()),
                Reply::Fault(line.to_owned())
            );
        }
        let unasked = b"VALUE a 0 0\r\n\r\nVALUE b 0 0\r\n\r\nEND\r\n";
        assert!(matches!(scan(Form::Get, 1, unasked), Reply::Fault(_)));
    }

    proptest! {
        #[test]
        fn every_cut_of_a_reply_is_partial_and_the_whole_is_whole(
            value_bytes in 0..80usize,
            numbers in proptest::collection::vec(0..1000u64, 1..6),
            form in prop_oneof![Just(Form::Get), Just(Form::Mg), Just(Form::Set)],
        ) {
            let items = Items { count: 1000, value_bytes };
            let mut reply = Vec::new();
            form.push_reply(&items, &numbers, &mut reply);
            let (bytes, hits) = (reply.len(), numbers.len());
            for cut in 0..bytes {
                prop_assert_eq!(scan(form, hits, &reply[..cut]), Reply::Partial);
            }
            reply.extend_from_slice(b"more\r\n");
            prop_assert_eq!(scan(form, hits, &reply), Reply::Whole { bytes, hits });
        }

        #[test]
        fn parsing_arbitrary_bytes_as_a_reply_never_panics(
            received in proptest::collection::vec(any::<u8>(), 0..200),
            form in prop_oneof![Just(Form::Get), Just(Form::Mg), Just(Form::Set)],
        ) {
            if let Reply::Whole { bytes, hits } = scan(form, 4, &received) {
                prop_assert!(bytes <= received.len() && hits <= 4);
            }
        }
    }
}
