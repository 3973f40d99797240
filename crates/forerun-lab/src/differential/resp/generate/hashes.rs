//! Generates commands on hashes.

use super::{Generator, Kind, Words};

/// The maximum number of fields of a command: enough for Redis to store the hash as a table.
const FIELDS_MAX: usize = 200;

impl Generator {
    pub(super) fn hash(&mut self) -> Words {
        let key = self.hash_key();
        let of = |name: &str| Words::of(name).add(&key);
        match self.below(42) {
            0..=7 => {
                let words = of(self.pick(&["HSET", "HSET", "HSET", "HMSET"]));
                let fields = self.several(FIELDS_MAX, Self::any_field);
                fields.into_iter().fold(words, |words, field| {
                    words.add(field).add(self.hash_value())
                })
            }
            8..=11 => of("HGET").add(self.field()),
            12..=15 => {
                let fields = self.several(40, Self::any_field);
                of("HMGET").add_all(fields)
            }
            16..=18 => of("HGETALL"),
            19..=22 => {
                let fields = self.several(FIELDS_MAX, Self::any_field);
                of("HDEL").add_all(fields)
            }
            23..=25 => of("HINCRBY").add(self.field()).add(self.number()),
            26 => of("HINCRBYFLOAT").add(self.field()).add(self.float()),
            27..=28 => of("HLEN"),
            29..=30 => of("HEXISTS").add(self.field()),
            31 => of("HKEYS"),
            32 => of("HVALS"),
            33..=34 => of("HSETNX").add(self.field()).add(self.hash_value()),
            35 => of("HSTRLEN").add(self.field()),
            36 => of("HMGET"),
            37 => of("HGETALL").add("x"),
            // All fields, or none: other answers are random.
            38 => {
                let rest = self.pick(&[
                    "1000",
                    "1000",
                    "1000 WITHVALUES",
                    "1000 WITHVALUES",
                    "0",
                    "0 WITHVALUES",
                    "x",
                    "1000 x",
                    "1000 WITHVALUES x",
                    "4611686018427387904 WITHVALUES",
                    "-9223372036854775808",
                ]);
                of("HRANDFIELD").add_line(rest)
            }
            // Redis 7.0 does not know it.
            39..=40 if self.has(Kind::Valkey) && !self.has(Kind::Redis) => self.hash_deletion(&key),
            _ => of("HSET").add(self.field()),
        }
    }

    /// `HGETDEL`, mostly with the right number of fields.
    fn hash_deletion(&mut self, key: &[u8]) -> Words {
        let fields = self.several(40, Self::any_field);
        let right = fields.len().to_string();
        let count = match self.below(8) {
            0 => self.pick(&["0", "-1", "1", "x", "2147483648"]),
            _ => right.as_str(),
        };
        let word = self.pick(&["FIELDS", "FIELDS", "FIELDS", "fields", "FIELD"]);
        let words = Words::of("HGETDEL").add(key).add(word).add(count);
        words.add_all(fields)
    }

    /// Mostly a field of few, sometimes one of many.
    fn any_field(&mut self) -> Vec<u8> {
        match self.below(4) {
            0 => format!("field:{}", self.below(2 * FIELDS_MAX)).into_bytes(),
            _ => self.field(),
        }
    }

    fn hash_value(&mut self) -> Vec<u8> {
        match self.below(3) {
            0 => self.number().into_bytes(),
            1 => {
                let mut value = self.value();
                value.truncate(200);
                value
            }
            _ => self.below(100).to_string().into_bytes(),
        }
    }
}
