//! SplitMix64, a random generator with one word of state (Steele, Lea and Flood, "Fast Splittable
//! Pseudorandom Number Generators", OOPSLA 2014).

/// Steps the generator and returns its next number. The numbers of a state are the same on every
/// machine and in every release. They pass tests of randomness, but one of them gives the state
/// away: this is no cryptographic generator.
///
/// ```
/// use forerun_core::split_mix64;
///
/// let mut state = 1_234_567;
/// assert_eq!(split_mix64(&mut state), 6_457_827_717_110_365_317);
/// assert_eq!(split_mix64(&mut state), 3_203_168_211_198_807_973);
/// ```
#[inline]
pub const fn split_mix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
