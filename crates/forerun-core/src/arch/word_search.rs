//! Counting the 32-bit words that are below another one.
//!
//! Every x86-64 CPU has SSE2, so there is nothing to choose at run time. On other targets the
//! compiler vectorizes the plain loops as it can. SSE2 compares signed words, so both sides are
//! first shifted by half of the range.

/// Bytes per line of words.
pub const WORD_LINE_BYTES: usize = 64;

/// Bytes per block of words, the unit of [`words_below`].
pub const WORD_BLOCK_BYTES: usize = 32;

/// The number of little-endian words in `blocks` that are below `needle`.
///
/// ```
/// use forerun_core::arch::words_below;
///
/// let mut block = [0xff; 32];
/// block[..4].copy_from_slice(&7_u32.to_le_bytes());
/// assert_eq!(words_below(&[block], 8), 1);
/// assert_eq!(words_below(&[block], 7), 0);
/// ```
#[inline(always)]
pub fn words_below(blocks: &[[u8; WORD_BLOCK_BYTES]], needle: u32) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        sse2::words_below(blocks, needle)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        plain::words_below(blocks, needle)
    }
}

/// For a line of ascending little-endian words: how many are below `needle`, and how many are at
/// most `needle`. If the words are not ascending, the result is two arbitrary numbers from 0 to 16.
///
/// ```
/// use forerun_core::arch::word_bounds;
///
/// let mut line = [0xff; 64];
/// line[..4].copy_from_slice(&3_u32.to_le_bytes());
/// line[4..8].copy_from_slice(&7_u32.to_le_bytes());
/// assert_eq!(word_bounds(&line, 7), (1, 2));
/// assert_eq!(word_bounds(&line, 8), (2, 2));
/// assert_eq!(word_bounds(&line, u32::MAX), (2, 16));
/// ```
#[inline(always)]
pub fn word_bounds(line: &[u8; WORD_LINE_BYTES], needle: u32) -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    {
        sse2::word_bounds(line, needle)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        plain::word_bounds(line, needle)
    }
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use core::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_cmpgt_epi32, _mm_cvtsi128_si32, _mm_loadu_si128,
        _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi32, _mm_setzero_si128,
        _mm_shuffle_epi32, _mm_sub_epi32, _mm_xor_si128,
    };

    use super::{WORD_BLOCK_BYTES, WORD_LINE_BYTES};

    /// Four words from byte `at` on, shifted by half of the range.
    #[inline(always)]
    fn four<const BYTES: usize>(bytes: &[u8; BYTES], at: usize) -> __m128i {
        let bytes = &bytes[at..][..16];
        // SAFETY: `bytes` is 16 bytes long, the load needs no alignment, and SSE2 is part of
        // x86-64.
        unsafe { shifted(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    fn shifted(words: __m128i) -> __m128i {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_xor_si128(words, _mm_set1_epi32(i32::MIN)) }
    }

    #[inline(always)]
    pub(super) fn words_below(blocks: &[[u8; WORD_BLOCK_BYTES]], needle: u32) -> usize {
        // SAFETY: SSE2 is part of x86-64, and these read no memory.
        unsafe {
            let needle = shifted(_mm_set1_epi32(needle.cast_signed()));
            let mut sums = _mm_setzero_si128();
            for block in blocks {
                // A word that is below gives all ones, which is -1.
                for at in [0, 16] {
                    sums = _mm_sub_epi32(sums, _mm_cmpgt_epi32(needle, four(block, at)));
                }
            }
            let pairs = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b01_00_11_10>(sums));
            let sum = _mm_add_epi32(pairs, _mm_shuffle_epi32::<0b10_11_00_01>(pairs));
            _mm_cvtsi128_si32(sum).cast_unsigned() as usize
        }
    }

    #[inline(always)]
    pub(super) fn word_bounds(line: &[u8; WORD_LINE_BYTES], needle: u32) -> (usize, usize) {
        let words = [
            four(line, 0),
            four(line, 16),
            four(line, 32),
            four(line, 48),
        ];
        // SAFETY: SSE2 is part of x86-64, and these read no memory.
        unsafe {
            let needle = shifted(_mm_set1_epi32(needle.cast_signed()));
            let below = words.map(|four| _mm_cmpgt_epi32(needle, four));
            let above = words.map(|four| _mm_cmpgt_epi32(four, needle));
            // The words ascend, so those below come first and those above come last.
            (
                bits(below).trailing_ones() as usize,
                (bits(above) | 1 << 16).trailing_zeros() as usize,
            )
        }
    }

    /// One bit for each word that is all ones.
    #[inline(always)]
    fn bits([a, b, c, d]: [__m128i; 4]) -> u32 {
        // SAFETY: SSE2 is part of x86-64, and these read no memory.
        unsafe {
            let bytes = _mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
            _mm_movemask_epi8(bytes).cast_unsigned()
        }
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod plain {
    use super::{WORD_BLOCK_BYTES, WORD_LINE_BYTES};

    fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| u32::from_le_bytes(*word))
    }

    pub(super) fn words_below(blocks: &[[u8; WORD_BLOCK_BYTES]], needle: u32) -> usize {
        words(blocks.as_flattened())
            .filter(|word| *word < needle)
            .count()
    }

    pub(super) fn word_bounds(line: &[u8; WORD_LINE_BYTES], needle: u32) -> (usize, usize) {
        let below = words(line).filter(|word| *word < needle).count();
        let up_to = words(line).filter(|word| *word <= needle).count();
        (below, up_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_equal_those_of_plain_loops() {
        // The ends of both halves of the range, and their neighbours.
        let ends = [
            0,
            1,
            2,
            0x7fff_fffe,
            0x7fff_ffff,
            0x8000_0000,
            0x8000_0001,
            0xffff_fffe,
            u32::MAX,
        ];
        let mut seed = 1_u32;
        for round in 0..2000 {
            let mut words: Vec<u32> = (0..16)
                .map(|i| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    match (round + i) % 3 {
                        0 => seed,
                        _ => ends[seed as usize % ends.len()],
                    }
                })
                .collect();
            words.sort_unstable();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let line: &[u8; WORD_LINE_BYTES] = bytes.first_chunk().unwrap();
            let blocks = line.as_chunks().0;
            for needle in ends.into_iter().chain(words.iter().copied()).chain([seed]) {
                let expected = plain::word_bounds(line, needle);
                assert_eq!(
                    word_bounds(line, needle),
                    expected,
                    "{words:x?} and {needle:x}"
                );
                for count in 0..=2 {
                    assert_eq!(
                        words_below(&blocks[..count], needle),
                        plain::words_below(&blocks[..count], needle)
                    );
                }
            }
        }
    }
}
