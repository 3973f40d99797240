//! Hashes of 32 bits as other clients compute them.

/// A byte as C extends a signed `char`.
fn extended(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

/// The hash that twemproxy and libmemcached call `fnv1a_64`: FNV-1a with the low halves of the
/// 64-bit constants.
pub(super) fn fnv1a_64(key: &[u8]) -> u32 {
    key.iter().fold(0x8422_2325, |hash: u32, &byte| {
        (hash ^ extended(byte)).wrapping_mul(0x0000_01b3)
    })
}

/// One-at-a-time (Bob Jenkins), libmemcached's default hash.
pub(super) fn one_at_a_time(key: &[u8]) -> u32 {
    let hash = key.iter().fold(0, |hash: u32, &byte| {
        let sum = hash.wrapping_add(extended(byte));
        let sum = sum.wrapping_add(sum << 10);
        sum ^ (sum >> 6)
    });
    let hash = hash.wrapping_add(hash << 3);
    let hash = hash ^ (hash >> 11);
    hash.wrapping_add(hash << 15)
}

/// MurmurHash3 of 32 bits with seed 0 (Austin Appleby), of the concatenation of `parts`.
pub(super) fn murmur3_32(parts: [&[u8]; 3]) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let scramble = |word: u32| word.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    let (mut hash, mut word, mut len) = (0_u32, 0_u32, 0_u32);
    for &byte in parts.into_iter().flatten() {
        word |= u32::from(byte) << (8 * (len % 4));
        len = len.wrapping_add(1);
        if len % 4 == 0 {
            hash = (hash ^ scramble(word)).rotate_left(13);
            hash = hash.wrapping_mul(5).wrapping_add(0xe654_6b64);
            word = 0;
        }
    }
    // Mixing 0 gives 0, so a length that is a multiple of four needs no special case.
    hash ^= scramble(word) ^ len;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur3_has_the_known_values() {
        // Published test vectors of MurmurHash3.
        assert_eq!(murmur3_32([b"", b"", b""]), 0);
        assert_eq!(murmur3_32([b"te", b"", b"st"]), 0xba6b_d213);
        assert_eq!(murmur3_32([b"Hello,", b" ", b"world!"]), 0xc036_3e43);
    }
}
