//! Checks every operation of every instruction set that this machine has against loops in plain
//! Rust.

use super::*;
use proptest::prelude::*;
use std::cell::Cell;

/// Runs a check with each available set. [`dispatch`] must pick the requested one.
fn with_each<W: WithSimd + Copy>(work: W) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        dispatch(isa, work);
    }
}

fn bits<T: PartialEq>(slots: &[T], needle: &T) -> u32 {
    let equal = slots.iter().enumerate().filter(|(_, slot)| *slot == needle);
    equal.map(|(i, _)| 1 << i).sum()
}

/// Words, many of which are equal or differ in a single byte or bit.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u32..64).prop_map(|bit| !(1 << bit)),
        any::<u64>(),
    ]
}

#[test]
fn work_runs_with_the_requested_instruction_set_or_a_lower_one() {
    struct Which;
    impl WithSimd for Which {
        type Output = Isa;
        #[inline(always)]
        fn with<S: Simd>(self, _: S) -> Isa {
            S::ISA
        }
    }
    for isa in Isa::ALL {
        let ran = dispatch(isa, Which);
        assert!(ran.is_available());
        assert_eq!(ran == isa, isa.is_available(), "{isa} ran as {ran}");
    }
}

#[derive(Clone, Copy)]
struct Groups<'a> {
    words: &'a [u64; 32],
    needle: u64,
    compared: &'a Cell<u32>,
}

impl Groups<'_> {
    #[inline(always)]
    fn check<S: Simd, const N: usize>(self, simd: S) {
        let (words, needle) = (&self.words[..N], self.needle);
        let slots: [u8; N] = std::array::from_fn(|i| words[i] as u8);
        assert_eq!(
            simd.eq_u8(&slots, needle as u8),
            bits(&slots, &(needle as u8))
        );
        let slots: [u16; N] = std::array::from_fn(|i| words[i] as u16);
        assert_eq!(
            simd.eq_u16(&slots, needle as u16),
            bits(&slots, &(needle as u16))
        );
        let slots: [u32; N] = std::array::from_fn(|i| words[i] as u32);
        assert_eq!(
            simd.eq_u32(&slots, needle as u32),
            bits(&slots, &(needle as u32))
        );
        let slots: [u64; N] = std::array::from_fn(|i| words[i]);
        assert_eq!(simd.eq_u64(&slots, needle), bits(&slots, &needle));
        self.compared.set(self.compared.get() + 1);
    }
}

impl WithSimd for Groups<'_> {
    type Output = ();
    #[inline(always)]
    fn with<S: Simd>(self, simd: S) {
        self.check::<S, 0>(simd);
        self.check::<S, 1>(simd);
        self.check::<S, 2>(simd);
        self.check::<S, 3>(simd);
        self.check::<S, 4>(simd);
        self.check::<S, 8>(simd);
        self.check::<S, 15>(simd);
        self.check::<S, 16>(simd);
        self.check::<S, 32>(simd);
    }
}

/// A check of lanes; `u64` values cover both widths.
#[derive(Clone, Copy)]
struct LaneChecks<'a> {
    a: &'a [u64; 16],
    b: &'a [u64; 16],
    table: &'a [u64],
    len: u32,
}

/// The properties of a word type that the checks use.
trait TestWord: Copy + PartialEq + Debug + Default {
    fn of(word: u64) -> Self;
    fn wide(self) -> u64;
    const BITS: u32;
}

impl TestWord for u32 {
    fn of(word: u64) -> u32 {
        word as u32
    }
    fn wide(self) -> u64 {
        u64::from(self)
    }
    const BITS: u32 = 32;
}

impl TestWord for u64 {
    fn of(word: u64) -> u64 {
        word
    }
    fn wide(self) -> u64 {
        self
    }
    const BITS: u32 = 64;
}

