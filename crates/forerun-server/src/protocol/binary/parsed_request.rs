//! Requests: their opcodes, and which parts of a body each has.

use super::header::{Header, RequestId};
use crate::protocol::KEY_BYTES_MAX;
use forerun_cache::{ArithmeticOp, StoreMode};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// A lookup, whose answer repeats the key if it is `keyed`.
    Get {
        keyed: bool,
    },
    Store(StoreMode),
    Delete,
    Arithmetic(ArithmeticOp),
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    Verbosity,
    Touch,
    /// A lookup that also sets the item's time.
    GetAndTouch {
        keyed: bool,
    },
    SaslMechanisms,
    SaslAuth,
    SaslStep,
}

/// A request up to its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub(crate) id: RequestId,
    pub(crate) command: Command,
    /// A quiet request gets no answer if it succeeds; a quiet lookup gets none if it misses.
    pub(crate) quiet: bool,
    pub(crate) cas: u64,
    pub(crate) extras: &'a [u8],
    pub(crate) key: &'a [u8],
    pub(crate) value_len: usize,
}

/// The start of a request that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    Request(Request<'a>),
    /// More bytes are needed, at most a header, 255 bytes of extras and a key.
    Incomplete,
    /// No command has this opcode.
    Unknown,
    /// The body has not the parts that the command needs, or its key is too long.
    Malformed,
}

/// The command of an opcode, and whether it is quiet.
#[inline]
fn command_of(opcode: u8) -> Option<(Command, bool)> {
    Some(match opcode {
        0x00 => (Command::Get { keyed: false }, false),
        0x01 => (Command::Store(StoreMode::Set), false),
        0x02 => (Command::Store(StoreMode::Add), false),
        0x03 => (Command::Store(StoreMode::Replace), false),
        0x04 => (Command::Delete, false),
        0x05 => (Command::Arithmetic(ArithmeticOp::Increment), false),
        0x06 => (Command::Arithmetic(ArithmeticOp::Decrement), false),
        0x07 => (Command::Quit, false),
        0x08 => (Command::Flush, false),
        0x09 => (Command::Get { keyed: false }, true),
        0x0a => (Command::Noop, false),
        0x0b => (Command::Version, false),
        0x0c => (Command::Get { keyed: true }, false),
        0x0d => (Command::Get { keyed: true }, true),
        0x0e => (Command::Store(StoreMode::Append), false),
        0x0f => (Command::Store(StoreMode::Prepend), false),
        0x10 => (Command::Stat, false),
        0x11 => (Command::Store(StoreMode::Set), true),
        0x12 => (Command::Store(StoreMode::Add), true),
        0x13 => (Command::Store(StoreMode::Replace), true),
        0x14 => (Command::Delete, true),
        0x15 => (Command::Arithmetic(ArithmeticOp::Increment), true),
        0x16 => (Command::Arithmetic(ArithmeticOp::Decrement), true),
        0x17 => (Command::Quit, true),
        0x18 => (Command::Flush, true),
        0x19 => (Command::Store(StoreMode::Append), true),
        0x1a => (Command::Store(StoreMode::Prepend), true),
        0x1b => (Command::Verbosity, false),
        0x1c => (Command::Touch, false),
        0x1d => (Command::GetAndTouch { keyed: false }, false),
        0x1e => (Command::GetAndTouch { keyed: false }, true),
        0x20 => (Command::SaslMechanisms, false),
        0x21 => (Command::SaslAuth, false),
        0x22 => (Command::SaslStep, false),
        0x23 => (Command::GetAndTouch { keyed: true }, false),
        0x24 => (Command::GetAndTouch { keyed: true }, true),
        _ => return None,
    })
}

/// Whether a client may send this opcode before it has authenticated.
pub(crate) fn is_public(opcode: u8) -> bool {
    matches!(
        command_of(opcode),
        Some((
            Command::SaslMechanisms | Command::SaslAuth | Command::SaslStep | Command::Version,
            _
        ))
    )
}

impl Command {
    /// Whether the lengths of extras, key and value are those of the command.
    #[inline]
    fn accepts(self, extras_len: usize, key_len: usize, value_len: usize) -> bool {
        match (self, extras_len, key_len, value_len) {
            (Command::Get { .. } | Command::Delete, 0, 1.., 0) => true,
            (Command::Store(StoreMode::Append | StoreMode::Prepend), 0, 1.., _) => true,
            (Command::Store(StoreMode::Append | StoreMode::Prepend), ..) => false,
            (Command::Store(_), 8, 1.., _) => true,
            (Command::Arithmetic(_), 20, 1.., 0) => true,
            (Command::Touch | Command::GetAndTouch { .. }, 4, 1.., 0) => true,
            (Command::Flush, 0 | 4, 0, 0) => true,
            (Command::Verbosity, 4, 0, 0) => true,
            (Command::Stat, 0, _, 0) => true,
            (Command::SaslAuth | Command::SaslStep, 0, 1.., _) => true,
            (
                Command::Quit | Command::Noop | Command::Version | Command::SaslMechanisms,
                0,
                0,
                0,
            ) => true,
            _ => false,
        }
    }
}

