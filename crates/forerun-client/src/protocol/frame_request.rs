//! Composes multi-get frames. `forerun_wire` has their format.
//!
//! ```text
//!   header, 16 bytes │ key_len(1)… key…      form Lengths
//!                    │ key…                  form U64: keys of 8 bytes
//! ```
//!
//! The number of answers received is written when the frame is sent
//! ([`set_received`](forerun_wire::multi_get::set_received)).

use forerun_wire::multi_get::{
    Form, HEADER_BYTES, REQUEST_BYTES_MAX, RequestHeader, RequestOptions,
};

/// The number of the first keys that one request takes, and its form.
fn first_request(lengths: impl Iterator<Item = usize>) -> (usize, Form) {
    let (mut mixed, mut mixed_bytes) = (0, HEADER_BYTES);
    let (mut numbers, mut has_numbers, mut has_space) = (0, true, true);
    for bytes in lengths {
        has_numbers &= bytes == Form::KEY_BYTES_U64
            && HEADER_BYTES + (numbers + 1) * Form::KEY_BYTES_U64 <= REQUEST_BYTES_MAX;
        numbers += usize::from(has_numbers);
        mixed_bytes += 1 + bytes;
        has_space &= mixed_bytes <= REQUEST_BYTES_MAX;
        mixed += usize::from(has_space);
        if !has_numbers && !has_space {
            break;
        }
    }
    if numbers >= mixed {
        (numbers, Form::U64)
    } else {
        (mixed, Form::Lengths)
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
    if form == Form::Lengths {
        // A key has at most 250 bytes; the call has checked it.
        out.extend(keys.clone().map(|key| key.len() as u8));
    }
    for key in keys {
        out.extend_from_slice(key);
    }
    let body_bytes = (out.len() - start - HEADER_BYTES) as u32;
    let options = RequestOptions {
        with_flags: true,
        with_cas,
    };
    let header = RequestHeader {
        form: form as u8,
        options: options.byte(),
        reserved: 0,
        body_bytes,
        id,
        received: 0,
        count: count as u16,
    };
    out[start..start + HEADER_BYTES].copy_from_slice(&header.bytes());
    count
}

#[cfg(test)]
mod tests {
    use forerun_wire::multi_get::set_received;

    use super::*;

    #[test]
    fn a_batch_is_divided_so_that_each_request_is_as_long_as_it_may_be() {
        let cases: [(Vec<usize>, (usize, Form)); 6] = [
            (vec![1, 2, 3], (3, Form::Lengths)),
            (vec![8, 8, 8], (3, Form::U64)),
            (vec![8; 5000], (2046, Form::U64)),
            (vec![1; 9000], (8184, Form::Lengths)),
            (vec![250; 100], (65, Form::Lengths)),
            ([vec![8; 100], vec![9; 10]].concat(), (110, Form::Lengths)),
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
