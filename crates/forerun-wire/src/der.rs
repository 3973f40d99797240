//! Reads values in DER: what rustls does not report of certificates and keys.

/// The tag of an integer.
pub const INTEGER: u8 = 0x02;
/// The tag of bytes.
pub const OCTET_STRING: u8 = 0x04;
/// The tag of values that follow each other.
pub const SEQUENCE: u8 = 0x30;

/// DER values that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    /// The content of the next value. `None` if its tag differs.
    pub fn next(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next_any()
            .filter(|(found, _)| *found == tag)
            .map(|(_, content)| content)
    }

    /// The tag and the content of the next value.
    pub fn next_any(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (len, rest) = match first {
            0..=0x7F => (usize::from(first), rest),
            // The low bits count the bytes of the length. No certificate needs more than three.
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
                let len = bytes
                    .iter()
                    .fold(0, |len, byte| len << 8 | usize::from(*byte));
                (len, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }
}
