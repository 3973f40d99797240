//! Requests, and the comparison of their answers with the model.

mod resp;

use super::frames::{self, ENABLE, ENABLED, Expected};
use super::model::{
    Entry, Interval, KeyState, LookupResult, Model, Moment, Reader, read_value, value,
};
use super::plan::{Expiry, Key, Op, name};

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Request {
    pub op: Op,
    pub sent: Moment,
    /// The offset of its end in the stream of all bytes that the client sends.
    pub end: u64,
    version: u64,
    /// The time of day in its expiry.
    unix_s: Option<u64>,
    /// For a lookup: the keys answered so far, found or not.
    answered: Vec<LookupResult>,
    /// Whether the answer to the line that switches frames on comes first.
    enables: bool,
    /// Whether the answer is in RESP, and whether the head of its array was read.
    is_resp: bool,
    has_head: bool,
}

/// What a client's requests depend on besides its plan.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub id: usize,
    /// The number of the request.
    pub version: u64,
    /// The number of frames that were answered, modulo 2^16.
    pub frames_received: u16,
    /// Whether frames are switched on.
    pub has_frames: bool,
    /// Whether it speaks RESP.
    pub is_resp: bool,
}

/// The result of parsing the first bytes of an answer.
pub enum Parsed {
    /// More bytes are needed.
    More,
    /// This many bytes of an answer that continues.
    Part(usize),
    /// This many bytes, and the answer is complete.
    Whole(usize),
}

impl Request {
    /// A client's request and its bytes. `unix_s` is the server's time of day.
    pub fn new(
        sender: Sender,
        op: Op,
        sent: Moment,
        unix_s: u64,
        model: &mut Model,
    ) -> (Request, Vec<u8>) {
        let Sender {
            id: client,
            version,
            ..
        } = sender;
        let mut unix = None;
        let mut time = |expiry: Expiry| match expiry {
            Expiry::Never => 0,
            Expiry::In(seconds) => u64::from(seconds),
            Expiry::AtFromNow(seconds) => {
                let at = unix_s.saturating_add_signed(seconds.into());
                unix = Some(at);
                at
            }
        };
        let mut bytes = match &op {
            Op::Set { key, len, expiry } => {
                let name = name(client, *key);
                if matches!(key, Key::Shared(_)) {
                    model.shared.insert((name.clone(), client, version), *len);
                }
                let mut bytes = format!("set {name} 0 {} {len}\r\n", time(*expiry)).into_bytes();
                bytes.extend_from_slice(&value(&name, client, version, *len));
                bytes
            }
            Op::Get { keys, touch } => {
                let mut line = match touch {
                    Some(expiry) => format!("gat {}", time(*expiry)),
                    None => "get".to_owned(),
                };
                for key in keys {
                    line.push(' ');
                    line.push_str(&name(client, *key));
                }
                line.into_bytes()
            }
            Op::Frame { .. } | Op::BadFrame { .. } => Vec::new(),
            Op::Ttl { key } => format!("mg {} t v", name(client, *key)).into_bytes(),
            Op::Touch { key, expiry } => {
                format!("touch {} {}", name(client, *key), time(*expiry)).into_bytes()
            }
            Op::Delete { key } => format!("delete {}", name(client, *key)).into_bytes(),
            Op::Flush => {
                model.flushes.push((sent.step, None));
                b"flush_all".to_vec()
            }
            Op::MemoryLimit { mib } => format!("cache_memlimit {mib}").into_bytes(),
            Op::Noop => b"mn".to_vec(),
        };
        let enables = op.is_frame() && !sender.has_frames;
        if sender.is_resp {
            bytes = resp::request(client, version, &op);
        } else if op.is_frame() {
            push_frame(sender, &op, &mut bytes);
        } else {
            bytes.extend_from_slice(b"\r\n");
        }
        for name in changed(client, &op) {
            model.changes(&name, true);
            if matches!(op, Op::Set { .. }) {
                model.versions_sent.insert((name, version));
            }
        }
        let pending = Request {
            op,
            sent,
            end: 0,
            version,
            unix_s: unix,
            answered: Vec::new(),
            enables,
            is_resp: sender.is_resp,
            has_head: false,
        };
        (pending, bytes)
    }

