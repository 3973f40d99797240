//! Reads the expiry time of a certificate from its DER form. Rustls does not report it.
//!
//! ```text
//!   Certificate ::= SEQUENCE {
//!     TBSCertificate ::= SEQUENCE {
//!       [0] version OPTIONAL, INTEGER serial, SEQUENCE signature, SEQUENCE issuer,
//!       SEQUENCE validity { Time notBefore, Time notAfter }, …
//!   Time ::= UTCTime "YYMMDDHHMMSSZ" (1950 to 2049) | GeneralizedTime "YYYYMMDDHHMMSSZ"
//! ```
//!
//! Source: RFC 5280, sections 4.1 and 4.1.2.5.

use forerun_wire::der::{Der, SEQUENCE};

const VERSION: u8 = 0xA0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The last second at which the certificate is valid, in seconds since 1970; 0 if that is before
/// 1970. `None` if the bytes are not a certificate.
pub(crate) fn not_after_unix_s(certificate: &[u8]) -> Option<u64> {
    let mut certificate = Der(Der(certificate).next(SEQUENCE)?);
    let mut fields = Der(certificate.next(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.next(VERSION)?;
    }
    for _ in ["serial", "signature", "issuer"] {
        fields.next_any()?;
    }
    let mut validity = Der(fields.next(SEQUENCE)?);
    validity.next_any()?;
    match validity.next_any()? {
        (UTC_TIME, text) => {
            let (year, rest) = text.split_at_checked(2)?;
            let year = number(year)?;
            unix_s(if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        (GENERALIZED_TIME, text) => {
            let (year, rest) = text.split_at_checked(4)?;
            unix_s(number(year)?, rest)
        }
        _ => None,
    }
}

/// A number of decimal digits.
fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, digit| {
        digit
            .is_ascii_digit()
            .then(|| 10 * number + i64::from(digit - b'0'))
    })
}

/// The time of `MMDDHHMMSSZ` in a year.
fn unix_s(year: i64, rest: &[u8]) -> Option<u64> {
    let [digits @ .., b'Z'] = rest else {
        return None;
    };
    let mut pairs = digits.chunks(2).map(number);
    let mut next = |range: std::ops::RangeInclusive<i64>| {
        pairs
            .next()
            .flatten()
            .filter(|number| range.contains(number))
    };
    let (month, day) = (next(1..=12)?, next(1..=31)?);
    let (hour, minute, second) = (next(0..=23)?, next(0..=59)?, next(0..=59)?);
    if digits.len() != 10 {
        return None;
    }
    // Count years from March, so that the leap day is the last day: day 0 is 1 March of year 0.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 1;
    // 1 January 1970.
    const EPOCH_DAYS: i64 = 719_468;
    let seconds = (days - EPOCH_DAYS) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().expect("a key");
        params
            .self_signed(&key)
            .expect("it is signed")
            .der()
            .to_vec()
    }

    #[test]
    fn times_are_read_in_both_forms() {
        for (year, month, day, unix) in [
            (2026, 11, 22, 1_795_305_600),
            (2024, 2, 29, 1_709_164_800),
            (2000, 3, 1, 951_868_800),
            (1970, 1, 1, 0),
            (2100, 3, 1, 4_107_542_400),
        ] {
            let der = certificate(year, month, day);
            let expected = date_time_ymd(year, month, day).unix_timestamp();
            let found = not_after_unix_s(&der).expect("a certificate");
            assert_eq!(i64::try_from(found), Ok(expected), "{year}-{month}-{day}");
            assert_eq!(found, unix);
        }
    }

    #[test]
    fn other_bytes_are_no_certificate() {
        let der = certificate(2030, 1, 1);
        for len in 0..100 {
            assert_eq!(not_after_unix_s(&der[..len]), None);
        }
        // Whatever value the byte has, the result is a time or `None`.
        for at in 0..der.len().min(200) {
            for byte in [0, 0x30, 0x7F, 0x80, 0x84, 0xFF] {
                let mut changed = der.clone();
                changed[at] = byte;
                let _ = not_after_unix_s(&changed);
            }
        }
        assert_eq!(unix_s(2030, b"0101000000"), None);
        assert_eq!(unix_s(2030, b"1301000000Z"), None);
        assert_eq!(unix_s(2030, b"010100000Z"), None);
        assert_eq!(unix_s(2030, b"01010000000000Z"), None);
    }
}
