//! MD5 (RFC 1321) of several short messages at once. Ketama needs the digest of every key. A single
//! digest is a chain of dependent instructions, so a batch computes several digests in the lanes of
//! vectors.
//!
//! ```text
//!   state   a: [lane 0, lane 1, … lane N-1]   b: […]   c: […]   d: […]
//!   block   16 words of N lanes               a message of up to 55 bytes is one block
//! ```

/// The longest message that fits into one block with its padding.
const ONE_BLOCK_BYTES: usize = 55;
const BLOCK_BYTES: usize = 64;

/// The first words of the digest, before any block.
const INITIAL: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// `floor(2^32 * abs(sin(i + 1)))`.
const SINES: [u32; 64] = [
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
];

type Lanes<const N: usize> = [u32; N];

fn map<const N: usize>(lane: impl Fn(usize) -> u32) -> Lanes<N> {
    std::array::from_fn(lane)
}

/// Performs sixteen steps. `mix` combines the other three words, and `word` selects the word of the
/// block.
#[inline(always)]
fn round<const N: usize>(
    state: &mut [Lanes<N>; 4],
    block: &[Lanes<N>; 16],
    first: usize,
    rotations: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
    word: impl Fn(usize) -> usize,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..16 {
        let words = &block[word(step) % 16];
        let (sine, rotation) = (SINES[first + step], rotations[step % 4]);
        let next = map(|lane| {
            let sum = a[lane]
                .wrapping_add(mix(b[lane], c[lane], d[lane]))
                .wrapping_add(sine)
                .wrapping_add(words[lane]);
            b[lane].wrapping_add(sum.rotate_left(rotation))
        });
        (a, d, c, b) = (d, c, b, next);
    }
    *state = [a, b, c, d];
}

fn compress<const N: usize>(state: &mut [Lanes<N>; 4], block: &[Lanes<N>; 16]) {
    let before = *state;
    let f = |b: u32, c: u32, d: u32| (b & c) | (!b & d);
    let g = |b: u32, c: u32, d: u32| (b & d) | (c & !d);
    let h = |b: u32, c: u32, d: u32| b ^ c ^ d;
    let i = |b: u32, c: u32, d: u32| c ^ (b | !d);
    round(state, block, 0, [7, 12, 17, 22], f, |step| step);
    round(state, block, 16, [5, 9, 14, 20], g, |step| 5 * step + 1);
    round(state, block, 32, [4, 11, 16, 23], h, |step| 3 * step + 5);
    round(state, block, 48, [6, 10, 15, 21], i, |step| 7 * step);
    for (word, before) in state.iter_mut().zip(&before) {
        *word = map(|lane| word[lane].wrapping_add(before[lane]));
    }
}

/// The words of a block of one lane.
fn words(block: &[u8; BLOCK_BYTES]) -> [u32; 16] {
    let (words, _) = block.as_chunks::<4>();
    std::array::from_fn(|at| u32::from_le_bytes(words[at]))
}

/// The last block of a message: its end, the padding, and its length in bits.
fn last_block(rest: &[u8], message_bytes: usize) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[..rest.len()].copy_from_slice(rest);
    block[rest.len()] = 0x80;
    let bits = (message_bytes as u64).wrapping_mul(8);
    block[BLOCK_BYTES - 8..].copy_from_slice(&bits.to_le_bytes());
    block
}

/// The digest of one message, as four words whose little-endian bytes are the digest.
pub(super) fn digest(message: &[u8]) -> [u32; 4] {
    let mut state = INITIAL.map(|word| [word]);
    let mut compress_block =
        |block: &[u8; BLOCK_BYTES]| compress(&mut state, &words(block).map(|word| [word]));
    let (blocks, rest) = message.as_chunks::<BLOCK_BYTES>();
    blocks.iter().for_each(&mut compress_block);
    if rest.len() > ONE_BLOCK_BYTES {
        // The length does not fit after the end of the message.
        let mut block = [0; BLOCK_BYTES];
        block[..rest.len()].copy_from_slice(rest);
        block[rest.len()] = 0x80;
        compress_block(&block);
        let mut last = last_block(&[], message.len());
        last[0] = 0;
        compress_block(&last);
    } else {
        compress_block(&last_block(rest, message.len()));
    }
    state.map(|[word]| word)
}

/// The first word of the digest of each message.
pub(super) fn first_words<const N: usize>(messages: [&[u8]; N]) -> [u32; N] {
    if messages.iter().any(|key| key.len() > ONE_BLOCK_BYTES) {
        return messages.map(|message| digest(message)[0]);
    }
    let mut block = [[0; N]; 16];
    for (lane, message) in messages.iter().enumerate() {
        let of_lane = words(&last_block(message, message.len()));
        for (word, of_lane) in block.iter_mut().zip(of_lane) {
            word[lane] = of_lane;
        }
    }
    let mut state = INITIAL.map(|word| [word; N]);
    compress(&mut state, &block);
    state[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(message: &[u8]) -> String {
        let bytes = digest(message).map(u32::to_le_bytes);
        bytes
            .as_flattened()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    #[test]
    fn digests_are_those_of_the_rfc() {
        for (message, expected) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (
                "abcdefghijklmnopqrstuvwxyz",
                "c3fcd3d76192e4007dfb496cca67e13b",
            ),
            (
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
                "d174ab98d277d9f5a5611c2c9f419d9f",
            ),
            (
                "1234567890123456789012345678901234567890\
                 1234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(hex(message.as_bytes()), expected, "{message}");
        }
    }

    #[test]
    fn lanes_have_the_digests_of_their_messages() {
        let text = [b'x'; 200];
        for begin in 0..150 {
            let messages: [&[u8]; 8] = std::array::from_fn(|lane| &text[..begin + lane * 3]);
            assert_eq!(first_words(messages), messages.map(|text| digest(text)[0]));
        }
    }
}
