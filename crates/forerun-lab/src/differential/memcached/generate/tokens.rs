//! Generates numbers, times and values.

use super::{Generator, Word};

/// Numbers of up to 64 bits.
const NUMBERS: [&str; 26] = [
    "0",
    "1",
    "2",
    "5",
    "9",
    "10",
    "99",
    "-0",
    "+5",
    "007",
    "-1",
    "1.5",
    "5x",
    "0x10",
    "x",
    "-",
    "+",
    "--1",
    "+-1",
    "\t5",
    "5\t",
    "5\tx",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
];

/// Numbers that every version parses in the same way.
const PLAIN_NUMBERS: [&str; 8] = [
    "0",
    "1",
    "9",
    "10",
    "99",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
];

/// Times to live that every version parses in the same way.
const PLAIN_TIMES: [&str; 8] = [
    "0",
    "500",
    "-1",
    "2592000",
    "2592001",
    "2147483646",
    "2147483647",
    "-2147483648",
];

/// Client flags, of up to 32 bits.
const CLIENT_FLAGS: [&str; 14] = [
    "0",
    "7",
    "+7",
    "007",
    "-1",
    "-0",
    "x",
    "1.5",
    "7x",
    "0x10",
    "\t7",
    "7\t",
    "2147483648",
    "4294967295",
];

/// Times to live. None expires during a history. Those in the past are long past.
const TIMES: [&str; 35] = [
    "0",
    "0",
    "0",
    "0",
    "500",
    "500",
    "900",
    "+500",
    "00500",
    "-1",
    "-0",
    "1.5",
    "500x",
    "0x10",
    "x",
    "",
    "\t500",
    "500\t",
    "500\tx",
    "2592000",
    "2592001",
    "2147483646",
    "2147483647",
    "2147483648",
    "4294967294",
    "4294967295",
    "4294967296",
    "4294967796",
    "9223372036854775807",
    "9223372036854775808",
    "-2147483648",
    "-2147483649",
    "-4294967296",
    "-9223372036854775808",
    "18446744073709551615",
];

const VALUES: [&str; 12] = [
    "",
    "5",
    "10",
    "0",
    "9",
    "99",
    "x",
    "5 ",
    " 5",
    "18446744073709551615",
    "99999999999999999999",
    "-1",
];

impl Generator {
    pub(super) fn number(&mut self) -> String {
        match self.below(2) {
            0 => self.below(20).to_string(),
            _ if self.is_later() => self.pick(&PLAIN_NUMBERS).to_owned(),
            _ => self.pick(&NUMBERS).to_owned(),
        }
    }

    pub(super) fn client_flags(&mut self) -> String {
        match self.below(2) {
            0 => self.below(1000).to_string(),
            _ if self.is_later() => self.pick(&["0", "2147483648", "4294967295"]).to_owned(),
            _ => self.pick(&CLIENT_FLAGS).to_owned(),
        }
    }

    /// A time to live, after a flag's letter if it has one.
    pub(super) fn time(&mut self, letter: &'static str) -> Word {
        match self.below(20) {
            0..=7 => Word::text(format!("{letter}0")),
            8 => Word::TimeOfDay {
                letter,
                offset_s: 500,
            },
            9 => Word::TimeOfDay {
                letter,
                offset_s: -500,
            },
            10..=13 => Word::text(format!("{letter}500")),
            _ if self.is_later() => {
                let time = self.pick(&PLAIN_TIMES);
                Word::text(format!("{letter}{time}"))
            }
            _ => match self.pick(&TIMES) {
                // An empty word would turn it into a different command.
                "" if letter.is_empty() => Word::text("0"),
                time => Word::text(format!("{letter}{time}")),
            },
        }
    }

    /// A value: digits, other text, and sometimes something long.
    pub(super) fn value(&mut self) -> Vec<u8> {
        let number = self.next_value();
        match self.below(40) {
            0..=15 => self.pick(&VALUES).as_bytes().to_vec(),
            16..=22 => self.below(2000).to_string().into_bytes(),
            23..=36 => format!("value {number}").into_bytes(),
            37 => b"two\r\nlines\0\xff".to_vec(),
            38 => {
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

    /// A version: a recently returned one, or any number.
    pub(super) fn version(&mut self, letter: &'static str) -> Word {
        match self.below(10) {
            0..=4 => Word::Cas { letter, back: 0 },
            5..=7 => Word::Cas {
                letter,
                back: self.below(6),
            },
            8 => Word::text(format!("{letter}0")),
            _ if self.is_later() => {
                let version = self.pick(&["18446744073709551615", "77777777777777"]);
                Word::text(format!("{letter}{version}"))
            }
            // A small number may be the version of an item on one server and of none on the other.
            _ => Word::text(format!(
                "{letter}{}",
                self.pick(&[
                    "-1",
                    "x",
                    "",
                    "1.5",
                    "0x10",
                    "9223372036854775807",
                    "18446744073709551615",
                    "18446744073709551616",
                    "77777777777777"
                ])
            )),
        }
    }

    pub(super) fn noreply(&mut self) -> Option<Word> {
        match self.below(30) {
            0..=2 => Some(Word::text("noreply")),
            3 if !self.is_later() => Some(Word::text("whatever")),
            _ => None,
        }
    }
}