impl LaneChecks<'_> {
    /// The lanes of a vector.
    fn lanes<S: Simd, L: Lanes<S>>(vector: L) -> Vec<L::Word>
    where
        L::Word: TestWord,
    {
        let mut words = [L::Word::default(); 16];
        vector.store(&mut words);
        assert!(
            words[L::LEN..]
                .iter()
                .all(|&word| word == L::Word::default())
        );
        words[..L::LEN].to_vec()
    }

    fn check<S: Simd, L: Lanes<S>>(self, simd: S)
    where
        L::Word: TestWord,
    {
        let n = L::LEN;
        let a = self.a.map(L::Word::of);
        let b = self.b.map(L::Word::of);
        let each = |f: &dyn Fn(u64, u64) -> u64| -> Vec<L::Word> {
            (0..n)
                .map(|i| L::Word::of(f(a[i].wide(), b[i].wide())))
                .collect()
        };
        let (x, y) = (L::load(simd, &a), L::load(simd, &b));
        assert_eq!(Self::lanes(x), a[..n]);
        assert_eq!(Self::lanes(L::splat(simd, a[0])), vec![a[0]; n]);
        assert_eq!(Self::lanes(x.add(y)), each(&|a, b| a.wrapping_add(b)));
        assert_eq!(Self::lanes(x.xor(y)), each(&|a, b| a ^ b));
        assert_eq!(Self::lanes(x.mul(y)), each(&|a, b| a.wrapping_mul(b)));
        assert_eq!(Self::lanes(x.shr::<1>()), each(&|a, _| a >> 1));
        assert_eq!(Self::lanes(x.shr::<31>()), each(&|a, _| a >> 31));
        assert_eq!(Self::lanes(x.shl::<1>()), each(&|a, _| a << 1));
        assert_eq!(Self::lanes(x.shl::<31>()), each(&|a, _| a << 31));
        if L::Word::BITS == 64 {
            assert_eq!(Self::lanes(x.shl::<32>()), each(&|a, _| a << 32));
            assert_eq!(Self::lanes(x.shr::<32>()), each(&|a, _| a >> 32));
        }
        let top = |word: u64| word >> (L::Word::BITS - 32);
        let len = u64::from(self.len);
        let index = x.scale(L::splat(simd, L::Word::of(len)));
        assert_eq!(Self::lanes(index), each(&|a, _| (top(a) * len) >> 32));

        let equal = x.eq(y);
        let expected: Vec<bool> = (0..n).map(|i| a[i] == b[i]).collect();
        let set = |mask: &[bool]| bits(mask, &true);
        assert_eq!(equal.bits(), set(&expected));
        let all = x.eq(x);
        assert_eq!(all.bits(), ((1u64 << n) - 1) as u32);
        assert_eq!(all.and(equal).bits(), equal.bits());
        assert_eq!(all.and_not(equal).bits(), all.bits() & !equal.bits());
        assert_eq!(equal.and_not(all).bits(), 0);
        let none = equal.and_not(equal);
        assert_eq!(none.or(equal).bits(), equal.bits());
        assert_eq!(none.or(all).bits(), all.bits());

        let flipped = x.xor(L::splat(simd, L::Word::of(u64::MAX)));
        let selected = x.select(flipped, equal);
        let either: Vec<L::Word> = (0..n)
            .map(|i| {
                if expected[i] {
                    a[i]
                } else {
                    L::Word::of(!a[i].wide())
                }
            })
            .collect();
        assert_eq!(Self::lanes(selected), either);

        self.gathers::<S, L, 4>(index, equal, x);
        self.gathers::<S, L, 8>(index, equal, x);
        self.gathers::<S, L, 16>(index, equal, x);
        self.gathers::<S, L, 16>(index, all, x);
    }

    /// Gathers with indexes below `len`. Unset lanes must not be read.
    fn gathers<S: Simd, L: Lanes<S>, const STRIDE_BYTES: usize>(
        self,
        index: L,
        mask: L::Mask,
        otherwise: L,
    ) where
        L::Word: TestWord,
    {
        let word_bytes = L::Word::BITS as usize / 8;
        if STRIDE_BYTES < word_bytes {
            return; // The words would not be aligned.
        }
        assert!(self.len as usize * 16 <= self.table.len() * 8);
        let base = self.table.as_ptr();
        // SAFETY: each index is below `len` and below 2^30, so index x 16 + 8 bytes are inside the
        // table, whose alignment is 8.
        let read = unsafe { L::gather::<STRIDE_BYTES>(base.cast(), index, mask, otherwise) };
        let (indices, kept) = (Self::lanes(index), Self::lanes(otherwise));
        let bytes: Vec<u8> = self
            .table
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        for (i, lane) in Self::lanes(read).into_iter().enumerate() {
            let at = indices[i].wide() as usize * STRIDE_BYTES;
            let mut word = [0; 8];
            word[..word_bytes].copy_from_slice(&bytes[at..at + word_bytes]);
            let there = if cfg!(target_endian = "big") && word_bytes == 4 {
                u64::from_ne_bytes(word) >> 32
            } else {
                u64::from_ne_bytes(word)
            };
            let set = mask.bits() >> i & 1 == 1;
            assert_eq!(lane, if set { L::Word::of(there) } else { kept[i] });
        }
    }
}

