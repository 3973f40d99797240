//! The lengths of an entry's key and value, as its node has them.
//!
//! ```text
//!   short   │ key, 12 bits │ value, 20 bits │           in the header
//!   long    │ all ones                      │           in the header
//!           │ key, 32 bits │ value, 32 bits │           before the node's links
//! ```

/// The lengths of an entry's key and value.
#[derive(Clone, Copy)]
pub(super) struct Lens {
    pub(super) key: usize,
    pub(super) value: usize,
}

impl Lens {
    const VALUE_BITS: u32 = 20;
    /// In place of lengths that need more bits.
    pub(super) const LONG: u32 = u32::MAX;

    /// As the header has them.
    pub(super) fn packed(self) -> u32 {
        let fits = |len: usize, bits: u32| len < (1 << bits) - 1;
        if fits(self.key, u32::BITS - Self::VALUE_BITS) && fits(self.value, Self::VALUE_BITS) {
            (self.key as u32) << Self::VALUE_BITS | self.value as u32
        } else {
            Self::LONG
        }
    }

    #[inline(always)]
    pub(super) fn unpacked(packed: u32) -> Lens {
        Lens {
            key: (packed >> Self::VALUE_BITS) as usize,
            value: (packed & ((1 << Self::VALUE_BITS) - 1)) as usize,
        }
    }
}

/// Both lengths, where the header has no room for them.
pub(super) type LongLens = [u32; 2];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_fit_are_packed_and_others_are_long() {
        for (key, value) in [
            (0, 0),
            (16, 100),
            (4094, 0),
            (0, 0xf_fffe),
            (4094, 0xf_fffe),
        ] {
            let packed = Lens { key, value }.packed();
            assert_ne!(packed, Lens::LONG);
            let Lens { key: k, value: v } = Lens::unpacked(packed);
            assert_eq!((k, v), (key, value));
        }
        for (key, value) in [(4095, 0), (4096, 5), (1, 0xf_ffff), (1 << 16, 1 << 30)] {
            assert_eq!(Lens { key, value }.packed(), Lens::LONG);
        }
    }
}
