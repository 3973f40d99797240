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

use super::natural_number::Natural;

/// The longest text of a number.
const TEXT_BYTES_MAX: usize = 5 << 10;
/// Numbers of 10 to this power or more are too large, and those below 10 to its negative too small.
const EXPONENT_MAX: i64 = 4_960;
/// Digits that are multiplied at a time, so that their power fits in a word.
const DECIMAL_PIECE: i64 = 9;
const HEXADECIMAL_PIECE: i64 = 7;
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
            let mut number = Natural::from(self.mantissa);
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

/// The digits of a number around its point.
struct Digits<'a> {
    number: Natural,
    /// How many there are behind the point.
    decimals: i64,
    /// How many there are without zeros at the front.
    width: i64,
    rest: &'a [u8],
}

fn mantissa(text: &[u8], radix: u32, piece: i64) -> Option<Digits<'_>> {
    let (mut number, mut width) = (Natural::default(), 0);
    let (mut digits, mut decimals, mut has_point) = (0, 0, false);
    // Digits that are not a part of the number yet, and the power of the radix above them.
    let (mut pending, mut power) = (0, 1);
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        match char::from(*byte).to_digit(radix) {
            Some(digit) => {
                (pending, power) = (pending * radix + digit, power * radix);
                digits += 1;
                if digits % piece == 0 {
                    number.multiply_add(power, pending);
                    (pending, power) = (0, 1);
                }
                width += i64::from(width > 0 || digit > 0);
                decimals += i64::from(has_point);
            }
            None if *byte == b'.' && !has_point => has_point = true,
            None => break,
        }
        rest = behind;
    }
    number.multiply_add(power, pending);
    (digits > 0).then_some(Digits {
        number,
        decimals,
        width,
        rest,
    })
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
    let Digits {
        mut number,
        decimals,
        width,
        rest,
    } = mantissa(text, 10, DECIMAL_PIECE)?;
    let power = exponent(rest, b'e')? - decimals;
    if number.is_zero() {
        return Some(ZERO);
    }
    // The number is less than 10 to this power, and at least a tenth of that.
    if (width + power).abs() > EXPONENT_MAX {
        return None;
    }
    let mut divisor = Natural::from(1);
    let scale = if power >= 0 {
        &mut number
    } else {
        &mut divisor
    };
    for _ in 0..power.abs() / DECIMAL_PIECE {
        scale.multiply_add(10_u32.pow(DECIMAL_PIECE as u32), 0);
    }
    scale.multiply_add(10_u32.pow((power.abs() % DECIMAL_PIECE) as u32), 0);
    in_range(quotient(number, &divisor))
}

fn hexadecimal(text: &[u8]) -> Option<LongDouble> {
    let Digits {
        number,
        decimals,
        rest,
        ..
    } = mantissa(text, 16, HEXADECIMAL_PIECE)?;
    let power = exponent(rest, b'p')? - 4 * decimals;
    if number.is_zero() {
        return Some(ZERO);
    }
    let mut value = quotient(number, &Natural::from(1));
    value.exponent += power;
    value.is_infinite |= value.exponent > BINARY_EXPONENT_MAX;
    in_range(value)
}

/// Refuses numbers that the format cannot hold.
fn in_range(value: LongDouble) -> Option<LongDouble> {
    (!value.is_infinite && value.exponent >= -BINARY_EXPONENT_MAX - 128).then_some(value)
}

/// The number nearest to the quotient of two numbers other than 0.
fn quotient(mut number: Natural, divisor: &Natural) -> LongDouble {
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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

    #[test]
    fn a_number_far_out_of_range_takes_little_time() {
        let start = Instant::now();
        for _ in 0..2_000 {
            for text in ["1e10000", "1e-10000", "0.001e9000", "1e99999999999"] {
                assert_eq!(number(text), None, "{text}");
            }
        }
        assert!(start.elapsed() < Duration::from_secs(2));
        // What counts is where the digits are, not how many zeros surround them.
        let wide = format!("0.{}1e4001", "0".repeat(4_000));
        assert_eq!(sum(&wide, "0"), "1");
        let wide = format!("1{}e-4000", "0".repeat(4_000));
        assert_eq!(sum(&wide, "0"), "1");
        assert_eq!(sum("0x123456789abcdefp-4", "0"), "5124095576030430.9375");
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
