//! Settings of Redis that have no effect here: the values are stored in another way.
//!
//! ```text
//!   CONFIG SET hash-max-listpack-value 1kb ──► a number ──► CONFIG GET, also by its older name
//! ```
//!
//! Tests and installers of other projects set them, and stop if one is unknown.

use std::sync::atomic::{AtomicI64, Ordering};

use super::integers::{memory_bytes, parse_i64};

/// The number of settings.
const LEN: usize = 11;

/// What a setting is given.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// A number from one to another.
    Number(i64, i64),
    /// A number of bytes, which may have a unit.
    Bytes,
}

const COUNT: Value = Value::Number(0, i64::MAX);
const DEPTH: Value = Value::Number(0, i32::MAX as i64);
const SIZE: Value = Value::Number(i32::MIN as i64, i32::MAX as i64);
const TIME: Value = Value::Number(-1, i64::MAX);

/// Their names, the older ones (empty if there is none), what Redis begins with, and what it takes.
#[rustfmt::skip]
static SETTINGS: [(&str, &str, i64, Value); LEN] = [
    ("hash-max-listpack-entries", "hash-max-ziplist-entries", 512, COUNT),
    ("hash-max-listpack-value", "hash-max-ziplist-value", 64, Value::Bytes),
    ("list-compress-depth", "", 0, DEPTH),
    ("list-max-listpack-size", "list-max-ziplist-size", -2, SIZE),
    ("set-max-intset-entries", "", 512, COUNT),
    ("set-max-listpack-entries", "", 128, COUNT),
    ("set-max-listpack-value", "", 64, COUNT),
    ("slowlog-log-slower-than", "", 10_000, TIME),
    ("slowlog-max-len", "", 128, COUNT),
    ("zset-max-listpack-entries", "zset-max-ziplist-entries", 128, COUNT),
    ("zset-max-listpack-value", "zset-max-ziplist-value", 64, Value::Bytes),
];

/// The numbers of these settings.
#[derive(Debug)]
pub(crate) struct InertSettings([AtomicI64; LEN]);

impl Default for InertSettings {
    fn default() -> Self {
        Self(SETTINGS.map(|(_, _, number, _)| AtomicI64::new(number)))
    }
}

impl InertSettings {
    /// All names and their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let settings = SETTINGS.iter().zip(&self.0);
        settings.flat_map(|(&(name, older, ..), number)| {
            // Relaxed, here and below: a number that nothing depends on.
            let number = number.load(Ordering::Relaxed);
            let names = [name, older].into_iter().filter(|name| !name.is_empty());
            names.map(move |name| (name, number))
        })
    }

    /// The place of the setting of this name, in any case.
    pub(crate) fn find(&self, name: &[u8]) -> Option<usize> {
        let is_name = |one: &str| !one.is_empty() && one.as_bytes().eq_ignore_ascii_case(name);
        let mut all = SETTINGS.iter();
        all.position(|(newer, older, ..)| is_name(newer) || is_name(older))
    }

    /// The number in a text for the setting at a place.
    ///
    /// # Errors
    /// Why the setting does not take it, as Redis says it.
    pub(crate) fn parse(place: usize, text: &[u8]) -> Result<i64, String> {
        let value = SETTINGS.get(place).map_or(COUNT, |setting| setting.3);
        let (number, min, max) = match value {
            Value::Number(min, max) => {
                let number =
                    parse_i64(text).ok_or("argument couldn't be parsed into an integer")?;
                (number, min, max)
            }
            Value::Bytes => {
                let bytes = memory_bytes(text).ok_or("argument must be a memory value")?;
                // A negative number is in no range of bytes.
                (i64::try_from(bytes).unwrap_or(-1), 0, i64::MAX)
            }
        };
        if !(min..=max).contains(&number) {
            return Err(format!(
                "argument must be between {min} and {max} inclusive"
            ));
        }
        Ok(number)
    }

    /// Gives the setting at a place another number.
    pub(crate) fn set(&self, place: usize, number: i64) {
        if let Some(setting) = self.0.get(place) {
            setting.store(number, Ordering::Relaxed);
        }
    }
}
