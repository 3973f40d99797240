//! Requests in RESP, and their answers.
//!
//! ```text
//!   Set      SET k v          +OK
//!   Get      MGET k …         *n, then $len and the value, or $-1, for each key
//!   Delete   DEL k            :1 or :0
//!   Flush    FLUSHALL         +OK
//!   Noop     PING             +PONG
//! ```

use super::{Interval, Key, Model, Moment, Op, Parsed, Request, name, unexpected, value};

/// The bytes of a request.
pub(super) fn request(client: usize, version: u64, op: &Op) -> Vec<u8> {
    let name_of = |key: &Key| name(client, *key).into_bytes();
    let mut words: Vec<Vec<u8>> = Vec::new();
    match op {
        Op::Set { key, len, .. } => {
            let name = name(client, *key);
            let value = value(&name, client, version, *len);
            words.extend([b"SET".to_vec(), name.into_bytes(), value]);
        }
        Op::Get { keys, .. } => {
            words.push(b"MGET".to_vec());
            words.extend(keys.iter().map(name_of));
        }
        Op::Delete { key } => words.extend([b"DEL".to_vec(), name_of(key)]),
        Op::Flush => words.push(b"FLUSHALL".to_vec()),
        // Plans have no others for clients of RESP.
        _ => words.push(b"PING".to_vec()),
    }
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(&word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Request {
    /// Reads a part of the answer from the front of `input`.
    pub(super) fn parse_resp(
        &mut self,
        client: usize,
        input: &[u8],
        acked: Moment,
        model: &mut Model,
    ) -> Result<Parsed, String> {
        let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else {
            return match input.len() {
                ..2000 => Ok(Parsed::More),
                _ => Err(unexpected(&self.op, input)),
            };
        };
        let (line, rest) = (&input[..end], end + 2);
        let interval = Interval {
            sent: self.sent,
            acked,
        };
        match (self.op.clone(), line) {
            (Op::Get { keys, .. }, _) => {
                if !self.has_head {
                    if line != format!("*{}", keys.len()).as_bytes() {
                        return Err(unexpected(&self.op, line));
                    }
                    self.has_head = true;
                    return Ok(Parsed::Part(rest));
                }
                let key = keys[self.answered.len()];
                let Some(bytes) = self.parse_value(client, key, input, rest, interval, model)?
                else {
                    return Ok(Parsed::More);
                };
                if self.answered.len() < keys.len() {
                    return Ok(Parsed::Part(bytes));
                }
                self.end(client, model);
                return Ok(Parsed::Whole(bytes));
            }
            (Op::Set { key, len, expiry }, b"+OK") => {
                self.stored(client, key, len, expiry, interval, model);
            }
            (Op::Delete { key }, b":1") => self.deleted(client, key, interval, model)?,
            (Op::Delete { key }, b":0") => {
                self.found(client, key, &[], None, None, interval, model)?;
            }
            (Op::Flush, b"+OK") => self.flushed(acked, model),
            (Op::Noop, b"+PONG") => {}
            (op, _) => return Err(unexpected(&op, line)),
        }
        self.end(client, model);
        Ok(Parsed::Whole(rest))
    }

    /// Reads a value, whose line ends at `rest`. Returns its bytes, or `None` if a part is missing.
    fn parse_value(
        &mut self,
        client: usize,
        key: Key,
        input: &[u8],
        rest: usize,
        interval: Interval,
        model: &mut Model,
    ) -> Result<Option<usize>, String> {
        let line = &input[..rest - 2];
        if line == b"$-1" {
            self.found(client, key, &[], None, None, interval, model)?;
            return Ok(Some(rest));
        }
        let len = line
            .strip_prefix(b"$")
            .and_then(|text| std::str::from_utf8(text).ok());
        let len: Option<usize> = len.and_then(|text| text.parse().ok());
        let len = len.ok_or_else(|| unexpected(&self.op, line))?;
        let Some(body) = input.get(rest..rest + len + 2) else {
            return Ok(None);
        };
        let body = body
            .strip_suffix(b"\r\n")
            .ok_or_else(|| format!("a value does not end where it should: {:?}", self.op))?;
        self.found(client, key, body, Some(()), None, interval, model)?;
        Ok(Some(rest + len + 2))
    }
}
