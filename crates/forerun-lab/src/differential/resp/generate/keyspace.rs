//! Generates commands on keys of any type, and scans.

use super::{CHURN, Generator, Words};
use crate::differential::command::Command;
use crate::differential::step::{CompareMode, Step};

/// Patterns, some of them malformed.
const PATTERNS: [&str; 32] = [
    "*",
    "*",
    "*",
    "a*",
    "key:*",
    "*:2",
    "h[:a]*",
    "?",
    "[a-z]",
    "[^a]",
    "[^a-z]*",
    "[z-a]",
    "\\*",
    "*\\",
    "[",
    "a[",
    "[]",
    "[]a]",
    "[^]",
    "[a",
    "**",
    "*?*",
    "????*",
    "",
    "k*k",
    "\\a",
    "[\\a]",
    "[a-]",
    "n*",
    "A",
    "*\\*[[]\\?",
    "fill:?1*",
];

/// The maximum number of keys that a step before a scan adds.
const FILL_MAX: usize = 300;

impl Generator {
    pub(super) fn pattern(&mut self) -> &'static str {
        self.pick(&PATTERNS)
    }

    pub(super) fn keyspace(&mut self) -> Words {
        match self.below(40) {
            0..=8 => {
                let keys = self.several(20, Self::any_key);
                Words::of(self.pick(&["DEL", "DEL", "UNLINK"])).add_all(keys)
            }
            9..=14 => {
                let keys = self.several(20, Self::any_key);
                Words::of(self.pick(&["EXISTS", "EXISTS", "TOUCH"])).add_all(keys)
            }
            15..=18 => Words::of("TYPE").add(self.any_key()),
            // In a transaction, keys may expire before it is executed.
            19 if !self.has_expired && !self.in_transaction.contains(&true) => Words::of("DBSIZE"),
            20 => Words::of("RANDOMKEY"),
            21..=22 => Words::of("KEYS").add(self.pattern()),
            23..=24 => {
                let words = Words::of(self.pick(&["FLUSHALL", "FLUSHDB"]));
                match self.below(4) {
                    0 => words.add("ASYNC"),
                    1 => words.add("sync"),
                    2 => words.add("FOO"),
                    _ => words,
                }
            }
            25..=28 => Words::of(self.pick(&["RENAME", "RENAMENX"]))
                .add(self.any_key())
                .add(self.any_key()),
            29..=31 => {
                let words = Words::of("COPY").add(self.any_key()).add(self.any_key());
                let option = self.pick(&[
                    "", "", "REPLACE", "replace", "DB 0", "DB 1", "DB 9", "DB x", "FOO",
                ]);
                words.add_line(option)
            }
            32 => Words::of("MOVE")
                .add(self.any_key())
                .add(self.pick(&["0", "1", "1", "2", "9", "x"])),
            33..=34 => Words::of("OBJECT ENCODING").add(self.any_key()),
            35 => Words::of("OBJECT FREQ").add(self.any_key()),
            36 => Words::of("MEMORY USAGE").add(self.any_key()),
            37 => Words::of("HSCAN")
                .add(self.pick(&["missing", "a"]))
                .add("0"),
            _ => {
                let cursor = self.pick(&["x", "18446744073709551616", "1.5"]);
                Words::of("SCAN").add(cursor)
            }
        }
    }

    /// A scan to its end. Keys are added first, and others come and go during it.
    pub(super) fn scan_step(&mut self, connection: usize) -> Step {
        if self.chance(0.25) {
            let words = Words::of("HSCAN").add(self.hash_key()).add("0");
            let words = self.add_scan_options(words);
            return Self::scan_of(connection, vec![Command::array(words.0)]);
        }
        let mut words = self.add_scan_options(Words::of("SCAN 0"));
        if self.chance(0.3) {
            words = words.add_line(self.pick(&[
                "TYPE string",
                "TYPE hash",
                "type STRING",
                "TYPE list",
            ]));
        }
        let mut commands = vec![Command::array(words.0)];
        for _ in 0..self.below(4) {
            let count = 1 + self.below(FILL_MAX);
            let first = self.below(FILL_MAX);
            let keys = (first..first + count)
                .map(|number| [CHURN, number.to_string().as_bytes()].concat());
            let words = match self.below(2) {
                0 => Words::of("UNLINK").add_all(keys),
                _ => keys.fold(Words::of("MSET"), |words, key| words.add(key).add("x")),
            };
            commands.push(Command::array(words.0));
        }
        Self::scan_of(connection, commands)
    }

    fn scan_of(connection: usize, commands: Vec<Command>) -> Step {
        Step {
            compare: CompareMode::Scan,
            ..Step::new(connection, commands)
        }
    }

    fn add_scan_options(&mut self, mut words: Words) -> Words {
        if self.chance(0.5) {
            words = words.add("MATCH").add(self.pattern());
        }
        if self.chance(0.6) {
            let count = self.pick(&["1", "2", "10", "100", "1000000", "0", "-1", "x"]);
            words = words.add("COUNT").add(count);
        }
        words
    }

    /// A command that adds keys for scans.
    pub(super) fn fill(&mut self) -> Words {
        let count = 1 + self.below(FILL_MAX);
        let keys = (0..count).map(|number| format!("fill:{number}"));
        keys.fold(Words::of("MSET"), |words, key| words.add(key).add("x"))
    }
}
