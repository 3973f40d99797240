//! Generates wrong requests, and other spellings of right ones.

use super::{Generator, Kind, Words};
use crate::differential::command::{Command, Word};

/// Requests that end the connection, or are no commands.
const MALFORMED: [&str; 30] = [
    "*1\r\n:5\r\n",
    "*1\r\n+PING\r\n",
    "*2\r\n$4\r\nECHO\r\n*1\r\n$1\r\na\r\n",
    "*1\r\n$-1\r\n",
    "*1\r\n$x\r\n",
    "*1\r\n$\r\n",
    "*1\r\n$ 4\r\nPING\r\n",
    "*1\r\n$+4\r\nPING\r\n",
    "*1\r\n$04\r\nPING\r\n",
    "*1\r\n$4 \r\nPING\r\n",
    "*1\r\n$536870913\r\n",
    "*1\r\n$9223372036854775808\r\n",
    "*1\r\n$99999999999999999999\r\n",
    "*2147483648\r\n",
    "*9223372036854775807\r\n",
    "*x\r\n",
    "*\r\n",
    "*1x\r\n",
    "*+1\r\n",
    "* 1\r\n",
    "*0\r\n",
    "*-1\r\n",
    "*-10\r\n",
    "\r\n",
    "\n",
    "   \r\n",
    "GET \"a\r\n",
    "GET 'a\r\n",
    "SET a \"\\x\r\n",
    "$4\r\n",
];

/// Commands with a word too few or too many, and options that do not go together.
const WRONG: [&str; 40] = [
    "GET",
    "GET a b",
    "SET a",
    "SET a b EX",
    "SET a b EX 100 PX 1000",
    "SET a b EX 100 KEEPTTL",
    "SET a b NX XX",
    "SET a b FOO",
    "MSET a",
    "MSET a 1 b",
    "MSETNX a",
    "MGET",
    "DEL",
    "EXISTS",
    "INCR",
    "INCR n 5",
    "INCRBY n",
    "EXPIRE a",
    "EXPIRE a 100 FOO",
    "EXPIRE a x FOO",
    "TTL",
    "SETEX a 100",
    "SETEX a 0 v",
    "GETEX a EX",
    "GETEX a FOO",
    "GETEX a EX 100 PERSIST",
    "GETRANGE a 0",
    "HSET h",
    "HSET h f",
    "HSET h f v g",
    "HGET h",
    "HMSET h f",
    "HDEL h",
    "HINCRBY h f",
    "SCAN",
    "SCAN 0 MATCH",
    "SCAN 0 FOO",
    "KEYS",
    "RENAME a",
    "FLUSHALL ASYNC SYNC",
];

impl Generator {
    /// Sent as it is.
    pub(super) fn malformed(&mut self) -> Command {
        let bytes = match self.below(12) {
            0 => {
                let len = 1 + self.below(60);
                let mut bytes: Vec<u8> = (0..len).map(|_| self.below(256) as u8).collect();
                // It is one line, and no array, whose rest the server would wait for. Redis does
                // not see the end of a line after a NUL. Valkey drops the bytes 255, and lets words
                // go on after a quote.
                let has_valkey = self.has(Kind::Valkey);
                for byte in &mut bytes {
                    let is_left_out = has_valkey && matches!(byte, 255 | b'"' | b'\'');
                    if matches!(byte, b'\n' | b'\0') || is_left_out {
                        *byte = b' ';
                    }
                }
                if bytes[0] == b'*' {
                    bytes[0] = b'x';
                }
                [&bytes[..], b"\r\n"].concat()
            }
            // A header or a line that does not end before servers give up. Valkey may have room for
            // all of it after a long value, and then accepts it.
            1 if !self.has(Kind::Valkey) => {
                let start = self.pick(&["*", "*1\r\n$", "x"]);
                [start.as_bytes(), &b"1".repeat(200_000)].concat()
            }
            2 if !self.has(Kind::Valkey) => b"GET \"a\"b\r\n".to_vec(),
            _ => self.pick(&MALFORMED).as_bytes().to_vec(),
        };
        raw(bytes)
    }

