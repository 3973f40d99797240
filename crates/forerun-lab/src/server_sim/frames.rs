//! Multi-get frames: requests, and the parts of their answers, after docs/operate/multi-get.md.
//!
//! The simulator has its own code for the format, so that a mistake of the server or of the client
//! crate does not hide itself.

/// The line that switches frames on, and its answer.
pub const ENABLE: &[u8] = b"multi_get 1\r\n";
pub const ENABLED: &[u8] = b"MULTI_GET 1 64\r\n";
/// Maximum number of unanswered requests of a connection.
pub const CREDITS: usize = 64;

const HEADER_BYTES: usize = 16;
const PART_KEYS_MAX: usize = 256;
/// A part ends after the value with which its values reach this size.
const PART_BYTES: usize = 16 << 10;
const NOT_FOUND: u32 = u32::MAX;
const WITH_FLAGS: u8 = 1;
const WITH_VERSIONS: u8 = 2;

/// Appends a request for these keys.
pub fn push_request(names: &[String], options: u8, id: u32, received: u16, out: &mut Vec<u8>) {
    let body_bytes: usize = names.iter().map(|name| 1 + name.len()).sum();
    out.extend([0xf6, 1, options, 0]);
    out.extend((body_bytes as u32).to_le_bytes());
    out.extend(id.to_le_bytes());
    out.extend(received.to_le_bytes());
    out.extend((names.len() as u16).to_le_bytes());
    out.extend(names.iter().map(|name| name.len() as u8));
    names.iter().for_each(|name| out.extend(name.bytes()));
}

/// What the next part of an answer must be.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub id: u32,
    pub options: u8,
    /// The number of keys of the request, and of those that earlier parts have answered.
    pub keys: usize,
    pub answered: usize,
}

/// A part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The value of each key.
    pub values: Vec<Option<&'a [u8]>>,
    pub is_last: bool,
    /// Its length with its header.
    pub bytes: usize,
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads the code of an error at the front of `input`, and its length. `None` if it has not arrived
/// in full, or if something else has.
pub fn read_error(input: &[u8], id: u32) -> Option<Result<(usize, usize), String>> {
    let header = input.get(..HEADER_BYTES)?;
    if header[..4] != [0xf7, 2, 0, 1] || u32_at(header, 8) != id || u16_at(header, 14) != 0 {
        let shown = header.escape_ascii();
        return Some(Err(format!("{shown} is not the header of an error")));
    }
    let bytes = HEADER_BYTES + u32_at(header, 4) as usize;
    input.get(..bytes)?;
    Some(Ok((u16_at(header, 12), bytes)))
}

/// Reads the part at the front of `input`. `None` if it has not arrived in full.
///
/// # Errors
/// What is wrong with it.
pub fn read_part(input: &[u8], expected: Expected) -> Result<Option<Part<'_>>, String> {
    let Some(header) = input.get(..HEADER_BYTES) else {
        return Ok(None);
    };
    let (first, count) = (u16_at(header, 12), u16_at(header, 14));
    let is_last = first + count == expected.keys;
    let starts = [0xf7, 1, expected.options, u8::from(is_last)];
    if header[..4] != starts
        || u32_at(header, 8) != expected.id
        || first != expected.answered
        || !(1..=PART_KEYS_MAX).contains(&count)
        || first + count > expected.keys
    {
        let shown = header.escape_ascii();
        return Err(format!("{shown} is not the next part of {expected:?}"));
    }
    let flags_bytes = 4 * count * usize::from(expected.options & WITH_FLAGS);
    let versions_bytes = 8 * count * usize::from(expected.options / WITH_VERSIONS);
    let arrays_bytes = 4 * count + flags_bytes + versions_bytes;
    let Some(arrays) = input.get(HEADER_BYTES..HEADER_BYTES + arrays_bytes) else {
        return Ok(None);
    };
    let lengths: Vec<Option<usize>> = (0..count)
        .map(|at| u32_at(arrays, 4 * at))
        .map(|bytes| (bytes != NOT_FOUND).then_some(bytes as usize))
        .collect();
    let values_bytes: usize = lengths.iter().flatten().sum();
    if u32_at(header, 4) as usize != arrays_bytes + values_bytes {
        return Err("the length of a part is not the sum of its lengths".to_owned());
    }
    let before_last = values_bytes - lengths[count - 1].unwrap_or(0);
    let is_full = count == PART_KEYS_MAX || values_bytes >= PART_BYTES;
    if before_last >= PART_BYTES || !(is_full || is_last) {
        return Err(format!(
            "a part ends after {count} keys and {values_bytes} bytes of values"
        ));
    }
    let flags = &arrays[4 * count..][..flags_bytes];
    if flags.iter().any(|byte| *byte != 0) {
        return Err("flags that no client has set".to_owned());
    }
    let versions = arrays[4 * count + flags_bytes..].chunks_exact(8);
    let has_version = versions.map(|version| version.iter().any(|byte| *byte != 0));
    for (length, has_version) in lengths.iter().zip(has_version) {
        if length.is_some() != has_version {
            return Err("a value without a version, or a version without a value".to_owned());
        }
    }
    let bytes = HEADER_BYTES + arrays_bytes + values_bytes;
    let Some(mut rest) = input.get(HEADER_BYTES + arrays_bytes..bytes) else {
        return Ok(None);
    };
    let mut values = Vec::with_capacity(count);
    for length in lengths {
        values.push(length.map(|length| {
            let (value, behind) = rest.split_at(length);
            rest = behind;
            value
        }));
    }
    Ok(Some(Part {
        values,
        is_last,
        bytes,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected {
        id: 7,
        options: 1,
        keys: 3,
        answered: 0,
    };

    /// The answer in the page that describes the format, without its flags.
    fn answer() -> Vec<u8> {
        let mut bytes = vec![0xf7, 1, 1, 1, 30, 0, 0, 0, 7, 0, 0, 0, 0, 0, 3, 0];
        for length in [3, NOT_FOUND, 3] {
            bytes.extend(length.to_le_bytes());
        }
        bytes.extend([0; 12]);
        bytes.extend(b"xyzxyz");
        bytes
    }

    #[test]
    fn a_part_is_read_once_all_of_it_has_arrived() {
        let bytes = answer();
        for end in 0..bytes.len() {
            assert_eq!(read_part(&bytes[..end], EXPECTED), Ok(None), "{end}");
        }
        let part = read_part(&bytes, EXPECTED).expect("a part").expect("whole");
        assert_eq!(part.values, [Some(&b"xyz"[..]), None, Some(b"xyz")]);
        assert!(part.is_last && part.bytes == bytes.len());
    }

    #[test]
    fn a_wrong_byte_of_the_header_or_of_the_flags_is_found() {
        for at in (0..16).chain(28..40) {
            let mut bytes = answer();
            bytes[at] ^= 1;
            bytes.resize(100_000, 0);
            assert!(read_part(&bytes, EXPECTED).is_err(), "{at}");
        }
    }

    #[test]
    fn errors_have_a_code_and_a_length() {
        let error = b"\xf7\x02\0\x01\x02\0\0\0\x07\0\0\0\x06\0\0\0no";
        for end in 0..error.len() {
            assert_eq!(read_error(&error[..end], 7), None);
        }
        assert_eq!(read_error(error, 7), Some(Ok((6, 18))));
        assert!(matches!(read_error(&answer(), 7), Some(Err(_))));
    }
}