    /// Reads a part of the answer to a frame.
    fn parse_frame(
        &mut self,
        client: usize,
        input: &[u8],
        acked: Moment,
        model: &mut Model,
    ) -> Result<Parsed, String> {
        if self.enables {
            let bytes = input.len().min(ENABLED.len());
            if input[..bytes] != ENABLED[..bytes] {
                return Err(unexpected(&self.op, input));
            }
            if bytes < ENABLED.len() {
                return Ok(Parsed::More);
            }
            self.enables = false;
            return Ok(Parsed::Part(bytes));
        }
        let id = self.version as u32;
        let (keys, options) = match &self.op {
            Op::Frame { keys, options } => (keys.clone(), *options),
            _ => {
                return match frames::read_error(input, id) {
                    None => Ok(Parsed::More),
                    // The code of an unknown form.
                    Some(Ok((1, bytes))) => Ok(Parsed::Whole(bytes)),
                    Some(Ok((code, _))) => Err(format!("{:?}: code {code}", self.op)),
                    Some(Err(wrong)) => Err(wrong),
                };
            }
        };
        let expected = Expected {
            id,
            options,
            keys: keys.len(),
            answered: self.answered.len(),
        };
        let Some(part) = frames::read_part(input, expected)? else {
            return Ok(Parsed::More);
        };
        let interval = Interval {
            sent: self.sent,
            acked,
        };
        for (key, value) in keys[expected.answered..].iter().zip(part.values) {
            let hit = value.map(|_| ());
            let body = value.unwrap_or_default();
            self.found(client, *key, body, hit, None, interval, model)?;
        }
        Ok(if part.is_last {
            Parsed::Whole(part.bytes)
        } else {
            Parsed::Part(part.bytes)
        })
    }

    /// Reads a part of the answer from the front of `input`.
    ///
    /// # Errors
    /// What is wrong with the answer.
    pub fn parse(
        &mut self,
        client: usize,
        input: &[u8],
        acked: Moment,
        model: &mut Model,
    ) -> Result<Parsed, String> {
        if self.is_resp {
            return self.parse_resp(client, input, acked, model);
        }
        if self.op.is_frame() {
            return self.parse_frame(client, input, acked, model);
        }
        let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else {
            return match input.len() {
                ..2000 => Ok(Parsed::More),
                _ => Err(unexpected(&self.op, input)),
            };
        };
        let line = &input[..end];
        let rest = end + 2;
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let interval = Interval {
            sent: self.sent,
            acked,
        };
        let body_len = match words[0] {
            b"VALUE" => words.get(3),
            b"VA" => words.get(1),
            _ => None,
        };
        let body = match body_len {
            Some(text) => {
                let len = std::str::from_utf8(text)
                    .ok()
                    .and_then(|text| text.parse().ok());
                let len: usize = len.ok_or_else(|| unexpected(&self.op, line))?;
                if input.len() < rest + len + 2 {
                    return Ok(Parsed::More);
                }
                if &input[rest + len..rest + len + 2] != b"\r\n" {
                    return Err(format!(
                        "a value does not end where it should: {:?}",
                        self.op
                    ));
                }
                &input[rest..rest + len]
            }
            None => &[],
        };
        let whole = rest
            + if body_len.is_some() {
                body.len() + 2
            } else {
                0
            };
        let op = self.op.clone();
        match (&op, words[0]) {
            (Op::Get { keys, touch }, b"VALUE") => {
                let found_name = String::from_utf8_lossy(words[1]).into_owned();
                loop {
                    let Some(key) = keys.get(self.answered.len()) else {
                        return Err(format!("the answer has {found_name} out of turn"));
                    };
                    let name = name(client, *key);
                    if name != found_name {
                        self.found(client, *key, &[], None, *touch, interval, model)?;
                        continue;
                    }
                    self.found(client, *key, body, Some(()), *touch, interval, model)?;
                    return Ok(Parsed::Part(whole));
                }
            }
            (Op::Get { keys, touch }, b"END") if words.len() == 1 => {
                for key in &keys[self.answered.len()..] {
                    self.found(client, *key, &[], None, *touch, interval, model)?;
                }
            }
            (Op::Ttl { key }, b"VA") => {
                self.found(client, *key, body, Some(()), None, interval, model)?;
                let text = words.get(2).and_then(|word| word.strip_prefix(b"t"));
                let left: Option<i64> = text
                    .and_then(|text| std::str::from_utf8(text).ok())
                    .and_then(|text| text.parse().ok());
                let left = left.ok_or_else(|| unexpected(&op, line))?;
                check_left(left, &name(client, *key), interval, model)?;
            }
            (Op::Ttl { key }, b"EN") => {
                self.found(client, *key, &[], None, None, interval, model)?;
            }
            (Op::Set { key, len, expiry }, b"STORED") => {
                self.stored(client, *key, *len, *expiry, interval, model);
            }
            (Op::Touch { key, expiry }, b"TOUCHED") => {
                self.present(client, *key, interval, model)?;
                let span = self.span(*expiry, interval, model);
                if matches!(key, Key::Own(_)) {
                    model.touch(&name(client, *key), span);
                }
            }
            (Op::Delete { key }, b"DELETED") => self.deleted(client, *key, interval, model)?,
            (Op::Touch { key, .. } | Op::Delete { key }, b"NOT_FOUND") => {
                self.found(client, *key, &[], None, None, interval, model)?;
            }
            (Op::Flush, b"OK") => self.flushed(acked, model),
            (Op::MemoryLimit { .. }, b"OK") => {}
            // The index cannot shrink.
            (Op::MemoryLimit { mib }, b"MEMLIMIT_ADJUST_FAILED") if *mib < model.memory_mib => {}
            (Op::Noop, b"MN") => {}
            _ => return Err(unexpected(&op, line)),
        }
        self.end(client, model);
        Ok(Parsed::Whole(whole))
    }

