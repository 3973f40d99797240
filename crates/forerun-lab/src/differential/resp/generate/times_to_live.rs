//! Generates times to live, and keys that expire.
//!
//! ```text
//!   SET x1 v PX 7, PEXPIRE x2 100000 …  ──> wait ──> read all of them
//!   SET x0 v PX 50, WATCH x0            ──> wait ──> MULTI, GET x0, EXEC
//! ```
//!
//! The servers are asked one after the other, so nothing reads a key close to its end: it is
//! written at the end of a step, and the next one waits long enough.

use super::{EXPIRY_CONNECTION, Generator, Words};
use crate::differential::command::Command;
use crate::differential::step::Step;

/// The longest time to live of a key that expires, in milliseconds.
const SHORT_MS: usize = 20;

/// How long to wait until it has expired, also on a busy machine.
const WAIT_MS: u64 = 60;

/// Keys of a step that expire.
const EXPIRING: usize = 6;

impl Generator {
    pub(super) fn expiry(&mut self) -> Words {
        match self.below(24) {
            0..=10 => {
                let (name, is_ms) = [("EXPIRE", false), ("PEXPIRE", true)][self.below(2)];
                let words = Words::of(name)
                    .add(self.any_key())
                    .add(self.time_to_live(is_ms));
                self.add_condition(words)
            }
            11..=13 => {
                let (name, is_ms) = [("EXPIREAT", false), ("PEXPIREAT", true)][self.below(2)];
                let words = Words::of(name)
                    .add(self.any_key())
                    .add_word(self.time_of_day(is_ms));
                self.add_condition(words)
            }
            14..=15 => Words::of("PERSIST").add(self.any_key()),
            _ => {
                let name = self.pick(&["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"]);
                Words::of(name).add(self.any_key())
            }
        }
    }

    fn add_condition(&mut self, words: Words) -> Words {
        let condition = match self.below(3) {
            0 => self.pick(&["NX", "XX", "GT", "LT", "gt"]),
            1 if self.chance(0.3) => {
                self.pick(&["XX GT", "XX LT", "NX GT", "NX XX", "GT LT", "FOO"])
            }
            _ => "",
        };
        words.add_line(condition)
    }

    /// Writes keys that expire soon and others that do not, waits, and reads them.
    pub(super) fn push_expiry_steps(&mut self, steps: &mut Vec<Step>) {
        self.has_expired = true;
        if self.chance(0.2) {
            return push_watched_expiry(steps);
        }
        let keys: Vec<String> = (0..EXPIRING).map(|number| format!("x{number}")).collect();
        let mut first = vec![Words::of("DEL").add_all(keys.iter().map(|key| key.clone().into()))];
        let mut last = Vec::new();
        let mut reads = Vec::new();
        for key in &keys {
            let (earlier, expiring) = self.expiring(key);
            first.extend(earlier);
            last.push(expiring);
            for _ in 0..1 + self.below(2) {
                reads.push(self.read_of(key));
            }
        }
        first.append(&mut last);
        steps.push(step_of(first, 0));
        steps.push(step_of(reads, WAIT_MS));
    }

    /// Commands for a key: some that need it to exist, then the one that lets it expire soon, or
    /// late.
    fn expiring(&mut self, key: &str) -> (Option<Words>, Words) {
        let is_short = self.chance(0.6);
        let ms = if is_short {
            1 + self.below(SHORT_MS)
        } else {
            100_000 + self.below(100_000)
        };
        let value = self.below(100).to_string();
        match self.below(5) {
            0 => (
                None,
                Words::of("SET")
                    .add(key)
                    .add(value)
                    .add("PX")
                    .add(ms.to_string()),
            ),
            1 => (
                None,
                Words::of("PSETEX").add(key).add(ms.to_string()).add(value),
            ),
            2 => (
                Some(Words::of("HSET").add(key).add("f").add(value)),
                Words::of("PEXPIRE").add(key).add(ms.to_string()),
            ),
            3 => (
                Some(Words::of("SET").add(key).add(value).add_line("EX 100")),
                Words::of("PEXPIRE")
                    .add(key)
                    .add(ms.to_string())
                    .add(if is_short { "LT" } else { "XX" }),
            ),
            _ => (
                Some(Words::of("SET").add(key).add(value)),
                Words::of("GETEX").add(key).add("PX").add(ms.to_string()),
            ),
        }
    }

    /// A command whose answer depends on whether the key exists.
    fn read_of(&mut self, key: &str) -> Words {
        match self.below(14) {
            0 => Words::of("GET").add(key),
            1 => Words::of("EXISTS").add(key).add(key),
            2 => Words::of("TTL").add(key),
            3 => Words::of("MGET").add(key).add("x0"),
            4 => Words::of("TYPE").add(key),
            5 => Words::of("STRLEN").add(key),
            6 => Words::of("HGETALL").add(key),
            7 => Words::of("SET")
                .add(key)
                .add("y")
                .add(self.pick(&["NX", "XX"])),
            8 => Words::of("DEL").add(key),
            9 => Words::of("PERSIST").add(key),
            10 => Words::of("KEYS").add("x*"),
            11 => Words::of("INCR").add(key),
            12 => Words::of("EXPIRE").add(key).add("100"),
            _ => Words::of("RENAME").add(key).add("x0"),
        }
    }
}

/// A transaction that watches a key which expires before it executes.
fn push_watched_expiry(steps: &mut Vec<Step>) {
    let lines = |lines: &[&str]| lines.iter().map(|line| Words::of(line)).collect();
    steps.push(step_of(lines(&["SET x0 v PX 50", "WATCH x0"]), 0));
    steps.push(step_of(lines(&["MULTI", "GET x0", "EXEC"]), 2 * WAIT_MS));
}

fn step_of(commands: Vec<Words>, wait_ms: u64) -> Step {
    let commands = commands.into_iter().map(|words| Command::array(words.0));
    Step {
        wait_ms,
        ..Step::new(EXPIRY_CONNECTION, commands.collect())
    }
}
