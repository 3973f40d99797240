//! Reads a request that has arrived in full. Its arguments are slices of the input.
//!
//! ```text
//!   *2\r\n $3\r\n GET\r\n $1\r\n a\r\n     multibulk: header, then a header and bytes for each argument
//!   GET "a b" 'c' \x41\r\n               inline: words, for people and for simple tools
//! ```
//!
//! A header is the decimal number of what follows. It ends at the first carriage return; the byte
//! behind that one is skipped, whatever it is, as in Redis. Memory for arguments is taken as they
//! arrive: a header announces up to 2^31 of them.

use memchr::memchr;

use super::arguments::Arguments;
use super::integers::parse_i64;

/// The longest header and the longest inline request.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
/// The longest argument.
pub(crate) const BULK_BYTES_MAX: usize = 512 << 20;
/// The most arguments.
pub(crate) const ARGUMENTS_MAX: i64 = i32::MAX as i64;
/// The most arguments, and the longest one, before the client has logged in.
const ARGUMENTS_MAX_UNAUTHENTICATED: i64 = 10;
const BULK_BYTES_MAX_UNAUTHENTICATED: usize = 16 << 10;

/// Why a request cannot be read. The connection ends, because nobody knows where the next one
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    MultibulkLength,
    BulkLength,
    /// A header of an argument begins with this byte.
    ExpectedBulk(u8),
    /// A value is longer than its header says.
    ValueEnd,
    LongMultibulkHeader,
    LongBulkHeader,
    LongInline,
    UnbalancedQuotes,
    UnauthenticatedMultibulkLength,
    UnauthenticatedBulkLength,
    /// A browser, possibly on behalf of an attacker. It gets no answer.
    Http,
}

impl ProtocolError {
    /// Appends the answer.
    pub(crate) fn push(self, out: &mut Vec<u8>) {
        let reason: &[u8] = match self {
            ProtocolError::MultibulkLength => b"invalid multibulk length",
            ProtocolError::BulkLength => b"invalid bulk length",
            ProtocolError::ExpectedBulk(_) => b"expected '$', got '",
            ProtocolError::ValueEnd => b"invalid CRLF in request",
            ProtocolError::LongMultibulkHeader => b"too big mbulk count string",
            ProtocolError::LongBulkHeader => b"too big bulk count string",
            ProtocolError::LongInline => b"too big inline request",
            ProtocolError::UnbalancedQuotes => b"unbalanced quotes in request",
            ProtocolError::UnauthenticatedMultibulkLength => b"unauthenticated multibulk length",
            ProtocolError::UnauthenticatedBulkLength => b"unauthenticated bulk length",
            ProtocolError::Http => return,
        };
        out.extend_from_slice(b"-ERR Protocol error: ");
        out.extend_from_slice(reason);
        if let ProtocolError::ExpectedBulk(got) = self {
            // A line end would end the error too early.
            out.push(if matches!(got, b'\r' | b'\n') {
                b' '
            } else {
                got
            });
            out.push(b'\'');
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// What a client may announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limits {
    Open,
    /// The client has yet to log in.
    Unauthenticated,
}

impl Limits {
    /// The number of arguments from the header of a request, behind its star.
    pub(crate) fn arguments(self, header: &[u8]) -> Result<i64, ProtocolError> {
        let count = parse_i64(header).filter(|&count| count <= ARGUMENTS_MAX);
        match count.ok_or(ProtocolError::MultibulkLength)? {
            count if count > ARGUMENTS_MAX_UNAUTHENTICATED && self == Limits::Unauthenticated => {
                Err(ProtocolError::UnauthenticatedMultibulkLength)
            }
            count => Ok(count),
        }
    }

    /// The length of an argument from its header, behind the dollar sign.
    pub(crate) fn bulk_bytes(self, header: &[u8]) -> Result<usize, ProtocolError> {
        let length = parse_i64(header).and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|&length| length <= BULK_BYTES_MAX);
        match length.ok_or(ProtocolError::BulkLength)? {
            length
                if length > BULK_BYTES_MAX_UNAUTHENTICATED && self == Limits::Unauthenticated =>
            {
                Err(ProtocolError::UnauthenticatedBulkLength)
            }
            length => Ok(length),
        }
    }
}

/// What is at the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A request of this many bytes with at least one argument.
    Request(usize),
    /// An inline request, whose line takes this many bytes.
    Inline(usize),
    /// So many bytes that mean nothing: an empty line or an empty request.
    Nothing(usize),
    /// The first part of a request.
    Incomplete,
}

