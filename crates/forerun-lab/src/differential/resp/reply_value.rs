//! Replies in RESP2 and RESP3, as values.
//!
//! ```text
//!   +OK\r\n  -ERR …\r\n  :5\r\n  _\r\n  #t\r\n  ,1.5\r\n        a line
//!   $5\r\nhello\r\n   =7\r\ntxt:abc\r\n   $-1\r\n               bytes, or null
//!   *2\r\n…  %1\r\n…  ~2\r\n…  >2\r\n…   *-1\r\n                 values, a map's in pairs; or null
//! ```

use crate::differential::command::shorten;

/// How deep values may be nested.
const DEPTH_MAX: usize = 16;

/// A value of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Line { marker: u8, text: &'a [u8] },
    Bulk { marker: u8, bytes: &'a [u8] },
    Null { marker: u8 },
    Aggregate { marker: u8, items: Vec<Value<'a>> },
}

impl<'a> Value<'a> {
    /// The value at the beginning of `bytes` and its length; `None` if a part is missing.
    ///
    /// # Errors
    /// What is not a value.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, String> {
        Self::parse_nested(bytes, 0)
    }

    fn parse_nested(bytes: &'a [u8], depth: usize) -> Result<Option<(Self, usize)>, String> {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        let wrong = || format!("{} is not a value", shorten(&bytes[..end]));
        let (&marker, text) = bytes[..end].split_first().ok_or_else(wrong)?;
        let after = end + 2;
        match marker {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {
                Ok(Some((Value::Line { marker, text }, after)))
            }
            b'$' | b'=' | b'!' => {
                let Some(len) = length(text).ok_or_else(wrong)? else {
                    return Ok(Some((Value::Null { marker }, after)));
                };
                let Some(data) = bytes.get(after..after.saturating_add(len).saturating_add(2))
                else {
                    return Ok(None);
                };
                match data.strip_suffix(b"\r\n") {
                    Some(bytes) => Ok(Some((Value::Bulk { marker, bytes }, after + data.len()))),
                    None => Err(format!("{} does not end with a line end", shorten(data))),
                }
            }
            b'*' | b'%' | b'~' | b'>' => {
                let Some(count) = length(text).ok_or_else(wrong)? else {
                    return Ok(Some((Value::Null { marker }, after)));
                };
                if depth == DEPTH_MAX {
                    return Err("values are nested too deeply".to_owned());
                }
                let count = if marker == b'%' { 2 * count } else { count };
                let (mut items, mut at) = (Vec::new(), after);
                for _ in 0..count {
                    let Some((item, len)) = Self::parse_nested(&bytes[at..], depth + 1)? else {
                        return Ok(None);
                    };
                    items.push(item);
                    at += len;
                }
                Ok(Some((Value::Aggregate { marker, items }, at)))
            }
            _ => Err(wrong()),
        }
    }

    /// All values in `bytes`.
    ///
    /// # Errors
    /// What is not a value, or is only a part of one.
    pub(super) fn parse_all(mut bytes: &'a [u8]) -> Result<Vec<Self>, String> {
        let mut values = Vec::new();
        while !bytes.is_empty() {
            let Some((value, len)) = Self::parse(bytes)? else {
                return Err(format!("{} is only a part of a value", shorten(bytes)));
            };
            values.push(value);
            bytes = &bytes[len..];
        }
        Ok(values)
    }

    /// Whether it is the simple string `text`.
    pub(super) fn is_simple(&self, text: &[u8]) -> bool {
        matches!(self, Value::Line { marker: b'+', text: found } if *found == text)
    }

    /// The bytes of a bulk string.
    pub(super) fn bulk(&self) -> Option<&'a [u8]> {
        match self {
            Value::Bulk { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// The text of an error.
    pub(super) fn error(&self) -> Option<&'a [u8]> {
        match self {
            Value::Line { marker: b'-', text } => Some(text),
            _ => None,
        }
    }

    /// An integer.
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Value::Line { marker: b':', text } => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The items of an array, a map or a set.
    pub(super) fn items(&self) -> Option<&[Value<'a>]> {
        match self {
            Value::Aggregate { items, .. } => Some(items),
            _ => None,
        }
    }

    /// Its type.
    pub(super) fn marker(&self) -> u8 {
        match self {
            Value::Line { marker, .. }
            | Value::Bulk { marker, .. }
            | Value::Null { marker }
            | Value::Aggregate { marker, .. } => *marker,
        }
    }

    /// The value in one line.
    pub(super) fn describe(&self) -> String {
        let marker = char::from(self.marker());
        match self {
            Value::Line { text, .. } => format!("{marker}{}", shorten(text)),
            Value::Bulk { bytes, .. } => format!("{marker}'{}'", shorten(bytes)),
            Value::Null { .. } => format!("{marker}-1"),
            Value::Aggregate { items, .. } => {
                let items: Vec<String> = items.iter().take(20).map(Value::describe).collect();
                format!("{marker}[{}]", items.join(", "))
            }
        }
    }
}

/// A length: `Some(None)` for null, `None` if it is not a length.
fn length(text: &[u8]) -> Option<Option<usize>> {
    match text {
        b"-1" => Some(None),
        _ => std::str::from_utf8(text).ok()?.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[u8] = b"+OK\r\n-ERR x\r\n:-5\r\n$5\r\nhe\r\no\r\n$-1\r\n_\r\n*-1\r\n\
                             *2\r\n*0\r\n$0\r\n\r\n%1\r\n$1\r\na\r\n:1\r\n=7\r\ntxt:abc\r\n";

    #[test]
    fn values_are_parsed_in_both_versions() {
        let values = Value::parse_all(REPLIES).expect("values");
        let described: Vec<String> = values.iter().map(Value::describe).collect();
        assert_eq!(
            described,
            [
                "+OK",
                "-ERR x",
                ":-5",
                "$'he\\r\\no'",
                "$-1",
                "_",
                "*-1",
                "*[*[], $'']",
                "%[$'a', :1]",
                "='txt:abc'"
            ]
        );
        assert_eq!(values[2].integer(), Some(-5));
        assert_eq!(values[1].error(), Some(&b"ERR x"[..]));
    }

    #[test]
    fn every_cut_of_a_value_is_a_part() {
        let mut start = 0;
        while start < REPLIES.len() {
            let (_, len) = Value::parse(&REPLIES[start..])
                .expect("valid")
                .expect("whole");
            for cut in 0..len {
                let part = Value::parse(&REPLIES[start..start + cut]);
                assert_eq!(part, Ok(None), "{start} {cut}");
            }
            start += len;
        }
    }

    #[test]
    fn what_is_not_a_value_is_an_error() {
        for bytes in [
            &b"\r\n"[..],
            b"x\r\n",
            b"$x\r\n",
            b"*-2\r\n",
            b"$1\r\nabc",
            b"$-2\r\n",
        ] {
            assert!(Value::parse(bytes).is_err(), "{bytes:?}");
        }
        assert!(Value::parse(&b"*1\r\n".repeat(40)).is_err());
    }
}