    /// Records that the whole answer was read.
    fn end(&self, client: usize, model: &mut Model) {
        for name in changed(client, &self.op) {
            model.changes(&name, false);
        }
    }

    fn stored(
        &self,
        client: usize,
        key: Key,
        len: usize,
        expiry: Expiry,
        interval: Interval,
        model: &mut Model,
    ) {
        if matches!(key, Key::Own(_)) {
            let entry = self.entry(len, expiry, interval, model);
            model.change(&name(client, key), Some(entry), interval);
        }
    }

    fn deleted(
        &self,
        client: usize,
        key: Key,
        interval: Interval,
        model: &mut Model,
    ) -> Result<(), String> {
        self.present(client, key, interval, model)?;
        if matches!(key, Key::Own(_)) {
            model.change(&name(client, key), None, interval);
        }
        Ok(())
    }

    fn flushed(&self, acked: Moment, model: &mut Model) {
        let sent = self.sent.step;
        let flush = model
            .flushes
            .iter_mut()
            .find(|(turn, acked)| *turn == sent && acked.is_none());
        if let Some((_, ended)) = flush {
            *ended = Some(acked.step);
        }
    }

    /// Records that the connection ended without the answer.
    pub fn lose(self, client: usize, model: &mut Model) {
        let turn = self.sent.step;
        for name in changed(client, &self.op) {
            model.changes(&name, false);
        }
        let (key, entry) = match &self.op {
            Op::Set { key, len, expiry } => {
                let interval = Interval {
                    sent: self.sent,
                    acked: self.sent,
                };
                (*key, Some(self.entry(*len, *expiry, interval, model)))
            }
            Op::Delete { key } | Op::Touch { key, .. } => (*key, None),
            Op::Get {
                keys,
                touch: Some(_),
            } => {
                for key in keys {
                    if matches!(key, Key::Own(_)) {
                        model.lose(&name(client, *key), None, turn);
                    }
                }
                return;
            }
            _ => return,
        };
        if matches!(key, Key::Own(_)) {
            model.lose(&name(client, key), entry, turn);
        }
    }

    fn entry(&self, len: usize, expiry: Expiry, interval: Interval, model: &Model) -> Entry {
        Entry {
            version: self.version,
            len,
            set: interval,
            expiry: self.span(expiry, interval, model),
        }
    }

