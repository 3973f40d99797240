//! Generates commands on strings and counters.

use super::{Generator, Kind, Words};

impl Generator {
    pub(super) fn string(&mut self) -> Words {
        match self.below(41) {
            40 => self.fill(),
            0..=9 => Words::of("GET").add(self.key()),
            10..=15 => self.set(),
            16..=19 => {
                let keys = self.several(60, Self::any_key);
                Words::of("MGET").add_all(keys)
            }
            20..=21 => {
                let pairs = self.several(20, Self::key);
                let name = self.pick(&["MSET", "MSET", "MSETNX"]);
                pairs.into_iter().fold(Words::of(name), |words, key| {
                    words.add(key).add(self.value())
                })
            }
            22 => Words::of("SETNX").add(self.key()).add(self.value()),
            23 => Words::of("GETSET").add(self.key()).add(self.value()),
            24 => Words::of("GETDEL").add(self.key()),
            25..=26 => {
                let words = Words::of("GETEX").add(self.key());
                match self.below(3) {
                    0 => words,
                    1 => words.add("PERSIST"),
                    // Valkey reads the time even if the key is missing.
                    _ if self.has(Kind::Valkey) => words.add("PX").add("500000"),
                    _ => self.add_expiry_option(words),
                }
            }
            27 => Words::of("SETEX")
                .add(self.key())
                .add(self.time_to_live(false))
                .add(self.value()),
            28 => Words::of("PSETEX")
                .add(self.key())
                .add(self.time_to_live(true))
                .add(self.value()),
            29..=31 => {
                let addition = self.short_value();
                Words::of("APPEND").add(self.key()).add(addition)
            }
            32..=33 => Words::of("STRLEN").add(self.any_key()),
            34..=36 => {
                let name = self.pick(&["GETRANGE", "GETRANGE", "SUBSTR"]);
                Words::of(name)
                    .add(self.key())
                    .add(self.offset())
                    .add(self.offset())
            }
            _ => {
                let offset = self.pick(&[
                    "0",
                    "1",
                    "3",
                    "10",
                    "1000",
                    "-1",
                    "536870912",
                    "536870911",
                    "x",
                    "9223372036854775807",
                ]);
                // A value up to the limit would take half a GiB.
                let patch = match offset {
                    "536870911" => b"xy".to_vec(),
                    _ => self.short_value(),
                };
                let patch = if offset == "536870912" && patch.is_empty() {
                    b"x".to_vec()
                } else {
                    patch
                };
                Words::of("SETRANGE").add(self.key()).add(offset).add(patch)
            }
        }
    }

    /// A value that may be appended many times.
    fn short_value(&mut self) -> Vec<u8> {
        let mut value = self.value();
        value.truncate(100);
        value
    }

    fn set(&mut self) -> Words {
        let mut words = Words::of("SET").add(self.key()).add(self.value());
        if self.chance(0.5) {
            return words;
        }
        for _ in 0..1 + self.below(3) {
            words = match self.below(8) {
                0 => words.add(self.pick(&["NX", "nx"])),
                1 => words.add("XX"),
                2 => words.add("GET"),
                3 => words.add("KEEPTTL"),
                4 => words.add(self.pick(&["", "PX", "EX", "FOO", "PERSIST", "5"])),
                _ => self.add_expiry_option(words),
            };
        }
        words
    }

    /// Adds one of the options that set a time to live.
    pub(super) fn add_expiry_option(&mut self, words: Words) -> Words {
        match self.below(4) {
            0 => words.add("EX").add(self.time_to_live(false)),
            1 => words.add("PX").add(self.time_to_live(true)),
            2 => words.add("EXAT").add_word(self.time_of_day(false)),
            _ => words.add("PXAT").add_word(self.time_of_day(true)),
        }
    }

    pub(super) fn counter(&mut self) -> Words {
        let key = self.counter_key();
        match self.below(20) {
            0..=5 => Words::of("INCR").add(key),
            6..=7 => Words::of("DECR").add(key),
            8..=11 => Words::of("INCRBY").add(key).add(self.number()),
            12..=13 => Words::of("DECRBY").add(key).add(self.number()),
            14..=16 => Words::of("INCRBYFLOAT").add(key).add(self.float()),
            _ => {
                let number = match self.below(2) {
                    0 => self.number(),
                    _ => self.float(),
                };
                Words::of("SET").add(key).add(number)
            }
        }
    }
}