/// Reads the request at the front of `bytes`, and replaces `arguments` by its arguments.
///
/// # Errors
/// [`ProtocolError`].
#[inline]
pub(crate) fn parse<'a>(
    bytes: &'a [u8],
    limits: Limits,
    arguments: &mut Vec<&'a [u8]>,
) -> Result<Parsed, ProtocolError> {
    arguments.clear();
    match bytes.first() {
        None => return Ok(Parsed::Incomplete),
        Some(b'*') => {}
        Some(_) => return inline_line(bytes),
    }
    let Some((header, mut at)) = header(bytes, 0, ProtocolError::LongMultibulkHeader)? else {
        return Ok(Parsed::Incomplete);
    };
    let count = limits.arguments(header)?;
    if count <= 0 {
        return Ok(Parsed::Nothing(at));
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(Parsed::Incomplete),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::ExpectedBulk(other)),
        }
        let Some((length, start)) = self::header(bytes, at, ProtocolError::LongBulkHeader)? else {
            return Ok(Parsed::Incomplete);
        };
        let length = limits.bulk_bytes(length)?;
        let end = start + length;
        match bytes.get(end..end + 2) {
            Some(b"\r\n") => arguments.push(&bytes[start..end]),
            Some(_) => return Err(ProtocolError::ValueEnd),
            None if bytes.get(end).is_some_and(|&byte| byte != b'\r') => {
                return Err(ProtocolError::ValueEnd);
            }
            None => return Ok(Parsed::Incomplete),
        }
        at = end + 2;
    }
    Ok(Parsed::Request(at))
}

/// The header whose marker is at `start`, and where the bytes behind it begin. `None`: it has not
/// arrived in full.
#[inline]
fn header(
    bytes: &[u8],
    start: usize,
    too_long: ProtocolError,
) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let rest = &bytes[start + 1..];
    // Most headers have one to three digits.
    let end = match rest.iter().take(4).position(|&byte| byte == b'\r') {
        Some(end) => Some(end),
        None => memchr(b'\r', &rest[..rest.len().min(LINE_BYTES_MAX)]),
    };
    match end {
        Some(end) if end + 2 <= rest.len() => Ok(Some((&rest[..end], start + end + 3))),
        Some(_) => Ok(None),
        None if rest.len() >= LINE_BYTES_MAX => Err(too_long),
        None => Ok(None),
    }
}