    /// The range of seconds of the cache's clock in which a value of this request expires.
    fn span(&self, expiry: Expiry, interval: Interval, model: &Model) -> Option<(u32, u32)> {
        match expiry {
            Expiry::Never => None,
            Expiry::In(seconds) => Some((
                interval.sent.cache_s + seconds,
                interval.acked.cache_s + seconds,
            )),
            Expiry::AtFromNow(_) => self.unix_s.map(|unix_s| model.second_of(unix_s)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is one lookup's")]
    fn found(
        &mut self,
        client: usize,
        key: Key,
        body: &[u8],
        hit: Option<()>,
        touch: Option<Expiry>,
        interval: Interval,
        model: &mut Model,
    ) -> Result<(), String> {
        let name = name(client, key);
        let mut found = LookupResult::Nothing;
        if hit.is_some() {
            let (setter, version) = read_value(&name, body)?;
            let len = body.len();
            found = LookupResult::Value { version, len };
            match key {
                Key::Shared(_) => {
                    let sent = model.shared.get(&(name.clone(), setter, version));
                    if sent != Some(&len) {
                        return Err(format!(
                            "{name}: client {setter} never set version {version} of {len} bytes"
                        ));
                    }
                }
                Key::Own(_) if setter != client => {
                    return Err(format!("{name}: a value of client {setter}"));
                }
                Key::Own(_) | Key::Of(..) => {}
            }
        }
        self.answered.push(found);
        if !matches!(key, Key::Shared(_)) {
            let reader = match key {
                Key::Of(..) => Reader::Other,
                Key::Own(_) | Key::Shared(_) => Reader::Owner,
            };
            model.read(&name, found, interval, reader)?;
        }
        if let (Some(expiry), Key::Own(_), Some(())) = (touch, key, hit) {
            let span = self.span(expiry, interval, model);
            model.touch(&name, span);
        }
        Ok(())
    }

    /// Checks that the key exists, whatever its value.
    fn present(
        &self,
        client: usize,
        key: Key,
        interval: Interval,
        model: &mut Model,
    ) -> Result<(), String> {
        let name = name(client, key);
        let found = match (key, model.keys.get(&name)) {
            (Key::Shared(_), _) | (_, Some(KeyState::Uncertain)) => return Ok(()),
            (_, Some(KeyState::Entry(entry))) => LookupResult::Value {
                version: entry.version,
                len: entry.len,
            },
            (_, Some(KeyState::Absent | KeyState::Gone { .. }) | None) => {
                return Err(format!(
                    "{name}: nothing is there, but {:?} found it",
                    self.op
                ));
            }
        };
        model.read(&name, found, interval, Reader::Owner)
    }
}

/// Appends a frame, after the line that switches frames on if it is the client's first one.
fn push_frame(sender: Sender, op: &Op, out: &mut Vec<u8>) {
    if !sender.has_frames {
        out.extend_from_slice(ENABLE);
    }
    let (id, received) = (sender.version as u32, sender.frames_received);
    let at = out.len();
    match op {
        Op::Frame { keys, options } => {
            let names = keys.iter().map(|key| name(sender.id, *key));
            frames::push_request(&names.collect::<Vec<_>>(), *options, id, received, out);
        }
        Op::BadFrame { form } => {
            // A header alone: the server refuses it before more of the frame has arrived.
            frames::push_request(&[], 0, id, received, out);
            out[at + 1] = *form;
        }
        _ => {}
    }
}

/// The client's own keys that a request changes.
fn changed(client: usize, op: &Op) -> Vec<String> {
    let keys = match op {
        Op::Set { key, .. } | Op::Touch { key, .. } | Op::Delete { key } => {
            std::slice::from_ref(key)
        }
        Op::Get {
            keys,
            touch: Some(_),
        } => keys,
        _ => &[],
    };
    let own = keys.iter().filter(|key| matches!(key, Key::Own(_)));
    own.map(|key| name(client, *key)).collect()
}

/// Compares the seconds that an item has left with the model.
fn check_left(left: i64, name: &str, interval: Interval, model: &Model) -> Result<(), String> {
    let Some(KeyState::Entry(entry)) = model.keys.get(name) else {
        return Ok(());
    };
    let range = match entry.expiry {
        None => -1..=-1,
        Some((first, last)) => {
            i64::from(first) - i64::from(interval.acked.cache_s)
                ..=i64::from(last) - i64::from(interval.sent.cache_s)
        }
    };
    if range.contains(&left) {
        Ok(())
    } else {
        Err(format!(
            "{name}: {left} seconds are left instead of {range:?}"
        ))
    }
}

fn unexpected(op: &Op, line: &[u8]) -> String {
    let head = &line[..line.len().min(80)];
    format!("{op:?} was answered {:?}", head.escape_ascii().to_string())
}
