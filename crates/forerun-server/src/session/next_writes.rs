//! Writes that follow in the input: their keys, which are prefetched together.
//!
//! ```text
//!   input       set a 0 0 3 │ abc │ incr b 1 │ set c 0 0 9 │ de
//!   prefetched  a             b                incomplete: it waits in the input
//! ```
//!
//! Each request is read again when it is executed. If it is wrong, a prefetch was in vain.

use memchr::memchr;

use crate::input::LINE_BYTES_MAX;
use crate::protocol::binary::HEADER_BYTES;
use crate::protocol::binary::header::Header;
use crate::protocol::binary::parsed_request::{Command, Parsed, Request};
use crate::protocol::numbers::parse_length;
use crate::protocol::tokens::{split, without_return};

/// The key of the write of the text protocol at `at`, and where the next request begins.
pub(super) fn text_write(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let line_end = memchr(b'\n', &rest[..rest.len().min(LINE_BYTES_MAX)])?;
    let mut tokens = split(without_return(&rest[..line_end]));
    let (name, key) = (tokens.next()?, tokens.next()?);
    let block_len = match name {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            parse_length(tokens.nth(2)?)? + 2
        }
        b"ms" => parse_length(tokens.next()?)? + 2,
        b"delete" | b"incr" | b"decr" | b"touch" | b"md" | b"ma" => 0,
        _ => return None,
    };
    let len = line_end + 1 + block_len;
    (len <= rest.len()).then_some((key, at + len))
}

/// The same for the binary protocol.
pub(super) fn binary_write(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let header = Header::parse(rest.first_chunk()?).ok()?;
    let Parsed::Request(request) = Request::parse(&header, rest) else {
        return None;
    };
    let is_write = matches!(
        request.command,
        Command::Store(_) | Command::Delete | Command::Arithmetic(_) | Command::Touch
    );
    let len = HEADER_BYTES + header.body_len;
    (is_write && len <= rest.len()).then_some((request.key, at + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<'a>(
        bytes: &'a [u8],
        read: impl Fn(&'a [u8], usize) -> Option<(&'a [u8], usize)>,
    ) -> (Vec<&'a [u8]>, usize) {
        let (mut keys, mut at) = (Vec::new(), 0);
        while let Some((key, next)) = read(bytes, at) {
            assert!(next > at);
            keys.push(key);
            at = next;
        }
        (keys, at)
    }

    #[test]
    fn text_writes_are_read_up_to_the_first_other_or_incomplete_request() {
        let writes =
            b"set a 0 0 3\r\nabc\r\nincr b 1\r\ncas c 0 0 2 7 noreply\r\n\r\n\r\nms d 1 T0\nx\r\n\
                       md e q\r\ndelete f\r\n";
        for rest in [
            &b"get a\r\n"[..],
            b"set g 0 0 9\r\nabc\r\n",
            b"set g 0 0 18446744073709551615\r\n",
            b"set g 0 0\r\n",
            b"touch",
            b"\r\n",
            b"",
        ] {
            let bytes = [&writes[..], rest].concat();
            let (found, end) = keys(&bytes, text_write);
            assert_eq!(found, [b"a", b"b", b"c", b"d", b"e", b"f"]);
            assert_eq!(end, writes.len());
        }
    }

    #[test]
    fn binary_writes_are_read_up_to_the_first_other_or_incomplete_request() {
        let request = |opcode, extras: &[u8], key: &[u8], value: &[u8]| {
            let mut bytes = vec![0; HEADER_BYTES];
            (bytes[0], bytes[1]) = (0x80, opcode);
            (bytes[3], bytes[4]) = (key.len() as u8, extras.len() as u8);
            bytes[11] = (extras.len() + key.len() + value.len()) as u8;
            [&bytes, extras, key, value].concat()
        };
        let set = request(0x11, &[0; 8], b"a", b"abc");
        let delete = request(0x04, &[], b"b", b"");
        let get = request(0x00, &[], b"a", b"");
        let writes = [&set[..], &delete].concat();
        for rest in [&get[..], &set[..set.len() - 1], &set[..30], b"set", b""] {
            let bytes = [&writes[..], rest].concat();
            let (found, end) = keys(&bytes, binary_write);
            assert_eq!(found, [b"a", b"b"]);
            assert_eq!(end, writes.len());
        }
    }
}
