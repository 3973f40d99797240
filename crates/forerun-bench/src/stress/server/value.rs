//! Keys and values of a soak test: a value contains its key and its version.
//!
//! ```text
//!  soak:00001234:0017 42 190 hgadkbmohgadkbmo…
//!  key (client, number)  version  bytes of all   letters that depend on the three
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

/// Appends a value of `bytes` bytes, or longer if its header needs that.
pub fn push(key: Key, version: u64, bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    // A length of fixed width, so that it does not change itself. Writing to a Vec cannot fail.
    let _ = write!(out, "{key} {version} ");
    let bytes = bytes.max(out.len() - start + 9);
    let _ = write!(out, "{bytes:08} ");
    let letters = letters(key, version);
    let end = start + bytes;
    while out.len() < end {
        let rest = end - out.len();
        out.extend_from_slice(&letters[..rest.min(letters.len())]);
    }
}

/// The version of a value, if it belongs to `key` and is complete and unchanged.
///
/// # Errors
/// A description of what is wrong with it.
pub fn version_of(key: Key, value: &[u8]) -> Result<u64, String> {
    let shown = || String::from_utf8_lossy(&value[..value.len().min(80)]).into_owned();
    let mut words = value.splitn(4, |byte| *byte == b' ');
    let (whose, version) = (words.next(), words.next());
    if whose.and_then(Key::parse) != Some(key) {
        return Err(format!("{key} has another key's value: {:?}", shown()));
    }
    let version = version
        .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
        .ok_or_else(|| format!("{key} has a value without a version: {:?}", shown()))?;
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
        for bytes in [0, 1, 40, 41, 190, 5000] {
            for version in [0, 9, 10, u64::MAX] {
                let mut value = Vec::new();
                push(KEY, version, bytes, &mut value);
                assert!(value.len() >= bytes);
                assert_eq!(version_of(KEY, &value), Ok(version));
            }
        }
    }

    #[test]
    fn any_change_of_a_value_is_detected() {
        let mut value = Vec::new();
        push(KEY, 42, 100, &mut value);
        for at in 0..value.len() {
            let mut changed = value.clone();
            changed[at] ^= 1;
            assert!(version_of(KEY, &changed).is_err(), "{at}");
        }
        assert!(version_of(KEY, &value[..99]).is_err());
        let other = Key { number: 8, ..KEY };
        assert!(version_of(other, &value).unwrap_err().contains("another"));
    }
}
