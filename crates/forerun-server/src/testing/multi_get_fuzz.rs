//! The body of the fuzz target for multi-get frames. The answers must not depend on how the input
//! is split, and each must agree with its own lengths.

use forerun_wire::multi_get::{HEADER_BYTES, REQUEST};

use super::session_fuzz::play;

/// Keys that requests ask for. The session has `a`, `b`, `big` and `huge`.
const KEYS: [&[u8]; 6] = [b"a", b"b", b"big", b"huge", b"missing", b"12345678"];

/// Commands between the frames.
const TEXTS: [&[u8]; 10] = [
    b"get a b missing\r\n",
    b"gets big huge\r\n",
    b"set b 1 0 3\r\nxyz\r\n",
    b"mg huge v\r\n",
    b"mn\r\n",
    b"gat 0 a huge\r\n",
    b"delete missing\r\n",
    b"set 12345678 0 0 2\r\n\xf6\xf7\r\n",
    b"multi_get 1\r\n",
    b"  ",
];

/// What a stream contains besides good frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contents {
    /// Every frame is good.
    is_good: bool,
    has_text: bool,
}

/// Sends the requests that `bytes` describe to a session, once as a whole and once in pieces, with
/// a fast and a slow reader, and compares the answers.
///
/// # Panics
/// If the answers differ or are malformed, or if a buffer takes too much memory.
pub fn fuzz_multi_get(cuts: &[u8], bytes: &[u8]) {
    let (stream, contents) = compose(bytes);
    let whole = play(&stream, &[], usize::MAX);
    for step in [usize::MAX, 997] {
        let cut = play(&stream, cuts, step);
        assert!(
            whole == cut,
            "in pieces of {step}: {}\nwhole: {}",
            cut.escape_ascii(),
            whole.escape_ascii()
        );
    }
    check(&whole, contents);
}

/// A stream of frames, most of them good, and of commands between them.
fn compose(bytes: &[u8]) -> (Vec<u8>, Contents) {
    let mut stream = b"multi_get 1\r\n".to_vec();
    let mut requests = 0_u16;
    let mut contents = Contents {
        is_good: true,
        has_text: false,
    };
    let mut input = bytes.iter().copied();
    while let Some(kind) = input.next()
        && stream.len() < 100_000
    {
        let start = stream.len();
        let mut next = || input.next().unwrap_or(0);
        if kind & 0x0e == 0x0e {
            stream.extend_from_slice(TEXTS[usize::from(next()) % TEXTS.len()]);
            contents.has_text = true;
            continue;
        }
        let (options, keys) = (next(), usize::from(next()) + 1);
        let received = requests.wrapping_sub(u16::from(next() % 64));
        let mut body = Vec::new();
        let is_numbers = kind & 1 == 1;
        if is_numbers {
            (0..keys).for_each(|_| body.extend(u64::from(next()).to_le_bytes()));
        } else {
            let keys: Vec<&[u8]> = (0..keys)
                .map(|_| KEYS[usize::from(next()) % KEYS.len()])
                .collect();
            body.extend(keys.iter().map(|key| key.len() as u8));
            keys.iter().for_each(|key| body.extend_from_slice(key));
        }
        stream.extend([REQUEST, 1 + u8::from(is_numbers), options & 3, 0]);
        stream.extend((body.len() as u32).to_le_bytes());
        stream.extend([kind; 4]);
        stream.extend(received.to_le_bytes());
        stream.extend((keys as u16).to_le_bytes());
        stream.extend(body);
        requests = requests.wrapping_add(1);
        if kind & 0xf0 == 0xf0 {
            // Change a byte, most often one of the header.
            let (at, byte) = (next(), next());
            let len = stream.len() - start;
            let at = match kind & 2 {
                0 => usize::from(at) % HEADER_BYTES,
                _ => usize::from(at) * 7 % len,
            };
            stream[start + at] = byte;
            contents.is_good = false;
        }
    }
    (stream, contents)
}

/// Follows the lengths in the answers up to their end, or up to an error or to the answer to a
/// command.
fn check(answers: &[u8], contents: Contents) {
    let Some(mut rest) = answers.strip_prefix(b"MULTI_GET 1 64\r\n") else {
        panic!("frames are not enabled");
    };
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    };
    while rest.first() == Some(&0xf7) {
        let (header, behind) = rest.split_at(HEADER_BYTES);
        let (body, behind) = behind.split_at(number(&header[4..8]) as usize);
        rest = behind;
        if header[1] == 2 {
            assert!(!contents.is_good, "{}", body.escape_ascii());
            assert!(rest.is_empty() && (1..=6).contains(&header[12]));
            return;
        }
        let count = number(&header[14..]) as usize;
        let options = header[2];
        let entry_bytes = 4 + 4 * usize::from(options & 1) + 8 * usize::from(options >> 1);
        let lengths = body[..4 * count].chunks_exact(4).map(number);
        let values: u64 = lengths.filter(|&bytes| bytes != u64::from(u32::MAX)).sum();
        assert_eq!(body.len() as u64, (count * entry_bytes) as u64 + values);
    }
    // A changed byte may turn frames into text.
    let may_end = contents.has_text || !contents.is_good;
    assert!(rest.is_empty() || may_end, "{}", rest.escape_ascii());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_good_stream_and_a_changed_one_are_composed() {
        let (stream, contents) = compose(&[0, 3, 1, 0, 2, 5, 1]);
        assert!(contents.is_good && !contents.has_text);
        assert_eq!(stream[13..17], [REQUEST, 1, 3, 0]);
        assert!(
            stream
                .windows(8)
                .any(|window| window == b"\x03\x08big12345".get(..8).unwrap())
        );
        assert!(!compose(&[0xf0, 0, 0, 0, 0, 1, 9]).1.is_good);
        let (stream, contents) = compose(&[0x0e, 4]);
        assert!(stream.ends_with(b"mn\r\n") && contents.has_text);
    }

    proptest! {
        #[test]
        fn frames_have_the_same_answers_however_they_arrive(
            cuts in proptest::collection::vec(any::<u8>(), 1..8),
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), 0_u8..8, Just(0x0e), Just(0xf0), Just(0xf2)], 0..600
            ),
        ) {
            fuzz_multi_get(&cuts, &bytes);
        }
    }
}
