//! Parses one reply of a server, in either text protocol, from the bytes received so far.
//!
//! ```text
//!   VALUE key flags bytes [cas]\r\n data \r\n        END\r\n        STORED\r\n        17\r\n
//!   VA bytes flag*\r\n data \r\n                     HD flag*\r\n   EN\r\n            MN\r\n
//!   ERROR\r\n   CLIENT_ERROR text\r\n   SERVER_ERROR text\r\n                MULTI_GET 1 credits\r\n
//! ```
//!
//! `frame_reply.rs` reads the answers to multi-get frames.

use memchr::memchr;

/// The longest line that is read, including its line end.
pub(crate) const LINE_BYTES_MAX: usize = 2048;
/// A greater length cannot be the length of a value.
const VALUE_BYTES_MAX: u64 = 1 << 40;

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    /// `VALUE`.
    Value {
        key: &'a [u8],
        flags: u32,
        cas: Option<u64>,
        data: &'a [u8],
    },
    /// `VA`, with the flags that follow the length.
    MetaValue { flags: &'a [u8], data: &'a [u8] },
    /// Another line of the meta protocol, with its flags.
    Meta { code: MetaCode, flags: &'a [u8] },
    /// A line of the classic protocol.
    Line(Line),
    /// The answer to `incr` and `decr`.
    Number(u64),
    /// The answer to `multi_get 1`: the connection accepts frames.
    MultiGet { credits: u16 },
    /// The header of a part of an answer to a frame. Its values follow, then `PartEnd`.
    Part(PartHead),
    /// A value of the part, at this position in it.
    Found {
        at: usize,
        flags: u32,
        cas: Option<u64>,
        data: &'a [u8],
    },
    /// The end of a part. Its other keys were not found.
    PartEnd { is_last: bool },
    /// The server refuses a frame.
    FrameError { code: u16, text: &'a [u8] },
    /// An error, as sent.
    Error { kind: ErrorKind, line: &'a [u8] },
}

/// The header of a part of an answer to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartHead {
    pub(crate) id: u32,
    /// The position in the request of the part's first key.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Whether it is the last part of the answer.
    pub(crate) is_last: bool,
    pub(crate) with_cas: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaCode {
    Done,
    NotStored,
    Exists,
    NotFound,
    Miss,
    NoOp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    End,
    Ok,
    Stored,
    NotStored,
    Exists,
    NotFound,
    Deleted,
    Touched,
}

/// The line that a server sends before it closes a new connection, because it has too many.
pub(crate) const TOO_MANY_CONNECTIONS: &[u8] = b"ERROR Too many open connections";

/// Whether the connection can be used after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// `SERVER_ERROR`: the request was understood.
    Server,
    /// `ERROR`, `CLIENT_ERROR`: a data block may have been read as commands.
    Protocol,
}

/// The result of parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// The reply is not complete. It has at least `needed` bytes.
    Partial { needed: usize },
    /// A reply of `consumed` bytes.
    Complete { reply: Reply<'a>, consumed: usize },
    /// The part before the value of a reply whose value is longer than the limit. It has `consumed`
    /// bytes, and `skip` bytes follow: the value, and its line end if it has one. `reply` has no
    /// data.
    Oversized {
        reply: Reply<'a>,
        consumed: usize,
        value_bytes: u64,
        skip: u64,
    },
}

/// Bytes that are not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoReply(pub(crate) &'static str);

/// Parses the reply at the front of `bytes`.
pub(crate) fn parse(bytes: &[u8], max_value_bytes: usize) -> Result<Parsed<'_>, NoReply> {
    let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(newline) = memchr(b'\n', window) else {
        return match window.len() {
            LINE_BYTES_MAX => Err(NoReply("a line without an end")),
            len => Ok(Parsed::Partial { needed: len + 1 }),
        };
    };
    let Some(line) = bytes[..newline].strip_suffix(b"\r") else {
        return Err(NoReply("a line without a carriage return"));
    };
    let consumed = newline + 1;
    let (word, rest) = split_word(line);
    let complete = |reply| Ok(Parsed::Complete { reply, consumed });
    let meta = |code| complete(Reply::Meta { code, flags: rest });
    let classic = |line| {
        if rest.is_empty() {
            complete(Reply::Line(line))
        } else {
            Err(NoReply("more words than expected"))
        }
    };
    match word {
        b"VALUE" => {
            let (key, rest) = split_word(rest);
            let (flags, rest) = split_word(rest);
            let (length, rest) = split_word(rest);
            let (cas, rest) = split_word(rest);
            let number = |text| number(text).ok_or(NoReply("not a number"));
            let flags = number(flags)?;
            let flags = u32::try_from(flags).map_err(|_| NoReply("flags beyond 32 bits"))?;
            let cas = match cas {
                b"" => None,
                cas => Some(number(cas)?),
            };
            if key.is_empty() || !rest.is_empty() {
                return Err(NoReply("not the words of VALUE"));
            }
            let reply = |data| Reply::Value {
                key,
                flags,
                cas,
                data,
            };
            with_data(bytes, consumed, number(length)?, max_value_bytes, reply)
        }
        b"VA" => {
            let (length, flags) = split_word(rest);
            let length = number(length).ok_or(NoReply("not a number"))?;
            let reply = |data| Reply::MetaValue { flags, data };
            with_data(bytes, consumed, length, max_value_bytes, reply)
        }
        b"HD" => meta(MetaCode::Done),
        b"NS" => meta(MetaCode::NotStored),
        b"EX" => meta(MetaCode::Exists),
        b"NF" => meta(MetaCode::NotFound),
        b"EN" => meta(MetaCode::Miss),
        b"MN" => meta(MetaCode::NoOp),
        b"MULTI_GET" => match split_word(rest) {
            (b"1", credits) => match number(credits).map(u16::try_from) {
                Some(Ok(credits @ 1..)) => complete(Reply::MultiGet { credits }),
                _ => Err(NoReply("not a number of credits")),
            },
            _ => Err(NoReply("another version of multi_get")),
        },
        b"END" => classic(Line::End),
        b"OK" => classic(Line::Ok),
        b"STORED" => classic(Line::Stored),
        b"NOT_STORED" => classic(Line::NotStored),
        b"EXISTS" => classic(Line::Exists),
        b"NOT_FOUND" => classic(Line::NotFound),
        b"DELETED" => classic(Line::Deleted),
        b"TOUCHED" => classic(Line::Touched),
        b"SERVER_ERROR" => complete(Reply::Error {
            kind: ErrorKind::Server,
            line,
        }),
        b"ERROR" | b"CLIENT_ERROR" => complete(Reply::Error {
            kind: ErrorKind::Protocol,
            line,
        }),
        word => match number(word) {
            Some(value) if rest.is_empty() => complete(Reply::Number(value)),
            _ => Err(NoReply("an unknown reply")),
        },
    }
}

