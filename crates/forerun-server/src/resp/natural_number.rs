//! Natural numbers of any size, in which decimal numbers are read and written exactly.
//!
//! ```text
//!   [ word 0 │ word 1 │ … ]     value = word 0 + word 1 × 2^32 + …      the last word is not 0
//! ```

use std::cmp::Ordering;

/// A large natural number, its lowest word first, without zeros at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Natural(Vec<u32>);

impl From<u64> for Natural {
    fn from(number: u64) -> Natural {
        let mut big = Natural(vec![number as u32, (number >> 32) as u32]);
        big.trim();
        big
    }
}

impl Natural {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bits(&self) -> usize {
        let top = self
            .0
            .last()
            .map_or(0, |top| 32 - top.leading_zeros() as usize);
        self.0.len().saturating_sub(1) * 32 + top
    }

    pub(super) fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for word in &mut self.0 {
            let product = u64::from(*word) * u64::from(factor) + carry;
            *word = product as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    pub(super) fn shift_left(&mut self, bits: usize) {
        let (words, bits) = (bits / 32, bits % 32);
        if self.is_zero() {
            return;
        }
        self.multiply_add(1 << bits, 0);
        self.0.splice(0..0, std::iter::repeat_n(0, words));
    }

    /// Subtracts `other` unless it is larger. Returns whether it did.
    pub(super) fn subtract_if_not_less(&mut self, other: &Natural) -> bool {
        let by_words = self.0.len().cmp(&other.0.len());
        let order = by_words.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()));
        if order == Ordering::Less {
            return false;
        }
        let mut borrow = 0;
        for (index, word) in self.0.iter_mut().enumerate() {
            let less = u64::from(other.0.get(index).copied().unwrap_or(0)) + borrow;
            borrow = u64::from(u64::from(*word) < less);
            *word = ((borrow << 32) + u64::from(*word) - less) as u32;
        }
        self.trim();
        true
    }

    pub(super) fn to_decimal(&self) -> String {
        const PIECE: u64 = 1_000_000_000;
        let (mut number, mut pieces) = (self.clone(), Vec::new());
        while !number.is_zero() {
            let mut rest = 0;
            for word in number.0.iter_mut().rev() {
                let part = rest << 32 | u64::from(*word);
                *word = (part / PIECE) as u32;
                rest = part % PIECE;
            }
            number.trim();
            pieces.push(rest);
        }
        let mut text = pieces.pop().unwrap_or(0).to_string();
        for piece in pieces.iter().rev() {
            text += &format!("{piece:09}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_128_bits() {
        let (a, b) = (0x1234_5678_9abc_def0_u64, 0xffff_ffff_u64);
        let mut number = Natural::from(a);
        number.shift_left(37);
        number.multiply_add(1_000_000_007, 99);
        let expected = (u128::from(a) << 37) * 1_000_000_007 + 99;
        assert_eq!(number.to_decimal(), expected.to_string());
        assert_eq!(number.bits(), 128 - expected.leading_zeros() as usize);
        assert!(!Natural::from(b).subtract_if_not_less(&number));
        assert!(number.subtract_if_not_less(&Natural::from(b)));
        assert_eq!(number.to_decimal(), (expected - u128::from(b)).to_string());
        let mut same = number.clone();
        assert!(same.subtract_if_not_less(&number) && same.is_zero());
    }
}
