//! Finds the ends of tokens in a text protocol: the spaces and newlines of 64 bytes, as 64 bits.

/// Bytes per call.
pub const DELIMITER_BLOCK_BYTES: usize = 64;

/// Bit `i` of the result is set if byte `i` is a space or a newline.
///
/// Every x86-64 CPU has SSE2, so there is nothing to choose at run time. On other targets the
/// compiler vectorizes the plain loop as it can.
///
/// ```
/// use forerun_core::arch::delimiters;
///
/// let mut block = [b'k'; 64];
/// block[3] = b' ';
/// block[63] = b'\n';
/// assert_eq!(delimiters(&block), 1 << 3 | 1 << 63);
/// ```
#[inline]
pub fn delimiters(block: &[u8; DELIMITER_BLOCK_BYTES]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        sse2(block)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        plain(block)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn sse2(block: &[u8; DELIMITER_BLOCK_BYTES]) -> u64 {
    use core::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    let mut bits = 0;
    for quarter in 0..4 {
        let bytes = &block[quarter * 16..][..16];
        // SAFETY: `bytes` is 16 bytes long, the load needs no alignment, and SSE2 is part of
        // x86-64.
        let mask = unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let spaces = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b' '.cast_signed()));
            let newlines = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\n'.cast_signed()));
            _mm_movemask_epi8(_mm_or_si128(spaces, newlines))
        };
        bits |= u64::from(mask.cast_unsigned()) << (quarter * 16);
    }
    bits
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn plain(block: &[u8; DELIMITER_BLOCK_BYTES]) -> u64 {
    let mut bits = 0;
    for (index, &byte) in block.iter().enumerate() {
        bits |= u64::from(byte == b' ' || byte == b'\n') << index;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_at_every_position_agrees_with_the_plain_loop() {
        for byte in 0..=u8::MAX {
            for place in 0..DELIMITER_BLOCK_BYTES {
                let mut block = [b'x'; DELIMITER_BLOCK_BYTES];
                block[place] = byte;
                assert_eq!(delimiters(&block), plain(&block), "{byte:#x} at {place}");
            }
        }
    }
}
