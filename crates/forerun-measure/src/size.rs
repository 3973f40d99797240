//! Rates and counts as people read and write them: `2.41 M`, `64Ki`, `50%`.

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
    fn shares_lie_between_none_and_all() {
        assert_eq!(parse_share("0.5"), Ok(0.5));
        assert_eq!(parse_share("25%"), Ok(0.25));
        for text in ["1.1", "-0.1", "NaN", "half", "101%"] {
            assert!(parse_share(text).unwrap_err().contains(text));
        }
    }

    #[test]
    fn numbers_are_abbreviated() {
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