impl<'a> Request<'a> {
    /// Reads the request with this header from `bytes`, which begin with the header.
    #[inline]
    pub(crate) fn parse(header: &Header, bytes: &'a [u8]) -> Parsed<'a> {
        if header.key_len > KEY_BYTES_MAX {
            return Parsed::Malformed;
        }
        let Some((command, quiet)) = command_of(header.id.opcode) else {
            return Parsed::Unknown;
        };
        let value_len = header.value_len();
        if !command.accepts(header.extras_len, header.key_len, value_len) {
            return Parsed::Malformed;
        }
        let Some(head) = bytes.get(super::HEADER_BYTES..header.head_len()) else {
            return Parsed::Incomplete;
        };
        let (extras, key) = head.split_at(header.extras_len);
        Parsed::Request(Request {
            id: header.id,
            command,
            quiet,
            cas: header.cas,
            extras,
            key,
            value_len,
        })
    }

    /// The version that the item must have, if the request names one.
    pub(crate) fn compare_cas(&self) -> Option<u64> {
        (self.cas != 0).then_some(self.cas)
    }

    /// The number of 32 bits at `at` of the extras. 0 if they are shorter.
    pub(crate) fn extra_u32(&self, at: usize) -> u32 {
        let bytes = self.extras.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// The number of 64 bits at `at` of the extras. 0 if they are shorter.
    pub(crate) fn extra_u64(&self, at: usize) -> u64 {
        let bytes = self.extras.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: u8, extras_len: usize, key_len: usize, value_len: usize) -> Header {
        Header {
            id: RequestId {
                opcode,
                opaque: [0; 4],
            },
            cas: 0,
            extras_len,
            key_len,
            body_len: extras_len + key_len + value_len,
        }
    }

    /// The opcodes whose requests may have these lengths, all bytes of the request being there.
    fn accepted(extras_len: usize, key_len: usize, value_len: usize) -> Vec<u8> {
        let bytes = vec![0; 24 + extras_len + key_len + value_len];
        let parse = |&opcode: &u8| {
            let header = header(opcode, extras_len, key_len, value_len);
            matches!(Request::parse(&header, &bytes), Parsed::Request(_))
        };
        (0..=255).filter(parse).collect()
    }

    #[test]
    fn each_opcode_accepts_the_parts_that_memcached_accepts() {
        let lookups = [
            0x00, 0x04, 0x09, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x14, 0x19, 0x1a,
        ];
        let sasl = [0x21, 0x22];
        let keyed = [&lookups[..], &sasl].concat();
        for key_len in [1, 250] {
            assert_eq!(accepted(0, key_len, 0), keyed, "{key_len}");
        }
        assert!(accepted(0, 251, 0).is_empty());
        assert_eq!(accepted(0, 1, 7), [0x0e, 0x0f, 0x19, 0x1a, 0x21, 0x22]);
        let none = [0x07, 0x08, 0x0a, 0x0b, 0x10, 0x17, 0x18, 0x20];
        assert_eq!(accepted(0, 0, 0), none);
        assert!(accepted(0, 0, 1).is_empty());
        assert_eq!(accepted(4, 0, 0), [0x08, 0x18, 0x1b]);
        assert_eq!(accepted(4, 1, 0), [0x1c, 0x1d, 0x1e, 0x23, 0x24]);
        let stores = [0x01, 0x02, 0x03, 0x11, 0x12, 0x13];
        assert_eq!(accepted(8, 1, 0), stores);
        assert_eq!(accepted(8, 250, 1 << 20), stores);
        assert!(accepted(8, 0, 5).is_empty());
        assert_eq!(accepted(20, 1, 0), [0x05, 0x06, 0x15, 0x16]);
        assert!(accepted(20, 1, 1).is_empty());
        for extras_len in [1, 2, 3, 5, 6, 7, 9, 12, 16, 19, 21, 255] {
            assert!(accepted(extras_len, 1, 1).is_empty(), "{extras_len}");
        }
    }

    #[test]
    fn a_request_waits_for_its_key_and_not_for_its_value() {
        let header = header(0x01, 8, 3, 1000);
        let bytes = [&[0; 24][..], b"flagtimekeyvalue"].concat();
        for len in 24..35 {
            assert_eq!(Request::parse(&header, &bytes[..len]), Parsed::Incomplete);
        }
        let Parsed::Request(request) = Request::parse(&header, &bytes[..35]) else {
            panic!("extras and key are there");
        };
        assert_eq!(
            (request.extras, request.key),
            (&b"flagtime"[..], &b"key"[..])
        );
        assert_eq!(request.extra_u32(0), u32::from_be_bytes(*b"flag"));
        assert_eq!(request.extra_u32(4), u32::from_be_bytes(*b"time"));
        assert_eq!(request.extra_u64(0), u64::from_be_bytes(*b"flagtime"));
        assert_eq!((request.extra_u32(5), request.value_len), (0, 1000));
    }

    #[test]
    fn only_version_and_sasl_need_no_user() {
        let opcodes: Vec<u8> = (0..=255).filter(|&opcode| is_public(opcode)).collect();
        assert_eq!(opcodes, [0x0b, 0x20, 0x21, 0x22]);
    }
}
