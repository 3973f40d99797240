//! Conversations: requests and their answers, in files that read like a transcript.
//!
//! ```text
//!   == name of the case
//!   > set a 0 0 5                 sent with \r\n appended; with \ at the end, without it
//!   > hello
//!   < STORED                      the answer, with \r\n appended
//!   ! NOT_STORED                  memcached 1.6.18's answer, if it differs; it replaces the whole answer
//!   !                             with nothing after it: no answer at all
//!   # anything else is a comment
//! ```
//!
//! `{name}` in an answer matches digits and stores them. In a request, it is replaced by the stored
//! digits. `\xNN`, `\r`, `\n` and `\\` are bytes. Every case begins with an empty cache.

#![allow(dead_code, reason = "each test uses some of this")]

pub mod memcached;
pub mod packets;

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;

use forerun_cache::{Cache, CacheOptions, Clock};
use forerun_server::{Context, Input, NoServer, Output, Session, SessionState, Settings, Shared};

/// A request and its answer.
pub struct Exchange {
    pub sent: Vec<u8>,
    pub answer: Vec<u8>,
    /// Memcached's answer, if it differs.
    pub memcached: Option<Vec<u8>>,
    pub line: usize,
}

pub struct Case {
    pub name: String,
    pub turns: Vec<Exchange>,
}

/// Parses all cases of a file.
pub fn cases(text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix("== ") {
            cases.push(Case {
                name: name.to_owned(),
                turns: Vec::new(),
            });
            continue;
        }
        let Some(kind) = line.chars().next().filter(|kind| "><!".contains(*kind)) else {
            continue;
        };
        let bytes = bytes_of(line[1..].strip_prefix(' ').unwrap_or_default());
        let turns = &mut cases.last_mut().expect("a case begins with ==").turns;
        if kind == '>' {
            if turns
                .last()
                .is_none_or(|turn| !turn.answer.is_empty() || turn.memcached.is_some())
            {
                turns.push(Exchange {
                    sent: Vec::new(),
                    answer: Vec::new(),
                    memcached: None,
                    line: index + 1,
                });
            }
            turns.last_mut().expect("there is one").sent.extend(bytes);
            continue;
        }
        let turn = turns.last_mut().expect("something was sent");
        match kind {
            '<' => turn.answer.extend(bytes),
            _ if line == "!" => turn.memcached = Some(Vec::new()),
            _ => turn.memcached.get_or_insert_default().extend(bytes),
        }
    }
    cases
}

fn bytes_of(text: &str) -> Vec<u8> {
    let (text, end) = match text.strip_suffix('\\') {
        Some(text) if !text.ends_with('\\') => (text, ""),
        _ => (text, "\r\n"),
    };
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(char) = rest.next() {
        if char != '\\' {
            bytes.extend(char.to_string().bytes());
            continue;
        }
        match rest.next().expect("something behind a backslash") {
            'r' => bytes.push(b'\r'),
            'n' => bytes.push(b'\n'),
            'x' => {
                let digits: String = rest.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(&digits, 16).expect("two hexadecimal digits"));
            }
            '*' => {
                // `\*N,c` means N times the letter c.
                let count: String = rest.by_ref().take_while(|char| *char != ',').collect();
                let char = rest.next().expect("a letter") as u8;
                bytes.extend(vec![char; count.parse().expect("a number")]);
            }
            other => bytes.push(other as u8),
        }
    }
    bytes.extend(end.bytes());
    bytes
}

/// The values of `{name}`.
#[derive(Default)]
pub struct Kept(HashMap<String, String>);

impl Kept {
    /// Replaces the names in the request with the stored numbers.
    pub fn fill(&self, sent: &[u8]) -> Vec<u8> {
        let mut filled = String::from_utf8_lossy(sent).into_owned();
        if !filled.contains('{') {
            return sent.to_vec();
        }
        for (name, digits) in &self.0 {
            filled = filled.replace(&format!("{{{name}}}"), digits);
        }
        filled.into_bytes()
    }

