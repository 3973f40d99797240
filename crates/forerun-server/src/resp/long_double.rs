//! Decimal numbers in the x87's format of 80 bits, in which Redis adds them.
//!
//! ```text
//!   value = mantissa × 2^exponent       mantissa: 64 bits, the highest one set unless the value is 0
//!   "3.0e3" ─ exact big integers ─► nearest mantissa ─ add, round to even ─► 17 decimals, without trailing zeros
//! ```
//!
//! In this format, 3 + 1.1 is 4.1 when 17 decimals of it are written. In 64 bits it would not be.
//! Rounding is to nearest, ties to even, as everywhere in IEEE 754.

use std::cmp::Ordering;

/// The longest text of a number.
const TEXT_BYTES_MAX: usize = 5 << 10;
/// Decimal exponents beyond this are infinity or 0.
const EXPONENT_MAX: i64 = 5_000;
/// The exponent of the largest mantissa: larger numbers are infinite.
const BINARY_EXPONENT_MAX: i64 = 16_383 - 63;
/// Decimals of a number that is written.
const DECIMALS: u32 = 17;

/// A finite number or infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongDouble {
    is_negative: bool,
    /// 0, or the highest bit is set.
    mantissa: u64,
    exponent: i64,
    is_infinite: bool,
}

const ZERO: LongDouble = LongDouble {
    is_negative: false,
    mantissa: 0,
    exponent: 0,
    is_infinite: false,
};

impl LongDouble {
    /// Parses a decimal or hexadecimal number, or infinity, with an optional sign and exponent. No
    /// space may surround it. A number that is too large or too small for the format is refused,
    /// and so is NaN.
    pub(crate) fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (is_negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let number = if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity")
        {
            LongDouble {
                is_infinite: true,
                ..ZERO
            }
        } else if let [b'0', b'x' | b'X', digits @ ..] = text {
            hexadecimal(digits)?
        } else {
            decimal(text)?
        };
        Some(LongDouble {
            is_negative,
            ..number
        })
    }

    /// Whether the number is neither infinite nor NaN.
    pub(crate) fn is_finite(self) -> bool {
        !self.is_infinite
    }

    /// The sum. `None`: it is not a number, because infinities cancel.
    pub(crate) fn add(self, other: LongDouble) -> Option<LongDouble> {
        match (self.is_infinite, other.is_infinite) {
            (true, true) if self.is_negative != other.is_negative => return None,
            (true, _) => return Some(self),
            (_, true) => return Some(other),
            _ => {}
        }
        let (large, small) = match (self.mantissa, other.mantissa) {
            (0, 0) => {
                let is_negative = self.is_negative && other.is_negative;
                return Some(LongDouble {
                    is_negative,
                    ..ZERO
                });
            }
            (0, _) => return Some(other),
            (_, 0) => return Some(self),
            _ if (self.exponent, self.mantissa) >= (other.exponent, other.mantissa) => {
                (self, other)
            }
            _ => (other, self),
        };
        // 62 bits below the larger mantissa, and a last one for everything below them.
        const LOW_BITS: u32 = 62;
        let shift = large.exponent - small.exponent;
        let high = u128::from(large.mantissa) << LOW_BITS;
        let low = u128::from(small.mantissa) << LOW_BITS;
        let low = match u32::try_from(shift) {
            Ok(shift) if shift < 127 => {
                let kept = low >> shift;
                kept | u128::from(kept << shift != low)
            }
            _ => 1,
        };
        let sum = if large.is_negative == small.is_negative {
            high + low
        } else {
            high - low
        };
        if sum == 0 {
            return Some(ZERO);
        }
        let is_negative = large.is_negative;
        Some(LongDouble {
            is_negative,
            ..rounded(sum, large.exponent - i64::from(LOW_BITS))
        })
    }

    /// Writes a finite number without an exponent.
    pub(crate) fn to_text(self) -> String {
        let digits = if self.exponent >= 0 {
            let mut number = Big::from(self.mantissa);
            number.shift_left(self.exponent as usize);
            number.to_decimal()
        } else {
            let scaled = u128::from(self.mantissa) * 10_u128.pow(DECIMALS);
            let shift = self.exponent.unsigned_abs();
            let units = match u32::try_from(shift) {
                Ok(shift) if shift < 128 => {
                    let (kept, half) = (scaled >> shift, 1_u128 << (shift - 1));
                    let rest = scaled - (kept << shift);
                    kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
                }
                _ => 0,
            };
            let digits = format!("{units:0>width$}", width = DECIMALS as usize + 1);
            let (whole, decimals) = digits.split_at(digits.len() - DECIMALS as usize);
            match decimals.trim_end_matches('0') {
                "" => whole.to_owned(),
                decimals => format!("{whole}.{decimals}"),
            }
        };
        if self.is_negative && digits != "0" {
            format!("-{digits}")
        } else {
            digits
        }
    }
}

