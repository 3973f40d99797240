//! Generates the meta commands.

use super::{Command, Generator, Word};

/// How a key is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Its number may grow.
    Counter,
    /// It is sent in base64.
    Base64,
}

#[derive(Debug)]
struct Key {
    sent: Vec<u8>,
    kind: Kind,
}

impl Generator {
    pub(super) fn meta(&mut self) -> Command {
        let key = self.meta_key();
        match self.below(20) {
            0..=7 => self.meta_line("mg", key, b"vvvttffsshkqulOTNRLPc", b"CE"),
            8..=12 => self.meta_store(key),
            // Memcached's `x` drops the item's time and marks but keeps its version, so the command
            // must give them.
            13 if self.is_later() && key.kind == Kind::Counter => {
                let mut command = self.meta_line("md", key, b"CqOkLP", b"");
                command
                    .words
                    .extend([Word::text("x"), self.new_version(), self.time("T")]);
                command
            }
            13 | 14 => self.meta_line("md", key, b"CITqOkLP", b"E"),
            15..=17 => self.meta_arithmetic(key),
            // A later memcached does not decode this key.
            18 if key.kind != Kind::Counter && !(self.is_later() && key.kind == Kind::Base64) => {
                let mut words = vec![Word::text("me"), Word::Text(key.sent)];
                words.extend((key.kind == Kind::Base64).then(|| Word::text("b")));
                Command::line(words)
            }
            _ => Command::line(vec![Word::text("mn")]),
        }
    }

    fn meta_key(&mut self) -> Key {
        let (sent, kind) = match self.below(6) {
            0 => {
                let index = self.draw.below(self.base64_keys.len());
                (self.base64_keys[index].clone(), Kind::Base64)
            }
            1 => (self.counter_key(), Kind::Counter),
            _ => (self.plain_key(), Kind::Plain),
        };
        Key { sent, kind }
    }

    /// A one-line command with flags from these letters; only later versions know those in `later`.
    fn meta_line(&mut self, name: &str, key: Key, letters: &[u8], later: &[u8]) -> Command {
        let later = if self.is_later() { later } else { b"" };
        // In memcached, a number that grows loses its marks, and an item that memcached creates
        // itself does not record that its key is binary.
        let unfit: &[u8] = match key.kind {
            Kind::Plain => b"",
            Kind::Counter => b"hlRIN",
            Kind::Base64 => b"N",
        };
        let letters: Vec<u8> = letters
            .iter()
            .chain(later)
            .copied()
            .filter(|letter| !unfit.contains(letter))
            .collect();
        let mut flags = self.meta_flags(&letters);
        if key.kind == Kind::Base64 {
            let at = self.below(flags.len() + 1);
            flags.insert(at, Word::text("b"));
        }
        let mut words = vec![Word::text(name), Word::Text(key.sent)];
        words.extend(flags);
        Command::line(words)
    }

    fn meta_arithmetic(&mut self, mut key: Key) -> Command {
        if key.kind == Kind::Base64 {
            key = Key {
                sent: self.counter_key(),
                kind: Kind::Counter,
            };
        }
        match key.kind {
            Kind::Counter => {
                // No `T` and `E`: if a number grows, memcached gives them to the old item.
                let mut command = self.meta_line("ma", key, b"JDCMtvckqOLP", b"");
                // An older memcached answers quiet commands that create a counter.
                let is_quiet = command.words.contains(&Word::text("q"));
                if (self.is_later() || !is_quiet) && self.chance(0.3) {
                    command.words.push(self.time("N"));
                }
                command
            }
            _ => {
                let mut command = self.meta_line("ma", key, b"CtvckqOLPT", b"E");
                // It must not grow.
                command
                    .words
                    .push(Word::text(self.pick(&["D0", "MD", "M-"])));
                command
            }
        }
    }

    /// An `ms` command that no server refuses.
    fn meta_store(&mut self, key: Key) -> Command {
        let value = self.value();
        let mut words = vec![
            Word::text("ms"),
            Word::Text(key.sent),
            Word::text(value.len().to_string()),
        ];
        let mut flags = vec![
            Word::text(self.pick(&["MS", "ME", "MA", "MP", "MR", "Ms", "Ma"])),
            Word::text(self.pick(&["T0", "T500", "T900", "T-1"])),
            Word::text(self.pick(&["F0", "F7", "F4294967295"])),
            Word::text("c"),
            Word::text("q"),
            Word::text("k"),
            Word::text("Oopaque"),
            Word::text("I"),
            Word::Cas {
                letter: "C",
                back: self.below(3),
            },
            Word::text("L1"),
        ];
        if let Word::Text(mode) = &flags[0]
            && (mode.ends_with(b"s")
                || mode.ends_with(b"a")
                // Memcached forgets that the key of a growing item is binary.
                || key.kind == Kind::Base64 && mode != b"MS")
        {
            flags.remove(0);
        }
        if self.is_later() {
            flags.push(Word::text("s"));
            flags.push(self.new_version());
            flags.push(Word::text(self.pick(&["N0", "N500"])));
        }
        flags.retain(|flag| *flag != Word::text("I") || key.kind != Kind::Counter);
        flags.retain(|_| self.chance(0.3));
        if key.kind == Kind::Base64 {
            flags.push(Word::text("b"));
        }
        self.shuffle(&mut flags);
        words.extend(flags);
        Command::with_value(words, &value)
    }

    /// A version to give to an item, so large that neither server reaches it by counting.
    fn new_version(&mut self) -> Word {
        let number = self.next_value();
        Word::text(format!("E{}", 1_000_000_000_000_u64 + u64::from(number)))
    }

    /// Flags with these letters, in any order.
    pub(super) fn meta_flags(&mut self, letters: &[u8]) -> Vec<Word> {
        let count = match self.below(20) {
            0 => self.below(22),
            _ => self.below(6),
        };
        let mut flags: Vec<u8> = Vec::new();
        for _ in 0..count {
            let letter = letters[self.below(letters.len())];
            // A repeated flag is an error, which should not be the usual answer.
            if !flags.contains(&letter) || self.chance(0.03) {
                flags.push(letter);
            }
        }
        flags.into_iter().map(|letter| self.flag(letter)).collect()
    }

    fn flag(&mut self, letter: u8) -> Word {
        let token = match letter {
            b'T' => return self.time("T"),
            b'N' => return self.time("N"),
            b'C' => return self.version("C"),
            b'E' => return self.new_version(),
            b'R' if self.is_later() => self.pick(&["0", "-1", "30", "700", "3000", "2592000"]),
            // Items do not get these times, so a second more or less changes no answer.
            b'R' => self.pick(&[
                "0",
                "-1",
                "30",
                "700",
                "3000",
                "x",
                "",
                "4294967295",
                "4294968296",
                "2592000",
            ]),
            b'J' | b'D' => {
                let number = self.number();
                return Word::text(format!("{}{number}", letter as char));
            }
            b'F' => {
                let flags = self.client_flags();
                return Word::text(format!("F{flags}"));
            }
            b'O' => self.pick(&["", "1", "opaque", "t5", "1234567890123456789012345678901"]),
            b'M' => self.pick(&[
                "S", "E", "A", "P", "R", "I", "D", "+", "-", "I", "D", "", "Z", "SS",
            ]),
            b'L' | b'P' => self.pick(&["", "1", "path"]),
            _ => "",
        };
        Word::text(format!("{}{token}", letter as char))
    }
}
