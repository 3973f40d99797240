//! Generates the classic commands and the operator's commands.

use super::{Command, Generator, Word};

impl Generator {
    pub(super) fn classic(&mut self) -> Command {
        match self.below(20) {
            0..=6 => self.classic_store(),
            7..=10 => self.classic_get(),
            11 | 12 => {
                let name = self.pick(&["gat", "gats"]);
                let mut words = vec![Word::text(name), self.time("")];
                for _ in 0..self.below(3) + usize::from(self.is_later()) {
                    words.push(Word::Text(self.key()));
                }
                Command::line(words)
            }
            13 | 14 => {
                let words = vec![Word::text("touch"), Word::Text(self.key()), self.time("")];
                self.maybe_quiet(words)
            }
            15..=17 => {
                // Only a counter may grow.
                let (name, key, delta) = match self.below(4) {
                    0 => ("decr", self.plain_key(), self.number()),
                    1 => ("incr", self.plain_key(), "0".to_owned()),
                    2 => ("incr", self.counter_key(), self.number()),
                    _ => ("decr", self.counter_key(), self.number()),
                };
                let words = vec![Word::text(name), Word::Text(key), Word::text(delta)];
                self.maybe_quiet(words)
            }
            _ => {
                let mut words = vec![Word::text("delete"), Word::Text(self.key())];
                if self.chance(0.2) && !self.is_later() {
                    words.push(Word::text(self.pick(&["0", "1", "00", "x"])));
                }
                self.maybe_quiet(words)
            }
        }
    }

    fn maybe_quiet(&mut self, mut words: Vec<Word>) -> Command {
        words.extend(self.noreply());
        Command::line(words)
    }

    fn classic_get(&mut self) -> Command {
        let name = match self.below(9) {
            0..=3 => "get",
            8 if !self.is_later() => "bget",
            _ => "gets",
        };
        let count = match self.below(50) {
            // With the other names, memcached does not accept such a long line.
            0 if name != "bget" => 100 + self.below(300),
            1..=10 => 2 + self.below(8),
            _ => 1,
        };
        let mut words = vec![Word::text(name)];
        for _ in 0..count {
            words.push(match self.below(5) {
                0 => Word::text("nobody"),
                _ => Word::Text(self.key()),
            });
        }
        Command::line(words)
    }

    /// A storage command that no server refuses; `refused_store` makes invalid ones.
    fn classic_store(&mut self) -> Command {
        let name = self.pick(&[
            "set", "set", "set", "add", "replace", "append", "prepend", "cas",
        ]);
        let value = self.value();
        let flags = if self.is_later() {
            self.pick(&["0", "7", "2147483648", "4294967295"])
        } else {
            self.pick(&[
                "0",
                "7",
                "+7",
                "007",
                "-0",
                "\t7",
                "2147483648",
                "4294967295",
            ])
        };
        let time = loop {
            match self.time("") {
                Word::Text(text) if !is_time(&text) => {}
                time => break time,
            }
        };
        let mut words = vec![
            Word::text(name),
            Word::Text(self.key()),
            Word::text(flags),
            time,
            Word::text(value.len().to_string()),
        ];
        if name == "cas" {
            let back = self.below(4);
            words.push(Word::Cas { letter: "", back });
        }
        words.extend(self.noreply());
        Command::with_value(words, &value)
    }