/// A reply with `length` bytes of data after the line, which ends at `line`.
fn with_data<'a>(
    bytes: &'a [u8],
    line: usize,
    length: u64,
    max_value_bytes: usize,
    reply: impl Fn(&'a [u8]) -> Reply<'a>,
) -> Result<Parsed<'a>, NoReply> {
    if length > VALUE_BYTES_MAX {
        return Err(NoReply("a length that no value has"));
    }
    let data_bytes = match usize::try_from(length) {
        Ok(data_bytes) if data_bytes <= max_value_bytes => data_bytes,
        _ => {
            return Ok(Parsed::Oversized {
                reply: reply(&[]),
                consumed: line,
                value_bytes: length,
                skip: length + 2,
            });
        }
    };
    let end = line + data_bytes;
    match bytes.get(end..end + 2) {
        None => Ok(Parsed::Partial { needed: end + 2 }),
        Some(b"\r\n") => Ok(Parsed::Complete {
            reply: reply(&bytes[line..end]),
            consumed: end + 2,
        }),
        Some(_) => Err(NoReply("a value that does not end where it should")),
    }
}

/// The first word, and what follows the space after it.
pub(crate) fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b' ', line) {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, &[]),
    }
}

/// A decimal number of at most 64 bits, without a sign.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// The contents of the flags of a meta reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetaFlags {
    pub(crate) flags: u32,
    pub(crate) cas: Option<u64>,
    pub(crate) opaque: Option<u64>,
}