/// Finds the end of the inline request at the front of `bytes`.
fn inline_line(bytes: &[u8]) -> Result<Parsed, ProtocolError> {
    match memchr(b'\n', &bytes[..bytes.len().min(LINE_BYTES_MAX)]) {
        Some(end) => Ok(match without_return(&bytes[..end]) {
            [] => Parsed::Nothing(end + 1),
            _ => Parsed::Inline(end + 1),
        }),
        None if bytes.len() >= LINE_BYTES_MAX => Err(ProtocolError::LongInline),
        None => Ok(Parsed::Incomplete),
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Reads the words of an inline request, given with or without its line end. Double quotes may
/// contain `\xHH`, `\n`, `\r`, `\t`, `\b`, `\a` and escaped bytes, single quotes `\'`.
///
/// # Errors
/// [`ProtocolError::UnbalancedQuotes`] if a quote is not closed, or if something other than a space
/// follows one that is.
pub(crate) fn inline_words(line: &[u8]) -> Result<Arguments, ProtocolError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    // A zero ends the line, as in Redis.
    let end = memchr(0, line).unwrap_or(line.len());
    let mut rest = without_return(&line[..end]);
    let mut words = Arguments::default();
    let mut word = Vec::new();
    loop {
        let start = rest.iter().position(|&byte| !is_space(byte));
        let Some(start) = start else { break };
        rest = &rest[start..];
        word.clear();
        while let Some((&byte, behind)) = rest.split_first() {
            rest = match byte {
                b' ' | b'\t' | b'\n' | b'\r' => break,
                b'"' => closed(double_quoted(behind, &mut word))?,
                b'\'' => closed(single_quoted(behind, &mut word))?,
                _ => {
                    word.push(byte);
                    behind
                }
            };
        }
        words.push(&word);
    }
    match words.get(0) {
        Some(name) if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") => {
            Err(ProtocolError::Http)
        }
        _ => Ok(words),
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// What follows a quote must be a space or the end.
fn closed(rest: Option<&[u8]>) -> Result<&[u8], ProtocolError> {
    rest.filter(|rest| rest.first().is_none_or(|&byte| is_space(byte)))
        .ok_or(ProtocolError::UnbalancedQuotes)
}

/// Appends the text up to the closing quote. Returns what follows.
fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\\', b'\'', behind @ ..] => {
                word.push(b'\'');
                behind
            }
            [b'\'', behind @ ..] => return Some(behind),
            [byte, behind @ ..] => {
                word.push(*byte);
                behind
            }
            [] => return None,
        };
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, behind @ ..]
                if let (Some(high), Some(low)) = (digit(high), digit(low)) =>
            {
                word.push(high << 4 | low);
                behind
            }
            [b'\\', escaped, behind @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                behind
            }
            [b'"', behind @ ..] => return Some(behind),
            [byte, behind @ ..] => {
                word.push(*byte);
                behind
            }
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<(Parsed, Vec<&[u8]>), ProtocolError> {
        let mut arguments = Vec::new();
        let parsed = parse(bytes, Limits::Open, &mut arguments)?;
        Ok((parsed, arguments))
    }

    fn refused(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        read(bytes).expect_err("it is not a request").push(&mut out);
        String::from_utf8(out).expect("a text")
    }

    #[test]
    fn a_request_is_read_once_all_of_it_is_there() {
        let request = b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$5\r\nhe\r\no\r\n";
        for end in 0..request.len() {
            let (parsed, _) = read(&request[..end]).expect("the first part of a request");
            assert_eq!(parsed, Parsed::Incomplete, "{end}");
        }
        let (parsed, arguments) = read(request).expect("a request");
        assert_eq!(parsed, Parsed::Request(request.len()));
        assert_eq!(arguments, [&b"SET"[..], b"", b"he\r\no"]);
        for nothing in [&b"*0\r\n"[..], b"*-1\r\n", b"*-9\r\n", b"\r\n", b"\n"] {
            let (parsed, _) = read(nothing).expect("nothing");
            assert_eq!(parsed, Parsed::Nothing(nothing.len()));
        }
    }

    #[test]
    fn what_is_not_a_request_is_refused_in_redis_words() {
        for (bytes, reason) in [
            (&b"*2147483648\r\n"[..], "invalid multibulk length"),
            (b"*x\r\n", "invalid multibulk length"),
            (b"*+1\r\n", "invalid multibulk length"),
            (b"*\r\n", "invalid multibulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$01\r\n", "invalid bulk length"),
            (b"*1\r\n:1\r\n", "expected '$', got ':'"),
            (b"*1\r\n*1\r\n", "expected '$', got '*'"),
            (b"*1\r\n$1\r\nab\r\n", "invalid CRLF in request"),
            (b"*1\r\n$1\r\na\r-", "invalid CRLF in request"),
        ] {
            let shown = bytes.escape_ascii();
            assert_eq!(
                refused(bytes),
                format!("-ERR Protocol error: {reason}\r\n"),
                "{shown}"
            );
        }
        let long = |front: &[u8]| [front, &[b'1'; LINE_BYTES_MAX]].concat();
        assert!(refused(&long(b"*")).contains("too big mbulk count string"));
        assert!(refused(&long(b"*1\r\n$")).contains("too big bulk count string"));
        assert!(refused(&long(b"")).contains("too big inline request"));
    }

    #[test]
    fn before_the_login_requests_are_small() {
        let read = |bytes: &[u8]| parse(bytes, Limits::Unauthenticated, &mut Vec::new());
        assert_eq!(read(b"*10\r\n"), Ok(Parsed::Incomplete));
        assert_eq!(
            read(b"*11\r\n"),
            Err(ProtocolError::UnauthenticatedMultibulkLength)
        );
        assert_eq!(read(b"*1\r\n$16384\r\n"), Ok(Parsed::Incomplete));
        assert_eq!(
            read(b"*1\r\n$16385\r\n"),
            Err(ProtocolError::UnauthenticatedBulkLength)
        );
    }

    #[test]
    fn inline_words_may_be_quoted() {
        let words = |line: &[u8]| {
            let words = inline_words(line)?;
            Ok(words.iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
        };
        assert_eq!(
            words(b"  SET \t\"a \\x41\\n\\\"\" 'b \\' \\n' c\"d\"\r\n"),
            Ok(vec![
                b"SET".to_vec(),
                b"a A\n\"".to_vec(),
                b"b ' \\n".to_vec(),
                b"cd".to_vec()
            ])
        );
        assert_eq!(words(b"\"\"\n"), Ok(vec![Vec::new()]));
        assert_eq!(words(b"\x0ba\x0bb\0c\n"), Ok(vec![b"a\x0bb".to_vec()]));
        for unbalanced in [&b"\"a"[..], b"'a", b"\"a\"b", b"'a'b", b"\"a\\"] {
            assert_eq!(words(unbalanced), Err(ProtocolError::UnbalancedQuotes));
        }
        assert_eq!(words(b"POST / HTTP/1.1\r\n"), Err(ProtocolError::Http));
        assert_eq!(words(b"host: 127.0.0.1\r\n"), Err(ProtocolError::Http));
    }
}
