//! Records as in YCSB's core workloads: ten fields of a hundred bytes, under `user` and a hashed
//! number.
//!
//! ```text
//!  key    u s e r | FNV-1a of the record's number, in decimal            5 to 23 bytes
//!  value  | field 0: record's number, 16 hex digits | version, 16 hex digits | letters ... |
//!         | field 1: letters ... |  ...  | field 9 |                     1000 bytes
//! ```
//!
//! Records are numbered in the order of insertion, and the hash scatters them over the key order. A
//! value contains the record and version it belongs to, and its letters follow from them, so a
//! reader can check every byte of an answer and knows which version it got. The letters are
//! printable and random, like YCSB's: a compressor that looks for repeats finds none.

use crate::workload::mix;
use anyhow::{Context, Result, ensure};

/// Fields per record.
pub const FIELDS: usize = 10;

/// Bytes per field.
pub const FIELD_BYTES: usize = 100;

/// Bytes per value.
pub const VALUE_BYTES: usize = FIELDS * FIELD_BYTES;

/// Bytes of the shortest value that has room for its record and version.
pub const VALUE_BYTES_MIN: usize = 2 * DIGITS;

/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = 4 + 19;

/// Hex digits of the number, and of the version.
const DIGITS: usize = 16;

/// YCSB's hash of a number: FNV-1a over its eight bytes, lowest first, made positive.
pub fn hash(number: u64) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    let hash = number
        .to_le_bytes()
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, step);
    // Java's Math.abs of a signed word leaves the smallest one unchanged; here it has the same
    // magnitude without a sign.
    (hash as i64).unsigned_abs()
}

/// Overwrites `out` with the key of a record.
///
/// ```
/// let mut key = Vec::new();
/// forerun_bench::ycsb::record::key(0, &mut key);
/// assert_eq!(key, b"user6284781860667377211");
/// ```
pub fn key(number: u64, out: &mut Vec<u8>) {
    const USER: &[u8] = b"user";
    let mut rest = hash(number);
    let mut digits = [0; KEY_BYTES_MAX];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.clear();
    out.extend_from_slice(USER);
    out.extend_from_slice(&digits[start..]);
}

/// Overwrites `out` with the value of a version of a record.
pub fn value(number: u64, version: u64, out: &mut Vec<u8>) {
    value_of_bytes(number, version, VALUE_BYTES, out);
}

/// [`value`] with another length, of at least [`VALUE_BYTES_MIN`].
pub fn value_of_bytes(number: u64, version: u64, value_bytes: usize, out: &mut Vec<u8>) {
    out.clear();
    for word in [number, version] {
        let hex = (0..DIGITS).rev().map(|digit| (word >> (4 * digit)) & 15);
        out.extend(hex.map(|nibble| b"0123456789abcdef"[nibble as usize]));
    }
    let mut word = mix(number) ^ version;
    while out.len() < value_bytes {
        word = mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15));
        // Six bits per byte, starting at the space character: letters, digits and signs.
        let letters = (word & 0x3f3f_3f3f_3f3f_3f3f) + 0x2020_2020_2020_2020;
        let wanted = (value_bytes - out.len()).min(8);
        out.extend_from_slice(&letters.to_le_bytes()[..wanted]);
    }
}

/// The version of a record's value, if every byte is that of this version. `scratch` is reused from
/// call to call so that nothing is allocated.
///
/// # Errors
/// The value belongs to another record, or to none.
pub fn version_of(number: u64, found: &[u8], scratch: &mut Vec<u8>) -> Result<u64> {
    version_in_bytes(number, found, VALUE_BYTES, scratch)
}

