//! Generates keys, values, numbers and names.

use super::{Generator, Kind, Word};

/// Numbers that parsers of 64 bits often get wrong.
const NUMBERS: [&str; 22] = [
    "0",
    "1",
    "2",
    "5",
    "-1",
    "-5",
    "10",
    "99",
    "-0",
    "+5",
    "007",
    "1.5",
    "5x",
    "0x10",
    "x",
    "",
    " 5",
    "5 ",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "-9223372036854775809",
];

/// Numbers with a fraction, and what is almost one.
const FLOATS: [&str; 27] = [
    "0",
    "1",
    "-1",
    "0.1",
    "-0.1",
    "10.50",
    "5.0e3",
    "2.0e2",
    "3",
    "1.1",
    "1e-5",
    "1e17",
    "123456789.123456789",
    "0.30000000000000004",
    "-0",
    "+1.5",
    ".5",
    "5.",
    "0x10",
    "inf",
    "-inf",
    "nan",
    "1e5000",
    "x",
    "",
    " 1",
    "1 ",
];

const VALUES: [&str; 16] = [
    "",
    "5",
    "10",
    "0",
    "-7",
    "99",
    "x",
    "5 ",
    " 5",
    "1.5",
    "007",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999",
    "hello world",
    "10.50",
];

/// Offsets into a value.
const OFFSETS: [&str; 12] = [
    "0",
    "1",
    "2",
    "-1",
    "-2",
    "5",
    "100",
    "-100",
    "1000",
    "9223372036854775807",
    "-9223372036854775808",
    "x",
];

impl Generator {
    /// A number for a parser of integers; mostly a small one.
    pub(super) fn number(&mut self) -> String {
        match self.below(2) {
            0 => self.below(100).to_string(),
            _ => self.pick(&NUMBERS).to_owned(),
        }
    }

    pub(super) fn float(&mut self) -> String {
        match self.below(3) {
            0 => format!("{}.{}", self.below(100), self.below(1000)),
            1 => format!("-{}e-{}", self.below(1000), self.below(6)),
            _ => self.pick(&FLOATS).to_owned(),
        }
    }

    pub(super) fn offset(&mut self) -> &'static str {
        self.pick(&OFFSETS)
    }

    /// A key for strings, or sometimes one for hashes.
    pub(super) fn key(&mut self) -> Vec<u8> {
        if self.chance(0.06) {
            return self.of_hash_keys();
        }
        let index = self.draw.below(self.keys.len() + 3);
        // The first key is used most.
        self.keys.get(index).unwrap_or(&self.keys[0]).clone()
    }

    /// A key for hashes, or sometimes one for strings.
    pub(super) fn hash_key(&mut self) -> Vec<u8> {
        if self.chance(0.06) {
            return self.key();
        }
        self.of_hash_keys()
    }

    fn of_hash_keys(&mut self) -> Vec<u8> {
        let index = self.draw.below(self.hash_keys.len());
        self.hash_keys[index].clone()
    }

    /// A key of any type.
    pub(super) fn any_key(&mut self) -> Vec<u8> {
        match self.below(3) {
            0 => self.hash_key(),
            1 => self.key(),
            _ => self.pick(&["n", "n:2", "a", "missing"]).as_bytes().to_vec(),
        }
    }

    /// The key of a number.
    pub(super) fn counter_key(&mut self) -> Vec<u8> {
        match self.below(8) {
            0 => self.key(),
            at => [&b"n"[..], b"n:2"][at % 2].to_vec(),
        }
    }

    pub(super) fn field(&mut self) -> Vec<u8> {
        match self.below(20) {
            0 => Vec::new(),
            1 => vec![b'f'; 100],
            2 => b"\xff\x00\r\n".to_vec(),
            _ => format!("f{}", self.below(6)).into_bytes(),
        }
    }

    /// Up to `max` words, at least one.
    pub(super) fn several(
        &mut self,
        max: usize,
        mut one: impl FnMut(&mut Self) -> Vec<u8>,
    ) -> Vec<Vec<u8>> {
        let count = match self.below(20) {
            0 => 1 + self.below(max),
            _ => 1 + self.below(max.min(4)),
        };
        (0..count).map(|_| one(self)).collect()
    }

    /// A value: digits, other text, and sometimes something long.
    pub(super) fn value(&mut self) -> Vec<u8> {
        let number = self.next_value();
        match self.below(60) {
            0..=24 => self.pick(&VALUES).as_bytes().to_vec(),
            25..=34 => self.below(2000).to_string().into_bytes(),
            35..=55 => format!("value {number}").into_bytes(),
            56 => b"two\r\nlines\0\xff".to_vec(),
            57 => {
                let len = 40 + self.below(10);
                self.long_value(len)
            }
            58 => {
                let len = self.below(20_000);
                self.long_value(len)
            }
            _ => {
                let len = match self.below(20) {
                    0 => 300_000 + self.below(100_000),
                    _ => 20_000 + self.below(100_000),
                };
                self.long_value(len)
            }
        }
    }

    /// A time of day in seconds or milliseconds, long past or far ahead.
    pub(super) fn time_of_day(&mut self, is_ms: bool) -> Word {
        let offset_s = match self.below(4) {
            0 => -500,
            _ => 500 + self.below(5000) as i64,
        };
        if is_ms {
            Word::MillisOfDay {
                offset_ms: 1000 * offset_s,
            }
        } else {
            Word::TimeOfDay {
                letter: "",
                offset_s,
            }
        }
    }

    /// A time to live, which does not end during a history.
    pub(super) fn time_to_live(&mut self, is_ms: bool) -> String {
        match self.below(12) {
            // Forerun's end after 136 years.
            0 if !self.has(Kind::Forerun) => {
                self.pick(&["9223372036854775", "99999999999"]).to_owned()
            }
            1 => {
                let edges = [
                    "0",
                    "-1",
                    "x",
                    "",
                    "1.5",
                    "+500",
                    "9223372036854775807",
                    "-9223372036854775808",
                    "9223372036854775808",
                ];
                self.pick(&edges).to_owned()
            }
            _ if is_ms => (100_000 + self.below(1_000_000)).to_string(),
            _ => (100 + self.below(1000)).to_string(),
        }
    }
}
