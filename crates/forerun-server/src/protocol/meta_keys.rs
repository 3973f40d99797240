//! Keys as meta commands send them: plain, or as base64 of binary keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forerun_cache::names_keyspace;

use super::KEY_BYTES_MAX;

/// Space for a decoded key.
#[derive(Debug)]
pub(crate) struct DecodedKey {
    bytes: [u8; KEY_BYTES_MAX],
    has_keyspaces: bool,
}

impl DecodedKey {
    /// Space for a key of a cache. If it has several keyspaces, no key may name one.
    pub(crate) fn new(has_keyspaces: bool) -> DecodedKey {
        DecodedKey {
            bytes: [0; KEY_BYTES_MAX],
            has_keyspaces,
        }
    }
}

/// Decodes a base64 key of at most [`KEY_BYTES_MAX`] bytes into `decoded`. Returns `None` if it is
/// invalid, empty, or that of another keyspace.
pub(crate) fn decode<'a>(key: &[u8], decoded: &'a mut DecodedKey) -> Option<&'a [u8]> {
    // The decoder needs space for whole groups of three bytes.
    let mut buffer = [0; KEY_BYTES_MAX + 2];
    let count = STANDARD.decode_slice(key, &mut buffer).ok()?;
    let key = &buffer[..count];
    if !(1..=KEY_BYTES_MAX).contains(&count) || decoded.has_keyspaces && names_keyspace(key) {
        return None;
    }
    let place = &mut decoded.bytes[..count];
    place.copy_from_slice(key);
    Some(place)
}

/// Appends ` k` and the key. Appends a binary key in base64, with the flag that marks it.
pub(crate) fn push_key_flag(out: &mut Vec<u8>, key: &[u8], binary: bool) {
    out.extend_from_slice(b" k");
    if binary {
        push_base64(out, key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// Appends the key in base64.
pub(crate) fn push_base64(out: &mut Vec<u8>, key: &[u8]) {
    let mut buffer = [0; KEY_BYTES_MAX.div_ceil(3) * 4];
    // The key of a command has at most KEY_BYTES_MAX bytes, and so has one that is listed, so it
    // always fits. If it did not, this would append nothing.
    if let Ok(count) = STANDARD.encode_slice(key, &mut buffer) {
        out.extend_from_slice(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_key_comes_back_as_it_was_sent() {
        let mut decoded = DecodedKey::new(false);
        let key = decode(b"44OG44K544OI", &mut decoded).expect("valid base64");
        assert_eq!(key, "テスト".as_bytes());
        let mut out = Vec::new();
        push_key_flag(&mut out, key, true);
        assert_eq!(out, b" k44OG44K544OI b");
    }

    #[test]
    fn invalid_and_empty_base64_keys_are_refused() {
        let mut decoded = DecodedKey::new(false);
        for bad in [&b""[..], b"a", b"ab", b"a$==", b"44OG44K544O"] {
            assert_eq!(decode(bad, &mut decoded), None, "{}", bad.escape_ascii());
        }
        assert_eq!(
            decode(&[b'A'; 248], &mut decoded).map(<[u8]>::len),
            Some(186)
        );
    }

    #[test]
    fn the_longest_key_fits_in_base64() {
        let mut out = Vec::new();
        push_base64(&mut out, &[0xff; KEY_BYTES_MAX]);
        assert_eq!(out.len(), 336);
    }
}
