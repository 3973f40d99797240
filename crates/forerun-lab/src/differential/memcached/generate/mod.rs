//! Generates the random history of a seed.
//!
//! A history uses few keys, so that commands often touch the same items, and a few connections,
//! which take turns. Its numbers come from pools of numbers that parsers often get wrong. Commands
//! whose difference [`known_differences`](super::known_differences) lists as not generated are left
//! out.

mod binary;
mod classic;
mod expiry;
mod garbage;
mod meta;
mod tokens;

use std::ops::{Deref, DerefMut};

use super::known_differences::{LATER, Version};
use crate::differential::command::{Command, Word};
use crate::differential::draw::Draw;
use crate::differential::step::{CompareMode, Step};

/// Steps of a history.
const STEPS: std::ops::RangeInclusive<usize> = 60..=200;

/// The maximum number of commands in a pipeline.
const PIPELINE_MAX: usize = 25;

/// The share of histories in which time passes. Each takes seconds.
const EXPIRY_SHARE: f64 = 0.03;

/// The share of steps in the binary protocol, in half of the histories.
const BINARY_SHARE: f64 = 0.4;

/// Generates a history.
pub(super) struct Generator {
    draw: Draw,
    memcached: Version,
    keys: Vec<Vec<u8>>,
    /// Keys that are sent only in base64, in that form.
    base64_keys: Vec<Vec<u8>>,
    /// Keys of numbers that may grow.
    counter_keys: Vec<Vec<u8>>,
    /// The share of steps in the binary protocol.
    binary_share: f64,
    /// Whether everything was flushed before.
    was_flushed: bool,
}