/// The number nearest to `value` × 2^`exponent`. It is not 0. If bits below were cut off, the last
/// bit is set.
fn rounded(value: u128, exponent: i64) -> LongDouble {
    let width = 128 - value.leading_zeros();
    let (mut mantissa, mut exponent) = if width <= 64 {
        (
            (value as u64) << (64 - width),
            exponent - i64::from(64 - width),
        )
    } else {
        let shift = width - 64;
        let kept = (value >> shift) as u64;
        let (rest, half) = (value & ((1 << shift) - 1), 1_u128 << (shift - 1));
        let is_up = match rest.cmp(&half) {
            Ordering::Greater => true,
            Ordering::Equal => kept & 1 == 1,
            Ordering::Less => false,
        };
        match kept.checked_add(u64::from(is_up)) {
            Some(mantissa) => (mantissa, exponent + i64::from(shift)),
            None => (1 << 63, exponent + i64::from(shift) + 1),
        }
    };
    let is_infinite = exponent > BINARY_EXPONENT_MAX;
    if is_infinite {
        (mantissa, exponent) = (0, 0);
    }
    LongDouble {
        is_negative: false,
        mantissa,
        exponent,
        is_infinite,
    }
}

/// The digits of a number around its point, as a number, how many were behind the point, and what
/// follows them.
fn mantissa(text: &[u8], radix: u32) -> Option<(Big, i64, &[u8])> {
    let mut number = Big::default();
    let (mut digits, mut decimals, mut has_point) = (0, 0, false);
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        match char::from(*byte).to_digit(radix) {
            Some(digit) => {
                number.multiply_add(radix, digit);
                digits += 1;
                decimals += i64::from(has_point);
            }
            None if *byte == b'.' && !has_point => has_point = true,
            None => break,
        }
        rest = behind;
    }
    (digits > 0).then_some((number, decimals, rest))
}

/// The exponent behind one of these letters; 0 without one.
fn exponent(text: &[u8], letter: u8) -> Option<i64> {
    let [first, rest @ ..] = text else {
        return Some(0);
    };
    if !first.eq_ignore_ascii_case(&letter) {
        return None;
    }
    let (sign, digits) = match rest {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0_i64, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(i64::from(digit - b'0'))
            .min(1 << 40)
    });
    Some(sign * number)
}

fn decimal(text: &[u8]) -> Option<LongDouble> {
    let (mut number, decimals, rest) = mantissa(text, 10)?;
    let power = exponent(rest, b'e')? - decimals;
    if number.is_zero() {
        return Some(ZERO);
    }
    if power.abs() > EXPONENT_MAX + TEXT_BYTES_MAX as i64 {
        return None;
    }
    let mut divisor = Big::from(1);
    let scale = if power >= 0 {
        &mut number
    } else {
        &mut divisor
    };
    for _ in 0..power.abs() {
        scale.multiply_add(10, 0);
    }
    in_range(quotient(number, &divisor))
}

fn hexadecimal(text: &[u8]) -> Option<LongDouble> {
    let (number, decimals, rest) = mantissa(text, 16)?;
    let power = exponent(rest, b'p')? - 4 * decimals;
    if number.is_zero() {
        return Some(ZERO);
    }
    let mut value = quotient(number, &Big::from(1));
    value.exponent += power;
    value.is_infinite |= value.exponent > BINARY_EXPONENT_MAX;
    in_range(value)
}

/// Refuses numbers that the format cannot hold.
fn in_range(value: LongDouble) -> Option<LongDouble> {
    (!value.is_infinite && value.exponent >= -BINARY_EXPONENT_MAX - 128).then_some(value)
}

/// The number nearest to the quotient of two numbers other than 0.
fn quotient(mut number: Big, divisor: &Big) -> LongDouble {
    // Shift the number so that the quotient has 66 or 67 bits.
    let shift = 66 + divisor.bits() as i64 - number.bits() as i64;
    let mut divisor = divisor.clone();
    if shift >= 0 {
        number.shift_left(shift as usize);
    } else {
        divisor.shift_left(shift.unsigned_abs() as usize);
    }
    // Long division by bits.
    let mut value = 0_u128;
    divisor.shift_left(67);
    for _ in 0..=67 {
        value <<= 1;
        if number.subtract_if_not_less(&divisor) {
            value |= 1;
        }
        number.shift_left(1);
    }
    // What is left decides a tie, so it is a bit of its own.
    let has_more = !number.is_zero();
    rounded(value << 1 | u128::from(has_more), -shift - 1)
}

