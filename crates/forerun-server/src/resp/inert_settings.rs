//! Settings of Redis that have no effect here: the values are stored in another way.
//!
//! ```text
//!   CONFIG SET hash-max-listpack-value 32 ──► a number ──► CONFIG GET, also by its older name
//! ```
//!
//! Tests and installers of other projects set them, and stop if one is unknown.

use std::sync::atomic::{AtomicI64, Ordering};

/// The number of settings.
const LEN: usize = 11;

/// Their names, the older ones (empty if there is none), and what Redis begins with.
static SETTINGS: [(&str, &str, i64); LEN] = [
    ("hash-max-listpack-entries", "hash-max-ziplist-entries", 512),
    ("hash-max-listpack-value", "hash-max-ziplist-value", 64),
    ("list-compress-depth", "", 0),
    ("list-max-listpack-size", "list-max-ziplist-size", -2),
    ("set-max-intset-entries", "", 512),
    ("set-max-listpack-entries", "", 128),
    ("set-max-listpack-value", "", 64),
    ("slowlog-log-slower-than", "", 10_000),
    ("slowlog-max-len", "", 128),
    ("zset-max-listpack-entries", "zset-max-ziplist-entries", 128),
    ("zset-max-listpack-value", "zset-max-ziplist-value", 64),
];

/// The numbers of these settings.
#[derive(Debug)]
pub(crate) struct InertSettings([AtomicI64; LEN]);

impl Default for InertSettings {
    fn default() -> Self {
        Self(SETTINGS.map(|(_, _, number)| AtomicI64::new(number)))
    }
}

impl InertSettings {
    /// All names and their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let settings = SETTINGS.iter().zip(&self.0);
        settings.flat_map(|(&(name, older, _), number)| {
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
        all.position(|(newer, older, _)| is_name(newer) || is_name(older))
    }

    /// Gives the setting at a place another number.
    pub(crate) fn set(&self, place: usize, number: i64) {
        if let Some(setting) = self.0.get(place) {
            setting.store(number, Ordering::Relaxed);
        }
    }
}