    /// A value that memcached stores in several chunks, or that is too large; or a read of it.
    pub(super) fn large(&mut self) -> Command {
        let key = Word::text("large");
        match self.below(8) {
            0 => {
                let len = 600_000 + self.below(2_000_000);
                let value = self.long_value(len);
                let len = Word::text(value.len().to_string());
                Command::with_value(
                    vec![
                        Word::text("ms"),
                        key,
                        len,
                        Word::text("T500"),
                        Word::text("c"),
                    ],
                    &value,
                )
            }
            1 => {
                let value = self.long_value((4 << 20) + 100);
                let name = self.pick(&["set", "add", "replace"]);
                let mut words = vec![Word::text(name), key];
                words.extend(["0", "0", &value.len().to_string()].map(Word::text));
                words.extend(self.noreply());
                Command::with_value(words, &value)
            }
            2 => {
                let len = 600_000 + self.below(100_000);
                let value = self.long_value(len);
                let name = self.pick(&["set", "add", "replace", "append", "prepend"]);
                let mut words = vec![Word::text(name), key];
                words.extend(["7", "0", &value.len().to_string()].map(Word::text));
                words.extend(self.noreply());
                Command::with_value(words, &value)
            }
            3 => Command::line(vec![Word::text("gets"), key.clone(), key]),
            4 => Command::line(vec![Word::text("touch"), key, Word::text("900")]),
            _ => {
                let mut words = vec![Word::text("mg"), key];
                words.extend(self.some(&["v", "s", "c", "t", "k", "f", "h"]));
                Command::line(words)
            }
        }
    }

    /// A storage command with an invalid line.
    pub(super) fn refused_store(&mut self) -> Command {
        let fault = self.below(4);
        let value = match fault {
            // Another word may replace the length, as in `misshapen_block`.
            1 | 2 => self.pick(&["5", "x", "nothing", "12345"]),
            _ => self.pick(&["", "5", "x", "nothing", "12345"]),
        };
        let len = value.len().to_string();
        let mut words: Vec<Word> = match self.below(4) {
            0 => {
                let mut words = vec![Word::text("ms"), Word::Text(self.key()), Word::text(&len)];
                words.extend(self.meta_flags(b"cTFCIqOkSMLPZZ1"));
                words
            }
            _ => {
                let name = self.pick(&["set", "add", "replace", "append", "prepend", "cas"]);
                let mut words = vec![
                    Word::text(name),
                    Word::Text(self.key()),
                    Word::text(self.client_flags()),
                    self.time(""),
                    Word::text(&len),
                ];
                if name == "cas" {
                    words.push(self.version(""));
                }
                words.extend(self.noreply());
                words
            }
        };
        // The replacement of the length must not be so large that neither server ever receives the
        // whole data block.
        let small = |words: &mut Vec<Word>| {
            for word in words.iter_mut().skip(2) {
                let is_small = matches!(word, Word::Text(text) if text.len() < 2);
                if !is_small {
                    *word = Word::text("3");
                }
            }
        };
        match fault {
            0 => words[1] = Word::Text(vec![b'k'; 251 + self.below(20)]),
            1 => {
                small(&mut words);
                let at = 1 + self.below(words.len() - 1);
                words.remove(at);
            }
            2 => {
                small(&mut words);
                let at = 1 + self.below(words.len() - 1);
                words.insert(at, Word::text("1"));
            }
            _ => {}
        }
        // The replacement of the time must not expire during the history. `ms` has its time after a
        // `T`.
        let is_classic = words[0] != Word::text("ms");
        if let (true, 1 | 2, 5..) = (is_classic, fault, words.len()) {
            words[3] = Word::text("500");
        }
        Command::with_value(words, value.as_bytes())
    }

    /// A storage command with a data block that is longer or shorter than announced.
    pub(super) fn misshapen_block(&mut self) -> Command {
        // The value must not be empty: white space would be stored, and memcached would read a
        // number from the memory after it.
        let value = self.pick(&["5", "x", "nothing", "12345"]);
        let len = (value.len() + self.below(7)).saturating_sub(3).to_string();
        let words = match self.below(3) {
            // A later memcached remembers the version that it meant for the item.
            0 if !self.is_later() => {
                let mut words = vec![Word::text("ms"), Word::Text(self.key()), Word::text(&len)];
                words.extend(self.some(&["q", "c", "k", "Oopaque", "T500"]));
                words
            }
            _ => {
                let name = self.pick(&["set", "add", "replace", "append", "prepend"]);
                let mut words = vec![Word::text(name), Word::Text(self.key())];
                words.extend(["0", "0", &len].map(Word::text));
                words.extend(self.noreply());
                words
            }
        };
        let mut command = Command::with_value(words, value.as_bytes());
        if let (0, Some(block)) = (self.below(3), &mut command.block) {
            block.remove(value.len());
        }
        command
    }

