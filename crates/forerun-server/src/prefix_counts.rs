//! Counts by key prefix, for `stats detail`: reads, hits, stores and deletions.
//!
//! ```text
//!   user:17 ──> prefix "user"        a key without the delimiter has none
//!   off (the default):  one relaxed load per command
//!   on:                 a lock and a map of at most PREFIXES_MAX prefixes
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use memchr::memchr;

/// The default delimiter.
const DELIMITER: u8 = b':';

/// Further prefixes are not counted, so that clients cannot exhaust memory with prefixes.
const PREFIXES_MAX: usize = 4096;

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyEvent {
    Hit,
    Miss,
    Set,
    Delete,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// The counts of all prefixes.
#[derive(Debug)]
pub(crate) struct PrefixCounts {
    delimiter: u8,
    is_on: AtomicBool,
    counts: Mutex<BTreeMap<Box<[u8]>, Counts>>,
}

impl PrefixCounts {
    /// With a `delimiter`, counting is on from the start. Without one, the delimiter is a colon,
    /// and counting is off until `set_on` turns it on.
    pub(crate) fn new(delimiter: Option<u8>) -> PrefixCounts {
        PrefixCounts {
            delimiter: delimiter.unwrap_or(DELIMITER),
            is_on: AtomicBool::new(delimiter.is_some()),
            counts: Mutex::default(),
        }
    }

    /// The byte that ends a prefix.
    pub(crate) fn delimiter(&self) -> u8 {
        self.delimiter
    }

    /// Whether prefixes are counted.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // Relaxed, here and below: a setting, which orders nothing.
        self.is_on.load(Ordering::Relaxed)
    }

    /// Starts or stops counting. The counts stay.
    pub(crate) fn set_on(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Counts `event` of `key` if prefixes are counted.
    #[inline]
    pub(crate) fn count(&self, key: &[u8], event: KeyEvent) {
        if self.is_on() {
            self.count_now(key, event);
        }
    }

    #[cold]
    fn count_now(&self, key: &[u8], event: KeyEvent) {
        let Some(end) = memchr(self.delimiter, key) else {
            return;
        };
        let prefix = &key[..end];
        let mut counts = self.counts();
        if !counts.contains_key(prefix) {
            if counts.len() == PREFIXES_MAX {
                return;
            }
            counts.insert(prefix.into(), Counts::default());
        }
        if let Some(of_prefix) = counts.get_mut(prefix) {
            match event {
                KeyEvent::Hit => {
                    of_prefix.gets += 1;
                    of_prefix.hits += 1;
                }
                KeyEvent::Miss => of_prefix.gets += 1,
                KeyEvent::Set => of_prefix.sets += 1,
                KeyEvent::Delete => of_prefix.deletes += 1,
            }
        }
    }

    /// Forgets all prefixes.
    pub(crate) fn clear(&self) {
        self.counts().clear();
    }

    /// Appends a line per prefix, in the order of the prefixes, as `stats detail dump` shows them.
    pub(crate) fn push_lines(&self, out: &mut Vec<u8>) {
        for (prefix, counts) in &*self.counts() {
            let Counts {
                gets,
                hits,
                sets,
                deletes,
            } = counts;
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            let text = format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n");
            out.extend_from_slice(text.as_bytes());
        }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<Box<[u8]>, Counts>> {
        // Every change under this lock is complete even if a thread panics after it.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_counted_up_to_the_limit() {
        let counts = PrefixCounts::new(None);
        counts.count(b"off:1", KeyEvent::Set);
        counts.set_on(true);
        for number in 0..PREFIXES_MAX + 10 {
            counts.count(format!("{number:06}:x").as_bytes(), KeyEvent::Miss);
        }
        counts.count(b"000007:y", KeyEvent::Hit);
        counts.count(b"no colon", KeyEvent::Hit);
        let mut text = Vec::new();
        counts.push_lines(&mut text);
        let text = String::from_utf8_lossy(&text);
        assert_eq!(text.lines().count(), PREFIXES_MAX);
        assert!(text.contains("PREFIX 000007 get 2 hit 1 set 0 del 0\r\n"));
        counts.clear();
        let mut text = Vec::new();
        counts.push_lines(&mut text);
        assert_eq!(text, b"");
    }

    #[test]
    fn a_delimiter_that_is_set_starts_the_counts() {
        let counts = PrefixCounts::new(Some(b'/'));
        for key in ["a/1", "a/b:2", "a:b/3", "a:4"] {
            counts.count(key.as_bytes(), KeyEvent::Set);
        }
        let mut text = Vec::new();
        counts.push_lines(&mut text);
        let expected = "PREFIX a get 0 hit 0 set 2 del 0\r\nPREFIX a:b get 0 hit 0 set 1 del 0\r\n";
        assert_eq!(String::from_utf8_lossy(&text), expected);
    }
}
