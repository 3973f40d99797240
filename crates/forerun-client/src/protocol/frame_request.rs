//! Composes multi-get frames, after docs/operate/multi-get.md.
//!
//! ```text
//!   F6 form options 0  body_bytes(4) id(4) received(2) count(2) │ key_len(1)… key…      form 1
//!                                                               │ key…                  form 2: keys of 8 bytes
//! ```
//!
//! `received` is written when the frame is sent ([`set_received`]).

/// Switches frames on, once per connection.
pub(crate) const ENABLE: &[u8] = b"multi_get 1\r\n";

/// Bytes of every header.
pub(crate) const HEADER_BYTES: usize = 16;
/// Maximum length of a request with its header.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Position of the number of answers received.
const RECEIVED_AT: usize = 12;

const REQUEST: u8 = 0xf6;
const FORM_LENGTHS: u8 = 1;
const FORM_U64: u8 = 2;
const KEY_BYTES_U64: usize = 8;
/// The client always asks for flags.
pub(crate) const OPTION_FLAGS: u8 = 1;
pub(crate) const OPTION_CAS: u8 = 2;

/// The number of the first keys that one request takes, and its form.
fn first_request(lengths: impl Iterator<Item = usize>) -> (usize, u8) {
    let (mut mixed, mut mixed_bytes) = (0, HEADER_BYTES);
    let (mut numbers, mut has_numbers, mut has_space) = (0, true, true);
    for bytes in lengths {
        has_numbers &= bytes == KEY_BYTES_U64
            && HEADER_BYTES + (numbers + 1) * KEY_BYTES_U64 <= REQUEST_BYTES_MAX;
        numbers += usize::from(has_numbers);
        mixed_bytes += 1 + bytes;
        has_space &= mixed_bytes <= REQUEST_BYTES_MAX;
        mixed += usize::from(has_space);
        if !has_numbers && !has_space {
            break;
        }
    }
    if numbers >= mixed {
        (numbers, FORM_U64)
    } else {
        (mixed, FORM_LENGTHS)
    }
}

/// Appends one request for the first of `keys`, as many as it takes, and returns their number.
pub(crate) fn push<'k, I>(keys: I, id: u32, with_cas: bool, out: &mut Vec<u8>) -> usize
where
    I: Iterator<Item = &'k [u8]> + Clone,
{
    let (count, form) = first_request(keys.clone().map(<[u8]>::len));
    let keys = keys.take(count);
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    if form == FORM_LENGTHS {
        // A key has at most 250 bytes; the call has checked it.
        out.extend(keys.clone().map(|key| key.len() as u8));
    }
    for key in keys {
        out.extend_from_slice(key);
    }
    let body_bytes = (out.len() - start - HEADER_BYTES) as u32;
    let options = OPTION_FLAGS + u8::from(with_cas) * OPTION_CAS;
    let header = &mut out[start..];
    header[..4].copy_from_slice(&[REQUEST, form, options, 0]);
    header[4..8].copy_from_slice(&body_bytes.to_le_bytes());
    header[8..12].copy_from_slice(&id.to_le_bytes());
    header[14..16].copy_from_slice(&(count as u16).to_le_bytes());
    count
}

/// Writes the number of answers received into the request at the front of `bytes`.
pub(crate) fn set_received(bytes: &mut [u8], received: u16) {
    if let Some(field) = bytes.get_mut(RECEIVED_AT..RECEIVED_AT + 2) {
        field.copy_from_slice(&received.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_divided_so_that_each_request_is_as_long_as_it_may_be() {
        let cases: [(Vec<usize>, (usize, u8)); 6] = [
            (vec![1, 2, 3], (3, FORM_LENGTHS)),
            (vec![8, 8, 8], (3, FORM_U64)),
            (vec![8; 5000], (2046, FORM_U64)),
            (vec![1; 9000], (8184, FORM_LENGTHS)),
            (vec![250; 100], (65, FORM_LENGTHS)),
            ([vec![8; 100], vec![9; 10]].concat(), (110, FORM_LENGTHS)),
        ];
        for (lengths, expected) in cases {
            assert_eq!(first_request(lengths.iter().copied()), expected);
            let keys: Vec<Vec<u8>> = lengths.iter().map(|bytes| vec![b'k'; *bytes]).collect();
            let mut out = Vec::new();
            let count = push(keys.iter().map(Vec::as_slice), 1, true, &mut out);
            assert_eq!(count, expected.0);
            assert!(out.len() <= REQUEST_BYTES_MAX);
        }
    }

    #[test]
    fn a_request_has_the_documented_bytes() {
        let mut out = Vec::new();
        let keys = [&b"a"[..], b"bc", b"a"];
        assert_eq!(push(keys.into_iter(), 7, false, &mut out), 3);
        set_received(&mut out, 0x0201);
        let header = [0xf6, 1, 1, 0, 7, 0, 0, 0, 7, 0, 0, 0, 1, 2, 3, 0];
        assert_eq!(out[..16], header);
        assert_eq!(out[16..], *b"\x01\x02\x01abca");
    }
}