/// A large natural number, its lowest word first, without zeros at the end.
#[derive(Clone, Debug, Default)]
struct Big(Vec<u32>);

impl From<u64> for Big {
    fn from(number: u64) -> Big {
        let mut big = Big(vec![number as u32, (number >> 32) as u32]);
        big.trim();
        big
    }
}

impl Big {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bits(&self) -> usize {
        let top = self
            .0
            .last()
            .map_or(0, |top| 32 - top.leading_zeros() as usize);
        self.0.len().saturating_sub(1) * 32 + top
    }

    fn multiply_add(&mut self, factor: u32, summand: u32) {
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

    fn shift_left(&mut self, bits: usize) {
        let (words, bits) = (bits / 32, bits % 32);
        if self.is_zero() {
            return;
        }
        self.multiply_add(1 << bits, 0);
        self.0.splice(0..0, std::iter::repeat_n(0, words));
    }

    /// Subtracts `other` unless it is larger. Returns whether it did.
    fn subtract_if_not_less(&mut self, other: &Big) -> bool {
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

    fn to_decimal(&self) -> String {
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
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Option<LongDouble> {
        LongDouble::parse(text.as_bytes())
    }

    fn sum(a: &str, b: &str) -> String {
        let sum = number(a).and_then(|a| a.add(number(b)?));
        sum.expect("two numbers").to_text()
    }

    #[test]
    fn sums_are_those_of_redis() {
        for (a, b, expected) in [
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "1.1", "4.1"),
            ("-1", "1", "0"),
            ("0.1", "0.2", "0.3"),
            ("1", "-1.1", "-0.1"),
            ("0x1.8p1", "0", "3"),
            ("0x10", "-.5", "15.5"),
            ("1e18", "1", "1000000000000000001"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("1e30", "0", "1000000000000000000024696061952"),
            ("1e-18", "0", "0"),
            ("-1e-18", "0", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("3.", "+.25", "3.25"),
        ] {
            assert_eq!(sum(a, b), expected, "{a} + {b}");
        }
    }

    #[test]
    fn numbers_that_differ_by_much_are_added_with_the_right_last_bit() {
        // A tie of the lower bits goes to the even mantissa, and any bit below it decides.
        assert_eq!(sum("18446744073709551616", "1"), "18446744073709551616");
        assert_eq!(sum("18446744073709551618", "1"), "18446744073709551620");
        assert_eq!(
            sum("18446744073709551616", "1.0000001"),
            "18446744073709551618"
        );
        assert_eq!(sum("1e100", "-1e-100"), sum("1e100", "0"));
    }

    #[test]
    fn what_is_not_a_number_is_refused() {
        for text in [
            "",
            " 1",
            "1 ",
            "a",
            "nan",
            "-",
            ".",
            "e1",
            "1e",
            "1e+",
            "0x",
            "0xg",
            "1.2.3",
            "1e5000",
            "-1e4933",
            "--1",
            "0x1p99999",
            "1e-6000",
        ] {
            assert_eq!(number(text), None, "{text:?}");
        }
        let infinity = number("-INFinity").expect("it is read");
        assert!(!infinity.is_finite());
        assert_eq!(number("inf").and_then(|other| other.add(infinity)), None);
        let largest = number("1e4932").expect("it is just within the range");
        assert!(!largest.add(largest).expect("it is infinite").is_finite());
        assert_eq!(largest.to_text().len(), 4933);
    }

    proptest! {
        #[test]
        fn integers_are_exact(a in -(1_i64 << 61)..1 << 61, b in -(1_i64 << 61)..1 << 61) {
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), (a + b).to_string());
        }

        #[test]
        fn a_double_is_read_as_its_own_value(value in -1e15_f64..1e15) {
            // Every 64-bit number is exact in 80 bits, and so are its decimals here.
            let exact = format!("{value:.60}");
            let text = sum(&exact, "0");
            let short = format!("{value:.17}");
            let short = short.trim_end_matches('0').trim_end_matches('.');
            prop_assert_eq!(text, if short == "-0" { "0" } else { short });
        }
    }
}
