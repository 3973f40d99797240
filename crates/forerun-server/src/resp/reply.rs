//! Writes replies in RESP2 or RESP3.
//!
//! ```text
//!              simple   error    integer   bulk               nil     array      map          verbatim
//!   RESP2      +OK      -ERR …   :7        $5 hello           $-1     *2 …       *4 …         $5 hello
//!   RESP3      +OK      -ERR …   :7        $5 hello           _       *2 …       %2 …         =9 txt:hello
//! ```

use super::integers::Decimal;

/// The version of the protocol that a client has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RespVersion {
    #[default]
    Resp2,
    Resp3,
}

impl RespVersion {
    /// The number, as in `HELLO`.
    pub(crate) fn number(self) -> i64 {
        match self {
            RespVersion::Resp2 => 2,
            RespVersion::Resp3 => 3,
        }
    }

    /// Nothing.
    pub(crate) fn push_nil(self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// The answer to an `EXEC` that was aborted.
    pub(crate) fn push_nil_array(self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self {
            RespVersion::Resp2 => b"*-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// The header of a map with so many pairs.
    pub(crate) fn push_map(self, out: &mut Vec<u8>, pairs: usize) {
        match self {
            RespVersion::Resp2 => push_header(out, b'*', 2 * pairs),
            RespVersion::Resp3 => push_header(out, b'%', pairs),
        }
    }

    /// The header of a set.
    pub(crate) fn push_set(self, out: &mut Vec<u8>, members: usize) {
        match self {
            RespVersion::Resp2 => push_header(out, b'*', members),
            RespVersion::Resp3 => push_header(out, b'~', members),
        }
    }

    /// A text for people.
    pub(crate) fn push_verbatim(self, out: &mut Vec<u8>, text: &[u8]) {
        match self {
            RespVersion::Resp2 => push_bulk(out, text),
            RespVersion::Resp3 => {
                push_header(out, b'=', 4 + text.len());
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// A value or nothing.
    pub(crate) fn push_bulk_or_nil(self, out: &mut Vec<u8>, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => push_bulk(out, bytes),
            None => self.push_nil(out),
        }
    }
}

/// A marker and a length.
#[inline]
pub(crate) fn push_header(out: &mut Vec<u8>, marker: u8, length: usize) {
    out.push(marker);
    // A length is below 2^63.
    out.extend_from_slice(Decimal::new().of(length as i64));
    out.extend_from_slice(b"\r\n");
}

#[inline]
pub(crate) fn push_array(out: &mut Vec<u8>, elements: usize) {
    push_header(out, b'*', elements);
}

#[inline]
pub(crate) fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    push_header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

#[inline]
pub(crate) fn push_integer(out: &mut Vec<u8>, number: i64) {
    out.push(b':');
    out.extend_from_slice(Decimal::new().of(number));
    out.extend_from_slice(b"\r\n");
}

/// A status without line ends.
pub(crate) fn push_simple(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// `+OK`.
pub(crate) const OK: &[u8] = b"+OK\r\n";
/// `+PONG`.
pub(crate) const PONG: &[u8] = b"+PONG\r\n";
/// The answer to a command within `MULTI`.
pub(crate) const QUEUED: &[u8] = b"+QUEUED\r\n";
/// The answer to `RESET`.
pub(crate) const RESET: &[u8] = b"+RESET\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_reply_has_its_form_in_both_versions() {
        let written = |protocol: RespVersion| {
            let mut out = Vec::new();
            protocol.push_nil(&mut out);
            protocol.push_nil_array(&mut out);
            protocol.push_map(&mut out, 2);
            protocol.push_set(&mut out, 1);
            protocol.push_verbatim(&mut out, b"a\r\n");
            protocol.push_bulk_or_nil(&mut out, Some(b""));
            push_array(&mut out, 0);
            push_integer(&mut out, i64::MIN);
            push_simple(&mut out, "string");
            String::from_utf8(out).expect("a text")
        };
        let end = "$0\r\n\r\n*0\r\n:-9223372036854775808\r\n+string\r\n";
        assert_eq!(
            written(RespVersion::Resp2),
            format!("$-1\r\n*-1\r\n*4\r\n*1\r\n$3\r\na\r\n\r\n{end}")
        );
        assert_eq!(
            written(RespVersion::Resp3),
            format!("_\r\n_\r\n%2\r\n~1\r\n=7\r\ntxt:a\r\n\r\n{end}")
        );
    }
}