impl MetaFlags {
    /// Reads `f`, `c` and `O`, and ignores other flags.
    pub(crate) fn read(mut words: &[u8]) -> Result<MetaFlags, NoReply> {
        let mut found = MetaFlags::default();
        while !words.is_empty() {
            let (word, rest) = split_word(words);
            words = rest;
            let Some((flag, token)) = word.split_first() else {
                continue;
            };
            let token = || number(token).ok_or(NoReply("a flag that is not a number"));
            match flag {
                b'f' => {
                    found.flags =
                        u32::try_from(token()?).map_err(|_| NoReply("flags beyond 32 bits"))?;
                }
                b'c' => found.cas = Some(token()?),
                b'O' => found.opaque = Some(token()?),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// For the fuzz target: parses `bytes` as replies, both at once and in pieces, and compares the
/// results.
///
/// # Panics
/// If the replies differ, or a partial reply asks for no more bytes than there are.
pub fn fuzz_replies(bytes: &[u8]) {
    const LIMIT: usize = 300;
    let mut rest = bytes;
    while !rest.is_empty() {
        let whole = parse(rest, LIMIT);
        // As the bytes arrive, the reply is partial until it is complete. It must then be the same.
        let mut received = 0;
        let by_parts = loop {
            match parse(&rest[..received], LIMIT) {
                Ok(Parsed::Partial { needed }) => {
                    assert!(needed > received && needed <= LINE_BYTES_MAX + LIMIT + 2);
                    if needed > rest.len() {
                        break None;
                    }
                    received = needed;
                }
                parsed => break Some(parsed),
            }
        };
        match by_parts {
            None => assert!(matches!(whole, Ok(Parsed::Partial { .. })), "{whole:?}"),
            Some(parsed) => assert_eq!(parsed, whole),
        }
        match whole {
            Ok(Parsed::Complete { reply, consumed }) => {
                if let Reply::MetaValue { flags, .. } | Reply::Meta { flags, .. } = reply {
                    let _ = MetaFlags::read(flags);
                }
                assert!(consumed > 0);
                rest = &rest[consumed..];
            }
            Ok(Parsed::Oversized { consumed, .. }) => rest = &rest[consumed..],
            Ok(Parsed::Partial { .. }) | Err(NoReply(_)) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete(bytes: &[u8]) -> Reply<'_> {
        match parse(bytes, 100) {
            Ok(Parsed::Complete { reply, consumed }) if consumed == bytes.len() => reply,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_reply_is_read() {
        let value = |cas| Reply::Value {
            key: b"k",
            flags: 7,
            cas,
            data: b"a\r\n",
        };
        assert_eq!(complete(b"VALUE k 7 3\r\na\r\n\r\n"), value(None));
        assert_eq!(complete(b"VALUE k 7 3 9\r\na\r\n\r\n"), value(Some(9)));
        assert_eq!(complete(b"END\r\n"), Reply::Line(Line::End));
        assert_eq!(complete(b"17\r\n"), Reply::Number(17));
        let (flags, data) = (&b"f1 O2"[..], &b"x"[..]);
        assert_eq!(
            complete(b"VA 1 f1 O2\r\nx\r\n"),
            Reply::MetaValue { flags, data }
        );
        let code = MetaCode::Miss;
        assert_eq!(complete(b"EN\r\n"), Reply::Meta { code, flags: b"" });
        let line = b"SERVER_ERROR out of memory";
        let kind = ErrorKind::Server;
        let reply = Reply::Error { kind, line };
        assert_eq!(complete(b"SERVER_ERROR out of memory\r\n"), reply);
    }

    #[test]
    fn lies_are_no_replies() {
        for bytes in [
            &b"END\n"[..],
            b"END x\r\n",
            b"VALUE\r\n",
            b"VALUE k 0 -1\r\n",
            b"VALUE k 4294967296 1\r\na\r\n",
            b"VALUE k 0 1\r\nab\r\n",
            b"VALUE k 0 18446744073709551616\r\n",
            b"VALUE k 0 18446744073709551615\r\n",
            b"VALUE k 0 1 2 3\r\na\r\n",
            b"VA x\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\r\n",
            &[b'x'; LINE_BYTES_MAX],
        ] {
            assert!(parse(bytes, 100).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_long_value_is_reported_with_its_line_alone() {
        let Ok(Parsed::Oversized {
            consumed,
            value_bytes,
            ..
        }) = parse(b"VALUE k 0 101\r\n", 100)
        else {
            panic!("it is accepted");
        };
        assert_eq!((consumed, value_bytes), (15, 101));
    }

    proptest! {
        #[test]
        fn replies_do_not_depend_on_how_they_arrive(
            replies in prop::collection::vec(prop_oneof![
                "VALUE [ab]{0,3} [0-9]{0,2} [0-9]{0,3}( 7)?\r\n[a-z]{0,9}\r\n",
                "VALUE a 1 3\r\n[a-z]{3}\r\n",
                "VA [0-9]{1,3} [fcO]?[0-9x]?\r\n",
                "(END|MN|HD O1|STORED|17)\r\n",
                "[A-Z_]{2,9} ?[a-z]{0,3}\r?\n",
                "[ -~]{0,5}",
            ], 0..6)
        ) {
            fuzz_replies(replies.concat().as_bytes());
        }
    }
}
