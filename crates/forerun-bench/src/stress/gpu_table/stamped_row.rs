//! Keys and rows of the run. A row contains its key and the write that made it, in words that must
//! agree.
//!
//! ```text
//!   a row          key | stamp | mix | !mix | mix | !mix          mix = mix(key, stamp)
//!   a counter's    sum | sum   | sum | ...
//! ```

use forerun_cli::exit::CheckFailed;

/// Words of a row.
pub(super) const ROW_WORDS: usize = 6;
/// Bytes of one.
pub const ROW_BYTES: u64 = 8 * ROW_WORDS as u64;

pub(super) fn fault(text: String) -> anyhow::Error {
    CheckFailed(text).into()
}

/// The `i`-th key. Low numbers give the greatest keys, starting with the greatest u64.
pub(super) fn key_of(i: u64) -> u64 {
    match i {
        0..8 => u64::MAX - i,
        8 => 0,
        _ => i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29),
    }
}

pub(super) fn mixed(key: u64, stamp: u64) -> u64 {
    (key ^ stamp.rotate_left(32))
        .wrapping_mul(0xd6e8_feb8_6659_fd93)
        .rotate_left(31)
}

pub(super) fn bytes_of(words: [u64; ROW_WORDS]) -> impl Iterator<Item = u8> {
    words.into_iter().flat_map(u64::to_ne_bytes)
}

pub(super) fn row_of(key: u64, stamp: u64) -> [u64; ROW_WORDS] {
    let mix = mixed(key, stamp);
    [key, stamp, mix, !mix, mix, !mix]
}

pub(super) fn words_of(row: &[u8]) -> [u64; ROW_WORDS] {
    let mut words = [0; ROW_WORDS];
    for (word, bytes) in words.iter_mut().zip(row.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// The stamp of a row, if the row is complete and belongs to its key.
pub(super) fn stamp_of(key: u64, row: &[u8]) -> anyhow::Result<u64> {
    let words = words_of(row);
    if words != row_of(key, words[1]) {
        return Err(fault(format!(
            "key {key:#x} has a torn or foreign row {words:x?}"
        )));
    }
    Ok(words[1])
}

/// The sum in a counter's row, if the row is complete.
pub(super) fn sum_of(key: u64, row: &[u8]) -> anyhow::Result<u64> {
    let words = words_of(row);
    if words != [words[0]; ROW_WORDS] {
        return Err(fault(format!("counter {key:#x} has a torn row {words:x?}")));
    }
    Ok(words[0])
}