/// [`version_of`] for values of another length.
///
/// # Errors
/// The same as for [`version_of`].
pub fn version_in_bytes(
    number: u64,
    found: &[u8],
    value_bytes: usize,
    scratch: &mut Vec<u8>,
) -> Result<u64> {
    let version = claimed(found, DIGITS).context("it names no version")?;
    let owner = claimed(found, 0).context("it names no record")?;
    ensure!(owner == number, "it is record {owner}'s");
    value_of_bytes(number, version, value_bytes, scratch);
    ensure!(
        found == scratch.as_slice(),
        "it claims to be version {version}, but its bytes differ"
    );
    Ok(version)
}

/// The number of the record that a value claims to belong to.
pub fn owner_of(found: &[u8]) -> Option<u64> {
    claimed(found, 0)
}

fn claimed(found: &[u8], at: usize) -> Option<u64> {
    let digits = std::str::from_utf8(found.get(at..at + DIGITS)?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn key_of(number: u64) -> String {
        let mut out = Vec::new();
        key(number, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn keys_match_ycsbs() {
        // The first key of every YCSB database, and the next hashes by the plain definition.
        assert_eq!(key_of(0), "user6284781860667377211");
        for number in [1u64, 255, 256, 999_999, u64::from(u32::MAX), u64::MAX] {
            let mut plain = 0xcbf2_9ce4_8422_2325_u64;
            let mut rest = number;
            for _ in 0..8 {
                plain ^= rest & 0xff;
                plain = plain.wrapping_mul(1_099_511_628_211);
                rest >>= 8;
            }
            let positive = if plain >> 63 == 1 {
                plain.wrapping_neg()
            } else {
                plain
            };
            assert_eq!(key_of(number), format!("user{positive}"));
        }
    }

    #[test]
    fn records_have_distinct_scattered_keys() {
        let keys: Vec<String> = (0..20_000).map(key_of).collect();
        assert!(keys.iter().all(|key| key.len() <= KEY_BYTES_MAX));
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        let ascents = keys.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((8_000..12_000).contains(&ascents), "{ascents}");
    }

    #[test]
    fn a_value_is_printable_and_contains_its_record_and_version() {
        let (mut bytes, mut scratch) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for (number, version) in [(0, 0), (0, 1), (1, 0), (77, 3), (u64::MAX, u64::MAX)] {
            value(number, version, &mut bytes);
            assert_eq!(bytes.len(), VALUE_BYTES);
            assert!(bytes.iter().all(|byte| (0x20..0x7f).contains(byte)));
            assert_eq!(version_of(number, &bytes, &mut scratch).unwrap(), version);
            assert_eq!(owner_of(&bytes), Some(number));
            assert!(seen.insert(bytes.clone()));
        }
    }

    #[test]
    fn a_value_of_another_length_is_checked_at_that_length() {
        let (mut bytes, mut scratch) = (Vec::new(), Vec::new());
        for value_bytes in [VALUE_BYTES_MIN, 33, 500, 1001] {
            value_of_bytes(7, 3, value_bytes, &mut bytes);
            assert_eq!(bytes.len(), value_bytes);
            let version = version_in_bytes(7, &bytes, value_bytes, &mut scratch);
            assert_eq!(version.unwrap(), 3);
            assert!(version_in_bytes(7, &bytes, value_bytes + 1, &mut scratch).is_err());
        }
    }

    #[test]
    fn a_wrong_value_is_described() {
        let mut scratch = Vec::new();
        let mut error_of =
            |found: &[u8]| version_of(7, found, &mut scratch).unwrap_err().to_string();
        let mut bytes = Vec::new();
        value(8, 1, &mut bytes);
        assert!(error_of(&bytes).contains("record 8's"));
        value(7, 1, &mut bytes);
        bytes[999] ^= 1;
        assert!(error_of(&bytes).contains("version 1"));
        assert!(error_of(&bytes[..998]).contains("version 1"));
        assert!(error_of(&bytes[..20]).contains("no version"));
        assert!(error_of(b"").contains("no version"));
        bytes[0] = 0xff;
        assert!(error_of(&bytes).contains("no record"));
    }
}
