//! Generates the random history of a seed.
//!
//! A history uses few keys, so that commands often touch the same items in both types, and a few
//! connections, which take turns. Its numbers come from pools of numbers that parsers often get
//! wrong. No key expires close to a command that touches it: those that expire soon are written at
//! the end of a step, and the next one waits.
//!
//! ```text
//!   mod.rs           steps
//!   tokens.rs        keys, values, numbers, names
//!   strings.rs       strings and counters
//!   times_to_live.rs times to live, keys that expire
//!   hashes.rs        hashes
//!   keyspace.rs      keys of any type, scans
//!   scripts.rs       scripts of lock libraries
//!   session.rs       connections, transactions, questions about the server
//!   malformed.rs     wrong requests, other spellings of right ones
//! ```

mod hashes;
mod keyspace;
mod malformed;
mod scripts;
mod session;
mod strings;
mod times_to_live;
mod tokens;

use std::ops::{Deref, DerefMut};

use super::programs::Kind;
use crate::differential::command::{Command, Word};
use crate::differential::draw::Draw;
use crate::differential::step::Step;

/// What the keys begin with that change during a scan.
pub(super) const CHURN: &[u8] = b"churn:";

/// Steps of a history.
const STEPS: std::ops::RangeInclusive<usize> = 60..=200;

/// The maximum number of commands in a pipeline, and in the long ones of some steps.
const PIPELINE_MAX: usize = 25;
const LONG_PIPELINE_MAX: usize = 300;

/// The connection of steps with keys that expire soon: no transaction is ever open on it.
const EXPIRY_CONNECTION: usize = 4;

/// Generates a history.
pub(super) struct Generator {
    draw: Draw,
    kinds: [Kind; 2],
    keys: Vec<Vec<u8>>,
    hash_keys: Vec<Vec<u8>>,
    /// Whether a transaction is open on each connection.
    in_transaction: [bool; EXPIRY_CONNECTION + 1],
    /// Whether a key expired before: the servers may count it among the keys for a while.
    has_expired: bool,
}

/// The history of `seed` for two servers of these kinds.
pub(super) fn history(seed: u64, kinds: [Kind; 2]) -> Vec<Step> {
    let mut draw = Draw::new(seed);
    let mut keys: Vec<Vec<u8>> = vec![b"a".to_vec(), b"key:2".to_vec()];
    for key in [
        Vec::new(),
        vec![b'k'; 300],
        b"\x00\r\n\xff*[?".to_vec(),
        b"0".to_vec(),
        "Zürich".as_bytes().to_vec(),
        vec![b'K'; 5000],
    ] {
        if draw.chance(0.3) {
            keys.push(key);
        }
    }
    let mut generator = Generator {
        draw,
        kinds,
        keys,
        hash_keys: vec![b"h".to_vec(), b"hash:2".to_vec()],
        in_transaction: [false; EXPIRY_CONNECTION + 1],
        has_expired: false,
    };
    let connections = generator.below(EXPIRY_CONNECTION) + 1;
    let count = generator.within(STEPS);
    let mut steps = Vec::new();
    while steps.len() < count {
        generator.push_steps(connections, &mut steps);
    }
    steps
}

impl Deref for Generator {
    type Target = Draw;

    fn deref(&self) -> &Draw {
        &self.draw
    }
}

impl DerefMut for Generator {
    fn deref_mut(&mut self) -> &mut Draw {
        &mut self.draw
    }
}

impl Generator {
    /// Whether one of the servers is of this kind.
    fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    fn push_steps(&mut self, connections: usize, steps: &mut Vec<Step>) {
        let connection = self.below(connections);
        match self.below(100) {
            0..=3 if !self.in_transaction[connection] => {
                let step = self.scan_step(connection);
                steps.push(step);
            }
            4..=5 => self.push_expiry_steps(steps),
            6..=8 => {
                // It may end the connection, and a transaction with it.
                let mut commands = match self.below(10) {
                    0 => vec![self.of_http()],
                    _ => self.pipeline(connection),
                };
                commands.push(self.malformed());
                let step = self.step(connection, commands);
                steps.push(step);
            }
            _ => {
                let commands = self.pipeline(connection);
                let step = self.step(connection, commands);
                steps.push(step);
            }
        }
    }

    fn step(&mut self, connection: usize, commands: Vec<Command>) -> Step {
        Step {
            cuts: self.cuts(),
            ..Step::new(connection, commands)
        }
    }

    fn pipeline(&mut self, connection: usize) -> Vec<Command> {
        let count = match self.below(100) {
            0..=54 => 1,
            55..=84 => 2 + self.below(4),
            85..=97 => 2 + self.below(PIPELINE_MAX - 1),
            _ => self.below(LONG_PIPELINE_MAX),
        };
        let mut commands = Vec::new();
        for _ in 0..count {
            self.push_command(connection, &mut commands);
            if commands.last().is_some_and(ends_connection) {
                self.in_transaction[connection] = false;
                break;
            }
        }
        commands
    }

    /// Appends a command, or a few that belong together.
    fn push_command(&mut self, connection: usize, commands: &mut Vec<Command>) {
        let mut words = match self.below(100) {
            0..=27 => self.string(),
            28..=38 => self.counter(),
            39..=52 => self.expiry(),
            53..=62 => self.keyspace(),
            63..=64 => self.script(),
            65..=82 => self.hash(),
            83..=90 => return self.push_transaction(connection, commands),
            91..=95 => return self.push_session(connection, commands),
            _ => self.almost(),
        };
        let searches: [&[u8]; 5] = [b"KEYS", b"SCAN", b"HSCAN", b"RANDOMKEY", b"FLUSHDB"];
        let is_search =
            matches!(words.0.first(), Some(Word::Text(name)) if searches.contains(&&name[..]));
        if is_search && self.in_transaction[connection] && self.has(Kind::Forerun) {
            words = Words::of("PING");
        }
        let command = self.spelled(words);
        commands.push(command);
    }
}

/// Whether the server closes the connection after it.
fn ends_connection(command: &Command) -> bool {
    matches!(command.words.first(), Some(Word::Text(name)) if name.eq_ignore_ascii_case(b"QUIT"))
}

/// The words of a command while it is composed.
#[derive(Clone, Debug)]
struct Words(Vec<Word>);

impl Words {
    /// The words of `line`, separated by spaces.
    fn of(line: &str) -> Words {
        Words(line.split(' ').map(Word::text).collect())
    }

    fn add(mut self, word: impl AsRef<[u8]>) -> Words {
        self.0.push(Word::text(word));
        self
    }

    fn add_word(mut self, word: Word) -> Words {
        self.0.push(word);
        self
    }

    fn add_all(mut self, words: impl IntoIterator<Item = Vec<u8>>) -> Words {
        self.0.extend(words.into_iter().map(Word::Text));
        self
    }

    /// The words of `line`, separated by spaces; none if it is empty.
    fn add_line(mut self, line: &str) -> Words {
        self.0.extend(line.split_whitespace().map(Word::text));
        self
    }
}
