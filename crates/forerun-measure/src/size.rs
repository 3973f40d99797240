//! Parses and formats counts: `2M`, `64Ki`, `1.5G`, `1_000`.

/// The text is not a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    text: String,
    why: &'static str,
}

impl std::fmt::Display for SizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SizeError { text, why } = self;
        write!(
            f,
            "{text:?} is not a count: {why} (examples: 2000000, 2_000_000, 2M, 64Ki or 1.5G)"
        )
    }
}

impl std::error::Error for SizeError {}

/// The suffixes: powers of 1000, and with an `i` powers of 1024. A trailing `B` is allowed after
/// either.
const SUFFIXES: [(&str, u64); 9] = [
    ("", 1),
    ("k", 1000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("ki", 1 << 10),
    ("mi", 1 << 20),
    ("gi", 1 << 30),
    ("ti", 1 << 40),
];

/// Parses a count such as `2M` (2,000,000) or `64Ki` (65,536), in upper or lower case.
///
/// ```
/// use forerun_measure::size::parse_count;
///
/// assert_eq!(parse_count("2M"), Ok(2_000_000));
/// assert_eq!(parse_count("64KiB"), Ok(65_536));
/// assert_eq!(parse_count("1.5k"), Ok(1_500));
/// assert!(parse_count("many").unwrap_err().to_string().contains("many"));
/// ```
///
/// # Errors
/// [`SizeError`] if the text is not a number with a known suffix, is not a whole number, or exceeds
/// 64 bits.
pub fn parse_count(text: &str) -> Result<u64, SizeError> {
    let error = |why| SizeError {
        text: text.to_owned(),
        why,
    };
    let lower = text.trim().to_ascii_lowercase();
    let digits_end = lower
        .find(|c: char| !(c.is_ascii_digit() || c == '_' || c == '.'))
        .unwrap_or(lower.len());
    let (number, suffix) = lower.split_at(digits_end);
    let suffix = suffix.trim();
    let known = |suffix: &str| SUFFIXES.iter().find(|(name, _)| *name == suffix);
    let (_, unit) = known(suffix)
        .or_else(|| known(suffix.strip_suffix('b')?))
        .ok_or_else(|| error("its suffix is not one of k, M, G, T, Ki, Mi, Gi, Ti"))?;
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if whole.is_empty() || fraction.contains('.') {
        return Err(error("it does not start with a number"));
    }
    let too_large = || error("it is too large");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let total = whole.checked_mul(*unit).ok_or_else(too_large)?;
    if fraction.is_empty() {
        return Ok(total);
    }
    let scale = 10u64
        .checked_pow(fraction.len() as u32)
        .ok_or_else(|| error("it has too many decimals"))?;
    let fraction: u64 = fraction.parse().map_err(|_| too_large())?;
    let part = u128::from(fraction) * u128::from(*unit);
    if part % u128::from(scale) != 0 {
        return Err(error("it is not a whole number"));
    }
    // fraction < scale, so the part is below the unit and fits.
    let part = (part / u128::from(scale)) as u64;
    total.checked_add(part).ok_or_else(too_large)
}

/// Like [`parse_count`], for a count that must fit this machine's addresses.
///
/// # Errors
/// See [`parse_count`].
pub fn parse_size(text: &str) -> Result<usize, SizeError> {
    usize::try_from(parse_count(text)?).map_err(|_| SizeError {
        text: text.to_owned(),
        why: "it is too large",
    })
}

/// Parses a rate between 0 and 1, written as `0.5` or `50%`.
///
/// # Errors
/// A message if the text is not a number in that range.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    let number = match trimmed.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
        None => trimmed.parse::<f64>(),
    };
    match number {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a share (examples: 0.5 or 50%)")),
    }
}

/// The range of some rates, from slowest to fastest: `2.28 M - 2.59 M`.
pub fn spread(slowest: f64, fastest: f64) -> String {
    format!("{} - {}", short(slowest), short(fastest))
}

/// Formats a rate or count with three digits and a suffix: `2.41 M`, `950 k`, `12.0`.
pub fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 999.5e6 => (value / 1e9, " G"),
        v if v >= 999.5e3 => (value / 1e6, " M"),
        v if v >= 999.5 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    format!("{}{suffix}", digits(scaled))
}

/// Formats a number with three significant digits below a thousand, and without decimals above.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A number with a comma after each thousand: `2,000,000`.
pub fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with an exact suffix if there is one: `2M`, `64Ki`, `1500`.
pub fn count(value: u64) -> String {
    let units = [
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1 << 30, "Gi"),
        (1 << 20, "Mi"),
        (1000, "k"),
        (1 << 10, "Ki"),
    ];
    match units
        .iter()
        .find(|(unit, _)| value >= *unit && value.is_multiple_of(*unit))
    {
        Some((unit, suffix)) => format!("{}{suffix}", value / unit),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_exactly() {
        let cases = [
            ("0", 0),
            ("17", 17),
            ("1_000", 1000),
            ("2m", 2_000_000),
            ("64Ki", 65_536),
            ("1 GiB", 1 << 30),
            ("4kB", 4000),
            ("2.25k", 2250),
            ("0.5Ki", 512),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, count) in cases {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
    }

    #[test]
    fn what_is_no_count_is_refused_with_the_reason() {
        let cases = [
            ("", "start with a number"),
            ("M", "start with a number"),
            ("-1", "suffix"),
            ("2Q", "suffix"),
            ("1.2.3", "start with a number"),
            ("1.5", "whole"),
            ("0.0001k", "whole"),
            ("99999999999999999999", "too large"),
            ("18446744073709551615k", "too large"),
            ("1.00000000000000000000001G", "decimals"),
        ];
        for (text, why) in cases {
            let refusal = parse_count(text).unwrap_err().to_string();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn shares_lie_between_none_and_all() {
        assert_eq!(parse_share("0.5"), Ok(0.5));
        assert_eq!(parse_share("25%"), Ok(0.25));
        for text in ["1.1", "-0.1", "NaN", "half", "101%"] {
            assert!(parse_share(text).unwrap_err().contains(text));
        }
    }

    #[test]
    fn numbers_are_written_short() {
        assert_eq!(short(2_412_345.0), "2.41 M");
        assert_eq!(short(999_499.0), "999 k");
        assert_eq!(short(12.0), "12.0");
        assert_eq!(short(1e8), "100 M");
        assert_eq!(count(2_000_000), "2M");
        assert_eq!(count(65_536), "64Ki");
        assert_eq!(count(1500), "1500");
        assert_eq!(count(0), "0");
    }
}
