//! Counts of RESP's errors by their first word, for `INFO errorstats`. Each thread has its own, as
//! those of `counters.rs`.
//!
//! ```text
//!   -WRONGTYPE Operation against …  ──►  WRONGTYPE: 1      one of ERROR_KINDS: all errors begin so
//! ```

use crate::counters::Counter;

/// The number of first words.
pub(crate) const ERROR_KINDS_LEN: usize = 8;

/// The first words of errors. They are few, so clients cannot make the list long.
pub(crate) const ERROR_KINDS: [&str; ERROR_KINDS_LEN] = [
    "ERR",
    "EXECABORT",
    "NOAUTH",
    "NOPROTO",
    "NOSCRIPT",
    "OOM",
    "WRONGPASS",
    "WRONGTYPE",
];

/// The counts of one thread, in the order of [`ERROR_KINDS`].
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters([Counter; ERROR_KINDS_LEN]);

impl ErrorCounters {
    /// Counts an error with this text, which begins behind the `-`.
    pub(crate) fn add(&self, text: &[u8]) {
        let end = text.iter().position(|&byte| byte == b' ');
        let word = &text[..end.unwrap_or(text.len())];
        let kind = ERROR_KINDS.iter().position(|kind| kind.as_bytes() == word);
        self.0[kind.unwrap_or(0)].add(1);
    }

    /// Adds these counts to those of others.
    pub(crate) fn add_to(&self, sums: &mut [u64; ERROR_KINDS_LEN]) {
        for (sum, counter) in sums.iter_mut().zip(&self.0) {
            *sum = sum.wrapping_add(counter.get());
        }
    }
}
