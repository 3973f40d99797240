//! Decimal numbers in commands.

/// An expiration time of up to this many seconds (30 days) is relative to now. A larger value is a
/// Unix time.
const RELATIVE_TTL_S_MAX: i32 = 60 * 60 * 24 * 30;

/// An expiration time as the client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiration {
    /// 0: the item never expires.
    Never,
    /// Negative: the item has already expired.
    Past,
    /// Seconds from now, at most 30 days.
    In(u32),
    /// Seconds since 1970.
    AtUnix(u64),
}

impl Expiration {
    /// A time as the binary protocol sends it: 32 bits without a sign.
    pub(crate) fn of_u32(time: u32) -> Self {
        match time {
            0 => Self::Never,
            relative if relative <= RELATIVE_TTL_S_MAX.unsigned_abs() => Self::In(relative),
            unix => Self::AtUnix(unix.into()),
        }
    }
}

/// Parses a number as C's `strtol` does for memcached: optional white space, a sign, digits, then
/// the token's end or white space followed by anything. Returns whether the number is negative, and
/// its digits.
fn parse(token: &[u8]) -> Option<(bool, u64)> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = token.iter().position(|byte| !is_space(byte))?;
    let (is_negative, digits) = match &token[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let mut value = 0_u64;
    for (index, byte) in digits.iter().enumerate() {
        if index > 0 && is_space(byte) {
            return Some((is_negative, value));
        }
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(digit.into())?;
    }
    (!digits.is_empty()).then_some((is_negative, value))
}

/// Parses an unsigned number, with an optional plus sign.
pub(crate) fn parse_u64(token: &[u8]) -> Option<u64> {
    match parse(token)? {
        (true, 1..) => None,
        (_, value) => Some(value),
    }
}

/// Parses an unsigned 32-bit number.
pub(crate) fn parse_u32(token: &[u8]) -> Option<u32> {
    parse_u64(token)?.try_into().ok()
}

/// Parses a signed number.
pub(crate) fn parse_i64(token: &[u8]) -> Option<i64> {
    match parse(token)? {
        (true, value) => 0_i64.checked_sub_unsigned(value),
        (false, value) => value.try_into().ok(),
    }
}

/// Parses the length of a data block. Together with the block's two end bytes, it must fit into 31
/// bits.
pub(crate) fn parse_length(token: &[u8]) -> Option<usize> {
    let length = parse_u32(token)?;
    (length <= i32::MAX as u32 - 2).then_some(length as usize)
}

/// Parses an expiration time as memcached does: the low 32 bits of a 64-bit number, taken as
/// signed. Times from 2^31 to 2^32 - 1 therefore lie in the past, including 4294967295, which
/// clients send for -1.
pub(crate) fn parse_expiration(token: &[u8]) -> Option<Expiration> {
    Some(match parse_i64(token)? as i32 {
        0 => Expiration::Never,
        ..0 => Expiration::Past,
        relative @ 1..=RELATIVE_TTL_S_MAX => Expiration::In(relative.unsigned_abs()),
        unix => Expiration::AtUnix(unix.unsigned_abs().into()),
    })
}

/// Appends `number` in decimal.
#[inline]
pub(crate) fn push_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_that_fit() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"+7"), Some(7));
        assert_eq!(parse_u64(b"-0"), Some(0));
        assert_eq!(parse_u64(b"\t\x0b7\tx"), Some(7));
        for bad in [
            &b""[..],
            b"+",
            b"-1",
            b"1x",
            b"0x10",
            b"--1",
            b"+-1",
            b"-",
            b"\t",
            b"18446744073709551616",
            b"1.5",
        ] {
            assert_eq!(parse_u64(bad), None, "{}", bad.escape_ascii());
        }
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
        assert_eq!(parse_i64(b"-+1"), None);
        assert_eq!(parse_length(b"2147483645"), Some(2_147_483_645));
        assert_eq!(parse_length(b"2147483646"), None);
        assert_eq!(parse_length(b"-1"), None);
    }

    #[test]
    fn thirty_days_and_less_count_from_now_and_more_is_a_time_of_day() {
        assert_eq!(parse_expiration(b"0"), Some(Expiration::Never));
        assert_eq!(parse_expiration(b"-1"), Some(Expiration::Past));
        assert_eq!(
            parse_expiration(b"2592000"),
            Some(Expiration::In(2_592_000))
        );
        assert_eq!(
            parse_expiration(b"2592001"),
            Some(Expiration::AtUnix(2_592_001))
        );
        assert_eq!(parse_expiration(b"soon"), None);
    }

    #[test]
    fn a_time_of_the_binary_protocol_has_no_sign() {
        for (sent, expected) in [
            (0, Expiration::Never),
            (2_592_000, Expiration::In(2_592_000)),
            (2_592_001, Expiration::AtUnix(2_592_001)),
            (u32::MAX, Expiration::AtUnix(4_294_967_295)),
        ] {
            assert_eq!(Expiration::of_u32(sent), expected);
        }
    }

    #[test]
    fn only_the_low_32_bits_of_an_expiration_time_count() {
        for (sent, expected) in [
            (&b"2147483647"[..], Some(Expiration::AtUnix(2_147_483_647))),
            (b"2147483648", Some(Expiration::Past)),
            (b"4294967295", Some(Expiration::Past)),
            (b"4294967296", Some(Expiration::Never)),
            (b"4294967301", Some(Expiration::In(5))),
            (b"9223372036854775807", Some(Expiration::Past)),
            (b"9223372036854775808", None),
            (b"-2147483648", Some(Expiration::Past)),
            (b"-2147483649", Some(Expiration::AtUnix(2_147_483_647))),
        ] {
            let read = parse_expiration(sent);
            assert_eq!(read, expected, "{}", sent.escape_ascii());
        }
    }
}
