//! Keys and values of a soak test: a value contains its key and its version.
//!
//! ```text
//!  soak:00001234:0017 42 190 hgadkbmohgadkbmo…
//!  key (client, number)  version  bytes of all   letters that depend on the three
//!
//!  ~g4n2pmohga       a value too short for that: its version in base 32, and letters that depend
//!                    on the key, the version and the length
//! ```

use std::fmt;
use std::io::Write;

/// A key: the client that writes it, and its number among that client's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub client: u32,
    pub number: u32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "soak:{:08}:{:04}", self.client, self.number)
    }
}

impl Key {
    /// Parses a key.
    pub fn parse(text: &[u8]) -> Option<Key> {
        let text = std::str::from_utf8(text).ok()?.strip_prefix("soak:")?;
        let (client, number) = text.split_once(':')?;
        let key = Key {
            client: client.parse().ok()?,
            number: number.parse().ok()?,
        };
        (key.to_string()[5..] == *text).then_some(key)
    }
}

/// The shortest value.
pub const BYTES_MIN: usize = 10;
/// How a short value begins, and how many digits its version has.
const SHORT_MARK: u8 = b'~';
const SHORT_DIGITS: usize = 4;
const DIGIT_BITS: usize = 5;

/// Appends a value of `bytes` bytes, or longer if that is too short for its version.
pub fn push(key: Key, version: u64, bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let bytes = bytes.max(BYTES_MIN);
    let has_short_form = version >> (SHORT_DIGITS * DIGIT_BITS) == 0;
    if has_short_form && bytes < header_bytes(key, version) {
        out.push(SHORT_MARK);
        for digit in 0..SHORT_DIGITS {
            out.push(b'a' + (version >> (digit * DIGIT_BITS)) as u8 % (1 << DIGIT_BITS));
        }
        let letters = letters(key, version ^ (bytes as u64) << 32);
        out.extend(letters.iter().cycle().take(start + bytes - out.len()));
        return;
    }
    // A length of fixed width, so that it does not change itself. Writing to a Vec cannot fail.
    let _ = write!(out, "{key} {version} ");
    let bytes = bytes.max(out.len() - start + LENGTH_BYTES);
    let _ = write!(out, "{bytes:08} ");
    let letters = letters(key, version);
    let end = start + bytes;
    while out.len() < end {
        let rest = end - out.len();
        out.extend_from_slice(&letters[..rest.min(letters.len())]);
    }
}

/// The length of a value in its header, and a space.
const LENGTH_BYTES: usize = 9;

/// The bytes before the letters of a long value.
fn header_bytes(key: Key, version: u64) -> usize {
    format!("{key} {version} ").len() + LENGTH_BYTES
}

/// The version of a value, if it belongs to `key` and is complete and unchanged.
///
/// # Errors
/// A description of what is wrong with it.
pub fn version_of(key: Key, value: &[u8]) -> Result<u64, String> {
    let shown = || String::from_utf8_lossy(&value[..value.len().min(80)]).into_owned();
    let version = if value.first() == Some(&SHORT_MARK) {
        short_version(value)
    } else {
        let mut words = value.splitn(4, |byte| *byte == b' ');
        let (whose, version) = (words.next(), words.next());
        if whose.and_then(Key::parse) != Some(key) {
            return Err(format!("{key} has another key's value: {:?}", shown()));
        }
        version.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
    };
    let version =
        version.ok_or_else(|| format!("{key} has a value without a version: {:?}", shown()))?;
    let mut expected = Vec::with_capacity(value.len());
    push(key, version, value.len(), &mut expected);
    if expected != value {
        return Err(format!(
            "{key} has a value that is not as it was written: {:?}, {} bytes",
            shown(),
            value.len()
        ));
    }
    Ok(version)
}

fn short_version(value: &[u8]) -> Option<u64> {
    let digits = value.get(1..=SHORT_DIGITS)?.iter().rev();
    digits.copied().try_fold(0, |version, digit| {
        let digit = digit.checked_sub(b'a').filter(|digit| *digit < 32)?;
        Some(version << DIGIT_BITS | u64::from(digit))
    })
}

fn letters(key: Key, version: u64) -> [u8; 8] {
    let mut word = (u64::from(key.client) << 32 | u64::from(key.number)) ^ version.rotate_left(20);
    // SplitMix64's finaliser.
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (word ^ (word >> 31))
        .to_le_bytes()
        .map(|byte| b'a' + byte % 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key {
        client: 12,
        number: 7,
    };

    #[test]
    fn keys_round_trip_as_text() {
        assert_eq!(KEY.to_string(), "soak:00000012:0007");
        assert_eq!(Key::parse(b"soak:00000012:0007"), Some(KEY));
        for text in [
            &b"soak:12:7"[..],
            b"soak:00000012:00071",
            b"soak:00000012",
            b"\xff",
            b"",
        ] {
            assert!(text.len() == 19 || Key::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_value_contains_its_version_at_any_length() {
        for bytes in [0, 9, 10, 11, 31, 40, 41, 190, 5000] {
            for version in [0, 9, 10, u64::MAX] {
                let mut value = Vec::new();
                push(KEY, version, bytes, &mut value);
                assert!(value.len() >= bytes);
                if version < 1 << 20 {
                    assert_eq!(value.len(), bytes.max(BYTES_MIN));
                }
                assert_eq!(version_of(KEY, &value), Ok(version));
            }
        }
    }

    #[test]
    fn any_change_of_a_value_is_detected() {
        let other = Key { number: 8, ..KEY };
        for bytes in [10, 30, 100] {
            let mut value = Vec::new();
            push(KEY, 42, bytes, &mut value);
            for at in 0..value.len() {
                let mut changed = value.clone();
                changed[at] ^= 1;
                assert!(version_of(KEY, &changed).is_err(), "{at} of {bytes}");
            }
            assert!(version_of(KEY, &value[..bytes - 1]).is_err(), "{bytes}");
            assert!(version_of(other, &value).is_err(), "{bytes}");
        }
    }
}
