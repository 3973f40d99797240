//! Sizes and counts as people write them: `2GiB`, `512MB`, `64Ki`, `1.5G`, `1_000`.
//!
//! Command lines and the Python package read them here, so that they mean the same everywhere.

use crate::memory_limit;

/// The error for a text that is not a size.
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
            "{text:?} is not a number or a size: {why} (examples: 2000000, 2_000_000, 2M, 64Ki or \
             1.5G)"
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
/// use forerun_core::size::parse_count;
///
/// assert_eq!(parse_count("2M"), Ok(2_000_000));
/// assert_eq!(parse_count("64KiB"), Ok(65_536));
/// assert_eq!(parse_count("1.5k"), Ok(1_500));
/// assert!(parse_count("many").unwrap_err().to_string().contains("many"));
/// ```
///
/// # Errors
/// [`SizeError`]: the text is not a number with a known suffix, is not a whole number, or does not
/// fit 64 bits.
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

/// Like [`parse_count`], for a size in memory. A percentage is that share of what the process may
/// use, as [`memory_limit`] tells.
///
/// ```
/// use forerun_core::size::parse_size;
///
/// assert_eq!(parse_size("2GiB")?, 2 << 30);
/// assert_eq!(parse_size("512MB")?, 512_000_000);
/// # #[cfg(target_os = "linux")]
/// assert!(parse_size("25%")? > 0);
/// assert!(parse_size("lots").is_err());
/// # Ok::<(), forerun_core::size::SizeError>(())
/// ```
///
/// # Errors
/// The same as for [`parse_count`], a size that exceeds this machine's addresses, a percentage that
/// is not a whole number from 1 to 100, and any percentage if the system does not tell how much
/// memory there is.
pub fn parse_size(text: &str) -> Result<usize, SizeError> {
    let error = |why| SizeError {
        text: text.to_owned(),
        why,
    };
    let bytes = match text.trim().strip_suffix('%') {
        None => parse_count(text)?,
        Some(percent) => {
            let percent = percent.trim_end().parse::<u64>().ok();
            let percent = percent
                .filter(|percent| (1..=100).contains(percent))
                .ok_or_else(|| error("its percentage is not a whole number from 1 to 100"))?;
            let limit = memory_limit()
                .ok_or_else(|| error("the system does not tell how much memory there is"))?;
            limit.bytes / 100 * percent
        }
    };
    usize::try_from(bytes).map_err(|_| error("it is too large"))
}

/// A size in its largest binary unit, with at most one decimal: `2GiB`, `1.5MiB`, `1000`.
///
/// ```
/// use forerun_core::size::{format_size, parse_size};
///
/// assert_eq!(format_size(3 << 29), "1.5GiB");
/// assert_eq!(parse_size(&format_size(3 << 29)), Ok(3 << 29));
/// ```
pub fn format_size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    let Some((name, unit)) = UNITS.into_iter().find(|(_, unit)| bytes >= *unit) else {
        return bytes.to_string();
    };
    // Rounded down: a limit is not shown larger than it is.
    match (bytes / unit, bytes % unit * 10 / unit) {
        (whole, 0) => format!("{whole}{name}"),
        (whole, tenth) => format!("{whole}.{tenth}{name}"),
    }
}

/// A count with its noun: `1 key`, `2 keys`, `0 entries`.
///
/// ```
/// use forerun_core::size::counted;
///
/// assert_eq!(counted(1, "entry"), "1 entry");
/// assert_eq!(counted("2,000", "entry"), "2,000 entries");
/// assert_eq!(counted(0, "key"), "0 keys");
/// ```
pub fn counted(count: impl std::fmt::Display, one: &str) -> String {
    let count = count.to_string();
    if count == "1" {
        return format!("{count} {one}");
    }
    let vowel = ["ay", "ey", "oy", "uy"]
        .iter()
        .any(|end| one.ends_with(end));
    let hiss = ["s", "x", "ch", "sh"].iter().any(|end| one.ends_with(end));
    match one.strip_suffix('y') {
        Some(stem) if !vowel => format!("{count} {stem}ies"),
        _ if hiss => format!("{count} {one}es"),
        _ => format!("{count} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_follows_its_count() {
        let nouns = [
            ("key", "keys"),
            ("entry", "entries"),
            ("batch", "batches"),
            ("miss", "misses"),
            ("byte", "bytes"),
        ];
        for (one, many) in nouns {
            assert_eq!(counted(1, one), format!("1 {one}"));
            for count in [0, 2, 11] {
                assert_eq!(counted(count, one), format!("{count} {many}"));
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_percentage_is_a_share_of_the_memory_limit() {
        let half = parse_size("50%").unwrap();
        assert_eq!(parse_size(" 100 %").unwrap() / 2, half);
        assert!(half > 0);
        for text in ["0%", "101%", "-1%", "%", "1.5%", "1e1%"] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains("from 1 to 100"), "{error}");
        }
    }

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
    fn other_texts_are_refused_with_the_reason() {
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
    fn sizes_are_shown_in_their_largest_unit() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (2 << 30, "2GiB"),
            (3 << 19, "1.5MiB"),
            ((2 << 30) - 1, "1.9GiB"),
            (512_000_000, "488.2MiB"),
            (u64::MAX, "16777215.9TiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_size(bytes), text);
        }
    }
}