    /// Some of these words.
    pub(super) fn some(&mut self, from: &[&str]) -> Vec<Word> {
        let mut words = Vec::new();
        for word in from {
            if self.chance(0.4) {
                words.push(Word::text(word));
            }
        }
        words
    }

    fn plain_admin(&mut self) -> Command {
        let line = self.pick(&PLAIN_ADMIN);
        Command::line(line.split(' ').map(Word::text).collect())
    }

    /// An operator's command.
    pub(super) fn admin(&mut self) -> Command {
        if self.is_later() {
            return self.plain_admin();
        }
        let line = match self.below(12) {
            0..=2 => {
                // After another flush, a memcached flush with a delay, or with a time before its
                // start, brings back what the other flush removed.
                let now = [
                    "",
                    "",
                    " 0",
                    " x",
                    " -0",
                    " 0 noreply",
                    " noreply",
                    " -1",
                    " 2147483648",
                    " 4294967296",
                    " 9223372036854775808",
                    " 1 2 3",
                ];
                let later = [" 1000", " 3000 noreply", " 2147483647", " 1000000000"];
                let delay = if self.was_flushed || self.chance(0.3) {
                    self.pick(&now)
                } else {
                    self.pick(&later)
                };
                self.was_flushed |= now.contains(&delay);
                format!("flush_all{delay}")
            }
            3 | 4 => {
                let level = self.pick(&[
                    "",
                    " 0",
                    " 1",
                    " x",
                    " 0 noreply",
                    " 1 2",
                    " noreply",
                    " 1 2 3",
                ]);
                format!("verbosity{level}")
            }
            5 | 6 => format!("version{}", self.pick(&["", " 1", " noreply"])),
            7 => format!("mn{}", self.pick(&["", " 1", " q"])),
            8 => {
                let rest = self.pick(&[
                    " nonsense",
                    " detail",
                    " detail on",
                    " detail on",
                    " detail off",
                    " reset",
                    " sizes",
                    " cachedump",
                    " cachedump x",
                    " cachedump 1 x",
                    " detail x",
                    " detail dump",
                    " reset x",
                ]);
                format!("stats{rest}")
            }
            9 => {
                let rest = self.pick(&[
                    "",
                    " nonsense",
                    " tocrawl x",
                    " sleep x",
                    " sleep 1000001",
                    " crawl",
                    " crawl x",
                    " disable x",
                    " sleep 100",
                    " sleep 0",
                    " tocrawl 5",
                    " tocrawl 0",
                    " tocrawl",
                    " metadump",
                ]);
                format!("lru_crawler{rest}")
            }
            10 => format!(
                "cache_memlimit{}",
                self.pick(&["", " x", " 1", " 1000000001", " 512", " 512 noreply", " -1"])
            ),
            _ => self
                .pick(&[
                    "shutdown",
                    "shutdown graceful",
                    "lru",
                    "lru nonsense 1",
                    "extstore",
                    "slabs",
                    "slabs automove x",
                    "slabs automove 0",
                    "slabs automove 7",
                    "watch nonsense",
                    "misbehave",
                    "quit",
                    "quit now",
                    "me",
                    "verbosity",
                ])
                .to_owned(),
        };
        Command::line(line.split(' ').map(Word::text).collect())
    }
}

/// Operator's commands that every version parses in the same way.
const PLAIN_ADMIN: [&str; 17] = [
    "flush_all",
    "flush_all noreply",
    "flush_all 0",
    "verbosity 0",
    "verbosity 1 noreply",
    "version",
    "mn",
    "stats nonsense",
    "stats reset",
    "stats detail off",
    "cache_memlimit 1",
    "cache_memlimit 512",
    "cache_memlimit 1000000001",
    "lru_crawler sleep 1000001",
    "shutdown",
    "misbehave",
    "quit",
];

/// Whether every server accepts this time to live.
fn is_time(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    text.iter().all(u8::is_ascii_digit)
        && std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}