impl WithSimd for LaneChecks<'_> {
    type Output = ();
    #[inline(always)]
    fn with<S: Simd>(self, simd: S) {
        self.check::<S, S::U32s>(simd);
        self.check::<S, S::U64s>(simd);
    }
}

proptest! {
    #[test]
    fn a_group_compares_all_of_its_slots(
        words in prop::array::uniform32(word()),
        needle in word(),
        copies in prop::collection::vec(0usize..32, 0..4),
    ) {
        let mut words = words;
        for at in copies {
            words[at] = needle;
        }
        let compared = Cell::new(0);
        with_each(Groups { words: &words, needle, compared: &compared });
        prop_assert!(compared.get() >= 9);
    }

    #[test]
    fn lanes_compute_what_a_loop_computes(
        a in prop::array::uniform16(word()),
        b in prop::array::uniform16(word()),
        same in any::<u16>(),
        len in 1u32..100,
    ) {
        let mut b = b;
        for i in 0..16 {
            if same >> i & 1 == 1 {
                b[i] = a[i];
            }
        }
        let table: Vec<u64> = (0..200).map(|i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        with_each(LaneChecks { a: &a, b: &b, table: &table, len });
    }
}

#[test]
fn unset_lanes_are_not_read() {
    #[derive(Clone, Copy)]
    struct Unread;
    impl WithSimd for Unread {
        type Output = ();
        #[inline(always)]
        fn with<S: Simd>(self, simd: S) {
            fn check<S: Simd, L: Lanes<S>>(simd: S, far: L::Word, zero: L::Word)
            where
                L::Word: PartialEq + Debug + Default,
            {
                let index = L::splat(simd, far);
                let none = index.eq(L::splat(simd, zero));
                assert_eq!(none.bits(), 0);
                // SAFETY: no lane is set, so none is read.
                let read = unsafe { L::gather::<8>(std::ptr::null(), index, none, index) };
                let mut words = [zero; 16];
                read.store(&mut words);
                assert_eq!(words[L::LEN - 1], far);
            }
            check::<S, S::U32s>(simd, 1 << 29, 0);
            check::<S, S::U64s>(simd, 1 << 29, 0);
        }
    }
    with_each(Unread);
}

#[test]
fn the_largest_table_scales_without_overflow() {
    let words = [
        u64::MAX,
        u64::MAX - 1,
        1 << 63,
        1 << 32,
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
    ];
    #[derive(Clone, Copy)]
    struct Large<'a>(&'a [u64; 16]);
    impl WithSimd for Large<'_> {
        type Output = ();
        #[inline(always)]
        fn with<S: Simd>(self, simd: S) {
            let checks = LaneChecks {
                a: self.0,
                b: self.0,
                table: &[],
                len: u32::MAX,
            };
            let x = S::U64s::load(simd, self.0);
            let scaled = x.scale(S::U64s::splat(simd, u64::from(checks.len)));
            let lanes = LaneChecks::lanes::<S, S::U64s>(scaled);
            assert_eq!(lanes[0], u64::from(u32::MAX) - 1);
        }
    }
    with_each(Large(&words));
}

proptest! {
    #[test]
    fn any_number_of_shared_words_is_compared_in_the_bits_of_the_mask(
        words in proptest::array::uniform11(word()),
        mask in word(),
        at in 0..11usize,
    ) {
        #[derive(Clone, Copy)]
        struct Shared<'a>(&'a [u64; 11], u64, u64);
        impl Shared<'_> {
            #[inline(always)]
            fn check<S: Simd, const N: usize>(self, simd: S) {
                let Shared(words, mask, needle) = self;
                let shared: [AtomicU64; N] = std::array::from_fn(|at| AtomicU64::new(words[at]));
                let masked = words.map(|word| word & mask);
                assert_eq!(simd.eq_shared_u64(&shared, mask, needle), bits(&masked[..N], &needle));
            }
        }
        impl WithSimd for Shared<'_> {
            type Output = ();
            #[inline(always)]
            fn with<S: Simd>(self, simd: S) {
                self.check::<S, 4>(simd);
                self.check::<S, 8>(simd);
                self.check::<S, 11>(simd);
            }
        }
        with_each(Shared(&words, mask, words[at] & mask));
    }
}
