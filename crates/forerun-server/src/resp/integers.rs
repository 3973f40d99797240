//! Integers in their only accepted form: digits without leading zeros, plus sign or spaces.

/// Parses a signed 64-bit number. ` 1`, `+1`, `01`, `-0` and the empty text are not numbers.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let first = *digits.first()?;
    if first == b'0' {
        return (digits.len() == 1 && !is_negative).then_some(0);
    }
    let mut value = 0_u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(digit.into())?;
    }
    if is_negative {
        0_i64.checked_sub_unsigned(value)
    } else {
        value.try_into().ok()
    }
}

/// Parses a cursor as C's `strtoull` does, which also accepts leading zeros and a plus sign.
pub(crate) fn parse_cursor(text: &[u8]) -> Option<u64> {
    let text = text.strip_prefix(b"+").unwrap_or(text);
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A signed number in decimal.
pub(crate) struct Decimal(itoa::Buffer);

impl Decimal {
    pub(crate) fn new() -> Self {
        Self(itoa::Buffer::new())
    }

    /// The digits of `number`.
    pub(crate) fn of(&mut self, number: i64) -> &[u8] {
        self.0.format(number).as_bytes()
    }
}

/// A size with Redis' units: `1k` is 1,000 bytes, `1kb` 1,024.
pub(crate) fn memory_bytes(text: &[u8]) -> Option<usize> {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let factor = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1_000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    std::str::from_utf8(digits)
        .ok()?
        .parse::<usize>()
        .ok()?
        .checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_read_as_it_is_written(number in any::<i64>()) {
            prop_assert_eq!(parse_i64(number.to_string().as_bytes()), Some(number));
        }
    }

    #[test]
    fn only_the_canonical_form_is_a_number() {
        for number in [i64::MIN, i64::MAX, 0, -1] {
            assert_eq!(parse_i64(number.to_string().as_bytes()), Some(number));
        }
        for text in [
            "",
            " 1",
            "1 ",
            "+1",
            "01",
            "-0",
            "-",
            "--1",
            "1.0",
            "0x1",
            "1e3",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_cursor(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_cursor(b"007"), Some(7));
        for text in ["", "+", "-1", "a", "1 ", "18446744073709551616"] {
            assert_eq!(parse_cursor(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn sizes_have_redis_units() {
        for (text, bytes) in [
            ("1048576", Some(1 << 20)),
            ("1k", Some(1_000)),
            ("2kb", Some(2_048)),
            ("3MB", Some(3 << 20)),
            ("1gb", Some(1 << 30)),
            ("lots", None),
            ("", None),
            ("kb", None),
        ] {
            assert_eq!(memory_bytes(text.as_bytes()), bytes, "{text}");
        }
    }
}