/// The history of `seed` for this version of memcached.
pub(super) fn history(seed: u64, memcached: Version) -> Vec<Step> {
    let mut draw = Draw::new(seed);
    let mut keys: Vec<Vec<u8>> = vec![b"a".to_vec(), b"key:2".to_vec()];
    for key in [
        vec![b'k'; 250],
        b"\x01\t\xff".to_vec(),
        b"0".to_vec(),
        b"noreply".to_vec(),
        "Zürich".as_bytes().to_vec(),
        vec![b'\r', b'x'],
    ] {
        // A later memcached reads this key as the word of that name.
        let is_word = key == b"noreply" && memcached >= LATER;
        if draw.chance(0.3) && !is_word {
            keys.push(key);
        }
    }
    let base64_keys = ["Zm9v", "/+8=", "44OG44K544OI", "AAECAyAKDQ=="]
        .iter()
        .map(|key| key.as_bytes().to_vec())
        .take(draw.within(1..=4))
        .collect();
    let mut generator = Generator {
        draw,
        memcached,
        keys,
        base64_keys,
        counter_keys: vec![b"n".to_vec(), b"n:2".to_vec()],
        binary_share: 0.0,
        was_flushed: false,
    };
    if generator.chance(EXPIRY_SHARE) {
        return generator.expiry_history();
    }
    if generator.chance(0.5) {
        generator.binary_share = BINARY_SHARE;
    }
    let connections = generator.within(1..=4);
    let steps = generator.within(STEPS);
    (0..steps).map(|_| generator.step(connections)).collect()
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
    /// Whether this is a later memcached: it parses malformed lines differently from 1.6.18, which
    /// this server follows.
    fn is_later(&self) -> bool {
        self.memcached >= LATER
    }

    fn step(&mut self, connections: usize) -> Step {
        if self.binary_share > 0.0 && self.draw.chance(self.binary_share) {
            return self.binary_step();
        }
        let connection = self.below(connections);
        if self.chance(0.04) {
            return self.solo(connection);
        }
        let count = match self.below(10) {
            0..=5 => 1,
            6..=8 => 2 + self.below(4),
            _ => 2 + self.below(PIPELINE_MAX - 1),
        };
        let mut commands: Vec<Command> = (0..count).map(|_| self.command()).collect();
        if let Some(at) = commands.iter().position(drops_answers) {
            commands = vec![commands.swap_remove(at)];
        }
        // Memcached does not change a number in place while an answer with its item waits to be
        // sent.
        let reads = commands.iter().position(is_read).unwrap_or(commands.len());
        let mut at = 0;
        commands.retain(|command| {
            at += 1;
            at <= reads || !is_arithmetic(command)
        });
        // The server answers nothing after it.
        let quits = commands
            .iter()
            .position(|command| is_named(command, b"quit"));
        commands.truncate(quits.map_or(commands.len(), |at| at + 1));
        // The consecutive answers to these two look like the fence's. A quiet command between them
        // answers nothing, so no `version` may follow an `mn` within a step.
        let fences = commands.iter().position(|command| is_named(command, b"mn"));
        let fences = fences.unwrap_or(commands.len());
        let mut at = 0;
        commands.retain(|command| {
            at += 1;
            at <= fences || !is_named(command, b"version")
        });
        if !self.is_later() && commands.len() > 1 {
            commands.iter_mut().for_each(answer_the_number);
        }
        Step {
            cuts: self.cuts(),
            ..Step::new(connection, commands)
        }
    }

    /// A step of one command that is compared in its own way.
    fn solo(&mut self, connection: usize) -> Step {
        let (command, padding, compare) = match self.below(4) {
            0 if self.is_later() => (self.large(), 0, CompareMode::Whole),
            0 => (self.refused_store(), 12, CompareMode::BlockMayBeRead),
            1 => (self.misshapen_block(), 12, CompareMode::Whole),
            2 => (
                Command::line(vec![Word::text("stats")]),
                0,
                CompareMode::Unordered,
            ),
            _ => (
                Command::line(["lru_crawler", "metadump", "all"].map(Word::text).to_vec()),
                0,
                CompareMode::Unordered,
            ),
        };
        Step {
            padding,
            compare,
            ..Step::new(connection, vec![command])
        }
    }

    fn command(&mut self) -> Command {
        let mut command = match self.below(100) {
            0..=34 => self.classic(),
            35..=89 => self.meta(),
            90..=95 => self.admin(),
            96 => self.large(),
            _ if self.is_later() => self.too_long(),
            _ => self.garbage(),
        };
        if self.chance(0.02) && command.block.is_none() && !self.is_later() {
            command.line_end = b"\n".to_vec();
        }
        command
    }

    /// A key for a command that leaves the item unchanged, or sets its value.
    fn key(&mut self) -> Vec<u8> {
        if self.chance(0.15) {
            return self.counter_key();
        }
        self.plain_key()
    }

    fn plain_key(&mut self) -> Vec<u8> {
        let index = self.draw.below(self.keys.len() + 3);
        // The first key is used most.
        self.keys.get(index).unwrap_or(&self.keys[0]).clone()
    }

    fn counter_key(&mut self) -> Vec<u8> {
        let index = self.draw.below(self.counter_keys.len());
        self.counter_keys[index].clone()
    }
}

/// The words of a command, which are known before it is sent.
fn texts(command: &Command) -> impl Iterator<Item = &[u8]> {
    command.words.iter().filter_map(|word| match word {
        Word::Text(text) => Some(&text[..]),
        _ => None,
    })
}

fn is_read(command: &Command) -> bool {
    let name = texts(command).next().unwrap_or_default();
    matches!(name, b"get" | b"gets" | b"bget" | b"gat" | b"gats" | b"mg")
}

fn is_named(command: &Command, name: &[u8]) -> bool {
    texts(command)
        .next()
        .is_some_and(|first| first.starts_with(name))
}

fn is_arithmetic(command: &Command) -> bool {
    matches!(texts(command).next(), Some(b"incr" | b"decr" | b"ma"))
}

/// Makes a counting command answer its number: whether an earlier memcached may refuse the command
/// depends on the size of that number.
fn answer_the_number(command: &mut Command) {
    let has_value = texts(command).any(|word| word == b"v");
    if texts(command).next() == Some(b"ma") && !has_value {
        command.words.push(Word::text("v"));
    }
}

/// Whether memcached drops the queued answers before this command's: it does if one key in a line
/// of keys is too long.
fn drops_answers(command: &Command) -> bool {
    is_read(command)
        && texts(command).next() != Some(b"mg")
        && texts(command).any(|word| word.len() > 250)
}