    /// Whether an answer is the expected one. Stores its numbers.
    pub fn matches(&mut self, expected: &[u8], answer: &[u8]) -> bool {
        let (mut expected, mut answer) = (expected, answer);
        loop {
            match (expected, answer) {
                ([], []) => return true,
                ([b'{', name @ ..], _) => {
                    let Some(end) = name.iter().position(|&byte| byte == b'}') else {
                        return false;
                    };
                    let digits = answer
                        .iter()
                        .take_while(|byte| byte.is_ascii_digit())
                        .count();
                    if digits == 0 {
                        return false;
                    }
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    self.0.insert(text(&name[..end]), text(&answer[..digits]));
                    (expected, answer) = (&name[end + 1..], &answer[digits..]);
                }
                ([a, a_rest @ ..], [b, b_rest @ ..]) if a == b => {
                    (expected, answer) = (a_rest, b_rest)
                }
                _ => return false,
            }
        }
    }
}

/// A session with everything it needs.
pub struct Client {
    session: Session,
    input: Input,
    pub output: Output,
    context: Context,
    pub cache: Arc<Cache>,
    pub is_closed: bool,
}

impl Client {
    pub fn new() -> Self {
        Self::with(CacheOptions::default(), Settings::default())
    }

    pub fn with(options: CacheOptions, settings: Settings) -> Self {
        let options = options.clock(Clock::Manual);
        let cache = Arc::new(Cache::new(options).expect("the options are fine"));
        let shared = Shared::new(settings, Arc::clone(&cache), Box::new(NoServer));
        Self {
            session: Session::new(),
            input: Input::new(),
            output: Output::new(),
            context: Context::new(Arc::new(shared)),
            cache,
            is_closed: false,
        }
    }

    /// Sends `bytes` in pieces of at most `step` and reads the answers in between.
    pub fn send_in_steps(&mut self, bytes: &[u8], step: usize) -> Vec<u8> {
        let mut answer = Vec::new();
        for piece in bytes.chunks(step.max(1)) {
            self.input.extend(piece);
            while !self.is_closed {
                let next =
                    self.session
                        .receive(&mut self.input, &mut self.output, &mut self.context);
                self.read(&mut answer, usize::MAX);
                match next {
                    SessionState::NeedsInput => break,
                    SessionState::OutputFull => {}
                    SessionState::Closed | SessionState::Shutdown | SessionState::Watching => {
                        self.is_closed = true;
                    }
                }
            }
        }
        answer
    }

    /// Sends `bytes` at once.
    pub fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.send_in_steps(bytes, usize::MAX)
    }

    /// Reads up to `max` bytes of the output.
    pub fn read(&mut self, answer: &mut Vec<u8>, max: usize) {
        let mut left = max;
        while left > 0 && !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[])];
            self.output.slices(&mut slices);
            let count = slices[0].len().min(left);
            answer.extend_from_slice(&slices[0][..count]);
            self.output.advance(count);
            left -= count;
        }
    }

    /// Calls the session once.
    pub fn receive(&mut self) -> SessionState {
        self.session
            .receive(&mut self.input, &mut self.output, &mut self.context)
    }

    pub fn input(&mut self) -> &mut Input {
        &mut self.input
    }
}

/// The result of C's `strtoull` for a value, if only white space follows the digits.
pub fn strtoull(value: &str) -> Option<u64> {
    let is_space = |c: char| c.is_ascii_whitespace() || c == '\x0b';
    let value = value.trim_start_matches(is_space);
    let value = value.strip_prefix('+').unwrap_or(value);
    let end = value
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(value.len());
    let (digits, behind) = value.split_at(end);
    let is_number = behind.is_empty() || behind.starts_with(is_space);
    is_number.then(|| digits.parse().ok()).flatten()
}

/// All files of conversations.
pub const FILES: [(&str, &str); 4] = [
    ("classic", include_str!("../conversations/classic.txt")),
    ("meta", include_str!("../conversations/meta.txt")),
    ("errors", include_str!("../conversations/errors.txt")),
    ("admin", include_str!("../conversations/admin.txt")),
];
