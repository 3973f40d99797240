//! Keys as the protocols send them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::error::KeyError;
use crate::options::Protocol;

/// The longest key, as sent.
pub(crate) const KEY_BYTES_MAX: usize = 250;
/// The longest key whose base64 has at most [`KEY_BYTES_MAX`] bytes.
const BASE64_KEY_BYTES_MAX: usize = 186;

/// Whether a key is sent unchanged, or as base64 with the flag `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyText {
    Plain,
    Base64,
}

impl KeyText {
    /// How a key is sent.
    pub(crate) fn of(key: &[u8], protocol: Protocol) -> Result<KeyText, KeyError> {
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        let long = |limit| {
            let bytes = key.len();
            Err(KeyError::Long { bytes, limit })
        };
        let control = |byte: &u8| *byte <= b' ' || *byte == 0x7f;
        match key.iter().position(control) {
            None if key.len() <= KEY_BYTES_MAX => Ok(KeyText::Plain),
            None => long(KEY_BYTES_MAX),
            Some(at) if protocol == Protocol::Classic => Err(KeyError::Byte { byte: key[at], at }),
            Some(_) if key.len() <= BASE64_KEY_BYTES_MAX => Ok(KeyText::Base64),
            Some(_) => long(BASE64_KEY_BYTES_MAX),
        }
    }

    /// Appends a key as it is sent.
    pub(crate) fn push(self, key: &[u8], out: &mut Vec<u8>) {
        match self {
            KeyText::Plain => out.extend_from_slice(key),
            KeyText::Base64 => out.extend_from_slice(STANDARD.encode(key).as_bytes()),
        }
    }

    /// The flag of a meta command.
    pub(crate) fn flag(self) -> &'static [u8] {
        match self {
            KeyText::Plain => b"",
            KeyText::Base64 => b" b",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_cannot_be_sent_are_refused() {
        let classic = |key: &[u8]| KeyText::of(key, Protocol::Classic);
        let meta = |key: &[u8]| KeyText::of(key, Protocol::Meta);
        assert_eq!(classic(b""), Err(KeyError::Empty));
        assert_eq!(classic(&[b'x'; 250]), Ok(KeyText::Plain));
        let (bytes, limit) = (251, 250);
        assert_eq!(classic(&[b'x'; 251]), Err(KeyError::Long { bytes, limit }));
        for byte in [b' ', b'\r', b'\n', 0, 0x7f] {
            assert_eq!(classic(&[b'k', byte]), Err(KeyError::Byte { byte, at: 1 }));
            assert_eq!(meta(&[b'k', byte]), Ok(KeyText::Base64));
        }
        assert_eq!(meta(&[0; 186]), Ok(KeyText::Base64));
        let (bytes, limit) = (187, 186);
        assert_eq!(meta(&[0; 187]), Err(KeyError::Long { bytes, limit }));
        assert_eq!(meta("Zürich".as_bytes()), Ok(KeyText::Plain));
    }
}