    /// A request of HTTP, after which the connection is closed at once: whether earlier commands
    /// are still answered depends on when they arrived.
    pub(super) fn of_http(&mut self) -> Command {
        let line = self.pick(&["POST / HTTP/1.1\r\n", "Host: localhost\r\n", "post\r\n"]);
        raw(line.as_bytes().to_vec())
    }

    /// Almost a command: one with the wrong words, or an unknown one.
    pub(super) fn almost(&mut self) -> Words {
        match self.below(4) {
            0 => self.unknown(),
            1 => Words::of(self.pick(&WRONG)),
            _ => {
                let mut words = match self.below(4) {
                    0 => self.string(),
                    1 => self.expiry(),
                    2 => self.keyspace(),
                    _ => self.hash(),
                };
                let at = self.below(words.0.len());
                match self.below(3) {
                    // A name must stay, or a key would become one.
                    0 if at > 0 => drop(words.0.remove(at)),
                    1 => {
                        let word = words.0[at].clone();
                        words.0.insert(at, word);
                    }
                    _ => {
                        let word = self.pick(&["", "x", "-1", "0", "NX", "9999"]);
                        words.0.insert(at + 1, Word::text(word));
                    }
                }
                words
            }
        }
    }

    fn unknown(&mut self) -> Words {
        let name = match self.below(4) {
            0 => "F".repeat(1 + self.below(300)),
            1 => "FOO\r\nBAR".to_owned(),
            2 => "GETX".to_owned(),
            _ => "foo".to_owned(),
        };
        let words = Words::of(&name);
        if self.chance(0.3) {
            return words;
        }
        let arguments = self.several(30, |generator| {
            let mut value = generator.value();
            value.truncate(200);
            value
        });
        words.add_all(arguments)
    }

    /// A command as an array or as a line, its name in capitals or not.
    pub(super) fn spelled(&mut self, mut words: Words) -> Command {
        if let Some(Word::Text(name)) = words.0.first_mut() {
            match self.below(20) {
                0..=1 => name.make_ascii_lowercase(),
                2 => name[0].make_ascii_lowercase(),
                _ => {}
            }
        }
        if !self.chance(0.1) || !words.0.iter().all(is_plain) {
            return Command::array(words.0);
        }
        let line_end: &[u8] = match self.below(4) {
            0 => b"\n",
            _ => b"\r\n",
        };
        let line_end = line_end.to_vec();
        // The comparison knows a command by its first two words.
        for word in words.0.iter_mut().skip(2) {
            if self.chance(0.2)
                && let Word::Text(text) = word
            {
                *text = self.quoted(text);
            }
        }
        Command {
            line_end,
            ..Command::line(words.0)
        }
    }

    /// A word in quotes, with some of its bytes as escapes.
    fn quoted(&mut self, text: &[u8]) -> Vec<u8> {
        if self.chance(0.3) {
            return [b"'", text, b"'"].concat();
        }
        let mut quoted = vec![b'"'];
        for &byte in text {
            match self.below(8) {
                0 => quoted.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
                1 if !matches!(byte, b'n' | b'r' | b't' | b'b' | b'a' | b'x') => {
                    quoted.extend_from_slice(&[b'\\', byte]);
                }
                _ => quoted.push(byte),
            }
        }
        quoted.push(b'"');
        quoted
    }
}

/// Bytes that are sent as they are.
fn raw(bytes: Vec<u8>) -> Command {
    Command {
        line_end: Vec::new(),
        ..Command::line(vec![Word::Text(bytes)])
    }
}

/// Whether a word can be part of a line.
fn is_plain(word: &Word) -> bool {
    match word {
        Word::Text(text) => {
            !text.is_empty()
                && text.len() < 1000
                && text
                    .iter()
                    .all(|&byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\'))
        }
        Word::Cas { .. } | Word::TimeOfDay { .. } | Word::MillisOfDay { .. } => true,
    }
}
